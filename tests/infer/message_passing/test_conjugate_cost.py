"""What it costs to see that many factors are conjugate, and what is seen of a single one."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.infer.message_passing.densities.reduction import LocalDensity

MANY = 40_000
COUNTS = (torch.arange(MANY) % 7).double()


def counts(term=None):
    with pyro.plate("nodes", MANY):
        rate = pyro.sample("rate", dist.Gamma(torch.tensor(2.0).double(), 1.0))
        pyro.sample("y", dist.Poisson(rate), obs=COUNTS)
        if term is not None:
            pyro.factor("odd", term(rate))


def test_many_factors_are_looked_at_in_small_parts_and_at_few_points(monkeypatch):
    sizes = []
    at_nodes = LocalDensity.at_nodes

    def counted(self, x):
        sizes.append(sum(own.numel() for own in x))
        return at_nodes(self, x)

    monkeypatch.setattr(LocalDensity, "at_nodes", counted)
    q = pg.fit(counts, infer=pg.EP, family={"rate": "gamma"}, progress=False)
    assert max(sizes) < 2**19  # 4 MB of numbers at once
    assert sum(sizes) < 3 * 150 * MANY  # of priors, Jacobians and likelihoods
    truth = stats.nbinom(2, 0.5).logpmf(COUNTS.numpy()).sum()
    assert_close(float(q.log_evidence), truth)
    assert q.evidence_kind == "exact"


ODD = {
    "a step": lambda rate: torch.where(rate > 20, -5.0, 0.0),
    "a bump": lambda rate: 3 * torch.exp(-((rate.log() - 1.3) ** 2) / 0.02),
    "a tail": lambda rate: -1e-3 * rate.square(),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("which", [0, 7, MANY - 1])
def test_what_one_of_many_factors_has_alone_is_seen(name, which):
    def alone(rate):
        return torch.where(torch.arange(MANY) == which, ODD[name](rate), 0.0)

    engine = pg.EP(lambda: counts(alone), family={"rate": "gamma"}, progress=False).setup()
    assert engine.network.has_quadrature
