"""The search for the best labellings: sweeps label by label, and splits and merges of clusters.

Either has its turn when the other gains no more, until the best labelling is none the better for
splits and merges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor

from pyrograph.infer.dpvi.labellings.labelled import Labellings
from pyrograph.infer.dpvi.labellings.labelled_start import labels_of, num_partitions
from pyrograph.infer.dpvi.labellings.split_merge import splits_and_merges
from pyrograph.infer.dpvi.particles import (
    ROUNDING,
    are_own_scores,
    gain_of,
    refuse_other_scores,
)
from pyrograph.infer.dpvi.results import posterior_of_labels
from pyrograph.posterior.label_particles import LabelParticles


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
        self._proposed, self._may_split = proposed, may_split
        self._stage, self.is_last, self._can_split = 0, False, may_split

    def values(self) -> dict[str, Tensor]:
        """``{site: [K, n]}``."""
        return self.found.labels()

    @property
    def holds_all(self) -> bool:
        """Whether the labellings are all partitions."""
        sizes = [site.event_shape[0] for site in self.found.program.sites.values()]
        return len(self.found) == num_partitions(sizes, len(self.found))

    # ------------------------------------------------------------------ moves
    def advance(self, tol: float, step: int) -> dict[str, Tensor]:
        """One step; the bound, and what it grew by.

        Args:
            step: number of those done, of no account: scores are from scratch in each.
        """
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

    # ------------------------------------------------------------------ results
    def posterior(self, is_all: bool, **run: Any) -> LabelParticles:
        """The labellings, weighted by their scores.

        Args:
            is_all: whether these are all partitions.
            run: how it went, see :class:`Posterior`.
        """
        return posterior_of_labels(self.found, is_all, **run)

    # ------------------------------------------------------------------ checkpoints
    def carried(self) -> dict[str, Any]:
        """Labels, and whose turn it is."""
        return {"labels": self.found.labels(), **self.turn()}

    def turn(self) -> dict[str, Any]:
        """Whose it is, for a checkpoint."""
        return {"stage": self._stage, "is_last": self.is_last, "can_split": self._can_split}

    def restored(self, state: Mapping[str, Any], is_same: bool) -> LabelSearch:
        """The search where :meth:`carried` left it, as many of the labellings as are kept.

        Args:
            is_same: whether it was for as many by the same moves, see :meth:`from_labellings`.

        Raises:
            ShapeMismatch: the state is of another program.
        """
        found = Labellings(self.found.program, state["labels"])
        if "score" in state:
            now = found.score.to(found.program.dtype)
            saved = state["score"].to(now.device)
            refuse_other_scores(saved.float(), now)  # those of single precision differ by rounding
            is_same &= are_own_scores(saved, now)
        found = found.distinct(self.num_particles) if len(found) > self.num_particles else found
        return self.from_labellings(found, state if is_same else None)

    def from_labellings(self, found: Labellings, turn: Mapping[str, Any] | None) -> LabelSearch:
        """The same search from other labellings, in the turn of :meth:`turn`; otherwise nothing
        has converged, and all begins again."""
        search = copy(self)
        search.found = found
        search._stage, search.is_last, search._can_split = 0, False, self._may_split
        if turn is not None:
            search._stage, search.is_last = int(turn["stage"]), bool(turn["is_last"])
            search._can_split = bool(turn["can_split"])
        return search
