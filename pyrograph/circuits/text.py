"""Circuits as text: one line per unit, children first, the root last.

    circuit 2 float64
    variables 2 2 real
    input 0 log_probs -inf 0.0
    input 2 loc 0.5 scale 2.0
    product 0 1
    sum 2 5 log_weights -0.5 -1.0
    end 6

The first number of an input is its variable; those of products and sums are their children, units
being numbered by line from 0; units that the root is not made of are left out. A variable is its
number of states, or ``real``. Numbers have as many digits as they need to be read back exactly.
The last line has the number of units: a file that has lost lines is refused. Format 1 has no such
line. ``#`` begins a comment.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.options import check_circuits
from pyrograph.circuits.structure.leaves import Domain
from pyrograph.circuits.structure.units import INPUT, PRODUCT, SUM, Units
from pyrograph.circuits.structure.vtree import as_path, text_lines
from pyrograph.errors import DataFormatError, DataNotFound, InvalidCircuit, OptionError

#: Of the format that is written, and of the one without a last line that says what is there.
VERSION, WITHOUT_END = 2, 1
DTYPES = {"float64": torch.float64, "float32": torch.float32}
#: Digits of an integer that 64 bits hold.
MOST_DIGITS = 18


def write_circuit(circuit: Circuit, path: str | os.PathLike[str]) -> None:
    """Write a circuit; :func:`read_circuit` gives it back bit by bit.

    Raises:
        OptionError: it is no circuit, or its numbers are neither float64 nor float32; or ``path``
            is no path of a file.
        DataNotFound: there is no folder to write the file into.
    """
    check_circuits(circuit)
    path = as_path(path)
    if path.is_dir():
        raise OptionError(f"path={str(path)!r} is a folder; name a file in it.")
    if not path.parent.is_dir():
        raise DataNotFound(f"there is no folder {str(path.parent)!r} to write into; make it first.")
    units = circuit.units
    names = {dtype: name for name, dtype in DTYPES.items()}
    if circuit.log_weights.dtype not in names:
        raise OptionError(
            f"numbers of {circuit.log_weights.dtype} are not written: circuit.double() first"
        )
    cards = ["real" if c is None else str(c) for c in circuit.cards]
    weights, table = circuit.log_weights.tolist(), circuit.log_table.tolist()
    loc, scale = circuit.loc.tolist(), circuit.scale.tolist()
    lines = [
        f"circuit {VERSION} {names[circuit.log_weights.dtype]}",
        f"variables {' '.join(cards)}",
    ]
    inputs = edges = 0
    for n, kind in enumerate(units.kind.tolist()):
        children = units.children(n).tolist()
        if kind == INPUT:
            var = int(units.var[n])
            card = circuit.cards[var]
            numbers = (
                f"loc {loc[inputs]!r} scale {scale[inputs]!r}"
                if card is None
                else f"log_probs {' '.join(map(repr, table[inputs][:card]))}"
            )
            lines.append(f"input {var} {numbers}")
            inputs += 1
        elif kind == PRODUCT:
            lines.append(f"product {' '.join(map(str, children))}")
        else:
            own = weights[edges : edges + len(children)]
            edges += len(children)
            below = " ".join(map(str, children))
            lines.append(f"sum {below} log_weights {' '.join(map(repr, own))}")
    lines.append(f"end {len(units)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_circuit(path: str | os.PathLike[str]) -> Circuit:
    """Read a circuit that :func:`write_circuit` wrote, or a hand.

    Raises:
        OptionError: ``path`` is no path.
        DataNotFound: there is no such file.
        DataFormatError: naming file and line; also if lines are missing.
    """
    return _Reader(as_path(path)).circuit()


class _Parts(NamedTuple):
    """Units in the order of their lines: kind, variable (-1 of none) and children of each; log
    weights of the sums; log probabilities, location and scale of the inputs."""

    kind: list[int]
    var: list[int]
    below: list[list[int]]
    weights: list[float]
    rows: list[tuple[list[float], float, float]]


class _Reader:
    def __init__(self, path: Path):
        self.name, self.number, self.lines = path.name, 0, text_lines(path)
        self.has_end = False

    def fail(self, what: str) -> NoReturn:
        raise DataFormatError(f"{self.name}:{self.number}: {what}.")

    def circuit(self) -> Circuit:
        lines = self.words()
        dtype = self.heading(next(lines, []))
        cards = self.variables(next(lines, []))
        parts = _Parts([], [], [], [], [])
        for words in lines:
            if words[0] == "end" and self.has_end:
                self.end(words, lines, len(parts.below))
                break
            self.unit(words, cards, parts)
        else:
            if self.has_end:
                self.fail(
                    f"the file ends after {len(parts.below)} units, without the line that says how "
                    "many there are: its last lines are lost"
                )
        return self.assembled(parts, cards, dtype)

    def unit(self, words: list[str], cards: tuple[int | None, ...], parts: _Parts) -> None:
        """Take in the unit of a line."""
        v, here = -1, len(parts.below)
        children: list[int] = []
        if words[0] == "input":
            kind = INPUT
            v, row = self.input(words, cards)
            parts.rows.append(row)
        elif words[0] == "product":
            children = self.children(words[1:], here)
            kind = SUM if len(children) == 1 else PRODUCT
            parts.weights.extend([0.0] * (len(children) == 1))
        elif words[0] == "sum":
            kind = SUM
            if "log_weights" not in words:
                self.fail('a sum is written "sum CHILDREN log_weights NUMBERS"')
            at = words.index("log_weights")
            children = self.children(words[1:at], here)
            own = self.reals(words[at + 1 :])
            if len(own) != len(children):
                self.fail(f"{len(children)} children and {len(own)} weights")
            parts.weights.extend(own)
        else:
            self.fail(f"a line begins with input, product or sum, not {words[0]!r}")
        parts.kind.append(kind)
        parts.var.append(v)
        parts.below.append(children)

    def assembled(
        self, parts: _Parts, cards: tuple[int | None, ...], dtype: torch.dtype
    ) -> Circuit:
        """What is below the last unit."""
        try:
            every = Units.of_lists(parts.kind, parts.var, parts.below)
        except InvalidCircuit as error:
            self.fail(str(error))
        units, used, edges = every.below_root()
        absent = set(range(len(cards))) - set(units.var.tolist())
        if absent:
            self.fail(f"the variable {min(absent)} has no input")
        rows = list(itertools.compress(parts.rows, used[every.kind == INPUT]))
        weights = list(itertools.compress(parts.weights, edges[every.edge_is_sum]))
        width = max(1, *(len(row[0]) for row in rows))
        table = [row + [-torch.inf] * (width - len(row)) for row, _, _ in rows]
        return Circuit(
            units,
            Domain(cards, units.var[units.kind == INPUT]),
            torch.tensor(weights, dtype=dtype, device="cpu"),
            torch.tensor(table, dtype=dtype, device="cpu"),
            torch.tensor([loc for _, loc, _ in rows], dtype=dtype, device="cpu"),
            torch.tensor([scale for _, _, scale in rows], dtype=dtype, device="cpu"),
        )

    def words(self) -> Iterator[list[str]]:
        for number, line in enumerate(self.lines, start=1):
            self.number = number
            words = line.partition("#")[0].split()
            if words:
                yield words

    def heading(self, words: list[str]) -> torch.dtype:
        if len(words) != 3 or words[0] != "circuit" or words[2] not in DTYPES:
            self.fail(f'the first line is "circuit {VERSION} float64" (or float32)')
        if words[1] not in (str(WITHOUT_END), str(VERSION)):
            self.fail(
                f"the format is number {words[1]}; this library reads {WITHOUT_END} and {VERSION}"
            )
        self.has_end = words[1] == str(VERSION)
        return DTYPES[words[2]]

    def end(self, words: list[str], lines: Iterator[list[str]], num_units: int) -> None:
        """The last line."""
        if len(words) != 2 or self.integer(words[1], 0) != num_units:
            self.fail(
                f"{num_units} units come before the last line, which is "
                f'"{" ".join(words)}": lines are lost, or were added by hand without changing it'
            )
        if next(lines, None) is not None:
            self.fail('lines follow "end", which is the last one')

    def variables(self, words: list[str]) -> tuple[int | None, ...]:
        if len(words) < 2 or words[0] != "variables":
            self.fail('the second line is "variables" and their numbers of states')
        return tuple(None if w == "real" else self.integer(w, 1) for w in words[1:])

    def input(
        self, words: list[str], cards: tuple[int | None, ...]
    ) -> tuple[int, tuple[list[float], float, float]]:
        v = self.integer(words[1], 0) if len(words) > 1 else len(cards)
        if v >= len(cards):
            self.fail(f"an input has a variable out of 0 .. {len(cards) - 1}")
        if cards[v] is None:
            if len(words) != 6 or (words[2], words[4]) != ("loc", "scale"):
                self.fail(f'the variable {v} is real: "input {v} loc NUMBER scale NUMBER"')
            loc, scale = self.reals([words[3], words[5]])
            if not abs(loc) < torch.inf or not 0 < scale < torch.inf:
                self.fail("a Gaussian has a finite loc and a positive scale")
            return v, ([], loc, scale)
        if len(words) != 3 + cards[v] or words[2] != "log_probs":
            self.fail(f'the variable {v} has {cards[v]} states: "input {v} log_probs NUMBERS"')
        return v, (self.reals(words[3:]), torch.nan, torch.nan)

    def children(self, words: list[str], here: int) -> list[int]:
        children = [self.integer(w, 0) for w in words]
        if not children or max(children) >= here:
            self.fail(f"unit {here} has no children, or one that does not come before it")
        return children

    def integer(self, word: str, least: int) -> int:
        if not word.isdecimal() or len(word) > MOST_DIGITS or int(word) < least:
            self.fail(f"{word[:40]!r} is no integer of at least {least}")
        return int(word)

    def reals(self, words: list[str]) -> list[float]:
        try:
            values = [float(w) for w in words]
        except ValueError as error:
            self.fail(str(error))
        if any(v != v or v == torch.inf for v in values):
            self.fail("a number is NaN or plus infinity")
        return values
