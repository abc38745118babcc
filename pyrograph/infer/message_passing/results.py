"""From messages to a posterior: beliefs of nodes and of the scopes of factors."""

from __future__ import annotations

from copy import copy
from functools import partial

import torch
from torch import Tensor

from pyrograph.beliefs import Conjugate, Gaussian, Natural
from pyrograph.beliefs.gaussian import stacked
from pyrograph.graph import FactorGraph, FactorGroup
from pyrograph.graph.terms import TermGroup
from pyrograph.infer.message_passing.continuous.quadratic import QuadraticFactors, lifted
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.discrete.counts import CountFactors
from pyrograph.infer.message_passing.discrete.differences import DifferenceFactors
from pyrograph.infer.message_passing.discrete.noisy_or import NoisyOrFactors
from pyrograph.infer.message_passing.discrete.parity import ParityFactors
from pyrograph.infer.message_passing.network.messages import Message
from pyrograph.infer.message_passing.network.network import Block, Family, Network
from pyrograph.infer.message_passing.network.same_scope import Merged
from pyrograph.infer.message_passing.nodes.basis import seen
from pyrograph.infer.message_passing.nodes.families import Categorical, Odds, mixtures_refused
from pyrograph.posterior.beliefs import BeliefPosterior
from pyrograph.posterior.scopes import Scopes


def beliefs_of_graph(
    graph: FactorGraph,
    network: Network,
    messages: list[list[Message]],
    beliefs: list[Tensor | Natural],
    **run,
) -> BeliefPosterior:
    """The posterior that messages and the beliefs they make stand for.

    Args:
        run: how it went, see :class:`BeliefPosterior`.
    """
    plain = [_plain(f, b) for f, b in zip(network.families, beliefs, strict=True)]
    scopes = [
        Scopes(
            _statements(graph, group, index),
            group.index[index],
            partial(_over_nodes, copy(block), message, beliefs),
            group.scope[index] if group.arity > 1 and _tells_dependence(block, plain) else None,
        )
        for (group, index), block, message in zip(
            network.members, network.blocks, messages, strict=True
        )
        if not isinstance(group, TermGroup)
    ]
    for part in network.merged:
        number = part.block
        own = partial(_of_owners, copy(network.blocks[number]), messages[number], beliefs, part)
        names = _statements(graph, part.group, part.index)
        scopes.append(Scopes(names, part.group.index[part.index], own))
    for group, index in network.divided:
        own = partial(_of_nodes, network, plain, group, index)
        scope = group.scope[index]
        is_told = group.arity > 1 and not network.is_mean_field
        is_told = is_told and not any(site.is_discrete for site in group.slots)
        nodes = scope.repeat(2, 1) if is_told else None  # terms on one scope close a cycle
        scopes.append(Scopes(_statements(graph, group, index), group.index[index], own, nodes))
    for group, index in network.absorbed:
        if isinstance(group, TermGroup):
            continue
        node = group.scope[index, 0]
        own = partial(plain[int(network.family[node[0]])].__getitem__, network.row[node])
        scopes.append(Scopes(_statements(graph, group, index), group.index[index], own))
    return BeliefPosterior(graph, network.family, network.row, plain, scopes, **run)


def _tells_dependence(block: Block, beliefs: list[Tensor | Natural]) -> bool:
    """Whether the block keeps beliefs over its scopes that are no products."""
    if block.is_mean_field or isinstance(block, ParityFactors | NoisyOrFactors | CountFactors):
        return False
    if isinstance(block, DifferenceFactors):
        return block.fits_tables
    return len({type(beliefs[f]) for f in block.families}) == 1 and not any(
        isinstance(beliefs[f], Conjugate) for f in block.families
    )


def _over_nodes(block: Block, message: list[Message], beliefs: list) -> Tensor | Gaussian:
    """Beliefs over whole nodes x of factors that are functions of v = B x,

        p(x) = p(v) prod_i q_i(x_i) / q_i(v_i)

    since messages are functions of v: given v, cavities and beliefs are the same.
    """
    found = block.marginals(message, beliefs)
    if not isinstance(block, QuadraticFactors | QuadratureFactors):
        return found
    slots = list(zip(block.families, block.rows, block.bases, strict=True))
    if all(basis is None for _, _, basis in slots):
        return found
    apart = found - stacked([_normal(seen(beliefs[f], rows, basis)) for f, rows, basis in slots])
    nodes = stacked([_normal(beliefs[f][rows]) for f, rows, _ in slots])
    return nodes + lifted(apart, block.bases, [beliefs[f].d for f, _, _ in slots])


def _of_nodes(
    network: Network, beliefs: list, group: FactorGroup, index: Tensor
) -> Tensor | Gaussian:
    """Beliefs over scopes of factors that are their terms, of which each has its own: products of
    those of their nodes, to which these agree.

    Raises:
        OptionError: the factors have discrete nodes.
    """
    if any(site.is_discrete for site in group.slots):
        raise mixtures_refused(group.name)
    nodes = group.scope[index].unbind(1)
    return stacked([_normal(beliefs[int(network.family[v[0]])][network.row[v]]) for v in nodes])


def _of_owners(
    block: Block, message: list[Message], beliefs: list, part: Merged
) -> Tensor | Gaussian:
    """Beliefs over scopes of factors that are part of others of the block."""
    whole = _over_nodes(block, message, beliefs)[part.row]
    if part.columns is None:
        return whole
    columns = part.columns.unsqueeze(1).expand(-1, whole.d, -1)
    covariance = whole.covariance.gather(2, columns).gather(1, columns[:, : columns.shape[2]].mT)
    return Gaussian.from_moments(whole.mean.gather(1, part.columns), covariance)


def _normal(belief: Natural) -> Gaussian:
    return belief if isinstance(belief, Gaussian) else belief.normal


def _statements(graph: FactorGraph, group: FactorGroup, index: Tensor) -> tuple[str, ...]:
    if len(group.statements) == 1:
        return group.statements * len(index)
    names = graph.statements_of(group)
    return tuple(names[e] for e in index.tolist())


def _plain(family: Family, belief: Tensor | Natural) -> Tensor | Natural:
    """Normalised log values ``[V, c]`` of discrete nodes."""
    if isinstance(family, Odds):
        both = torch.stack([torch.zeros_like(belief), belief], 1)
        return both.log_softmax(1)
    if isinstance(family, Categorical):
        return belief.log_softmax(1)
    return belief
