"""Sites whose beliefs are gamma or beta distributions because the user asks for it.

A belief exp(a z - b exp(z)), say, takes in what conjugate factors of one node say without error:
priors and likelihoods that the user wrote so. Which factors those are is found by looking.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pyrograph.beliefs import Conjugate, LogGamma, LogitBeta
from pyrograph.errors import OptionError
from pyrograph.graph import FactorGraph
from pyrograph.infer.message_passing.reduction import CHECKS, LocalDensity
from pyrograph.posterior.conjugate import is_image

FAMILIES: dict[str, type[Conjugate]] = {"gamma": LogGamma, "beta": LogitBeta}
#: Largest z at which factors are looked at: further out 1 - expit(z) has too few digits.
REACH = 6.0
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
    z = torch.tensor([-1.0, 0.0, 1.0], dtype=local.like.dtype, device=local.like.device)
    value = local.at_parts(z.view(3, 1, 1, 1).expand(3, 1, local.num_factors, 1)).squeeze(1)
    columns = torch.cat([torch.ones_like(z).unsqueeze(1), family.statistics(z)], 1)
    constant, first, second = torch.linalg.solve(columns, value)
    with torch.no_grad():
        points = local.points(CHECKS, 0).clamp(-REACH, REACH)
        theirs = local.at_parts(points).squeeze(1)
        one, two = family.statistics(points[:, 0, :, 0]).unbind(-1)
        parts = torch.stack([constant.expand_as(one), first * one, second * two])
        near = (theirs - parts.sum(0)).abs() <= local.rounding * (1 + parts.abs().sum(0))
    return family(first, second) if bool(near.all()) else None
