"""A discrete model that is given by its tables, as a Pyro program of a few statements.

    p(x) = (1 / Z) prod_a f_a(x_scope(a))

Variables are numbers 0 .. n - 1. Those with c states that are not observed are the elements of
one site ``x_<c>``; tables of like shape are one ``pyro.factor`` in a plate, so that thousands of
tables are a few statements. Observed variables are constants: they cut slices out of the tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import compress
from typing import Any, NoReturn

import pyro
import pyro.distributions as dist
import torch
from pyro.ops.indexing import Vindex
from torch import Tensor

from pyrograph.checks import whole_number
from pyrograph.errors import OptionError, ShapeMismatch

Label = tuple[str, tuple[int, ...]]


class _ReadOnly(dict):
    """A dict that is not changed."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "evidence is read-only: dataclasses.replace(model, evidence={...}) makes another model"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = pop = popitem = clear = setdefault = _refuse

    def __reduce__(self) -> tuple:
        return type(self), (dict(self),)


@dataclass(frozen=True)
class _CutAlike:
    """Tables of one shape, observed on the same axes. Numbers, not values: those are read at every
    call of the program, which so has what the tables hold by then, and their gradients.

    Attributes:
        numbers: of the F tables.
        cut: of their stack, the entries at the observed states; None where nothing is observed.
    """

    numbers: tuple[int, ...]
    cut: tuple[Tensor | slice, ...] | None

    def read(self, tables: Sequence[Tensor]) -> Tensor:
        """``[F, c_1, ..., c_k]`` over the axes that are left."""
        stack = torch.stack([tables[k] for k in self.numbers])
        return stack if self.cut is None else stack[self.cut]


@dataclass(frozen=True)
class _LikeTables:
    """Tables that have one shape ``c_1, ..., c_k`` over their unobserved variables.

    Shapes:
        slots: per axis the site and, ``[F]``, the element of it that each table reads; none for
            constants.
    """

    shape: tuple[int, ...]
    parts: tuple[_CutAlike, ...]
    slots: tuple[tuple[str, Tensor], ...]


@dataclass(frozen=True, eq=False)
class DiscreteModel:
    """Variables, tables and evidence; called, the Pyro program of the unnormalised density.

    The program puts no prior on its sites (they are masked), so the log evidence of the program
    is log Z, the sum over the unobserved variables at the observed states. Where every variable is
    observed there is no site, and nothing for an engine to infer: log Z is the log density,
    ``pg.trace_graph(model).log_prob({})``.

    Args:
        cardinalities: number of states of each variable.
        scopes: the variables that each table reads; a scope may be empty.
        log_tables: log values, ``[*cardinalities of the scope]``; ``-inf`` where a value is zero.
            Arrays become tensors.
        evidence: ``{variable: state}`` of the observed variables; read-only from then on.

    Raises:
        ShapeMismatch: a table does not fit its scope.
        OptionError: a cardinality is no whole number above 0, a scope or the evidence names a
            variable or a state that is not there, or a table is no array of real numbers.
    """

    cardinalities: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]
    log_tables: tuple[Tensor, ...]
    evidence: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settle = partial(object.__setattr__, self)  # the class is frozen
        settle("cardinalities", self._whole_cardinalities())
        settle("scopes", self._whole_scopes())
        tables = _listed("log_tables", self.log_tables)
        settle("log_tables", tuple(_tensor(k, table) for k, table in enumerate(tables)))
        self._check_shapes()
        # what the sites are is worked out once: read-only, so that it stays so
        settle("evidence", _ReadOnly(self._whole_evidence()))

    def _whole_cardinalities(self) -> tuple[int, ...]:
        counts = []
        for v, count in enumerate(_listed("cardinalities", self.cardinalities)):
            number = whole_number(count)
            if number is None or number < 1:
                raise OptionError(
                    f"variable {v} has cardinality {count!r}; the number of its states is a whole "
                    f"number, at least 1."
                )
            counts.append(number)
        return tuple(counts)

    def _whole_scopes(self) -> tuple[tuple[int, ...], ...]:
        scopes, variables = [], range(self.num_variables)
        for k, scope in enumerate(_listed("scopes", self.scopes)):
            given = _listed(f"the scope of table {k}", scope)
            numbers = tuple(map(whole_number, given))
            known = all(v in variables for v in numbers)
            if not known or len(set(numbers)) != len(numbers):
                raise OptionError(
                    f"table {k} has scope {given}; a scope lists different variables out of "
                    f"0 .. {self.num_variables - 1}."
                )
            scopes.append(numbers)
        return tuple(scopes)

    def _check_shapes(self) -> None:
        if len(self.scopes) != len(self.log_tables):
            raise ShapeMismatch(
                f"there are {len(self.scopes)} scopes and {len(self.log_tables)} tables; a table "
                f"has one scope."
            )
        for k, (scope, table) in enumerate(zip(self.scopes, self.log_tables)):
            shape = tuple(self.cardinalities[v] for v in scope)
            if table.shape != shape:
                raise ShapeMismatch(
                    f"table {k} has shape {tuple(table.shape)}; its variables {scope} have {shape} "
                    f"states."
                )

    def _whole_evidence(self) -> dict[int, int]:
        if not isinstance(self.evidence, Mapping):
            raise OptionError(
                f"evidence is {type(self.evidence).__name__}; give {{variable: state}}."
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
        return numbers

    def __call__(self) -> None:
        """The Pyro program: sites ``x_<c>``, statements ``f_<c>_<c>...``, and ``constant``."""
        states: dict[str, Tensor] = {}
        for site, variables in self.sites.items():
            count = self.cardinalities[variables[0]]
            with pyro.plate(f"variables_{count}", len(variables)):
                uniform = dist.Categorical(logits=torch.zeros(count, dtype=self._dtype))
                states[site] = pyro.sample(site, uniform.mask(False))
        for like in self._statements:
            tables = torch.cat([part.read(self.log_tables) for part in like.parts])
            if not like.shape:
                pyro.factor("constant", tables.sum())
                continue
            name, number = "f_" + "_".join(map(str, like.shape)), torch.arange(len(tables))
            with pyro.plate(f"tables_{name}", len(number)):
                at = tuple(states[site][..., element] for site, element in like.slots)
                pyro.factor(name, Vindex(tables)[(number, *at)])

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
        is_label = isinstance(index, tuple) and len(index) == 1
        if site not in self.sites or not is_label or not 0 <= index[0] < len(self.sites[site]):
            sites = ", ".join(f"{name}[{len(v)}]" for name, v in self.sites.items())
            raise OptionError(f"there is no node {(site, index)}; the sites are {sites or 'none'}.")
        return int(self.sites[site][index[0]])

    def values(self, states: Tensor) -> dict[str, Tensor]:
        """States ``[*, num_variables]`` as values of the sites, ``{site: [*, batch]}``."""
        shape = tuple(states.shape) if isinstance(states, Tensor) else type(states).__name__
        if shape[-1:] != (self.num_variables,):
            raise ShapeMismatch(
                f"states have shape {shape}; expected a tensor [*, {self.num_variables}]."
            )
        return {site: states[..., variables] for site, variables in self.sites.items()}

    def states(self, values: Mapping[str, Tensor]) -> Tensor:
        """Inverse of :meth:`values`, such as for samples; observed variables in their states.

        Raises:
            ShapeMismatch: a site has no values.
        """
        missing = [site for site in self.sites if site not in values]
        if missing:
            raise ShapeMismatch(f"values miss {', '.join(missing)}.")
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
    def _statements(self) -> tuple[_LikeTables, ...]:
        """Tables of like shape, in the order of their first; constants come last."""
        alike: dict[tuple[int, ...], dict[tuple, list[int]]] = {}
        for k, (scope, table) in enumerate(zip(self.scopes, self.log_tables)):
            free = tuple([v not in self.evidence for v in scope])
            shape = tuple(compress(table.shape, free))
            alike.setdefault(shape, {}).setdefault((table.shape, free), []).append(k)
        statements = []
        for shape in sorted(alike, key=lambda shape: not shape):
            parts, scopes = [], []
            for (_, free), numbers in alike[shape].items():
                parts.append(_CutAlike(tuple(numbers), self._cut(numbers, free)))
                scopes += [compress(self.scopes[k], free) for k in numbers]
            slots = []
            for count, variables in zip(shape, zip(*scopes)):
                elements = [self._labels[v][1][0] for v in variables]
                slots.append((f"x_{count}", torch.tensor(elements)))
            statements.append(_LikeTables(shape, tuple(parts), tuple(slots)))
        return tuple(statements)

    def _cut(
        self, numbers: Sequence[int], free: Sequence[bool]
    ) -> tuple[Tensor | slice, ...] | None:
        """Index into a stack of tables: the axes that are not free at their observed states."""
        if all(free):
            return None
        axes = [
            slice(None)
            if is_free
            else torch.tensor([self.evidence[self.scopes[k][axis]] for k in numbers])
            for axis, is_free in enumerate(free)
        ]
        return torch.arange(len(numbers)), *axes


def _listed(name: str, values: Any) -> tuple:
    """The members of a sequence, or of an array or a tensor of one dimension or more."""
    try:
        return tuple(values)
    except TypeError as error:
        raise OptionError(f"{name}={values!r} is no sequence; write a tuple.") from error


def _tensor(k: int, table: Any) -> Tensor:
    try:
        tensor = torch.as_tensor(table)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(
            f"table {k} is {type(table).__name__}, no array of numbers; give a tensor of its log "
            "values."
        ) from error
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise OptionError(
            f"table {k} holds {tensor.dtype}; give the real logs of its values (of a hard "
            "constraint 0 where it holds and -inf elsewhere)."
        )
    return tensor
