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


def product(graph: FactorGraph, group: FactorGroup, index: Tensor) -> FactorGroup:
    """Products of factors on one scope, in which what these compute alike is computed once.

    Args:
        index: ``[U, n]`` factors of the group, those of a row on one scope; by their first.

    Returns:
        U factors, which stand where the first of every row does.
    """
    every = group.index[index].cpu()
    return replace(
        group,
        scope=group.scope[index[:, 0]],
        index=group.index[index[:, 0]],
        _compile=partial(_compile_products, graph, every),
        _program=None,
    )


def _compile_products(
    graph: FactorGraph, every: Tensor, first: Tensor, scope: Tensor
) -> LocalProgram:
    """Of the products ``every [U, n]`` in the graph's order, those whose first factor is named."""
    rows = torch.searchsorted(every[:, 0].contiguous(), first.cpu())
    tape, ids = with_sums(graph._reading.tape, graph._factors.terms.ids[every[rows]])
    return graph._compiled(tape, ids, scope)
