"""Named values: as tensors, and between a graph's unconstrained space and the program's space."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributions import biject_to

from pyrograph.errors import OptionError, ShapeMismatch, UnsupportedSite
from pyrograph.trace.sites import Site, support_on


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
