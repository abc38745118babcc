"""Sites whose beliefs are gamma, beta or Dirichlet distributions because the user asks for it.

A belief exp(a z - b exp(z)), say, takes in what conjugate factors of one node say without error:
priors and likelihoods that the user wrote so; those of a node that discrete nodes choose are
sums of such ones (:mod:`.conjugate_factors`).
"""

from __future__ import annotations

from collections.abc import Mapping

from pyrograph.beliefs import Conjugate, LogDirichlet, LogGamma, LogitBeta
from pyrograph.errors import OptionError
from pyrograph.graph import FactorGraph
from pyrograph.posterior.conjugate import is_image

FAMILIES: dict[str, type[Conjugate]] = {
    "gamma": LogGamma,
    "beta": LogitBeta,
    "dirichlet": LogDirichlet,
}
FITTING = {
    "gamma": "a half-line (Gamma, HalfNormal, LogNormal sites) with a fixed bound",
    "beta": "an interval (Beta, Uniform sites) with fixed bounds",
    "dirichlet": "a simplex (Dirichlet sites, rows of a matrix in a plate and not in an event)",
}


def kinds_of_sites(graph: FactorGraph, family: Mapping[str, str]) -> dict[str, str]:
    """``"discrete"``, ``"normal"``, ``"gamma"``, ``"beta"`` or ``"dirichlet"`` for every site.

    Raises:
        OptionError: an unknown site or family, or a support that the family does not have.
    """
    kinds = {n: "discrete" if s.is_discrete else "normal" for n, s in graph.sites.items()}
    for name, kind in family.items():
        if name not in kinds:
            raise OptionError(f'family names "{name}"; the latent sites are {", ".join(kinds)}')
        if kind not in ("normal", *FAMILIES):
            known = ", ".join(f'"{own}"' for own in FAMILIES)
            raise OptionError(f'family of site "{name}" is {kind!r}, not "normal", {known}')
        if kinds[name] == "discrete":
            raise OptionError(
                f'site "{name}" is discrete and has a categorical belief; family is for '
                "continuous sites"
            )
        site = graph.sites[name]
        if kind in ("gamma", "beta") and site.width != 1:
            raise OptionError(
                f'family={kind!r} is for nodes of one number; those of site "{name}" have '
                f"{site.width}. Put its numbers into a plate instead of an event."
            )
        if kind in FAMILIES and not is_image(FAMILIES[kind], site.support):
            raise OptionError(
                f"family={kind!r} needs a site on {FITTING[kind]}; the support "
                f'of "{name}" is {site.support}.'
            )
        kinds[name] = kind
    return kinds
