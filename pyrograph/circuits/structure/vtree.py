"""Vtrees: binary trees over variables that say how a circuit breaks them apart.

Text format: ``c`` comments; ``vtree COUNT``; ``L id var`` a leaf with a variable (1, 2, ...);
``I id left right`` an inner node, after its children; the root last.

Source: Pipatsrisawat & Darwiche (2008); the format is that of the SDD package (Choi & Darwiche).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from pyrograph.errors import DataFormatError, DataNotFound, OptionError

#: Characters of a path that a message shows.
LONG_NAME = 250


@dataclass(frozen=True)
class Line:
    """The words of a line, and where it is."""

    name: str
    number: int
    words: list[str]

    def fail(self, what: str) -> NoReturn:
        """Raise DataFormatError with file and line."""
        raise DataFormatError(f"{self.name}:{self.number}: {what}.")

    def integer(self, k: int, what: str) -> int:
        try:
            return int(self.words[k])
        except ValueError:
            self.fail(f"{what} is {self.words[k]!r}, which is no integer")

    def real(self, k: int, what: str) -> float:
        """Not NaN; infinities are fine."""
        try:
            value = float(self.words[k])
        except ValueError:
            self.fail(f"{what} is {self.words[k]!r}, which is no number")
        if value != value:
            self.fail(f"{what} is NaN")
        return value

    def has(self, count: int, form: str) -> None:
        if len(self.words) != count:
            self.fail(f"{len(self.words)} words where {form!r} has {count}")


def as_path(path: str | os.PathLike[str]) -> Path:
    """A path.

    Raises:
        OptionError: it is none.
    """
    if not isinstance(path, str | os.PathLike):
        raise OptionError(f"path={path!r} is no path of a file.")
    return Path(path)


def text_lines(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a file in UTF-8.

    Raises:
        OptionError: it is no path.
        DataNotFound: there is no such file.
        DataFormatError: the file is no text.
    """
    path = as_path(path)
    try:
        is_file = path.is_file()
    except OSError:  # a name that is too long for one
        is_file = False
    if not is_file:
        shown = str(path) if len(str(path)) <= LONG_NAME else f"{str(path)[:LONG_NAME]}..."
        raise DataNotFound(
            f"there is no file {shown!r}; look at the path (not what is in the file), which is "
            f"taken from {str(Path.cwd())!r} on if it is relative."
        )
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataFormatError(f"{path.name}: no text: {error}.") from error


def lines_of(path: str | os.PathLike[str], heading: str) -> Iterator[Line]:
    """The lines below ``heading COUNT``, as many as that says.

    Raises:
        DataFormatError: the file is no text, there is no such heading, or another number of lines.
    """
    name, count, found = as_path(path).name, None, 0
    number = 0
    for number, text in enumerate(text_lines(path), start=1):
        words = text.split()
        if not words or words[0] == "c":
            continue
        line = Line(name, number, words)
        if count is None:
            if words[0] != heading or len(words) != 2:
                line.fail(f"the first line is '{heading} COUNT', not {text[:40]!r}")
            count = line.integer(1, "the count")
            continue
        found += 1
        if found > count:
            line.fail(f"more nodes than the {count} of the heading")
        yield line
    if not found or found < count:
        Line(name, number, []).fail(
            f"the file ends after {found} nodes" + (f" of {count}" if count else "")
        )


@dataclass(frozen=True, eq=False)
class Vtree:
    """A vtree by the numbers of its nodes in the file.

    Attributes:
        variable: ``{leaf: variable}``, variables from 0.
        children: ``{inner node: (left, right)}``.
        root: the last node.
    """

    variable: dict[int, int] = field(default_factory=dict)
    children: dict[int, tuple[int, int]] = field(default_factory=dict)
    root: int = -1

    @property
    def num_variables(self) -> int:
        return len(self.variable)

    def __contains__(self, node: int) -> bool:
        return node in self.variable or node in self.children


def read_vtree(path: str | os.PathLike[str]) -> Vtree:
    """Read a vtree.

    Raises:
        DataFormatError: naming file and line.
    """
    tree, free, line = Vtree(), set(), None
    root = -1
    for line in lines_of(path, "vtree"):
        if line.words[0] == "L":
            line.has(3, "L id var")
            root, below = line.integer(1, "the id"), ()
            variable = line.integer(2, "the variable") - 1
            if variable < 0 or variable in tree.variable.values():
                line.fail(f"the variable {variable + 1} is below 1 or has a leaf already")
        elif line.words[0] == "I":
            line.has(4, "I id left right")
            root, *below = (line.integer(k, "an id") for k in (1, 2, 3))
        else:
            line.fail(f"a line begins with L or I, not {line.words[0]!r}")
        if root in tree:
            line.fail(f"there is a node {root} already")
        for child in below:
            if child not in free:
                line.fail(f"the child {child} has a parent already, or does not come before")
            free.remove(child)
        if below:
            tree.children[root] = (below[0], below[1])
        else:
            tree.variable[root] = variable
        free.add(root)
    if len(free) != 1:
        line.fail(f"the nodes {sorted(free)[:5]} have no parent; only the root has none")
    if max(tree.variable.values()) >= len(tree.variable):
        line.fail(
            f"there are {len(tree.variable)} leaves for variables up to "
            f"{max(tree.variable.values()) + 1}"
        )
    return Vtree(tree.variable, tree.children, root)
