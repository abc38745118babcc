"""From messages to a posterior: beliefs of nodes and of the scopes of factors."""

from __future__ import annotations

from copy import copy
from functools import partial

import torch
from torch import Tensor

from pyrograph.beliefs import Natural
from pyrograph.graph import FactorGraph, FactorGroup
from pyrograph.infer.message_passing.build import Family, Network
from pyrograph.infer.message_passing.families import Categorical, Odds
from pyrograph.infer.message_passing.messages import Message
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
            partial(copy(block).marginals, message, beliefs),
        )
        for (group, index), block, message in zip(
            network.members, network.blocks, messages, strict=True
        )
    ]
    for group, index in network.absorbed:
        node = group.scope[index, 0]
        own = partial(plain[int(network.family[node[0]])].__getitem__, network.row[node])
        scopes.append(Scopes(_statements(graph, group, index), group.index[index], own))
    return BeliefPosterior(graph, network.family, network.row, plain, scopes, **run)


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
