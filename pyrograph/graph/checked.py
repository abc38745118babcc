"""What a program's statements say, looked at before anything is made of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrograph.errors import NonFiniteDensity, UnsupportedFactor
from pyrograph.graph.factor_graph import FactorGraph
from pyrograph.graph.factor_group import FactorGroup
from pyrograph.trace.sites import JACOBIAN


def unread_nodes(graph: FactorGraph) -> list[int]:
    """Nodes that no factor reads, but for log Jacobians: they are masked out. Ascending."""
    unread = torch.ones(graph.num_nodes, dtype=torch.bool, device=graph.device)
    for group in graph.factors:
        if not all(name.endswith(JACOBIAN) for name in group.statements):
            unread[group.scope.flatten()] = False
    return unread.nonzero()[:, 0].tolist()


def note_on_unread(graph: FactorGraph) -> str | None:
    """What discrete nodes that are masked out do to the evidence; None where there are none."""
    nodes = [graph.nodes[node] for node in unread_nodes(graph)]
    cards = {node: graph.sites[node[0]].cardinality for node in nodes}
    unread = [node for node in nodes if cards[node]]
    if not unread:
        return None
    site, index = unread[0]
    first = f'"{site}"{list(index) if index else ""}'
    if len(unread) == 1:
        who = f"node {first} (masked out): each of its {cards[unread[0]]} states counts alike"
        adds = f"adds log {cards[unread[0]]}"
    else:
        who = (
            f"{len(unread)} discrete nodes (masked out), {first} the first: their states count "
            "alike"
        )
        adds = f"add {sum(math.log(cards[node]) for node in unread):.5g}"
    return (
        f"No factor reads {who} and {adds} to the evidence, where Pyro's enumeration would keep "
        "the prior. Sample the unmasked elements alone."
    )


def table_of(graph: FactorGraph, group: FactorGroup, budget: int, advice: str = "") -> Tensor:
    """Log values of a group's factors in all states, minus infinity for a zero.

    Args:
        budget: most entries of all factors together.
        advice: what else the message says where it is exceeded.

    Shapes:
        output: ``[E, c_1, ..., c_k]``.

    Raises:
        UnsupportedFactor: the table would be too large.
        NonFiniteDensity: an entry is NaN or plus infinity.
    """
    entries = group.num_factors * math.prod(site.cardinality for site in group.slots)
    if entries > budget:
        raise UnsupportedFactor(
            f"{graph.factor_name(group, 0)} and its likes have tables of {entries:,} entries in "
            f"all, over the budget of {budget:,}. Split the statement into terms of fewer nodes."
            f"{advice}"
        )
    table = group.table()
    refuse_non_finite(graph, group, table)
    return table


def constant_of(graph: FactorGraph) -> Tensor:
    """Log density of the statements that read no latent, ``[]``.

    Raises:
        NonFiniteDensity: it is NaN or plus infinity.
    """
    constant = graph.constant
    if bool(constant.isnan()) or bool(constant == torch.inf):
        raise NonFiniteDensity(
            f"the log density of the statements that read no latent is {float(constant)}. Look at "
            "the observations: NaN among them, or a density that is not finite there."
        )
    return constant


def refuse_non_finite(graph: FactorGraph, group: FactorGroup, log_values: Tensor) -> None:
    """Raise for the first factor of a group that has no density somewhere.

    Args:
        log_values: ``[E, ...]``.

    Raises:
        NonFiniteDensity: a value is NaN or plus infinity.
    """
    bad = log_values.isnan() | (log_values == torch.inf)
    if bool(bad.any()):
        e = int(bad.flatten(1).any(1).nonzero()[0])
        raise NonFiniteDensity(
            f"{graph.factor_name(group, e)} is NaN or plus infinity in some state. Look at that "
            "statement: a probability above 1 or 0 / 0 are the usual causes."
        )
