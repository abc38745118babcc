"""Evidence that single precision rounds is no bound: constants in scipy's double precision."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.special import gammaln

import pyrograph as pg

ENGINES = {
    "VMP": pg.VMP,
    "QBethe": lambda model, **options: pg.QBethe(
        model, num_components=1, covariance="full", num_steps=60, **options
    ),
}


def counts(level, dtype):
    x = torch.linspace(-1, 1, 12).to(dtype)
    y = (level * (0.3 * x).exp()).round()

    def model():
        a = pyro.sample("a", dist.Normal(x.new_zeros(()), 20.0))
        b = pyro.sample("b", dist.Normal(x.new_zeros(()), 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Poisson((a + b * x).exp()), obs=y)

    return model, y


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("level", "dtype", "kind"),
    [
        (1e6, torch.float32, "estimate"),
        (50.0, torch.float32, "lower bound"),
        (1e6, torch.float64, "lower bound"),
    ],
)
def test_bounds_are_claimed_of_what_is_not_rounded(engine, level, dtype, kind):
    model, _ = counts(level, dtype)
    pyro.set_rng_seed(0)
    q = ENGINES[engine](model, progress=False).run()
    assert q.evidence_kind == kind
    assert ("float32 rounds" in q.status) == (kind == "estimate")
    if kind == "estimate":
        assert '"y"' in q.status and "float64" in q.status


def test_the_engine_says_the_same_as_its_posterior():
    model, _ = counts(1e6, torch.float32)
    engine = pg.VMP(model, progress=False)
    engine.run()
    assert engine.evidence_kind() == "estimate"


@pytest.mark.parametrize("level", [1e4, 1e6, 1e8])
def test_what_is_lost_is_no_more_than_twice_what_is_told(level):
    model, y = counts(level, torch.float32)
    graph = pg.trace_graph(model, unconstrained=True)
    lost = float(torch.lgamma(y + 1).double().sum()) - gammaln(y.double().numpy() + 1).sum()
    assert abs(lost) < 2 * graph.rounding
    units = np.spacing(np.float32(gammaln(y.double().numpy() + 1))).astype(float) / 2
    assert graph.rounding == pytest.approx(math.sqrt((units**2).sum()), rel=0.5)


def test_labels_of_large_counts_have_no_exact_evidence():
    def model(dtype, level):
        rates = level * torch.tensor([1.0, 1.2], dtype=dtype)
        z = pyro.sample("z", dist.Bernoulli(torch.tensor(0.5, dtype=dtype)))
        pyro.sample("y", dist.Poisson(rates[z.long()]), obs=rates[0] + 1)

    kinds = [
        pg.fit(model, (dtype, level), infer=pg.BP, progress=False).evidence_kind
        for dtype, level in [(torch.float32, 1e7), (torch.float32, 50.0), (torch.float64, 1e7)]
    ]
    assert kinds == ["estimate", "exact", "exact"]


def test_data_far_from_zero_are_no_constants_that_are_added():
    y = 1e6 + torch.arange(50.0, dtype=torch.float32)

    def model():
        mu = pyro.sample("mu", dist.Normal(y.new_zeros(()), 1e6))
        with pyro.plate("rows", 50):
            pyro.sample("y", dist.Normal(mu, 20.0), obs=y)

    q = pg.fit(model, infer=pg.VMP, progress=False)
    assert q.evidence_kind in ("exact", "lower bound")


def test_what_multiplies_minus_infinity_is_no_constant_that_is_added():
    allowed = torch.tensor([[-math.inf, 1.0], [0.5, 2.0]], dtype=torch.float32)
    p, q, temperature = torch.tensor([0.3, 0.4, 0.6], dtype=torch.float32)

    def model():
        x = pyro.sample("x", dist.Bernoulli(p))
        y = pyro.sample("y", dist.Bernoulli(q))
        with pyro.poutine.scale(scale=temperature):
            pyro.factor("pair", allowed[x.long(), y.long()])

    posterior = pg.fit(model, infer=pg.BP, progress=False)
    assert (posterior.evidence_kind, posterior.status) == ("exact", "converged")
    prior = np.outer([0.7, 0.3], [0.6, 0.4])
    truth = np.log((prior * np.exp(0.6 * allowed.numpy())).sum())
    assert float(posterior.log_evidence) == pytest.approx(truth, abs=1e-6)
