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
from pyrograph.infer.laplace import EPS
from pyrograph.kernels.coordinates import Coordinates

#: Columns of a group that are mixed at most. Wider ones are taken node by node, and columns of a
#: wider node each by itself.
WIDEST = 128
#: What a draw may lose in log density beside a Gaussian's loss, and how it is shortened otherwise.
TIMES, MORE, SHORTER, MOST_TIMES = 4.0, 1.0, 0.7, 60


def coordinates_at(graph, mode: Tensor, width: Tensor) -> Coordinates:
    """Round coordinates at a mode.

    Where the curvature of a group is not that of a maximum (along a ridge, say), so flat that
    rounding hides it, or not to be measured for a wall, its columns keep their widths and are not
    mixed.

    Args:
        graph: of which the density is evaluated, in double precision as curvature asks for it.
        mode, width: ``[dim]``, as of :func:`.laplace.mode_and_width`.
    """
    of_nodes = node_groups(graph)
    groups = column_groups(graph, of_nodes)
    fine = graph if graph.dtype == torch.float64 else graph.to(None, torch.float64)
    at, reach = mode.double(), width.double()
    roots = [reach[own].diag_embed() for own in groups]
    for k, found in _curvature(fine, of_nodes, groups, at, reach).items():
        roots[k] = roots[k] @ _root(found, torch.finfo(graph.dtype).eps ** 0.5)
    return Coordinates([(own, root.to(width)) for own, root in zip(groups, roots, strict=True)])


def drawn_about(graph, mode: Tensor, coordinates: Coordinates, z: Tensor) -> Tensor:
    """mode + R z, of particles ``[n, dim]``, each nearer where that lies far lower than under a
    Gaussian: along a ridge that is curved, or has a flat top, the Hessian reaches too far."""
    highest = graph.density(mode[None]).double()
    for _ in range(MOST_TIMES):
        x = mode + coordinates.outward(z)
        loss = highest - graph.density(x).double()
        # of NaN this is true
        is_low = ~(loss <= TIMES * z.double().square().sum(1) / 2 + MORE)
        if not bool(is_low.any()):
            break
        z = torch.where(is_low[:, None], SHORTER * z, z)
    return mode + coordinates.outward(z)


def unit_coordinates(graph) -> Coordinates:
    """The graph's own, in the same groups: for the blocks of a saved run."""
    ones = torch.ones(graph.dim, dtype=graph.dtype, device=graph.device)
    return Coordinates(
        [(own, ones[own].diag_embed()) for own in column_groups(graph, node_groups(graph))]
    )


def column_groups(graph, group: Tensor) -> list[Tensor]:
    """Columns that may be mixed, ``[G, w]`` for each width w, by the groups of nodes."""
    node = _node_of_column(graph)
    single = torch.arange(graph.dim, device="cpu") + graph.num_nodes
    is_wide = graph.columns.cpu().diff() > WIDEST
    of_column = torch.where(is_wide[node], single, group[node]).unique(return_inverse=True)[1]
    order, sizes = of_column.argsort(stable=True), of_column.bincount()
    start = sizes.cumsum(0) - sizes
    return [
        order[start[sizes == w].unsqueeze(1) + torch.arange(w, device="cpu")].to(graph.device)
        for w in sizes.unique().tolist()
    ]


def node_groups(graph) -> Tensor:
    """``[num_nodes]``: twins, but for those who are too many."""
    group = twins(*graph.neighbors)
    columns = group.bincount(graph.columns.cpu().diff().double())
    alone = torch.arange(graph.num_nodes, device="cpu") + graph.num_nodes
    return torch.where(columns[group] > WIDEST, alone, group).unique(return_inverse=True)[1]


def _node_of_column(graph) -> Tensor:
    return torch.arange(graph.num_nodes, device="cpu").repeat_interleave(graph.columns.cpu().diff())


def _curvature(
    graph, group: Tensor, groups: list[Tensor], x: Tensor, reach: Tensor
) -> dict[int, Tensor]:
    """-d^2 log p / dx_i dx_j times the reach of i and of j, ``[G, w, w]`` of every w > 1 (by its
    place), from central differences of the score over ``reach``, or over far shorter steps where
    these meet a wall; NaN where they do too."""
    hue = colour(*quotient(*graph.neighbors, group))[group][_node_of_column(graph)].to(x.device)
    mixed = {k: own for k, own in enumerate(groups) if own.shape[1] > 1}
    found = {k: x.new_full((*own.shape, own.shape[1]), torch.nan) for k, own in mixed.items()}
    lengths = (reach, EPS ** (1 / 3) * x.abs().clamp_min(1))
    for shade in sorted({int(h) for own in mixed.values() for h in hue[own[:, 0]].unique()}):
        moving = {k: (hue[own[:, 0]] == shade).nonzero()[:, 0] for k, own in mixed.items()}
        for j in range(max(mixed[k].shape[1] for k, rows in moving.items() if len(rows))):
            wide_enough = {k: rows for k, rows in moving.items() if j < mixed[k].shape[1]}
            moved = {k: mixed[k][rows, j] for k, rows in wide_enough.items()}
            columns = torch.cat(list(moved.values()))
            for length in lengths:
                step = torch.zeros_like(x).index_copy(0, columns, length[columns])
                try:
                    _, score = value_and_score(graph, torch.stack([x + step, x - step]))
                except NonFiniteDensity:
                    continue
                change = 0.5 * reach * (score[1] - score[0])
                for k, rows in wide_enough.items():
                    share = (reach / length)[moved[k]].unsqueeze(1)
                    found[k][rows, :, j] = share * change[mixed[k][rows]]
                break
    return found


def _root(curvature: Tensor, least: float) -> Tensor:
    """Upper triangular U, with U U^T the inverse of ``[G, w, w]`` curvatures of unit diagonal; the
    identity where they are not positive by more than ``least`` squared, or NaN."""
    eye = torch.eye(curvature.shape[-1], dtype=curvature.dtype, device=curvature.device)
    is_known = curvature.isfinite().all(-1).all(-1)[:, None, None]
    curvature = torch.where(is_known, curvature, -eye)
    top = curvature.diagonal(dim1=-2, dim2=-1)
    scale = top.clamp_min(torch.finfo(top.dtype).tiny).rsqrt()
    symmetric = (curvature + curvature.mT) / 2 * scale.unsqueeze(-1) * scale.unsqueeze(-2)
    lower, failed = torch.linalg.cholesky_ex(symmetric)
    pivot = lower.diagonal(dim1=-2, dim2=-1).amin(-1)
    is_round = (failed == 0) & (pivot > least) & (top > 0).all(-1)
    lower = torch.where(is_round[:, None, None], lower, eye)
    return torch.linalg.solve_triangular(lower.mT, eye.expand_as(lower), upper=True)
