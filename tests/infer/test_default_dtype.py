"""Programs of one precision under another default of torch: the numbers are the program's own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

import pyrograph as pg

OTHER = {torch.float64: torch.float32, torch.float32: torch.float64}
START, FIELD = [0.3, 0.7], [[0.9, 0.1], [0.2, 0.8]]
OBSERVED = [0.3, -0.4, 1.7, 0.9]


@pytest.fixture(params=[torch.float64, torch.float32], ids=["double", "single"])
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """A program's precision, while torch's default is the other one."""
    torch.set_default_dtype(OTHER[request.param])
    yield request.param


def chain(dtype: torch.dtype) -> Callable:
    """States alone: what is drawn has no precision of its own."""
    start, moves, seen, one = (
        torch.tensor(value, dtype=dtype) for value in (START, FIELD, OBSERVED, 1.0)
    )

    def model():
        z = pyro.sample("z0", dist.Categorical(start))
        for t in pyro.markov(range(len(OBSERVED))):
            if t:
                z = pyro.sample(f"z{t}", dist.Categorical(moves[z]))
            pyro.sample(f"y{t}", dist.Normal(z * one, one), obs=seen[t])

    return model


def log_evidence() -> float:
    """Path by path, in Python's numbers."""
    total = 0.0
    for path in itertools.product(range(2), repeat=len(OBSERVED)):
        p = START[path[0]]
        for here, there in itertools.pairwise(path):
            p *= FIELD[here][there]
        for z, y in zip(path, OBSERVED, strict=True):
            p *= math.exp(-((y - z) ** 2) / 2) / math.sqrt(2 * math.pi)
        total += p
    return math.log(total)


@pytest.mark.parametrize("infer", [pg.DPVI, pg.SequentialDPVI])
def test_bounds_of_states_have_the_precision_of_the_program(infer, dtype):
    p = pg.fit(chain(dtype), infer=infer, num_particles=16, progress=False)
    assert p.log_evidence.dtype is p.weights.dtype is dtype
    assert p.marginal("z1").probs.dtype is dtype
    error = 4 * torch.finfo(dtype).eps * abs(log_evidence())
    assert float(p.log_evidence) == pytest.approx(log_evidence(), rel=0, abs=error)


@pytest.mark.parametrize("infer", [pg.BBIS, pg.CollapsedBBIS])
def test_weighted_states_have_the_precision_of_the_program(infer, dtype):
    p = pg.fit(chain(dtype), infer=infer, num_particles=8, progress=False)
    assert p.marginal("z1").probs.dtype is dtype


def walk():
    """A forest of numbers: drawn jointly."""
    x = pyro.sample("x0", dist.Normal(torch.zeros(6).double(), 1.0).to_event(1))
    pyro.sample("x1", dist.Normal(x, 0.5).to_event(1))


def draws(engine: pg.infer.Engine, default: torch.dtype) -> dict[str, Tensor]:
    torch.set_default_dtype(default)
    pyro.set_rng_seed(0)
    return engine.posterior().sample(3)


@pytest.mark.parametrize("infer", [pg.BP, pg.QBethe])
def test_joint_draws_of_a_program_in_double_do_not_read_the_default(infer):
    engine = infer(walk, num_steps=3, progress=False)
    engine.run()
    double, single = draws(engine, torch.float64), draws(engine, torch.float32)
    for name in double:
        assert single[name].dtype is torch.float64
        assert torch.equal(single[name], double[name])


def test_starts_of_states_do_not_read_the_default():
    found = []
    for default in OTHER:
        torch.set_default_dtype(default)
        pyro.set_rng_seed(0)
        engine = pg.QBethe(chain(torch.float64), num_components=2, num_steps=3, progress=False)
        engine.run()
        found.append(engine.history["objective"])
    torch.testing.assert_close(*found, rtol=1e-12, atol=0)


ALPHA, KAPPA, SHAPE, SCALE, OFFSET = 0.5, 0.25, 2.0, 1.0, 1234.5678
PAIR = [0.3, -0.7]


def log_marginal(x: list[float]) -> float:
    """Of normal numbers under a normal-inverse-gamma prior about 0."""
    n, mean = len(x), sum(x) / len(x)
    kappa, a = KAPPA + n, SHAPE + n / 2
    b = SCALE + sum((v - mean) ** 2 for v in x) / 2 + KAPPA * n * mean**2 / (2 * kappa)
    gammas = math.lgamma(a) - math.lgamma(SHAPE) + SHAPE * math.log(SCALE) - a * math.log(b)
    return gammas + math.log(KAPPA / kappa) / 2 - n / 2 * math.log(2 * math.pi)


@pytest.mark.parametrize("infer", [pg.DPVI, pg.SequentialDPVI])
def test_labels_whose_prior_is_in_single_have_bounds_in_the_data_s_double(infer):
    torch.set_default_dtype(torch.float32)
    x = torch.tensor(PAIR, dtype=torch.float64)

    def model():
        z = pyro.sample("z", pg.distributions.ChineseRestaurant(ALPHA, 2))
        component = pg.distributions.NormalInverseGamma(KAPPA, SHAPE, SCALE)
        pyro.sample("x", pg.distributions.CollapsedMixture(z, component), obs=x)
        pyro.factor("offset", torch.tensor(OFFSET, dtype=torch.float64))

    p = pg.fit(model, infer=infer, num_particles=2, progress=False)
    apart = ALPHA * math.exp(sum(log_marginal([v]) for v in PAIR))
    exact = OFFSET + math.log((math.exp(log_marginal(PAIR)) + apart) / (1 + ALPHA))
    assert p.log_evidence.dtype is p.weights.dtype is torch.float64
    assert float(p.log_evidence) == pytest.approx(exact, rel=0, abs=1e-6)  # single has 1e-4 there
