"""The sweeps of a run: by its schedule, damped as it says, in plain numbers where these fit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from torch import Tensor

from pyrograph.graph import FactorGraph
from pyrograph.infer.message_passing.network.network import Network
from pyrograph.infer.message_passing.sweeps.plain import PlainSweep, PlainSwept
from pyrograph.infer.message_passing.sweeps.plain_odds import PlainOdds
from pyrograph.infer.message_passing.sweeps.plain_states import PlainStates
from pyrograph.infer.message_passing.sweeps.sweep import Held, Sweep, Swept
from pyrograph.infer.message_passing.sweeps.turns import Turns, colour_of_nodes

#: Where a run stands: messages, and beliefs under them.
Place = Held | Swept | PlainSwept


class Sweeper:
    """From one place of a run to the next.

    Args:
        schedule: see :class:`.engine.MessagePassing`.
    """

    def __init__(self, graph: FactorGraph, network: Network, schedule: str):
        self.graph, self.network, self.schedule = graph, network, schedule
        self._turns: Turns | None = None
        if schedule == "sequential":
            colours = colour_of_nodes(graph, network)
            self._turns = Turns(colours, network.families, network.blocks)

    def damped(self, damping: float) -> Sweep:
        """A sweep over log values that keeps this share of the old messages."""
        is_residual = self.schedule == "residual"
        return Sweep(self.graph, self.network, 1 - damping, self._turns, is_residual)

    def __call__(self, at: Place, damping: float) -> Swept | PlainSwept:
        """Where one sweep leads.

        Raises:
            InferenceError: no step keeps all beliefs proper.
            ZeroMass: messages leave a node no state.
        """
        plain = self._in_plain_numbers(at) if damping == 0 else None
        if plain is not None:
            return plain.sweep(plain)
        return self.damped(damping)(at.messages, at.beliefs)

    def resumed(self, saved: Mapping[str, Tensor], at: Held) -> Held | PlainSwept:
        """Where a saved run stood: at the plain numbers of :meth:`.PlainSwept.carried`, or if they
        are not those of the messages, there."""
        if not saved or self._plain is None:
            return at
        return self._plain.resumed(saved, at.messages) or at

    @cached_property
    def _plain(self) -> PlainSweep | None:
        if self.schedule != "parallel":
            return None
        return PlainOdds.of(self.network) or PlainStates.of(self.network)

    def _in_plain_numbers(self, at: Place) -> PlainSwept | None:
        """The same messages; None where they do not fit."""
        if self._plain is None:
            return None
        if isinstance(at, PlainSwept) and at.sweep is self._plain:
            return at
        return self._plain.start(at.messages)
