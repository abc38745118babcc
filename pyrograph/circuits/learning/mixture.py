"""Mixtures of circuits that share a structure.

    p(x) = sum_k pi_k p_k(x),    log p_k(x) = sum over the edges that x takes of log w_ke

The structure is deterministic: which edges a row takes depends on no parameter. So the flows of all
components are one sparse matrix of rows and edges, an E step is its product with the log weights
``[edges, K]``, an M step the transposed product with the responsibilities.

Source: Dang, Vergari & Van den Broeck (2020), section 4.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.special import logsumexp

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.learning.assemble import assemble
from pyrograph.circuits.learning.splitting import Splitting

#: Stop when the mean log likelihood rises by less, or has not been validated better for so long.
TOLERANCE, PATIENCE, MOST_STEPS = 1e-5, 20, 500


class Mixture:
    """EM on the rows that a splitting has met; validation rows are those of its second weight.

    Attributes:
        log_weights: ``[edges, K]``.
        log_mixing: ``[K]``.
    """

    def __init__(self, splitting: Splitting, num_components: int, smoothing: float):
        self.splitting, self.smoothing = splitting, smoothing
        self._sums = list(splitting.sums)
        sums = [splitting.sums[n] for n in self._sums]
        widths = np.array([len(unit.products) for unit in sums])
        self._sum_of_edge = np.repeat(np.arange(len(sums)), widths)
        self._first = np.concatenate([[0], widths.cumsum()])
        per_edge = [rows for unit in sums for rows in unit.rows]
        lengths = [len(rows) for rows in per_edge]
        entries = (
            np.ones(sum(lengths)),
            (np.concatenate(per_edge), np.repeat(np.arange(len(per_edge)), lengths)),
        )
        self._takes = csr_matrix(entries, shape=(len(splitting.codes), len(per_edge)))
        self._counts = self._takes.T.tocsr()
        self._prior = np.concatenate([unit.weights for unit in sums])[:, None]
        self.log_mixing = np.full(num_components, -np.log(num_components))
        shape = (len(splitting.codes), num_components)
        # each row mostly in one component, drawn at random
        start = torch.rand(shape, dtype=torch.float64, device="cpu").log().neg().pow(4).numpy()
        self._maximise(start / start.sum(1, keepdims=True))

    def step(self) -> np.ndarray:
        """One step of EM; the mean log likelihoods before it, of rows to learn from and valid."""
        log_p = self._takes @ np.maximum(self.log_weights, -1e300) + self.log_mixing
        total = logsumexp(log_p, 1)
        self._maximise(np.exp(log_p - total[:, None]))
        weight = self.splitting.weight
        with np.errstate(invalid="ignore"):
            parts = np.where(weight > 0, total[:, None] * weight, 0.0).sum(0)
        return parts / np.maximum(weight.sum(0), np.finfo(float).tiny)

    def _maximise(self, responsible: np.ndarray) -> None:
        own = responsible * self.splitting.weight[:, :1]
        counts = self._counts @ own + self.smoothing * self._prior
        sums = np.add.reduceat(counts, self._first[:-1])[self._sum_of_edge]
        weights = np.divide(counts, sums, out=self._prior.repeat(own.shape[1], 1), where=sums > 0)
        with np.errstate(divide="ignore"):
            self.log_weights = np.log(weights)
            self.log_mixing = np.log(own.sum(0) / own.sum())

    def circuit(self, log_weights: np.ndarray, log_mixing: np.ndarray) -> Circuit:
        components = [
            {
                n: np.exp(own[a:b])
                for n, a, b in zip(self._sums, self._first[:-1], self._first[1:], strict=True)
            }
            for own in log_weights.T
        ]
        return assemble(self.splitting, components, np.exp(log_mixing))


def fit_mixture(splitting: Splitting, num_components: int, smoothing: float) -> Circuit:
    """A mixture by EM from random responsibilities; of the best validation if there are rows for
    it, else of the last step.

    Args:
        smoothing: pseudo-observations of every sum of a component, distributed like the single
            circuit's.
    """
    mixture = Mixture(splitting, num_components, smoothing)
    judge = int(splitting.weight[:, 1].any())
    best, kept, kept_step, before = -np.inf, (mixture.log_weights, mixture.log_mixing), 0, -np.inf
    for step in range(MOST_STEPS):
        present = (mixture.log_weights, mixture.log_mixing)
        scores = mixture.step()
        if scores[judge] > best or not judge:
            best, kept, kept_step = scores[judge], present, step
        if scores[0] - before < TOLERANCE or step - kept_step >= PATIENCE:
            break
        before = scores[0]
    return mixture.circuit(*kept)
