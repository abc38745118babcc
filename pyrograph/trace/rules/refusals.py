"""What cannot be read: control flow, random draws and shapes that depend on latents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_flatten

from pyrograph.errors import RandomDrawError, UnsupportedOperation
from pyrograph.trace.places import is_in_assertion

if TYPE_CHECKING:
    from pyrograph.trace.record import Recorder

aten = torch.ops.aten


CONTROL = {
    aten._local_scalar_dense.default,
    aten.is_nonzero.default,
    aten.equal.default,
    aten.allclose.default,
    aten._is_all_true.default,
    aten._is_any_true.default,
}


def refuse_control_flow(rec: Recorder, func, args, kwargs):
    if is_in_assertion():
        return func(*args, **kwargs)
    latent = next(a for a in args if rec.is_latent(a))
    what = "if, float(), int(), bool() or .item()" if "local_scalar" in str(func) else str(func)
    raise rec.control_flow(what, latent)


def refuse_random(rec: Recorder, func, args, kwargs):
    latent = next(a for a in tree_flatten((args, kwargs))[0] if rec.is_latent(a))
    raise RandomDrawError(
        f"{rec.place()}: {func} draws random numbers that depend on {rec.sites_behind(latent)}. "
        f"Draw them with pyro.sample, so that they are a site of the model."
    )


def refuse_reinterpretation(rec: Recorder, func, args, kwargs):
    raise UnsupportedOperation(
        f"{rec.place()}: the bits of {rec.sites_behind(args[0])} are reinterpreted as another "
        f"dtype; convert with .to(dtype)."
    )


def refuse_least_squares(rec: Recorder, func, args, kwargs):
    """How many residuals it returns depends on a rank; the solution alone has rules."""
    latent = next(a for a in args if rec.is_latent(a))
    raise UnsupportedOperation(
        f"{rec.place()}: torch.linalg.lstsq of {rec.sites_behind(latent)} is not followed. Write "
        f"its solution as torch.linalg.pinv(A) @ b."
    )


def refuse_ctc_loss(rec: Recorder, func, args, kwargs):
    """Tagged as of a shape that depends on numbers: those are the lengths, not the latents."""
    latent = next(a for a in args if rec.is_latent(a))
    raise UnsupportedOperation(
        f"{rec.place()}: ctc_loss of {rec.sites_behind(latent)} is not followed. Write its forward "
        f"recursion: one torch.logsumexp over the labels that may come before, per time step."
    )


def refuse_shape(rec: Recorder, func, args, kwargs):
    raise rec.latent_shape(func, next(a for a in args if rec.is_latent(a)))
