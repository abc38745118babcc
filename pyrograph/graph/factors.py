"""The log density of a program, cut into factors.

    log p(x, data) = constant + sum_a log f_a(x_{scope(a)})

An element of a statement's log density that reads latents is a factor, or several where it is a sum
whose terms read different ones (:mod:`pyrograph.trace.split`). Elements that read none, and terms
that read none, are the constant.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.graph.grouping import families, group_factors
from pyrograph.trace.reading import Reading
from pyrograph.trace.sites import Site
from pyrograph.trace.split import Terms, split


@dataclass(frozen=True, eq=False)
class Factors:
    """What a program's statements are cut into.

    Attributes:
        names: of all statements, in program order.
        element_ids: numbers on the tape of the elements that read latents.
        element_constant: sum of the elements that read none.
        terms: what the elements are split into, a factor each.
        statement: ``[F]``, of every factor its place among the names.
        constant: sum of all that reads no latent; exact: the same before it is rounded.
    """

    names: list[str]
    element_ids: Tensor
    element_constant: Tensor
    terms: Terms
    statement: Tensor
    constant: Tensor
    exact: Tensor

    @staticmethod
    def of_reading(reading: Reading, node_of_leaf: Tensor, dtype: torch.dtype) -> Factors:
        """Those of a program as it was read, with constants of this dtype.

        Raises:
            ScopeBudgetError: elements read too many numbers.
        """
        names = [s.name for s in reading.statements]
        latent = [s.ids[s.ids != 0] for s in reading.statements]
        ids = torch.cat(latent or [torch.zeros(0, dtype=torch.int64, device="cpu")])
        constant = torch.zeros((), dtype=torch.float64, device="cpu")
        for s in reading.statements:
            constant = constant + s.values[s.ids == 0].double().sum()
        ends = torch.tensor([len(own) for own in latent], dtype=torch.int64, device="cpu").cumsum(0)

        def place(element: int) -> str:
            return f'statement "{names[int((ends <= element).sum())]}"'

        terms = split(reading.tape, ids, node_of_leaf, dtype, place)
        statement = torch.searchsorted(ends, terms.row, right=True)
        exact = constant + terms.constant
        return Factors(names, ids, constant, terms, statement, exact.to(dtype), exact)

    def __len__(self) -> int:
        return len(self.terms.ids)

    @property
    def is_split(self) -> bool:
        """Whether some element is several factors."""
        return len(self) != len(self.element_ids)

    def of_statement(self, name: str) -> list[list[int]]:
        """Nodes of every factor of a statement, in row-major order of its elements.

        Raises:
            KeyError: there is no such statement.
        """
        if name not in self.names:
            raise KeyError(f'no statement "{name}"; there are {", ".join(self.names)}.')
        which = (self.statement == self.names.index(name)).nonzero().squeeze(1).tolist()
        ptr, nodes = self.terms.ptr.tolist(), self.terms.nodes
        return [nodes[ptr[f] : ptr[f + 1]].tolist() for f in which]

    def place(self, factor: int) -> tuple[str, int]:
        """The statement of a factor, and its number among that statement's."""
        k = int(self.statement[factor])
        first = int((self.statement == k).nonzero()[0])
        return self.names[k], factor - first

    def alike(self, sites: tuple[Site, ...], site_of_node: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Groups of like factors: their numbers ``[E]`` and nodes ``[E, arity]``."""
        kinds: dict[tuple, int] = {}
        kind_of_site = torch.tensor(
            [kinds.setdefault(s.kind, len(kinds)) for s in sites], dtype=torch.int64, device="cpu"
        )
        # tables are the same in any order of slots
        discrete = torch.tensor([s.is_discrete for s in sites], dtype=torch.bool, device="cpu")
        family_of_site = torch.tensor(families([s.name for s in sites]), device="cpu")
        family_of_site = family_of_site.long().masked_fill(discrete, 0)
        return group_factors(
            self.terms,
            self.statement,
            self.names,
            kind_of_site[site_of_node],
            family_of_site[site_of_node],
        )
