"""A joint mixture as a Pyro guide with its exact density (:mod:`.joint_guide`).

    q(x) = sum_l w_l prod_i q_il(x_i)

or with components that correlate continuous nodes. The guide knows its sites by plain descriptions.
It never runs the model, and a saved ``state_dict`` is enough to build it again:
:meth:`MixtureGuide.from_state_dict`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pyro.distributions import constraints
from pyro.nn import PyroParam
from torch import Tensor

from pyrograph.beliefs import Categoricals, JointMixture, Normals
from pyrograph.errors import InferenceError
from pyrograph.posterior.belief_guide import describe
from pyrograph.posterior.joint_guide import JointGuide
from pyrograph.posterior.site_guide import finite

CONSTRAINTS = {
    "logits": constraints.real,
    "loc": constraints.real,
    "scale": constraints.positive,
    "scale_tril": constraints.lower_cholesky,
}


class MixtureGuide(JointGuide):
    """A mixture over all nodes of its sites, as an ``AutoGuide``; arguments of calls are ignored.

    Its parameters are ``logits [L]`` of the weights and, per site k of n nodes, ``loc_k [L, n, d]``
    and ``scale_k [L, n, d]`` or, of correlated numbers, ``scale_tril_k [L, n, d, d]`` in
    unconstrained space; or ``logits_k [L, n, c]`` of states. Where nodes of a component are
    correlated, one ``scale_tril [L, D, D]`` over the D numbers of all sites is in the place of
    their scales.
    All are trained by ``SVI`` with ``Trace_ELBO`` and ``ReweightedWakeSleep``, not with ELBOs that
    want every draw reparameterised (``RenyiELBO``, ``TraceMeanField_ELBO``,
    ``TraceTailAdaptive_ELBO``): weights and states have a score function. Several particles,
    vectorised, quieten their gradients.

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
        self._add_parameters(parameters, CONSTRAINTS)
        self.is_correlated = scale_tril is not None
        if scale_tril is not None:
            self.scale_tril = PyroParam(scale_tril.detach().clone(), constraints.lower_cholesky)

    @classmethod
    def from_mixture(
        cls, sites: Sequence, mixture: JointMixture, dtype: torch.dtype | None = None
    ) -> MixtureGuide:
        """From sites of the graph; sites of the mixture beyond these are integrated out.

        Raises:
            UnsupportedSite: a site's support depends on latents.
            InferenceError: a continuous node has no width, as when it was conditioned on.
        """
        parameters, correlated = [], []
        for site in sites:
            nodes = mixture.sites[site.name]
            if isinstance(nodes, Categoricals):
                parameters.append({"logits": finite(nodes.log_p)})
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
        described, dtype = [describe(site) for site in sites], dtype or mixture.log_weights.dtype
        parameters = [{name: p.to(dtype) for name, p in own.items()} for own in parameters]
        root = None if root is None else root.to(dtype)
        return cls(described, finite(mixture.log_weights.to(dtype)), parameters, root)

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
            root = torch.eye(root.shape[-1], device="cpu").to(root).expand_as(root)
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
