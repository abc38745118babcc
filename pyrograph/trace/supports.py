"""Supports: where a distribution's values lie, their bounds, and the map from the reals to them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator

import torch
from pyro.distributions import MaskedDistribution
from torch import Tensor
from torch.distributions import Independent, TransformedDistribution, biject_to, constraints
from torch.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    IndependentTransform,
    Transform,
)

from pyrograph.errors import UnsupportedSite

#: Of the real line, of which copies may be about.
REAL = type(constraints.real)


def name_of(fn: object) -> str:
    """The user's distribution under ``Independent``, ``expand`` and mask wrappers."""
    while hasattr(fn, "base_dist") and type(fn).__name__ in (
        "Independent",
        "ExpandedDistribution",
        "MaskedDistribution",
    ):
        fn = fn.base_dist
    return type(fn).__name__


def support_of(fn: object, name: str | None = None) -> constraints.Constraint:
    """A distribution's support; that of a mixture is its components'. A finite one is discrete.

    Raises:
        UnsupportedSite: it says none.
    """
    try:
        # an AttributeError within a property is the user's to see
        if not (hasattr(type(fn), "support") or "support" in vars(fn)):
            raise NotImplementedError
        support = _affine_image(fn) or fn.support
    except NotImplementedError as error:
        site = name_of(fn) if name is None else f'site "{name}" ({name_of(fn)})'
        raise UnsupportedSite(
            f"{site} says no support, so it is not known whether its values are continuous or "
            f"discrete. Give its class, or a subclass of it, one: support = "
            f"torch.distributions.constraints.real, or whatever holds its values."
        ) from error
    while type(support).__name__ == "MixtureSameFamilyConstraint":
        support = support.base_constraint
    if _is_list(fn, support):
        support = copy.copy(support)
        support.is_discrete = True
    return support


def _affine_image(fn: object) -> constraints.Constraint | None:
    """The support of a bounded distribution that is shifted and scaled by numbers, None of others.

    Torch says all real numbers, whatever is scaled: a Beta stretched over (-1, 1) would be a
    density on the real line, NaN beyond.
    """
    if isinstance(fn, MaskedDistribution):
        return _affine_image(fn.base_dist)
    if isinstance(fn, Independent):
        image = _affine_image(fn.base_dist)
        rank = fn.reinterpreted_batch_ndims
        return image and constraints.independent(image, rank) if rank else image
    if not isinstance(fn, TransformedDistribution) or not _says_codomain(fn):
        return None
    parts = list(_flat(fn.transforms))
    moves = list(itertools.takewhile(lambda m: m is not None, map(_affine, reversed(parts))))
    if not moves:
        return None
    rest = parts[: len(parts) - len(moves)]
    image = rest[-1].codomain if rest else support_of(fn.base_dist)
    while isinstance(image, constraints.independent):
        image = image.base_constraint
    low, high = (getattr(image, f"{end}_bound", None) for end in ("lower", "upper"))
    if image.is_discrete or low is high or any(isinstance(b, Tensor) for b in (low, high)):
        return None
    for loc, scale in reversed(moves):
        ends = [None if bound is None else loc + scale * bound for bound in (low, high)]
        low, high = ends if scale > 0 else reversed(ends)
    if low is None:
        image = constraints.less_than(high)
    elif high is None:
        image = constraints.greater_than(low)
    else:
        image = constraints.interval(low, high)
    rank = len(fn.event_shape)
    return constraints.independent(image, rank) if rank else image


def _says_codomain(fn: TransformedDistribution) -> bool:
    """Whether the support is torch's, not one that a class or an object of it gives."""
    return type(fn).support is TransformedDistribution.support and "support" not in vars(fn)


def _flat(transforms: Iterable[Transform]) -> Iterator[Transform]:
    for t in transforms:
        if isinstance(t, ComposeTransform):
            yield from _flat(t.parts)
        elif isinstance(t, IndependentTransform):
            yield from _flat([t.base_transform])
        else:
            yield t


def _affine(t: Transform) -> tuple[float, float] | None:
    """Shift and scale of a transform that does so by numbers."""
    if type(t) is AffineTransform and not any(isinstance(v, Tensor) for v in (t.loc, t.scale)):
        return t.loc, t.scale
    inverse = t.inv if type(t).__name__ == "_InverseTransform" else None
    forward = None if inverse is None else _affine(inverse)
    return None if forward is None else (-forward[0] / forward[1], 1 / forward[1])


def _is_list(fn: object, support: constraints.Constraint) -> bool:
    """Whether a support is a finite list of values without saying so, as that of Pyro's matchings.

    Empirical says that it is the real line, and its list may name a value twice: believed.
    """
    may_be = fn.has_enumerate_support and not fn.batch_shape  # Pyro lists no batches of matchings
    believed = isinstance(support, (REAL, constraints.independent))
    return may_be and not support.is_discrete and not believed


def is_real(support: constraints.Constraint | None) -> bool:
    """Whether a support is all real numbers; one whose bounds depend on latents, None, is not."""
    return isinstance(of_elements(support), REAL)


def of_elements(support: constraints.Constraint | None) -> constraints.Constraint | None:
    """The support of what values of several dimensions consist of."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def bounds_of(support: constraints.Constraint) -> list[Tensor]:
    """The tensors by which a support is limited."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return [bound for bound in vars(support).values() if isinstance(bound, Tensor)]


def with_bounds(
    support: constraints.Constraint, change: Callable[[Tensor], Tensor]
) -> constraints.Constraint:
    """The same constraint with every bound changed, a tensor within whatever wraps it."""
    changed = copy.copy(support)
    for name, value in vars(support).items():
        if isinstance(value, Tensor):
            object.__setattr__(changed, name, change(value))
        elif isinstance(value, constraints.Constraint):
            object.__setattr__(changed, name, with_bounds(value, change))
    return changed


def support_on(support: constraints.Constraint, device: torch.device) -> constraints.Constraint:
    """The same constraint with its bounds on another device."""
    return with_bounds(support, lambda bound: bound.to(device))


def transform_of(support: constraints.Constraint, name: str, fn: object):
    """The bijection from the reals, with an error that names the site."""
    try:
        return biject_to(support)
    except NotImplementedError as error:
        raise UnsupportedSite(
            f'site "{name}" ({name_of(fn)}) has support {support}, for which no map from the reals '
            f"is registered; use a distribution with a standard support, or register a transform "
            f"with torch.distributions.biject_to.register."
        ) from error
