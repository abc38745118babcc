"""What a program's statements say, looked at before anything is made of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrograph.errors import NonFiniteDensity, UnsupportedFactor
from pyrograph.graph.factor_graph import FactorGraph
from pyrograph.graph.factor_group import FactorGroup
from pyrograph.trace.sites import JACOBIAN

#: What the other way to read a mask is.
KEPT = "Pyro's enumeration would keep the prior"


def unread_nodes(graph: FactorGraph) -> list[int]:
    """Nodes that no factor reads, but for log Jacobians: they are masked out. Ascending."""
    unread = torch.ones(graph.num_nodes, dtype=torch.bool, device=graph.device)
    for group in graph.factors:
        if not all(name.endswith(JACOBIAN) for name in group.statements):
            unread[group.scope.flatten()] = False
    return unread.nonzero()[:, 0].tolist()


def note_on_masked(graph: FactorGraph) -> str | None:
    """What discrete nodes that are masked out do to the evidence; None where there are none."""
    nodes = [graph.nodes[node] for node in unread_nodes(graph)]
    cards = {node: graph.sites[node[0]].cardinality for node in nodes}
    unread = [node for node in nodes if cards[node]]
    notes = []
    if len(unread) == 1:
        notes.append(
            f"No factor reads node {_label(unread[0])} (masked out): each of its "
            f"{cards[unread[0]]} states counts alike and adds log {cards[unread[0]]} to the "
            f"evidence, where {KEPT}. Sample the unmasked elements alone."
        )
    elif unread:
        notes.append(
            f"No factor reads {len(unread)} discrete nodes (masked out), {_label(unread[0])} the "
            "first: their states count alike and add "
            f"{sum(math.log(cards[node]) for node in unread):.5g} to the evidence, where {KEPT}. "
            "Sample the unmasked elements alone."
        )
    numbers = [
        graph.nodes_of(site).start + place
        for site, is_masked in graph.masked.items()
        if graph.sites[site].is_discrete
        for place in is_masked.nonzero().squeeze(1).tolist()
    ]
    without_prior = [node for k in numbers if (node := graph.nodes[k]) not in cards]
    if without_prior:
        notes.append(
            f"Discrete nodes that are masked out ({len(without_prior)}, "
            f"{_label(without_prior[0])} the first) count without their prior in what other "
            f"statements say of them, as in log_prob_sum(), where {KEPT}. Mask the observations "
            "alone."
        )
    return " ".join(notes) or None


def _label(node: tuple[str, tuple[int, ...]]) -> str:
    site, index = node
    return f'"{site}"{list(index) if index else ""}'


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
    entries = group.num_entries
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
