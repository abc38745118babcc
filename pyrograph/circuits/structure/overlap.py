"""Which units of two circuits are positive together, at one state or at neighbouring states.

Along the regions: two products are positive together if their parts are, pair by pair; a sum is
with another unit if one of its children is; two inputs are if they share a state. Two units are
positive at *neighbours* x and "x with one variable moved to its next state" if one pair of parts is
and all other pairs are positive together. Exact for smooth structured circuits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyrograph.circuits.structure.regions import Level, Regions, Rows


class Overlap:
    """Of two circuits arranged by the same regions.

    Args:
        left, right: their rows.
        states: per circuit ``[inputs, c]``, which states are possible; all of a real input's.
        weighted: per circuit, which weights are not zero.
        cards: numbers of states; None of real variables.
        neighbours: whether the second kind is wanted: left at x, right at the next state.

    Attributes:
        together: per region ``[rows of left, rows of right]``.
        near: the same of neighbours, or empty.
    """

    def __init__(
        self,
        regions: Regions,
        left: Sequence[Rows],
        right: Sequence[Rows],
        states: tuple[np.ndarray, np.ndarray],
        weighted: tuple[np.ndarray, np.ndarray],
        cards: Sequence[int | None],
        neighbours: bool = False,
    ):
        self.together: list[np.ndarray] = []
        self.near: list[np.ndarray] = []
        for r, parts in enumerate(regions.parts):
            near = None
            if not parts:
                card = cards[regions.scopes[r].bit_length() - 1]
                a, b = (
                    s[rows[r].inputs].astype(np.float32)[:, : card or 1]
                    for s, rows in zip(states, (left, right), strict=True)
                )
                together = a @ b.T > 0
                if neighbours:
                    near = a @ np.roll(b, -1, 1).T > 0
            else:
                together, near = self._products(parts, left, right, r, neighbours)
            self.together.append(_sums(together, left[r], right[r], weighted))
            if near is not None:
                self.near.append(_sums(near, left[r], right[r], weighted))

    def _products(self, parts, left, right, r: int, neighbours: bool):
        together = near = None
        for k, part in enumerate(parts):
            index = np.ix_(
                left[part].kept[left[r].below[:, k]], right[part].kept[right[r].below[:, k]]
            )
            own = self.together[part][index]
            moved = self.near[part][index] if neighbours else None
            if together is None:
                together, near = own, moved
            else:
                if neighbours:
                    near = (near & own) | (together & moved)
                together = together & own
        return together, near


def _sums(found: np.ndarray, left: Rows, right: Rows, weighted) -> np.ndarray:
    for level in left.levels:
        found = np.concatenate([found, _any(found, level, weighted[0])])
    found = found.T
    for level in right.levels:
        found = np.concatenate([found, _any(found, level, weighted[1])])
    return found.T


def _any(found: np.ndarray, level: Level, weighted: np.ndarray) -> np.ndarray:
    return np.stack([found[source].any(0) for source, _ in live_children(level, weighted)])


def live_children(level: Level, weighted: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Per sum, rows and weights of its children whose weights are not zero."""
    live = (level.weight >= 0) & weighted[level.weight] if len(weighted) else level.weight >= 0
    return [(s[on], w[on]) for s, w, on in zip(level.source, level.weight, live, strict=True)]
