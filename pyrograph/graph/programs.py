"""Compiled slices of the tape: factors at private values, or numbers at one assignment."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from pyrograph.trace.localize import LocalProgram
from pyrograph.trace.rules.products import DOT
from pyrograph.trace.tape import Operand, Tape


def local_program(
    tape: Tape, ids: Tensor, dtype: torch.dtype, scope: Tensor, columns: Tensor
) -> LocalProgram:
    """Factors ``ids`` at private values; leaf buffer k holds slot k, ``[E * width, S]``.

    Args:
        scope: ``[E, arity]`` node ids, ascending in every row.
        columns: ``[num_nodes + 1]``; leaves are numbered as columns are.
    """
    num_factors, arity = scope.shape
    num_nodes = len(columns) - 1
    width = columns.diff()[scope[0]]
    rows = torch.arange(num_factors, device="cpu")
    members = (rows.unsqueeze(1) * num_nodes + scope).reshape(-1)

    def home(row: Tensor, leaf: Tensor) -> tuple[Tensor, Tensor]:
        node = torch.searchsorted(columns, leaf, right=True) - 1
        slot = torch.searchsorted(members, row * num_nodes + node) % arity
        return slot, row * width[slot] + leaf - columns[node]

    sizes = (width * num_factors).tolist()
    return LocalProgram(tape, ids, torch.zeros(1, dtype=dtype, device="cpu"), home, sizes, rows)


def with_sums(tape: Tape, ids: Tensor) -> tuple[Tape, Tensor]:
    """The tape with a step more, and ``[U]`` the ids of sums of numbers ``ids [U, n]``, where 0 is
    none."""
    longer = Tape(list(tape.steps))
    steps = tape.step_of(ids[ids > 0]).unique().tolist()
    dtype = reduce(torch.promote_types, {tape.steps[step].dtype for step in steps})
    ones = torch.ones(ids.shape, dtype=dtype, device="cpu")
    nothing = torch.zeros_like(ones) if bool((ids == 0).any()) else None
    operands = (Operand(ids, nothing, dtype), Operand(None, ones, dtype))
    return longer, longer.append(DOT, 1, operands, dtype)


def shared_program(tape: Tape, ids: Tensor, dtype: torch.dtype, sizes: list[int]) -> LocalProgram:
    """Numbers ``ids`` at one assignment; leaf buffer k is free site k, ``[sizes[k], S]``."""
    size = torch.tensor(sizes, dtype=torch.int64, device="cpu")
    ends = size.cumsum(0)

    def home(row: Tensor, leaf: Tensor) -> tuple[Tensor, Tensor]:
        site = torch.searchsorted(ends, leaf, right=True)
        return site, leaf - (ends - size)[site]

    return LocalProgram(tape, ids, torch.zeros(1, dtype=dtype, device="cpu"), home, sizes)
