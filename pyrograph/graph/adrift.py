"""Continuous nodes that can move together along a line that no factor notices.

    log f_a(x + s u) = log f_a(x)    for every factor a and all s

Such a posterior is improper and its evidence infinite, whatever an engine makes of it: ranges
without an anchor, differences without an intercept, effects of which only sums are seen. Two
directions are tried: all numbers by the same amount, and what is left of a random vector without
its part in the span of the factors' gradients g_k at a few random points, each of length 1,

    u = u_0 - G^+ G u_0,    rows of G: g_k,

by LSMR (Fong & Saunders, 2011). A direction is believed of a connected component only if gradients
at other points have nothing of it either, and every factor there has the same finite value, to
rounding, near and far along it, where it is not so steep that rounding might hide another. What is
doubtful is let through: lines that are not straight (a rotation), densities that fall too slowly,
directions that LSMR does not find in its time. Not seen are walls beyond 2^40 in a factor that has
gradients elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.linalg import lsmr
from torch import Tensor

from pyrograph.errors import InferenceError, PyrographError
from pyrograph.graph.blame import differentiated, tells_of_no_derivative
from pyrograph.graph.factor_graph import FactorGraph
from pyrograph.graph.factor_group import FactorGroup
from pyrograph.graph.forest import components

#: Fewest and most points at which gradients are taken; as many as a factor reads numbers and one
#: more, where that is between.
FEWEST_POINTS, MOST_POINTS = 3, 16
#: How far along a direction, whose largest entry is 1, factors are looked at again: powers of two,
#: from points with few bits, so that common shifts are exact. And those that have no gradient
#: anywhere, which may be walls far off.
REACHES, FAR = (1.0, 2.0**10, 2.0**20, 2.0**30, 2.0**40), (1e18, 1e30, 1e100)
#: Behind the point, of such points.
BITS = 8
#: What rounding may hide at the reach of all reaches' middle, in nats, or a factor is in doubt.
DOUBT = 0.01
#: Shares of a number below this are of rounding.
ROUNDING = 256 * torch.finfo(torch.float64).eps
#: Most of a gradient's terms that may be left along a direction.
LEFT = 1e-8
#: Numbers of gradients for more points than the fewest; for these; entries that LSMR goes through.
BUDGET, LIMIT, WORK = 2_000_000, 30_000_000, 400_000_000
#: Steps of LSMR.
MOST_STEPS = 2000
#: Entries of a direction as near to whole numbers are those but for LSMR's dust.
DUST = 1e-10
#: Nodes and numbers of each that a message names; entries below this are written as 0.
NAMED, NUMBERS, ZERO = 6, 4, 1e-6


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
    is_asked = torch.zeros(graph.num_nodes, dtype=torch.bool, device="cpu")
    is_asked[component[suspects]] = True
    graph = graph.to(dtype=torch.float64)
    parts = [_of_nodes(group, is_asked[component]) for group in graph.factors]
    groups = [group for group in parts if group is not None]
    widths = [sum(site.width for site in group.slots) for group in groups]
    size = sum(g.num_factors * width for g, width in zip(groups, widths, strict=True))
    count = max(FEWEST_POINTS, min(max(widths) + 1, MOST_POINTS, BUDGET // (2 * size)))
    if 2 * count * size > LIMIT or (x := _points(graph, 2 * count)) is None:
        return
    look = _Look(graph, groups, component, x)
    free = _free(graph, is_asked[component])
    for u in (lambda: free.double(), lambda: look.unseen(free)):
        moved, drifts = look.unnoticed(u())
        if bool(drifts.any()):
            first = int(drifts.nonzero()[0])
            raise InferenceError(_message(graph, torch.where(look.owner == first, moved, 0)))


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


def _points(graph: FactorGraph, count: int) -> Tensor | None:
    """Normal points ``[count, dim]`` of few bits, discrete nodes in random states; None where one
    has not finitely many."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, graph.dim, dtype=torch.float64, device="cpu", generator=generator)
    x = (x * 2.0**BITS).round() / 2.0**BITS
    for site in graph.free_sites:
        if site.is_discrete:
            if site.enumeration is None:
                return None
            own = graph.nodes_of(site.name)
            columns = slice(int(graph.columns[own.start]), int(graph.columns[own.stop]))
            shape = count, site.num_nodes
            code = torch.randint(site.cardinality, shape, device="cpu", generator=generator)
            x[:, columns] = site.enumeration.cpu()[code].reshape(count, -1).to(x)
    return x.to(graph.device)


class _Look:
    """Factors at some points: the first half to find directions by, the others to doubt them.

    Args:
        component: ``[V]`` of the nodes.
        x: ``[n, dim]``.
    """

    def __init__(self, graph: FactorGraph, groups: list[FactorGroup], component: Tensor, x: Tensor):
        self.graph, self.groups, self.component, self.x = graph, groups, component, x
        self.owner = component.repeat_interleave(graph.columns.cpu().diff())
        self.columns = [list(_columns(graph, group)) for group in groups]
        self.found = [_gradients(graph, group, x) for group in groups]

    def unseen(self, free: Tensor) -> Tensor:
        """What is left ``[dim]`` of a random vector of the columns ``free`` without its part in the
        span of the gradients."""
        entries, rows, columns, first = [], [], [], 0
        count = len(self.x) // 2
        for group, (log_prob, grads), own in zip(
            self.groups, self.found, self.columns, strict=True
        ):
            row = torch.arange(count * group.num_factors, device="cpu").view(count, -1, 1)
            halves = [g[:count] for g in grads]
            length = torch.stack([g.square().sum(2) for g in halves]).sum(0).sqrt().unsqueeze(2)
            dust = (ROUNDING * log_prob[:count].abs()).unsqueeze(2)
            for g, column in zip(halves, own, strict=True):
                told = (length > dust) & length.isfinite()
                share = torch.where(told, g / length, 0).cpu()
                at = share.nonzero(as_tuple=True)
                entries.append(share[at])
                rows.append((first + row).expand(g.shape)[at])
                columns.append(column.cpu().expand(g.shape)[at])
            first += row.numel()
        place = torch.stack([torch.cat(rows), torch.cat(columns)]).numpy()
        matrix = csr_array((torch.cat(entries).numpy(), place), shape=(first, self.graph.dim))
        u = np.random.default_rng(0).standard_normal(self.graph.dim) * free.numpy()
        most = min(MOST_STEPS, WORK // max(1, matrix.nnz))
        options = {"atol": 1e-14, "btol": 1e-14, "conlim": 0, "maxiter": most}
        for _ in range(2):  # once more for what the first one left
            step, _, steps, *_ = lsmr(matrix, matrix @ u, **options)
            u = u - step
            if steps == most:
                break
        return torch.from_numpy(u)

    def unnoticed(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """The direction with a largest entry of 1 in every component, and which components ``[V]``
        have no factor that notices it."""
        largest = u.new_zeros(self.graph.num_nodes).scatter_reduce(0, self.owner, u.abs(), "amax")
        u = u / largest.clamp_min(1e-300)[self.owner]
        u = torch.where((u - u.round()).abs() < DUST, u.round(), u)
        drifts = largest > 0
        for group, found, columns in zip(self.groups, self.found, self.columns, strict=True):
            owner = self.component[group.scope[:, 0].cpu()]
            if bool(drifts[owner].any()):
                noticed = self._notices(group, *found, columns, u.to(self.x.device))
                drifts[owner[noticed.cpu()]] = False
        return u, drifts

    def _notices(
        self,
        group: FactorGroup,
        log_prob: Tensor,
        grads: list[Tensor],
        columns: list[Tensor],
        u: Tensor,
    ) -> Tensor:
        """Which factors ``[E]`` of a group have gradients or other values along u, or no values, or
        may have them beneath rounding."""
        along = torch.stack([(g * u[c]).sum(2) for g, c in zip(grads, columns, strict=True)])
        terms = torch.stack([(g * u[c]).abs().sum(2) for g, c in zip(grads, columns, strict=True)])
        least = torch.maximum(LEFT * terms.sum(0), ROUNDING * log_prob.abs())
        noticed = (along.sum(0).abs() > least).any(0)
        slope = torch.stack([g.abs().amax(2) for g in grads]).amax(0)
        here = torch.stack([self.x[:, c].abs().amax(2) for c in columns]).amax(0)
        # points are some units apart, and so slopes differ by curvatures
        bend = 2 * slope.amax(0)
        is_flat = (slope == 0).all(0)
        same = ~noticed
        is_whole = (u == 0) | (u.abs() == 1)
        exactly = same & torch.stack([is_whole[c].all(1) for c in columns]).all(0)
        for reach in (*REACHES, *FAR) if bool(is_flat.any()) else REACHES:
            if not bool((same | exactly).any()):
                break
            there = self._values(group, self.x + reach * u)
            change, size = (there - log_prob).abs(), log_prob.abs() + there.abs()
            off = ROUNDING * (here + reach)
            hidden = slope * off + bend * off**2
            # what is no finite number is not the same
            is_finite = there.isfinite() & log_prob.isfinite()
            is_same = is_finite & (change <= ROUNDING * size + hidden)
            if reach in FAR:
                is_same |= ~is_flat
            if reach == REACHES[2]:
                is_same &= hidden <= DOUBT
            same = same & is_same.all(0)
            is_same = is_finite & (change <= ROUNDING * size)
            exactly = exactly & (is_same | (~is_flat if reach in FAR else False)).all(0)
        return ~(same | exactly)

    def _values(self, group: FactorGroup, x: Tensor) -> Tensor:
        """Log values ``[n, E]``; NaN where they cannot be had."""
        try:
            return group.log_prob(self.graph.local_values(group, x))
        except (RuntimeError, ValueError, PyrographError):
            return x.new_full((len(x), group.num_factors), torch.nan)


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


def _message(graph: FactorGraph, u: Tensor) -> str:
    u = torch.where(u.abs() < ZERO, 0.0, u)
    u = u * u[u != 0][0].sign() + 0.0  # no number is written -0
    moving, columns = [], graph.columns.tolist()
    for node, (site, index) in enumerate(graph.nodes):
        own = u[columns[node] : columns[node + 1]]
        if bool((own != 0).any()):
            by = ", ".join(f"{float(value):+.3g}" for value in own[:NUMBERS])
            by = by if len(own) == 1 else f"({by}{', ...' if len(own) > NUMBERS else ''})"
            moving.append(f'"{site}"{list(index) if index else ""} by {by}')
    more = f", and {len(moving) - NAMED} more nodes" if len(moving) > NAMED else ""
    return (
        "the posterior is improper: no factor notices if all of these move along one line, "
        f"in these proportions: {'; '.join(moving[:NAMED])}{more}. Give one of them a proper "
        "prior, hold one at a value (an anchor), or write the program in what the data do tell, "
        "such as differences."
    )
