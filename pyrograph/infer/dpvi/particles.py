"""Distinct particles with their scores: the variational family of DPVI.

    L(Q) = log sum_k f(x_k),    x_k distinct

Replicas never help (Theorem 1), so equal particles are merged wherever they could come up. Whether
two are equal is decided by 126 bits of hash, sums over the nodes of random numbers of their states,
which follow a change of a few nodes at once; where it is cheap the states themselves are compared.

Source: Saeedi, Kulkarni, Mansinghka & Gershman (2017), eqs (6), (10), Theorem 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.errors import ShapeMismatch
from pyrograph.infer.dpvi.lookup import columns_at, rows_at
from pyrograph.infer.dpvi.network import Network

#: Two hashes of 63 bits.
NUM_HASHES = 2
#: A gain below this share of the bound is rounding.
ROUNDING = 1e-12


class Hash:
    """Random numbers of all states of all nodes."""

    def __init__(self, cards: Tensor):
        generator = torch.Generator().manual_seed(0)
        self.start = cards.cumsum(0) - cards
        total = int(cards.sum())
        bits = torch.randint(
            -(2**63), 2**63 - 1, (NUM_HASHES, total), generator=generator, device="cpu"
        )
        #: ``[states of all nodes, 2]``: both of a state side by side, so that they are read at once
        self.bits = bits.T.contiguous().to(cards.device)

    def of(self, nodes: Tensor, states: Tensor) -> Tensor:
        """``[n, K, 2]`` terms of nodes ``[n]`` in states ``[n, K]``."""
        place = self.start[nodes].unsqueeze(1) + states
        return rows_at(self.bits.view(torch.float64), place).view(torch.int64)

    def among(self, nodes: Tensor, states: Tensor) -> Tensor:
        """``[2, K]``: what nodes ``[n]`` in states ``[n, K]`` add to a hash; sums wrap around."""
        return self.of(nodes, states).sum(0).T

    def __call__(self, x: Tensor) -> Tensor:
        """``[2, K]`` of ``[V, K]``."""
        return self.among(torch.arange(len(x), device=x.device), x)


@dataclass(frozen=True)
class Particles:
    """Distinct joint states, by falling score.

    Attributes:
        x: ``[V, K]`` numbers of states.
        score: ``[K]``; hash: ``[2, K]``.
    """

    x: Tensor
    score: Tensor
    hash: Tensor

    def __len__(self) -> int:
        return len(self.score)

    @property
    def bound(self) -> Tensor:
        """log of the sum of the scores, a lower bound of log Z."""
        return self.score.logsumexp(0)

    @classmethod
    def best(cls, network: Network, hashes: Hash, x: Tensor, most: int) -> Particles:
        """The distinct ones among states ``[V, M]``, at most so many, the best."""
        x = x.unique(dim=1)
        score = network.score(x)
        order = score.argsort(descending=True, stable=True)[:most]
        best = columns_at(x, order)
        return cls(best, score[order], hashes(best))

    def joined(self, network: Network, hashes: Hash, x: Tensor, most: int) -> Particles:
        """The best distinct ones among these and states ``[V, M]``, which alone are scored."""
        code = torch.cat([self.hash, hashes(x)], 1)
        score = torch.cat([self.score, network.score(x)])
        distinct = first_of_equal(code).nonzero().squeeze(1)
        order = distinct[highest(score[distinct], most)]
        every = torch.cat([self.x, x], 1)
        return Particles(columns_at(every, order), score[order], code[:, order])


def first_of_equal(key: Tensor) -> Tensor:
    """Which columns of ``[2, M]`` are the first of their kind, ``[M]`` bool."""
    # equal ones are neighbours after sorting by the first hash, in their order
    order = key[0].argsort(stable=True)
    ordered = key[:, order]
    is_first = torch.ones(key.shape[1], dtype=torch.bool, device=key.device)
    is_first[order[1:]] = (ordered[:, 1:] != ordered[:, :-1]).any(0)
    return is_first


def highest(score: Tensor, most: int) -> Tensor:
    """Indices of the highest scores, falling; the first of equal ones first."""
    if len(score) > 4 * most:  # sorting all of many candidates would cost more
        least = score.topk(most).values[-1]
        among = (score >= least).nonzero().squeeze(1)
        return among[score[among].argsort(descending=True, stable=True)[:most]]
    return score.argsort(descending=True, stable=True)[:most]


def gain_of(before: Tensor, now: Tensor) -> Tensor:
    """What a bound grew by, beyond rounding."""
    gain = now - before
    is_rounding = float(gain.abs()) <= ROUNDING * (1 + float(before.abs()))
    return torch.zeros_like(gain) if is_rounding else gain


def are_own_scores(saved: Tensor, now: Tensor) -> bool:
    """Whether the scores of saved particles are what this program gives them, but for rounding."""
    tolerance = 1e-8 if saved.dtype == now.dtype == torch.float64 else 1e-4
    return torch.allclose(saved.double(), now.double(), rtol=tolerance, atol=tolerance)


def refuse_other_scores(
    saved: Tensor, now: Tensor, instead: str = "start pg.DPVI from its particles by init="
) -> None:
    """Raise where :func:`are_own_scores` does not hold.

    Args:
        instead: what else may be done with the particles, for the error.

    Raises:
        ShapeMismatch: this program has other data or parameters than the saved run.
    """
    if not are_own_scores(saved, now):
        raise ShapeMismatch(
            "the state belongs to other data or parameters: its particles have other scores here. "
            f"Set the engine up with the arguments of the saved run, or {instead}."
        )
