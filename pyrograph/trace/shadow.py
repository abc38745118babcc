"""The ids of a storage's elements, see ``tape.py``, as they are written and read.

Steps keep the ids that they read while the program writes others in their place, as a loop does
that fills a tensor: n writes of n ids, were all kept, would take n^2 of memory. So a step copies
what is a small part of a storage that is written to, and a write copies the storage only if a step
keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pyrograph.trace.table_rows import Rows

#: Ids read of a storage more than this many times their size are copied out of it.
SMALL_PART = 8


class Shadow:
    """Ids of the elements of one storage; ``first`` when one step filled all of it in order.

    Keeps the tensor alive: a freed storage's address could be used again.

    Attributes:
        rows: what the storage holds where that is rows of a table; place: of the step that looks
            them up, among all steps, until it is recorded.
    """

    __slots__ = (
        "_ids",
        "_is_kept",
        "first",
        "item_bytes",
        "level",
        "mixed",
        "numel",
        "place",
        "rows",
        "tensor",
    )

    def __init__(self, t: Tensor, level: int, numel: int, first: int | None = None):
        self.tensor, self.item_bytes, self.numel = t, t.element_size(), numel
        self.level, self.first = level, first
        self.mixed = first is None
        self.rows: Rows | None = None
        self.place: int | None = None
        self._ids: Tensor | None = None
        self._is_kept = False

    @property
    def ids(self) -> Tensor:
        if self._ids is None:
            if self.first is None:
                self._ids = torch.zeros(self.numel, dtype=torch.int64, device=self.tensor.device)
            else:
                step = -1 if self.first < 0 else 1
                last = self.first + step * self.numel
                self._ids = torch.arange(self.first, last, step, device=self.tensor.device)
        return self._ids

    def read(self, ids: Tensor) -> Tensor:
        """Some of the ids, or copies of them, for a step to keep."""
        if not self._holds(ids):
            return ids
        is_written = self.first is None  # another storage may never be
        if is_written and self.numel > SMALL_PART * ids.numel():
            return ids.clone()
        self._is_kept = True
        return ids

    def overwrite(self, view: Tensor, ids: Tensor | int) -> None:
        """New ids under ``view``; copies first where a step, or the new ids, are of the old."""
        is_moved = isinstance(ids, Tensor) and self._holds(ids)
        fresh = self.ids.clone() if self._is_kept or is_moved else self.ids
        target = fresh.as_strided(view.size(), view.stride(), view.storage_offset())
        target.copy_(ids) if isinstance(ids, Tensor) else target.fill_(ids)
        self._ids, self._is_kept, self.first, self.mixed = fresh, False, None, True
        self.rows = None

    def _holds(self, ids: Tensor) -> bool:
        return ids.untyped_storage()._cdata == self.ids.untyped_storage()._cdata
