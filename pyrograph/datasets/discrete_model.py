"""A discrete model that is given by its tables, as a Pyro program of a few statements.

    p(x) = (1 / Z) prod_a f_a(x_scope(a))

Variables are numbers 0 .. n - 1. Those with c states that are not observed are the elements of
one site ``x_<c>``; tables of like shape are one ``pyro.factor`` in a plate, so that thousands of
tables are a few statements. Observed variables are constants: they cut slices out of the tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.ops.indexing import Vindex
from torch import Tensor

from pyrograph.errors import OptionError, ShapeMismatch

Label = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class _LikeTables:
    """Tables of one shape, over unobserved variables alone.

    Shapes:
        tables: ``[F, c_1, ..., c_k]`` log values.
        slots: per axis the site and, ``[F]``, the element of it that each table reads.
    """

    name: str
    tables: Tensor
    slots: tuple[tuple[str, Tensor], ...]


@dataclass(frozen=True, eq=False)
class DiscreteModel:
    """Variables, tables and evidence; called, the Pyro program of the unnormalised density.

    The program puts no prior on its sites (they are masked), so the log evidence of the program
    is log Z, the sum over the unobserved variables at the observed states.

    Args:
        cardinalities: number of states of each variable.
        scopes: the variables that each table reads; a scope may be empty.
        log_tables: log values, ``[*cardinalities of the scope]``; ``-inf`` where a value is zero.
            Arrays become tensors.
        evidence: ``{variable: state}`` of the observed variables.

    Raises:
        ShapeMismatch: a table does not fit its scope.
        OptionError: a scope or the evidence names a variable or a state that is not there, or a
            table is no array of numbers.
    """

    cardinalities: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]
    log_tables: tuple[Tensor, ...]
    evidence: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.scopes) != len(self.log_tables):
            raise ShapeMismatch(
                f"there are {len(self.scopes)} scopes and {len(self.log_tables)} tables; a table "
                f"has one scope."
            )
        tables = tuple(_tensor(k, table) for k, table in enumerate(self.log_tables))
        object.__setattr__(self, "log_tables", tables)
        for k, (scope, table) in enumerate(zip(self.scopes, tables)):
            unknown = [v for v in scope if not 0 <= v < self.num_variables]
            if unknown or len(set(scope)) != len(scope):
                raise OptionError(
                    f"table {k} has scope {scope}; a scope lists different variables out of "
                    f"0 .. {self.num_variables - 1}."
                )
            shape = tuple(self.cardinalities[v] for v in scope)
            if table.shape != shape:
                raise ShapeMismatch(
                    f"table {k} has shape {tuple(table.shape)}; its variables {scope} have {shape} "
                    f"states."
                )
        numbers = {}
        for variable, state in self.evidence.items():
            v, number = whole_number(variable), whole_number(state)
            if v is None or not 0 <= v < self.num_variables:
                raise OptionError(
                    f"the evidence is about variable {variable!r}; variables are 0 .. "
                    f"{self.num_variables - 1}."
                )
            if number is None or not 0 <= number < self.cardinalities[v]:
                raise OptionError(
                    f"the evidence puts variable {v} into state {state!r}; its states are 0 .. "
                    f"{self.cardinalities[v] - 1}."
                )
            numbers[v] = number
        object.__setattr__(self, "evidence", numbers)

    def __call__(self) -> None:
        """The Pyro program: sites ``x_<c>``, statements ``f_<c>_<c>...``, and ``constant``."""
        states: dict[str, Tensor] = {}
        for site, variables in self.sites.items():
            count = self.cardinalities[variables[0]]
            with pyro.plate(f"variables_{count}", len(variables)):
                uniform = dist.Categorical(logits=torch.zeros(count, dtype=self._dtype))
                states[site] = pyro.sample(site, uniform.mask(False))
        for like in self._statements:
            number = torch.arange(len(like.tables))
            with pyro.plate(f"tables_{like.name}", len(number)):
                at = tuple(states[site][..., element] for site, element in like.slots)
                pyro.factor(like.name, Vindex(like.tables)[(number, *at)])
        if self._constants:
            pyro.factor("constant", torch.stack(self._constants).sum())

    # ------------------------------------------------------------------ numbers and sites
    @property
    def num_variables(self) -> int:
        return len(self.cardinalities)

    @cached_property
    def sites(self) -> dict[str, Tensor]:
        """Of every site the variables that its elements are, ``[batch]``, ascending."""
        members: dict[int, list[int]] = {}
        for v, count in enumerate(self.cardinalities):
            if v not in self.evidence:
                members.setdefault(count, []).append(v)
        return {f"x_{count}": torch.tensor(members[count]) for count in sorted(members)}

    @cached_property
    def _labels(self) -> dict[int, Label]:
        return {
            v: (site, (k,))
            for site, variables in self.sites.items()
            for k, v in enumerate(variables.tolist())
        }

    def node(self, variable: int) -> Label:
        """The label ``(site, index)`` of a variable, as in ``graph.nodes``.

        Raises:
            OptionError: the variable is observed, or there is none of that number.
        """
        if variable in self.evidence:
            raise OptionError(
                f"variable {variable} is observed in state {self.evidence[variable]}, so it is no "
                f"node of the graph."
            )
        if variable not in self._labels:
            raise OptionError(
                f"there is no variable {variable}; variables are 0 .. {self.num_variables - 1}."
            )
        return self._labels[variable]

    def variable(self, site: str, index: tuple[int, ...]) -> int:
        """Inverse of :meth:`node`: the number of a variable from its label.

        Raises:
            OptionError: there is no such node.
        """
        if site not in self.sites or len(index) != 1 or not 0 <= index[0] < len(self.sites[site]):
            sites = ", ".join(f"{name}[{len(v)}]" for name, v in self.sites.items())
            raise OptionError(f"there is no node {(site, index)}; the sites are {sites or 'none'}.")
        return int(self.sites[site][index[0]])

    def values(self, states: Tensor) -> dict[str, Tensor]:
        """States ``[*, num_variables]`` as values of the sites, ``{site: [*, batch]}``."""
        if states.shape[-1] != self.num_variables:
            raise ShapeMismatch(
                f"states have shape {tuple(states.shape)}; expected [*, {self.num_variables}]."
            )
        return {site: states[..., variables] for site, variables in self.sites.items()}

    def states(self, values: Mapping[str, Tensor]) -> Tensor:
        """Inverse of :meth:`values`, such as for samples; observed variables in their states."""
        lead = next((values[site].shape[:-1] for site in self.sites), ())
        states = torch.zeros(*lead, self.num_variables, dtype=torch.int64)
        for v, state in self.evidence.items():
            states[..., v] = state
        for site, variables in self.sites.items():
            states[..., variables] = values[site].cpu()
        return states

    def marginals(self, posterior: Any) -> list[Tensor]:
        """Probabilities of the states, ``[cardinality]`` of each variable, in order of variables.

        Args:
            posterior: of this program; its ``marginal(site)`` has ``probs`` ``[batch, c]``.
        """
        found: dict[int, Tensor] = {}
        for site, variables in self.sites.items():
            probs = posterior.marginal(site).probs
            found.update(zip(variables.tolist(), probs.unbind(0)))
        for v, state in self.evidence.items():
            found[v] = torch.zeros(self.cardinalities[v], dtype=self._dtype)
            found[v][state] = 1.0
        return [found[v] for v in range(self.num_variables)]

    # ------------------------------------------------------------------ the program's tables
    @property
    def _dtype(self) -> torch.dtype:
        return self.log_tables[0].dtype if self.log_tables else torch.get_default_dtype()

    @cached_property
    def _by_shape(self) -> dict[tuple[int, ...], list[tuple[tuple[int, ...], Tensor]]]:
        """Tables at the observed states with the unobserved part of their scopes, by shape."""
        by_shape: dict[tuple[int, ...], list[tuple[tuple[int, ...], Tensor]]] = {}
        for scope, table in zip(self.scopes, self.log_tables):
            free = tuple(v for v in scope if v not in self.evidence)
            if len(free) != len(scope):
                table = table[tuple(self.evidence.get(v, slice(None)) for v in scope)]
            by_shape.setdefault(tuple(table.shape), []).append((free, table))
        return by_shape

    @cached_property
    def _statements(self) -> tuple[_LikeTables, ...]:
        statements = []
        for shape, found in self._by_shape.items():
            if not shape:
                continue
            scopes, tables = zip(*found)
            slots = []
            for count, variables in zip(shape, zip(*scopes)):
                elements = [self._labels[v][1][0] for v in variables]
                slots.append((f"x_{count}", torch.tensor(elements)))
            name = "f_" + "_".join(map(str, shape))
            statements.append(_LikeTables(name, torch.stack(tables), tuple(slots)))
        return tuple(statements)

    @property
    def _constants(self) -> list[Tensor]:
        """Values of the tables all of whose variables are observed."""
        return [table for _, table in self._by_shape.get((), [])]


def whole_number(value: Any) -> int | None:
    """A whole number, alone in an array or a tensor too, or None.

    Truth values are none: as a number True is 1, which where the states are (yes, no) is "no".
    """
    if isinstance(value, Tensor | np.ndarray | np.generic):
        value = value.item() if value.ndim == 0 else None
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None


def _tensor(k: int, table: Any) -> Tensor:
    try:
        return torch.as_tensor(table)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(
            f"table {k} is {type(table).__name__}, no array of numbers; give a tensor of its log "
            "values."
        ) from error
