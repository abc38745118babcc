"""Crowdsourcing: workers of unknown bias and noise estimate items of unknown value.

    r_ij = x_i + b_j + sqrt(nu_j) e_ij,   e ~ N(0, 1),   x_i, b_j ~ N(0, 25),   nu_j ~ IG(3, 1)

The values of a few *control items* are known and tell the workers' biases. An answer is one
factor on (x_i, b_j, nu_j), so the Markov blanket of x_i is the (b_j, nu_j) of its workers, that
of b_j its items and nu_j. Inference runs on theta = (x, b, log nu), the Jacobian + log nu
included: both follow from the support of nu.

The paper clips log nu to [-3, 3]. Here it is left free: outside the clip the prior has 2e-5 of
its mass and the posteriors of the experiments less than one draw in a thousand.

The paper's assignment is infeasible as printed: 80 items with at most 5 of 155 workers each are
400 answers, and 3 answers for every worker are 465. Settled: 60 workers.

Source: Wang, Zeng & Liu (2018), eq (12) and section 4.3; the model is that of Liu, Ihler &
Steyvers (2013).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyrograph.datasets import CrowdPrices

PRIOR_SD = 5.0
SHAPE, SCALE = 3.0, 1.0


@dataclass(frozen=True, eq=False)
class Crowd:
    """Answers of a crowd.

    Shapes, for A answers, n items to infer, m control items and J workers:
        worker, item: ``[A]``; items 0..n-1 are to be inferred, n..n+m-1 are the control items.
        answer: ``[A]``.
        truth: ``[n]`` values of the items to infer, for checking only.
        control: ``[m]`` known values of the control items.
    """

    worker: Tensor
    item: Tensor
    answer: Tensor
    truth: Tensor
    control: Tensor
    num_workers: int

    @property
    def num_items(self) -> int:
        """How many items are to be inferred."""
        return len(self.truth)


def model(crowd: Crowd) -> None:
    """Eq (12) as a Pyro program."""
    with pyro.plate("items", crowd.num_items):
        x = pyro.sample("x", dist.Normal(0.0, PRIOR_SD))
    with pyro.plate("workers", crowd.num_workers):
        b = pyro.sample("b", dist.Normal(0.0, PRIOR_SD))
        nu = pyro.sample("nu", dist.InverseGamma(SHAPE, SCALE))
    value = torch.cat([x, crowd.control])[crowd.item]
    with pyro.plate("answers", len(crowd.answer)):
        answer = dist.Normal(value + b[crowd.worker], nu[crowd.worker].sqrt())
        pyro.sample("answer", answer, obs=crowd.answer)


def flat(particles: Mapping[str, Tensor]) -> Tensor:
    """theta = (x, b, log nu) of draws or particles: ``[n, num_items + 2 num_workers]``."""
    return torch.cat([particles["x"], particles["b"], particles["nu"].log()], 1)


def assignment(
    possible: np.ndarray, rng: np.random.Generator, most: int = 5, least: int = 3
) -> np.ndarray:
    """Who answers what, ``[num_items, num_workers]`` bool, within ``possible``: every item gets 1
    to ``most`` workers, uniformly; then the busiest workers hand answers on until everyone has
    ``least``.

    Raises:
        ValueError: there are fewer answers than the workers need.
    """
    num_items, num_workers = possible.shape
    asked = np.zeros_like(possible)
    for row, able, count in zip(asked, possible, rng.integers(1, most + 1, size=num_items)):
        row[rng.choice(np.flatnonzero(able), size=count, replace=False)] = True
    if asked.sum() < least * num_workers:
        raise ValueError(f"{asked.sum()} answers are too few for {num_workers} workers")
    while (load := asked.sum(0)).min() < least:
        idle, busy = load.argmin(), load.argmax()
        movable = asked[:, busy] & ~asked[:, idle] & possible[:, idle]
        item = rng.choice(np.flatnonzero(movable))
        asked[item, busy], asked[item, idle] = False, True
    return asked


def simulated_crowd(
    seed: int, num_items: int = 80, num_control: int = 10, num_workers: int = 60
) -> Crowd:
    """A crowd drawn from the priors."""
    rng = np.random.default_rng(seed)
    item, worker = np.nonzero(assignment(np.ones((num_items, num_workers), dtype=bool), rng))
    x = PRIOR_SD * rng.standard_normal(num_items)
    b = PRIOR_SD * rng.standard_normal(num_workers)
    nu = SCALE / rng.standard_gamma(SHAPE, size=num_workers)
    answer = x[item] + b[worker] + np.sqrt(nu[worker]) * rng.standard_normal(len(item))
    return _crowd(worker, item, answer, x, num_items - num_control)


def priced_crowd(
    prices: CrowdPrices, seed: int, *, num_control: int = 10, answers: str = "all"
) -> Crowd:
    """The real estimates, in log dollars, with ``num_control`` random items as control items.

    Workers were asked about an item up to eight times. ``answers`` says what counts:
    ``"all"``: every answer, as a separate one;
    ``"means"``: a worker's mean answer about an item;
    ``"few"``: as many as the paper has, the first answers of every worker to the items that
    :func:`assignment` gives him.

    Raises:
        ValueError: ``answers`` is none of these.
    """
    if answers not in ("all", "means", "few"):
        raise ValueError(f'answers={answers!r} is not "all", "means" or "few"')
    rng = np.random.default_rng(seed)
    worker, item, answer = (t.numpy() for t in (prices.worker, prices.item, prices.answer))
    if answers != "all":
        pair = item * prices.num_workers + worker
        pair, first, which = np.unique(pair, return_index=True, return_inverse=True)
        item, worker = item[first], worker[first]
        if answers == "means":
            answer = np.bincount(which, weights=answer) / np.bincount(which)
        else:
            possible = np.zeros((prices.num_items, prices.num_workers), dtype=bool)
            possible[item, worker] = True
            kept = assignment(possible, rng)[item, worker]
            item, worker, answer = item[kept], worker[kept], answer[first][kept]
    order = rng.permutation(prices.num_items)
    return _crowd(
        worker,
        np.argsort(order)[item],
        answer,
        prices.truth.numpy()[order],
        prices.num_items - num_control,
    )


def _crowd(
    worker: np.ndarray, item: np.ndarray, answer: np.ndarray, value: np.ndarray, num_inferred: int
) -> Crowd:
    value = torch.as_tensor(value, dtype=torch.float64)
    return Crowd(
        worker=torch.as_tensor(worker),
        item=torch.as_tensor(item),
        answer=torch.as_tensor(answer, dtype=torch.float64),
        truth=value[:num_inferred],
        control=value[num_inferred:],
        num_workers=int(worker.max()) + 1,
    )
