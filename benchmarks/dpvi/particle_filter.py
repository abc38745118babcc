"""Bootstrap particle filter of hidden Markov chains, many runs side by side.

Particles move by the chain's transitions and are weighted by the likelihood; when the effective
sample size 1 / sum_k w_k^2 falls below a threshold they are drawn anew by their weights: at 0
never, above K at every step. The log evidence estimate is unbiased in Z under each scheme.
Smoothing marginals are those of the paths that survive to the end, filter marginals those of every
step.

Sources: Gordon, Salmond & Smith (1993); Douc & Cappé (2005) for the schemes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

SCHEMES = ("multinomial", "stratified", "systematic")


@dataclass(frozen=True)
class Runs:
    """R runs.

    Attributes:
        log_evidence: ``[R]``.
        smoothed, filtered: ``[R, T, S]`` marginals.
    """

    log_evidence: ndarray
    smoothed: ndarray
    filtered: ndarray


def particle_filter(
    start: ndarray,
    move: ndarray,
    likelihood: ndarray,
    num_particles: int,
    threshold: float,
    rng: np.random.Generator,
    scheme: str = "multinomial",
) -> Runs:
    """Filter every row of ``likelihood`` ``[R, T, S]``."""
    runs, length, states = likelihood.shape
    count, row = num_particles, np.arange(runs)[:, None]
    total_move, total_start = move.cumsum(1), start.cumsum()
    z = np.empty((length, runs, count), dtype=np.int64)
    parent = np.empty_like(z)
    weight, log_evidence = np.full((runs, count), 1 / count), np.zeros(runs)
    now = np.empty((runs, length, states))
    for t in range(length):
        parent[t] = np.arange(count)
        if t:
            low = 1 / (weight**2).sum(1) < threshold
            parent[t, low] = ancestors(weight[low], scheme, rng)
            weight[low] = 1 / count
        before = None if t == 0 else z[t - 1][row, parent[t]]
        total = total_start if before is None else total_move[before]
        # rounding may leave the last total below 1
        z[t] = (rng.random((runs, count, 1)) > total[..., :-1]).sum(2)
        weight = weight * likelihood[:, t][row, z[t]]
        mass = weight.sum(1, keepdims=True)
        log_evidence += np.log(mass[:, 0])
        weight /= mass
        now[:, t] = _marginals(z[t], weight, states)
    paths, index = np.empty_like(now), np.broadcast_to(np.arange(count), (runs, count))
    for t in reversed(range(length)):
        paths[:, t] = _marginals(z[t][row, index], weight, states)
        index = parent[t][row, index]
    return Runs(log_evidence, paths, now)


def ancestors(weight: ndarray, scheme: str, rng: np.random.Generator) -> ndarray:
    """Indices ``[R, K]`` drawn by the weights ``[R, K]`` of every row."""
    runs, count = weight.shape
    if scheme == "multinomial":
        u = rng.random((runs, count))
    elif scheme == "stratified":
        u = (np.arange(count) + rng.random((runs, count))) / count
    else:
        u = (np.arange(count) + rng.random((runs, 1))) / count
    row = np.arange(runs)[:, None]
    # one search over all rows, each shifted to an interval of its own
    total = weight.cumsum(1) / weight.sum(1, keepdims=True)
    found = np.searchsorted((total + row).ravel(), (u + row).ravel(), side="right")
    return (found.reshape(runs, count) - row * count).clip(0, count - 1)


def _marginals(z: ndarray, weight: ndarray, states: int) -> ndarray:
    """``[R, S]``."""
    return np.stack([(weight * (z == s)).sum(1) for s in range(states)], 1)
