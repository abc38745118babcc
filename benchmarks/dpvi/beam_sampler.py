"""Beam sampling of infinite hidden Markov models: whole state paths, exactly, from finitely many.

    beta ~ Stick(gamma),  pi_j ~ DP(alpha, beta),  phi_k ~ Dir(prior),  z_t ~ pi_{z_t-1},  y_t ~ phi

Row 0 of the moves is that of the start. Given slices u_t ~ U(0, pi(z_t-1, z_t)), only moves with
pi > u_t count, and those are finitely many: sticks are broken until no row's rest exceeds the
least slice. The path then comes from a forward pass with moves of weight 1 and a backward draw;
moves, sticks and emissions follow from its counts, sticks by way of the tables,

    m_jk = number of tables of n_jk customers with alpha beta_k,   beta ~ Dir(m_.1, ..., gamma).

Source: Van Gael, Saatci, Teh & Ghahramani (2008), "Beam sampling for the infinite hidden Markov
model"; Teh, Jordan, Beal & Blei (2006) for the tables. Antoniak (1974): tables are independent
draws, one a customer.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy import ndarray


def beam(
    y: ndarray,
    num_symbols: int,
    rng: np.random.Generator,
    alpha: float = 1.0,
    gamma: float = 1.0,
    prior: float = 1.0,
    num_states: int = 10,
) -> Iterator[ndarray]:
    """Paths ``[T]`` after each sweep, without end; states 0, 1, ... all of which are visited.

    Args:
        y: symbols ``[T]``.
        num_states: of the uniform labels it starts from.
    """
    z = _in_use(rng.integers(0, num_states, len(y)))
    beta = np.append(np.full(z.max() + 1, 1.0), gamma) / (z.max() + 1 + gamma)
    while True:
        size = z.max() + 1
        counts = move_counts(z)
        tables = _tables(counts, alpha * beta[:size], rng)
        beta = rng.dirichlet(np.append(tables.sum(0), gamma))
        rest = np.zeros((size + 1, 1))
        moves = _dirichlet(alpha * beta + np.hstack([counts, rest]), rng)
        emit = np.full((size, num_symbols), prior)
        np.add.at(emit, (z, y), 1)
        emit = _dirichlet(emit, rng)
        path = np.concatenate([[0], z + 1])
        slices = moves[path[:-1], z] * (1 - rng.random(len(y)))
        moves, emit, beta = _extended(moves, emit, beta, slices.min(), alpha, gamma, prior, rng)
        raw = _path(moves, emit[:, y].T, slices, rng)
        used = np.unique(raw)
        beta = np.append(beta[used], 1 - beta[used].sum()).clip(1e-300)
        z = _in_use(raw)
        yield z


def _in_use(z: ndarray) -> ndarray:
    """The same states numbered without gaps, in their order."""
    return np.unique(z, return_inverse=True)[1]


def move_counts(z: ndarray) -> ndarray:
    """``[S + 1, S]``: n_jk, the start first."""
    counts = np.zeros((z.max() + 2, z.max() + 1))
    np.add.at(counts, (np.concatenate([[0], z[:-1] + 1]), z), 1)
    return counts


def _tables(counts: ndarray, mass: ndarray, rng: np.random.Generator) -> ndarray:
    """Tables at which ``counts [R, S]`` customers sit: customer i opens one with probability
    mass / (mass + i)."""
    i = np.arange(int(counts.max()))
    opens = rng.random(counts.shape + i.shape) * (mass[:, None] + i) < mass[:, None]
    return (opens & (i < counts[..., None])).sum(-1)


def _dirichlet(concentration: ndarray, rng: np.random.Generator) -> ndarray:
    """One draw per row; rows of gammas, of which tiny ones may be 0."""
    draws = rng.gamma(concentration)
    return draws / draws.sum(-1, keepdims=True)


def _extended(
    moves: ndarray,
    emit: ndarray,
    beta: ndarray,
    least: float,
    alpha: float,
    gamma: float,
    prior: float,
    rng: np.random.Generator,
) -> tuple[ndarray, ndarray, ndarray]:
    """Sticks broken until no row has more than ``least`` left; the last column is what is left."""
    while moves[:, -1].max() > least:
        share = rng.beta(1, gamma)
        beta = np.concatenate([beta[:-1], beta[-1] * np.array([share, 1 - share])])
        left, right = (alpha * beta[-2:]).clip(1e-300)
        share = rng.beta(left, right, len(moves))
        moves = np.column_stack([moves[:, :-1], moves[:, -1] * share, moves[:, -1] * (1 - share)])
        moves = np.vstack([moves, _dirichlet((alpha * beta).clip(1e-300), rng)])
        emit = np.vstack([emit, rng.dirichlet(np.full(emit.shape[1], prior))])
    return moves, emit, beta


def _path(
    moves: ndarray, likelihood: ndarray, slices: ndarray, rng: np.random.Generator
) -> ndarray:
    """States ``[T]`` given slices, from ``moves [S + 1, S + 1]`` and likelihoods ``[T, S]``."""
    moves = moves[:, :-1]
    belief = np.empty_like(likelihood)
    now = (moves[0] > slices[0]) * likelihood[0]
    belief[0] = now / now.sum()
    for t in range(1, len(belief)):
        now = (belief[t - 1] @ (moves[1:] > slices[t])) * likelihood[t]
        belief[t] = now / now.sum()
    z = np.empty(len(belief), dtype=np.int64)
    uniform = rng.random(len(belief))
    for t in reversed(range(len(belief))):
        weight = belief[t]
        if t < len(belief) - 1:
            weight = weight * (moves[1:, z[t + 1]] > slices[t + 1])
        total = weight.cumsum()
        z[t] = np.searchsorted(total, uniform[t] * total[-1], side="right")
    return z
