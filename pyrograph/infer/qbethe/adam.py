"""Adam whose steps shorten along a cosine, and whether its objective has come to rest.

    lr(t) = lr (LAST_STEP + (1 - LAST_STEP) (1 + cos(pi t / T)) / 2)

Potentials that are exponential, of Poisson rates for one, have gradients of any size at a start far
away, whose squares the averages would remember for as long as the run; so gradients are bounded.
The objective swings: where it turns, a step changes little far from any optimum. So what it moved
by is looked at over some steps together.

Source: Kingma & Ba (2015), "Adam"; Loshchilov & Hutter (2017), "SGDR", eq (5), without restarts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

#: The last steps are this share of the first.
LAST_STEP = 0.02
#: Decay of the averages. Gradients have no noise, and those of wide components are larger by
#: orders of magnitude: with 0.999 their squares would hold back the steps of a component that
#: narrows for a thousand steps.
DECAY = (0.9, 0.95)
#: Largest entry of a gradient: where there is a larger one all of the restart are scaled.
LARGEST = 1e3
#: Steps over which the objective is to rest.
WINDOW = 20


class CosineAdam:
    """See the module.

    Args:
        leaves: parameters.
        lr: the first step.

    Attributes:
        recent: objectives of the last steps, by restart.
    """

    def __init__(self, leaves: list[Tensor], lr: float):
        self._rule = torch.optim.Adam(leaves, lr=lr, betas=DECAY, fused=True)
        self.recent: deque[list[float]] = deque(maxlen=WINDOW + 1)

    def moved(
        self,
        closure: Callable[[], Tensor],
        measure: Callable[[], list[float]],
        rests: Callable[[], bool],
        lr: float,
        done: float,
    ) -> float:
        """One step; returns the change that tells whether the objective rests.

        Args:
            measure: objectives of all restarts where ``closure`` was evaluated; rests: whether
                that is an optimum, which steps as long whatever the gradient would leave.
            lr: the first step.
            done: share of all steps.
        """
        share = LAST_STEP + (1 - LAST_STEP) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        for group in self._rule.param_groups:
            group["lr"] = lr * share
        closure()
        if not rests():
            if self.unrest > LARGEST:  # else steps have long brought it down
                self._bound_gradients()
            self._step()
        self.recent.append(measure())
        # short steps change little: all together count for at least one of the first
        return self.unrest / min(1.0, WINDOW * share)

    @torch.no_grad()
    def _step(self) -> None:
        """``self._rule.step()``, without what torch does around it: a tenth of a small graph's
        time."""
        (group,) = self._rule.param_groups
        leaves = [leaf for leaf in group["params"] if leaf.grad is not None]
        states = [self._rule.state[leaf] for leaf in leaves]
        if not all(states):  # which the first step of a leaf makes
            self._rule.step()
            return
        names = ("exp_avg", "exp_avg_sq", "step")
        average, square, steps = ([state[name] for state in states] for name in names)
        adam(
            leaves,
            [leaf.grad for leaf in leaves],
            average,
            square,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    @torch.no_grad()
    def _bound_gradients(self) -> None:
        leaves = self._rule.param_groups[0]["params"]
        gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
        largest = torch.stack([g.flatten(1).abs().amax(1) for g in gradients]).amax(0)  # [B]
        if bool((largest > LARGEST).any()):
            share = LARGEST / largest.clamp_min(LARGEST)
            for gradient in gradients:
                gradient.mul_(share.view(-1, *(1,) * (gradient.dim() - 1)))

    @property
    def unrest(self) -> float:
        """By how much the restart that moves most moved over the last steps."""
        if len(self.recent) <= WINDOW:
            return math.inf
        return max(max(values) - min(values) for values in zip(*self.recent, strict=True))

    def state_dict(self) -> dict[str, Any]:
        recent = torch.tensor([*self.recent], dtype=torch.float64, device="cpu")
        return {**self._rule.state_dict(), "recent": recent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rule.load_state_dict(state)
        recent = state["recent"].tolist() if "recent" in state else []  # older states have none
        self.recent = deque(recent, maxlen=WINDOW + 1)
