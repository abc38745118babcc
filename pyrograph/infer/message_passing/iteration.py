"""Where a run stands, and how it goes on from there.

A step is the exact messages of a tree (:mod:`.tree`), or a sweep (:mod:`.sweep`) and what helps it
to settle (:mod:`.settling`), or where no damping does, a step of the double loop
(:mod:`.double_loop`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from pyrograph.errors import InferenceError, PyrographError
from pyrograph.graph import FactorGraph
from pyrograph.infer.message_passing.advice import NO_COVARIANCE
from pyrograph.infer.message_passing.checkpoint import loaded_messages, saved_messages
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.densities.checked import ReachesZeros, TooWide
from pyrograph.infer.message_passing.network.evidence import log_evidence
from pyrograph.infer.message_passing.network.messages import Messages, with_discrete_of
from pyrograph.infer.message_passing.network.network import Network
from pyrograph.infer.message_passing.nodes.families import Continuous
from pyrograph.infer.message_passing.settling.double_loop import DoubleLoop, is_discrete
from pyrograph.infer.message_passing.settling.left_alike import alternatives, told_apart
from pyrograph.infer.message_passing.settling.left_empty import (
    DAMPED,
    HELD,
    filled,
    left_empty,
)
from pyrograph.infer.message_passing.settling.settling import Settling
from pyrograph.infer.message_passing.sweeps.contradictions import refuse_contradictions
from pyrograph.infer.message_passing.sweeps.plain import PlainSwept
from pyrograph.infer.message_passing.sweeps.sweep import Held, Sweep, gap, is_lost
from pyrograph.infer.message_passing.sweeps.sweeper import Place, Sweeper
from pyrograph.infer.message_passing.sweeps.tree import exact_messages

Found = TypeVar("Found")
#: By how much a bound that has errors has to rise to count, as a share of it.
RISE = 1e-9
#: Of a bound, in units of the dtype's precision.
ROUNDING = 4.0


class Iteration:
    """One run over a network.

    Args:
        schedule: see :class:`.engine.MessagePassing`.
        is_tree: whether the first step sends the exact messages.
        seed: of trials that tell components of a mixture apart.

    Attributes:
        at: messages, and beliefs under them, as they stand.
        measured: the log evidence of the latest place at which it was evaluated.
        double_loop: the convergent iteration, where the run went over to it.
    """

    def __init__(
        self,
        graph: FactorGraph,
        network: Network,
        schedule: str,
        settling: Settling,
        messages: Messages,
        is_tree: bool,
        seed: int,
    ):
        self.graph, self.network, self.seed = graph, network, seed
        self.schedule, self.settling, self.is_tree = schedule, settling, is_tree
        self._sweeper = Sweeper(graph, network, schedule)
        self.at: Place
        self.stand_at(messages)
        self.measured: Tensor | None = None
        #: Where the run came to rest and its evidence was evaluated.
        self._measured_at: Place | None = None
        self.double_loop: DoubleLoop | None = None

    @property
    def parts(self) -> list[object]:
        """All that a step changes."""
        settling = self.settling
        parts = [self, settling, settling.automatic, settling.milder, settling.leaps]
        parts.append(self.double_loop)
        for block in self.network.blocks:
            if isinstance(block, QuadratureFactors):
                parts += [block, block.tilted]
        return [part for part in parts if part is not None]

    @torch.no_grad()
    def stand_at(self, messages: Messages) -> None:
        """Go on from messages as they are given."""
        self.at = Held(messages, self.network.beliefs_of(messages))

    def leave_for(self, messages: Messages) -> None:
        """Go on from elsewhere than the fixed point that was met: what was seen on the way to it
        says nothing of the way from it."""
        self.measured = self._measured_at = None
        self.settling.departs()
        self.settle(messages)

    def told_apart(self) -> Messages | None:
        """Messages of a higher bound, where mean field has left alternatives alike or one without
        data and trials find some: :mod:`.left_alike`, :mod:`.left_empty`."""
        alike, start = alternatives(self.network, self.at.beliefs), None
        if alike is not None:
            start = told_apart(self.network, alike, self.at, self._swept, self.seed)
        return self._filled(self.at) if start is None else start

    def _filled(self, at: Place) -> Messages | None:
        """The same, of alternatives without data."""
        empty = left_empty(self.network, at.beliefs)
        if empty is None:
            return None
        own = self.settling.damping
        for damping in (own, DAMPED) if own < DAMPED else (own,):
            sweep, num_held = partial(self._sweeper, damping=damping), round(HELD / (1 - damping))
            start = filled(self.network, empty, at, sweep, num_held, self.seed)
            if start is not None:
                return start
        return None

    def _swept(self, at: Place) -> Place:
        return self._sweeper(at, self.settling.damping)

    def goes_on_with(self, network: Network) -> None:
        """Over another network, or over the same one with other data: what was measured says
        nothing of it."""
        self.measured = self._measured_at = None
        if network is not self.network:
            self.network = network
            self._sweeper = Sweeper(self.graph, network, self.schedule)
        self.settling.goes_on_with(network)

    # ------------------------------------------------------------------ a step
    def with_new_starts(self, step: Callable[[], Found], is_under_way: bool) -> Found:
        """What a step finds; a run that is under way, or whose beliefs are too wide or reach zeros
        to begin with, starts again where it meets no density.

        Raises:
            InferenceError: no step keeps all beliefs proper, from no start.
            ZeroMass: messages leave a node no state.
        """
        while True:
            try:
                return step()
            except (InferenceError, torch.linalg.LinAlgError) as error:
                again = is_under_way or isinstance(error, TooWide | ReachesZeros)
                start = self.settling.start_after_error() if again else None
                if start is not None:
                    self.settle(start)
                elif isinstance(error, torch.linalg.LinAlgError):
                    raise InferenceError(NO_COVARIANCE) from error
                else:
                    raise

    def step(self, is_first: bool, tol: float) -> tuple[Tensor, Tensor]:
        """One step; how far it went, and how many updates it passed over.

        Args:
            is_first: whether the run stands at the first messages.
            tol: to which the double loop solves its inner problems.
        """
        if self._must_fall_back():
            self.fall_back()
        if self.double_loop is not None:
            self.settle(self.double_loop.step(tol))
        elif self.is_tree and is_first:
            self._send_exact()
        else:
            if is_first and self.network.is_mean_field:
                self._stand_at_better_start()
            return self._sweep()
        residual = gap(self.network, self.at.messages, self.at.beliefs)
        return residual, torch.zeros_like(residual)

    def _send_exact(self) -> None:
        messages = exact_messages(self.network)
        beliefs = self.network.beliefs_of(messages)
        # once more by the plain rule: of states that other factors exclude it says more
        pairs = zip(self.network.blocks, messages, strict=True)
        self.settle([block.update(sent, beliefs)[0] for block, sent in pairs])

    def _stand_at_better_start(self) -> None:
        """Where a first sweep of mean field climbs higher: at the first messages, or at others."""
        highest = None
        for start in self._other_starts():
            if highest is None:
                highest = self._bound_after_sweep(self.at)
            bound = self._bound_after_sweep(start)
            if bound > highest > -math.inf:  # first messages that meet no density tell of it
                self.at, highest = start, bound

    def _bound_after_sweep(self, at: Place) -> float:
        """Minus infinity where a sweep meets no density."""
        try:
            found = self._swept(at)
            return float(log_evidence(self.network, found.messages, found.beliefs))
        except (PyrographError, torch.linalg.LinAlgError):
            return -math.inf

    def _other_starts(self) -> Iterator[Place]:
        """About 0, where the first messages are about places that priors say, which data may
        contradict. And messages that tell discrete nodes of the priors of continuous ones, all that
        may set labels apart (an annotator is more often right than wrong); a sweep that begins with
        the continuous nodes overlooks it."""
        messages, beliefs = self.at.messages, self.at.beliefs
        about_0 = self.network.start_about_0()
        if about_0 is not None:
            yield Held(about_0, self.network.beliefs_of(about_0))
        if len({isinstance(family, Continuous) for family in self.network.families}) == 2:
            pairs = zip(self.network.blocks, messages, strict=True)
            try:
                sent = [block.update(old, beliefs)[0] for block, old in pairs]
                told = with_discrete_of(sent, messages)
                other = Held(told, self.network.beliefs_of(told))
            except (PyrographError, torch.linalg.LinAlgError):  # the first messages tell of it
                return
            yield other

    def _sweep(self) -> tuple[Tensor, Tensor]:
        before, found = self.at, self._swept(self.at)
        self.at, residual = found, found.residual
        if not self.settling.lowers_alphas(found):
            self._help(before, found, residual)
        return residual, found.num_skipped

    def _must_fall_back(self) -> bool:
        """Whether no damping settles the plain iteration, and the convergent one applies."""
        falls = self.settling.is_exhausted and self.double_loop is None
        return falls and is_discrete(self.network)

    def fall_back(self) -> None:
        """Go over to the double loop."""
        self.double_loop = DoubleLoop(self.graph, self.network)
        self.double_loop.start_from(self.at.messages, self.at.beliefs)

    def _help(self, before: Place, found: Place, residual: Tensor) -> None:
        """Go on from elsewhere, where the last sweep was slow or ran away: by what moved, since
        cavities may be improper for a while as others come to rest."""
        if self.settling.automatic is None and self.settling.leaps is None:
            return
        leap = self.settling.leap(before, found, float(residual))
        if leap is not None:
            self._leap(leap, found)
        start = self.settling.new_start(float(found.moved), self._rises)
        if start is not None:
            # a component without data, at a vague prior, moves without bound
            self.settle(self._filled(before) or start)

    def _leap(self, messages: Messages, found: Place) -> None:
        """Stand where the last sweeps lead, if there is a density and mean field's bound is no
        lower; labels get what factors say there."""
        try:
            beliefs = self.network.beliefs_of(messages)
            is_lost_there = is_lost(self.network, found.beliefs, beliefs)
            if not is_lost_there and self.settling.tells_labels:
                pairs = zip(self.network.blocks, messages, strict=True)
                told = [
                    block.update(sent, beliefs)[0]
                    if any(isinstance(message, Tensor) for message in sent)
                    else sent
                    for block, sent in pairs
                ]
                messages = with_discrete_of(told, messages)
                beliefs = self.network.beliefs_of(messages)
            rises = not is_lost_there and not self._falls(messages, beliefs)
        except (PyrographError, torch.linalg.LinAlgError):  # no place to go on from
            is_lost_there, rises = True, False
        self.settling.leaps.took(rises, is_lost_there)
        if rises:
            self.settle(messages, beliefs)

    def _falls(self, messages: Messages, beliefs: list) -> bool:
        """Whether the bound that sweeps of mean field climb would fall, by more than rounding."""
        if not self.network.is_mean_field:
            return False
        before = self.evidence()
        value = log_evidence(self.network, messages, beliefs)
        return not bool(value >= before - _rounding(before))

    def _rises(self) -> bool:
        """Whether the bound has risen since it was last evaluated, by more than errors of the
        quadrature; without any, whether it is no lower."""
        before = self.measured
        self.measure(False)
        if before is None or not bool(before.isfinite()):
            return False
        if not self.network.has_quadrature_errors:
            return bool(self.measured >= before - _rounding(before))
        return bool(self.measured - before > RISE * before.abs().clamp_min(1))

    def settle(self, messages: Messages, beliefs: list | None = None) -> None:
        """Stand at these messages.

        Raises:
            ZeroMass: they leave a node no state.
        """
        beliefs = self.network.beliefs_of(messages) if beliefs is None else beliefs
        if self.network.has_zeros:
            refuse_contradictions(self.graph, self.network, messages, beliefs)
        self.at = Held(messages, beliefs)

    @property
    def next_sweep(self) -> Sweep:
        """Over log values, damped as it stands."""
        return self._sweeper.damped(self.settling.damping)

    # ------------------------------------------------------------------ evidence
    def measure(self, is_at_rest: bool) -> None:
        """Evaluate the evidence; other places than those of rest are on their way out."""
        self.measured = self.evidence()
        self._measured_at = self.at if is_at_rest else None

    def evidence(self) -> Tensor:
        """Eq (66) at the messages as they stand, ``[]``."""
        if self._measured_at is self.at and not self.network.is_differentiable:
            return self.measured
        attached = torch.is_grad_enabled() and self.network.is_differentiable
        if isinstance(self.at, PlainSwept) and not attached:
            return self.at.sweep.log_evidence(self.at)
        return log_evidence(self.network, self.at.messages, self.at.beliefs)

    # ------------------------------------------------------------------ checkpoints
    def carried(self) -> dict[str, Any]:
        """For a checkpoint."""
        unknown = self.graph.constant.detach().new_full((), torch.nan)
        return {
            "messages": saved_messages(self.network, self.at.messages),
            "automatic": self.settling.carried(),
            "plain": self.at.carried() if isinstance(self.at, PlainSwept) else {},
            "double_loop": {} if self.double_loop is None else self.double_loop.carried(),
            "evidence": unknown if self.measured is None else self.measured.clone(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        messages = loaded_messages(self.network, self.at.messages, state["messages"])
        self.settling.restore(state["automatic"])
        evidence = state["evidence"].to(self.graph.constant)
        self.measured = None if bool(evidence.isnan()) else evidence
        self.double_loop = None
        if state["double_loop"]:
            self.double_loop = DoubleLoop(self.graph, self.network)
            self.double_loop.restore(state["double_loop"])
        with torch.no_grad():
            held = Held(messages, self.network.beliefs_of(messages))
            self.at = self._sweeper.resumed(state["plain"], held)


def _rounding(bound: Tensor) -> Tensor:
    return ROUNDING * torch.finfo(bound.dtype).eps * bound.abs()
