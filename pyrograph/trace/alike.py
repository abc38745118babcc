"""Whether a program computes the same function for all of its numbers.

Leaf buffers and those of steps are in as many like portions as numbers are wanted, one after the
other. Where every portion is computed from the same places of its own portions of other buffers, by
the same steps and with the same constants, each number is the same function of its own leaves: by
induction over the steps. Nothing is guessed from values of the function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pyrograph.trace.localize import LocalProgram
from pyrograph.trace.rules.slots import Call
from pyrograph.trace.source import Gather, Read


def computes_alike(program: LocalProgram) -> bool:
    """Whether all outputs are known to be the same function, each of its portion of the leaves."""
    count = program.num_outputs
    sizes = dict(enumerate(program.leaf_sizes))
    sizes.update({line.buffer: line.count * line.width for line in program.lines})
    if any(_holds_tensors(line.rule.static) or line.count % count for line in program.lines):
        return False
    reads = [read for line in program.lines for read in line.reads] + [program.output]
    return all(_is_alike(read, count, sizes) for read in reads)


def _is_alike(read: Read, count: int, sizes: Mapping[int, int]) -> bool:
    constant = read.constant
    if constant is not None and constant.requires_grad and len(constant) > 1:
        return False  # each number has a derivative of its own
    if not read.gathers:
        return len(constant) == 1 or _in_portions(constant.flatten(1), count)
    if read.shape[0] == 1 < count:  # all read one portion
        return False
    # where the concatenated numbers come from: part, place in the portion, and whose portion
    whose, places = [], []
    for k, gather in enumerate(read.gathers):
        rows, size = _rows(gather, sizes[gather.buffer]), sizes[gather.buffer]
        if size % count or len(rows) % count:
            return False
        each = size // count
        whose.append(torch.div(rows, each, rounding_mode="floor"))
        places.append(torch.stack([torch.full_like(rows, k), rows % each], 1))
    if constant is not None:
        rest = constant.flatten(1)
        if len(rest) % count or not _in_portions(rest, count):
            return False
        each = len(rest) // count
        rows = torch.arange(len(rest), device="cpu")
        whose.append(torch.div(rows, each, rounding_mode="floor"))
        places.append(torch.stack([torch.full_like(rows, len(read.gathers)), rows % each], 1))
    owner, place = torch.cat(whose), torch.cat(places)
    if read.order is not None:
        owner, place = owner[read.order.cpu()], place[read.order.cpu()]
    if len(owner) % count:
        return False
    own = torch.arange(count, device="cpu").unsqueeze(1)
    return bool((owner.view(count, -1) == own).all()) and _in_portions(place, count)


def _rows(gather: Gather, size: int) -> Tensor:
    """Of the buffer, that are read."""
    if gather.index is not None:
        return gather.index.cpu()
    stop = size if gather.stop is None else gather.stop
    return torch.arange(gather.start or 0, stop, device="cpu")


def _in_portions(rows: Tensor, count: int) -> bool:
    """Whether rows ``[n, m]`` are the same in each of ``count`` portions."""
    if len(rows) % count:
        return False
    portions = rows.reshape(count, -1)
    same = (portions == portions[:1]) | (portions.isnan() & portions[:1].isnan())
    return bool(same.all())


def _holds_tensors(static: Any) -> bool:
    """Whether a step's own options hold numbers that blocks may read apart."""
    if isinstance(static, tuple | list):
        return any(map(_holds_tensors, static))
    if isinstance(static, Call):
        return any(map(_holds_tensors, static.leaves))
    return isinstance(static, Tensor)
