"""Checks of parameters and values, made where Pyro's validation is on.

Reading the value of a tensor is what a traced program may not do with its latents, and the
tracer turns validation off for its run; shapes are checked always.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyrograph.errors import OptionError, ShapeMismatch
from pyrograph.shapes import broadcast_shapes


def floats(*parameters: float | Tensor) -> tuple[Tensor, ...]:
    """Numbers and tensors as tensors of one floating dtype, the highest, and one device.

    The device is that of the first tensor with dimensions: zero-dimensional ones go anywhere.

    Raises:
        OptionError: one is neither a number nor a tensor.
    """
    tensors = [p for p in parameters if isinstance(p, Tensor)]
    dtype = torch.get_default_dtype()
    if any(t.is_floating_point() for t in tensors):
        dtype = max((t.dtype for t in tensors if t.is_floating_point()), key=lambda d: d.itemsize)
    wide = [t for t in tensors if t.ndim] or tensors
    device = wide[0].device if wide else None
    try:
        return tuple(torch.as_tensor(p, dtype=dtype, device=device) for p in parameters)
    except (TypeError, ValueError) as error:
        raise OptionError(f"parameters are numbers or tensors: {error}") from error


def require_tensor(owner: str, value: Tensor) -> None:
    """Raise unless data are one, of real numbers.

    Raises:
        OptionError: they are something else.
    """
    if not isinstance(value, Tensor):
        raise OptionError(
            f"{owner}: data are {type(value).__name__}; give a tensor, torch.as_tensor(data)"
        )
    if value.is_complex():
        raise OptionError(
            f"{owner}: data are {value.dtype}; give real numbers, data.real, or both parts as two "
            "dimensions, torch.view_as_real(data)"
        )


def require_beside(owner: str, value: Tensor, *labels: Tensor) -> None:
    """Raise unless labels are on the device of the data.

    Raises:
        OptionError: naming both.
    """
    for z in labels:
        if z.device != value.device:
            raise OptionError(
                f"{owner}: data are on {value.device}, labels on {z.device}, where their "
                "concentration is; give it as a tensor beside the data, "
                f'ChineseRestaurant(torch.tensor(1.0, device="{value.device}"), n)'
            )


def validates(validate_args: bool | None) -> bool:
    """Whether a distribution that was given this reads values of its parameters and labels.

    False turns that off; True does not turn it on where validation is off for all, as in the
    tracer's run.
    """
    return Distribution._validate_args and validate_args is not False


def require_positive(
    owner: str, validate_args: bool | None = None, /, **parameters: Tensor
) -> None:
    """Raise unless every entry is finite and above 0.

    Raises:
        OptionError: naming the parameter.
    """
    if validates(validate_args):
        _require(owner, lambda v: (v > 0) & v.isfinite(), "finite and above 0", parameters)


def require_finite(owner: str, **parameters: Tensor) -> None:
    """Raise unless every entry is a finite number.

    Raises:
        OptionError: naming the parameter.
    """
    if validates(None):
        _require(owner, torch.isfinite, "finite", parameters)


def _require(
    owner: str, holds: Callable[[Tensor], Tensor], what: str, parameters: Mapping[str, Tensor]
) -> None:
    for name, value in parameters.items():
        if not bool(holds(value).all()):
            raise OptionError(f"{owner}: {name}={_show(value)} must be {what}")


def require_broadcast(owner: str, what: str = "shapes", **shapes: torch.Size) -> torch.Size:
    """The shape that all broadcast to; ``what`` they are is for the message.

    Raises:
        ShapeMismatch: there is none, naming them all.
    """
    try:
        return broadcast_shapes(*shapes.values())
    except ValueError as error:
        *first, last = shapes
        listed = ", ".join(str(tuple(shape)) for shape in shapes.values())
        raise ShapeMismatch(
            f"{owner}: {', '.join(first)} and {last} have {what} {listed}, which do not broadcast"
        ) from error


def require_value_batch(distribution: Distribution, value: Tensor) -> None:
    """Raise unless the batch of a value, whose event fits, broadcasts with the distribution's.

    Raises:
        ShapeMismatch: naming both.
    """
    batch = value.shape[: value.ndim - len(distribution.event_shape)]
    owner = type(distribution).__name__
    require_broadcast(owner, "batches", value=batch, distribution=distribution.batch_shape)


def require_expansion(owner: str, batch: torch.Size, wanted: Sequence[int]) -> torch.Size:
    """The batch shape that one of shape ``batch`` is expanded to.

    Raises:
        ShapeMismatch: it does not expand to that.
    """
    wanted = torch.Size(wanted)
    missing = len(wanted) - len(batch)
    if missing < 0 or any(b not in (1, w) for b, w in zip(batch, wanted[missing:], strict=True)):
        raise ShapeMismatch(
            f"{owner}: a batch of shape {tuple(batch)} does not expand to {tuple(wanted)}; "
            "dimensions may be added on the left, and those of size 1 take any size"
        )
    return wanted


def require_labels(
    owner: str,
    name: str,
    z: Tensor,
    length: int | None = None,
    validate_args: bool | None = None,
) -> Tensor:
    """A labelling ``[..., n]``.

    Raises:
        ShapeMismatch: it has no dimension of elements, or not ``length`` of them.
        OptionError: it is not made of whole numbers.
    """
    if not isinstance(z, Tensor):
        raise OptionError(
            f"{owner}: {name} is {type(z).__name__}; give a tensor of labels [..., n]"
        )
    if z.ndim == 0 or (length is not None and z.shape[-1] != length):
        wanted = "n" if length is None else length
        raise ShapeMismatch(
            f"{owner}: {name} has shape {tuple(z.shape)}; labels have shape [..., {wanted}], one "
            "label per element in the last dimension"
        )
    if validates(validate_args) and z.is_floating_point() and not bool((z == z.floor()).all()):
        raise OptionError(f"{owner}: {name} holds numbers that are not whole; labels are integers")
    return z


def unbatched(owner: str, parameter: Tensor, event_dim: int = 0) -> Tensor:
    """A parameter without batch dimensions, detached: what incremental scores are made of.

    Raises:
        ShapeMismatch: it has batch dimensions.
    """
    if parameter.ndim > event_dim:
        raise ShapeMismatch(
            f"{owner}: a parameter has shape {tuple(parameter.shape)}; incremental scores are "
            "batched over particles and need one set of parameters, without batch dimensions"
        )
    return parameter.detach()


def _show(value: Tensor) -> str:
    return str(value.item()) if value.numel() == 1 else f"tensor of shape {tuple(value.shape)}"
