"""Expectations at alpha = 0 in closed form, where log f is a sum of polynomials times exponentials:
of normal densities with latent scales, of Poisson and gamma densities, of log rates.

Points of a quadrature see little of an exponential under a wide belief. With the terms known
(:mod:`~pyrograph.trace.forms.exponentials`) so are their expectations and those of their
derivatives.

Source: :mod:`pyrograph.beliefs.expected_exponentials`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pyrograph.beliefs import Conjugate
from pyrograph.beliefs.expected_exponentials import expected_exponentials, expected_values
from pyrograph.infer.message_passing.continuous.mean_field import Expectations
from pyrograph.infer.message_passing.densities.checked import NOTHING
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.trace.forms.exponential_terms import MAX_TERMS
from pyrograph.trace.forms.exponentials import Exponentials, find_exponentials

#: Squares from here on are read again about where their polynomials are level: an exponential
#: enlarges their rounding, that of a scale far below the data's distance from 0 as much as this.
LARGE = 10.0
#: How often.
STEPS = 3
#: Numbers at once, as a measure of memory: factors that take more are looked at part by part.
CHUNK = 10_000_000


class ExponentialForm:
    """Of a set of like factors.

    Args:
        functions: of the factors in every state of their discrete nodes, ``D E`` of them.
        num_states: D.
    """

    def __init__(self, functions: Exponentials, num_states: int):
        self.functions, self.num_states = functions, num_states

    @staticmethod
    @torch.no_grad()
    def of(local: LocalDensity) -> ExponentialForm | None:
        """None where log f is another function.

        Args:
            local: in effective coordinates, in double precision.
        """
        functions = exponentials_of(local)
        return None if functions is None else ExponentialForm(functions, local.num_states)

    def part(self, which: Tensor) -> ExponentialForm:
        """Some of the factors, ``which [e]``."""
        count = len(self.functions.origin) // self.num_states
        states = torch.arange(self.num_states, device=which.device)
        rows = (states[:, None] * count + which).flatten()
        return ExponentialForm(self.functions.part(rows), self.num_states)

    def __call__(self, moments: tuple[Tensor, Tensor], others: Sequence[Conjugate]) -> Expectations:
        """Of log f and its derivatives.

        Args:
            moments: mean ``[D, E, r]`` and covariance ``[D, E, r, r]`` of u.
            others: none.
        """
        found = expected_exponentials(self.functions, *(x.flatten(0, 1) for x in moments))
        return Expectations(*(x.unflatten(0, (self.num_states, -1)) for x in found), [])

    def average(self, moments: tuple[Tensor, Tensor]) -> Tensor:
        """Of log f alone, ``[D, E]``."""
        found = expected_values(self.functions, *(x.flatten(0, 1) for x in moments))
        return found.unflatten(0, (self.num_states, -1))

    def too_large(self, average: Tensor) -> Tensor:
        """``[E]`` which factors have expectations ``[D, E]`` that are no numbers, or too large."""
        return ~(average.abs() < -NOTHING).all(0)


def exponentials_of(local: LocalDensity) -> Exponentials | None:
    """log f of every factor in every state of its discrete nodes, ``D E`` functions; None where one
    is another function, or of more numbers than a sum has terms."""
    if local.chosen or local.group.is_differentiable or local.dim >= MAX_TERMS:
        return None
    parts: list[list[Exponentials]] = []
    for part in _parts(local):
        found = _in_states(part)
        if found is None:
            return None
        parts.append(found)
    return Exponentials.joined([own for state in zip(*parts, strict=True) for own in state])


def _parts(local: LocalDensity) -> Iterator[LocalDensity]:
    """All factors, those that take much memory in parts. The first is one factor alone: most other
    functions are told by it."""
    count = local.num_factors
    size = local.numbers_at_once / count * MAX_TERMS * max(1 + 2 * local.dim, local.num_states)
    at_once = max(1, int(CHUNK / size))
    if at_once >= count:
        yield local
        return
    every = torch.arange(count, device=local.like.device)
    for which in (every[:1], *every[1:].split(at_once)):
        yield local.part(which)


def _in_states(local: LocalDensity) -> list[Exponentials] | None:
    """log f in every state of the discrete nodes."""
    found = []
    for state in range(local.num_states):
        own = _in_state(local, state)
        if own is None:  # there may be thousands of states
            return None
        found.append(own)

    def values(u: Tensor) -> Tensor:
        return local(u.unflatten(1, (local.num_states, -1))).flatten(1)

    return found if Exponentials.joined(found).agree_with(values) else None


def _in_state(local: LocalDensity, state: int) -> Exponentials | None:
    """log f in a state of the discrete nodes, about where its polynomials are level."""
    origin = local.like.new_zeros(local.num_factors, local.dim)
    units = torch.eye(local.dim, dtype=origin.dtype, device=origin.device)
    nothing = local.leaves_at(origin[None], state)
    along = local.leaves_at(units[:, None].expand(-1, *origin.shape), state)
    slopes = [own - zero for own, zero in zip(along, nothing, strict=True)]
    found = None
    for _ in range(STEPS):
        values = [own[:, 0] for own in local.leaves_at(origin[None], state)]
        leaves = list(zip(values, slopes, strict=True))
        found = find_exponentials(local.program, leaves, origin)
        if found is None or not _is_large(found):
            break
        origin = origin + _level(found)
    return found


def _is_large(functions: Exponentials) -> bool:
    """Whether a polynomial with squares is large at the origin."""
    bends = functions.square.flatten(2).any(-1)
    return bool((bends & (functions.constant.abs() > LARGE)).any())


def _level(functions: Exponentials) -> Tensor:
    """t ``[E, D]`` where the polynomials have the least slopes, in units of how they bend."""
    size = functions.square.abs().amax((-1, -2), keepdim=True)
    unit = torch.where(size > 0, size, 1.0)
    q, b = functions.square / unit, functions.linear.unsqueeze(-1) / unit
    both = (q @ q).sum(0)
    eye = torch.eye(both.shape[-1], dtype=both.dtype, device=both.device)
    least = torch.finfo(both.dtype).eps ** 0.5
    return -0.5 * torch.linalg.solve(both + least * eye, (q @ b).sum(0)).squeeze(-1)
