"""Numbers as data files write them."""

import math

#: Digits of a whole number that 64 bits hold; Python itself reads no more than 4300.
MOST_DIGITS = 18


def whole(word: str) -> int:
    """What a word of digits stands for, -1 if it is none or longer than numbers are."""
    return int(word) if word.isdecimal() and len(word) <= MOST_DIGITS else -1


def number(word: str) -> float:
    """What a word stands for, NaN if that is no number.

    Python reads ``1_0`` as ten; in a file it is a slip.
    """
    try:
        return math.nan if "_" in word else float(word)
    except ValueError:
        return math.nan
