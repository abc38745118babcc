"""Damping that raises itself while an iteration does not settle.

A contraction's residual falls by a steady factor. Where the lowest residual of the last WINDOW
steps is not clearly below that of the window before, more of the old messages is kept; where it
grows, at once. Sweeps that climb a bound, node after node, are left alone as long as their residual
falls at every step, however little, or the bound has risen: damping makes them slower.

Under a damping d residuals fall by d + (1 - d) r a step, where they would by r without. Where they
fall steadily, by an r between 0 and :data:`QUICK`, it is damping that holds steps up, and less of
it is tried, once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

#: Steps over which lowest residuals are compared.
WINDOW = 40
#: What the lowest residual of a window must fall below, as a share of the window before.
PROGRESS = 0.7
#: A residual that has grown this many times over its lowest, PATIENCE steps after a change at the
#: earliest, runs away.
GROWTH, PATIENCE = 10.0, 5
#: Damping, from one level to the next where it has to be more.
LEVELS = (0.0, 0.3, 0.6, 0.8, 0.9)
#: Steps of a steady fall before less damping is tried, and at most what they would fall by without.
STEADY, QUICK = 12, 0.5


class AutomaticDamping:
    """The damping in force, and whether all levels have been tried.

    Args:
        climbs: whether sweeps climb a bound.
        eases: whether less damping is tried again.
    """

    def __init__(self, climbs: bool = False, eases: bool = False) -> None:
        self.climbs, self.eases = climbs, eases
        self.level = 0
        self.is_exhausted = False
        self._highest = 0  # level so far
        self._least = 0  # no lower level than this is tried again
        self._residuals: list[float] = []

    @property
    def value(self) -> float:
        return LEVELS[self.level]

    def observe(self, residual: float, rises: Callable[[], bool] = bool) -> bool:
        """Take note of a step's residual; whether damping was raised because it runs away, by more
        than the beliefs' own widths.

        Args:
            rises: whether the bound, if there is one, has risen since it was last looked at;
                default: it has not.
        """
        self._residuals = [*self._residuals, residual]
        grows = residual > GROWTH * min(self._residuals)
        if grows and len(self._residuals) > PATIENCE:
            if self.climbs and rises():
                self._residuals = [residual]
                return False
            was_eased = self.level < self._highest
            if self.raise_level():
                return residual > 1 and not was_eased
        if self._is_held_up():
            self.level, self._residuals = self.level - 1, []
            return False
        if len(self._residuals) < 2 * WINDOW:
            return False
        before = min(self._residuals[-2 * WINDOW : -WINDOW])
        last = self._residuals[-WINDOW:]
        if min(last) < PROGRESS * before:
            return False
        if self.climbs and (all(b < a for a, b in pairwise(last)) or rises()):
            return False
        self._residuals = []
        self.is_exhausted = not self.raise_level()
        return False

    def _is_held_up(self) -> bool:
        """Whether damping is what makes the last steps short, and less was not tried."""
        last = self._residuals[-STEADY:]
        if not self.eases or self.level <= self._least or len(last) < STEADY:
            return False
        if not all(b < a for a, b in pairwise(last)):
            return False
        rate = (last[-1] / last[0]) ** (1 / (STEADY - 1))
        return 0 <= (rate - self.value) / (1 - self.value) <= QUICK

    def forget(self) -> None:
        """What follows is another iteration: its residuals say nothing of the ones before."""
        self._residuals = []

    def raise_level(self) -> bool:
        """Go to the next level; False if there is none."""
        if self.level + 1 == len(LEVELS):
            return False
        self._residuals = []
        self.level += 1
        if self.level <= self._highest:
            self._least = self.level
        self._highest = max(self._highest, self.level)
        return True

    def carried(self) -> dict:
        """For a checkpoint."""
        return {
            "level": self.level,
            "highest": self._highest,
            "least": self._least,
            "exhausted": self.is_exhausted,
            "residuals": list(self._residuals),
        }

    def restore(self, state: dict) -> None:
        self.level, self.is_exhausted = int(state["level"]), bool(state["exhausted"])
        self._highest = int(state.get("highest", self.level))
        self._least = int(state.get("least", 0))
        self._residuals = [float(r) for r in state["residuals"]]
