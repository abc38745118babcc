"""The best paths of the benchmarks' chains against all paths of short ones."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "dpvi"


@pytest.mark.parametrize("seed", range(5))
def test_best_paths_are_those_of_all(monkeypatch, seed):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "forward_backward", raising=False)
    from forward_backward import best_paths

    rng, states, length, count = np.random.default_rng(seed), 3, 6, 7
    start, move = rng.dirichlet(np.ones(states)), rng.dirichlet(np.ones(states), states)
    likelihood = rng.random((length, states))
    every = np.array(list(itertools.product(range(states), repeat=length)))
    score = np.log(start[every[:, 0]]) + np.log(likelihood[np.arange(length), every]).sum(1)
    score += np.log(move[every[:, :-1], every[:, 1:]]).sum(1)
    best = np.argsort(-score)[:count]
    paths, found = best_paths(start, move, likelihood, count)
    assert (paths == every[best]).all()
    np.testing.assert_allclose(found, score[best], rtol=1e-12)
