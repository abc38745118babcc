"""Numbers as data files write them."""

import math


def number(word: str) -> float:
    """What a word stands for, NaN if that is no number.

    Python reads ``1_0`` as ten; in a file it is a slip.
    """
    try:
        return math.nan if "_" in word else float(word)
    except ValueError:
        return math.nan
