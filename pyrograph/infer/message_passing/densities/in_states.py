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


def over_states(logs: list[Tensor], states: Tensor, without: int | None = None) -> Tensor:
    """Sum of log values ``[E, c]`` of one slot and more at every assignment, ``[D, E]``.

    Args:
        states: ``[D, number of discrete slots]``; without: a slot that is left out.
    """
    total = logs[0].new_zeros(len(states), len(logs[0]))
    for position, value in enumerate(logs):
        if position != without:
            total = total + value.t()[states[:, position]]
    return total


def expected_by_slot(logs: list[Tensor], value: Tensor, states: Tensor) -> list[Tensor]:
    """Mean-field messages ``[E, c]`` to every slot, of expectations ``[D, E]`` in every assignment
    and log probabilities ``[E, c]`` of the slots' states; the largest is 0."""
    found = []
    for position, state in enumerate(states.unbind(1)):
        others = over_states(logs, states, position).exp()
        which = torch.nn.functional.one_hot(state).to(value)
        message = torch.einsum("de,dc->ec", others * value, which)
        found.append(message - message.amax(1, keepdim=True))
    return found


def by_state(value: Tensor, state: Tensor) -> Tensor:
    """Log sums ``[E, c]`` of values ``[D, E]`` over the assignments with each state of a slot,
    whose state in every assignment is given, ``[D]``."""
    return torch.stack([value[state == s].logsumexp(0) for s in range(int(state.max()) + 1)], 1)
