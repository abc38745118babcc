"""What to do about factors of too many coordinates for a grid."""

from __future__ import annotations

from torch.distributions import constraints

from pyrograph.graph import FactorGraph, FactorGroup
from pyrograph.trace.sites import JACOBIAN, Site


def without_grids(graph: FactorGraph, group: FactorGroup) -> str:
    """What to do about factors of too many coordinates."""
    is_mixed = any(site.is_discrete for site in graph.sites.values())
    engines = "pg.QBethe" if is_mixed else "pg.QBethe or pg.GraphicalSVGD"
    sites = [site for site in group.slots if isinstance(site.support, type(constraints.simplex))]
    if sites:
        name = sites[0].name
        return (
            f'Where the factors of "{name}" are conjugate to it, as a Categorical with these '
            f'weights is, take family={{"{name}": "dirichlet"}}, which needs no grid; or use '
            f"{engines}, without grids over scopes."
        )
    site = group.slots[0]
    own = group.name.removesuffix(JACOBIAN)
    if group.arity > 1:
        first = "Split the statement into ones of fewer nodes, or use "
    elif own == site.name and _has_simplex_rows(site):
        first = (
            f'Where rows of "{site.name}" are independent make each a node of its own (a '
            f'pyro.plate in the place of .to_event, with family={{"{site.name}": "dirichlet"}}), '
            "or use "
        )
    elif not group.name.endswith(JACOBIAN) and group.name not in graph.sites:
        first = (
            f'Where the log density of "{group.name}" is a sum of terms of few coordinates each, '
            "write it as one, with a factor that they share inside of the sum, or use "
        )
    else:
        first = "Use "
    return f"{first}{engines}, without grids over scopes."


def _has_simplex_rows(site: Site) -> bool:
    """Whether values are matrices of probabilities."""
    support = site.support
    is_event = isinstance(support, constraints.independent)
    return is_event and isinstance(support.base_constraint, type(constraints.simplex))
