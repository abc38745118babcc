"""Nodes of a graph by kind, and scopes of like nodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.infer.qbethe.components import Kind
from pyrograph.infer.qbethe.entropy import ScopeEntropies
from pyrograph.infer.qbethe.wiring import Wiring
from pyrograph.trace.distinct import row_numbers


@dataclass(frozen=True)
class Nodes:
    """Nodes by kind.

    Attributes:
        kinds: of nodes; kind: ``[num_nodes]`` of each node; row: ``[num_nodes]`` in its kind.
    """

    kinds: list[Kind]
    kind: Tensor
    row: Tensor

    def wiring(self, scope: Tensor) -> Wiring:
        """Of like scopes ``[E, arity]``, without ties."""
        columns = scope.unbind(1)
        return Wiring([int(self.kind[c[0]]) for c in columns], [self.row[c] for c in columns], [])

    def entropies(self, scope: Tensor, **beside) -> ScopeEntropies:
        """Of like scopes ``[S, arity]``; for what is beside them see :class:`ScopeEntropies`."""
        wiring = self.wiring(scope)
        return ScopeEntropies(wiring, [self.kinds[k].size for k in wiring.kinds], scope, **beside)

    def slots(self, scope: Tensor, is_discrete: bool) -> list[int]:
        """Of like scopes."""
        of_slots = self.kind[scope[0]].tolist()
        return [k for k, own in enumerate(of_slots) if self.kinds[own].is_discrete == is_discrete]

    def alike(self, scopes: Tensor) -> list[Tensor]:
        """Rows of ``[E, k]`` whose nodes are of the same kinds, as index tensors."""
        labels = row_numbers(self.kind[scopes])
        return [(labels == k).nonzero().squeeze(1) for k in labels.unique()]


def different(rows: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Different rows of ``[E, k]`` tensors, and where theirs are among them."""
    every = torch.cat(rows)
    inverse = row_numbers(every)
    unique = every.new_empty(int(inverse.max()) + 1, every.shape[1])
    unique = unique.index_copy_(0, inverse, every)
    return unique, list(inverse.split([len(own) for own in rows]))
