"""Named values: as tensors, and between a graph's unconstrained space and the program's space."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.distributions import biject_to, constraints

from pyrograph.errors import OptionError, ShapeMismatch, UnsupportedSite
from pyrograph.trace.sites import Site
from pyrograph.trace.supports import support_on


def as_tensors(
    sites: list[Site], values: Mapping[str, object], device: torch.device
) -> dict[str, Tensor]:
    """The sites' values as tensors: numbers, lists and arrays are made into some.

    Raises:
        ShapeMismatch: a site has no value.
        OptionError: the values have no names, or one is no number at all.
    """
    if not isinstance(values, Mapping):
        raise OptionError(
            f"values are a {type(values).__name__}; give {{site: tensor}}, or flat particles to "
            f"graph.density."
        )
    missing = [s.name for s in sites if s.name not in values]
    if missing:
        raise ShapeMismatch(
            f"values miss {', '.join(missing)}; of the latent sites "
            f"{', '.join(s.name for s in sites)} each needs one."
        )
    return {s.name: _as_tensor(s, values[s.name], device) for s in sites}


def _as_tensor(site: Site, value: object, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        return value
    dtype = site.dtype if site.dtype.is_floating_point else None  # a state is not rounded
    try:
        return torch.as_tensor(value, dtype=dtype, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(
            f"value of {site.describe()} is a {type(value).__name__}, of which no tensor can be "
            f"made ({error}); give a tensor of shape {list(site.batch_shape + site.event_shape)}."
        ) from error


def leaf_buffers(sites: list[Site], values: Mapping[str, Tensor]) -> tuple[list[Tensor], bool]:
    """Buffers ``[numel, S]`` of the sites' values, and whether they were batched.

    Args:
        values: by site, ``[*batch, *event]`` or all with one more leading dimension S.

    Raises:
        ShapeMismatch: a value has another shape, or another S than others.
    """
    buffers, lead = [], None
    refuse_shapes(sites, values)
    for site in sites:
        value, shape = values[site.name], site.batch_shape + site.event_shape
        mine = value.shape[0] if value.dim() > len(shape) else None
        if buffers and mine != lead:
            raise ShapeMismatch(
                f'value of site "{site.name}" has leading size {mine}, others have {lead}; '
                f"either every value has one more leading dimension than its site, or none."
            )
        lead = mine
        flat = value.reshape(1 if mine is None else mine, site.num_nodes * site.width)
        buffers.append(flat.t().contiguous() if mine != 1 else flat.t())
    return buffers, lead is not None


def refuse_shapes(sites: list[Site], values: Mapping[str, Tensor]) -> None:
    """Raise unless values are ``[*batch, *event]``, or have one more leading dimension.

    Raises:
        ShapeMismatch: one does not.
    """
    for site in sites:
        value, shape = values[site.name], site.batch_shape + site.event_shape
        extra = value.dim() - len(shape)
        if extra not in (0, 1) or tuple(value.shape[extra:]) != shape:
            raise ShapeMismatch(
                f'value of site "{site.name}" has shape {tuple(value.shape)}; expected '
                f"{list(shape)} or [S, *{list(shape)}]."
            )


def refuse_other_particles(x: Tensor, dim: int) -> None:
    """Raise unless flat particles are ``[n, dim]``.

    Raises:
        ShapeMismatch, OptionError: they are not.
    """
    if not isinstance(x, Tensor):
        raise OptionError(f"particles are a {type(x).__name__}; give a tensor [n, {dim}].")
    if x.dim() != 2 or x.shape[1] != dim:
        raise ShapeMismatch(f"particles have shape {tuple(x.shape)}; expected [n, {dim}].")


def refuse_outside(sites: list[Site], values: Mapping[str, object], device: torch.device) -> None:
    """Raise unless values lie in the supports, as far as these are known without the program.

    Raises:
        OptionError: one does not.
    """
    for site in sites:
        if site.support is None:
            continue
        value = _as_tensor(site, values[site.name], device).detach()
        if value.numel() and not _lies_in(support_on(site.support, value.device), value):
            raise OptionError(
                f"a value of {site.describe()} is outside its support, {site.support}: the program "
                "has no density there."
            )


def _lies_in(support: constraints.Constraint, value: Tensor) -> bool:
    inside = support.check(value).all()
    return is_functorch_wrapped_tensor(inside) or bool(
        inside
    )  # inside torch.func.vmap nobody knows


def refuse_moved(fixed: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Raise unless sites that were fixed when the structure was read keep their values.

    Raises:
        ShapeMismatch: one does not.
    """
    for name, value in values.items():
        if not bool((value == fixed[name].to(value)).all()):
            raise ShapeMismatch(
                f'site "{name}" was fixed when the structure was read; its value cannot change. '
                f"Trace again with the other value."
            )


def constrain(
    sites: list[Site], values: Mapping[str, Tensor], device: torch.device
) -> dict[str, Tensor]:
    """``biject_to(support)`` of every continuous site; leading dimensions pass through."""
    return {
        s.name: values[s.name]
        if s.is_discrete
        else biject_to(support_on(s.support, device))(values[s.name])
        for s in sites
    }


def unconstrain(
    sites: list[Site], values: Mapping[str, Tensor], device: torch.device
) -> dict[str, Tensor]:
    """Inverse of :func:`constrain`.

    Raises:
        UnsupportedSite: a support depends on latents.
    """
    for site in sites:
        if site.support is None:
            raise UnsupportedSite(
                f"{site.describe()} has a support that depends on other latents, so its values "
                f"cannot be mapped to unconstrained space apart from them. Give values in "
                f"unconstrained space, or write the site with a fixed support."
            )
    return {
        s.name: values[s.name]
        if s.is_discrete
        else biject_to(support_on(s.support, device)).inv(values[s.name])
        for s in sites
    }
