"""The search for the best labellings: sweeps label by label, and splits and merges of clusters.

Either has its turn when the other gains no more, until the best labelling is none the better for
splits and merges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pyrograph.infer.dpvi.labellings.labelled import Labellings
from pyrograph.infer.dpvi.labellings.labelled_start import labels_of
from pyrograph.infer.dpvi.labellings.split_merge import splits_and_merges
from pyrograph.infer.dpvi.particles import ROUNDING, gain_of


class LabelSearch:
    """Moves of up to K labellings.

    Args:
        found: where the search starts.
        may_split: whether clusters are split and merged.
        proposed: makes more labellings, ``{site: [M, n]}``, after every step.

    Attributes:
        found: the labellings as they stand.
        is_last: whether no other kind of move has its turn yet.
    """

    def __init__(
        self,
        found: Labellings,
        num_particles: int,
        generator: torch.Generator,
        may_split: bool,
        proposed: Callable[[], Mapping[str, Any]] | None,
    ):
        self.found, self.num_particles, self.generator = found, num_particles, generator
        self._proposed = proposed
        self._stage, self.is_last, self._can_split = 0, False, may_split

    def advance(self, tol: float) -> dict[str, Tensor]:
        """One step; the bound, and what it grew by."""
        found, stream = self.found, self.generator.get_state()
        labels, score, layout = found.labels(as_they_are=True), found.score, found.layout
        try:
            return self._move(tol)
        except BaseException:  # labels move in place: an interrupt too leaves the step undone
            self.found = Labellings(found.program, labels)
            self.found.score = score
            self.found.lay_out(layout)
            self.generator.set_state(stream)
            raise

    def _move(self, tol: float) -> dict[str, Tensor]:
        before, best = self.found.bound, self.found.score.amax()
        if self._stage == 0:
            self.found.sweep(self.num_particles)
        else:
            extra = splits_and_merges(self.found, self.num_particles, self.generator)
            if extra is not None:
                self._join(extra)
        if self._proposed is not None:
            proposed = self._proposed().items()
            extra = {name: labels_of(name, z, "proposals") for name, z in proposed}
            if all(len(z) for z in extra.values()):
                self._join(extra)
        self.found.rescore()
        gain = gain_of(before, self.found.bound)
        if self._stage == 1:
            rise = float(self.found.score.amax() - best)
            self._can_split = rise > ROUNDING * (1 + float(best.abs()))
        self.is_last = not self._can_split
        is_stuck = float(gain) <= tol
        self._stage = int(self._stage == 0 and self._can_split and is_stuck)
        return {"objective": self.found.bound, "gain": gain}

    def _join(self, extra: Mapping[str, Tensor]) -> None:
        self.found = self.found.joined(extra).distinct(self.num_particles)

    def stages(self) -> dict[str, Any]:
        """Whose turn it is, for a checkpoint."""
        return {"stage": self._stage, "is_last": self.is_last, "can_split": self._can_split}

    def restore_stages(self, state: Mapping[str, Any]) -> None:
        """Go on in the turn of :meth:`stages`."""
        self._stage, self.is_last = int(state["stage"]), bool(state["is_last"])
        self._can_split = bool(state["can_split"])
