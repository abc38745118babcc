"""Hidden Markov chains exactly: filtering, smoothing, evidence, draws of paths.

    a_t(s) = sum_r a_{t-1}(r) move(r, s) g_t(s),    b_t(r) = sum_s move(r, s) g_{t+1}(s) b_{t+1}(s)

with likelihoods g ``[T, S]``, all ones where a symbol is held out. A path is drawn backwards from
the filter; as a Gibbs sampler of the whole path its draws are independent.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray


def filtered(start: ndarray, move: ndarray, likelihood: ndarray) -> tuple[ndarray, float]:
    """Filter marginals ``[T, S]`` and the log evidence."""
    belief, log_z, out = start, 0.0, np.empty_like(likelihood)
    for t, g in enumerate(likelihood):
        belief = g * (belief if t == 0 else belief @ move)
        log_z += np.log(belief.sum())
        belief = belief / belief.sum()
        out[t] = belief
    return out, float(log_z)


def smoothed(start: ndarray, move: ndarray, likelihood: ndarray) -> ndarray:
    """Marginals ``[T, S]`` given all observations."""
    out, _ = filtered(start, move, likelihood)
    back = np.ones(len(start))
    for t in reversed(range(len(out) - 1)):
        back = move @ (likelihood[t + 1] * back)
        back /= back.sum()
        out[t] *= back
    return out / out.sum(1, keepdims=True)


def draws(
    start: ndarray, move: ndarray, likelihood: ndarray, count: int, rng: np.random.Generator
) -> ndarray:
    """Paths ``[count, T]`` from the posterior."""
    belief, _ = filtered(start, move, likelihood)
    paths = np.empty((count, len(belief)), dtype=np.int64)
    weight = np.broadcast_to(belief[-1], (count, len(start)))
    for t in reversed(range(len(belief))):
        if t < len(belief) - 1:
            weight = belief[t] * move[:, paths[:, t + 1]].T
        total = weight.cumsum(1)
        paths[:, t] = (rng.random((count, 1)) * total[:, -1:] > total).sum(1)
    return paths


def best_paths(
    start: ndarray, move: ndarray, likelihood: ndarray, count: int
) -> tuple[ndarray, ndarray]:
    """The most probable paths ``[count, T]``, best first, and their log joint densities
    (list Viterbi: every state keeps its best ``count`` ways there)."""
    log_move, log_g = np.log(move), np.log(likelihood)
    states = len(start)
    score = np.full((states, count), -np.inf)
    score[:, 0] = np.log(start) + log_g[0]
    back = np.empty((len(likelihood), states, count), dtype=np.int64)
    for t in range(1, len(likelihood)):
        # way k through state r, then s
        ways = (score[:, :, None] + log_move[:, None, :]).reshape(states * count, states)
        back[t] = np.argsort(-ways, axis=0, kind="stable")[:count].T
        score = np.take_along_axis(ways.T, back[t], 1) + log_g[t][:, None]
    last = np.argsort(-score, axis=None, kind="stable")[:count]
    at, paths = last, np.empty((count, len(likelihood)), dtype=np.int64)
    for t in reversed(range(len(likelihood))):
        paths[:, t] = at // count
        if t:
            at = back[t].reshape(-1)[at]
    return paths, score.reshape(-1)[last]


def simulate(
    start: ndarray, move: ndarray, emit: ndarray, length: int, rng: np.random.Generator
) -> ndarray:
    """Symbols ``[length]``."""
    z, out = rng.choice(len(start), p=start), np.empty(length, dtype=np.int64)
    for t in range(length):
        if t:
            z = rng.choice(len(start), p=move[z])
        out[t] = rng.choice(emit.shape[1], p=emit[z])
    return out
