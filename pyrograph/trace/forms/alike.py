"""Which of its numbers a program computes as the same function.

Leaf buffers and those of steps are in as many like portions as numbers are wanted, one after the
other. Where two portions are computed from the same places of their own portions of other buffers,
by the same steps and with the same constants, their numbers are the same function of their own
leaves: by induction over the steps. Nothing is guessed from values of the function.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pyrograph.trace.distinct import row_numbers
from pyrograph.trace.localize import LocalProgram
from pyrograph.trace.source import Gather, Read


def functions_of(program: LocalProgram) -> Tensor:
    """``[num_outputs]``: equal numbers, from 0 on, where outputs are known to be the same function,
    each of its portion of the leaves."""
    count = program.num_outputs
    every = torch.arange(count, device="cpu")
    sizes = dict(enumerate(program.leaf_sizes))
    sizes.update({line.buffer: line.count * line.width for line in program.lines})
    if any(line.count % count for line in program.lines):
        return every
    number = torch.zeros_like(every)
    for read in [read for line in program.lines for read in line.reads] + [program.output]:
        columns = _portions(read, count, sizes)
        if columns is None:
            return every
        differs = (columns != columns[:1]).any(0)
        if bool(differs.any()):
            number = row_numbers(torch.cat([number.unsqueeze(1), columns[:, differs]], 1))
    return number


def _portions(read: Read, count: int, sizes: Mapping[int, int]) -> Tensor | None:
    """What a step reads for every output, ``[count, n]``, as numbers from 0 on; None where one
    reads what is another's."""
    constant = read.constant
    if constant is not None and constant.requires_grad and len(constant) > 1:
        return None  # each number has a derivative of its own
    nothing = torch.zeros(count, 0, dtype=torch.int64, device="cpu")
    if not read.gathers:
        return nothing if len(constant) == 1 else _in_portions(_ranks(constant.flatten(1)), count)
    if read.shape[0] == 1 < count:  # all read one portion
        return None
    # where the concatenated numbers come from: part, place in the portion, and whose portion
    whose, places, values = [], [], nothing
    for k, gather in enumerate(read.gathers):
        rows, size = _rows(gather, sizes[gather.buffer]), sizes[gather.buffer]
        if size % count or len(rows) % count:
            return None
        each = size // count
        whose.append(torch.div(rows, each, rounding_mode="floor"))
        places.append(torch.stack([torch.full_like(rows, k), rows % each], 1))
    if constant is not None:
        rest = constant.flatten(1)
        if len(rest) % count:
            return None
        values = _in_portions(_ranks(rest), count)
        each = len(rest) // count
        rows = torch.arange(len(rest), device="cpu")
        whose.append(torch.div(rows, each, rounding_mode="floor"))
        places.append(torch.stack([torch.full_like(rows, len(read.gathers)), rows % each], 1))
    owner, place = torch.cat(whose), torch.cat(places)
    if read.order is not None:
        owner, place = owner[read.order.cpu()], place[read.order.cpu()]
    own = torch.arange(count, device="cpu").unsqueeze(1)
    if len(owner) % count or not bool((owner.view(count, -1) == own).all()):
        return None
    return torch.cat([_in_portions(place, count), values], 1)


def _rows(gather: Gather, size: int) -> Tensor:
    """Of the buffer, that are read."""
    if gather.index is not None:
        return gather.index.cpu()
    stop = size if gather.stop is None else gather.stop
    return torch.arange(gather.start or 0, stop, device="cpu")


def _in_portions(rows: Tensor, count: int) -> Tensor | None:
    """Rows ``[n, m]`` as ``[count, n m / count]``; None if they are not so many times as many."""
    return None if len(rows) % count else rows.reshape(count, -1)


def _ranks(values: Tensor) -> Tensor:
    """Equal numbers for equal values, NaN among them."""
    values = values.detach().cpu()
    if values.dtype == torch.bool:
        return values.long()
    found, place = values.unique(return_inverse=True)
    return torch.where(values.isnan(), len(found), place)
