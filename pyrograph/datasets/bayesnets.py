"""Discrete Bayesian networks from files in the Bayesian Interchange Format (BIF 0.15).

    p(x) = prod_i p(x_i | x_parents(i))

Source of the format: Cozman (1998), "The Interchange Format for Bayesian Networks"; the
dialect is the one that the bnlearn repository and pgmpy write.
"""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import pyro
import pyro.distributions as dist
import torch
from pyro.ops.indexing import Vindex
from torch import Tensor

from pyrograph.checks import whole_number
from pyrograph.datasets.bif import TokenStream
from pyrograph.datasets.discrete_model import DiscreteModel
from pyrograph.datasets.numerals import number
from pyrograph.datasets.root import named_file, text_of
from pyrograph.errors import OptionError

# Printed probabilities are rounded, so a row sums to one only up to this.
ROUNDING = 1e-3
# Nodes that every trace of Pyro has.
RESERVED = ("_INPUT", "_RETURN")


@dataclass(frozen=True, eq=False)
class BayesianNetwork:
    """Variables, their states and their conditional probability tables.

    Shapes:
        names: the variables, parents before children.
        states: names of the states of each variable; the k-th is the value k.
        parents: parents of each variable, in the order of its table's axes.
        tables: ``[*cardinalities of the parents, cardinality]`` for each variable, each row
            summing to one, of the default dtype; all float64 where a probability is too small
            for that (in float32 below 1e-38), as it would lose its digits or become a hard zero.

    A network is a Pyro program, with one site per variable under the variable's name, so that
    ``posterior.marginal("lung")`` is what it says; evidence is the program's argument::

        posterior = pg.fit(network, ({"xray": "yes", "smoke": "no"},), infer=pg.BP)

    The log evidence is then log p(evidence). Tracing takes time in proportion to the number of
    sites; for networks of thousands of variables :meth:`tabulated` has a few statements in all.
    """

    names: tuple[str, ...]
    states: dict[str, tuple[str, ...]]
    parents: dict[str, tuple[str, ...]]
    tables: dict[str, Tensor]

    def __call__(self, evidence: Mapping[str, str | int] | None = None) -> dict[str, Tensor]:
        """The Pyro program; returns the values of all variables.

        Args:
            evidence: ``{variable: name or number of its state}``; the variables are observed.

        Raises:
            OptionError: the evidence names a variable or a state that is not there.
        """
        observed = self.state_numbers({} if evidence is None else evidence)
        value: dict[str, Tensor] = {}
        for name in self.names:
            # The log keeps zeros; Categorical(probs) would round them up.
            log_rows = Vindex(self.tables[name].log())
            row = dist.Categorical(logits=log_rows[tuple(value[p] for p in self.parents[name])])
            obs = torch.tensor(observed[name]) if name in observed else None
            value[name] = pyro.sample(name, row, obs=obs)
        return value

    def tabulated(self, evidence: Mapping[str, str | int] | None = None) -> DiscreteModel:
        """The same density with like-shaped tables together; variable k is ``names[k]``.

        Raises:
            OptionError: the evidence names a variable or a state that is not there.
        """
        number = {name: k for k, name in enumerate(self.names)}
        observed = self.state_numbers({} if evidence is None else evidence)
        return DiscreteModel(
            cardinalities=tuple(len(self.states[name]) for name in self.names),
            scopes=tuple(
                tuple(number[v] for v in (*self.parents[name], name)) for name in self.names
            ),
            log_tables=tuple(self.tables[name].log() for name in self.names),
            evidence={number[name]: state for name, state in observed.items()},
        )

    def state_numbers(self, evidence: Mapping[str, str | int]) -> dict[str, int]:
        """Evidence with every state by its number.

        Raises:
            OptionError: a variable or a state is not there, or the evidence is no dict.
        """
        if not isinstance(evidence, Mapping):
            raise OptionError(
                f"the evidence is {evidence!r}, no dict; write {{variable: state}}, such as "
                f'{{"{self.names[0]}": "{self.states[self.names[0]][0]}"}}.'
            )
        numbers = {}
        for name, state in evidence.items():
            if name not in self.states:
                raise OptionError(
                    f'the evidence is about "{name}", which is no variable of the network; its '
                    f"variables are {', '.join(self.names)}."
                )
            states = self.states[name]
            if isinstance(state, str):
                number = states.index(state) if state in states else None
            else:
                number = whole_number(state)
            if number is None or not 0 <= number < len(states):
                raise OptionError(
                    f'the evidence puts "{name}" into state {state!r}; its states are '
                    f"{', '.join(states)} (0 .. {len(states) - 1}). Give a name or a number."
                )
            numbers[name] = number
        return numbers


def bayesian_network(source: str | os.PathLike[str]) -> BayesianNetwork:
    """Read a network: ``"asia"`` from the data root's folder ``bayesnets``, or any path.

    A string without the suffix ``.bif`` is a name. Rows are scaled to sum to one, which
    their printed digits do only nearly.

    Raises:
        DataNotFound: there is no network of that name, or no such file.
        DataFormatError: the file is not BIF, or its tables do not fit its variables.
        OptionError: ``source`` is no name and no path.
    """
    path = named_file(source, "bayesnets", ".bif")
    return _Parser(TokenStream(text_of(path), path.name)).network()


def dtype_of(tables: Iterable[Tensor]) -> torch.dtype:
    """The default dtype, or float64 where a probability lies below the normal numbers of that."""
    dtype = torch.get_default_dtype()
    tiny = torch.finfo(dtype).tiny
    faint = any(bool(((table > 0) & (table < tiny)).any()) for table in tables)
    return torch.float64 if faint else dtype


class _Parser:
    """Recursive descent: a method per kind of block."""

    def __init__(self, tokens: TokenStream):
        self.tokens = tokens
        self.states: dict[str, tuple[str, ...]] = {}
        self.parents: dict[str, tuple[str, ...]] = {}
        self.tables: dict[str, Tensor] = {}

    def network(self) -> BayesianNetwork:
        blocks = {
            "network": self.network_block,
            "variable": self.variable_block,
            "probability": self.probability_block,
        }
        while not self.tokens.at_end():
            keyword = self.tokens.word()
            if keyword not in blocks:
                self.tokens.fail(f'a block starts with {" or ".join(blocks)}, not "{keyword}"')
            blocks[keyword]()
        if not self.states:
            self.tokens.fail("there is no variable")
        missing = [name for name in self.states if name not in self.tables]
        if missing:
            self.tokens.fail(f"there is no probability block for {', '.join(missing)}")
        try:
            names = tuple(TopologicalSorter(self.parents).static_order())
        except CycleError as error:
            self.tokens.fail(f"the arcs run in a circle: {' -> '.join(error.args[1])}")
        dtype = dtype_of(self.tables.values())
        tables = {name: table.to(dtype) for name, table in self.tables.items()}
        return BayesianNetwork(names, self.states, self.parents, tables)

    def network_block(self) -> None:
        """``network <name> { <properties> }``"""
        self.tokens.word()
        self.tokens.expect("{")
        while not self.tokens.skip("}"):
            self.property()

    def variable_block(self) -> None:
        """``variable <name> { type discrete [ <count> ] { <states> }; <properties> }``"""
        tokens = self.tokens
        name = tokens.word()
        if name in self.states:
            tokens.fail(f'variable "{name}" is declared twice')
        if name in RESERVED:
            tokens.fail(f'Pyro keeps the name "{name}" for itself; give the variable another')
        tokens.expect("{")
        while not tokens.skip("}"):
            if not tokens.skip("type"):
                self.property()
                continue
            for mark in ("discrete", "["):
                tokens.expect(mark)
            count = tokens.word()
            for mark in ("]", "{"):
                tokens.expect(mark)
            states = tuple(tokens.words("}"))
            tokens.expect(";")
            if str(len(set(states))) != count or len(set(states)) != len(states):
                tokens.fail(f'variable "{name}" has [ {count} ] states, but {", ".join(states)}')
            self.states[name] = states
        if name not in self.states:
            tokens.fail(f'variable "{name}" has no "type discrete" line')

    def probability_block(self) -> None:
        """``probability ( <child> | <parents> ) { <rows, a table or a default row> }``"""
        tokens = self.tokens
        tokens.expect("(")
        name = tokens.word()
        parents: tuple[str, ...] = ()
        if tokens.skip("|"):
            parents = tuple(tokens.words(")"))
        else:
            tokens.expect(")")
        for variable in (name, *parents):
            if variable not in self.states:
                tokens.fail(f'the table of "{name}" names "{variable}", which is not declared')
        if len(set(parents)) != len(parents):
            tokens.fail(f'the parents of "{name}" are ({", ".join(parents)}), one of them twice')
        if name in self.tables:
            tokens.fail(f'variable "{name}" has two probability blocks')
        self.parents[name] = parents
        self.tables[name] = self.table(name, parents)

    def table(self, name: str, parents: tuple[str, ...]) -> Tensor:
        tokens = self.tokens
        shape = [len(self.states[variable]) for variable in (*parents, name)]
        table = torch.full(shape, torch.nan, dtype=torch.float64)
        default = torch.full(shape[-1:], torch.nan, dtype=torch.float64)
        tokens.expect("{")
        while not tokens.skip("}"):
            if tokens.skip("table"):
                if not bool(table.isnan().all()):
                    tokens.fail(f'the table of "{name}" follows rows or a table that it replaces')
                # The last of (child, *parents) varies fastest.
                values = self.numbers(table.numel(), f'the table of "{name}"')
                table = values.view(shape[-1:] + shape[:-1]).movedim(0, -1)
            elif tokens.skip("default"):
                if not bool(default.isnan().all()):
                    tokens.fail(f'the default row of "{name}" is given twice')
                default = self.numbers(shape[-1], f'the default row of "{name}"')
            elif tokens.skip("("):
                row = self.row(name, parents)
                if not bool(table[row].isnan().all()):
                    given = ", ".join(self.states[p][k] for p, k in zip(parents, row))
                    tokens.fail(f'the row of "{name}" for ({given}) is given twice')
                table[row] = self.numbers(shape[-1], f'a row of "{name}"')
            else:
                self.property()
        table = torch.where(table.isnan(), default, table)
        total = table.sum(-1, keepdim=True)
        proper = (table >= 0).all(-1) & ((total.squeeze(-1) - 1).abs() < ROUNDING)
        for row in (~proper).nonzero().tolist():
            given = ", ".join(f"{p}={self.states[p][k]}" for p, k in zip(parents, row))
            values = table[tuple(row)]
            found = "missing" if values.isnan().all() else f"{values.tolist()}, no distribution"
            tokens.fail(f'the row of "{name}" for ({given}) is {found}')
        return table / total

    def row(self, name: str, parents: tuple[str, ...]) -> tuple[int, ...]:
        """The index of the row whose parents' states are listed next."""
        given = self.tokens.words(")")
        if len(given) != len(parents):
            self.tokens.fail(
                f'a row of "{name}" is for ({", ".join(given)}), '
                f"but the parents are ({', '.join(parents)})"
            )
        for parent, state in zip(parents, given):
            if state not in self.states[parent]:
                self.tokens.fail(f'"{parent}" has no state "{state}" (in a row of "{name}")')
        return tuple(self.states[p].index(state) for p, state in zip(parents, given))

    def numbers(self, count: int, what: str) -> Tensor:
        words = self.tokens.words(";")
        values = [number(word) for word in words]
        if any(map(math.isnan, values)):
            self.tokens.fail(f"{what} is not all numbers: {', '.join(words)}")
        if len(values) != count:
            self.tokens.fail(f"{what} has {len(values)} entries instead of {count}")
        return torch.tensor(values, dtype=torch.float64)

    def property(self) -> None:
        """``property <anything> ;``, which says nothing about the distribution."""
        self.tokens.expect("property")
        while not self.tokens.skip(";"):
            self.tokens.take()
