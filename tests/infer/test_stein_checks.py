"""What the status says of particles that are far off, too wide or too narrow, and when a run
counts as converged. Truth is the target's own mean and spread."""

import re
from contextlib import nullcontext

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import ConvergenceWarning
from pyrograph.infer import AdaGrad, GraphicalSVGD, Langevin
from pyrograph.infer.stein_checks import (
    SteinChecks,
    common_errors,
    common_misfit,
    coordinate_name,
    uncommon_spread,
)

from .programs import gaussian_chain, positive_and_simplex, sensors


def normal(loc, scale):
    return lambda: pyro.sample("x", dist.Normal(loc, scale))


def run(infer, model, *args, **options):
    return infer(model, progress=False, **options).run(*args)


def test_shift_and_ratio_of_a_gaussian_are_its_own():
    mean, sd = torch.tensor([3.0, -100.0]), torch.tensor([2.0, 0.1])
    z = torch.special.ndtri((torch.arange(50) + 0.5) / 50)
    z = ((z - z.mean()) / z.std(correction=0))[:, None]
    shift, width = torch.tensor([0.7, -3.0]), torch.tensor([1.0, 0.5])
    x = mean + sd * (shift + width * z)  # off by so many of the target's deviations, and so wide
    checks = SteinChecks.of(x, -(x - mean) / sd**2)
    assert_close(checks.shift, shift.abs() * width)
    assert_close(checks.ratio, width**2)
    assert checks.most_shifted() == 1 and not checks.arrived and not checks.passed


@pytest.mark.parametrize("n", [20, 50, 500])
def test_independent_draws_pass_and_shifted_or_scaled_ones_do_not(n):
    # a correlation of 0.999: a mean score of draws is 22 conditional deviations wide
    covariance = torch.tensor([[1.0, 0.999], [0.999, 1.0]])
    precision = covariance.inverse()
    normal = torch.distributions.MultivariateNormal(torch.zeros(2), covariance)
    for _ in range(40):
        x = normal.sample((n,))
        assert SteinChecks.of(x, -x @ precision, errors=5).passed


def test_many_draws_that_are_shifted_or_scaled_do_not_pass():
    precision = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    x = torch.distributions.MultivariateNormal(torch.zeros(2), precision.inverse()).sample((500,))
    assert not SteinChecks.of(x + 1, -(x + 1) @ precision, errors=5).arrived
    assert SteinChecks.of(2 * x, -2 * x @ precision, errors=5).too_wide() is not None
    assert SteinChecks.of(x / 2, -x / 2 @ precision, errors=5).too_narrow() is not None


def test_coordinates_are_named_by_site_index_and_place():
    graph = GraphicalSVGD(positive_and_simplex, progress=False).setup().graph
    names = [coordinate_name(graph, k) for k in range(5)]
    of_w = [f'site "w", coordinate {k}' for k in range(2)]
    assert names == ['site "s"', *of_w, 'site "u"[0]', 'site "u"[1]']
    model, args = sensors()
    graph = GraphicalSVGD(model, progress=False).setup(*args).graph
    assert coordinate_name(graph, 5) == 'site "x"[2], coordinate 1'


def one_site_far_away():
    with pyro.plate("k", 6):
        pyro.sample("b", dist.Normal(0.0, 1.0))
    pyro.sample("a", dist.Normal(500.0, 5.0))


def raw_location_and_scale():
    k = pyro.sample("k", dist.HalfNormal(100.0))
    mu = pyro.sample("mu", dist.Normal(0.0, 100.0))
    with pyro.plate("d", 20):
        y = 100 + 30 * torch.linspace(-1.7, 1.7, 20)
        pyro.sample("y", dist.Normal(mu, k), obs=y)


@pytest.mark.parametrize(
    ("model", "site", "truth"),
    [(one_site_far_away, "a", 500.0), (raw_location_and_scale, "mu", 98.8)],
)
@pytest.mark.parametrize("n", [10, 50])
def test_a_mean_that_is_far_off_is_told_of_with_the_remedy(model, site, truth, n):
    posterior = run(GraphicalSVGD, model, num_particles=n, num_steps=300)
    assert abs(float(posterior.marginal(site).mean) / truth - 1) > 0.5
    assert "have not settled about the target's mean" in posterior.status
    assert 'Give init="laplace"' in posterior.status
    assert "too few" not in posterior.status
    remedied = run(GraphicalSVGD, model, num_particles=n, num_steps=300, init="laplace")
    assert float(remedied.marginal(site).mean) == pytest.approx(truth, rel=0.01)
    assert "target's mean" not in remedied.status


def eight_schools():
    y = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    error = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", 8):
        th = pyro.sample("th", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(mu + tau * th, error), obs=y)


def test_a_mean_score_that_is_off_where_the_mean_is_right_is_not_called_a_wrong_mean():
    pyro.set_rng_seed(0)
    posterior = run(GraphicalSVGD, eight_schools, num_steps=500)
    status = posterior.status
    named = int(re.search(r'fails: the mean score of site "th"\[(\d)\]', status).group(1))
    # E[th] = E[tau (y - mu) / (tau^2 + s^2)] under p(mu, tau | y), by a grid over (mu, log tau)
    assert float(posterior.marginal("th").mean[named]) == pytest.approx(
        float(eight_schools_effects()[named]), abs=0.1
    )
    assert "where that is right, not into the shape" in status
    assert 'site "tau" is too wide: the variance there is 1.' in status
    places = [status.index(word) for word in ('init="laplace"', "num_particles", "else num_steps")]
    assert places == sorted(places)
    assert "Stein" not in run(GraphicalSVGD, eight_schools, init="laplace", num_steps=200).status


def eight_schools_effects():
    y = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], dtype=torch.float64)
    error = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], dtype=torch.float64)
    mu = torch.linspace(-25.0, 30.0, 400, dtype=torch.float64)[:, None, None]
    tau = torch.linspace(-9.0, 7.0, 800, dtype=torch.float64).exp()[None, :, None]
    total = tau**2 + error**2
    log_p = -(mu**2) / 50 + (tau / (1 + tau**2 / 25)).log()  # of log tau
    log_p = log_p.squeeze(-1) - (total.log() / 2 + (y - mu) ** 2 / (2 * total)).sum(-1)
    weight = log_p.flatten().softmax(0)
    return weight @ (tau * (y - mu) / total).flatten(0, 1)


def test_the_site_that_is_off_is_named():
    status = run(GraphicalSVGD, one_site_far_away, num_steps=300).status
    assert 'the mean score of site "a"' in status


def test_one_wide_coordinate_among_good_ones_is_named():
    with_one = torch.zeros(7)
    with_one[4] = 1
    z = torch.special.ndtri((torch.arange(50) + 0.5) / 50)
    x = torch.stack([z[torch.randperm(50)] for _ in range(7)], 1) * (1 + 2 * with_one)

    def model():
        with pyro.plate("p", 7):
            pyro.sample("x", dist.Normal(0.0, 1.0))

    status = run(GraphicalSVGD, model, init=x, num_steps=1, optim=AdaGrad(1e-9)).status
    assert 'at site "x"[4] 8.' in status and "have not settled" in status


def test_particles_that_still_spread_are_not_called_too_few():
    posterior = run(GraphicalSVGD, normal(0.0, 1000.0), num_steps=300)
    assert float(posterior.marginal("x").variance) < 1e4  # of 1e6
    assert "still spreading" in posterior.status and "too few" not in posterior.status


SETTLED = {
    "chain": (GraphicalSVGD, gaussian_chain, {"num_steps": 400}),
    "many": (GraphicalSVGD, gaussian_chain, {"num_particles": 200, "num_steps": 300}),
    "noise": (GraphicalSVGD, gaussian_chain, {"noise": 0.02, "num_steps": 300}),
    "simplex": (GraphicalSVGD, lambda: (positive_and_simplex,), {"num_steps": 400}),
    "Langevin": (Langevin, gaussian_chain, {"step_size": 0.05, "num_steps": 400}),
}


@pytest.mark.parametrize("name", SETTLED)
def test_settled_runs_raise_no_doubt(name):
    infer, make, options = SETTLED[name]
    assert "Stein" not in run(infer, *make(), **options).status


def test_a_small_discrepancy_far_from_a_wide_target_is_no_convergence():
    """The discrepancy of N(1000, 100^2) has the unit 1 / x^2: it is small everywhere."""
    options = {"tol": 0.02, "num_steps": 60}
    with pytest.warns(ConvergenceWarning, match="units of a squared score"):
        posterior = run(GraphicalSVGD, normal(1000.0, 100.0), **options)
    assert float(posterior.history["ksd"][-1]) < 0.02
    assert float(posterior.marginal("x").mean) < 100
    assert not posterior.converged
    arrived = run(GraphicalSVGD, normal(1000.0, 100.0), init="laplace", **options)
    assert arrived.converged and arrived.status == "converged"
    assert float(arrived.marginal("x").mean) == pytest.approx(1000, abs=30)


DRIFTING = {
    "long steps": (Langevin, 8.0, 10.0, 0.01, {"step_size": 1.0}),
    "many chains": (Langevin, 3.0, 2.0, 0.05, {"step_size": 0.02, "num_particles": 500}),
    "a trace of noise": (GraphicalSVGD, 8.0, 10.0, 0.01, {"noise": 1e-8}),
    "little noise": (GraphicalSVGD, 3.0, 2.0, 0.1, {"noise": 1e-6}),
}


@pytest.mark.parametrize("name", DRIFTING)
def test_a_drifting_run_does_not_stop_where_chance_would_be_granted(name):
    """Started at N(0, 1), and tested at every step on the way."""
    infer, loc, scale, tol, options = DRIFTING[name]
    posterior = run(infer, normal(loc, scale), tol=tol, **options)
    found = posterior.marginal("x")
    assert posterior.converged
    assert 0.5 <= float(found.variance) / scale**2 <= 2
    # a mean score of 0.2 by the particles' deviation, which is at least sqrt(0.5) of the target's
    assert abs(float(found.mean) - loc) / scale <= 0.2 / 0.5**0.5


@pytest.mark.parametrize("n", [50, 500])
@pytest.mark.parametrize("correlation", [0.0, 0.8, 0.99])
def test_stationary_chains_converge_and_raise_no_doubt(correlation, n):
    covariance = torch.tensor([[1.0, correlation], [correlation, 1.0]])
    law = dist.MultivariateNormal(torch.tensor([3.0, -1.0]), covariance)
    options = {"step_size": 0.1 * (1 - correlation), "init": {"x": law.sample((n,))}}
    posterior = run(Langevin, lambda: pyro.sample("x", law), tol=1e9, num_steps=100, **options)
    assert posterior.converged
    posterior = run(Langevin, lambda: pyro.sample("x", law), num_steps=30, **options)
    assert "Stein" not in posterior.status


def test_what_may_be_chance_is_no_convergence_and_the_status_says_so():
    z = torch.special.ndtri((torch.arange(50) + 0.5) / 50)[:, None]
    options = {"step_size": 1e-9, "num_steps": 1, "tol": 1e9, "init": {"x": z[:, 0] + 0.5}}
    with pytest.warns(ConvergenceWarning, match="as nearly as 50 independent ones commonly do"):
        posterior = run(Langevin, normal(0.0, 1.0), **options)  # 3.5 standard errors off
    assert not posterior.converged
    shift = float(re.search(r'site "x" the mean score .* is (\S+) \(0', posterior.status).group(1))
    assert shift == pytest.approx(0.5, rel=0.02)


def test_chains_that_have_not_arrived_are_told_of():
    posterior = run(Langevin, normal(5.0, 1.0))  # 1000 steps of 1e-3: one relaxation time
    assert float(posterior.marginal("x").mean) < 4
    assert "target's mean" in posterior.status
    assert "Raise num_steps or step_size: their product, 1 so far" in posterior.status
    narrow = run(Langevin, normal(0.0, 10.0))
    assert float(narrow.marginal("x").variance) < 10  # of 100
    assert "have not settled" in narrow.status and "their product" in narrow.status
    wide = run(Langevin, normal(0.0, 0.3), num_steps=20)  # a start of variance 1, not forgotten
    assert "have not settled" in wide.status and "their product" in wide.status


def test_a_langevin_step_too_long_for_a_narrow_density_is_told_of():
    # eps a = 1.9: the stationary variance is 1 / (1 - 1.9 / 2) = 20 times the target's
    posterior = run(Langevin, normal(0.0, 1900**-0.5), num_particles=500)
    assert float(posterior.marginal("x").variance) * 1900 == pytest.approx(20, rel=0.3)
    assert "step_size is too long" in posterior.status


@pytest.mark.parametrize("infer", [GraphicalSVGD, Langevin])
def test_nodes_without_a_factor_stay_and_are_told_of(infer):
    seen = torch.tensor([True, False, True])

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("p", 3):
            y = torch.tensor([1.0, 0.0, 3.0])
            pyro.sample("y", dist.Normal(x, 1.0), obs=y, obs_mask=seen)

    engine = infer(model, progress=False, num_steps=400).setup()
    if infer is Langevin:
        engine.step_size = 0.03
    start = engine.x.clone()
    posterior = engine.run()
    masked = [engine.graph.columns[engine.graph.node_id("y_unobserved", k)] for k in (0, 2)]
    assert torch.equal(engine.x[:, masked], start[:, masked])
    assert (
        '2 of 4 nodes have no density, as masked ones (site "y_unobserved"[0]' in posterior.status
    )
    assert "Stein" not in posterior.status
    if infer is GraphicalSVGD:
        # the discrepancy of the two nodes that have a density, whatever the others do
        assert float(posterior.history["ksd"][-1]) < 0.02
        # x given 1 and 3: mean 4/3, variance 1/3
        assert float(posterior.marginal("x").mean) == pytest.approx(4 / 3, abs=0.01)
        assert float(posterior.marginal("x").variance) == pytest.approx(1 / 3, rel=0.05)


RHO, LENGTH = 0.99, 100


def correlated_chain():
    """x_t = 0.99 x_(t-1) + noise, each site N(0, 1)."""
    x = pyro.sample("x0", dist.Normal(0.0, 1.0))
    for t in pyro.markov(range(1, LENGTH)):
        x = pyro.sample(f"x{t}", dist.Normal(RHO * x, (1 - RHO**2) ** 0.5))


def chain_covariance(dim: int = LENGTH, rho: float = RHO) -> torch.Tensor:
    place = torch.arange(float(dim))
    return rho ** (place[:, None] - place).abs()


TOGETHER = {
    "narrow chains": (Langevin, 300.0, {"step_size": 1e-4, "init": "laplace"}),
    "narrow particles": (GraphicalSVGD, 30.0, {"init": "laplace"}),
    "from the default start": (GraphicalSVGD, 30.0, {}),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_a_chain_that_is_too_narrow_as_a_whole_has_not_converged(name):
    """Each site has the width that its neighbours leave it, and a twentieth of its variance."""
    infer, tol, options = TOGETHER[name]
    with pytest.warns(ConvergenceWarning, match="do not satisfy Stein's identity"):
        posterior = run(infer, correlated_chain, tol=tol, num_steps=60, **options)
    variances = [float(posterior.marginal(f"x{t}").variance) for t in range(0, LENGTH, 10)]
    assert max(variances) < 0.25
    assert float(posterior.history["ksd"][-1]) <= tol and not posterior.converged


@pytest.mark.parametrize(
    ("infer", "tol", "num_steps"),
    [
        (Langevin, 300.0, 20),
        (Langevin, None, 20),
        (GraphicalSVGD, 100.0, 80),
    ],
)
def test_a_chain_that_is_shifted_as_a_whole_has_not_converged(infer, tol, num_steps):
    pyro.set_rng_seed(2)  # by chance one of the hundred coordinates may look off too, and be named
    law = torch.distributions.MultivariateNormal(torch.zeros(LENGTH), chain_covariance())
    start = {f"x{t}": column for t, column in enumerate((law.sample((200,)) + 2).t())}
    options = {"init": start, "tol": tol, "num_steps": num_steps}
    options |= {"step_size": 1e-4} if infer is Langevin else {}
    told = "along a sum of all coordinates"
    with nullcontext() if tol is None else pytest.warns(ConvergenceWarning, match=told):
        posterior = run(infer, correlated_chain, **options)
    assert posterior.status.count(told) == 1
    assert float(posterior.marginal("x50").mean) > 1.5
    assert not posterior.converged


@pytest.mark.parametrize("n", [10, 50, 200])
@pytest.mark.parametrize(("dim", "rho"), [(1, 0.0), (20, 0.5), (100, 0.9), (100, 0.99)])
def test_sums_of_independent_draws_seldom_look_off(dim, rho, n):
    covariance = chain_covariance(dim, rho)
    law = torch.distributions.MultivariateNormal(torch.zeros(dim), covariance)
    precision = covariance.inverse()
    draws = [law.sample((n,)) for _ in range(100)]
    alarms = sum(common_misfit(x, -x @ precision) is not None for x in draws)
    assert alarms <= 5  # beside 14 to 100 of the single coordinates, but for few of many draws


def test_sums_leave_out_coordinates_without_density_or_width():
    x = torch.randn(50, 3)
    score = -x.clone()
    x[:, 1], score[:, 1] = 1e30, 0.0
    x[:, 2] = 4.0
    assert common_misfit(x, score) is None
    assert common_misfit(x[:, 1:2], score[:, 1:2]) is None
    score[0, 0] = torch.nan
    assert common_misfit(x, score) is not None


# ---------------------------------------------------------------------- ratios that are none
def crowd(y):
    """The mean of thirty latent biases and their spread."""
    lean = pyro.sample("lean", dist.Normal(0.0, 1.0))
    s = pyro.sample("s", dist.LogNormal(-2.0, 0.5))
    with pyro.plate("n", 30):
        b = pyro.sample("b", dist.Normal(lean, s))
        pyro.sample("y", dist.Normal(b, 0.3), obs=y)


@pytest.mark.parametrize("num_steps", [20, 100])
def test_particles_that_are_far_away_are_not_said_to_have_a_share_of_the_variance(num_steps):
    pyro.set_rng_seed(0)
    y = 0.15 * torch.randn(30) + 0.5
    posterior = pg.fit(crowd, (y,), infer=GraphicalSVGD, num_steps=num_steps, progress=False)
    assert "identity" in posterior.status and "of the target's." not in posterior.status


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_a_ratio_below_zero_is_no_share_of_a_variance(shift):
    # between the modes of a mixture of N(-4, 1) and N(4, 1) scores rise with x
    x = torch.linspace(-1, 1, 50)[:, None]
    score = 4 * torch.tanh(4 * x) - x + shift / 0.58

    def wells():
        z = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("wells", torch.logaddexp(4 * z, -4 * z))

    engine = GraphicalSVGD(wells, num_particles=50, num_steps=1, progress=False)
    engine.run()
    engine.x, engine.score = x, score
    assert float(engine.checks().ratio) < 0
    said = engine.doubts(engine.checks())
    assert 'site "x"' in said and not re.search(r"-\d|variance", said)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_in_single_precision_is_named_as_a_cause(dtype):
    """Level and slope of temperatures over years: narrow together, not apart."""
    year = torch.arange(1980.0, 2020.0, dtype=dtype)
    temperature = 287 + 0.02 * (year - 2000) + 0.1 * torch.sin(year)
    scale = torch.tensor([1000.0, 10.0], dtype=dtype)

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=dtype), scale).to_event(1))
        with pyro.plate("years", len(year)):
            pyro.sample("y", dist.Normal(w[0] + w[1] * year, 0.1), obs=temperature)

    q = pg.fit(model, init="laplace", num_steps=100, progress=False)
    is_single = dtype == torch.float32
    assert ("Stein's identity" in q.status and "dtype=torch.float64" in q.status) == is_single


def test_a_run_that_ends_too_narrow_says_where():
    """From a narrow start a loose `tol` is met as soon as the checks let it be."""

    def model():
        with pyro.plate("n", 2):
            pyro.sample("x", dist.Normal(0.0, torch.tensor([1.0, 1.0])))

    pyro.set_rng_seed(0)
    start = 0.05 * torch.randn(100, 2)
    options = {"num_particles": 100, "init": {"x": start}, "num_steps": 500, "progress": False}
    loose = GraphicalSVGD(model, tol=1e9, optim=AdaGrad(lr=0.1), **options)
    loose.run()
    ratio = loose.checks().ratio
    assert loose.converged and 0.5 < float(ratio.min()) < 0.7
    told = (
        f"converged. The particles' variance at {coordinate_name(loose.graph, int(ratio.argmin()))}"
    )
    assert loose.status.startswith(f"{told} is {float(ratio.min()):.2f} of the target's")
    tight = GraphicalSVGD(model, tol=0.01, **options)
    tight.run()
    assert tight.status == "converged"


def test_chains_that_a_scale_still_holds_near_have_not_converged():
    """Scores of v and x make up for each other while chains creep out of the neck."""

    def funnel():
        v = pyro.sample("v", dist.Normal(0.0, 1.5))
        with pyro.plate("k", 4):
            pyro.sample("x", dist.Normal(0.0, (v / 2).exp()))

    options = {"init": "laplace", "step_size": 0.02, "num_particles": 200, "progress": False}
    with pytest.warns(ConvergenceWarning, match="Stein"):
        posterior = pg.fit(funnel, infer=pg.Langevin, tol=0.05, num_steps=700, **options)
    assert float(posterior.history["ksd"][-1]) < 0.05
    assert float(posterior.marginal("v").mean) < -0.5  # the truth is 0


@pytest.mark.parametrize(("n", "allowed"), [(50, 22), (1000, 3)])
def test_like_coordinates_of_draws_pass_and_narrow_ones_do_not(n, allowed):
    kind = torch.tensor([0, 1, 1, 1, 1, 1, 1, 1, 1])
    named = 0
    for _ in range(50):
        x = torch.randn(n, 9)
        named += uncommon_spread(x, -x, kind, common_errors(2)) is not None
        narrow = x * torch.tensor([1.0] + [0.75] * 8)
        assert uncommon_spread(narrow, -narrow, kind, common_errors(2)) is not None
    assert named <= allowed  # one of 1000 draws, a quarter of 50, whose ratios are skewed
    x = (x - x.mean(0)) / x.std(0, correction=0)
    score = -x
    score[:, 3] = 0.0  # no density to compare with
    assert uncommon_spread(x, score, kind, common_errors(2)) is None


@pytest.mark.parametrize("unit", [1e-12, 1e-10, 1.0, 1e10, 1e20])
def test_checks_in_single_precision_do_not_depend_on_units(unit):
    """Squares of scores, or of coordinates, leave its range: chance was then granted anything."""
    z = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    normal, kind = lambda z: (z * unit, -z / unit), torch.zeros(3, dtype=torch.long)
    ours, theirs = (SteinChecks.of(*pair, errors=5.0) for pair in (normal(z), (z, -z)))
    for name in ("shift", "ratio", "shift_by_chance", "ratio_by_chance"):
        assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-4, atol=1e-6)
    assert ours.passed
    assert not SteinChecks.of(1e6 * unit * z, -1e6 / unit * z, errors=5.0).passed
    assert not SteinChecks.of(1e6 * unit * (z + 9), -1e6 / unit * (z + 9), errors=5.0).arrived
    assert uncommon_spread(*normal(z), kind, common_errors(1)) is None
    wide = uncommon_spread(3 * unit * z, -3 / unit * z, kind, common_errors(1))
    assert wide == int(z.var(0).argmax())


def test_chains_far_from_a_target_of_atomic_size_are_told_of_in_single_precision():
    options = {"num_particles": 50, "num_steps": 20, "progress": False, "step_size": 1e-26}
    engine = Langevin(normal(torch.tensor(0.0), 1e-12), **options)
    engine.run()
    assert "Stein" in engine.status
