"""Squared steps of mean field that climbs slowly, with labels among the nodes.

Where clusters overlap, sweeps m -> T(m) of labels and components climb as EM does: by a little, for
hundreds of sweeps. Two sweeps say how the steps change, and a long one goes as they do,

    r = T(m) - m,    v = T(T(m)) - T(m) - r,    a = -|r| / |v|,
    m_next = m - 2 a r + a^2 v

of messages into continuous nodes, in units of the beliefs' widths; a = -1 is T(T(m)). Labels then
get what factors say under the new beliefs: their own logs may be on the way to minus infinity, and
no steps of theirs say where. The bound has to be no lower, or the step is not taken and the next
|a| is at most a quarter of it, or 4. It goes along where steps grow too: out of a plateau as well
as into a maximum.

A sweep lies between a squared step and the next two that are looked at: what it upsets in other
directions dies away.

One length serves one direction: where two components share a cluster, r is of the slowest by far
and v of the next ones, long steps upset these again and again, and are refused. After a step that
is refused come Anderson's (:mod:`.acceleration`), which know of many directions, after every sweep
as long as the bound rises; then squared ones again. A plateau, whose steps grow, they would go
back into.

Source: Varadhan & Roland (2008), "Simple and globally convergent methods for accelerating the
convergence of any EM algorithm", scheme S3, with the limits of their section 6. Henderson &
Varadhan (2019), "Damped Anderson acceleration with restarts and monotonicity control for
accelerating EM and EM-like algorithms", for the steps that have to rise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pyrograph.beliefs import Natural
from pyrograph.infer.message_passing.network.messages import Messages, unflattened
from pyrograph.infer.message_passing.network.network import Block, Network
from pyrograph.infer.message_passing.nodes.families import Continuous
from pyrograph.infer.message_passing.settling.acceleration import AHEAD, LOOK, Acceleration, units

#: Longest |a| to begin with, and by what it changes.
LIMIT, FACTOR = 4.0, 4.0


def applies_to(network: Network) -> bool:
    """Whether sweeps are of mean field, with continuous nodes and others."""
    kinds = {isinstance(family, Continuous) for family in network.families}
    return network.is_mean_field and len(kinds) == 2


class SquaredSteps(Acceleration):
    """The last sweeps of a run, and what follows from them.

    Args:
        tol: residual at which the run ends.
    """

    def __init__(self, tol: float):
        super().__init__(tol)
        self._limit = self._length = LIMIT
        #: Places of the last sweeps, ``[N]`` each.
        self._places: list[Tensor] = []
        #: Whether a squared step was refused, and none of Anderson's since.
        self._mixes = False

    def forget(self) -> None:
        super().forget()
        self._limit = self._length = LIMIT
        self._places, self._mixes = [], False

    def _is_over(self, height: float) -> bool:
        """Never: out of a plateau every sweep goes further than the one before."""
        return False

    def _pays(self) -> bool:
        """Whether at the rate of the last sweeps many are still ahead."""
        first, *rest = self._heights
        if len(rest) < LOOK or not 0 < self.tol < rest[-1] < math.inf or not first > 0:
            return False
        fall = math.log(first / rest[-1]) / LOOK
        return math.log(rest[-1] / self.tol) > AHEAD * fall

    def extrapolated(
        self, blocks: list[Block], before: Messages, after: Messages, beliefs: list
    ) -> Messages | None:
        own = _continuous(after)
        self._keep(_continuous(before), own)
        self._places.append(self._images[-1])
        numbers = None
        if self._mixes and len(self._images) > 1:
            self._places = []
            numbers = self._mixed(units(blocks, after, beliefs))
            self._mixes = numbers is not None
        elif len(self._places) == 3:
            numbers = self._squared(units(blocks, after, beliefs))
            self._places = []
        if numbers is None:
            return None
        new = iter(m for sent in unflattened(numbers, own) for m in sent)
        return [[next(new) if isinstance(m, Natural) else m for m in sent] for sent in after]

    def _squared(self, unit: Tensor) -> Tensor | None:
        """m_next above, ``[N]``; None if it is no longer than a sweep."""
        first, second, third = self._places
        r = second - first
        v = third - second - r
        size = float((v * unit).norm())
        length = float((r * unit).norm()) / size if size > 0 else math.inf
        if not 1 < length < math.inf:
            return None
        self._length = a = min(length, self._limit)  # -a above
        return first + 2 * a * r + a**2 * v

    def took(self, has_risen: bool, is_lost: bool) -> None:
        """Take note of what came of the last step."""
        if self._mixes:
            self._mixes = has_risen
            return
        self._mixes = not has_risen
        if not has_risen:
            self._limit = max(LIMIT, self._length / FACTOR)
        elif self._length == self._limit:
            self._limit *= FACTOR

    # ------------------------------------------------------------------ checkpoints
    def carried(self) -> dict[str, Any]:
        places = [place.clone() for place in self._places]
        return super().carried() | {"limit": self._limit, "mixes": self._mixes, "places": places}

    def restore(self, state: Mapping[str, Any], like: Tensor) -> None:
        super().restore(state, like)
        self._limit, self._mixes = float(state["limit"]), bool(state["mixes"])
        self._places = [place.to(like) for place in state["places"]]


def _continuous(messages: Messages) -> Messages:
    return [[m for m in sent if isinstance(m, Natural)] for sent in messages]
