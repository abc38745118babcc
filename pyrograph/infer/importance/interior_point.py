"""A primal-dual interior point for the least w'Kw on the simplex.

    K w - y 1 - s = 0,    1'w = 1,    w_i s_i = mu -> 0,    w, s > 0

Mehrotra's predictor and corrector. It takes its 15 steps whatever the condition of K, and closes in
on a face of optimal points from its middle, which makes it the start for a search by supports:
weights and multipliers that are not yet zero show where it goes.

A step solves with K + diag(s / w), O(n^3 / 3) by a Cholesky factor. The matrices that need an
interior point are those of smooth kernels, of numerical rank r far below n: then K is near
F F' + diag(e), F of a Cholesky factorisation with pivots that ends early, and a step is O(n r^2) by
Woodbury's identity. Residuals are those of K itself, so that this costs digits of a step and none
of the result; where steps gain no more, full factors take over.

Source: Mehrotra (1992); Nocedal & Wright (2006), algorithm 16.4; Fine & Scheinberg (2001).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from pyrograph.infer.importance.ridge import cholesky_with_ridge

#: Of the way to the boundary; most steps.
STEP, MOST_STEPS = 0.99, 60
#: Steps without a smaller gap before full factors take over, and before it ends.
LOW_RANK_PATIENCE, PATIENCE = 2, 4
#: Largest rank, as a share of n and at all, and what is left of the diagonal.
SHARE, MOST_RANK, LEFT = 1 / 3, 300, 1e-11


def interior_point(k: Tensor, goal: float) -> tuple[Tensor, Tensor, float]:
    """Weights of the least gap that was met, and the support to which they were going.

    Args:
        k: ``[n, n]`` float64, symmetric, positive semi-definite, its diagonal positive.
        goal: for the gap w'Kw - min_i (Kw)_i.

    Returns:
        w ``[n]``, positive, of sum 1; w > s at the end, ``[n]`` bool; the largest relative ridge of
        a factorisation.
    """
    n = len(k)
    w = torch.full((n,), 1 / n, dtype=torch.float64, device="cpu")
    g = k @ w
    s = g - g.min() + abs(float(w @ g)) + 1e-3 * float(k.diagonal().mean())
    y, waited = float((g - s).mean()), 0
    best, inside = (float("inf"), w, s, y), w > 0
    dense, low = _Dense(k), _low_rank(k)
    solvers: list[_Solver] = [dense] if low is None else [dense, low]
    for _ in range(MOST_STEPS):
        g, total = k @ w, float(w.sum())
        gap = float(w @ g) / total**2 - float(g.min()) / total
        waited = 0 if gap < best[0] else waited + 1
        best = min(best, (gap, w / total, s, y), key=lambda found: found[0])
        patience = PATIENCE if len(solvers) == 1 else LOW_RANK_PATIENCE
        is_sound = bool((w.isfinite() & s.isfinite() & (w > 0) & (s > 0)).all())
        inside = w > s if is_sound else inside
        if gap <= goal or (len(solvers) == 1 and (waited > patience or not is_sound)):
            break
        if waited > patience or not is_sound:
            solvers.pop()
            _, w, s, y = best
            g, total, waited = k @ w, 1.0, 0
        solver = solvers[-1]
        solver.prepare(s / w)
        dw, dy, ds = _direction(solver, w, s, g - y - s, 1 - total)
        reach = STEP * min(_reach(w, dw), _reach(s, ds))
        w, s, y = w + reach * dw, s + reach * ds, y + reach * dy
    return best[1], inside, dense.ridge


def _direction(
    solver: _Solver, w: Tensor, s: Tensor, dual: Tensor, primal: float
) -> tuple[Tensor, float, Tensor]:
    """(dw, dy, ds) of the predictor and corrector at residuals Kw - y 1 - s and 1 - 1'w."""
    ones = torch.ones_like(w)
    of_ones, free = solver.solve(torch.stack([ones, -s - dual], 1)).unbind(1)

    def completed(free: Tensor, change: Tensor) -> tuple[Tensor, float, Tensor]:
        """The step by which w_i s_i changes by ``change`` to first order."""
        dy = float((primal - free.sum()) / of_ones.sum())
        dw = free + dy * of_ones
        return dw, dy, (change - s * dw) / w

    dw, _, ds = completed(free, -w * s)
    reach = min(_reach(w, dw), _reach(s, ds))
    mu = float(w @ s) / len(w)
    centre = (float((w + reach * dw) @ (s + reach * ds)) / len(w) / mu) ** 3
    change = centre * mu - w * s - dw * ds
    free = solver.solve((change / w - dual).unsqueeze(1)).squeeze(1)
    return completed(free, change)


class _Solver(Protocol):
    """Solves with K + diag(barrier), right sides ``[n, m]``."""

    def prepare(self, barrier: Tensor) -> None: ...

    def solve(self, right: Tensor) -> Tensor: ...


class _Dense:
    """By a Cholesky factor, with a ridge where a pivot fails."""

    def __init__(self, k: Tensor):
        self.k, self.ridge = k, 0.0

    def prepare(self, barrier: Tensor) -> None:
        self.factor, ridge = cholesky_with_ridge(self.k, barrier)
        self.ridge = max(self.ridge, ridge)

    def solve(self, right: Tensor) -> Tensor:
        return torch.cholesky_solve(right, self.factor)


class _LowRank:
    """By Woodbury's identity for F F' + diag(rest + barrier).

    Args:
        root: F', ``[r, n]``; rest: ``[n]``.
    """

    def __init__(self, root: Tensor, rest: Tensor):
        self.root, self.rest = root, rest

    def prepare(self, barrier: Tensor) -> None:
        self.inverse = 1 / (self.rest + barrier)
        small = (self.root * self.inverse) @ self.root.t()
        small.diagonal().add_(1.0)
        self.factor, failed = torch.linalg.cholesky_ex(small)
        if int(failed):
            self.factor.fill_(torch.nan)  # the step is not finite, and full factors take over

    def solve(self, right: Tensor) -> Tensor:
        inverse = self.inverse.unsqueeze(1)
        inner = torch.cholesky_solve(self.root @ (inverse * right), self.factor)
        return inverse * (right - self.root.t() @ inner)


def _low_rank(k: Tensor) -> _LowRank | None:
    """K as F F' and what is left of its diagonal; None if its rank is not low."""
    rest = k.diagonal().clone()
    least = LEFT * float(rest.max())
    most = min(int(SHARE * len(k)), MOST_RANK)
    root = torch.zeros(most, len(k), dtype=torch.float64, device="cpu")
    for j in range(most):
        pivot = int(rest.argmax())
        largest = float(rest[pivot])
        if largest <= least:
            return _LowRank(root[:j], rest.clamp_min(0.0))
        root[j] = (k[pivot] - root[:j, pivot] @ root[:j]) / largest**0.5
        rest -= root[j].square()
        rest[pivot] = 0.0
    return None


def _reach(value: Tensor, change: Tensor) -> float:
    """The share of a change, at most 1, that keeps the values from being negative."""
    return min(1.0, float(torch.where(change < 0, -value / change, torch.inf).amin()))
