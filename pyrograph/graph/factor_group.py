"""Like factors of one statement (or of one loop's statements), evaluated together.

A group's local function gives every factor *private* values of its scope, which is what message
passing, quadrature and rescoring need: ``log f_e(x_1, ..., x_arity)`` for all factors e and S
assignments at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pyrograph.errors import OptionError, ShapeMismatch, UnsupportedSite
from pyrograph.trace.localize import LocalProgram
from pyrograph.trace.sites import Site

#: Numbers of nodes read at once by :meth:`FactorGroup.table`, and numbers that a step of the
#: statement may hold: of a covariance, say, for every state.
TABLE_CHUNK, TABLE_COMPUTED = 4_000_000, 2**25


@dataclass(eq=False)
class FactorGroup:
    """Factors with the same number and kinds of nodes.

    Attributes:
        name: the statement; of a loop's statements, merged here, the first.
        statements: all of them.
        scope: ``[E, arity]`` node ids, ascending in every row.
        index: ``[E]`` position of each factor in the graph's order of factors.
        slots: per slot, a site of that kind (event shape and states are the same down a slot).
    """

    name: str
    statements: tuple[str, ...]
    scope: Tensor
    index: Tensor
    slots: tuple[Site, ...]
    _compile: Callable[[Tensor, Tensor], LocalProgram] = field(repr=False)
    _program: LocalProgram | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        count = len(self.scope)
        self._shapes = [(count, *site.event_shape) for site in self.slots]

    @property
    def num_factors(self) -> int:
        return self.scope.shape[0]

    @property
    def arity(self) -> int:
        return self.scope.shape[1]

    @property
    def num_entries(self) -> int:
        """Of the tables of discrete factors, all together."""
        return self.num_factors * math.prod(site.cardinality for site in self.slots)

    @property
    def is_discrete(self) -> bool:
        return all(s.enumeration is not None for s in self.slots)

    @property
    def program(self) -> LocalProgram:
        """The compiled local function."""
        if self._program is None:
            self._program = self._compile(self.index, self.scope)
        return self._program

    def part(self, rows: Tensor) -> FactorGroup:
        """Some of its factors, ``rows [E]`` in ascending order, with a function of their own."""
        return replace(self, scope=self.scope[rows], index=self.index[rows], _program=None)

    @property
    def attached_constants(self) -> list[Tensor]:
        """Its constants that are attached to the program's tensors."""
        program = self.program
        reads = [r for line in program.lines for r in line.reads] + [program.output]
        constants = [r.constant for r in reads if r.constant is not None]
        return [constant for constant in constants if constant.requires_grad]

    @property
    def is_differentiable(self) -> bool:
        """Whether its constants are attached to the program's tensors."""
        return bool(self.attached_constants)

    def log_prob(self, values: Sequence[Tensor]) -> Tensor:
        """Log value of every factor at its own values of its scope; differentiable.

        Args:
            values: one tensor ``[S, E, *event]`` per slot.

        Returns:
            ``[S, E]``.

        Raises:
            ShapeMismatch, OptionError: naming the slot or the statement.
        """
        if isinstance(values, Tensor):
            raise OptionError(f'factors of "{self.name}" take a list of tensors, one per slot.')
        samples = values[0].shape[:1] if values else ()
        expected = [(*samples, *shape) for shape in self._shapes]
        if [v.shape for v in values] != expected:
            raise self._mismatch(values, expected)
        columns = [v.t() if v.dim() == 2 else v.flatten(1).t() for v in values]
        return self.program(columns).t()

    def _mismatch(self, values: Sequence[Tensor], expected: list[tuple]) -> ShapeMismatch:
        if len(values) != self.arity:
            return ShapeMismatch(
                f'factors of "{self.name}" have {self.arity} nodes; got {len(values)} tensors.'
            )
        k = next(k for k, v in enumerate(values) if v.shape != expected[k])
        return ShapeMismatch(
            f'slot {k} of "{self.name}" has shape {tuple(values[k].shape)}; expected [S, E, *event]'
            f" = {expected[k]}."
        )

    def log_prob_of_states(self, codes: Sequence[Tensor]) -> Tensor:
        """Log value of every factor where its discrete nodes are in these states; differentiable.

        Args:
            codes: ``[S]`` per slot, places in the slot's support.

        Returns:
            ``[S, E]``.
        """
        values = []
        for site, code in zip(self.slots, codes, strict=True):
            states = site.enumeration.to(code.device)[code].unsqueeze(1)
            values.append(states.expand(-1, self.num_factors, *site.event_shape))
        return self.log_prob(values)

    def table(self) -> Tensor:
        """All values of discrete factors.

        Returns:
            ``[E, c_1, ..., c_arity]``; entry k of axis j is the k-th value of the slot's support.

        Raises:
            UnsupportedSite: a slot is continuous or has infinitely many states.
        """
        for site in self.slots:
            if site.enumeration is None:
                raise UnsupportedSite(
                    f'factors of "{self.name}" have no table: {site.describe()} is not finite and '
                    f"discrete. Use log_prob at chosen values."
                )
        cards = [s.cardinality for s in self.slots]
        states = math.prod(cards)
        device = self.scope.device
        rows = []
        at_once = (
            TABLE_CHUNK // max(self.num_factors * self.arity, 1),
            TABLE_COMPUTED // max(self.program.num_held, 1),
        )
        chunk = max(1, min(at_once))
        for flat in torch.arange(states, device=device).split(chunk):
            codes = [  # torch.unravel_index imports sympy
                torch.div(flat, math.prod(cards[k + 1 :]), rounding_mode="floor") % card
                for k, card in enumerate(cards)
            ]
            rows.append(self.log_prob_of_states(codes))
        return torch.cat(rows).t().reshape(self.num_factors, *cards)
