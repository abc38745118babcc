"""A primal-dual interior point for the least w'Kw on the simplex.

    K w - y 1 - s = 0,    1'w = 1,    w_i s_i = mu -> 0,    w, s > 0

Mehrotra's predictor and corrector; one Cholesky factorisation of K + diag(s / w) a step. It takes
its 15 steps whatever the condition of K, and closes in on a face of optimal points from its middle,
which makes it the start for a search by supports, and no end: weights off the support stay
positive, and the last digits of the gap are lost where K is ill-conditioned.

Source: Mehrotra (1992); Nocedal & Wright (2006), algorithm 16.4.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Of the way to the boundary; most steps.
STEP, MOST_STEPS = 0.995, 50
#: Steps without a smaller gap before it ends.
PATIENCE = 4


def interior_point(k: Tensor, goal: float) -> tuple[Tensor, Tensor, float]:
    """Weights and multipliers, both positive, of the least gap that was met.

    Args:
        k: ``[n, n]`` float64, symmetric, positive semi-definite, its diagonal positive.
        goal: for the gap w'Kw - min_i (Kw)_i.

    Returns:
        w ``[n]`` of sum 1; s ``[n]``; the largest relative ridge of a factorisation.
    """
    n, diagonal = len(k), k.diagonal().clone()
    w = torch.full((n,), 1 / n, dtype=torch.float64)
    g = k @ w
    s = g - g.min() + float(w @ g).__abs__() + 1e-3 * float(diagonal.mean())
    y = float((g - s).mean())
    lifted, ones, ridge = k.clone(), torch.ones_like(w), 0.0
    best, waited = (float("inf"), w, s), 0
    for _ in range(MOST_STEPS):
        g = k @ w
        total = float(w.sum())
        gap = float(w @ g) / total**2 - float(g.min()) / total
        if gap < best[0]:
            best, waited = (gap, w / total, s), 0
        else:
            waited += 1
        if gap <= goal or waited > PATIENCE:
            break
        lifted.diagonal().copy_(diagonal + s / w)
        factor, failed = torch.linalg.cholesky_ex(lifted)
        step = 1e-15
        while int(failed):
            ridge = max(ridge, step)
            lifted.diagonal().copy_(diagonal * (1 + step) + s / w)
            factor, failed = torch.linalg.cholesky_ex(lifted)
            step *= 10
        to_dual, to_primal = g - y - s, 1 - total
        solved = torch.cholesky_solve(ones.unsqueeze(1), factor).squeeze(1)

        def direction(complement: Tensor) -> tuple[Tensor, float, Tensor]:
            right = (complement / w - to_dual).unsqueeze(1)
            free = torch.cholesky_solve(right, factor).squeeze(1)
            dy = float((to_primal - free.sum()) / solved.sum())
            dw = free + dy * solved
            return dw, dy, (complement - s * dw) / w

        mu = float(w @ s) / n
        dw, _, ds = direction(-w * s)
        reach = min(_reach(w, dw), _reach(s, ds))
        centre = (float((w + reach * dw) @ (s + reach * ds)) / n / mu) ** 3
        dw, dy, ds = direction(centre * mu - w * s - dw * ds)
        reach = min(1.0, STEP * min(_reach(w, dw), _reach(s, ds)))
        w, s, y = w + reach * dw, s + reach * ds, y + reach * dy
        if not bool(w.isfinite().all() and s.isfinite().all()):
            break
    return best[1], best[2], ridge


def _reach(value: Tensor, change: Tensor) -> float:
    """The share of a change, at most 1, that keeps the values positive."""
    return min(1.0, float(torch.where(change < 0, -value / change, torch.inf).amin()))
