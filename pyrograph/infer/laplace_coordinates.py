"""Coordinates in which a density is round at its mode, as far as its graph allows.

    R R^T = H_gg^-1,      H = -Hessian of log p at the mode, g a group of twins

(:func:`pyrograph.graph.twins.twins`: nodes with one closed blanket, whose columns may be mixed
without a new edge). z = R^-1 x has unit curvature along every column, and none between columns of a
group. As for the widths, one difference of scores serves one column of every group of a colour:
O((number of colours) * (columns of the widest group) * (one pass over the graph)).
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.diagnostics import value_and_score
from pyrograph.errors import NonFiniteDensity
from pyrograph.graph.colouring import colour
from pyrograph.graph.markov import quotient
from pyrograph.graph.twins import twins
from pyrograph.kernels.coordinates import Coordinates

#: Columns of a group that are mixed at most. Wider ones are taken node by node, and columns of a
#: wider node each by itself.
WIDEST = 128


def coordinates_at(graph, mode: Tensor, width: Tensor) -> Coordinates:
    """Round coordinates at a mode.

    Where the curvature of a group is not that of a maximum (along a ridge, say), or so flat that
    rounding hides it, its columns keep their widths and are not mixed.

    Args:
        graph: of which the density is evaluated, in double precision as curvature asks for it.
        mode, width: ``[dim]``, as of :func:`.laplace.mode_and_width`.
    """
    groups = column_groups(graph)
    fine = graph if graph.dtype == torch.float64 else graph.to(None, torch.float64)
    at, reach = mode.double(), width.double()
    roots = [reach[own].diag_embed() for own in groups]
    try:
        curvature = _curvature(fine, groups, at, reach)
    except NonFiniteDensity:  # the widths have been measured over shorter steps
        curvature = {}
    for k, found in curvature.items():
        roots[k] = roots[k] @ _root(found, torch.finfo(graph.dtype).eps ** 0.5)
    return Coordinates([(own, root.to(width)) for own, root in zip(groups, roots, strict=True)])


def unit_coordinates(graph) -> Coordinates:
    """The graph's own, in the same groups: for the blocks of a saved run."""
    ones = torch.ones(graph.dim, dtype=graph.dtype, device=graph.device)
    return Coordinates([(own, ones[own].diag_embed()) for own in column_groups(graph)])


def column_groups(graph) -> list[Tensor]:
    """Columns that may be mixed, ``[G, w]`` for each width w."""
    group, node = _node_groups(graph), _node_of_column(graph)
    single = torch.arange(graph.dim, device="cpu") + graph.num_nodes
    is_wide = graph.columns.cpu().diff() > WIDEST
    of_column = torch.where(is_wide[node], single, group[node]).unique(return_inverse=True)[1]
    order, sizes = of_column.argsort(stable=True), of_column.bincount()
    start = sizes.cumsum(0) - sizes
    return [
        order[start[sizes == w].unsqueeze(1) + torch.arange(w, device="cpu")].to(graph.device)
        for w in sizes.unique().tolist()
    ]


def _node_groups(graph) -> Tensor:
    """``[num_nodes]``: twins, but for those who are too many."""
    group = twins(*graph.neighbors)
    columns = group.bincount(graph.columns.cpu().diff().double())
    alone = torch.arange(graph.num_nodes, device="cpu") + graph.num_nodes
    return torch.where(columns[group] > WIDEST, alone, group).unique(return_inverse=True)[1]


def _node_of_column(graph) -> Tensor:
    return torch.arange(graph.num_nodes, device="cpu").repeat_interleave(graph.columns.cpu().diff())


def _curvature(graph, groups: list[Tensor], x: Tensor, reach: Tensor) -> dict[int, Tensor]:
    """-d^2 log p / dx_i dx_j times the reach of i and of j, ``[G, w, w]`` of every w > 1 (by its
    place), from central differences of the score over ``reach``."""
    group = _node_groups(graph)
    hue = colour(*quotient(*graph.neighbors, group))[group][_node_of_column(graph)].to(x.device)
    mixed = {k: own for k, own in enumerate(groups) if own.shape[1] > 1}
    found = {k: x.new_zeros(*own.shape, own.shape[1]) for k, own in mixed.items()}
    for shade in sorted({int(h) for own in mixed.values() for h in hue[own[:, 0]].unique()}):
        moving = {k: (hue[own[:, 0]] == shade).nonzero()[:, 0] for k, own in mixed.items()}
        for j in range(max(mixed[k].shape[1] for k, rows in moving.items() if len(rows))):
            wide_enough = {k: rows for k, rows in moving.items() if j < mixed[k].shape[1]}
            step = torch.zeros_like(x)
            for k, rows in wide_enough.items():
                column = mixed[k][rows, j]
                step[column] = reach[column]
            _, score = value_and_score(graph, torch.stack([x + step, x - step]))
            change = 0.5 * reach * (score[1] - score[0])
            for k, rows in wide_enough.items():
                found[k][rows, :, j] = change[mixed[k][rows]]
    return found


def _root(curvature: Tensor, least: float) -> Tensor:
    """Upper triangular U, with U U^T the inverse of ``[G, w, w]`` curvatures of unit diagonal; the
    identity where they are not positive by more than ``least`` squared."""
    eye = torch.eye(curvature.shape[-1], dtype=curvature.dtype, device=curvature.device)
    top = curvature.diagonal(dim1=-2, dim2=-1)
    scale = top.clamp_min(torch.finfo(top.dtype).tiny).rsqrt()
    symmetric = (curvature + curvature.mT) / 2 * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    lower, failed = torch.linalg.cholesky_ex(symmetric)
    pivot = lower.diagonal(dim1=-2, dim2=-1).amin(-1)
    is_round = (failed == 0) & (pivot > least) & (top > 0).all(-1)
    lower = torch.where(is_round[:, None, None], lower, eye)
    return torch.linalg.solve_triangular(lower.mT, eye.expand_as(lower), upper=True)
