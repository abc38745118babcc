"""The beam sampler of the benchmarks against all state sequences of a short series."""

import sys
from pathlib import Path

import numpy as np
import torch
from scipy.special import logsumexp

from pyrograph.distributions import (
    ChineseRestaurantFranchise,
    CollapsedMixture,
    DirichletCategorical,
)

FOLDER = Path(__file__).parents[2] / "benchmarks" / "dpvi"
NUM_SWEEPS, THIN = 6000, 2


def sequences(length):
    """Labels in order of first appearance."""
    found = [[0]]
    for _ in range(length - 1):
        found = [[*z, c] for z in found for c in range(max(z) + 2)]
    return found


def test_beam_sampling_visits_state_sequences_as_often_as_they_are_probable(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "beam_sampler", raising=False)
    from beam_sampler import beam

    y = torch.tensor([0, 1, 0, 1, 0])
    alpha, gamma, prior = 0.7, 1.3, 0.4
    every = sequences(len(y))
    z = torch.tensor(every)
    urn = ChineseRestaurantFranchise(torch.tensor(alpha, dtype=torch.float64), gamma, len(y))
    component = DirichletCategorical(torch.tensor(prior, dtype=torch.float64), 2)
    score = (urn.log_prob(z) + CollapsedMixture(z, component).log_prob(y)).numpy()
    truth = np.exp(score - logsumexp(score))

    rng = np.random.default_rng(0)
    number = {tuple(labels): k for k, labels in enumerate(every)}
    visits = np.zeros(len(every))
    chain = beam(y.numpy(), 2, rng, alpha, gamma, prior, num_states=3)
    for sweep in range(NUM_SWEEPS):
        labels = next(chain)
        if sweep % THIN == 0:
            seen: dict[int, int] = {}
            visits[number[tuple(seen.setdefault(c, len(seen)) for c in labels.tolist())]] += 1
    share = visits / visits.sum()
    # 52 sequences; independent draws would differ by about .03 in all
    assert 0.5 * np.abs(share - truth).sum() < 0.06
