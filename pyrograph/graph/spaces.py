"""Between a graph's unconstrained space and the program's space, site by site."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributions import biject_to

from pyrograph.errors import UnsupportedSite
from pyrograph.trace.sites import Site, support_on


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
