"""Discrete models in the text format of the UAI inference competitions, and their solutions.

A ``.uai`` file has the word MARKOV or BAYES (either way the model is the product of the tables),
the number of variables, their numbers of states, the number of tables, a scope for each table
(its size, then the variables) and then the tables (number of entries, then the entries, the last
variable of the scope fastest). Line breaks are spaces.

Source: "UAI 2014 inference competition" (V. Gogate), the format of UAI 2006 to 2022.
"""

import csv
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from pyrograph.datasets.discrete_model import DiscreteModel
from pyrograph.datasets.numerals import whole
from pyrograph.datasets.root import data_file, named_file, text_of
from pyrograph.errors import DataFormatError, OptionError

# Tensors have at most 64 axes, and like tables are stacked along one of them.
MOST_AXES = 63


def read_uai(
    source: str | os.PathLike[str],
    evidence: Mapping[int, int] | str | os.PathLike[str] | None = None,
) -> DiscreteModel:
    """Read a model: ``"Grids_11"`` from the data root's folder ``uai``, or any path.

    A string without the suffix ``.uai`` is a name. The log tables are float64 whatever the
    default dtype, as log Z of a thousand tables needs the digits.

    Args:
        evidence: None takes the file beside the model (``Grids_11.uai.evid``) if there is one;
            ``{variable: state}`` is taken instead of that file, so ``{}`` is no evidence;
            a path is another evidence file.

    Raises:
        DataNotFound: there is no model of that name, or no such file.
        DataFormatError: a file is not in the format, or does not fit together.
        OptionError: ``source`` is no name and no path; ``evidence`` names a variable or a state
            that is not there, or is neither of the three.
    """
    path = named_file(source, "uai", ".uai")
    cardinalities, scopes, tables = _parse_model(_Words(path))
    if evidence is None:
        beside = path.with_name(f"{path.name}.evid")
        evidence = beside if beside.is_file() else {}
    if isinstance(evidence, str | os.PathLike):
        evidence = _parse_evidence(_Words(Path(evidence)), cardinalities)
    if not isinstance(evidence, Mapping):
        raise OptionError(f"evidence={evidence!r} is no {{variable: state}} and no path")
    return DiscreteModel(cardinalities, scopes, tables, evidence)


@dataclass(frozen=True, eq=False)
class UAIReference:
    """What the competition gives as the solution of an instance, at its evidence.

    Attributes:
        log_evidence: natural log of Z.
        is_exact: whether it was computed in double precision. Otherwise it has the six digits
            (of its base-ten logarithm) that the competition printed.
        marginals: of every variable ``[cardinality]`` float64, with six digits; point masses
            where a variable is observed.
    """

    log_evidence: float
    is_exact: bool
    marginals: tuple[Tensor, ...]


def uai_reference(name: str) -> UAIReference:
    """The solution of an instance in the data root's folder ``uai``.

    Raises:
        DataNotFound: there is no instance of that name.
        DataFormatError: a file of the solution is not in the format.
    """
    words = _Words(data_file("uai", f"{name}.uai.PR"))
    words.heading("PR")
    log_evidence = words.number("log10 Z") * math.log(10)
    words.end()
    rows = csv.DictReader(text_of(data_file("uai", "index.csv")).splitlines())
    exact = next((row["exact_logZ"] for row in rows if row["name"] == name), "")
    words = _Words(data_file("uai", f"{name}.uai.MAR"))
    words.heading("MAR")
    marginals = []
    for v in range(words.count("the number of variables")):
        count = words.count(f"the number of states of variable {v}")
        values = words.numbers(count, f"the marginal of variable {v}")
        marginals.append(torch.tensor(values, dtype=torch.float64))
    words.end()
    return UAIReference(float(exact or log_evidence), bool(exact), tuple(marginals))


class _Words:
    """The words of a file; whatever does not fit raises with the file and the line."""

    def __init__(self, path: Path):
        self.filename = path.name
        # The format has no comments, but some tools write them.
        self.text = re.sub("#[^\n]*", "", text_of(path))
        self.words = self.text.split()
        self.position = 0
        if "_" in self.text:  # float() would read 1_0 as ten
            k = next(k for k, word in enumerate(self.words) if "_" in word)
            self.fail(f'"{self.words[k]}" is no number and no word of the format', k)

    def fail(self, problem: str, position: int | None = None) -> NoReturn:
        """Raise with the line of a word, the last one read if no other is given."""
        position = self.position - 1 if position is None else position
        ends = accumulate(len(line.split()) for line in self.text.splitlines())
        line = 1 + sum(end <= position for end in ends)
        raise DataFormatError(f"{self.filename}:{line}: {problem}.")

    def word(self, what: str) -> str:
        if self.position == len(self.words):
            self.fail(f"the file ends where {what} should stand")
        self.position += 1
        return self.words[self.position - 1]

    def heading(self, *titles: str) -> None:
        word = self.word(f"the word {' or '.join(titles)}")
        if word.upper() not in titles:
            self.fail(f'the file starts with "{word}" instead of {" or ".join(titles)}')

    def count(self, what: str, *, least: int = 0) -> int:
        word = self.word(what)
        count = whole(word)
        if count < least:
            self.fail(f'{what} is "{word[:40]}", no whole number of at least {least}')
        return count

    def number(self, what: str) -> float:
        return self.numbers(1, what)[0]

    def numbers(self, count: int, what: str) -> list[float]:
        words = self.words[self.position : self.position + count]
        if len(words) != count:
            self.position = len(self.words)
            self.fail(f"the file ends after {len(words)} of the {count} entries of {what}")
        values = []
        for k, word in enumerate(words, start=self.position):
            try:
                values.append(float(word))
            except ValueError:
                self.fail(f'"{word}" in {what} is no number', k)
        self.position += count
        return values

    def end(self) -> None:
        left = len(self.words) - self.position
        if left:
            self.fail(f"the file should end here, but {left} more words follow", self.position)


def _parse_model(
    words: _Words,
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...], tuple[Tensor, ...]]:
    """Cardinalities, scopes and log tables."""
    words.heading("MARKOV", "BAYES")
    num_variables = words.count("the number of variables")
    cardinalities = tuple(
        words.count(f"the number of states of variable {v}", least=1) for v in range(num_variables)
    )
    num_tables = words.count("the number of tables")
    scopes = tuple(_parse_scope(words, k, num_variables) for k in range(num_tables))
    tables = _parse_tables(words, [tuple(cardinalities[v] for v in scope) for scope in scopes])
    words.end()
    return cardinalities, scopes, tables


def _parse_scope(words: _Words, k: int, num_variables: int) -> tuple[int, ...]:
    size = words.count(f"the size of scope {k}")
    if size > MOST_AXES:
        words.fail(
            f"scope {k} has {size} variables, over the {MOST_AXES} that a tensor has room for; "
            f"leave out those of one state"
        )
    scope: list[int] = []
    for _ in range(size):
        variable = words.count(f"a variable of scope {k}")
        if variable >= num_variables:
            words.fail(f"scope {k} has variable {variable} of 0 .. {num_variables - 1}")
        if variable in scope:
            words.fail(f"scope {k} has variable {variable} twice")
        scope.append(variable)
    return tuple(scope)


def _parse_tables(words: _Words, shapes: list[tuple[int, ...]]) -> tuple[Tensor, ...]:
    values: list[float] = []
    for k, shape in enumerate(shapes):
        count = words.count(f"the number of entries of table {k}")
        if count != math.prod(shape):
            words.fail(
                f"table {k} has {count} entries, but its variables have "
                f"{' * '.join(map(str, shape)) or 1} states"
            )
        entries = words.numbers(count, f"table {k}")
        for at, value in enumerate(entries, start=words.position - count):
            if not 0 <= value < math.inf:
                words.fail(f"table {k} has the entry {words.words[at]}; entries are 0 or more", at)
        values += entries
    logs = torch.tensor(values, dtype=torch.float64).log()
    parts = logs.split([math.prod(shape) for shape in shapes])
    return tuple(part.reshape(shape) for part, shape in zip(parts, shapes))


def _parse_evidence(words: _Words, cardinalities: tuple[int, ...]) -> dict[int, int]:
    """``k v s v s ...``, or the older ``1 k v s v s ...``, which first counts sets of evidence."""
    if len(words.words) % 2 == 0 and words.words[:1] == ["1"]:
        words.word("the number of sets of evidence")
    evidence: dict[int, int] = {}
    for _ in range(words.count("the number of observed variables")):
        variable = words.count("an observed variable")
        if variable >= len(cardinalities) or variable in evidence:
            problem = "is observed twice" if variable in evidence else "is not in the model"
            words.fail(f"variable {variable} {problem}")
        evidence[variable] = words.count(f"the state of variable {variable}")
        if evidence[variable] >= cardinalities[variable]:
            words.fail(
                f"variable {variable} is observed in state {evidence[variable]}, but has "
                f"{cardinalities[variable]} states"
            )
    words.end()
    return evidence
