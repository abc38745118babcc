"""Weights on the simplex that make a quadratic form least.

    min_w  w' K w    subject to  w >= 0,  sum_i w_i = 1,        K symmetric, positive semi-definite

With the support P known, w_P = z / 1'z where K_PP z = 1; w is optimal when no point off the support
has a smaller gradient, g = K w: the *gap* w'Kw - min_i g_i bounds how far w'Kw is from the least.
Three searches for P, each taking over where the one before gives up:

1. exchange: all points of negative weight leave and all of negative multiplier enter at once, from
   the full support (or a given one). Half a dozen factorisations of shrinking size on most Gram
   matrices; may cycle, so it must keep halving the number of points that are out of place.
2. :func:`interior_point`, for matrices so ill-conditioned that exchanges cycle; from its end,
   where most weights or their multipliers have become zero, they do not.
3. descent: points enter in batches that adapt, and a support is left only for one with a smaller
   objective. It cannot cycle and ends at the optimum, to rounding.

O(n^3 / 3) for the first factorisation, far less for later ones; all in float64 on the CPU. Where a
Cholesky pivot fails, the diagonal is multiplied by 1 + ridge, from 1e-15 on, in that factorisation
alone; the residual is refined and the gap is measured on the given matrix.

Sources: Portugal, Júdice & Vicente (1994) for exchanges; Lawson & Hanson (1974), ch. 23, for
descent; Liu & Lee (2017), eq (5), for the program.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.checks import positive
from pyrograph.errors import OptionError, ShapeMismatch
from pyrograph.infer.importance.interior_point import interior_point
from pyrograph.infer.importance.ridge import cholesky_with_ridge

#: Relative to the largest term of a gradient: a multiplier that is zero but for rounding.
ROUNDING = 1e-15
#: Entries of a row whose diagonal is zero, relative to the largest: the root of float32's rounding.
ROW = 3.5e-4
#: Exchanges go on while the points out of place become fewer by this much in two rounds.
DECLINE = 0.7
#: Most points that enter at once shrink by this after a failure.
SHRINK = 0.25
#: Most factorisations of the descent, per point.
MOST_ROUNDS = 20


@dataclass(frozen=True)
class SimplexWeights:
    """A solution.

    Attributes:
        weights: ``[n]`` float64, at least 0, of sum 1.
        objective: w'Kw.
        gap: w'Kw - min_i (Kw)_i, on the given matrix; w'Kw is at most this above the least.
        ridge: the largest relative ridge that a factorisation needed; 0 if none.
    """

    weights: Tensor
    objective: float
    gap: float
    ridge: float


def minimise_on_simplex(
    gram: Tensor, *, start: Tensor | None = None, tol: float = 1e-12, polish: bool = False
) -> SimplexWeights:
    """The weights of least w'Kw.

    Args:
        gram: ``[n, n]``; its symmetric part is used.
        start: ``[n]`` weights of a similar problem; where they are positive the search starts.
        tol: for the gap, relative to the objective of equal weights or of the best single point,
            whichever is less; not below 1e-15 of the latter, which is rounding.
        polish: go on to the exact support, where the gap is rounding; costs more only on
            ill-conditioned matrices.

    Raises:
        ShapeMismatch: the matrix is not square, or ``start`` has another length.
        OptionError: an entry is not finite, a diagonal entry is negative or the matrix is beyond
            rounding not positive semi-definite, or ``tol`` is not positive.
    """
    tol = positive("tol", tol)
    k = symmetric_part(gram)
    diagonal = k.diagonal()
    nothing = diagonal == 0
    if bool(nothing.any()):
        return _without_discrepancy(k, nothing)
    least = float(diagonal.min())
    goal = max(tol * min(float(k.mean()), least), ROUNDING * least)
    searches = Searches(k)
    best = searches.exchange(_support(start, len(k)))
    if best is None or best.gap > goal:
        best = searches.from_inside(goal, best, polish)
    if best.gap > goal or (polish and not best.is_exact):
        best = searches.descend(0.0 if polish else goal, best)
    weights = torch.zeros(len(k), dtype=torch.float64, device="cpu")
    weights[best.support] = best.w
    return SimplexWeights(weights, best.objective, best.gap, searches.ridge)


def _without_discrepancy(k: Tensor, nothing: Tensor) -> SimplexWeights:
    """Equal weights of points whose diagonal is zero: then their rows are, and they are optimal.

    Raises:
        OptionError: their rows are not, as in no positive semi-definite matrix.
    """
    # a diagonal that rounding made zero was of its order, and then the row of its root's
    is_off = (k.abs() > ROW * k.diagonal().max()) & nothing.unsqueeze(1)
    if bool(is_off.any()):
        i, j = is_off.nonzero()[0].tolist()
        raise OptionError(
            f"the Gram matrix has 0 on its diagonal at {i} and {float(k[i, j]):.3g} beside it at "
            f"{j}: it is not positive semi-definite"
        )
    weights = nothing.double() / nothing.sum()
    gradient = k @ weights
    objective = float(weights @ gradient)
    return SimplexWeights(weights, objective, objective - float(gradient.min()), 0.0)


@dataclass(frozen=True)
class _Point:
    """Weights on a support. ``is_exact``: they solve the equations of the support."""

    support: Tensor
    w: Tensor
    objective: float
    gap: float
    is_exact: bool


class Searches:
    """The three searches on one matrix ``[n, n]``, float64."""

    def __init__(self, k: Tensor):
        self.k, self.ridge = k, 0.0

    def stationary(self, support: Tensor) -> Tensor:
        """Weights of sum 1 with equal gradients on the support, of any sign."""
        block = self.k[support][:, support]
        factor, ridge = cholesky_with_ridge(block)
        self.ridge = max(self.ridge, ridge)
        ones = torch.ones(len(support), 1, dtype=torch.float64, device="cpu")
        z = torch.cholesky_solve(ones, factor)
        residual = ones - block @ z
        refined = z + torch.cholesky_solve(residual, factor)
        # where a pivot is rounding a step may lead anywhere, and of two points cancels z
        if float((ones - block @ refined).norm()) < float(residual.norm()):
            z = refined
        return (z / z.sum()).squeeze(1)

    def gradient(self, support: Tensor, w: Tensor) -> Tensor:
        """Kw, ``[n]``."""
        return self.k[support].t() @ w

    def point(self, support: Tensor, w: Tensor, is_exact: bool = True) -> _Point:
        g = self.gradient(support, w)
        objective = float(w @ g[support])
        return _Point(support, w, objective, objective - float(g.min()), is_exact)

    # ------------------------------------------------------------------ 1
    def exchange(self, inside: Tensor) -> _Point | None:
        """All that is out of place changes side at once; None if that does not settle.

        Args:
            inside: ``[n]`` bool, the first support.
        """
        counts: list[int] = []
        while True:
            support = inside.nonzero().squeeze(1)
            w = self.stationary(support)
            g = self.gradient(support, w)
            level = float(w @ g[support])
            negative = torch.zeros_like(inside)
            negative[support] = w <= 0
            enters = ~inside & (g < level - self.rounding(support, w))
            counts.append(int(negative.sum() + enters.sum()))
            if counts[-1] == 0:
                return _Point(support, w, level, level - float(g.min()), True)
            inside = (inside & ~negative) | enters
            is_stuck = len(counts) > 2 and counts[-1] > DECLINE * counts[-3]
            if is_stuck or not bool(inside.any()):
                return None

    def rounding(self, support: Tensor, w: Tensor) -> float:
        """What a gradient on the support may be wrong by."""
        return ROUNDING * float((self.k.diagonal()[support] * w.abs()).amax())

    # ------------------------------------------------------------------ 2
    def from_inside(self, goal: float, other: _Point | None, polish: bool) -> _Point:
        """An interior point, or the exact one that exchanges reach from it, or ``other``."""
        x, inside, ridge = interior_point(self.k, 0.0 if polish else goal)
        self.ridge = max(self.ridge, ridge)
        point = self.point(torch.arange(len(x), device="cpu"), x, is_exact=False)
        if point.gap <= goal and not polish:
            return point
        exact = self.exchange(inside) if bool(inside.any()) else None
        if exact is not None and exact.gap <= max(point.gap, goal):
            return exact
        return min((p for p in (point, other) if p is not None), key=lambda p: p.gap)

    # ------------------------------------------------------------------ 3
    def descend(self, goal: float, start: _Point) -> _Point:
        """Supports of falling objective, from the points with the largest weights on."""
        best = now = self._shrunk(start)
        batch = len(self.k)
        for _ in range(MOST_ROUNDS * len(self.k)):
            g = self.gradient(now.support, now.w)
            excess = now.objective - g
            excess[now.support] = 0.0
            least = max(goal / 2, self.rounding(now.support, now.w))
            enters = (excess > least).nonzero().squeeze(1)
            if now.gap <= goal or not len(enters):
                break
            if len(enters) > batch:
                enters = enters[excess[enters].topk(batch).indices]
            if len(enters) > 1:
                new = self._entered(now, enters)
                # failures cost a few factorisations, so that batches soon fit
                batch = 2 * len(enters) if new else max(1, int(SHRINK * len(enters)))
            else:
                new, batch = self._stepped(now, enters), 2
                if new.objective >= now.objective:  # rounding: nothing is left to gain
                    break
            now = new or now
            best = min(best, now, key=lambda p: p.gap)
        return min(best, start, key=lambda p: (p.gap > goal, not p.is_exact, p.gap))

    def _shrunk(self, start: _Point) -> _Point:
        """A support within the given one on which all weights are positive."""
        large = start.w > start.w.max() * 1e-3 / len(start.w)
        support = start.support[large]
        while True:
            w = self.stationary(support)
            if bool((w > 0).all()):
                return self.point(support, w)
            support = support[w > 0]

    def _entered(self, now: _Point, enters: Tensor) -> _Point | None:
        """The support with more points, less those of negative weight, if its objective is less."""
        support = torch.cat([now.support, enters])
        while True:
            w = self.stationary(support)
            objective = float(w @ (self.k[support][:, support] @ w))
            if objective >= now.objective:
                return None
            if bool((w > 0).all()):
                return self.point(support, w)
            support = support[w > 0]

    def _stepped(self, now: _Point, enters: Tensor) -> _Point:
        """One point enters; others leave as the way to the new weights meets zero."""
        support, w = torch.cat([now.support, enters]), torch.cat([now.w, now.w.new_zeros(1)])
        while True:
            target = self.stationary(support)
            negative = target <= 0
            if not bool(negative.any()):
                return self.point(support, target)
            share = torch.where(negative, w / (w - target).clamp_min(1e-300), torch.inf)
            first = int(share.argmin())
            w = w + min(1.0, float(share[first])) * (target - w)
            w[first] = 0.0
            support, w = support[w > 0], w[w > 0]


def symmetric_part(gram: Tensor) -> Tensor:
    """The symmetric part in float64 on the CPU."""
    if not isinstance(gram, Tensor):
        raise ShapeMismatch(f"a Gram matrix is a tensor [n, n]; got {type(gram).__name__}")
    if gram.dim() != 2 or gram.shape[0] != gram.shape[1] or not len(gram):
        raise ShapeMismatch(f"a Gram matrix is [n, n]; got {list(gram.shape)}")
    k = gram.detach().to("cpu", torch.float64)
    k = (k + k.t()) / 2
    if not bool(k.isfinite().all()):
        raise OptionError("the Gram matrix has an entry that is NaN or infinite")
    diagonal = k.diagonal()
    if bool((diagonal < -(ROW**2) * diagonal.max()).any()):
        i = int(diagonal.argmin())
        raise OptionError(
            f"the Gram matrix has {float(k[i, i]):.3g} on its diagonal at {i}, and "
            f"{float(diagonal.max()):.3g} at most: it is not positive semi-definite, or but "
            "rounding (of a kernel that tells no points apart)"
        )
    diagonal.clamp_min_(0.0)  # rounding of a zero
    return k


def _support(start: Tensor | None, n: int) -> Tensor:
    """``[n]`` bool."""
    if start is None:
        return torch.ones(n, dtype=torch.bool, device="cpu")
    if start.shape != (n,):
        raise ShapeMismatch(f"start has shape {list(start.shape)}; expected [{n}]")
    inside = (start > 0).cpu()
    return inside if bool(inside.any()) else torch.ones(n, dtype=torch.bool, device="cpu")
