"""Sites whose beliefs are gamma or beta distributions because the user asks for it.

A belief exp(a z - b exp(z)), say, takes in what conjugate factors of one node say without error:
priors and likelihoods that the user wrote so. Which factors those are is found by looking, densely
and far out: behind a threshold a factor may be another.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
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
#: Fewest and most points there, and numbers altogether.
FEWEST, MOST, NUMBERS = 2**9, 2**14, 2**22
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
    columns = torch.cat([torch.ones_like(z).unsqueeze(1), family.statistics(z)], 1)
    terms = torch.linalg.solve(columns, _at_numbers(local, z))
    low, high = REACH[z.dtype]
    count = min(MOST, max(FEWEST, NUMBERS // local.num_factors))
    at = torch.linspace(-low, high if family is LogitBeta else low, count).to(z)
    with torch.no_grad():
        pieces = at.split(max(1, NUMBERS // local.num_factors))
        is_member = all(_is_near(local, family, terms, piece) for piece in pieces)
    return family(*terms[1:]) if is_member else None


def _at_numbers(local: LocalDensity, z: Tensor) -> Tensor:
    """log f ``[N, E]`` at numbers ``[N]``, alike for all factors."""
    points = z.view(-1, 1, 1, 1).expand(-1, 1, local.num_factors, 1)
    return local.at_parts(points).squeeze(1)


def _is_near(local: LocalDensity, family: type[Conjugate], terms: Tensor, z: Tensor) -> bool:
    """Whether factors are what their terms ``[3, E]``, constants first, say at numbers ``[N]``."""
    columns = torch.cat([torch.ones_like(z).unsqueeze(1), family.statistics(z)], 1)
    error = max(local.rounding, NEAR) * (1 + columns.abs() @ terms.abs())
    if family is LogitBeta:  # 1 - expit(z) is rounded
        error = error + 8 * torch.finfo(z.dtype).eps * z.exp().unsqueeze(1) * terms[2].abs()
    return bool(((_at_numbers(local, z) - columns @ terms).abs() <= error).all())
