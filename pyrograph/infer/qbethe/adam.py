"""Adam whose steps shorten along a cosine, and whether its objective has come to rest.

    lr(t) = lr (LAST_STEP + (1 - LAST_STEP) (1 + cos(pi t / T)) / 2)

Potentials that are exponential, of Poisson rates for one, have gradients of any size at a start far
away, whose squares the averages would remember for as long as the run; so gradients are bounded.
Means move by shares of what the program's draws are apart. A component that starts about a narrow
mode, and then widens, would creep: where it is wider than at its start its mean's steps are so many
times as long. Where it is narrower than the last steps these end at its width.
The objective swings: where it turns, a step changes little far from any optimum. So what it moved
by is looked at over some steps together.

The steps are torch's function's, which is the same as its class's: to make one of these loads
torch's compiler, in seconds.

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
#: What is added to the root of an average square; torch's own.
EPS = 1e-8
#: Numbers of a parameter that are kept: averages of its gradient and the square, steps it had one.
KEPT = ("exp_avg", "exp_avg_sq", "step")
#: Largest entry of a gradient: where there is a larger one all of the restart are scaled.
LARGEST = 1e3
#: Steps over which the objective is to rest.
WINDOW = 20


class CosineAdam:
    """See the module.

    Args:
        leaves: parameters.
        scales: of means, by number, which leaf has the logarithms of their scales.
        start: the logarithm of the scale that they start with.

    Attributes:
        recent: objectives of the last steps, by restart.
    """

    def __init__(self, leaves: list[Tensor], scales: Mapping[int, int], start: float):
        self._leaves, self._scales, self._start = leaves, dict(scales), start
        #: :data:`KEPT` of the leaves that had gradients, by number.
        self._kept: dict[int, dict[str, Tensor]] = {}
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
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        share = LAST_STEP + (1 - LAST_STEP) * cosine
        closure()
        if not rests():
            if self.unrest > LARGEST:  # else steps have long brought it down
                self._bound_gradients()
            self._step(lr, share, cosine)
        self.recent.append(measure())
        # short steps change little: all together count for at least one of the first
        return self.unrest / min(1.0, WINDOW * share)

    @torch.no_grad()
    def _step(self, lr: float, share: float, cosine: float) -> None:
        moving = {n: leaf for n, leaf in enumerate(self._leaves) if leaf.grad is not None}
        for n, leaf in moving.items():
            if n not in self._kept:
                count = torch.zeros((), dtype=torch.float32, device=leaf.device)
                averages = torch.zeros_like(leaf), torch.zeros_like(leaf)
                self._kept[n] = dict(zip(KEPT, (*averages, count), strict=True))
        means = {
            n: (moving[n].clone(), self._longer(self._leaves[scale], share, cosine))
            for n, scale in self._scales.items()
            if n in moving
        }
        average, square, steps = ([self._kept[n][name] for n in moving] for name in KEPT)
        adam(
            list(moving.values()),
            [leaf.grad for leaf in moving.values()],
            average,
            square,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=DECAY[0],
            beta2=DECAY[1],
            lr=lr * share,
            weight_decay=0.0,
            eps=EPS,
            maximize=False,
        )
        for n, (before, longer) in means.items():
            moving[n].copy_(torch.lerp(before, moving[n], longer))

    def _longer(self, scale: Tensor, share: float, cosine: float) -> Tensor:
        """How many times as long as others the steps of means are whose components have these log
        scales: longer where wider than at the start, and the last ones no longer than the width."""
        width = (scale - self._start).exp_()  # in those of the start
        last = width.clamp_max(LAST_STEP)
        return width.clamp_min_(1).mul_(last + (1 - last) * cosine).div_(share)

    @torch.no_grad()
    def _bound_gradients(self) -> None:
        gradients = [leaf.grad for leaf in self._leaves if leaf.grad is not None]
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
        kept = {n: dict(own) for n, own in self._kept.items()}
        return {"state": kept, "recent": recent, "start": self._start}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._kept = {}
        for n, kept in state["state"].items():
            leaf = self._leaves[int(n)]
            as_they_are = {"step": leaf.device}  # a count, whatever the precision
            self._kept[int(n)] = {name: kept[name].to(as_they_are.get(name, leaf)) for name in KEPT}
        # older states do not have these
        self._start = float(state.get("start", self._start))
        recent = state["recent"].tolist() if "recent" in state else []
        self.recent = deque(recent, maxlen=WINDOW + 1)
