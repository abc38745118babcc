"""Small tables of measurements: rows to be modelled by a joint density.

The nine sets of the Chow-Liu experiment of Guo, Xiong & Ruozzi (2019), table 1; all but the stock
indices are from the UCI Machine Learning Repository.
"""

import csv

import torch
from torch import Tensor

from pyrograph.datasets.root import data_file, text_of
from pyrograph.datasets.rows import finite_number
from pyrograph.errors import DataFormatError, OptionError

#: Tables, and the columns of each that are no variables: labels, dates, numbers of runs.
NOT_VARIABLES = {
    "iris": ("species",),
    "banknote": ("class",),
    "istanbul": ("date",),
    "seeds": ("variety",),
    "yeast": ("is_nuc",),
    "wdbc": ("diagnosis",),
    "letter": ("letter",),
    "poker": ("hand",),
    "climate": ("study", "run", "outcome"),
}


def tabular(name: str, *, standardise: bool = True) -> Tensor:
    """A table of real measurements, without labels.

    ========  =====  ==  =======================================================
    name      N      D   rows
    ========  =====  ==  =======================================================
    iris      150    4   flowers: lengths and widths of sepal and petal
    banknote  1372   4   images of banknotes: features of a wavelet transform
    istanbul  536    9   days: returns of the Istanbul index and eight others
    seeds     210    7   wheat kernels: geometry
    yeast     1484   8   proteins: scores of localisation, two nearly constant
    wdbc      569    30  breast masses: shapes of cell nuclei
    letter    20000  16  images of letters: features, integers 0 to 15
    poker     25010  10  hands: suits 1 to 4 and ranks 1 to 13, alternating
    climate   540    18  simulations: parameters, a Latin hypercube
    ========  =====  ==  =======================================================

    Args:
        name: one of the above.
        standardise: take off the mean of every column and divide by its standard deviation (of
            N - 1). Neither a Chow-Liu tree nor its log Z depends on it.

    Returns:
        ``[N, D]``, of the default dtype, columns in the order of the file.

    Raises:
        OptionError: there is no such table.
        DataNotFound: ``$PYROGRAPH_DATA`` is not set or lacks ``uci_<name>``.
        DataFormatError: a column is missing, or a line holds something else than as many finite
            numbers as there are columns.
    """
    if not isinstance(name, str) or name not in NOT_VARIABLES:
        raise OptionError(f"there is no table {name!r}; there are {', '.join(NOT_VARIABLES)}.")
    filename = f"{name}.csv"
    lines = list(csv.reader(text_of(data_file(f"uci_{name}", filename)).splitlines()))
    if len(lines) < 2:
        raise DataFormatError(f"{filename}: there are no rows below a header.")
    header, *lines = lines
    missing = [column for column in NOT_VARIABLES[name] if column not in header]
    if missing:
        raise DataFormatError(f"{filename}: there is no column {missing[0]!r}.")
    kept = [k for k, column in enumerate(header) if column not in NOT_VARIABLES[name]]
    values = torch.tensor(
        [_numbers(f"{filename}:{k}", line, header, kept) for k, line in enumerate(lines, start=2)]
    )
    return (values - values.mean(0)) / values.std(0) if standardise else values


def _numbers(place: str, line: list[str], header: list[str], kept: list[int]) -> list[float]:
    if len(line) != len(header):
        raise DataFormatError(f"{place}: {len(line)} fields; the header has {len(header)}.")
    return [finite_number(place, header[k], line[k]) for k in kept]
