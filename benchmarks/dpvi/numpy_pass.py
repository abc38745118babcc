"""One forward pass of DPVI over a Dirichlet process mixture, vectorised by hand in numpy.

What a program of one's own would be without a library: no distributions, no devices, one model.
Every particle has its own sums of every cluster, clusters are numbered by first appearance, and
particles are extended by all clusters at once. Normal components with unknown means and variances
as in ``pg.distributions.NormalInverseGamma``, mean 0.

Source: Saeedi et al. (2017), section 3.3 and eqs (16) to (19).
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray
from scipy.special import gammaln, logsumexp

#: Clusters there is room for at first, and by how many there are more when they run out.
ROOM = 12


def forward_pass(
    x: ndarray, count: int, alpha: float, kappa: float, a: float, b: float
) -> tuple[ndarray, float]:
    """Labels ``[K, n]`` and the bound of points ``[n, d]``."""
    n, d = x.shape
    half = np.arange(n + 1) / 2
    rise = gammaln(a + half + 0.5) - gammaln(a + half)
    sizes, used = np.zeros((1, ROOM), dtype=np.int64), np.zeros(1, dtype=np.int64)
    sums, squares = np.zeros((1, ROOM, d)), np.zeros((1, ROOM, d))
    labels, score = np.zeros((1, n), dtype=np.int16), np.zeros(1)
    for t, y in enumerate(x):
        width = used.max() + 1
        if width == sizes.shape[1]:
            sizes = np.pad(sizes, ((0, 0), (0, ROOM)))
            sums, squares = (np.pad(v, ((0, 0), (0, ROOM), (0, 0))) for v in (sums, squares))
        size = sizes[:, :width]
        with np.errstate(divide="ignore"):
            weight = np.log(np.where(np.arange(width) == used[:, None], alpha, size))
        kappa_n, size = (kappa + size)[..., None], size[..., None]
        mean = sums[:, :width] / kappa_n
        twice_b = 2 * b + squares[:, :width] - kappa_n * mean**2
        spread = twice_b * (kappa_n + 1) / kappa_n
        density = rise[size] - 0.5 * np.log(np.pi * spread)
        density -= (a + size / 2 + 0.5) * np.log1p((y - mean) ** 2 / spread)
        total = score[:, None] + weight + density.sum(2) - np.log(t + alpha)
        flat = total.ravel()
        kept = min(count, int((used + 1).sum()))
        chosen = np.argpartition(-flat, kept - 1)[:kept]
        parent, slot = np.divmod(chosen, width)
        score, used = flat[chosen], used[parent]
        sizes, sums, squares, labels = sizes[parent], sums[parent], squares[parent], labels[parent]
        rows = np.arange(kept)
        used += slot == used
        sizes[rows, slot] += 1
        sums[rows, slot] += y
        squares[rows, slot] += y**2
        labels[:, t] = slot
    return labels, float(logsumexp(score))
