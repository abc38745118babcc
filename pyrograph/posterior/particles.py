"""A posterior made of weighted particles."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from pyro.distributions import Empirical
from torch import Tensor

from pyrograph.posterior.export import inference_data
from pyrograph.posterior.guide import ParticleGuide, describe_site
from pyrograph.posterior.posterior import Posterior, draw_indices


class ParticleMarginal(Empirical):
    """Particles of a site and their weights; moments are summed in double precision, since sums of
    w x in single are off by as much as narrow particles far from 0 differ."""

    def _weighted_mean(self, value: Tensor, keepdim: bool = False) -> Tensor:
        weights = self._log_weights.double().softmax(0)
        shape = (-1, *(1 for _ in self.event_shape))
        return (weights.reshape(shape) * value).sum(0, keepdim=keepdim)

    @property
    def mean(self) -> Tensor:
        return super().mean.to(self._samples.dtype)

    @property
    def variance(self) -> Tensor:
        mean = super().mean.unsqueeze(self._aggregation_dim)
        return self._weighted_mean((self._samples - mean).square()).to(self._samples.dtype)


class ParticlePosterior(Posterior):
    """Particles ``x_l`` with weights ``w_l``: p is approximated by sum_l w_l delta(x_l).

    Args:
        graph: the factor graph.
        x: ``[n, dim]`` flat particles in the graph's space.
        weights: ``[n]``, summing to 1; default equal.
        run: ``converged``, ``status``, ``history`` and evidence, see :class:`Posterior`.
    """

    def __init__(self, graph, x: Tensor, weights: Tensor | None = None, **run):
        super().__init__(graph, **run)
        self.x = x.detach().clone()
        self.weights = x.new_full((len(x),), 1 / len(x)) if weights is None else weights.detach()

    @cached_property
    def particles(self) -> Mapping[str, Tensor]:
        """``{site: [n, *site shape]}`` in the program's space."""
        with torch.no_grad():
            return self.graph.constrain(self._as_drawn(self.graph.unflatten(self.x)))

    def marginal(self, site: str) -> Empirical:
        """Weighted empirical distribution of a site.

        Raises:
            OptionError: no such site.
        """
        self._site(site)
        return ParticleMarginal(self.particles[site], self.weights.log())

    def sample(self, num_samples: int) -> dict[str, Tensor]:
        """Joint draws by systematic resampling, in random order."""
        index = draw_indices(self.weights, num_samples)
        return {name: value[index] for name, value in self.particles.items()}

    @torch.inference_mode(False)  # its parameters are to be trained
    def guide(self, sites: Sequence[str] | None = None) -> ParticleGuide:
        """Smoothed mixture on the particles, or on their marginal of the given sites.

        Raises:
            OptionError: no such site, or an empty list.
            UnsupportedSite: a site's support depends on latents.
        """
        chosen = self._chosen(sites)
        free = self.graph.unflatten(self.x)
        x = torch.cat([free[site.name].reshape(len(self.x), -1) for site in chosen], 1)
        described = [describe_site(site) for site in chosen]
        return ParticleGuide.from_particles(described, x, self.weights).drawing(self.graph)

    def to_arviz(self, num_samples: int | None = None):
        """``arviz.InferenceData``: one chain whose draws are the particles, their weights in
        ``sample_stats``; or ``num_samples`` unweighted draws.

        Raises:
            ImportError: arviz is not installed.
            UnsupportedSite: a site is called "chain" or "draw".
        """
        if num_samples is not None:
            return super().to_arviz(num_samples)
        stats = {"weights": self.weights}
        return inference_data(self.graph.sites.values(), self.particles, stats)
