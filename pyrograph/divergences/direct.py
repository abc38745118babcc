"""Direct minimisation of the alpha-divergence over a family: the oracle of the fixed points.

L-BFGS from several starts in unconstrained coordinates (mean and log width, or logits), on the
divergence at the best scale in its logarithmic form. Starts whose support is smaller than that
of the family keep it; where alpha > 0 such a point counts as a minimum only if it is one in the
whole family.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrograph.divergences.alpha import normalised_divergence
from pyrograph.divergences.families import Family, Member
from pyrograph.divergences.measures import Atomic
from pyrograph.divergences.starts import starting_points

#: Spread of the random starts.
SPREAD = 1.0
#: How far inside its boundary a minimum is tried, as a probability.
INSIDE = 1e-2
#: L-BFGS is started anew from the best point this often: its line search can end on an infinity.
RUNS = 4
#: What counts as progress.
ROUNDING = 1e-12


@torch.inference_mode(False)
def minima_from(
    p: Atomic, family: Family, alpha: float, init: Member | None, restarts: int
) -> list[tuple[Member, float]]:
    """Where L-BFGS ends from each start, best first; ``p`` is a batch of one."""
    p = p.copied()
    natural, value = starting_points(p, family, alpha, init)
    natural = natural.detach()
    members = [family.from_natural(n, p)[0] for n, v in zip(natural, value) if v.isfinite()]
    generator = torch.Generator().manual_seed(0)
    free = [family.free(member) for member in members]
    if init is None:
        for k in range(restarts):
            noise = torch.randn(
                free[0].shape, generator=generator, dtype=torch.float64, device="cpu"
            )
            free.append(free[k % len(members)] + SPREAD * noise.to(free[0]))
    ends = []
    for start in free:
        x, value = descend(p, family, alpha, start)
        if alpha > 0 and bool(x.isinf().any()):
            # a boundary point is a minimum only if the way inside leads up
            inside, lower = descend(p, family, alpha, x.clamp(min=math.log(INSIDE)))
            if lower < value - ROUNDING:
                x, value = inside, lower
        if value < math.inf:
            ends.append((family.from_free(x, p), value))
    return sorted(ends, key=lambda pair: pair[1])


def descend(p: Atomic, family: Family, alpha: float, start: Tensor) -> tuple[Tensor, float]:
    """Best point met by L-BFGS on the scale-free divergence, in unconstrained coordinates.

    Infinite coordinates stay where they are.
    """
    moving = start.isfinite()
    best, best_value = start, math.inf
    for _ in range(RUNS):
        x = torch.where(moving, best, 0).detach().double().requires_grad_()
        before = best_value
        optimizer = torch.optim.LBFGS(
            [x],
            max_iter=300,
            tolerance_grad=1e-10,
            tolerance_change=1e-14,
            line_search_fn="strong_wolfe",
        )

        def closure(x: Tensor = x, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            nonlocal best, best_value
            optimizer.zero_grad()
            point = torch.where(moving, x, start)
            member = family.from_free(point, p)
            q = family.place(member, p)
            value = normalised_divergence(p.log_atoms, q.log_atoms, alpha).sum()
            if value.isfinite() and value.detach() < best_value:
                best, best_value = point.detach().clone(), value.item()
            value.backward()
            return value

        optimizer.step(closure)
        if not best_value < before - ROUNDING:
            break
    return best, best_value
