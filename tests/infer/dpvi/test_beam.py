"""Programs of hard constraints, whose states with mass are far apart: puzzles of one solution."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg

PUZZLES = [
    "530070000600195000098000060800060003400803001700020006060000280000419005000080079",
    "000000907000420180000705026100904000050000040000507009920108000034059000507000000",
]


def groups():
    """``[27, 9]`` cells of rows, columns and boxes."""
    cells = torch.arange(81).view(9, 9)
    boxes = cells.view(3, 3, 3, 3).transpose(1, 2).reshape(9, 9)
    return torch.cat([cells, cells.T, boxes])


def sudoku(clues):
    pairs = {tuple(p) for g in groups() for p in torch.combinations(g).tolist()}
    i, j = torch.tensor(sorted(pairs)).T
    with pyro.plate("cells", 81):
        x = pyro.sample("x", dist.Categorical(torch.ones(9) / 9))
        pyro.factor("clue", torch.where((clues >= 0) & (x != clues), -math.inf, 0.0))
    with pyro.plate("pairs", len(i)):
        pyro.factor("differ", torch.where(x[i] == x[j], -math.inf, 0.0))


@pytest.mark.parametrize("puzzle", PUZZLES)
@pytest.mark.parametrize("count", [1, 10])
def test_a_puzzle_is_solved(puzzle, count):
    clues = torch.tensor([int(c) for c in puzzle]) - 1
    pyro.set_rng_seed(0)
    q = pg.fit(sudoku, (clues,), infer=pg.DPVI, num_particles=count, progress=False)
    (x,) = q.particles["x"]
    assert torch.equal(x[clues >= 0], clues[clues >= 0])
    assert torch.equal(x[groups()].sort(1).values, torch.arange(9).expand(27, 9))
    assert float(q.log_evidence) == pytest.approx(-81 * math.log(9), rel=1e-6)
    assert q.converged
    assert count == 1 or "No other state with mass than this one was met" in q.status
