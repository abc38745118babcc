"""Sites whose beliefs are gamma or beta distributions because the user asks for it.

A belief exp(a z - b exp(z)), say, takes in what conjugate factors of one node say without error:
priors and likelihoods that the user wrote so; those of a number that discrete nodes choose are
sums of such ones (:mod:`.conjugate_factors`). Which factors those are is found by looking, densely
and far out: behind a threshold a factor may be another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from pyro.distributions import constraints
from torch import Tensor

from pyrograph.beliefs import Conjugate, LogGamma, LogitBeta
from pyrograph.errors import OptionError
from pyrograph.graph import FactorGraph
from pyrograph.infer.message_passing.reduction import LocalDensity
from pyrograph.posterior.conjugate import is_image

FAMILIES: dict[str, type[Conjugate]] = {"gamma": LogGamma, "beta": LogitBeta}
#: How far factors are looked at: from -z to z, and to a smaller z where 1 - expit(z) has too few
#: digits further out.
REACH = {torch.float64: (30.0, 20.0), torch.float32: (13.0, 6.0)}
#: What a factor may be off by, as a share of its terms.
NEAR = 1e-7
#: Fewest and most points there, and numbers altogether. Where factors are tens of thousands, what
#: none of the others has can be missed in one of them if it is narrower than x to 1.6 x.
FEWEST, MOST, NUMBERS = 2**7, 2**14, 2**22
#: Numbers at once: what stays in a cache.
CHUNK = 2**18
#: Shifts of the points by factor.
GOLDEN = (5**0.5 - 1) / 2
FITTING = {
    "gamma": "a half-line (Gamma, HalfNormal, LogNormal sites)",
    "beta": "an interval (Beta, Uniform sites)",
}


def kinds_of_sites(graph: FactorGraph, family: Mapping[str, str]) -> dict[str, str]:
    """``"discrete"``, ``"normal"``, ``"gamma"`` or ``"beta"`` for every site.

    Raises:
        OptionError: an unknown site or family, or a support that the family does not have.
    """
    kinds = {n: "discrete" if s.is_discrete else "normal" for n, s in graph.sites.items()}
    for name, kind in family.items():
        if name not in kinds:
            raise OptionError(f'family names "{name}"; the latent sites are {", ".join(kinds)}')
        if kind not in ("normal", *FAMILIES):
            raise OptionError(
                f'family of site "{name}" is {kind!r}, not "normal", "gamma" or "beta"'
            )
        if kinds[name] == "discrete":
            raise OptionError(
                f'site "{name}" is discrete and has a categorical belief; family is for '
                "continuous sites"
            )
        site = graph.sites[name]
        if kind in FAMILIES and site.width != 1:
            raise OptionError(
                f'family={kind!r} is for nodes of one number; those of site "{name}" have '
                f"{site.width}. Put its numbers into a plate instead of an event."
            )
        if kind in FAMILIES and not is_image(FAMILIES[kind], site.support):
            raise OptionError(
                f"family={kind!r} needs a site on {FITTING[kind]} with fixed bounds; the support "
                f'of "{name}" is {site.support}.'
            )
        kinds[name] = kind
    return kinds


def member(local: LocalDensity, family: type[Conjugate]) -> Conjugate | None:
    """What factors of one node are as functions of a family, up to constants, if they all are."""
    terms = _terms(local.at_numbers, local, local.num_factors, family)
    return None if terms is None else family(*terms[1:])


def members_in_states(
    local: LocalDensity, family: type[Conjugate]
) -> tuple[Tensor, Conjugate] | None:
    """What factors of a single number u are in every state of their discrete nodes, as functions of
    a family, if they all are: log scales ``[D, E]``, minus infinity for zeros, and functions."""
    size = local.num_states, local.num_factors
    like = local.like.new_zeros(1, *size, 1)
    zeros = (local(like) == -torch.inf).flatten()

    def values(z: Tensor) -> Tensor:
        found = local(z.view(-1, *size, 1)).flatten(1)
        # a zero has to be one everywhere, and counts as a constant
        return torch.where(zeros, torch.where(found == -torch.inf, 0.0, torch.nan), found)

    terms = _terms(values, local, len(zeros), family)
    if terms is None:
        return None
    scale, *natural = (term.view(size) for term in terms)
    return scale.masked_fill(zeros.view(size), -torch.inf), family(*natural)


def _terms(
    values: Callable[[Tensor], Tensor], local: LocalDensity, count: int, family: type[Conjugate]
) -> Tensor | None:
    """Coefficients ``[3, F]``, constants first, of F functions of one number, None if some are not
    of the family.

    Args:
        values: log values ``[N, F]`` at ``[N, F]``; local: whose they are; count: F.
    """
    like = local.like
    own = {local.group.slots[k].dtype for k in local.continuous}
    # a limit of the program's is at its own precision
    low, high = REACH[torch.float32 if torch.float32 in (*own, like.dtype) else torch.float64]
    high = high if family is LogitBeta else low
    three = torch.tensor([-low / 3, 0.0, high / 3], device="cpu").to(like)
    columns = torch.cat([torch.ones_like(three).unsqueeze(1), family.statistics(three)], 1)
    terms = torch.linalg.solve(columns, values(three.unsqueeze(1).expand(-1, count)))
    # fewer points of each of many factors, but others of every one
    number = min(MOST, max(FEWEST, NUMBERS // count))
    shift = (GOLDEN * torch.arange(count, dtype=torch.float64, device="cpu")).frac()
    rounding = _rounding(local, family)
    with torch.no_grad():
        for piece in torch.arange(number, device="cpu").split(max(1, CHUNK // count)):
            z = -low + (low + high) * (piece.unsqueeze(1) + shift) / number
            z = z.to(like)
            if not _is_near(values(z), local, family, terms, z, rounding):
                return None
    return terms


def _rounding(local: LocalDensity, family: type[Conjugate]) -> tuple[float, float]:
    """Errors of expit(z) and 1 - expit(z) in units of the precision: of x between bounds a and b
    the distances to these are known to |a| and |b|."""
    if family is not LogitBeta:
        return 0.0, 0.0
    of_sites = [_rounding_of(local.group.slots[k].support) for k in local.continuous]
    return tuple(max(errors) for errors in zip(*of_sites, strict=True))


def _rounding_of(support: constraints.Constraint) -> tuple[float, float]:
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    bounds = [
        torch.as_tensor(bound, device="cpu") for bound in (support.lower_bound, support.upper_bound)
    ]
    length = bounds[1] - bounds[0]
    return tuple(8 * float((bound.abs() / length).amax()) for bound in bounds)


def _is_near(
    values: Tensor,
    local: LocalDensity,
    family: type[Conjugate],
    terms: Tensor,
    z: Tensor,
    rounding: tuple[float, float],
) -> bool:
    """Whether log values ``[N, F]`` are what the terms ``[3, F]``, constants first, say at z."""
    one, two = family.statistics(z).unbind(-1)
    parts = [terms[0].expand_as(z), terms[1] * one, terms[2] * two]
    error = max(local.rounding, NEAR) * (1 + sum(part.abs() for part in parts))
    if any(rounding):
        eps = torch.finfo(z.dtype).eps
        error = error + eps * rounding[0] * (-z).exp() * terms[1].abs()
        error = error + eps * rounding[1] * z.exp() * terms[2].abs()
    return bool(((values - sum(parts)).abs() <= error).all())
