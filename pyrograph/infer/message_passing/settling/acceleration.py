"""Anderson acceleration of sweeps that settle, but slowly.

Where a sweep m -> T(m) is a contraction by little (long loops, near-singular fields, a level that
only the sum of many messages knows), the residuals f = T(m) - m of the last sweeps say where it
leads. With their differences dF and those dG of the images T(m),

    m_next = T(m) - dG w,      w = argmin | f - dF w |

on a linear T what GMRES finds from as many sweeps. Messages count in units of the beliefs' widths.

It begins only where the residual has fallen steadily and would take many more sweeps, so that it
speeds up where the plain iteration goes anyway; when the residual grows it starts anew. It is for
continuous nodes: logs of discrete messages may be on their way to minus infinity, and no linear
map takes them there.

Source: Anderson (1965); Walker & Ni (2011), eq (2.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pyrograph.beliefs import Gaussian, Natural
from pyrograph.infer.message_passing.network.messages import Messages, flattened, unflattened
from pyrograph.infer.message_passing.network.network import Block, Network
from pyrograph.infer.message_passing.nodes.basis import seen
from pyrograph.infer.message_passing.nodes.families import Continuous

#: Sweeps that are looked back on, and sweeps still ahead at their rate from which it pays.
LOOK, AHEAD = 10, 30
#: Differences that are kept, as many as these numbers allow.
DEPTH, NUMBERS = 20, 2**24
#: Growth of the residual over its lowest at which the past says nothing any more.
GROWTH = 4.0
#: Directions that are rounding, in units of the dtype's precision.
RANK = 100.0


def applies_to(network: Network) -> bool:
    """Whether all nodes are continuous, and no factor is of mean field, or all are: its sweeps
    climb a bound, which leaps need not, so that they are looked at."""
    if not all(isinstance(family, Continuous) for family in network.families):
        return False
    return network.is_mean_field or not any(block.is_mean_field for block in network.blocks)


class Acceleration:
    """The last residuals of a run, and what follows from them.

    Args:
        tol: residual at which the run ends.
    """

    def __init__(self, tol: float):
        self.tol = tol
        self.is_on = False
        self._heights: list[float] = []
        self._residuals: list[Tensor] = []
        self._images: list[Tensor] = []

    def forget(self) -> None:
        """Begin anew: what follows is another iteration."""
        self.is_on = False
        self._heights, self._residuals, self._images = [], [], []

    def observe(self, height: float) -> None:
        """Take note of a sweep's largest change."""
        if self.is_on and self._is_over(height):
            self.forget()
        self._heights = [*self._heights[-LOOK:], height]
        self.is_on = self.is_on or self._pays()

    def _is_over(self, height: float) -> bool:
        """Whether the past says nothing any more."""
        return not height <= GROWTH * min(self._heights)

    def _pays(self) -> bool:
        """Whether the residual falls steadily, and too slowly."""
        first, *rest = self._heights
        if len(rest) < LOOK or not 0 < self.tol < rest[-1] < first or max(rest) > first:
            return False
        rate = math.log(rest[-1] / first) / LOOK
        return math.log(self.tol / rest[-1]) / rate > AHEAD

    def extrapolated(
        self, blocks: list[Block], before: Messages, after: Messages, beliefs: list
    ) -> Messages | None:
        """Messages to go on from; None if the past does not say any.

        Args:
            before, after: messages, and what a sweep made of them.
            beliefs: of the families' nodes.
        """
        self._keep(before, after)
        if len(self._residuals) < 2:
            return None
        numbers = self._mixed(units(blocks, after, beliefs))
        if numbers is None:
            self.forget()
            return None
        return unflattened(numbers, after)

    def _keep(self, before: Messages, after: Messages) -> None:
        """What a sweep adds to the past."""
        image = flattened(after)
        depth = min(DEPTH, max(2, NUMBERS // len(image)))
        self._residuals = [*self._residuals[-depth:], image - flattened(before)]
        self._images = [*self._images[-depth:], image]

    def _mixed(self, unit: Tensor) -> Tensor | None:
        """m_next above, ``[N]``, of two sweeps or more; None where they do not differ, or by no
        number.

        Args:
            unit: what the numbers count, ``[N]``.
        """
        slopes = torch.stack(self._residuals).diff(dim=0) * unit  # [k, N]
        size = slopes.norm(dim=1, keepdim=True)
        if not bool((size > 0).all() & size.isfinite().all()):
            return None
        # not by the Gram matrix: slow sweeps differ by almost the same, again and again
        q, r = torch.linalg.qr((slopes / size).T)
        rank = RANK * torch.finfo(r.dtype).eps
        weight = torch.linalg.pinv(r, rtol=rank) @ (q.T @ (self._residuals[-1] * unit))
        moves = torch.stack(self._images).diff(dim=0)
        return self._images[-1] - (weight / size.squeeze(1)) @ moves

    def took(self, has_risen: bool, is_lost: bool) -> None:
        """Take note of what came of the last leap. Where the bound only fell nothing is forgotten:
        a leap from more sweeps may raise it."""
        if is_lost:
            self.forget()

    # ------------------------------------------------------------------ checkpoints
    def carried(self) -> dict[str, Any]:
        """For a checkpoint."""
        kept = {"on": self.is_on, "heights": list(self._heights)}
        for name, values in (("residuals", self._residuals), ("images", self._images)):
            kept[name] = [value.clone() for value in values]
        return kept

    def restore(self, state: Mapping[str, Any], like: Tensor) -> None:
        self.is_on = bool(state["on"])
        self._heights = [float(height) for height in state["heights"]]
        self._residuals = [value.to(like) for value in state["residuals"]]
        self._images = [value.to(like) for value in state["images"]]


def units(blocks: list[Block], messages: Messages, beliefs: list[Natural]) -> Tensor:
    """What the numbers of messages into continuous nodes count, ``[N]``: of Gaussian ones in
    standard deviations of what they are about, of conjugate ones beside the belief's parameters."""
    found = []
    for block, sent in zip(blocks, messages, strict=True):
        for k, message in enumerate(sent):
            if isinstance(message, Tensor):
                continue
            belief, rows = beliefs[block.families[k]], block.rows[k]
            if isinstance(message, Gaussian):
                held = seen(belief, rows, block.bases[k])
                sd = held.covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
                found += [sd.unsqueeze(-1) * sd.unsqueeze(-2), sd]
            else:
                parameters = belief[rows].parameters().values()
                found += [p.abs().clamp_min(1).reciprocal() for p in parameters]
    return torch.cat([unit.flatten() for unit in found])
