"""Arithmetic on messages: how far one moved, and a step of part of the way.

A message is a tensor of log values, one row (or one number) per factor, or a batch of functions
in natural parameters.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrograph.beliefs import Conjugate, Natural
from pyrograph.beliefs.natural import where
from pyrograph.infer.message_passing.network.network import Block
from pyrograph.infer.message_passing.nodes.log_values import finite_peak, is_zero, rows_of

Message = Tensor | Natural
#: Of a mean, a quotient of sums of messages, in units of the dtype's precision.
ROUNDING = 8
#: By block and port.
Messages = list[list[Message]]


def flattened(messages: Messages) -> Tensor:
    """``[N]``: all log values and natural parameters."""
    return torch.cat([p.flatten() for sent in messages for m in sent for p in _parts(m)])


def unflattened(numbers: Tensor, like: Messages) -> Messages:
    """Inverse of :func:`flattened`, for messages of these shapes."""
    taken = iter(numbers.split([p.numel() for sent in like for m in sent for p in _parts(m)]))

    def take(message: Message) -> Message:
        parts = [next(taken).view_as(p) for p in _parts(message)]
        return type(message)(*parts) if isinstance(message, Natural) else parts[0]

    return [[take(m) for m in sent] for sent in like]


def _parts(message: Message) -> list[Tensor]:
    return [*message.parameters().values()] if isinstance(message, Natural) else [message]


def damped(old: Message, new: Message, step: float, chosen: Tensor | None) -> Message:
    """The share ``step`` of the way from old to new, in log values or natural parameters.

    A zero is final: it is taken over at once.

    Args:
        chosen: ``[E]`` which messages move; None for all.
    """
    if isinstance(old, Natural):
        moved = new if step == 1 else old + step * (new - old)
        return moved if chosen is None else where(chosen, moved, old)
    moved = new
    if step != 1:
        moved = torch.lerp(old, new, step)
        if new.dim() == 2:
            moved = torch.where(is_zero(new) | is_zero(old), new, moved)
    if chosen is None:
        return moved
    return torch.where(chosen if old.dim() == 1 else chosen.unsqueeze(1), moved, old)


def change(old: Message, new: Message, own: Tensor | None = None, by_factor: bool = True) -> Tensor:
    """``[E]``: largest change of a log value; of the others see :func:`movement`.

    Args:
        by_factor: with False ``[1]``, the largest of all factors, in a fraction of the time.
        own: beliefs of the nodes, ``[E, c]`` log values, where hard constraints are about. States
            whose belief is smaller than the square of the dtype's precision beside the largest
            count as settled while they fall: on their way to a zero their logs never come to rest.
            One that rises may be on its way back, a little by each of several messages.
    """
    if isinstance(old, Natural):
        like = next(iter(old.parameters().values()))
        return like.new_zeros(len(like))
    gap = (new - old).abs_()
    if not by_factor and own is None and gap.numel():
        return gap.amax().unsqueeze(0)
    if gap.dim() == 1:
        return gap
    if own is None:
        return gap.amax(1)
    tiny = 2 * math.log(torch.finfo(new.dtype).eps)
    before = own - finite_peak(own)
    gone = (before < tiny) & (new < old) & ~is_zero(new)
    gone = torch.where(is_zero(old), new < tiny, gone)
    return torch.where((new == old) | gone, 0.0, gap).amax(1)


def changes(
    block: Block,
    old: list[Message],
    new: list[Message],
    beliefs: list[Tensor | Natural],
    by_factor: bool = True,
) -> list[Tensor]:
    """:func:`change` of every message of a block, ``[E]`` or ``[1]`` a port."""
    own: list[Tensor | None] = [None] * len(old)
    if block.has_zeros:
        pairs = zip(block.families, block.rows, strict=True)
        own = [
            rows_of(beliefs[f], rows) if isinstance(m, Tensor) else None
            for m, (f, rows) in zip(old, pairs, strict=True)
        ]
    return [change(*parts, by_factor) for parts in zip(old, new, own, strict=True)]


def with_discrete_of(new: Messages, old: Messages) -> Messages:
    """New messages to discrete nodes beside old ones to continuous nodes."""
    return [
        [a if isinstance(a, Tensor) else b for a, b in zip(*ports, strict=True)]
        for ports in zip(new, old, strict=True)
    ]


def largest(moves: list[list[Tensor]], like: Tensor) -> Tensor:
    """The largest change of all, ``[]``, and 0 where there are none."""
    largest = like
    for value in (value for block in moves for value in block if len(value)):
        largest = torch.maximum(largest, value.amax())
    return largest


def movement(old: Natural, new: Natural) -> Tensor:
    """``[V]``: how far beliefs moved, in units of their own width.

    The largest change of a mean in standard deviations, or of a variance relative to itself; of
    improper beliefs the change of the natural parameters, in units of the precision's diagonal. A
    mean that moves by no more than rounding has come to rest: those of times in seconds since 1970
    that are known to a second would go round in their last digits for ever.
    """
    proper = new.is_proper & old.is_proper
    if isinstance(new, Conjugate):
        gap = (new.natural - old.natural).abs()
        moved = (gap / new.natural.abs().clamp_min(1)).amax(-1)
        return torch.where(proper, torch.maximum(moved, _of_normals(old, new)), moved)
    moved = _of_normals(old, new)
    if bool(proper.all()):
        return moved
    tiny = torch.finfo(new.shift.dtype).tiny
    scale = new.precision.diagonal(dim1=-2, dim2=-1).abs().clamp_min(tiny).sqrt()
    gap = (new.precision - old.precision) / (scale.unsqueeze(-1) * scale.unsqueeze(-2))
    pull = ((new.shift - old.shift) / scale).abs().amax(-1)
    return torch.where(proper, moved, torch.maximum(gap.abs().flatten(-2).amax(-1), pull))


def _of_normals(old: Natural, new: Natural) -> Tensor:
    """Change of mean and variance, ``[V]``."""
    variance = new.variance
    spread = (old.variance / variance - 1).abs().amax(-1)
    mean = new.mean
    gap = (mean - old.mean).abs()
    gap = torch.where(gap <= ROUNDING * torch.finfo(gap.dtype).eps * mean.abs(), 0.0, gap)
    return torch.maximum(spread, (gap / variance.sqrt()).amax(-1))
