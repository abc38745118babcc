"""A mixture over all nodes: free parameters, and the distributions they stand for.

    b(x) = sum_l w_l prod_i b_il(x_i)

The weights w are shared by all nodes and factors, so beliefs of factors and of nodes agree, and one
mixture holds for everything. A component is a Gaussian at a continuous node and a categorical
distribution at a discrete one. With full covariance the Gaussians of a scope are correlated:

    Cov(x_a | l) = G G',   G = diag(roots of the nodes) N,   N N' a correlation matrix

with identity blocks for the nodes, so the beliefs of factors still agree on nodes. Everything is a
function of unconstrained numbers, and nothing needs projecting.

Shapes: B restarts, L components, V nodes of one kind, d numbers or c states each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

#: A component's scale is at least this share of the largest at the node: quadrature of the
#: mixture's entropy errs for components much narrower than the others.
FLOOR = 0.2
#: A weight below exp(-60) stays there: one of 0 has no logarithm.
LEAST_LOG_WEIGHT = -60.0

Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class Kind:
    """Nodes of one kind.

    Attributes:
        nodes: ``[V]``.
        size: numbers of a continuous node, states of a discrete one.
        is_discrete: which.
        centre, unit: ``[V, size]`` what means are measured from and in, of continuous nodes.
    """

    nodes: Tensor
    size: int
    is_discrete: bool
    centre: Tensor | None = None
    unit: Tensor | None = None


class Components:
    """The mixture at given parameters.

    Args:
        kinds: of the nodes.
        parameters: ``weights [B, L]``; per kind k ``mean_k, log_scale_k [B, L, V, d]`` and
            ``shear_k [B, L, V, d (d - 1) / 2]`` or ``logits_k [B, L, V, c]``; per set of scopes
            ``tie_s``, see :func:`correlation_root`.
    """

    def __init__(self, kinds: list[Kind], parameters: Parameters):
        self.kinds, self.parameters = kinds, parameters
        self.log_weights = parameters["weights"].log_softmax(1).clamp_min(LEAST_LOG_WEIGHT)
        self.weights = self.log_weights.exp()
        self._correlations: dict[str, Tensor] = {}

    @property
    def num_components(self) -> int:
        return self.weights.shape[1]

    @cached_property
    def means(self) -> list[Tensor | None]:
        """``[B, L, V, d]`` of continuous kinds."""
        return [
            None if k.is_discrete else torch.addcmul(k.centre, k.unit, self.parameters[f"mean_{n}"])
            for n, k in enumerate(self.kinds)
        ]

    @cached_property
    def scales(self) -> list[Tensor | None]:
        """Standard deviations within a component, ``[B, L, V, d]``, as long as nothing is sheared.

        No component is narrower than a share of its siblings, see :data:`FLOOR`.
        """
        out: list[Tensor | None] = []
        for n, kind in enumerate(self.kinds):
            if kind.is_discrete:
                out.append(None)
                continue
            scale = self.parameters[f"log_scale_{n}"].exp()
            if self.num_components > 1:
                square = scale.square()
                scale = (square + FLOOR**2 * square.amax(1, keepdim=True)).sqrt()
            out.append(scale * kind.unit)
        return out

    @cached_property
    def roots(self) -> list[Tensor | None]:
        """Cholesky factors ``[B, L, V, d, d]`` of the nodes' covariances, of kinds with d > 1 whose
        numbers are correlated; None of the others."""
        out: list[Tensor | None] = []
        for n, kind in enumerate(self.kinds):
            shear = self.parameters.get(f"shear_{n}")
            if shear is None:
                out.append(None)
                continue
            scale = self.scales[n]
            below = torch.tril_indices(kind.size, kind.size, -1, device=shear.device)
            lower = torch.diag_embed(torch.ones_like(scale))
            lower[..., below[0], below[1]] = shear
            # rows of length 1, so that the scales stay standard deviations
            lower = lower / lower.norm(dim=-1, keepdim=True)
            out.append(scale.unsqueeze(-1) * lower)
        return out

    @cached_property
    def log_probs(self) -> list[Tensor | None]:
        """``[B, L, V, c]`` of discrete kinds."""
        return [
            self.parameters[f"logits_{n}"].log_softmax(-1) if kind.is_discrete else None
            for n, kind in enumerate(self.kinds)
        ]

    def root(self, kind: int) -> Tensor:
        """``[B, L, V, d, d]`` whatever the covariance is like."""
        root = self.roots[kind]
        return torch.diag_embed(self.scales[kind]) if root is None else root

    def correlation_root(self, tie: str, widths: list[int], at: Tensor) -> Tensor:
        """``[B, L, E, R, R]`` of the scopes ``at [E]``: many factors may share one.

        Args:
            tie: name of the parameter; widths: of a scope's nodes.
        """
        root = self._correlations.get(tie)
        if root is None:
            root = self._correlations[tie] = correlation_root(self.parameters[tie], widths)
        return taken(root, at)


def others(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of every component l of L the others, ``[L, L - 1]``: l + 1, l + 2, ... modulo L.

    And, of the same shape, the components l of whose others column k is m: m - 1, m - 2, ...
    """
    own = torch.arange(count, device=device).unsqueeze(1)
    steps = torch.arange(1, count, device=device)
    return (own + steps) % count, (own - steps) % count


def num_ties(widths: list[int]) -> int:
    """Free numbers of a correlation matrix with identity blocks."""
    total = sum(widths)
    return total * (total - 1) // 2 - sum(w * (w - 1) // 2 for w in widths)


def correlation_root(tie: Tensor, widths: list[int]) -> Tensor:
    """Lower triangular N with N N' a correlation matrix whose diagonal blocks are identities.

    Block row i of a triangular matrix A with identity blocks on its diagonal, times the inverse
    of the root of its own square: N_i = chol(A_i A_i')^-1 A_i.

    Shapes:
        tie: ``[*batch, num_ties(widths)]``, A's free numbers; zeros give N = I.
        output: ``[*batch, R, R]``, R the sum of the widths.
    """
    total = sum(widths)
    row, column = _free_entries(widths, tie.device)
    a = torch.eye(total, dtype=tie.dtype, device=tie.device).repeat(*tie.shape[:-1], 1, 1)
    a[..., row, column] = tie
    if all(width == 1 for width in widths):
        return a / a.norm(dim=-1, keepdim=True)
    rows = []
    for part in a.split(widths, -2):
        own = torch.linalg.cholesky(part @ part.mT)
        rows.append(torch.linalg.solve_triangular(own, part, upper=False))
    return torch.cat(rows, -2)


def free_ties(root: Tensor, widths: list[int]) -> Tensor:
    """What :func:`correlation_root` makes ``root`` of."""
    rows, start = [], 0
    for part, width in zip(root.split(widths, -2), widths, strict=True):
        own = part[..., start : start + width]
        rows.append(torch.linalg.solve_triangular(own, part, upper=False))
        start += width
    a = torch.cat(rows, -2)
    row, column = _free_entries(widths, root.device)
    return a[..., row, column]


def _free_entries(widths: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of A's free numbers."""
    block = torch.repeat_interleave(
        torch.arange(len(widths), device="cpu"), torch.tensor(widths, device="cpu")
    )
    row, column = torch.tril_indices(len(block), len(block), -1, device="cpu")
    free = block[row] != block[column]
    return row[free].to(device), column[free].to(device)


def taken(value: Tensor, rows: Tensor) -> Tensor:
    """``value[:, :, rows]`` of ``[B, L, V, *rest]``, laid out so that the derivative, a sum by
    rows, runs over contiguous numbers: some forty times as fast.
    """
    batch, rest = value.shape[:2], value.shape[3:]
    flat = value.flatten(3) if rest else value.unsqueeze(3)
    columns = flat.movedim(3, 2).reshape(-1, value.shape[2])
    picked = columns.index_select(1, rows)
    return picked.view(*batch, -1, len(rows)).movedim(2, 3).reshape(*batch, len(rows), *rest)
