"""A joint mixture as a Pyro guide with its exact density.

One auxiliary site draws all nodes together from

    q(x) = sum_l w_l prod_i q_il(x_i)

or from components that correlate continuous nodes (:mod:`.joint_density`): the numbers of
continuous nodes in unconstrained space and the numbers of the states of discrete ones. Every latent
site is then a ``Delta`` at its image, carrying the log Jacobian as its density; values of states
have none. So the guide's trace has the exact log density of what it drew, and works in
``Predictive``, ``Importance``, ``SVI`` and ``AutoGuideList``.

The guide knows its sites by plain descriptions. It never runs the model, and a saved
``state_dict`` is enough to build it again: :meth:`MixtureGuide.from_state_dict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pyro
import torch
from pyro.distributions import Delta, constraints
from pyro.nn import PyroParam
from torch import Tensor

from pyrograph.beliefs import Categoricals, JointMixture, Normals
from pyrograph.errors import InferenceError
from pyrograph.posterior.belief_guide import describe
from pyrograph.posterior.guide import image
from pyrograph.posterior.joint_density import Baseline, JointDensity
from pyrograph.posterior.mixture import NormalMixture
from pyrograph.posterior.site_guide import SiteGuide, levels

CONSTRAINTS = {
    "logits": constraints.real,
    "loc": constraints.real,
    "scale": constraints.positive,
    "scale_tril": constraints.lower_cholesky,
}


class MixtureGuide(SiteGuide):
    """A mixture over all nodes of its sites, as an ``AutoGuide``; arguments of calls are ignored.

    Its parameters are ``logits [L]`` of the weights and, per site k of n nodes, ``loc_k [L, n, d]``
    and ``scale_k [L, n, d]`` or, of correlated numbers, ``scale_tril_k [L, n, d, d]`` in
    unconstrained space; or ``logits_k [L, n, c]`` of states. Where nodes of a component are
    correlated, one ``scale_tril [L, D, D]`` over the D numbers of all sites is in the place of
    their scales.
    All are trained by ``SVI`` with ``Trace_ELBO``; several particles, vectorised, quieten the
    gradient of the weights.

    Args:
        sites: plain descriptions, see :func:`pyrograph.posterior.belief_guide.describe`.
        logits: ``[L]``.
        parameters: of each site, its tensors by name, without the number.
        scale_tril: ``[L, D, D]`` of correlated numbers, else None.
    """

    def __init__(
        self,
        sites: Sequence[Mapping[str, Any]],
        logits: Tensor,
        parameters: Sequence[Mapping[str, Tensor]],
        scale_tril: Tensor | None = None,
    ):
        super().__init__(sites)
        self.logits = PyroParam(logits.detach().clone(), constraints.real)
        for k, tensors in enumerate(parameters):
            for name, value in tensors.items():
                setattr(self, f"{name}_{k}", PyroParam(value.detach().clone(), CONSTRAINTS[name]))
        self.is_correlated = scale_tril is not None
        if scale_tril is not None:
            self.scale_tril = PyroParam(scale_tril.detach().clone(), constraints.lower_cholesky)
        self._baseline = Baseline()

    @classmethod
    def from_mixture(cls, sites: Sequence, mixture: JointMixture) -> MixtureGuide:
        """From sites of the graph; sites of the mixture beyond these are integrated out.

        Raises:
            UnsupportedSite: a site's support depends on latents.
            InferenceError: a continuous node has no width, as when it was conditioned on.
        """
        parameters, correlated = [], []
        for site in sites:
            nodes = mixture.sites[site.name]
            if isinstance(nodes, Categoricals):
                parameters.append({"logits": _finite(nodes.log_p)})
                continue
            if not bool((nodes.scale > 0).all()):
                raise InferenceError(
                    f'site "{site.name}" has nodes of no width, which have no density; leave it '
                    "out: guide(sites=[...])"
                )
            if mixture.is_correlated:
                parameters.append({"loc": nodes.mean})
                correlated.append(site.name)
                continue
            width = "scale_tril" if nodes.is_dense else "scale"
            parameters.append({"loc": nodes.mean, width: nodes.factor})
        root = mixture.together(correlated).root.squeeze(1) if correlated else None
        described = [describe(site) for site in sites]
        return cls(described, _finite(mixture.log_weights), parameters, root)

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> MixtureGuide:
        """Rebuild a guide from what ``guide.state_dict()`` returned, without model or data."""
        sites = state["_extra_state"]["sites"]
        parameters = []
        for k, site in enumerate(sites):
            if site["values"] is not None:
                parameters.append({"logits": torch.zeros_like(state[f"logits_{k}_unconstrained"])})
                continue
            loc = state[f"loc_{k}_unconstrained"]
            unit = torch.ones_like(loc)
            width = {"scale": unit}
            if f"scale_tril_{k}_unconstrained" in state:
                width = {"scale_tril": torch.diag_embed(unit)}
            elif "scale_tril_unconstrained" in state:
                width = {}
            parameters.append({"loc": torch.zeros_like(loc), **width})
        root = state.get("scale_tril_unconstrained")
        if root is not None:
            root = torch.eye(root.shape[-1]).to(root).expand_as(root)
        guide = cls(sites, torch.zeros_like(state["logits_unconstrained"]), parameters, root)
        guide.load_state_dict(state)
        return guide

    def mixture(self) -> JointMixture:
        """Over the guide's sites, at the present parameters."""
        nodes: dict[str, Normals | Categoricals] = {}
        root = self.scale_tril if self.is_correlated else None
        row = 0
        for k, (name, site) in enumerate(self.sites.items()):
            if site["values"] is not None:
                nodes[name] = Categoricals(getattr(self, f"logits_{k}").log_softmax(-1))
                continue
            loc = getattr(self, f"loc_{k}")
            if root is None:
                width = "scale" if hasattr(self, f"scale_{k}") else "scale_tril"
                factor = getattr(self, f"{width}_{k}")
            else:
                count = loc[0].numel()
                factor = root[:, row : row + count].unflatten(1, loc.shape[1:])
                row += count
            nodes[name] = Normals(loc, factor)
        return JointMixture(self.logits.log_softmax(0), nodes, self.is_correlated)

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
            with ExitStack() as stack:
                for plate, _, _ in site["plates"]:
                    stack.enter_context(plates[plate])
                result[name] = pyro.sample(name, _point(site, part))
        return result

    def _parts(
        self, packed: Mapping[str, Tensor], lead: torch.Size
    ) -> Iterator[tuple[str, dict[str, Any], Tensor]]:
        """Unconstrained numbers or state numbers in the sites' shapes, lead plates outermost."""
        for name, site in self.sites.items():
            shape = torch.broadcast_shapes(torch.Size(site["batch_shape"]), lead)
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


def _finite(log_p: Tensor) -> Tensor:
    """Parameters have to be finite numbers; exp of the least is zero all the same."""
    return log_p.clamp_min(torch.finfo(log_p.dtype).min / 4)


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
    order = site["values"].to(probs.device).argsort()
    reached = probs[:, order].cumsum(1) < q
    return order[reached.sum(1).clamp_max(len(order) - 1)]
