"""What to do about large grids that a Dirichlet belief would do without.

The weights of labels, and the rows of confusion matrices, have Gaussian beliefs in unconstrained
space unless others are asked for, and factors grids in K - 1 numbers for each state of a label. As
Dirichlet nodes they need none: of 45 items that seven annotators gave one of four labels to a sweep
takes milliseconds for seconds.
"""

from __future__ import annotations

import warnings

from torch.distributions import constraints

from pyrograph.beliefs import LogDirichlet
from pyrograph.errors import SlowWarning
from pyrograph.infer.message_passing.continuous.conjugate_terms import conjugate_terms
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.network.grid_sizes import numbers_in_states
from pyrograph.infer.message_passing.network.node_families import NodeFamilies
from pyrograph.infer.message_passing.network.same_scope import Locals
from pyrograph.trace.sites import JACOBIAN

#: Numbers that a sweep computes on the grids of like factors from which on it takes seconds.
MANY = 2**24


def warn_of_slow_grids(nodes: NodeFamilies, part: Locals, gridded: int) -> None:
    """Warn of factors on large grids that are conjugate to nodes on simplexes.

    Args:
        part: factors with Gaussian beliefs; gridded: numbers that their grids are in.
    """
    sites = [site for site in part.group.slots if not site.is_discrete]
    is_simplex = all(isinstance(site.support, type(constraints.simplex)) for site in sites)
    is_own = part.group.name.removesuffix(JACOBIAN) in {site.name for site in sites}
    if not is_simplex or is_own or numbers_in_states(part.local, gridded) < MANY:
        return
    whole = LocalDensity(part.group, part.index[:1], nodes.like, nodes.graph, is_whole=True)
    if conjugate_terms(whole.in_double(), [LogDirichlet] * len(sites)) is None:
        return
    names = ", ".join(f'"{name}": "dirichlet"' for name in dict.fromkeys(s.name for s in sites))
    warnings.warn(
        f'Factors of "{part.group.name}" are integrated on large grids, in {gridded} dimensions. '
        "They are conjugate to their sites on simplexes: with "
        f"family={{{names}}} they need no grid.",
        SlowWarning,
        stacklevel=2,
    )
