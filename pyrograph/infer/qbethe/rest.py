"""When a run of QBethe has come to rest, and what to do where it has not.

A change is compared with the tolerance that is

    max(what F moved by over the last steps, gain),   gain = 0 where it is at most a slack,

with the gain that the gradient promises (:mod:`.natural`): F also hardly moves where line searches
get stuck, at kinks, and where Adam's steps became tiny after huge gradients. Only steps that hold
the weights, or only ones that do not, are taken together: F moves again once these are free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pyrograph.infer.qbethe.adam import WINDOW, CosineAdam
from pyrograph.infer.qbethe.search import PROMISED, SETTLING, LineSearch, least_change, unrest

#: Share of the objective, and at least one nat, that a gradient may promise where Adam rests.
MISSED = 0.01


@dataclass(frozen=True)
class Course:
    """What a run has measured.

    Attributes:
        objectives, changes: of its steps.
        held: how many steps hold the weights at first; 0 where there is only one.
        dtype: of the objectives.
    """

    objectives: list[float]
    changes: list[float]
    held: int
    dtype: torch.dtype

    @property
    def last(self) -> float:
        """The last objective, minus infinity before the first."""
        return self.objectives[-1] if self.objectives else -math.inf

    @property
    def least(self) -> float:
        """The change of the objective that counts as none."""
        return least_change(self.last, self.dtype)

    def unrest(self, *now: float) -> float:
        """By how much objectives moved over the last steps, with the weights as free as at the
        last one.

        Args:
            now: the objective of a step that is not among them yet.
        """
        every = [*self.objectives, *now]
        return unrest(every[self.held :] if len(every) > self.held else every, self.least)

    @property
    def is_stuck(self) -> bool:
        """Whether the last change was only promised to L-BFGS."""
        if len(self.objectives) < 2:
            return False
        before, last = self.objectives[-2:]
        return abs(last - before) <= self.least and self.changes[-1] > self.unrest()


def after_search(change: float, gain: float, least: float) -> float:
    """The change of a step of L-BFGS.

    Args:
        change: of the objective; gain: what the gradient promises; least: what counts as none.
    """
    return max(change, gain) if gain > PROMISED * least else change


def after_adam(change: float, gain: float, objective: float, tol: float) -> float:
    """The same of Adam, with far more slack: where it rests its gradients promise much."""
    return max(change, gain) if gain > max(1.0, tol, MISSED * abs(objective)) else change


def remedy_for(rule: CosineAdam | LineSearch, course: Course, tol: float) -> str:
    """What to do where ``tol`` was not met."""
    free = "steps, from when all weights are free: raise num_steps, or lower hold_weights."
    if isinstance(rule, CosineAdam):
        if math.isinf(rule.unrest):
            return f"Adam is to rest for {WINDOW} {free}"
        if rule.unrest <= tol < course.changes[-1]:
            return (
                "The objective rests but its gradient is large: Adam's steps became tiny after "
                'larger ones. Take optimizer="lbfgs", or start nearer: lower init_scale, or scale '
                "the data."
            )
        return "The objective still moves: raise num_steps, or lower lr."
    if course.is_stuck:
        return (
            "The line search finds nothing better where the gradient promises as much, as at "
            'kinks: take optimizer="adam".'
        )
    if not course.changes or math.isinf(course.changes[-1]):
        return f"L-BFGS is to rest for {SETTLING} {free}"
    return "The objective still moves: raise num_steps."
