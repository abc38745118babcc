"""A program's factor graph as log tables over numbered variables.

A site that has no list of states (a continuous one) is read at its evidence: its variables have one
state each.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

from pyrograph.errors import OptionError, UnsupportedSite
from pyrograph.graph import FactorGraph, FactorGroup
from pyrograph.graph.checked import constant_of, table_of
from pyrograph.graph.spaces import refuse_outside
from pyrograph.trace.sites import OVER_MOST_STATES, Site

#: Largest table of a group of factors.
MAX_ENTRIES = 2**28


@dataclass(frozen=True, eq=False)
class LogTables:
    """log f(x) = constant + sum_a tables[a][x[scopes[a]]], variables in ``graph.nodes`` order."""

    cards: tuple[int, ...]
    scopes: list[tuple[int, ...]]
    tables: list[np.ndarray]
    constant: float

    def given(self, evidence: Mapping[int, int]) -> LogTables:
        """At the states of some variables, whose axes go."""
        scopes, tables = [], []
        constant = self.constant
        for scope, table in zip(self.scopes, self.tables, strict=True):
            left = tuple(v for v in scope if v not in evidence)
            if len(left) < len(scope):
                table = table[tuple(evidence.get(v, slice(None)) for v in scope)]
            if left:
                scopes.append(left)
                tables.append(table)
            else:
                constant += float(table)
        return LogTables(self.cards, scopes, tables, constant)


def read_tables(graph: FactorGraph, values: Mapping[int, Tensor] | None = None) -> LogTables:
    """The tables of a graph, float64.

    Args:
        values: of the nodes of sites that have no list of states, ``[*event]`` each.

    Raises:
        UnsupportedSite: a site is continuous, or has no list of states that all its nodes share,
            and some of its nodes have no value.
        UnsupportedFactor: a table would be too large.
        NonFiniteDensity: a factor is NaN or plus infinity in some state, or the statements without
            latents are.
    """
    values = {} if values is None else values
    cards: list[int] = []
    for name, site in graph.sites.items():
        place = graph.nodes_of(name)
        if site.cardinality is None and not values.keys() >= set(range(place.start, place.stop)):
            raise UnsupportedSite(f"{site.describe()} {_not_listed(site)}")
        cards += [site.cardinality or 1] * site.num_nodes
    constant = float(constant_of(graph).detach())
    scopes: list[tuple[int, ...]] = []
    tables: list[np.ndarray] = []
    for group in graph.factors:
        logs = table_of(graph, group_at(group, values), MAX_ENTRIES).detach().double().cpu()
        scopes += map(tuple, group.scope.tolist())
        tables += list(logs.numpy())
    return LogTables(tuple(cards), scopes, tables, constant)


@dataclass(eq=False)
class _GroupAt(FactorGroup):
    """A group some of whose slots are held at one value per factor, ``[E, *event]``, or None."""

    held: Sequence[Tensor | None] = ()

    def log_prob(self, values: Sequence[Tensor]) -> Tensor:
        pairs = zip(values, self.held, strict=True)
        return super().log_prob([x if at is None else at.expand_as(x) for x, at in pairs])


def group_at(group: FactorGroup, values: Mapping[int, Tensor]) -> FactorGroup:
    """A group whose sites without a list of states are held at the values of the factors' nodes."""
    if group.is_discrete:
        return group
    slots, held = list(group.slots), []
    for k, site in enumerate(group.slots):
        held.append(None)
        if site.enumeration is None:
            rows = [values[v] for v in group.scope[:, k].tolist()]
            held[k] = torch.stack(rows).to(group.scope.device)
            slots[k] = replace(site, enumeration=held[k][:1])  # one state, whichever
    parts = group.name, group.statements, group.scope, group.index, tuple(slots)
    return _GroupAt(*parts, lambda *_: group.program, held=held)


def _not_listed(site: Site) -> str:
    """Why a site has no list of states, and what to do."""
    support = site.support
    if site.is_discrete and isinstance(support, constraints.independent):
        return (
            f"is one event of {site.width} discrete numbers, and a compiled circuit does not list "
            "their joint states. Make every number a node of its own: a pyro.plate in the place of "
            f".to_event({support.reinterpreted_batch_ndims})."
        )
    if site.is_discrete and isinstance(support, constraints.integer_interval):
        return (
            "has nodes of unequal numbers of states, and the nodes of a site have one list. Write "
            "one pyro.sample statement for every number of states."
        )
    if site.is_discrete and support is None:
        return (
            "has states that depend on other latents, and a compiled circuit has one list of "
            f"states. Instead, {OVER_MOST_STATES}"
        )
    return (
        "is not finite and discrete; a compiled circuit has finitely many states. Observe it, "
        "in the model or by evidence= on all its nodes; or sum it out in the model."
    )


def read_evidence(
    graph: FactorGraph, evidence: Mapping[Hashable, Any] | None
) -> dict[int, int | Tensor]:
    """What ``{node label: value}`` and the sites that the graph holds fixed say of variables.

    Returns:
        By variable the number of its state; or the value ``[*event]``, where its site has no list
        of states.

    Raises:
        OptionError: a label or a value is not there, or contradicts what is fixed.
    """
    number = {label: v for v, label in enumerate(graph.nodes)}
    given: dict[int, int | Tensor] = {}
    for name, held in graph.fixed.items():
        site, start = graph.sites[name], graph.nodes_of(name).start
        rows = torch.as_tensor(held, device="cpu").reshape(site.num_nodes, -1)
        for v, row in enumerate(rows, start):
            shape = site.constrained_event_shape  # as the program draws it, in any graph
            given[v] = _state_or_value(site, graph.nodes[v], row, shape)
    if evidence is not None and not isinstance(evidence, Mapping):
        raise OptionError(f"evidence={evidence!r} is no dict {{(site, index): value}}")
    for label, value in (evidence or {}).items():
        if label not in number:
            raise OptionError(
                f"evidence names the node {label!r}, which is not there; nodes are labelled "
                f"(site, index), such as {graph.nodes[0]!r}"
                if graph.nodes
                else "no node is there"
            )
        site = graph.sites[label[0]]
        shape = site.constrained_event_shape if site.name in graph.fixed else site.event_shape
        found = _state_or_value(site, label, _numbers_of(label, value), shape)
        if isinstance(found, Tensor) and bool(found.isnan().any()):
            raise OptionError(f"evidence puts {label!r} at {value!r}, which has NaN in it")
        known = given.setdefault(number[label], found)
        if not (torch.equal(known, found) if isinstance(found, Tensor) else known == found):
            raise OptionError(
                f"evidence puts {label!r} at {value!r}, and the graph holds its site fixed at "
                "another value. Trace again with that value"
            )
    if not graph.unconstrained:
        _refuse_outside(graph, given)
    return given


def _refuse_outside(graph: FactorGraph, given: Mapping[int, int | Tensor]) -> None:
    """Whether the values of sites without a list of states are in their supports.

    Raises:
        OptionError: naming the site.
    """
    for name, site in graph.sites.items():
        place = graph.nodes_of(name)
        values = [given.get(v) for v in range(place.start, place.stop)]
        if site.cardinality is None and all(value is not None for value in values):
            value = torch.stack(values).reshape(site.shape)
            refuse_outside([site], {name: value}, value.device)


def _numbers_of(label: Hashable, value: Any) -> torch.Tensor:
    """A value as a flat tensor.

    Raises:
        OptionError: it is no number.
    """
    try:
        return torch.as_tensor(value, device="cpu").reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:  # None, text, ragged lists
        raise OptionError(
            f"evidence gives {label!r} the value {value!r}, which is no number"
        ) from error


def _state_or_value(
    site: Site, label: Hashable, value: Tensor, shape: tuple[int, ...]
) -> int | Tensor:
    """The number of a flat value in the list of the site's states, or the value ``[*shape]`` where
    there is no list."""
    if site.cardinality is not None:
        return _state(site, label, value)
    if value.numel() != math.prod(shape) or value.is_complex():
        raise OptionError(
            f"{value.tolist()} is no value of {label!r}: {site.describe()} takes "
            + (f"numbers of shape {list(shape)}" if shape else "one number")
        )
    return value.detach().reshape(shape).to(site.dtype)


def _state(site: Site, label: Hashable, value: torch.Tensor) -> int:
    """The number of a value in the site's support."""
    support = site.enumeration.reshape(site.cardinality, -1).cpu().double()
    if value.numel() == support.shape[1]:
        found = (support == value.cpu().double()).all(1).nonzero()
        if len(found):
            return int(found[0])
    raise OptionError(
        f"{value.tolist()} is no value of {label!r}: {site.describe()} takes "
        f"{site.enumeration.tolist() if site.cardinality <= 12 else f'{site.cardinality} values'}"
    )
