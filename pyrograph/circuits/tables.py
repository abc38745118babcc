"""A program's discrete factor graph as log tables over numbered variables."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.distributions import constraints

from pyrograph.errors import OptionError, UnsupportedSite
from pyrograph.graph import FactorGraph
from pyrograph.graph.checked import constant_of, table_of
from pyrograph.trace.sites import Site

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


def read_tables(graph: FactorGraph) -> LogTables:
    """The tables of a graph, float64.

    Raises:
        UnsupportedSite: a site is continuous, or has no list of states that all its nodes share.
        UnsupportedFactor: a table would be too large.
        NonFiniteDensity: a factor is NaN or plus infinity in some state, or the statements without
            latents are.
    """
    cards: list[int] = []
    for site in graph.sites.values():
        if site.cardinality is None:
            raise UnsupportedSite(f"{site.describe()} {_not_listed(site)}")
        cards += [site.cardinality] * site.num_nodes
    constant = float(constant_of(graph).detach())
    scopes: list[tuple[int, ...]] = []
    tables: list[np.ndarray] = []
    for group in graph.factors:
        values = table_of(graph, group, MAX_ENTRIES).detach().double().cpu()
        scopes += map(tuple, group.scope.tolist())
        tables += list(values.numpy())
    return LogTables(tuple(cards), scopes, tables, constant)


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
    return (
        "is not finite and discrete; a compiled circuit has finitely many states. Observe it, or "
        "sum it out in the model."
    )


def read_evidence(graph: FactorGraph, evidence: Mapping[Hashable, Any] | None) -> dict[int, int]:
    """Variables and states of ``{node label: value}`` and of the sites that the graph holds fixed.

    Raises:
        OptionError: a label or a value is not there, or contradicts what is fixed.
    """
    number = {label: v for v, label in enumerate(graph.nodes)}
    states: dict[int, int] = {}
    for name, held in graph.fixed.items():
        site = graph.sites[name]
        rows = torch.as_tensor(held, device="cpu").reshape(site.num_nodes, -1)
        for k, label in enumerate(label for label in graph.nodes if label[0] == name):
            states[number[label]] = _state(site, label, rows[k])
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
        state = _state(site, label, _numbers_of(label, value))
        if states.setdefault(number[label], state) != state:
            raise OptionError(
                f"evidence puts {label!r} at {value!r}, and the graph holds its site fixed at "
                "another value. Trace again with that value"
            )
    return states


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
