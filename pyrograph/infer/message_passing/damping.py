"""Damping that raises itself while an iteration does not settle.

A contraction's residual falls by a steady factor. Where the lowest residual of the last WINDOW
steps is not clearly below that of the window before, more of the old messages is kept; where it
grows, at once. Sweeps that climb a bound, node after node, are left alone as long as their residual
falls at every step, however little: damping makes them slower.
"""

from __future__ import annotations

from itertools import pairwise

WINDOW = 40
#: What the lowest residual of a window must fall below, as a share of the window before.
PROGRESS = 0.7
#: A residual that has grown this many times over its lowest, PATIENCE steps after a change at the
#: earliest, runs away.
GROWTH, PATIENCE = 10.0, 5
LEVELS = (0.0, 0.3, 0.6, 0.8, 0.9)


class AutomaticDamping:
    """The damping in force, and whether all levels have been tried.

    Args:
        climbs: whether sweeps climb a bound.
    """

    def __init__(self, climbs: bool = False) -> None:
        self.climbs = climbs
        self.level = 0
        self.is_exhausted = False
        self._residuals: list[float] = []

    @property
    def value(self) -> float:
        return LEVELS[self.level]

    def observe(self, residual: float) -> bool:
        """Take note of a step's residual; whether damping was raised because it runs away, by more
        than the beliefs' own widths."""
        self._residuals = [*self._residuals, residual]
        grows = residual > GROWTH * min(self._residuals)
        if grows and len(self._residuals) > PATIENCE and self.raise_level():
            return residual > 1
        if len(self._residuals) < 2 * WINDOW:
            return False
        before = min(self._residuals[-2 * WINDOW : -WINDOW])
        last = self._residuals[-WINDOW:]
        if min(last) < PROGRESS * before:
            return False
        if self.climbs and all(b < a for a, b in pairwise(last)):
            return False
        self._residuals = []
        self.is_exhausted = not self.raise_level()
        return False

    def forget(self) -> None:
        """What follows is another iteration: its residuals say nothing of the ones before."""
        self._residuals = []

    def raise_level(self) -> bool:
        """Go to the next level; False if there is none."""
        if self.level + 1 == len(LEVELS):
            return False
        self._residuals = []
        self.level += 1
        return True

    def carried(self) -> dict:
        """For a checkpoint."""
        return {
            "level": self.level,
            "exhausted": self.is_exhausted,
            "residuals": list(self._residuals),
        }

    def restore(self, state: dict) -> None:
        self.level, self.is_exhausted = int(state["level"]), bool(state["exhausted"])
        self._residuals = [float(r) for r in state["residuals"]]
