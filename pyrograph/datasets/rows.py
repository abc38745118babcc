"""Rows of a table with named columns, and the numbers in them, by the line they stand on."""

import csv
import math
from collections.abc import Iterator, Sequence

from pyrograph.datasets.numerals import number
from pyrograph.errors import DataFormatError


def named_rows(
    filename: str, text: str, columns: Sequence[str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Of every row where it stands, ``"file:line"``, and its fields by column.

    Args:
        filename: for the messages.
        columns: those that have to be there; others may.

    Raises:
        DataFormatError: a column is missing, there are no rows, or a row has another number of
            fields than the header.
    """
    reader = csv.DictReader(text.splitlines())
    missing = [column for column in columns if column not in (reader.fieldnames or ())]
    if missing:
        raise DataFormatError(f"{filename}: there is no column {missing[0]!r}.")
    row = None
    for row in reader:
        if None in row or None in row.values():
            raise DataFormatError(
                f"{filename}:{reader.line_num}: the row has not the {len(reader.fieldnames)} "
                f"fields of the header."
            )
        yield f"{filename}:{reader.line_num}", row
    if row is None:
        raise DataFormatError(f"{filename}: there are no rows below the header.")


def finite_number(place: str, column: str, field: str) -> float:
    """The number that a field holds.

    Raises:
        DataFormatError: it holds none, or one that is not finite.
    """
    value = number(field)
    if not math.isfinite(value):
        raise DataFormatError(f"{place}: the {column} {field or '(blank)'} is no finite number.")
    return value
