"""Small programs of many kinds under every preset. Truth: enumeration, closed forms, dense sums,
finite differences."""

import functools
import itertools
import math
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Importance, Predictive
from pyro.infer.autoguide import AutoGuideList, AutoNormal
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import ConvergenceWarning, OptionError, PyrographError, UnsupportedFactor

PRESETS = (pg.VMP, pg.BP, pg.EP, pg.PowerEP, pg.FractionalBP, pg.TRW)
BEYOND_GAUSSIANS = (pg.VMP, pg.EP, pg.PowerEP)


def fit(program, infer, *args, **options):
    return pg.fit(program, args, infer=infer, progress=False, **options)


@functools.cache
def true_evidence(program):
    """Of the discrete programs below; once for all tests."""
    return enumerated(program, LATENTS[program])


def enumerated(program, values):
    """Log of the sum over all assignments ``{site: (shape, states, dtype)}``."""
    spaces = [itertools.product(range(n), repeat=math.prod(s)) for s, n, _ in values.values()]
    total = []
    for chosen in itertools.product(*spaces):
        fixed = {
            name: torch.tensor(v).reshape(shape).to(dtype)
            for (name, (shape, _, dtype)), v in zip(values.items(), chosen, strict=True)
        }
        trace = poutine.trace(poutine.condition(program, fixed)).get_trace()
        total.append(trace.log_prob_sum())
    return torch.stack(total).logsumexp(0)


def summed(log_density, low=-40.0, high=40.0, count=2_000_001):
    """Log mass, mean and standard deviation of a density on a line, by a dense sum."""
    x = torch.linspace(low, high, count)
    value = log_density(x)
    share = value.softmax(0)
    mean = (share * x).sum()
    return value.logsumexp(0) + (x[1] - x[0]).log(), mean, (share * (x - mean) ** 2).sum().sqrt()


def difference_quotient(value, point, step=1e-5):
    out = torch.zeros_like(point)
    for k, e in enumerate(torch.eye(len(point)) * step):
        out[k] = (value(point + e) - value(point - e)) / (2 * step)
    return out


def gradient_and_quotient(program, point, infer, **options):
    """Of the evidence."""

    def evidence(at):
        return fit(program, infer, at, tol=1e-11, **options).log_evidence

    at = point.clone().requires_grad_()
    (found,) = torch.autograd.grad(evidence(at), at)
    return found, difference_quotient(lambda p: evidence(p).detach(), point)


# ---------------------------------------------------------------------- programs
def nested_plates():
    with pyro.plate("rows", 2, dim=-2):
        b = pyro.sample("b", dist.Bernoulli(0.3))
        with pyro.plate("columns", 3, dim=-1):
            tilt = b.unsqueeze(-1) * torch.tensor([1.0, 0.0, -1.0])
            z = pyro.sample("z", dist.Categorical(logits=torch.tensor([0.1, 0.5, -0.3]) + tilt))
            place = torch.tensor([0.0, 1.0, 2.0])[z]
            pyro.sample("y", dist.Normal(place, 0.7), obs=torch.arange(6.0).reshape(2, 3) / 2)


def scaled():
    with poutine.scale(scale=2.5):
        b = pyro.sample("b", dist.Bernoulli(0.3))
        with pyro.plate("two", 2), poutine.scale(scale=torch.tensor(3.0)):
            c = pyro.sample("c", dist.Bernoulli(0.2 + 0.5 * b))
    pyro.sample("y", dist.Normal(c.sum(-1), 1.0), obs=torch.tensor(1.5))


DOUBLE, LONG = torch.float64, torch.int64
LATENTS = {
    nested_plates: {"b": ((2, 1), 2, DOUBLE), "z": ((2, 3), 3, LONG)},
    scaled: {"b": ((), 2, DOUBLE), "c": ((2,), 2, DOUBLE)},
}


@pytest.mark.parametrize("infer", PRESETS)
@pytest.mark.parametrize("program", [nested_plates, scaled])
def test_evidence_is_what_its_kind_says_on_nested_plates_and_scales(program, infer):
    true = true_evidence(program)
    posterior = fit(program, infer)
    found, kind = posterior.log_evidence, posterior.evidence_kind
    if kind == "exact":
        assert_close(found, true, rtol=0, atol=1e-8)
    elif kind == "lower bound":
        assert found <= true + 1e-9
    elif kind == "upper bound":
        assert found >= true - 1e-9
    if program is nested_plates and infer in (pg.BP, pg.EP, pg.TRW):
        assert kind == "exact"


@pytest.mark.parametrize("infer", PRESETS)
@pytest.mark.parametrize("reading", ["plate of scalars", "one vector"])
def test_missing_data_as_nan_under_a_mask_is_ignored(infer, reading):
    y = torch.tensor([1.0, math.nan, 2.0])
    rows = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])

    def program():
        if reading == "one vector":
            x = pyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
            place = rows @ x
        else:
            place = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 3), poutine.mask(mask=~y.isnan()):
            pyro.sample("y", dist.Normal(place, 1.0, validate_args=False), obs=y)

    posterior = fit(program, infer)
    mean, variance = posterior.marginal("x").mean, posterior.marginal("x").variance
    if reading == "one vector":
        assert_close(mean, torch.tensor([0.5, 1.0]))
        assert_close(variance, torch.tensor([0.5, 0.5]))
    else:
        assert_close(mean, torch.tensor(1.0))
        assert_close(variance, torch.tensor(1 / 3))
    assert posterior.evidence_kind == "exact"


@pytest.mark.parametrize("kind", ["binomial", "one state", "one-hot"])
@pytest.mark.parametrize("infer", PRESETS)
def test_one_discrete_node_is_exact_for_every_preset(kind, infer):
    prior, values = {
        "binomial": (dist.Binomial(5, torch.tensor(0.4)), torch.arange(6.0)),
        "one state": (dist.Categorical(torch.ones(1)), torch.zeros(1)),
        "one-hot": (dist.OneHotCategorical(torch.tensor([0.2, 0.3, 0.5])), torch.arange(3.0)),
    }[kind]

    def program():
        z = pyro.sample("z", prior)
        place = z @ values if prior.event_dim else z * 1.0
        pyro.sample("y", dist.Normal(place, 1.0), obs=torch.tensor(1.3))

    log_prior = prior.log_prob(prior.enumerate_support())
    true = (log_prior + dist.Normal(values, 1.0).log_prob(torch.tensor(1.3))).logsumexp(0)
    posterior = fit(program, infer)
    assert posterior.evidence_kind == "exact"
    assert_close(posterior.log_evidence, true)


@pytest.mark.parametrize("infer", PRESETS)
def test_a_program_without_latents_is_refused_in_words(infer):
    def program():
        pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.tensor(1.0))

    with pytest.raises(PyrographError, match="no latent site"):
        fit(program, infer)


@pytest.mark.parametrize("infer", BEYOND_GAUSSIANS)
def test_marginals_of_a_matrix_site_have_its_shape_and_closed_form(infer):
    def program():
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
        pyro.sample("y", dist.Normal(w.sum(), 1.0), obs=torch.tensor(3.0))

    marginal = fit(program, infer).marginal("w")
    assert_close(marginal.mean, torch.full((2, 3), 3 / 7))
    assert_close(marginal.variance, torch.full((2, 3), 6 / 7))


@pytest.mark.parametrize("infer", [pg.VMP, pg.PowerEP])
def test_guides_of_nested_mixed_programs_serve_pyros_own_tools(infer):
    def program():
        with pyro.plate("rows", 2, dim=-2):
            s = pyro.sample("s", dist.LogNormal(0.0, 0.3))
            with pyro.plate("columns", 3, dim=-1):
                z = pyro.sample("z", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))
                w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
                pyro.sample("y", dist.Normal(z + w.sum(-1), s), obs=torch.ones(2, 3))

    posterior = fit(program, infer)
    draws = posterior.sample(5)
    assert {name: tuple(v.shape) for name, v in draws.items()} == {
        "s": (5, 2, 1),
        "z": (5, 2, 3),
        "w": (5, 2, 3, 2),
    }
    for parallel in (False, True):
        predictive = Predictive(program, guide=posterior.guide(), num_samples=7, parallel=parallel)
        assert predictive()["y"].shape[0] == 7
    both = AutoGuideList(program)
    both.append(posterior.guide(["z", "w"]))
    both.append(AutoNormal(poutine.block(program, expose=["s"])))
    assert set(both()) == {"s", "z", "w"}
    run = Importance(program, posterior.guide(), num_samples=50).run()
    assert run.get_log_normalizer().isfinite()


@pytest.mark.parametrize("infer", [pg.BP, pg.EP, pg.FractionalBP])
def test_evidence_differentiates_through_tables_with_zeros(infer):
    def program(t):
        none = torch.zeros(1)
        first = torch.cat([none, t[:2].softmax(0)])
        rows = torch.stack([first, torch.cat([t[2:].softmax(0), none]), torch.ones(3) / 3])
        x = pyro.sample("x", dist.Categorical(torch.ones(3) / 3))
        z = pyro.sample("z", dist.Categorical(probs=rows[x]))
        pyro.sample("y", dist.Normal(torch.arange(3.0)[z], 1.0), obs=torch.tensor(0.8))

    found, true = gradient_and_quotient(program, torch.tensor([0.1, 0.2, -0.3, 0.4]), infer)
    assert_close(found, true, rtol=0, atol=1e-7)


@pytest.mark.parametrize("damping", [0.0, 0.5, 0.99])
def test_damping_up_to_the_extreme_changes_the_way_not_the_answer(damping):
    posterior = fit(nested_plates, pg.BP, damping=damping, num_steps=20_000)
    assert posterior.converged
    assert_close(posterior.log_evidence, true_evidence(nested_plates), rtol=0, atol=1e-6)


# ---------------------------------------------------------------------- wrong numbers
def gated():
    m = pyro.sample("m", dist.Normal(1.0, 3.0))
    with pyro.plate("data", 3):
        z = pyro.sample("z", dist.Bernoulli(0.3))
        place = torch.where(z > 0, m, torch.tensor(-5.0))
        pyro.sample("y", dist.Normal(place, 1.0), obs=torch.tensor([0.0, 1.0, -4.0]))


@pytest.mark.parametrize("infer", [pg.EP, pg.PowerEP])
def test_the_residual_schedule_sends_to_continuous_nodes_of_mixed_programs(infer):
    residual, parallel = fit(gated, infer, schedule="residual"), fit(gated, infer)
    assert residual.converged and parallel.converged
    assert_close(residual.marginal("m").mean, parallel.marginal("m").mean, rtol=0, atol=1e-4)


@pytest.mark.parametrize("place", [0.0, 3.0])
def test_a_mixture_with_a_narrow_component_is_not_taken_for_a_gaussian(place):
    share = torch.tensor([0.5, 0.5]).log()

    def program():
        normals = dist.Normal(torch.tensor([place, 0.0]), torch.tensor([0.01, 3.0]))
        mixture = dist.MixtureSameFamily(dist.Categorical(logits=share), normals)
        x = pyro.sample("x", mixture)
        pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(place))

    wide = torch.tensor([1.0 + 0.01**2, 10.0]).sqrt()
    parts = dist.Normal(torch.tensor([place, 0.0]), wide).log_prob(torch.tensor(place))
    posterior = fit(program, pg.EP)
    assert posterior.evidence_kind == "estimate"
    assert_close(posterior.log_evidence, (share + parts).logsumexp(0), rtol=0, atol=0.2)


def test_a_likelihood_with_outliers_is_not_taken_for_a_gaussian():
    y = 2 + 0.01 * torch.randn(10, generator=torch.Generator().manual_seed(0))
    spread, share = torch.tensor([0.01, 20.0]), torch.tensor([0.9, 0.1])

    def log_likelihood(x):
        both = dist.Normal(x.unsqueeze(-1).unsqueeze(-1), spread).log_prob(y.unsqueeze(-1))
        return (both + share.log()).logsumexp(-1).sum(-1)

    def program():
        x = pyro.sample("x", dist.Normal(0.0, 5.0))
        with pyro.plate("data", len(y)):
            normals = dist.Normal(x[..., None].expand(len(y), 2), spread)
            pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(share), normals), obs=y)

    _, mean, deviation = summed(
        lambda x: dist.Normal(0.0, 5.0).log_prob(x) + log_likelihood(x), 1.9, 2.1, 20_001
    )
    marginal = fit(program, pg.EP).marginal("x")
    assert_close(marginal.mean, mean, rtol=0, atol=1e-3)
    assert_close(marginal.stddev, deviation, rtol=0.1, atol=0)


def one_normal(t):
    w = pyro.sample("w", dist.Normal(t[0], 1.0))
    pyro.sample("y", dist.Normal(w, t[1].exp()), obs=torch.tensor(1.0))


@pytest.mark.parametrize("infer", PRESETS)
def test_the_evidence_of_a_conjugate_node_differentiates(infer):
    found, true = gradient_and_quotient(one_normal, torch.tensor([0.1, -0.2]), infer)
    assert_close(found, true, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["logits", "one-hot", "vector mean"])
def test_a_parameter_shared_by_a_plate_differentiates(kind):
    def program(t):
        with pyro.plate("data", 4):
            if kind == "logits":
                pyro.sample("z", dist.Categorical(logits=t))
            elif kind == "one-hot":
                pyro.sample("z", dist.OneHotCategorical(logits=t))
            else:
                w = pyro.sample("w", dist.Normal(t, 1.0).to_event(1))
                pyro.sample("y", dist.Normal(w.sum(-1), 1.0), obs=torch.ones(4))

    found, true = gradient_and_quotient(program, torch.tensor([0.1, -0.2]), pg.BP)
    assert_close(found, true, rtol=0, atol=1e-6)


@pytest.mark.parametrize("use", ["look-up", "sum", "maximum"])
def test_parameters_beside_latents_in_an_expanded_tensor_differentiate(use):
    def program(t):
        b = pyro.sample("b", dist.Bernoulli(0.4))
        both = torch.stack([b * t[0], t[1]])
        with pyro.plate("data", 3):
            if use == "look-up":
                z = pyro.sample("z", dist.Bernoulli(0.3)).long()
                place = both.expand(3, 2)[torch.arange(3), z]
            elif use == "sum":
                place = both.expand(3, 4, 2).sum((1, 2))
            else:
                place = both.expand(4, 3, 2).amax((0, 2))
            pyro.sample("y", dist.Normal(place, 1.0), obs=torch.ones(3))

    found, true = gradient_and_quotient(program, torch.tensor([0.4, -0.2]), pg.BP)
    assert_close(found, true, rtol=0, atol=1e-6)


def test_a_learnable_bound_of_a_uniform_prior_differentiates():
    def program(t):
        s = pyro.sample("s", dist.Uniform(0.0, t[0]))
        pyro.sample("y", dist.Normal(s, 0.5), obs=torch.tensor(0.8))

    found, true = gradient_and_quotient(program, torch.tensor([2.0]), pg.VMP)
    assert_close(found, true, rtol=0, atol=1e-4)


def ring(theta):
    with pyro.plate("nodes", 4):
        x = pyro.sample("x", dist.Bernoulli(logits=theta[:4]))
    spin = 2 * x - 1
    with pyro.plate("pairs", 5):
        coupling = theta[4:]
        pyro.factor("pair", coupling * spin[[0, 1, 2, 3, 0]] * spin[[1, 2, 3, 0, 2]])


def test_the_optimised_bound_has_a_gradient():
    theta = torch.linspace(-0.5, 0.6, 9).requires_grad_()
    posterior = fit(ring, pg.TRW, theta, edge_appearance="optimize", num_trees=3)
    assert posterior.log_evidence.requires_grad
    assert posterior.marginal("x").probs.requires_grad


def triangle_and_tail():
    with pyro.plate("nodes", 4):
        x = pyro.sample("x", dist.Bernoulli(logits=torch.tensor([0.1, 0.2, -0.3, 0.2])))
    spin = 2 * x - 1
    with pyro.plate("pairs", 4):
        coupling = torch.tensor([0.6, 0.6, 0.6, 0.1])
        pyro.factor("pair", coupling * spin[[0, 1, 0, 2]] * spin[[1, 2, 2, 3]])


def test_appearances_outside_the_spanning_tree_polytope_make_no_upper_bound():
    true = enumerated(triangle_and_tail, {"x": ((4,), 2, DOUBLE)})
    try:
        posterior = fit(
            triangle_and_tail, pg.TRW, edge_appearance=torch.tensor([0.99, 0.99, 0.99, 0.03])
        )
    except OptionError:
        return
    assert posterior.evidence_kind != "upper bound" or posterior.log_evidence >= true


@pytest.mark.parametrize("schedule", ["sequential", "residual"])
def test_a_loose_tolerance_makes_no_exact_evidence_of_trw(schedule):
    posterior = fit(nested_plates, pg.TRW, schedule=schedule, tol=1.0, damping=0.5)
    gap = posterior.log_evidence - true_evidence(nested_plates)
    assert posterior.evidence_kind != "exact" or gap.abs() < 1e-6


@pytest.mark.parametrize(
    ("dtype", "place", "width", "atol"),
    [(DOUBLE, 5e6, 0.01, 1e-3), (torch.float32, 0.5, 1e-3, 0.1), (torch.float32, 2e3, 0.1, 0.1)],
)
def test_evidence_called_exact_is_so_far_from_zero_and_for_narrow_factors(
    dtype, place, width, atol
):
    place, width = torch.tensor(place, dtype=dtype), torch.tensor(width, dtype=dtype)
    one = torch.ones((), dtype=dtype)

    def program():
        x = pyro.sample("x", dist.Normal(place, one))
        z = pyro.sample("z", dist.Normal(x, width))
        pyro.sample("y", dist.Normal(z, width), obs=place + one)

    true = dist.Normal(0.0, (1 + 2 * width.double() ** 2).sqrt()).log_prob(torch.tensor(1.0))
    posterior = fit(program, pg.BP)
    assert posterior.evidence_kind == "exact"
    assert_close(posterior.log_evidence.double(), true, rtol=0, atol=atol)


def student(dtype):
    y = 5 + 0.1 * torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    prior = dist.Normal(torch.tensor(0.0, dtype=dtype), torch.tensor(100.0, dtype=dtype))
    x = pyro.sample("x", prior)
    with pyro.plate("data", 50):
        width, freedom = torch.tensor(0.1, dtype=dtype), torch.tensor(4.0, dtype=dtype)
        pyro.sample("y", dist.StudentT(freedom, x, width), obs=y.to(dtype))


def test_expectation_propagation_settles_in_single_precision():
    true = fit(student, pg.EP, DOUBLE).marginal("x").stddev
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        posterior = fit(student, pg.EP, torch.float32, num_steps=200)
    assert_close(posterior.marginal("x").stddev.double(), true, rtol=0.02, atol=0)
    assert posterior.converged


# ---------------------------------------------------------------------- crashes and refusals
@pytest.mark.parametrize(("width", "count"), [(2, 1), (2, 2), (3, 2)])
def test_hierarchical_logistic_regression_with_few_rows_per_group(width, count):
    rows = torch.randn(count, 4, width, generator=torch.Generator().manual_seed(0))

    def program():
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0).expand([width]).to_event(1))
        with pyro.plate("groups", 4):
            w = pyro.sample("w", dist.Normal(mu, 1.0).to_event(1))
            with pyro.plate("rows", count):
                label = (torch.arange(4 * count).reshape(count, 4) % 2).double()
                pyro.sample("y", dist.Bernoulli(logits=(rows * w).sum(-1)), obs=label)

    assert fit(program, pg.EP).converged


def test_a_jeffreys_prior_under_a_normal_likelihood():
    """Prior and log Jacobian are two factors, each improper by itself."""

    def program():
        s = pyro.sample("s", dist.Beta(0.5, 0.5))
        pyro.sample("y", dist.Normal(s, 0.5), obs=torch.tensor(0.8))

    posterior = fit(program, pg.EP)
    assert posterior.converged
    assert_close(posterior.log_evidence, torch.tensor(-0.5628), rtol=0, atol=0.05)


def test_evidence_that_is_not_a_number_is_called_no_bound():
    def program():
        with pyro.plate("nodes", 3):
            x = pyro.sample("x", dist.Normal(torch.tensor([0.5, -0.3, 0.2]), 1.0))
        with pyro.plate("pairs", 3):
            pyro.factor("pair", -0.7 * x[[0, 1, 2]] * x[[1, 2, 0]])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        posterior = fit(program, pg.PowerEP, alpha=3.0, num_steps=2)
    assert posterior.evidence_kind != "upper bound" or not posterior.log_evidence.isnan()


def test_mean_field_refuses_zeros_of_continuous_factors():
    def program():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("gate", torch.where(x > 1.0, 0.0, -math.inf))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        with pytest.raises(OptionError, match="gate"):
            fit(program, pg.VMP, num_steps=50)


def test_no_samples_of_a_discrete_site_are_an_empty_tensor():
    assert fit(nested_plates, pg.BP).sample(0)["z"].shape == (0, 2, 3)


def test_a_state_in_double_precision_goes_on_in_single_precision():
    saved = pg.EP(gated, progress=False)
    saved.run()
    engine = pg.EP(gated, progress=False, dtype=torch.float32, num_steps=60)
    engine.load_state_dict(saved.state_dict())
    engine.step()
    assert engine.posterior().log_evidence.dtype == torch.float32


def test_messages_of_trw_start_bp():
    theta = torch.cat([torch.linspace(-0.5, 0.6, 4), torch.full((5,), 9.5)])
    trw = pg.TRW(ring, progress=False, edge_appearance=torch.full((5,), 0.2), num_steps=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        trw.run(theta)
        fit(ring, pg.BP, theta, init=trw.state_dict()["messages"], num_steps=5)


# ---------------------------------------------------------------------- advice
def test_an_event_of_coins_is_not_called_infinite():
    def program():
        pyro.sample("z", dist.Bernoulli(0.3).expand([3]).to_event(1))

    with pytest.raises(PyrographError, match="plate"):
        fit(program, pg.BP)


@pytest.mark.parametrize("infer", [pg.BP, pg.EP])
def test_stein_particles_are_not_advised_for_mixed_programs(infer):
    def program():
        z = pyro.sample("z", dist.Bernoulli(0.5))
        x = pyro.sample("x", dist.Normal(torch.zeros(7), 1.0).to_event(1))
        pyro.sample("y", dist.Normal((x**4).sum(-1) + z, 1.0), obs=torch.tensor(3.0))

    with pytest.raises(UnsupportedFactor) as caught:
        fit(program, infer)
    assert "GraphicalSVGD" not in str(caught.value)


def test_a_preset_that_did_not_settle_is_not_told_to_use_itself():
    with pytest.warns(ConvergenceWarning) as caught:
        fit(gated, pg.VMP, num_steps=1)
    assert "pg.VMP" not in str(caught[0].message)


def test_the_options_that_are_listed_can_be_given():
    with pytest.raises(OptionError) as caught:
        pg.EP(gated, alhpa=0.5)
    assert "alpha," not in str(caught.value)
