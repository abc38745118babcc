"""What guides share that draw all nodes of their sites together.

One auxiliary site draws a packed vector of them (:mod:`.joint_density`): the numbers of continuous
nodes in unconstrained space and the numbers of the states of discrete ones. Every latent site is
then a ``Delta`` at its image, carrying the log Jacobian as its density; values of states have none.
So the guide's trace has the exact log density of what it drew, and works in ``Predictive``,
``Importance``, ``SVI`` and ``AutoGuideList``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyro
import torch
from pyro.distributions import Delta
from torch import Tensor

from pyrograph.beliefs import Categoricals, JointForest, JointMixture, Normals
from pyrograph.posterior.finite import state_quantile
from pyrograph.posterior.guide import image
from pyrograph.posterior.joint_density import Baseline, JointDensity
from pyrograph.posterior.mixture import NormalMixture
from pyrograph.posterior.site_guide import SiteGuide, levels
from pyrograph.shapes import broadcast_shapes


class JointGuide(SiteGuide):
    """An ``AutoGuide`` whose arguments are ignored."""

    def __init__(self, sites: Sequence[Mapping[str, Any]]):
        super().__init__(sites)
        self._baseline = Baseline()

    @abstractmethod
    def mixture(self) -> JointMixture | JointForest:
        """Over the guide's sites, at the present parameters."""

    def distribution(self) -> JointDensity:
        """The density over packed vectors."""
        return JointDensity(self.mixture(), self._baseline)

    def forward(self, *args, **kwargs) -> dict[str, Tensor]:
        """Draw every site; returns ``{site: value}`` in the program's space."""
        fn = self.distribution()
        latent = pyro.sample(f"_{self._pyro_name}_latent", fn, infer={"is_auxiliary": True})
        plates = self._create_plates(*args, **kwargs)
        lead = latent.shape[:-1]  # plates around the program's, as of parallel particles
        result = {}
        for name, site, part in self._parts(fn.unpack(latent), lead):
            result[name] = self._sample(plates, name, _point(site, part))
        return result

    def _parts(
        self, packed: Mapping[str, Tensor], lead: torch.Size
    ) -> Iterator[tuple[str, dict[str, Any], Tensor]]:
        """Unconstrained numbers or state numbers in the sites' shapes, lead plates outermost."""
        for name, site in self.sites.items():
            shape = broadcast_shapes(torch.Size(site["batch_shape"]), lead)
            if site["values"] is None:
                shape = shape + torch.Size(site["event_shape"])
            yield name, site, packed[name].reshape(shape)

    @torch.no_grad()
    def median(self, *args, **kwargs) -> dict[str, Tensor]:
        """Median of every continuous coordinate in unconstrained space, mapped to the site; the
        most probable state of discrete nodes."""
        mixture = self.mixture()
        packed = {
            name: _probabilities(mixture, nodes).argmax(-1)
            if isinstance(nodes, Categoricals)
            else _quantile(mixture, nodes, 0.5)
            for name, nodes in mixture.sites.items()
        }
        return {
            name: _point(site, part).v for name, site, part in self._parts(packed, torch.Size())
        }

    @torch.no_grad()
    def quantiles(self, quantiles: Sequence[float], *args, **kwargs) -> dict[str, Tensor]:
        """``{site: [len(quantiles), *shape]}``, coordinate-wise in unconstrained space.

        Of discrete sites the least value that is reached with the probability asked for; states
        that are vectors have no order, and their sites are left out.

        Raises:
            OptionError: they are no sequence of numbers from 0 to 1, or there are none.
        """
        mixture = self.mixture()
        points: dict[str, list[Tensor]] = {}
        for q in levels(quantiles):
            packed = {
                name: _state_quantile(_probabilities(mixture, nodes), self.sites[name], q)
                if isinstance(nodes, Categoricals)
                else _quantile(mixture, nodes, q)
                for name, nodes in mixture.sites.items()
            }
            for name, site, part in self._parts(packed, torch.Size()):
                if site["values"] is None or site["values"].dim() == 1:
                    points.setdefault(name, []).append(_point(site, part).v)
        return {name: torch.stack(values) for name, values in points.items()}


def _point(site: Mapping[str, Any], part: Tensor) -> Delta:
    """A site at its image; states carry no density."""
    if site["values"] is None:
        return image(site, part)
    value = site["values"].to(part.device)[part]
    nothing = torch.zeros(part.shape, device=part.device)
    return Delta(value, log_density=nothing, event_dim=len(site["event_shape"]))


def _probabilities(mixture: JointMixture, nodes: Categoricals) -> Tensor:
    """``[n, c]``."""
    return (nodes.log_p + mixture.log_weights[:, None, None]).logsumexp(0).exp()


def _quantile(mixture: JointMixture, nodes: Normals, q: float) -> Tensor:
    """``[n, d]``, of every number."""
    marginals = NormalMixture(nodes.mean.flatten(1), nodes.scale.flatten(1), mixture.log_weights)
    return marginals.quantile(q).reshape(nodes.mean.shape[1:])


def _state_quantile(probs: Tensor, site: Mapping[str, Any], q: float) -> Tensor:
    """State numbers ``[n]``; of vectors any."""
    if site["values"].dim() > 1:
        return probs.new_zeros(len(probs), dtype=torch.int64)
    return state_quantile(site["values"].to(probs.device), probs, q)
