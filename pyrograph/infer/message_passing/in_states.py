"""Log values of factors of continuous and discrete nodes, in all states s of the discrete ones.

    log f_e(x, s),      x  [N, D, E, m]  of every continuous slot

at N points of each state: m numbers that a factor reads there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from pyrograph.trace.localize import LocalProgram
from pyrograph.trace.sites import Site


def states_of(slots: Sequence[Site], device: torch.device) -> Tensor:
    """All assignments of discrete slots, ``[D, number of discrete slots]``, the last fastest."""
    cards = [site.cardinality for site in slots if site.is_discrete]
    states = list(itertools.product(*(range(c) for c in cards)))
    return torch.tensor(states, device=device).reshape(len(states), len(cards))


def leaves_in_states(
    slots: Sequence[Site], states: Tensor, num_factors: int, times: int = 1
) -> list[Tensor | None]:
    """Leaf buffers of the slots: ``[E m_k, N D]`` of discrete ones, None of continuous ones.

    Args:
        times: N, how often to go through the states.
    """
    columns = iter(states.unbind(1))
    leaves: list[Tensor | None] = []
    for site in slots:
        if not site.is_discrete:
            leaves.append(None)
            continue
        values = site.enumeration.to(states.device)[next(columns)]  # [D, m_k]
        values = values.expand(times, *values.shape).reshape(times * len(states), 1, -1)
        leaves.append(values.expand(-1, num_factors, -1).flatten(1).t())
    return leaves


def values_in_states(
    program: LocalProgram, slots: Sequence[Site], states: Tensor, x: Sequence[Tensor]
) -> Tensor:
    """log f ``[N, D, E]`` at the numbers read, ``[N, D, E, m]`` of every continuous slot."""
    n, num_states, count = x[0].shape[:3]
    numbers = iter(x)
    leaves = [
        next(numbers).reshape(n * num_states, -1).t() if leaf is None else leaf
        for leaf in leaves_in_states(slots, states, count, n)
    ]
    return program(leaves).t().reshape(n, num_states, count)
