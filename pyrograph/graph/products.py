"""Products of factors on one scope, as factors of their own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pyrograph.graph.factor_graph import FactorGraph
from pyrograph.graph.factor_group import FactorGroup
from pyrograph.graph.programs import with_sums
from pyrograph.trace.localize import LocalProgram


def product(graph: FactorGraph, group: FactorGroup, first: Tensor, others: Tensor) -> FactorGroup:
    """Products of factors on one scope, in which what these compute alike is computed once.

    Args:
        first: ``[U]`` factors of the group, ascending.
        others: ``[U, n]`` places of those on the same scopes in the graph's order of factors,
            whichever groups they are of; -1 for none.

    Returns:
        U factors, which stand where the first ones do.
    """
    index = group.index[first]
    every = torch.cat([index.unsqueeze(1), others], 1).cpu()
    return replace(
        group,
        scope=group.scope[first],
        index=index,
        _compile=partial(_compile_products, graph, every),
        _program=None,
    )


def _compile_products(
    graph: FactorGraph, every: Tensor, first: Tensor, scope: Tensor
) -> LocalProgram:
    """Of the products ``every [U, n]`` in the graph's order, those whose first factor is named."""
    rows = every[torch.searchsorted(every[:, 0].contiguous(), first.cpu())]
    ids = graph._factors.terms.ids[rows].masked_fill(rows < 0, 0)
    tape, ids = with_sums(graph._reading.tape, ids)
    return graph._compiled(tape, ids, scope)
