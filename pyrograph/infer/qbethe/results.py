"""From a fitted mixture to a posterior: its sites, and beliefs over the scopes of factors."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from pyrograph.beliefs import Categoricals, Gaussian, JointMixture, Normals
from pyrograph.errors import OptionError
from pyrograph.graph import FactorGraph, FactorGroup
from pyrograph.infer.qbethe.build import Network
from pyrograph.infer.qbethe.components import Components
from pyrograph.infer.qbethe.potentials import scope_moments
from pyrograph.infer.qbethe.wiring import Wiring
from pyrograph.posterior.joint_mixture import MixturePosterior
from pyrograph.posterior.scopes import Scopes


def mixture_of_graph(
    graph: FactorGraph, network: Network, components: Components, root: Tensor | None, **run
) -> MixturePosterior:
    """The posterior of a single restart.

    Args:
        root: ``[L, D, D]`` of all numbers' covariances (:func:`joint_root`); None where nodes are
            independent within a component.
        run: how it went and whether the mixture is all there is, see :class:`MixturePosterior`.
    """
    sites, first, row = {}, 0, 0
    for name, site in graph.sites.items():
        nodes = torch.arange(first, first + site.num_nodes, device=network.kind.device)
        first += site.num_nodes
        kind, rows = int(network.kind[nodes[0]]), network.row[nodes]
        if site.is_discrete:
            sites[name] = Categoricals(components.log_probs[kind][0][:, rows])
            continue
        mean = components.means[kind][0, :, rows]
        if root is None:
            own = components.roots[kind]
            factor = (components.scales[kind] if own is None else own)[0, :, rows]
        else:
            count = mean[0].numel()
            factor = root[:, row : row + count].unflatten(1, mean.shape[1:])
            row += count
        sites[name] = Normals(mean, factor)
    scopes = [
        Scopes(
            graph.statements_of(group),
            group.index,
            partial(_belief, components, wiring, group),
        )
        for group, wiring in zip(graph.factors, network.wirings, strict=True)
    ]
    mixture = JointMixture(components.log_weights[0], sites, root is not None)
    return MixturePosterior(graph, mixture, scopes, **run)


def _belief(components: Components, wiring: Wiring, group: FactorGroup) -> Tensor | Gaussian:
    """Over scopes: log probabilities ``[E, c_1, ...]``, or Gaussians of the mixture's moments."""
    if group.is_discrete:
        total = components.log_weights[0].view(-1, *(1,) * (group.arity + 1))
        for slot, (kind, rows) in enumerate(zip(wiring.kinds, wiring.rows, strict=True)):
            log_p = components.log_probs[kind][0][:, rows]  # [L, E, c]
            shape = (*log_p.shape[:2], *(1,) * slot, -1, *(1,) * (group.arity - 1 - slot))
            total = total + log_p.reshape(shape)
        return total.logsumexp(0)
    if any(components.kinds[kind].is_discrete for kind in wiring.kinds):
        raise OptionError(
            f'factors of "{group.name}" join discrete and continuous nodes; ask for the marginals '
            "of the sites, or posterior.condition on the discrete ones."
        )
    maps = [(k, r, None) for k, r in zip(wiring.kinds, wiring.rows, strict=True)]
    mean, root = (value[0] for value in scope_moments(components, wiring, maps))  # [L, E, R]
    inner = torch.diag_embed(root.square()) if root.dim() == mean.dim() else root @ root.mT
    weights = components.weights[0][:, None, None]
    centre = (weights * mean).sum(0)
    off = mean - centre
    spread = (weights.unsqueeze(-1) * (inner + off.unsqueeze(-1) * off.unsqueeze(-2))).sum(0)
    return Gaussian.from_moments(centre, spread)
