"""Whether a circuit is positive everywhere.

The children of a deterministic sum are never positive together, so the number of possible states is
counted exactly along the circuit: an input has its own, products multiply, sums add. Whole numbers
of any size; O(number of edges). Of other circuits, and where variables are summed out, zeros are
looked for beside samples: there a score would be p(next x) / p(x) = 0.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.structure.leaves import MISSING
from pyrograph.circuits.structure.units import PRODUCT
from pyrograph.errors import InvalidCircuit


def refuse_zeros(p: Circuit) -> None:
    """Raise unless every state of a deterministic circuit is possible, and none only since torch's
    distributions clamp probabilities.

    Raises:
        InvalidCircuit: naming a state that is not.
    """
    possible = _possible(p)
    total = math.prod(p.cards)
    if _count(p, possible) == total:
        if p.clamped_state is not None:
            raise _zero_at(list(p.clamped_state), ", but for the eps that torch clamps it to")
        return
    state = []
    for v, card in enumerate(p.cards):
        total //= card
        for value in range(card):
            given = possible.copy()
            given[p.domain.var == v] &= np.arange(possible.shape[1]) == value
            if _count(p, given) < total:
                possible = given
                state.append(value)
                break
    raise _zero_at(state)


@torch.no_grad()
def refuse_zeros_beside(p: Circuit, points: Tensor) -> None:
    """Raise where Stein kernels of samples would meet a zero of the target.

    Exact for samples of a deterministic circuit that hold all variables. Else a zero is seen if it
    is next to a sample, given what that holds, one variable moved to its next state.

    Args:
        p: smooth, decomposable, discrete.
        points: ``[N, D]``, possible, NaN where summed out.

    Raises:
        InvalidCircuit: naming a state, or sample and variable.
    """
    some_hold_all = not bool(points.isnan().any(1).all())
    if p.properties()["deterministic"]:
        if some_hold_all:
            refuse_zeros(p)
        if some_hold_all or _count(p, _possible(p)) == math.prod(p.cards):
            return
    for v, card in enumerate(p.cards):
        held = (~points[:, v].isnan()).nonzero().squeeze(1)
        moved = points[held]
        moved[:, v] = (moved[:, v] + 1) % card
        impossible = p.log_prob(moved) == -torch.inf
        if bool(impossible.any()):
            k = int(impossible.nonzero()[0])
            state = moved[k].nan_to_num(MISSING).int().tolist()
            raise _zero_at(state, f", which is sample {int(held[k])} with variable {v} moved on")


def _possible(p: Circuit) -> np.ndarray:
    """``[inputs, c]``, which states of inputs are possible."""
    return (p.log_table.detach() > -np.inf).cpu().numpy()


def _zero_at(state: list[int], how: str = "") -> InvalidCircuit:
    return InvalidCircuit(
        f"the target is zero at the state {state}{how}: its score p(next x) / p(x) does not exist "
        "there, and a Stein discrepancy would call other distributions equal to it. Soften the "
        "zeros (mix their factor with a small constant), or sum out the variable that is a "
        "function of others"
    )


def _count(p: Circuit, possible: np.ndarray) -> int:
    units = p.units
    weighted = np.ones(units.num_edges, bool)
    weighted[units.edge_is_sum] = (p.log_weights.detach() > -np.inf).cpu().numpy()
    counts: list[int] = []
    children, start = units.child.tolist(), units.start.tolist()
    of_inputs = iter(possible.sum(1).tolist())
    for n, kind in enumerate(units.kind.tolist()):
        edges = range(start[n], start[n + 1])
        if not edges:
            counts.append(next(of_inputs))
        elif kind == PRODUCT:
            counts.append(math.prod(counts[children[e]] for e in edges))
        else:
            counts.append(sum(counts[children[e]] for e in edges if weighted[e]))
    return counts[-1]
