"""A Pyro guide with a proper density, made from particles.

One auxiliary site draws a point of the unconstrained space from the smoothed mixture of
:mod:`pyrograph.posterior.mixture`; every latent site is then a ``Delta`` at its image, carrying
the log Jacobian as its density. So the guide's trace has the exact log density of what it drew,
and works in ``Predictive``, ``Importance``, ``SVI`` and ``AutoGuideList``. A plain ``Delta``
guide on the particles would not: its importance weights mean nothing.

The guide knows its sites by plain descriptions. It never runs the model, and a saved
``state_dict`` is enough to build it again: :meth:`ParticleGuide.from_state_dict`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.distributions.util import sum_rightmost
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import biject_to

from pyrograph.posterior.mixture import NormalMixture, smooth
from pyrograph.posterior.site_guide import SiteGuide, as_drawn, levels, masked_part
from pyrograph.posterior.support import describe, restore
from pyrograph.shapes import broadcast_shapes


class ParticleGuide(SiteGuide):
    """Smoothed mixture on particles, as an ``AutoGuide``.

    Its parameters are the components' ``locs`` and ``scales`` (``[K, D]``, unconstrained space,
    columns in site order); the mixture weights stay as they are. Arguments of calls are ignored.
    They are trained by ``Trace_ELBO``, ``TraceGraph_ELBO`` and ``ReweightedWakeSleep``.
    ``TraceMeanField_ELBO`` is wrong where a support is not all of the reals, as with Pyro's
    ``AutoDiagonalNormal``: its divergence of a ``Delta`` leaves out the log density, which is the
    Jacobian here.

    Args:
        sites: plain descriptions, see :func:`describe_site`.
        locs, scales: ``[K, D]``.
        logits: ``[K]`` log weights.
    """

    def __init__(
        self, sites: Sequence[Mapping[str, Any]], locs: Tensor, scales: Tensor, logits: Tensor
    ):
        super().__init__(sites)
        self.locs = PyroParam(locs.detach().clone(), constraints.real)
        self.scales = PyroParam(scales.detach().clone(), constraints.positive)
        self.register_buffer("logits", logits.detach().clone())

    @classmethod
    def from_particles(
        cls, sites: Sequence[Mapping[str, Any]], x: Tensor, weights: Tensor
    ) -> "ParticleGuide":
        """Smooth weighted particles ``[n, D]``."""
        return cls(sites, *smooth(x, weights))

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> "ParticleGuide":
        """Rebuild a guide from what ``guide.state_dict()`` returned, without model or data."""
        like = state["locs_unconstrained"]
        sites = state["_extra_state"]["sites"]
        guide = cls(sites, like, torch.ones_like(like), torch.zeros_like(state["logits"]))
        guide.load_state_dict(state)
        return guide

    def distribution(self) -> NormalMixture:
        """The density over the unconstrained space."""
        return NormalMixture(self.locs, self.scales, self.logits)

    def forward(self, *args, **kwargs) -> dict[str, Tensor]:
        """Draw every site; returns ``{site: value}`` in constrained space."""
        latent = pyro.sample(
            f"_{self._pyro_name}_latent", self.distribution(), infer={"is_auxiliary": True}
        )
        plates = self._create_plates(*args, **kwargs)
        result = {}
        for name, site, free in self._unpack(latent):
            result[name] = self._sample(plates, name, image(site, free))
        return result

    def _unpack(self, latent: Tensor) -> Iterator[tuple[str, dict[str, Any], Tensor]]:
        """Slices of ``[*lead, D]`` in the sites' unconstrained shapes, lead plates outermost."""
        start = 0
        for name, site in self.sites.items():
            batch, event = torch.Size(site["batch_shape"]), torch.Size(site["event_shape"])
            stop = start + batch.numel() * event.numel()
            shape = broadcast_shapes(batch, latent.shape[:-1]) + event
            yield name, site, latent[..., start:stop].reshape(shape)
            start = stop

    def median(self, *args, **kwargs) -> dict[str, Tensor]:
        """Median of every coordinate in unconstrained space, mapped to the sites."""
        return {name: value[0] for name, value in self.quantiles([0.5]).items()}

    @torch.no_grad()
    def quantiles(self, quantiles: Sequence[float], *args, **kwargs) -> dict[str, Tensor]:
        """``{site: [len(quantiles), *shape]}``, coordinate-wise in unconstrained space.

        Raises:
            OptionError: they are no sequence of numbers from 0 to 1, or there are none.
        """
        mixture = self.distribution()
        points = [
            {
                name: biject_to(restore(site["support"], free.device))(as_drawn(site, free))
                for name, site, free in self._unpack(mixture.quantile(q))
            }
            for q in levels(quantiles)
        ]
        return {name: torch.stack([point[name] for point in points]) for name in self.sites}


class Image(dist.Delta):
    """A ``Delta`` whose density, that of the draw behind it, is a constant where the value was
    detached, as by ``ReweightedWakeSleep``: no derivative goes along the draw then."""

    def log_prob(self, x: Tensor) -> Tensor:
        log_prob = super().log_prob(x)
        return log_prob if x.requires_grad else log_prob.detach()


def image(site: Mapping[str, Any], free: Tensor) -> Image:
    """A described site at the image of ``free``; its density is the log Jacobian."""
    free = as_drawn(site, free)
    transform = biject_to(restore(site["support"], free.device))
    value, event_dim = transform(free), site["event_dim"]
    log_density = 0.0
    if poutine.get_mask() is not False:
        log_density = transform.inv.log_abs_det_jacobian(value, free)
        log_density = sum_rightmost(log_density, log_density.dim() - value.dim() + event_dim)
    return Image(value, log_density=log_density, event_dim=event_dim)


def describe_site(site) -> dict[str, Any]:
    """A site of the graph as plain data.

    Raises:
        UnsupportedSite: its support depends on latents or cannot be rebuilt.
    """
    return {
        "name": site.name,
        "batch_shape": list(site.batch_shape),
        "event_shape": list(site.event_shape),
        "event_dim": len(site.constrained_event_shape),
        "plates": [list(plate) for plate in site.plates],
        "support": describe(site.support, site.name),
        **masked_part(site),
    }
