"""A scale that many numbers share: its belief is far narrower after the first sweep than the
grids that were laid before it."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import special, stats

import pyrograph as pg


@pytest.mark.parametrize(
    "options, num", [({}, 150), ({"damping": 0.5}, 60), ({"schedule": "sequential"}, 60)], ids=str
)
def test_a_rate_shared_by_many_gammas(options: dict, num: int):
    torch.set_default_dtype(torch.float64)  # put back by the fixture of all tests
    counts = torch.from_numpy(np.random.default_rng(0).poisson(3.0, num)).double()

    def model():
        b = pyro.sample("b", dist.Gamma(2.0, 1.0))
        with pyro.plate("n", len(counts)):
            rate = pyro.sample("rate", dist.Gamma(2.0, b))
            pyro.sample("count", dist.Poisson(rate), obs=counts)

    family = {"b": "gamma", "rate": "gamma"}
    posterior = pg.fit(model, infer=pg.EP, family=family, progress=False, **options)
    # given b the counts are negative binomial
    b = np.linspace(0.2, 2.5, 20001)
    times = np.bincount(counts.numpy().astype(int))
    log_p = stats.gamma(2).logpdf(b) + sum(
        n * stats.nbinom.logpmf(k, 2, b / (1 + b)) for k, n in enumerate(times)
    )
    share = special.softmax(log_p)
    evidence = special.logsumexp(log_p) + np.log(b[1] - b[0])
    assert posterior.converged
    assert float(posterior.log_evidence) == pytest.approx(evidence, abs=0.005)
    assert float(posterior.marginal("b").mean) == pytest.approx((share * b).sum(), rel=1e-4)
