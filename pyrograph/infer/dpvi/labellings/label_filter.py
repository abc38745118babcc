"""Filtering over labels: every labelling is extended by every cluster of the next element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from torch import Tensor

from pyrograph.infer.dpvi.labellings.label_search import LabelSearch
from pyrograph.infer.dpvi.labellings.labelled import Labellings
from pyrograph.infer.dpvi.particles import highest
from pyrograph.infer.dpvi.saved_states import order_of, score_of_labels

#: A site and the number of a label of it.
Element = tuple[str, int]


class LabelFilter:
    """K labellings of the elements that are in.

    Args:
        search: whose labellings grow; it goes on when all are in.
        past: elements that were in before a longer program came, which are the first.

    Attributes:
        position: number of elements that are in.
        is_cut: whether K was too few for all labellings.
    """

    def __init__(self, search: LabelSearch, past: Sequence[Element]):
        self.search, known = search, set(past)
        self._elements = [*past, *(e for e in search.found.elements if e not in known)]
        self.position, self.is_cut = 0, False
        if not past:  # otherwise labels are handed over
            search.found.begin_pass()

    def __len__(self) -> int:
        """How many elements come in."""
        return len(self._elements)

    @property
    def is_all(self) -> bool:
        """Whether every labelling of what is in is kept."""
        return not self.is_cut

    def take_in(self, last: float | None) -> dict[str, float]:
        """The next element; the bound, and what it changed by.

        Args:
            last: the bound as it was measured last, if it was.
        """
        found = self.search.found
        before = found.bound_so_far if last is None else last
        name, i = self._elements[self.position]
        self.is_cut |= not found.take_in(name, i, self.search.num_particles)
        self.position += 1
        if self.position == len(self):
            found.rescore()
        bound = found.bound_so_far
        return {"objective": bound, "gain": bound - before}

    # ------------------------------------------------------------------ longer programs
    def past(self) -> list[Element]:
        """The elements that are in, as they came in."""
        return self._elements[: self.position]

    def go_on_from(self, old: LabelFilter, found: Labellings) -> None:
        """Take over the elements that are in in a filter of a shorter program.

        Args:
            found: labellings of ``old``.
        """
        self.search.found = found.within(self.search.found.program)
        self.position, self.is_cut = old.position, old.is_cut

    # ------------------------------------------------------------------ checkpoints
    def carried(self) -> dict[str, Any]:
        """Labels and their scores."""
        found = self.search.found
        return {"labels": found.labels(as_they_are=True), "score": found.score}

    def carried_since(self) -> dict[str, Any]:
        """What older states have not: after an extension elements do not come in as they do in a
        program of their own."""
        return {"elements": list(self._elements), "layout": self.search.found.layout}

    def restored(self, state: Mapping[str, Any], is_same: bool) -> LabelFilter:
        """The filter where a saved state has it, with a search of its own.

        Args:
            is_same: see :meth:`LabelSearch.restored`.
        """
        filtering = copy(self)
        filtering._elements = order_of(state.get("elements", self._elements), self._elements)
        filtering.position, filtering.is_cut = int(state["position"]), not state["is_all"]
        labels, score = state["labels"], state["score"]
        if len(score) > self.search.num_particles:  # as many of the best as are kept
            filtering.is_cut = True
            best = highest(score, self.search.num_particles)
            labels, score = {name: z[best] for name, z in labels.items()}, score[best]
        found = Labellings(self.search.found.program, labels)
        found.score = filtering._score_of(found, score)
        if "layout" in state and filtering.position < len(filtering):
            found.lay_out(state["layout"])
        filtering.search = self.search.from_labellings(found, state if is_same else None)
        return filtering

    def _score_of(self, found: Labellings, saved: Tensor) -> Tensor:
        """Scores of the labels that are in, the saved ones but for rounding."""
        program = found.program
        if not self.position:
            return saved.to(program.device, copy=True)
        return score_of_labels(saved, program.score(found.clusters).to(program.dtype))
