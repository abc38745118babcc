"""A Pyro guide that draws every node from its belief.

Discrete sites from their categorical beliefs, continuous ones from normals in unconstrained space
mapped to the site's support, or from gamma, beta and Dirichlet beliefs: a product density, proper,
so that it works in ``Predictive``, ``Importance``, ``SVI`` and ``AutoGuideList``. The guide knows
its sites by plain descriptions; a saved ``state_dict`` is enough to build it again:
:meth:`BeliefGuide.from_state_dict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from pyro.distributions import (
    Dirichlet,
    MultivariateNormal,
    Normal,
    TorchDistribution,
    TransformedDistribution,
    constraints,
)
from torch import Tensor
from torch.distributions import biject_to
from torch.distributions.transforms import ReshapeTransform

from pyrograph.beliefs import Conjugate, LogDirichlet, LogGamma, LogitBeta, Natural
from pyrograph.errors import OptionError
from pyrograph.posterior.conjugate import Rescaled, conjugate_distribution, median, quantile
from pyrograph.posterior.finite import Finite, state_quantile
from pyrograph.posterior.guide import describe_site
from pyrograph.posterior.mixture import NORMAL_REACH
from pyrograph.posterior.site_guide import SiteGuide, as_drawn, finite, levels, with_states
from pyrograph.posterior.support import restore

#: Names of a conjugate family's parameters, as its Pyro distribution has them.
PARAMETERS: dict[type[Conjugate], tuple[str, ...]] = {
    LogGamma: ("concentration", "rate"),
    LogitBeta: ("concentration1", "concentration0"),
    LogDirichlet: ("concentration",),
}
CONSTRAINTS = {
    "logits": constraints.real,
    "loc": constraints.real,
    "scale_tril": constraints.lower_cholesky,
    **{name: constraints.positive for names in PARAMETERS.values() for name in names},
}


class BeliefGuide(SiteGuide):
    """Independent nodes, as an ``AutoGuide``; arguments of calls are ignored.

    Its parameters are, per site k, ``logits_k [*batch, c]``, or ``loc_k [*batch, d]`` and
    ``scale_tril_k [*batch, d, d]`` in unconstrained space, or ``concentration_k`` and ``rate_k``
    of gamma beliefs, ``concentration1_k`` and ``concentration0_k`` of beta ones, and
    ``concentration_k [*batch, c]`` of Dirichlet ones.

    Args:
        sites: plain descriptions, see :func:`describe`.
        parameters: of each site, its tensors by name, without the number.
    """

    def __init__(
        self, sites: Sequence[Mapping[str, Any]], parameters: Sequence[Mapping[str, Tensor]]
    ):
        super().__init__(sites)
        self._add_parameters(parameters, CONSTRAINTS)

    @classmethod
    def from_beliefs(
        cls, sites: Sequence, beliefs: Sequence[Tensor | Natural], dtype: torch.dtype | None = None
    ) -> BeliefGuide:
        """From sites of the graph and the beliefs of their nodes, in row-major order.

        Args:
            dtype: of the parameters, default that of the beliefs.
        """
        parameters: list[dict[str, Tensor]] = []
        for site, belief in zip(sites, beliefs, strict=True):
            batch = site.batch_shape
            if isinstance(belief, Tensor):
                log_p = belief.to(dtype or belief.dtype)
                parameters.append({"logits": finite(log_p).reshape(*batch, -1)})
            elif isinstance(belief, Conjugate):
                names, natural = PARAMETERS[type(belief)], belief.natural.reshape(*batch, -1)
                values = [natural] if len(names) == 1 else natural.unbind(-1)
                parameters.append(dict(zip(names, values, strict=True)))
            else:
                root = torch.linalg.cholesky(belief.covariance)
                parameters.append(
                    {
                        "loc": belief.mean.reshape(*batch, belief.d),
                        "scale_tril": root.reshape(*batch, belief.d, belief.d),
                    }
                )
        parameters = [
            {name: p.to(dtype or p.dtype) for name, p in own.items()} for own in parameters
        ]
        return cls([describe(site) for site in sites], parameters)

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> BeliefGuide:
        """Rebuild a guide from what ``guide.state_dict()`` returned, without model or data.

        Raises:
            OptionError: it is the state of a guide of another class.
        """
        if "branches" in state["_extra_state"]:
            raise OptionError(
                "the state is of a joint guide: ForestGuide.from_state_dict(state) rebuilds it"
            )
        sites = state["_extra_state"]["sites"]
        parameters = []
        for k, site in enumerate(sites):
            family = _family_with({n for n in CONSTRAINTS if f"{n}_{k}_unconstrained" in state})
            if family is not None:
                names = PARAMETERS[family]
                values = [torch.ones_like(state[f"{n}_{k}_unconstrained"]) for n in names]
                parameters.append(dict(zip(names, values, strict=True)))
            elif site["values"] is not None:
                parameters.append({"logits": torch.zeros_like(state[f"logits_{k}_unconstrained"])})
            else:
                loc = state[f"loc_{k}_unconstrained"]
                eye = torch.eye(loc.shape[-1], dtype=loc.dtype, device=loc.device)
                eye = eye.expand(*loc.shape, loc.shape[-1])
                parameters.append({"loc": torch.zeros_like(loc), "scale_tril": eye})
        guide = cls(sites, parameters)
        guide.load_state_dict(state)
        return guide

    def distribution(self, name: str) -> TorchDistribution:
        """Of a site, its batch independent."""
        return self._distribution(list(self.sites).index(name), self.sites[name])

    def _distributions(self) -> Iterator[tuple[str, TorchDistribution]]:
        """Of all sites, by name."""
        for k, (name, site) in enumerate(self.sites.items()):
            yield name, self._distribution(k, site)

    def _distribution(self, k: int, site: Mapping[str, Any]) -> TorchDistribution:
        if site["values"] is not None:
            logits = getattr(self, f"logits_{k}")
            return Finite(site["values"].to(logits.device), logits)
        family = _family_with({name for name in CONSTRAINTS if hasattr(self, f"{name}_{k}")})
        if family is not None:
            own = [as_drawn(site, getattr(self, f"{name}_{k}")) for name in PARAMETERS[family]]
            natural = own[0] if len(own) == 1 else torch.stack(own, -1)
            support = restore(site["support"], natural.device)
            return conjugate_distribution(family, natural, support)
        loc, root = (as_drawn(site, getattr(self, f"{n}_{k}")) for n in ("loc", "scale_tril"))
        event = torch.Size(site["event_shape"])
        to_support = biject_to(restore(site["support"], loc.device))
        if not event:
            base = Normal(loc.squeeze(-1), root[..., 0, 0])
            return TransformedDistribution(base, [to_support])
        base = MultivariateNormal(loc, scale_tril=root)
        if len(event) == 1:
            return TransformedDistribution(base, [to_support])
        return TransformedDistribution(
            base, [ReshapeTransform(base.event_shape, event), to_support]
        )

    def forward(self, *args, **kwargs) -> dict[str, Tensor]:
        """Draw every site; returns ``{site: value}`` in the program's space."""
        plates = self._create_plates(*args, **kwargs)
        result = {}
        for name, fn in self._distributions():
            result[name] = self._sample(plates, name, fn)
        return result

    @torch.no_grad()
    def median(self, *args, **kwargs) -> dict[str, Tensor]:
        """Median of every continuous coordinate in unconstrained space, mapped to the site; the
        most probable state of discrete sites."""
        out = {}
        for name, fn in self._distributions():
            if isinstance(fn, Finite):
                out[name] = fn.mode
            elif isinstance(fn, Dirichlet):
                out[name] = median(fn)
            else:
                out[name] = _quantile(fn, 0.5)
        return out

    @torch.no_grad()
    def quantiles(self, quantiles: Sequence[float], *args, **kwargs) -> dict[str, Tensor]:
        """``{site: [len(quantiles), *shape]}``, as a joint guide's ``quantiles`` are.

        Raises:
            OptionError: they are no sequence of numbers from 0 to 1, or there are none.
        """
        wanted, out = levels(quantiles), {}
        for name, fn in self._distributions():
            if not isinstance(fn, Finite) or fn.values.dim() == 1:
                out[name] = torch.stack([_quantile(fn, q) for q in wanted])
        return out


def _family_with(names: set[str]) -> type[Conjugate] | None:
    """The family whose parameters a site has."""
    return next((family for family, own in PARAMETERS.items() if set(own) == names), None)


def _quantile(fn: TorchDistribution, q: float) -> Tensor:
    """Of every number of what :meth:`BeliefGuide.distribution` returns; not of vector states."""
    if isinstance(fn, Finite):
        return fn.values[state_quantile(fn.values, fn.logits.softmax(-1), q)]
    if not isinstance(fn, TransformedDistribution) or isinstance(fn, Rescaled):
        return quantile(fn, q)
    base = fn.base_dist
    steps = torch.special.ndtri(base.mean.new_tensor(q)).clamp(-NORMAL_REACH, NORMAL_REACH)
    value = base.mean + steps * base.stddev
    for transform in fn.transforms:
        value = transform(value)
    return value


def describe(site) -> dict[str, Any]:
    """A site of the graph as plain data; ``values`` are a discrete site's states.

    Raises:
        UnsupportedSite: its support depends on latents or cannot be rebuilt.
    """
    if not site.is_discrete:
        return {**describe_site(site), "values": None}
    return with_states(site)
