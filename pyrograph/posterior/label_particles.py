"""A posterior made of distinct labellings, with weights.

Labels of clusters have no meaning of their own: what can be asked is who is with whom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyro
import torch
from pyro.distributions import Delta, Empirical
from torch import Tensor
from torch.distributions import Categorical as TorchCategorical

from pyrograph.errors import InferenceError
from pyrograph.posterior.joint_states import JointStateGuide, distinct, log_sums
from pyrograph.posterior.posterior import Posterior, draw_indices


class LabelParticles(Posterior):
    """Labellings and their weights.

    Args:
        graph: the labelled program.
        particles: ``{site: [K, n]}``, clusters numbered by first appearance.
        log_weights: ``[K]``, of weights that add up to 1.
        run: ``converged``, ``status``, ``history`` and evidence, see :class:`Posterior`.
    """

    def __init__(self, graph, particles: Mapping[str, Tensor], log_weights: Tensor, **run):
        super().__init__(graph, **run)
        self.particles = dict(particles)
        self.log_weights = log_weights.log_softmax(0)

    @property
    def weights(self) -> Tensor:
        """``[K]``."""
        return self.log_weights.exp()

    def marginal(self, site: str) -> LabelMarginal:
        """Weighted labellings of a site; see :meth:`together` for what does not depend on names.

        Raises:
            OptionError: no such site.
        """
        self._site(site)
        return LabelMarginal(site, self.particles[site], self.log_weights)

    def together(self, site: str) -> Tensor:
        """``[n, n]``: probabilities that two elements are in one cluster.

        Raises:
            OptionError: no such site.
        """
        self._site(site)
        labels = self.particles[site]
        out = self.log_weights.new_zeros(labels.shape[1], labels.shape[1])
        for w, row in zip(self.weights, labels, strict=True):  # [n, n] at a time
            out += w * (row.unsqueeze(1) == row)
        return out

    def num_clusters(self, site: str) -> TorchCategorical:
        """Distribution of the number of clusters, over 0, 1, ...

        Raises:
            OptionError: no such site.
        """
        self._site(site)
        count = self.particles[site].amax(1) + 1
        # as probabilities they would be rounded up to the dtype's epsilon
        return TorchCategorical(logits=log_sums(self.log_weights, count, int(count.max()) + 1))

    def sample(self, num_samples: int) -> dict[str, Tensor]:
        """Joint draws by systematic resampling, in random order."""
        index = draw_indices(self.weights, num_samples)
        return {name: value[index] for name, value in self.particles.items()}

    @torch.inference_mode(False)  # its parameters are to be trained
    def guide(self, sites: Sequence[str] | None = None) -> LabelGuide:
        """Draws a joint labelling.

        Its density is that of labellings, not of partitions: the prior scores every labelling of a
        partition alike, so that weights by :class:`~pyro.infer.Importance` are the bound.

        Raises:
            OptionError: no such site, or an empty list.
        """
        names = [site.name for site in self._chosen(sites)]
        labels = torch.cat([self.particles[name] for name in names], 1)
        labels, log_weights = distinct(labels, self.log_weights)
        described = [
            {"name": name, "size": self.particles[name].shape[1], "plates": []} for name in names
        ]
        return LabelGuide(described, labels, log_weights)


class LabelMarginal(Empirical):
    """Weighted labellings ``[K, n]`` of a site, without moments: names of clusters have no mean."""

    def __init__(self, site: str, labels: Tensor, log_weights: Tensor):
        self.site = site
        super().__init__(labels, log_weights)

    @property
    def mean(self) -> Tensor:
        raise self._has_no("mean")

    @property
    def variance(self) -> Tensor:
        raise self._has_no("variance")

    def _has_no(self, moment: str) -> InferenceError:
        return InferenceError(
            f'labels "{self.site}" have no {moment}: their numbers are names of clusters. Ask '
            f'posterior.together("{self.site}") who is with whom, or '
            f'posterior.num_clusters("{self.site}") how many clusters there are.'
        )


class LabelGuide(JointStateGuide):
    """Joint labellings, the codes ``[K, total size]`` being the labels."""

    def forward(self, *args, **kwargs) -> dict[str, Tensor]:
        """Draw a joint labelling; returns ``{site: labels}``."""
        which = self.draw()
        result, start = {}, 0
        for name, site in self.sites.items():
            value = self.codes[which][..., start : start + site["size"]]
            start += site["size"]
            result[name] = pyro.sample(name, Delta(value, event_dim=1))
        return result

    @torch.no_grad()
    def median(self, *args, **kwargs) -> dict[str, Tensor]:
        """The joint labelling of the highest weight."""
        row, start, out = self.codes[int(self.logits.argmax())], 0, {}
        for name, site in self.sites.items():
            out[name] = row[start : start + site["size"]]
            start += site["size"]
        return out
