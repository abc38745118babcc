"""Swendsen-Wang: Ising lattices without a field by cluster flips.

Equal neighbours are tied with probability 1 - exp(-2 beta); every tied component takes a new
common spin. Both modes of a strong coupling are visited.

Source: Swendsen & Wang (1987).
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components


def swendsen_wang(
    edges: ndarray, beta: float, sweeps: int, burn_in: int, rng: np.random.Generator
) -> ndarray:
    """Spins ``[sweeps, V]`` of -1 and 1; ``edges`` is ``[E, 2]``."""
    nodes = int(edges.max()) + 1
    x = rng.choice([-1, 1], nodes)
    out = np.empty((sweeps, nodes), dtype=np.int64)
    for step in range(burn_in + sweeps):
        tied = (x[edges[:, 0]] == x[edges[:, 1]]) & (rng.random(len(edges)) < -np.expm1(-2 * beta))
        a, b = edges[tied].T
        tie = coo_matrix((np.ones(len(a)), (a, b)), shape=(nodes, nodes))
        count, label = connected_components(tie, directed=False)
        x = rng.choice([-1, 1], count)[label]
        if step >= burn_in:
            out[step - burn_in] = x
    return out
