"""A Laplace start: the climb to the mode, and steps in units of the widths found there."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from pyrograph.errors import InferenceError, NonFiniteDensity
from pyrograph.graph import trace_graph
from pyrograph.infer import AdaGrad, Adam, GraphicalSVGD, RMSProp
from pyrograph.infer.laplace import find_mode, mode_and_width, rising_column

from .programs import chain_truth, gaussian_chain


def poisson_regression():
    """A program with posterior deviations of about 0.01, and its Laplace approximation: Newton's
    method on the log density written out."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.cat([torch.ones(100, 1), 3 * torch.randn(100, 3, generator=generator)], 1)
    truth = torch.tensor([3.0, 1.0, -0.5, 0.3])
    y = torch.poisson(torch.exp(rows @ truth), generator=generator)

    def model():
        a = pyro.sample("a", dist.Normal(0.0, 5.0))
        b = pyro.sample("b", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
        rate = torch.exp(a + rows[:, 1:] @ b)
        pyro.sample("y", dist.Poisson(rate).to_event(1), obs=y)

    prior = torch.tensor([25.0, 4.0, 4.0, 4.0]).reciprocal()
    x = truth
    for _ in range(20):
        rate = torch.exp(rows @ x)
        hessian = rows.T @ (rate[:, None] * rows) + prior.diag()
        x = x + torch.linalg.solve(hessian, rows.T @ (y - rate) - prior * x)
    return model, x, hessian.inverse().diagonal().sqrt()


@pytest.mark.parametrize("rule", [AdaGrad(), Adam(), RMSProp(lr=0.02)], ids=repr)
def test_a_run_stays_about_a_narrow_mode(rule):
    model, mode, sd = poisson_regression()
    engine = GraphicalSVGD(model, init="laplace", optim=rule, num_steps=300, progress=False)
    x = engine.run().x
    assert ((x.mean(0) - mode).abs() < 0.3 * sd).all()
    ratio = x.std(0) / sd
    assert ((ratio > 0.6) & (ratio < 1.2)).all()


def test_other_starts_step_as_ever():
    model, y = gaussian_chain()
    engine = GraphicalSVGD(model, progress=False).setup(y)
    there, _ = AdaGrad().step(engine.x, engine._direction, AdaGrad().start(engine.x))
    engine.step()
    assert torch.equal(engine.x, there)


@pytest.mark.parametrize("rule", [AdaGrad(), Adam(), RMSProp()], ids=repr)
@pytest.mark.parametrize("init", ["laplace", None])
def test_a_resumed_run_keeps_its_units(rule, init):
    model, y = gaussian_chain()
    options = {"num_steps": 8, "num_particles": 6, "optim": rule, "progress": False}
    pyro.set_rng_seed(0)
    unbroken = GraphicalSVGD(model, init="laplace", **options).run(y).x
    pyro.set_rng_seed(0)
    half = GraphicalSVGD(model, init="laplace", **options)
    for _ in range(3):
        half.step(y)
    rest = GraphicalSVGD(model, init=init, **options)
    rest.load_state_dict(half.state_dict())
    assert torch.equal(rest.run(y).x, unbroken)


def test_a_state_without_units_goes_on_without():
    model, y = gaussian_chain()
    options = {"num_steps": 8, "num_particles": 6, "progress": False}
    pyro.set_rng_seed(0)
    unbroken = GraphicalSVGD(model, **options).run(y).x
    pyro.set_rng_seed(0)
    half = GraphicalSVGD(model, **options)
    half.step(y)
    rest = GraphicalSVGD(model, init="laplace", **options)
    rest.load_state_dict(half.state_dict())
    assert torch.equal(rest.run(y).x, unbroken)


def test_mode_and_conditional_widths_of_a_chain():
    model, y = gaussian_chain()
    mean, covariance = chain_truth(y)
    mode, width = mode_and_width(trace_graph(model, (y,), unconstrained=True))
    assert_close(mode, mean, rtol=0, atol=1e-4)
    assert_close(width, covariance.inverse().diagonal().rsqrt(), rtol=1e-6, atol=0)


def test_the_climb_backtracks_from_where_the_density_is_not_finite():
    """-log p = exp(80 (x - 1)) - 80 x, least at x = 1; from x = 9.9 on it overflows."""

    def model():
        x = pyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
        pyro.factor("wall", 80 * x - torch.exp(80 * (x - 1)))

    graph = trace_graph(model, unconstrained=True)
    with pytest.raises(NonFiniteDensity):
        GraphicalSVGD(model, init=torch.full((1, 1), 10.0), progress=False).setup()
    mode, width = mode_and_width(graph)
    assert float(mode) == pytest.approx(1, abs=1e-3)
    assert float(width) == pytest.approx(1 / 80, rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_least_squares_with_unknown_noise_in_single_precision(dtype):
    """The climb meets scales that underflow on its way."""
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0)).to(dtype)
    y = 1000 + 3 * x + 0.1 * torch.sin(37 * x) * 2**0.5

    def model():
        zero = torch.zeros((), dtype=dtype)
        a = pyro.sample("a", dist.Normal(zero, 1e4))
        b = pyro.sample("b", dist.Normal(zero, 10.0))
        s = pyro.sample("s", dist.HalfNormal(zero + 5.0))
        with pyro.plate("d", len(x)):
            pyro.sample("y", dist.Normal(a + b * x, s), obs=y)

    rows = torch.stack([torch.ones_like(x), x], 1).double()
    found = torch.linalg.lstsq(rows, y.double()[:, None])
    residual = y.double() - (rows @ found.solution)[:, 0]
    mode, _ = mode_and_width(trace_graph(model, unconstrained=True))
    assert_close(mode[:2].double(), found.solution[:, 0], rtol=0, atol=3e-3)  # .1 / 2000^.5: .0022
    assert float(mode[2].exp()) == pytest.approx(float(residual.std()), rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_groups", [8, 200])
def test_a_centred_hierarchy_has_no_mode_and_is_told_what_to_do(num_groups, dtype):
    y = 0.1 * torch.randn(num_groups, generator=torch.Generator().manual_seed(0))

    def model():
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        tau = pyro.sample("tau", dist.HalfNormal(1.0))
        with pyro.plate("groups", num_groups):
            theta = pyro.sample("theta", dist.Normal(mu, tau))
            pyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    engine = GraphicalSVGD(model, init="laplace", dtype=dtype, progress=False)
    with pytest.raises(InferenceError, match=r'no mode.*site "(tau|theta|mu)".*LocScaleReparam'):
        engine.setup()


@pytest.mark.parametrize("seed", [3, 7])
def test_wide_coordinates_are_climbed_to_the_end_in_single_precision(seed):
    """Truth: the density written out in double precision, whose score is zero at a mode."""
    generator = torch.Generator().manual_seed(seed)
    rows = 0.1 * torch.randn(4, 2, generator=generator, dtype=torch.float32)
    y = 100 * torch.randn(4, generator=generator, dtype=torch.float32)

    def number(value):
        return torch.tensor(value, dtype=torch.float32)

    def model():
        with pyro.plate("p", 2):
            x = pyro.sample("x", dist.Normal(number(0.0), number(100.0)))
        t = pyro.sample("t", dist.Gamma(number(3.0), number(2.0)))
        with pyro.plate("q", 4):
            pyro.sample("y", dist.Normal(rows @ x, t.sqrt()), obs=y)

    def log_density(z):
        x, log_t = z[:2], z[2]
        prior = -0.5 * (x / 100).square().sum() + 3 * log_t - 2 * log_t.exp()
        residual = y.double() - rows.double() @ x
        return prior - 0.5 * residual.square().sum() / log_t.exp() - 2 * log_t

    mode, width = mode_and_width(trace_graph(model, unconstrained=True))
    point = mode.double().requires_grad_()
    (score,) = torch.autograd.grad(log_density(point), point)
    hessian = torch.autograd.functional.hessian(log_density, point.detach())
    assert_close(width.double(), (-hessian.diagonal()).rsqrt(), rtol=0.05, atol=0)
    assert float((score.abs() * width).max()) < 0.3


def test_a_slope_along_a_wide_coordinate_is_no_mode():
    """1000 wide by its curvature, and the climb is cut short far below the top."""
    x = torch.tensor([0.0])

    def model():
        pyro.sample("x", dist.Normal(1e4, 1e3))

    graph = trace_graph(model, unconstrained=True)
    width = torch.tensor([1e3])
    assert rising_column(graph, x, width) == 0
    assert rising_column(graph, torch.tensor([1e4 - 500.0]), width) is None


def test_a_slope_is_seen_beside_a_steeper_one_whose_width_is_wrong():
    def model():
        pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("b", dist.Normal(100.0, 1.0))

    graph, width = trace_graph(model, unconstrained=True), torch.tensor([1e3, 1.0])
    assert rising_column(graph, torch.tensor([0.3, 0.0]), width) == 1
    assert rising_column(graph, torch.tensor([0.3, 100.0]), width) is None


def test_a_climb_that_ends_at_a_kink_with_a_scale_next_to_0_is_refused():
    """From 0 the climb shrinks the scale at a level far from all numbers, far below the top."""
    side = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0], dtype=torch.float64)

    def model():
        level = pyro.sample("level", dist.Normal(side.new_tensor(1e5), 2.0))
        slope = pyro.sample("slope", dist.Normal(side.new_tensor(0.0), 2.0))
        scale = pyro.sample("scale", dist.HalfNormal(side.new_tensor(1.0)))
        with pyro.plate("rows", 5):
            y = 1e5 + side.sin()
            pyro.sample("y", dist.StudentT(3.0, level + slope * side, scale), obs=y)

    graph = trace_graph(model, unconstrained=True)
    try:
        mode, _ = mode_and_width(graph)
    except InferenceError as error:
        assert "found no mode" in str(error)
    else:
        best, _ = find_mode(graph, start=mode.new_tensor([1e5, 0.0, 0.0]))
        assert float(graph.density(best[None]) - graph.density(mode[None])) < 0.5


@pytest.mark.parametrize("seed", [0, 1])
def test_a_scale_of_data_that_latents_can_fit_exactly_is_named(seed):
    """Errors in a covariate too: as the noise goes to 0 the density grows without bound. Particles
    stayed in that spike, and were told to be more. Of seed 1 a second climb ends at noise e^-37,
    where rounding holds the latents: that was a mode."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(15, generator=generator)
    measured = x + 0.3 * torch.randn(15, generator=generator)
    y = 1 + 2 * x + 0.4 * torch.randn(15, generator=generator)

    def model():
        slope = pyro.sample("slope", dist.Normal(0.0, 5.0))
        noise = pyro.sample("noise", dist.HalfNormal(1.0))
        with pyro.plate("rows", 15):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
            pyro.sample("measured", dist.Normal(x, 0.3), obs=measured)
            pyro.sample("y", dist.Normal(1 + slope * x, noise), obs=y)

    engine = GraphicalSVGD(model, init="laplace", dtype=torch.float64, progress=False)
    with pytest.raises(InferenceError, match=r'no mode.*site "noise".*fit "y" exactly'):
        engine.setup()


def test_a_scale_that_falls_to_a_mode_is_followed_there():
    """60 rows of 30 coefficients in units that differ by 100: after all steps of one climb the
    noise still fell, to its mode, and was refused as on its way to 0."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 30, generator=generator) * torch.logspace(-1, 1, 30, dtype=torch.float64)
    y = x @ torch.randn(30, generator=generator)
    y = y + 1e-3 * torch.randn(60, generator=generator)

    def model():
        noise = pyro.sample("noise", dist.HalfNormal(1.0))
        with pyro.plate("columns", 30):
            weight = pyro.sample("weight", dist.Normal(0.0, 10.0))
        with pyro.plate("rows", 60):
            pyro.sample("y", dist.Normal(x @ weight, noise), obs=y)

    mode, width = mode_and_width(trace_graph(model, unconstrained=True))
    fit = torch.linalg.solve(x.T @ x, x.T @ y)  # priors say next to nothing
    squares = (y - x @ fit).square().sum()
    assert float(mode[0]) == pytest.approx(float((squares / 59).log() / 2), abs=0.01)
    assert float(width[0]) == pytest.approx((2 * 59) ** -0.5, rel=0.1)


def scaled_effects(y, is_centred):
    s = pyro.sample("s", dist.LogNormal(-1.5, 0.5))
    with pyro.plate("groups", len(y)):
        z = pyro.sample("z", dist.Normal(0.0, s if is_centred else 1.0))
        pyro.sample("y", dist.Normal(z if is_centred else s * z, 0.5), obs=y)


def test_a_spike_near_a_scale_of_0_is_told_of_and_deviations_have_none():
    y = 0.5 * torch.randn(30, generator=torch.Generator().manual_seed(0))
    log_s = torch.linspace(-6.0, 2.0, 4001, dtype=torch.float64)
    log_p = dist.Normal(-1.5, 0.5).log_prob(log_s)
    sd = (torch.exp(2 * log_s) + 0.25).sqrt()  # of y given s
    log_p = log_p + dist.Normal(0.0, sd[:, None]).log_prob(y.double()).sum(1)
    truth = float((log_p.softmax(0) * log_s.exp()).sum())

    def fitted(is_centred):
        pyro.set_rng_seed(0)
        engine = GraphicalSVGD(scaled_effects, init="laplace", num_steps=200, progress=False)
        engine.run(y, is_centred)
        return float(engine.posterior().marginal("s").mean), engine.status

    spike, status = fitted(True)
    assert spike < 0.05 * truth
    assert 'site "s" is' in status and "LocScaleReparam(0.0)" in status
    found, _ = fitted(False)
    assert found == pytest.approx(truth, rel=0.2)


# ---------------------------------------------------------------------- units that differ by far
def raw_logistic_regression(dtype):
    """1, age and income, neither centred nor scaled."""
    generator = torch.Generator().manual_seed(0)
    age = 20 + 60 * torch.rand(2000, generator=generator)
    income = torch.exp(10 + 0.5 * torch.randn(2000, generator=generator))
    x = torch.stack([torch.ones(2000), age, income], 1)
    logits = x @ torch.tensor([-3.0, 0.05, 2e-5])
    y = (torch.rand(2000, generator=generator) < logits.sigmoid()).to(dtype)
    return x.to(dtype), y


def logistic(x, y):
    with pyro.plate("k", 3):
        w = pyro.sample("w", dist.Normal(x.new_zeros(()), 10.0))
    with pyro.plate("n", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def newton(x, y):
    """The mode, the log density there and the conditional widths, in double precision."""
    x, y = x.double(), y.double()
    w = torch.zeros(3).double()
    unit = torch.tensor([1.0, 1e-2, 1e-5]).double()
    for _ in range(50):
        p = (x @ w).sigmoid()
        hessian = x.T @ ((p * (1 - p))[:, None] * x) + torch.eye(3).double() / 100
        gradient = x.T @ (y - p) - w / 100
        step = torch.linalg.solve(unit[:, None] * hessian * unit, unit * gradient) * unit
        w = w + step.clamp(-unit, unit)
    return w, hessian.diagonal().rsqrt()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_raw_covariates_are_climbed_in_their_own_units(dtype):
    x, y = raw_logistic_regression(dtype)
    graph = trace_graph(logistic, (x, y), unconstrained=True)
    mode, width = mode_and_width(graph)
    truth, expected = newton(x, y)
    assert_close(width.double(), expected, rtol=1e-2, atol=0)
    assert float(((mode.double() - truth) / expected).abs().max()) < 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_widths_far_from_zero_are_those_of_the_density(dtype):
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(200, generator=generator, dtype=torch.float64)
    y = (287 + 0.02 * noise).to(dtype)

    def model():
        m = pyro.sample("m", dist.Normal(torch.tensor(287.0, dtype=dtype), 10.0))
        with pyro.plate("n", 200):
            pyro.sample("y", dist.StudentT(4.0, m, 0.02), obs=y)

    mode, width = mode_and_width(trace_graph(model, unconstrained=True))
    r = (y.double() - mode.double()) / 0.02
    curvature = 5 * (4 - r**2) / (4 + r**2) ** 2 / 0.02**2  # of -log of Student's density
    expected = float((curvature.sum() + 0.01).rsqrt())
    assert width.dtype == dtype
    assert float(width) == pytest.approx(expected, rel=1e-3)


# ---------------------------------------------------------------------- kinks
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loc, scale", [(0.0, 1.0), (287.0, 0.02), (3.0, 10.0)])
def test_the_width_at_a_kink_is_of_the_order_of_the_density(loc, scale, dtype):
    """Steps far shorter than a density see a kink as a spike."""

    def model():
        zero = torch.zeros((), dtype=dtype)
        pyro.sample("x", dist.Laplace(loc + zero, scale))

    graph = trace_graph(model, unconstrained=True)
    _, width = mode_and_width(graph)
    sd = 2**0.5 * scale
    assert 0.2 * sd < float(width) < sd


def test_steps_of_the_width_leave_smooth_widths_as_they_are():
    def model():
        x = pyro.sample("x", dist.Normal(287.0, 0.02))
        y = pyro.sample("y", dist.StudentT(4.0, -1.0, 3.0))
        pyro.sample("z", dist.Poisson(torch.exp(0.1 * y)), obs=torch.tensor(2.0))
        pyro.sample("w", dist.Normal(x, 0.02), obs=torch.tensor(287.01))

    mode, width = mode_and_width(trace_graph(model, unconstrained=True))
    y = mode[1]
    r = (y + 1) / 3
    curvature = 5 * (4 - r**2) / (4 + r**2) ** 2 / 9 + 0.01 * torch.exp(0.1 * y)
    truth = torch.stack([torch.tensor(0.02 / 2**0.5), curvature.rsqrt()])
    assert_close(width, truth, rtol=1e-4, atol=0)


@pytest.mark.parametrize("power", [4, 6])
def test_a_flat_top_is_as_wide_as_it_is(power):
    """exp(-x^p), whose curvature at the mode is 0. Truth: its standard deviation, by sums."""

    def model():
        with pyro.plate("numbers", 3):
            x = pyro.sample("x", dist.Normal(0.0, 1.0).mask(False))
            pyro.factor("top", -(x**power))

    _, width = mode_and_width(trace_graph(model, unconstrained=True))
    grid = torch.linspace(-3, 3, 6001, dtype=torch.float64)
    p = (-(grid**power)).exp()
    sd = float(((p * grid**2).sum() / p.sum()).sqrt())
    assert ((width > 0.5 * sd) & (width < 2 * sd)).all()


def test_a_wall_on_one_side_is_no_flat_top():
    """exp(-x^2 / 2) cut off at .01: half of the numbers are as wide as ever."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("wall", -1e4 * torch.relu(x - 0.01))

    _, width = mode_and_width(trace_graph(model, unconstrained=True))
    assert 0.3 < float(width) < 1.5  # its standard deviation is 0.6
