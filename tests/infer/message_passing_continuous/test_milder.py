"""Factors whose cavities stay improper get smaller alphas: priors of one node beside observations
of heavy tails, which say less than nothing, against quadrature in scipy."""

from __future__ import annotations

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.integrate import trapezoid

import pyrograph as pg
from pyrograph.errors import ConvergenceWarning

DOUBLE = torch.float64
PRIORS = {
    "gamma": (dist.Gamma, (2.0, 1.0), stats.gamma(2)),
    "exponential": (dist.Exponential, (1.0,), stats.expon()),
    "laplace": (dist.Laplace, (0.0, 1.0), stats.laplace()),
    "inverse gamma": (dist.InverseGamma, (3.0, 2.0), stats.invgamma(3, scale=2)),
}


def heavy_tails(prior: str, y: float):
    """x of a prior, y ~ Cauchy(x, 1) far from it."""
    make, numbers, _ = PRIORS[prior]

    def model():
        x = pyro.sample("x", make(*(torch.tensor(v, dtype=DOUBLE) for v in numbers)))
        pyro.sample("y", dist.Cauchy(x, 1.0), obs=torch.tensor(y, dtype=DOUBLE))

    return model


def truth(prior: str, y: float) -> tuple[float, float, float]:
    """log p(y), and mean and standard deviation of x, or of log x where x is positive."""
    density, is_real = PRIORS[prior][2], prior == "laplace"
    u = np.linspace(-60.0, 60.0, 1_000_001) if is_real else np.linspace(-30.0, 7.0, 1_000_001)
    x = u if is_real else np.exp(u)
    weight = density.pdf(x) * stats.cauchy(x, 1).pdf(y) * (1 if is_real else x)
    mass = trapezoid(weight, u)
    mean = trapezoid(weight * u, u) / mass
    return math.log(mass), mean, math.sqrt(trapezoid(weight * (u - mean) ** 2, u) / mass)


FAR = [("gamma", 8.0), ("gamma", 30.0), ("exponential", 30.0), ("laplace", 3.0), ("laplace", 8.0)]


@pytest.mark.parametrize("prior, y", [*FAR, ("inverse gamma", 8.0)])
def test_a_prior_beside_an_outlier_settles_near_the_truth(prior, y):
    engine = pg.EP(heavy_tails(prior, y), progress=False)
    posterior = engine.run()
    log_z, mean, sd = truth(prior, y)
    assert posterior.converged
    assert "lowered, to 0" in posterior.status and 'of factor "x"[0] (scope x)' in posterior.status
    assert float(posterior.log_evidence) == pytest.approx(log_z, abs=0.1)
    x = posterior.sample(20_000)["x"]
    u = x if prior == "laplace" else x.log()
    assert abs(float(u.mean()) - mean) < 0.25 * sd
    assert float(u.std()) == pytest.approx(sd, rel=0.2)


def test_alphas_that_serve_are_kept():
    posterior = pg.fit(heavy_tails("gamma", 1.0), infer=pg.EP, progress=False)
    assert posterior.status == "converged"


def test_with_a_damping_of_the_users_own_alphas_stay_as_asked_for():
    with pytest.warns(ConvergenceWarning):
        posterior = pg.fit(
            heavy_tails("gamma", 8.0), infer=pg.EP, damping=0.5, num_steps=100, progress=False
        )
    assert not posterior.converged
    assert "smaller alpha" in posterior.status and "lowered" not in posterior.status


def test_only_the_factor_without_a_cavity_is_changed():
    """Ten others in the same group, whose observations are near their priors."""
    y = torch.tensor([1.0] * 10 + [30.0], dtype=DOUBLE)

    def model():
        with pyro.plate("rows", len(y)):
            x = pyro.sample("x", dist.Gamma(torch.tensor(2.0, dtype=DOUBLE), 1.0))
            pyro.sample("y", dist.Cauchy(x, 1.0), obs=y)

    engine = pg.EP(model, progress=False)
    posterior = engine.run()
    alone = pg.fit(heavy_tails("gamma", 1.0), infer=pg.EP, progress=False)
    far = pg.fit(heavy_tails("gamma", 30.0), infer=pg.EP, progress=False)
    assert posterior.converged and "alpha of one factor" in posterior.status
    total = 10 * alone.log_evidence + far.log_evidence
    assert float(posterior.log_evidence) == pytest.approx(float(total), abs=1e-4)


def test_news_that_takes_many_sweeps_to_arrive_is_waited_for():
    """A walk from where it is known; at its end two observations that contradict it. Their cavities
    are improper until the news arrives, after more sweeps than are waited for at rest."""
    length, step = 25, 0.3

    def walk():
        x = pyro.sample("x0", dist.Normal(torch.tensor(3.0, dtype=DOUBLE), 0.1))
        for i in range(1, length):
            x = pyro.sample(f"x{i}", dist.Normal(x, step))
        pyro.sample("far", dist.Cauchy(x, 1.0), obs=torch.tensor(9.0, dtype=DOUBLE))
        pyro.sample("near", dist.Laplace(x, 1.0), obs=torch.tensor(0.0, dtype=DOUBLE))

    posterior = pg.fit(walk, infer=pg.EP, progress=False)
    assert posterior.status == "converged"
    u = np.linspace(-60.0, 60.0, 1_000_001)
    wide = math.sqrt(0.01 + (length - 1) * step**2)
    weight = stats.norm(3, wide).pdf(u) * stats.cauchy(u, 1).pdf(9) * stats.laplace(u, 1).pdf(0)
    assert float(posterior.log_evidence) == pytest.approx(math.log(trapezoid(weight, u)), abs=0.003)


@pytest.mark.parametrize("options", [{}, {"damping": 0.5}])
def test_a_state_is_gone_on_with_at_its_own_alphas(options):
    done = pg.EP(heavy_tails("gamma", 8.0), progress=False)
    done.run()
    other = pg.EP(heavy_tails("gamma", 8.0), progress=False, **options).setup()
    other.load_state_dict(done.state_dict())
    found = other.run()
    assert found.converged and "lowered" in found.status
    assert torch.equal(other.log_evidence, done.log_evidence)


def test_a_state_from_before_alphas_were_lowered_has_those_asked_for():
    model = heavy_tails("gamma", 8.0)
    part = pg.EP(model, progress=False).setup()
    for _ in range(5):
        part.step()
    state = part.state_dict()
    used, fresh = pg.EP(model, progress=False), pg.EP(model, progress=False).setup()
    used.run()
    for engine in (used, fresh):
        engine.load_state_dict(state)
        engine.run()
    assert torch.equal(used.history["residual"], fresh.history["residual"])


def test_a_run_resumed_with_lowered_alphas_goes_on_bit_for_bit():
    model = heavy_tails("gamma", 8.0)
    whole = pg.EP(model, progress=False)
    whole.run()
    part = pg.EP(model, progress=False).setup()
    for _ in range(25):
        part.step()
    resumed = pg.EP(model, progress=False).setup()
    resumed.load_state_dict(part.state_dict())
    found = resumed.run()
    assert found.converged and "lowered" in found.status
    assert torch.equal(resumed.log_evidence, whole.log_evidence)
    assert torch.equal(resumed.history["residual"], whole.history["residual"])
