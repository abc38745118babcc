"""What helps sweeps to settle that do not by themselves.

Slow sweeps are accelerated (:mod:`.acceleration`, :mod:`.squared_steps`). Where sweeps run away, or
end where there is no density, they start again: Gaussian beliefs once from the mode
(:mod:`.mode_start`), then with more damping (:mod:`.damping`) from the first messages or from the
mode, from where sweeps came nearer to rest: messages that ran away say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pyrograph.graph import FactorGraph
from pyrograph.infer.message_passing.network.messages import Messages
from pyrograph.infer.message_passing.network.network import Network
from pyrograph.infer.message_passing.nodes.families import Continuous
from pyrograph.infer.message_passing.settling import acceleration, squared_steps
from pyrograph.infer.message_passing.settling.acceleration import Acceleration
from pyrograph.infer.message_passing.settling.damping import AutomaticDamping
from pyrograph.infer.message_passing.settling.milder import MilderAlphas
from pyrograph.infer.message_passing.settling.mode_start import messages_at_mode
from pyrograph.infer.message_passing.settling.squared_steps import SquaredSteps
from pyrograph.infer.message_passing.sweeps.sweep import Swept, overflow
from pyrograph.infer.message_passing.sweeps.sweeper import Place

#: In widths of beliefs: sweeps away from an unstable fixed point that go further run away.
FAR = 1e3
#: Standard deviations at which a log f of 1e30, taken for overflown, weighs 1 in an expectation,
#: as 1e30 = exp(11.75^2 / 2): one that is more before may have none.
NEGLIGIBLE = 11.75


def leaps_for(network: Network, tol: float | None) -> Acceleration | None:
    """How sweeps that are to end at a residual are accelerated, if they are."""
    if not tol:
        return None
    if acceleration.applies_to(network):
        return Acceleration(tol)
    return SquaredSteps(tol) if squared_steps.applies_to(network) else None


class Settling:
    """Damping, leaps and new starts of one run.

    Args:
        damping: share of the old message kept; None for automatic damping, which also lowers the
            alphas of factors that have no proper cavity (:mod:`.milder`).
        leaps: how sweeps are accelerated, if they are.
        may_start_again: whether the run began with the first messages, not the user's.
        climbs: whether sweeps climb a bound.
        first: the messages to start again from; default flat ones.
    """

    def __init__(
        self,
        graph: FactorGraph,
        network: Network,
        damping: float | None,
        leaps: Acceleration | None,
        may_start_again: bool,
        climbs: bool,
        first: Callable[[], Messages | None] = lambda: None,
    ):
        self.graph, self.network, self.first = graph, network, first
        self.fixed = damping
        self.climbs, self.leaps = climbs, leaps
        self.automatic = self._damping() if damping is None else None
        self.milder = MilderAlphas(network, is_fixed=damping is not None)
        self.may_start_again = may_start_again and self.automatic is not None
        self._was_at_mode = False
        self._began_with = 0.0  # damping at the last start
        #: Whether that was at the mode, and how little sweeps went from the first messages and
        #: from there.
        self._is_from_mode, self._nearest = False, [math.inf, math.inf]
        #: How far the last sweep went, of a run that leaves an unstable fixed point.
        self._departing: float | None = None

    def _damping(self) -> AutomaticDamping:
        # leaps do more, and messages over states, which oscillate again, have a double loop
        projects = self.network.has_quadrature or self.network.projects
        eases = self.leaps is None and projects
        return AutomaticDamping(self.climbs, eases)

    @property
    def damping(self) -> float:
        """In force."""
        return self.automatic.value if self.automatic else self.fixed

    @property
    def tells_labels(self) -> bool:
        """Whether leaps move continuous nodes alone, and labels hear of them from factors."""
        return isinstance(self.leaps, SquaredSteps)

    @property
    def is_exhausted(self) -> bool:
        """Whether no damping helps."""
        return self.automatic is not None and self.automatic.is_exhausted

    def leap(self, before: Place, after: Place, residual: float) -> Messages | None:
        """Where the last sweeps lead, if they are slow."""
        if self.leaps is None:
            return None
        self.leaps.observe(residual)
        if not self.leaps.is_on:
            return None
        parts = before.messages, after.messages, after.beliefs
        return self.leaps.extrapolated(self.network.blocks, *parts)

    def forget_leaps(self) -> None:
        """What follows is another iteration."""
        if self.leaps:
            self.leaps.forget()

    def goes_on_with(self, network: Network) -> None:
        """Take another network's sweeps for another iteration, not for one that runs away."""
        self.network = network
        self.forget_leaps()
        if self.automatic is not None:
            self.automatic.forget()

    def departs(self) -> None:
        """Sweeps are to leave an unstable fixed point: every one of them goes further than the one
        before, and another start would lead back."""
        self.goes_on_with(self.network)
        self._departing, self.may_start_again = 0.0, False

    def new_start(self, moved: float, rises: Callable[[], bool]) -> Messages | None:
        """Take note of how far a sweep went: messages to start again from if sweeps run away.

        Args:
            rises: whether the bound has risen since it was last looked at.
        """
        if self.automatic is None:
            return None
        if self._departing is not None:
            goes_on = self._departing < moved < FAR
            self._departing = moved if goes_on else None
            if goes_on:
                return None
        self._nearest[self._is_from_mode] = min(moved, self._nearest[self._is_from_mode])
        before = self.automatic.value
        runs_away = self.automatic.observe(moved, rises)
        if self.automatic.value != before:
            self.forget_leaps()
        return self._mode() or self._first() if runs_away and self.may_start_again else None

    def lowers_alphas(self, sweep: Swept) -> bool:
        """Take note of the updates that a sweep passed over: whether another iteration follows."""
        if not self.milder.observe(sweep, 1 - self.damping):
            return False
        self.forget_leaps()
        return True

    def start_after_error(self) -> Messages | None:
        """Messages to start again from where a sweep came upon what is no density."""
        if not self.may_start_again:
            return None
        messages = self._mode()
        if messages is not None:
            return messages
        has_more = self.automatic.value != self._began_with or self.automatic.raise_level()
        return self._first(True) if has_more else None

    @torch.no_grad()
    def _mode(self) -> Messages | None:
        """Messages at the mode, the first time; damping starts afresh."""
        if self._was_at_mode:
            return None
        self._was_at_mode = True
        messages = messages_at_mode(self.graph, self.network)
        if messages is not None:
            self.forget_leaps()
            self.milder.forget()
            self.automatic = self._damping()
            self._began_with, self._is_from_mode = self.automatic.value, True
        return messages

    @torch.no_grad()
    def _first(self, after_error: bool = False) -> Messages | None:
        """The first messages, or again those at the mode. Sweeps that run away without an error do
        so from everywhere, but where factors are projected; errors about states stay ones."""
        continuous = all(isinstance(family, Continuous) for family in self.network.families)
        projects = self.network.has_quadrature or self.network.projects
        if not (projects or (after_error and continuous)):
            return None
        self.forget_leaps()
        self.milder.forget()
        self._began_with = self.automatic.value
        self.network.forget_grids()
        start = self.first() or self.network.start()
        again = self._again_from_mode(start) if self._was_at_mode else None
        self._is_from_mode = again is not None
        return start if again is None else again

    def _again_from_mode(self, start: Messages) -> Messages | None:
        """Messages at the mode, where sweeps from there came nearer to rest than from the first
        ones, or expectations overflow under these: no sweep begins there. If they are finite under
        beliefs about the mode."""
        blocks, beliefs_of = self.network.blocks, self.network.beliefs_of
        if self._nearest[True] >= self._nearest[False] and not overflow(blocks, beliefs_of(start)):
            return None
        messages = messages_at_mode(self.graph, self.network)
        if messages is None or overflow(blocks, beliefs_of(messages), NEGLIGIBLE):
            return None
        return messages

    # ------------------------------------------------------------------ checkpoints
    def carried(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            **(self.automatic.carried() if self.automatic else {}),
            "acceleration": self.leaps.carried() if self.leaps else {},
            "was_at_mode": self._was_at_mode,
            "began_with": self._began_with,
            "is_from_mode": self._is_from_mode,
            "nearest": list(self._nearest),
            "milder": self.milder.carried(),
            "departing": -1.0 if self._departing is None else self._departing,
            "may_start_again": self.may_start_again,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        if self.automatic is not None:
            self.automatic = self._damping()
            if "level" in state:  # not where damping was fixed
                self.automatic.restore(state)
        self.forget_leaps()
        if self.leaps and state.get("acceleration"):
            self.leaps.restore(state["acceleration"], self.graph.constant)
        self.milder.restore(state.get("milder", {}))
        self._was_at_mode = bool(state.get("was_at_mode", False))
        self._began_with = float(state.get("began_with", 0.0))
        self._is_from_mode = bool(state.get("is_from_mode", False))
        self._nearest = [float(moved) for moved in state.get("nearest", (math.inf, math.inf))]
        departing = float(state.get("departing", -1.0))
        self._departing = None if departing < 0 else departing
        self.may_start_again &= bool(state.get("may_start_again", True))
