"""Programs in single precision, Pyro's default, whose numbers lie far from 0 or are many."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.special import betaln, gammaln
from torch.testing import assert_close

import pyrograph as pg

SINGLE, DOUBLE = torch.float32, torch.float64
YEARS = 40


@pytest.fixture(autouse=True)
def single_precision(clean_state):
    torch.set_default_dtype(SINGLE)  # put back by the fixture of all tests


def temperatures():
    """Kelvins of the years 1980 to 2019."""
    year = torch.arange(1980.0, 1980.0 + YEARS)
    return year, 287 + 0.02 * (year - 2000) + 0.1 * torch.randn(YEARS)


def two_sites(year, temperature):
    a = pyro.sample("a", dist.Normal(250.0, 50.0))
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(year)):
        pyro.sample("y", dist.Normal(a + b * year, 0.1), obs=temperature)


def one_site(year, temperature):
    scale = torch.tensor([50.0, 1.0])
    w = pyro.sample("w", dist.Normal(torch.tensor([250.0, 0.0]), scale).to_event(1))
    with pyro.plate("data", len(year)):
        pyro.sample("y", dist.Normal(w[0] + w[1] * year, 0.1), obs=temperature)


def level_of_2000(posterior, draws):
    values = posterior.sample(draws)
    w = values["w"] if "w" in values else torch.stack([values["a"], values["b"]], 1)
    return w.double() @ torch.tensor([1.0, 2000.0]).double()


def truth(year, temperature):
    """Mean and standard deviation of the level in 2000, and log evidence, about 2000: by numbers
    of double precision that are the program's own."""
    x = torch.stack([torch.ones(YEARS), year], 1).double()
    sd = torch.tensor(0.1).double()  # the program's .1 is that of single precision
    loc, prior = torch.tensor([250.0, 0.0]).double(), torch.tensor([50.0, 1.0]).double()
    own = torch.distributions.MultivariateNormal(
        x @ loc, (x * prior**2) @ x.T + sd**2 * torch.eye(YEARS).double()
    )
    move = torch.tensor([[1.0, 2000.0], [0.0, 1.0]]).double()  # level and slope
    inverse = torch.linalg.inv(move)
    rows = x @ inverse
    precision = rows.T @ rows / sd**2 + inverse.T @ torch.diag(prior**-2) @ inverse
    shift = rows.T @ temperature.double() / sd**2 + inverse.T @ (loc / prior**2)
    covariance = torch.linalg.inv(precision)
    return (covariance @ shift)[0], covariance[0, 0].sqrt(), own.log_prob(temperature.double())


@pytest.mark.parametrize("dtype", [None, SINGLE, DOUBLE])
@pytest.mark.parametrize("infer", [pg.BP, pg.EP])
@pytest.mark.parametrize("model", [two_sites, one_site])
def test_a_narrow_belief_far_from_zero_keeps_its_digits(model, infer, dtype):
    data = temperatures()
    posterior = pg.fit(model, data, infer=infer, dtype=dtype, progress=False)
    mean, sd, log_z = truth(*data)
    assert posterior.evidence_kind == "exact" and posterior.status == "converged"
    assert posterior.log_evidence.dtype == (dtype or SINGLE)
    assert float(posterior.log_evidence) == pytest.approx(float(log_z), abs=1e-4)
    level = level_of_2000(posterior, 4000)
    assert abs(float((level.mean() - mean) / sd)) < 0.07  # four standard errors
    assert float(level.std() / sd) == pytest.approx(1.0, abs=0.05)


def test_a_bound_of_mean_field_far_from_zero_is_that_of_double_precision():
    data = temperatures()
    single = pg.fit(two_sites, data, infer=pg.VMP, progress=False)
    double = pg.fit(two_sites, data, infer=pg.VMP, dtype=DOUBLE, progress=False)
    assert single.converged and single.evidence_kind == "lower bound"
    assert_close(single.log_evidence.double(), double.log_evidence, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [None, SINGLE, DOUBLE])
@pytest.mark.parametrize("infer", [pg.EP, pg.VMP])
def test_evidence_of_many_coin_flips_is_exact(infer, dtype):
    """What a distribution clamps at its own precision does not make a factor another one."""

    def model(y):
        p = pyro.sample("p", dist.Beta(1.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Bernoulli(p), obs=y)

    y = torch.bernoulli(torch.full((20_000,), 0.3))
    heads = float(y.sum())
    options = {"family": {"p": "beta"}, "dtype": dtype, "progress": False}
    posterior = pg.fit(model, (y,), infer=infer, **options)
    assert posterior.evidence_kind == "exact"
    expected = betaln(1 + heads, 1 + len(y) - heads)
    assert float(posterior.log_evidence) == pytest.approx(expected, rel=1e-7)
    assert float(posterior.marginal("p").mean) == pytest.approx((1 + heads) / (2 + len(y)), 1e-6)


def test_evidence_of_many_counts_is_exact():
    def model(y):
        rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Poisson(rate), obs=y)

    y = torch.poisson(torch.full((20_000,), 3.0))
    posterior = pg.fit(model, (y,), infer=pg.EP, family={"rate": "gamma"}, progress=False)
    total, n = float(y.sum()), len(y)
    expected = gammaln(2 + total) - (2 + total) * torch.tensor(1.0 + n).double().log().item()
    expected -= float(torch.lgamma(y.double() + 1).sum())
    assert posterior.evidence_kind == "exact"
    assert float(posterior.log_evidence) == pytest.approx(expected, rel=1e-7)


def test_a_walk_away_from_zero_comes_to_rest():
    y = 20.0 + 0.01 * torch.randn(100).cumsum(0) + 0.05 * torch.randn(100)

    def model():
        x = pyro.sample("x0", dist.Normal(20.0, 50.0))
        for i in pyro.markov(range(len(y))):
            x = pyro.sample(f"x{i}", dist.Normal(x, 0.01)) if i else x
            pyro.sample(f"y{i}", dist.Normal(x, 0.05), obs=y[i])

    posterior = pg.fit(model, infer=pg.BP, progress=False)
    assert posterior.converged and posterior.evidence_kind == "exact"


@pytest.mark.parametrize("asked", [None, SINGLE, DOUBLE])
@pytest.mark.parametrize("program", [SINGLE, DOUBLE])
def test_results_have_the_precision_of_the_program_or_the_one_asked_for(program, asked):
    def model():
        z = pyro.sample("z", dist.Bernoulli(torch.tensor(0.4, dtype=program)))
        x = pyro.sample("x", dist.Normal(torch.zeros(2, dtype=program), 1.0).to_event(1))
        p = pyro.sample("p", dist.Beta(torch.tensor(2.0, dtype=program), 2.0))
        seen = torch.tensor(0.3, dtype=program)
        pyro.sample("y", dist.Normal(x[0] + z, 1.0), obs=seen)
        pyro.sample("w", dist.Bernoulli(p), obs=torch.ones((), dtype=program))

    kind = asked or program
    options = {"family": {"p": "beta"}, "dtype": asked, "progress": False}
    engine = pg.EP(model, **options)
    posterior = engine.run()
    assert engine.log_evidence.dtype == posterior.log_evidence.dtype == kind
    for name in ("x", "p"):
        assert posterior.marginal(name).mean.dtype == posterior.sample(3)[name].dtype == kind
        for guide in (posterior.guide(), posterior.guide([name], joint=False)):
            assert guide()[name].dtype == kind
            assert {parameter.dtype for parameter in guide.parameters()} == {kind}
    assert posterior.marginal("z").probs.dtype == kind
    assert {part.dtype for part in posterior.factor_marginal("x")} == {kind}


def test_a_run_in_single_precision_goes_on_from_its_state():
    data = temperatures()
    engine = pg.EP(two_sites, num_steps=2, tol=None, progress=False)
    engine.run(*data)
    other = pg.EP(two_sites, num_steps=4, tol=None, progress=False).setup(*data)
    other.load_state_dict(engine.state_dict())
    engine.num_steps = 4
    assert torch.equal(engine.run(*data).log_evidence, other.run(*data).log_evidence)
    assert torch.equal(engine.beliefs[0].shift, other.beliefs[0].shift)


def impossible_states():
    z = pyro.sample("z", dist.Categorical(torch.ones(3) / 3))
    moves = torch.tensor([[0.2, 0.3, 0.5], [0.5, 0.2, 0.3], [0.3, 0.3, 0.4]])
    w = pyro.sample("w", dist.Categorical(moves[z]))
    pyro.factor("of z", torch.tensor([0.0, 0.0, -torch.inf])[z])
    pyro.factor("of w", torch.tensor([-torch.inf, 0.0, 0.0])[w])
    pyro.sample("x", dist.Normal(0.0, 1.0))


@pytest.mark.parametrize("joint", [True, False])
def test_guides_beside_numbers_have_finite_logits_of_impossible_states(joint):
    guide = pg.fit(impossible_states, infer=pg.EP, progress=False).guide(joint=joint)
    assert all(bool(p.isfinite().all()) for p in guide.parameters())
    assert guide.median()["w"] == 2  # of 0, 5/13 and 8/13
    assert guide.quantiles([0.1, 0.9])["w"].tolist() == [1, 2]
    optimiser = pyro.optim.Adam({"lr": 0.01, "weight_decay": 1e-3})
    svi = pyro.infer.SVI(impossible_states, guide, optimiser, pyro.infer.Trace_ELBO())
    for _ in range(2):
        svi.step()
    assert all(bool(p.isfinite().all()) for p in guide.parameters())


def all_heads(concentration):
    p = pyro.sample("p", dist.Beta(concentration, concentration))
    pyro.sample("k", dist.Binomial(10_000_000, p), obs=torch.tensor(1e7))


def no_event(concentration):
    rate = pyro.sample("rate", dist.Gamma(concentration, 1.0))
    pyro.sample("k", dist.Poisson(rate), obs=torch.tensor(0.0))


@pytest.mark.parametrize(
    ("model", "concentration", "family"),
    [
        (all_heads, 0.5, {"p": "beta"}),
        (all_heads, 1.0, {"p": "normal"}),
        (no_event, 0.01, {"rate": "gamma"}),
        (no_event, 1.0, {"rate": "normal"}),
    ],
)
def test_no_draw_is_rounded_onto_the_edge_of_a_support(model, concentration, family):
    options = {"family": family, "progress": False}
    posterior = pg.fit(model, (concentration,), infer=pg.EP, **options)
    (name,) = family
    draws = posterior.sample(20_000)[name]
    assert draws.dtype == SINGLE and bool((draws > 0).all())
    assert name == "rate" or bool((draws < 1).all())
    assert bool(posterior.marginal(name).log_prob(draws).isfinite().all())


def test_a_site_inside_another_is_drawn_inside_it():
    def model():
        a = pyro.sample("a", dist.Gamma(3.0, 1.0))
        b = pyro.sample("b", dist.Uniform(0.0, a))
        pyro.sample("y", dist.Normal(b, 0.1), obs=torch.tensor(0.7))

    draws = pg.fit(model, infer=pg.EP, progress=False).sample(5000)
    assert draws["a"].dtype == draws["b"].dtype == SINGLE
    assert bool((draws["b"] < draws["a"]).all()) and bool((draws["b"] > 0).all())


@pytest.mark.parametrize("joint", [True, False])
def test_guides_moved_to_double_precision_draw_in_it(joint):
    guide = pg.fit(two_sites, temperatures(), infer=pg.EP, progress=False).guide(joint=joint)
    assert {value.dtype for value in guide().values()} == {SINGLE}
    assert {value.dtype for value in guide.double()().values()} == {DOUBLE}
