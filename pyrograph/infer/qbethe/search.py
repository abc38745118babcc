"""L-BFGS for objectives that break down at some trial points, or that have kinks.

A line search extrapolates, to points where scales overflow and densities are NaN. Such a point is a
trial that failed: it counts as worse than where the step began, and the search turns back. Only
where a step begins does the objective have to be a number.

A search that finds nothing better has not found an optimum: at a kink no short step along a
direction may help. What a step against the gradient g promises tells them apart,

    max_s  s |g| - s^2 k / 2,    k the curvature along g,

which is small at an optimum however curved, and |g| times the longest step before a kink.

Source: Nocedal & Wright (2006), sections 3.5 and 7.2, as torch does them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

#: Steps per iteration, and how many of them are remembered.
STEPS, MEMORY = 5, 20
#: A search ends where the loss or all parameters change by less.
LEAST_CHANGE = 1e-9
#: Evaluations allowed to a search that starts anew.
PATIENCE = 30
#: Steps over which the objective is to rest: one that changes little says nothing on a slope along
#: which the search goes on slowly.
SETTLING = 10
#: A search that moves no more is at an optimum if its gradient promises at most so many times the
#: change that counts as none.
PROMISED = 10.0

Evaluate = Callable[[], Tensor]


class LineSearch(torch.optim.LBFGS):
    """L-BFGS that steps back from trial points where the loss cannot be evaluated.

    Args:
        leaves: parameters, ``[B, *shape]`` each. If a step raises, they and the memory are what
            they were.
    """

    def __init__(self, leaves: list[Tensor]):
        super().__init__(
            leaves,
            max_iter=STEPS,
            tolerance_change=LEAST_CHANGE,
            history_size=MEMORY,
            line_search_fn="strong_wolfe",
        )

    def step(self, closure: Evaluate) -> Tensor:
        """One iteration. What ``closure`` raises where it begins is passed on."""
        with self._all_or_nothing():
            return super().step(_forgiving(closure, self._leaves))

    def moved(
        self,
        closure: Evaluate,
        measure: Callable[[], Tensor],
        last: float,
        least: float,
        tries: bool,
    ) -> float:
        """One iteration, and where it is stuck another one along the gradient.

        Args:
            measure: objectives where the parameters are, ``[B]``: the losses' negatives.
            last: the largest one before; least: the change of it that counts as none.
            tries: whether to start again where the search is stuck.

        Returns:
            The change, or the promised one where it cannot move.
        """

        def change() -> float:
            return abs(float(measure().max()) - last)

        def promise() -> float:
            best = int(measure().argmax())
            return float(promised_gain(self._leaves, closure)[best])

        with self._all_or_nothing():
            self.step(closure)
            found = change()
            if found > least:
                return found
            gain = promise()
            if tries and gain > PROMISED * least:
                self.restart(closure)
                gain = promise()
            found = change()
        return gain if found <= least and gain > PROMISED * least else found

    def restart(self, closure: Evaluate) -> Tensor:
        """One iteration that begins along the gradient, with time to find a length."""
        self.state.clear()
        group = self.param_groups[0]
        usual = group["max_eval"]
        group["max_eval"] = PATIENCE
        try:
            return self.step(closure)
        finally:
            group["max_eval"] = usual

    @property
    def _leaves(self) -> list[Tensor]:
        return self.param_groups[0]["params"]

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Parameters and memory are what they were before a block that raises."""
        values = [leaf.detach().clone() for leaf in self._leaves]
        memory = {leaf: _shelved(kept) for leaf, kept in self.state.items()}
        is_done = False
        try:
            yield
            is_done = True
        finally:
            if not is_done:
                _set(self._leaves, values)
                self.state.clear()
                self.state.update(memory)


def least_change(objective: float, dtype: torch.dtype) -> float:
    """The change of an objective that counts as none."""
    rounding = 4 * torch.finfo(dtype).eps * abs(objective)
    return max(rounding if math.isfinite(objective) else 0.0, LEAST_CHANGE)


def unrest(objectives: list[float], least: float) -> float:
    """By how much they moved over the last steps.

    Args:
        least: what counts as none.
    """
    recent = objectives[-SETTLING - 1 :]
    if len(recent) <= SETTLING:
        return math.inf
    moved = max(recent) - min(recent)
    return moved if moved > least else 0.0


def _set(leaves: list[Tensor], values: list[Tensor]) -> None:
    with torch.no_grad():
        for leaf, value in zip(leaves, values, strict=True):
            leaf.copy_(value)


def _forgiving(closure: Evaluate, leaves: list[Tensor]) -> Evaluate:
    """``closure``, but for its first call, with a value above the first one where it fails."""
    start: Tensor | None = None

    def evaluate() -> Tensor:
        nonlocal start
        if start is None:
            start = closure()
            return start
        try:
            return closure()
        except (ValueError, torch.linalg.LinAlgError):  # NonFiniteDensity is of the first
            for leaf in leaves:
                leaf.grad = None
            # level there and little higher: the next trial is at about a third of the way
            return start + 1e-3 * (1 + start.abs())

    return evaluate


def _shelved(kept: dict) -> dict:
    """A memory of torch's that its next step does not change: it overwrites one tensor, the last
    gradient, and appends to lists."""
    shelved = dict(kept)
    for name, value in kept.items():
        if isinstance(value, list):
            shelved[name] = list(value)
        elif isinstance(value, Tensor):
            shelved[name] = value.clone()
    return shelved


def promised_gain(leaves: list[Tensor], closure: Evaluate) -> Tensor:
    """What a step against the gradient promises, ``[B]``, of losses added up over B.

    Args:
        leaves: ``[B, *shape]`` each.
    """
    closure()
    slope = _gradient(leaves)  # [B, n]
    size = slope.norm(dim=1)
    longest = size * (1 / slope.abs().sum(1)).clamp_max(1)  # as long as the first step of a search
    unit = slope / size.clamp_min(torch.finfo(size.dtype).tiny).unsqueeze(1)
    # uphill: a kink that stops a search is on the other side
    probe = torch.finfo(size.dtype).eps ** 0.5
    values = [leaf.detach().clone() for leaf in leaves]
    parts = unit.split([leaf[0].numel() for leaf in leaves], 1)
    try:
        with torch.no_grad():
            for leaf, part in zip(leaves, parts, strict=True):
                leaf.add_(part.view_as(leaf), alpha=probe)
        closure()
        curvature = ((_gradient(leaves) - slope) * unit).sum(1) / probe
    except (ValueError, torch.linalg.LinAlgError):
        curvature = torch.zeros_like(size)
    finally:
        _set(leaves, values)
    length = torch.where(curvature * longest > size, size / curvature, longest)
    return length * (size - 0.5 * length * curvature.clamp_min(0))


def _gradient(leaves: list[Tensor]) -> Tensor:
    """``[B, n]``; 0 of what is held."""
    found = (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves)
    return torch.cat([grad.flatten(1) for grad in found], 1)
