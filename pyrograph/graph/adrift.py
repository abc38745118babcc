"""Continuous nodes that can move together along a line that no factor notices.

    log f_a(x + s u) = log f_a(x)    for every factor a and all s

Such a posterior is improper and its evidence infinite, whatever an engine makes of it: ranges
without an anchor, differences without an intercept, effects of which only sums are seen. Gradients
of all factors at a few random points, each of length 1, are the rows of a sparse matrix G; u is
what is left of a random vector without its part in their span,

    u = u_0 - G^+ G u_0,

by LSMR (Fong & Saunders, 2011). It is believed of a connected component only if every factor there
has the same value, to rounding, far along it. Lines that are not straight (rotations) are not
looked for, nor densities that fall too slowly.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.linalg import lsmr
from torch import Tensor

from pyrograph.errors import InferenceError
from pyrograph.graph.blame import differentiated, tells_of_no_derivative
from pyrograph.graph.factor_graph import FactorGraph
from pyrograph.graph.factor_group import FactorGroup
from pyrograph.graph.forest import components

#: Random points at which gradients are taken.
NUM_POINTS = 3
#: How far along a direction, whose largest entry is 1, factors are looked at again.
REACHES = (1.0, 1e3, 1e6)
#: Differences of so many roundings are of rounding.
ROUNDINGS = 256
#: Steps of LSMR; a direction found by then is judged as any other.
MOST_STEPS = 2000
#: Entries of a direction below this, of a largest one of 1, are of rounding.
ZERO = 1e-6
#: Gradients of more numbers than this are not taken: nothing is refused.
BUDGET = 30_000_000
#: Nodes that a message names.
NAMED = 6


@torch.no_grad()
def refuse_adrift(graph: FactorGraph) -> None:
    """Refuse a posterior that is flat along a line.

    Only components with a continuous node of whom its own statement says nothing are looked at
    (``ImproperUniform``, or masked): none drifts that is drawn from a density given the others.

    Raises:
        InferenceError: naming the nodes and how they move.
    """
    suspects = _undrawn(graph)
    if not len(suspects):
        return
    component = components([group.scope for group in graph.factors], graph.num_nodes)
    asked = torch.zeros(graph.num_nodes, dtype=torch.bool, device="cpu")
    asked[component[suspects]] = True
    asked = asked[component]
    graph = graph.to(dtype=torch.float64)
    groups = [part for group in graph.factors if (part := _of_nodes(group, asked)) is not None]
    x = _points(graph)
    if x is None or NUM_POINTS * sum(map(_size, groups)) > BUDGET:
        return
    found = [_gradients(graph, group, x) for group in groups]
    owner = component.repeat_interleave(graph.columns.cpu().diff())
    u = _unseen(graph, groups, found, _free(graph, asked))
    largest = u.new_zeros(graph.num_nodes).scatter_reduce(0, owner, u.abs(), "amax")
    u = torch.where(largest[owner] > 0, u / largest.clamp_min(1e-300)[owner], 0)
    u = torch.where(u.abs() < ZERO, 0, u)
    drifts = largest > 0
    for group, (log_prob, grads) in zip(groups, found, strict=True):
        noticed = _notices(graph, group, x, u.to(x.device), log_prob, grads).cpu()
        drifts[component[group.scope[noticed, 0].cpu()]] = False
    if bool(drifts.any()):
        first = int(drifts.nonzero()[0])
        raise InferenceError(_message(graph, torch.where(owner == first, u, 0)))


def _undrawn(graph: FactorGraph) -> Tensor:
    """Continuous nodes that factors read, none of them of the statement that samples the node;
    ascending."""
    undrawn = torch.zeros(graph.num_nodes, dtype=torch.bool, device="cpu")
    for group in graph.factors:
        undrawn[group.scope.flatten().cpu()] = True
    for site in graph.sites.values():
        if site.is_discrete or site.name in graph.fixed:
            undrawn[graph.nodes_of(site.name)] = False
    for group in graph.factors:
        for name in set(group.statements) & set(graph.sites):
            own = graph.nodes_of(name)
            scope = group.scope.cpu()
            if len(group.statements) > 1:
                scope = scope[np.array(graph.statements_of(group)) == name]
            undrawn[scope[(scope >= own.start) & (scope < own.stop)]] = False
    return undrawn.nonzero()[:, 0]


def _free(graph: FactorGraph, asked: Tensor) -> Tensor:
    """Columns ``[dim]`` of the continuous nodes that are looked at."""
    free = asked.clone()
    for site in graph.free_sites:
        if site.is_discrete:
            free[graph.nodes_of(site.name)] = False
    return free.repeat_interleave(graph.columns.cpu().diff())


def _of_nodes(group: FactorGroup, asked: Tensor) -> FactorGroup | None:
    """A group's factors in components that are looked at; None for none."""
    rows = asked.to(group.scope.device)[group.scope[:, 0]].nonzero()[:, 0]
    if not len(rows):
        return None
    return group if len(rows) == group.num_factors else group.part(rows)


def _size(group: FactorGroup) -> int:
    """Numbers that the factors of a group read."""
    return group.num_factors * sum(site.width for site in group.slots)


def _points(graph: FactorGraph) -> Tensor | None:
    """Standard normal points ``[NUM_POINTS, dim]`` at the first state of discrete nodes; None
    where one has none."""
    generator = torch.Generator(graph.device).manual_seed(0)
    x = torch.randn(
        NUM_POINTS, graph.dim, dtype=torch.float64, device=graph.device, generator=generator
    )
    for site in graph.free_sites:
        if site.is_discrete:
            if site.enumeration is None:
                return None
            own = graph.nodes_of(site.name)
            columns = slice(int(graph.columns[own.start]), int(graph.columns[own.stop]))
            x[:, columns] = site.enumeration[0].reshape(-1).to(x).repeat(site.num_nodes)
    return x


def _gradients(graph: FactorGraph, group: FactorGroup, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Log values ``[n, E]`` and gradients ``[n, E, width]`` of every slot; NaN where torch has no
    derivative."""
    n, e = len(x), group.num_factors
    try:
        log_prob, grads = differentiated(graph, group, x)
    except RuntimeError as error:
        if not tells_of_no_derivative(error):
            raise
        log_prob, grads = x.new_full((n, e), torch.nan), [None] * group.arity
    flat = [
        x.new_zeros(n, e, site.width)
        if g is None or site.is_discrete
        else g.reshape(n, e, site.width)
        for site, g in zip(group.slots, grads, strict=True)
    ]
    return log_prob.detach(), flat


def _columns(graph: FactorGraph, group: FactorGroup) -> Iterator[Tensor]:
    """Columns ``[E, width]`` that each slot reads."""
    for k, site in enumerate(group.slots):
        start = graph.columns[group.scope[:, k]].unsqueeze(1)
        yield start + torch.arange(site.width, device=start.device)


def _unseen(
    graph: FactorGraph,
    groups: list[FactorGroup],
    found: list[tuple[Tensor, list[Tensor]]],
    free: Tensor,
) -> Tensor:
    """What is left ``[dim]`` of a random vector without its part in the span of the gradients."""
    entries, rows, columns, first = [], [], [], 0
    for group, (_, grads) in zip(groups, found, strict=True):
        row = torch.arange(NUM_POINTS * group.num_factors, device="cpu").view(NUM_POINTS, -1, 1)
        square = torch.stack([g.square().sum(2) for g in grads]).sum(0)
        length = square.sqrt().nan_to_num(0.0, 0.0, 0.0).unsqueeze(2)
        for g, column in zip(grads, _columns(graph, group), strict=True):
            entries.append(torch.where(length > 0, g / length, 0).cpu().flatten())
            rows.append((first + row).expand(g.shape).flatten())
            columns.append(column.cpu().expand(g.shape).flatten())
        first += row.numel()
    place = torch.stack([torch.cat(rows), torch.cat(columns)]).numpy()
    matrix = csr_array((torch.cat(entries).numpy(), place), shape=(first, graph.dim))
    u = np.random.default_rng(0).standard_normal(graph.dim) * free.numpy()
    for _ in range(2):  # once more for what the first one left
        u = u - lsmr(matrix, matrix @ u, atol=1e-14, btol=1e-14, conlim=0, maxiter=MOST_STEPS)[0]
    return torch.from_numpy(u)


def _notices(
    graph: FactorGraph,
    group: FactorGroup,
    x: Tensor,
    u: Tensor,
    log_prob: Tensor,
    grads: list[Tensor],
) -> Tensor:
    """Which factors ``[E]`` have another value somewhere along u, or none."""
    eps = torch.finfo(x.dtype).eps
    noticed = x.new_zeros(group.num_factors, dtype=torch.bool)
    columns = list(_columns(graph, group))
    for reach in REACHES:
        there = group.log_prob(graph.local_values(group, x + reach * u))
        scale = log_prob.abs() + there.abs()
        for g, column in zip(grads, columns, strict=True):
            scale = scale + (g.abs() * (x[:, column].abs() + reach * u[column].abs())).sum(2)
        same = (there - log_prob).abs() <= ROUNDINGS * eps * scale
        noticed = noticed | ~same.all(0)  # what is no number is not the same
    return noticed


def _message(graph: FactorGraph, u: Tensor) -> str:
    u = u * u[u != 0][0].sign()
    moving, columns = [], graph.columns.tolist()
    for node, (site, index) in enumerate(graph.nodes):
        own = u[columns[node] : columns[node + 1]]
        if bool((own != 0).any()):
            by = ", ".join(f"{float(value):+.3g}" for value in own)
            label = f'"{site}"{list(index) if index else ""}'
            moving.append(f"{label} by {by if len(own) == 1 else f'({by})'}")
    more = f", and {len(moving) - NAMED} more nodes" if len(moving) > NAMED else ""
    return (
        "the posterior is improper: no factor notices if all of these move along one line, in "
        f"these proportions: {'; '.join(moving[:NAMED])}{more}. Give one of them a proper prior, "
        "hold one at a value (an anchor), or write the program in what the data do tell, such as "
        "differences."
    )
