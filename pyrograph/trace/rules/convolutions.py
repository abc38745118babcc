"""Convolutions, as patches times the kernel.

    out[n, o, p] = bias[o] + sum_{c, k} x[n, c, i(p, k)] w[o, c, k],    i(p, k) = s p + d k - b

with stride s, dilation d and padding b along each axis; transposed, the i with s i + d k - b = p,
if there is one. Outside the image x is a constant zero, which like a zero of the kernel is no
dependence. A filter has a sum of products per output, which may be split into its terms; a layer,
of many numbers a patch, has one block per place, so that a patch is gathered once for all outputs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyrograph.trace.rules.fallback import dense
from pyrograph.trace.tape import Rule

if TYPE_CHECKING:
    from pyrograph.trace.record import Recorder

#: Products per place beyond which a convolution of several outputs is a layer.
LAYER = 200
#: Reads beyond which a convolution is one dense block.
MAX_READS = 32_000_000


def replay_layer(func: Any, static: tuple, operands: list[Tensor]) -> Tensor:
    """Patches ``[count, k, S]`` times a constant kernel ``[1, k, outputs, 1]``."""
    patches, kernel = operands
    return kernel[..., 0].mT @ patches


def convolution(rec: Recorder, func, args, kwargs):
    x, w, bias, stride, padding, dilation, transposed, output_padding, groups = args
    sizes = zip(x.shape[2:], w.shape[2:], stride, padding, dilation, output_padding, strict=True)
    inside = [_positions(*size, transposed, x.device) for size in sizes]
    places = [len(i) for i in inside]
    outputs = w.shape[1] * groups if transposed else w.shape[0]
    is_layer = groups == 1 < outputs and w.numel() > LAYER and not rec.is_latent(w)
    reads = len(x) * math.prod(places) * w.numel() // (outputs if is_layer else 1)
    if reads > MAX_READS:
        return dense(rec, func, args, kwargs)
    with rec.again():
        patches, kernel = _patches(x, inside, groups), _kernel(w, transposed, groups)
    if is_layer:
        out = func(x, w, None, *args[3:], **kwargs)
        _emit_layer(rec, patches, kernel, out)
    with rec.again():
        if not is_layer:
            out = (patches @ kernel).transpose(2, 3).reshape(len(x), outputs, *places)
        return out if bias is None else out + bias.view(-1, *(1,) * len(places))


def _emit_layer(rec: Recorder, patches: Tensor, kernel: Tensor, out: Tensor) -> None:
    """One block per place, of all outputs there."""
    operands = [rec.operand(patches, lambda t: t, 1), rec.operand(kernel, lambda t: t, 2)]
    by_place = out.flatten(2).transpose(1, 2)
    rec.emit(Rule(replay_layer, None), out.shape[1], operands, by_place, [patches])


def _positions(
    length: int,
    kernel: int,
    stride: int,
    padding: int,
    dilation: int,
    output_padding: int,
    transposed: bool,
    device: torch.device,
) -> Tensor:
    """``[places, kernel]`` positions along one axis that are read; ``length`` for a zero."""
    reach = dilation * (kernel - 1)
    k = dilation * torch.arange(kernel, device=device)
    if transposed:
        places = (length - 1) * stride - 2 * padding + reach + output_padding + 1
        at = torch.arange(places, device=device).unsqueeze(1) + padding - k
        i = torch.div(at, stride, rounding_mode="floor")
        met = at == i * stride
    else:
        places = (length + 2 * padding - reach - 1) // stride + 1
        i = stride * torch.arange(places, device=device).unsqueeze(1) + k - padding
        met = torch.ones_like(i, dtype=torch.bool)
    return torch.where(met & (i >= 0) & (i < length), i, length)


def _patches(x: Tensor, inside: list[Tensor], groups: int) -> Tensor:
    """``[N, groups, places, channels * kernel]`` of an image ``[N, C, *spatial]``."""
    axes = len(inside)
    padded = torch.nn.functional.pad(x, (0, 1) * axes)
    index = [
        i.view(_along(k, axes, len(i)) + _along(k, axes, i.shape[1])) for k, i in enumerate(inside)
    ]
    found = padded[(slice(None), slice(None), *index)]
    places, kernel = (math.prod(i.shape[k] for i in inside) for k in (0, 1))
    found = found.reshape(len(x), groups, -1, places, kernel).transpose(2, 3)
    return found.reshape(len(x), groups, places, -1)


def _along(axis: int, axes: int, length: int) -> tuple[int, ...]:
    """A shape that is 1 but for one axis."""
    return (1,) * axis + (length,) + (1,) * (axes - axis - 1)


def _kernel(w: Tensor, transposed: bool, groups: int) -> Tensor:
    """``[groups, channels * kernel, columns]``."""
    if transposed:  # [C, columns, *kernel]
        w = w.reshape(groups, w.shape[0] // groups, w.shape[1], -1).transpose(2, 3)
        return w.reshape(groups, -1, w.shape[3])
    return w.reshape(groups, w.shape[0] // groups, -1).transpose(1, 2)
