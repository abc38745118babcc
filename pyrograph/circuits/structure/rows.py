"""Equal rows among many."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def equal_rows(columns: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Where each distinct row of these columns ``[n]`` is first met, and which each row is.

    Distinct rows are in lexicographic order. Many times faster than ``np.unique(axis=0)``.
    """
    code = np.zeros((), np.int64)
    for column in columns:
        values, number = np.unique(column, return_inverse=True)
        code = np.unique(code * len(values) + number, return_inverse=True)[1]
    _, first, same = np.unique(code, return_index=True, return_inverse=True)
    return first, same
