"""The mixture as an autoguide, trained by SVI on programs. Truth: scipy's quadrature."""

import io
from functools import cache
from types import SimpleNamespace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoDelta, AutoGuideList, AutoNormal, init_to_value
from pyro.infer.importance import vectorized_importance_weights
from pyro.optim import Adam
from scipy import integrate, optimize, special, stats
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.beliefs import Categoricals, JointMixture, Normals
from pyrograph.errors import InferenceError, OptionError, ShapeMismatch, SubsampleError
from pyrograph.infer.qbethe.autoguide import AutoQBethe


def two_modes():
    """x ~ N(0, 2^2) and x^2 seen as 2; each z_k ~ LogNormal(0, 1), log z_k + x seen as 0.2."""
    x = pyro.sample("x", dist.Normal(0.0, 2.0))
    pyro.sample("o", dist.Normal(x**2, 0.5), obs=torch.tensor(2.0))
    with pyro.plate("p", 2):
        z = pyro.sample("z", dist.LogNormal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z.log() + x, 1.0), obs=torch.tensor(0.2))


def two_modes_density(x):
    """p(x, data); log z_k is integrated out by hand: y_k ~ N(x, sqrt 2)."""
    prior = stats.norm.pdf(x, 0, 2) * stats.norm.pdf(2, x**2, 0.5)
    return prior * stats.norm.pdf(0.2, x, 2**0.5) ** 2


def two_modes_evidence():
    return np.log(integrate.quad(two_modes_density, -8, 8, points=[-1.4, 0, 1.4])[0])


def trained(guide, steps=800, model=two_modes, particles=10, lr=0.03):
    pyro.clear_param_store()
    elbo = Trace_ELBO(particles, vectorize_particles=True, max_plate_nesting=1)
    svi = SVI(model, guide, Adam({"lr": lr}), elbo)
    for _ in range(steps):
        svi.step()
    return guide


@cache
def found(seed):
    """A guide of `two_modes` that was trained to the end."""
    pyro.set_rng_seed(seed)
    return trained(AutoQBethe(two_modes, hold_weights=100), steps=200, lr=0.08)


def bound(guide, model=two_modes, particles=4000):
    elbo = Trace_ELBO(particles, vectorize_particles=True, max_plate_nesting=1)
    with torch.no_grad():
        return -elbo.loss(model, guide)


@pytest.mark.parametrize("seed", range(2))
def test_it_finds_both_modes_and_the_evidence_where_a_single_gaussian_does_not(seed):
    truth = two_modes_evidence()
    guide = found(seed)
    pyro.set_rng_seed(seed)
    assert truth - 0.1 < bound(guide) < truth + 0.02
    weights, x = guide.logits.detach().softmax(0), guide.locs[:, 0].detach()

    share = integrate.quad(two_modes_density, 0, 8)[0] / np.exp(truth)
    assert float(weights[x > 0].sum()) == pytest.approx(share, abs=0.1)
    if seed == 0:
        assert bound(trained(AutoNormal(two_modes), steps=100, lr=0.12)) < truth - 0.3


def test_one_particle_at_a_time_will_do():
    guide = AutoQBethe(two_modes, num_components=4, hold_weights=120)
    svi = SVI(two_modes, guide, Adam({"lr": 0.06}), Trace_ELBO())
    for _ in range(300):
        svi.step()
    truth = two_modes_evidence()
    assert truth - 0.2 < bound(guide) < truth + 0.02


def test_discrete_sites_can_be_summed_out_beside_it():
    """x ~ N(0, 2^2) seen as 1.5 up to its sign, by TraceEnum_ELBO."""

    @config_enumerate
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 2.0))
        c = pyro.sample("c", dist.Bernoulli(0.5))
        pyro.sample("y", dist.Normal(x * (2 * c - 1), 0.4), obs=torch.tensor(1.5))

    guide = AutoQBethe(poutine.block(model, hide=["c"]), num_components=4, hold_weights=60)
    elbo = TraceEnum_ELBO(num_particles=10, vectorize_particles=True, max_plate_nesting=0)
    svi = SVI(model, guide, Adam({"lr": 0.1}), elbo)
    for _ in range(120):
        svi.step()
    truth = stats.norm.logpdf(1.5, 0, np.sqrt(4 + 0.4**2))
    elbo.num_particles = 2000
    found = -elbo.loss(model, guide)
    assert truth - 0.05 < found < truth + 0.02


LOCS = np.array([[1.0, 0.3], [-1.5, -0.2], [0.2, 1.0]])
SCALES = np.array([[0.5, 0.9], [0.4, 1.2], [0.8, 0.6]])
LOGITS = np.array([0.2, -0.5, -1.0])


def plane():
    x = pyro.sample("x", dist.Normal(torch.zeros(2), 2.0).to_event(1))
    pyro.sample("o", dist.Normal(x[..., 0] ** 2, 1.0), obs=torch.tensor(2.0))


def plane_log_density(x):
    return stats.norm.logpdf(x, 0, 2).sum(-1) + stats.norm.logpdf(2, x[..., 0] ** 2, 1)


def plane_elbo(numbers):
    """By a grid over the plane; of locs and logits."""
    locs, logits = numbers[:6].reshape(3, 2), numbers[6:]
    axis = np.linspace(-8, 8, 321)
    x = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    parts = stats.norm.logpdf(x[..., None, :], locs, SCALES).sum(-1)
    log_q = special.logsumexp(parts + special.log_softmax(logits), axis=-1)
    values = np.exp(log_q) * (plane_log_density(x) - log_q)
    return values.sum() * (axis[1] - axis[0]) ** 2


def plane_guide(hold_weights=0):
    nodes = Normals(
        torch.from_numpy(LOCS).view(3, 1, 2),
        torch.diag_embed(torch.from_numpy(SCALES)).view(3, 1, 2, 2),
    )
    mixture = JointMixture(torch.from_numpy(LOGITS).log_softmax(0), {"x": nodes})
    guide = AutoQBethe.from_posterior(plane, SimpleNamespace(mixture=mixture))
    guide()
    return guide


def gradients(guide, particles, repeats):
    elbo = Trace_ELBO(particles, vectorize_particles=True, max_plate_nesting=0)
    rows = []
    for _ in range(repeats):
        guide.zero_grad()
        (-elbo.differentiable_loss(plane, guide)).backward()
        rows.append(torch.cat([guide.locs.grad.flatten(), guide.logits.grad]))
    return torch.stack(rows)


@pytest.mark.parametrize(("particles", "repeats"), [(20, 100), (1, 400)])
def test_gradients_of_means_and_weights_are_those_of_the_bound(particles, repeats):
    truth = optimize.approx_fprime(np.concatenate([LOCS.ravel(), LOGITS]), plane_elbo, 1e-6)
    found = gradients(plane_guide(), particles, repeats)
    error = found.std(0) / repeats**0.5
    assert ((found.mean(0) - torch.from_numpy(truth)).abs() < 4 * error).all()


def test_the_weights_gradient_has_a_tenth_of_the_noise_of_the_pathwise_one():
    ours = gradients(plane_guide(), particles=10, repeats=200)[:, 6:].std(0)
    rows = []
    for _ in range(200):
        locs, scales, logits = (torch.tensor(v, requires_grad=True) for v in (LOCS, SCALES, LOGITS))
        q = dist.MixtureOfDiagNormals(locs, scales, logits)
        x = q.rsample((10,))
        log_p = dist.Normal(0.0, 2.0).log_prob(x).sum(-1)
        log_p = log_p + dist.Normal(x[:, 0] ** 2, 1.0).log_prob(torch.tensor(2.0))
        (log_p - q.log_prob(x)).mean().backward()
        rows.append(logits.grad)
    assert float(ours.norm()) < 0.1 * float(torch.stack(rows).std(0).norm())


def test_weights_are_held_for_as_many_steps_as_said():
    guide = AutoQBethe(two_modes, hold_weights=5)
    trained(guide, steps=5)
    assert_close(guide.logits.detach(), torch.zeros(5))
    trained(guide, steps=1)
    assert not torch.equal(guide.logits.detach(), torch.zeros(5))


@pytest.mark.parametrize("particles", [1, 10])
@pytest.mark.parametrize("hold", [0, 4, 12])
def test_a_saved_guide_goes_on_as_it_would_have(hold, particles):
    """Before, in and after the steps for which weights are held; with plain gradient steps, which
    remember nothing."""

    def go_on(guide, steps):
        pyro.clear_param_store()
        elbo = Trace_ELBO(particles, vectorize_particles=True, max_plate_nesting=1)
        svi = SVI(two_modes, guide, pyro.optim.SGD({"lr": 1e-3}), elbo)
        pyro.set_rng_seed(7)
        for _ in range(steps):
            svi.step()

    pyro.set_rng_seed(0)
    guide = AutoQBethe(two_modes, 3, hold_weights=hold)
    guide()
    go_on(guide, 8)
    file = io.BytesIO()
    torch.save(guide.state_dict(), file)
    file.seek(0)
    go_on(guide, 8)
    pyro.clear_param_store()  # or the other guide would find its parameters there
    again = AutoQBethe(two_modes, 3)
    again()
    assert again.logits is not guide.logits
    again.load_state_dict(torch.load(file, weights_only=True))
    go_on(again, 8)
    assert torch.equal(guide.logits, again.logits)
    assert torch.equal(guide.locs, again.locs)
    assert bool((guide.logits != 0).any()) == (hold < 16)


def test_a_guide_takes_a_state_saved_before_it_had_held_steps():
    guide = AutoQBethe(two_modes, 3)
    guide()
    state = {name: value.clone() for name, value in guide.state_dict().items()}
    older = {name: value for name, value in state.items() if "_baseline" not in name}
    assert len(older) < len(state)
    guides = AutoGuideList(two_modes)
    guides.append(guide)
    guides.load_state_dict({f"0.{name}": value + 1 for name, value in older.items()})
    assert torch.equal(guide.logits, state["logits"] + 1)


def test_its_trace_has_the_density_of_what_it_drew():
    guide = trained(AutoQBethe(two_modes, num_components=3), steps=20)
    trace = poutine.trace(guide).get_trace()
    x, z = (trace.nodes[name]["value"].detach() for name in ("x", "z"))
    point = torch.cat([x.reshape(1), z.log()]).numpy()
    locs, scales = guide.locs.detach().numpy(), guide.scales.detach().numpy()
    parts = stats.norm.logpdf(point, locs, scales).sum(1)
    weights = special.log_softmax(guide.logits.detach().numpy())
    truth = special.logsumexp(parts + weights) - z.log().sum().item()
    assert trace.log_prob_sum().item() == pytest.approx(truth, abs=1e-10)


def test_importance_weights_and_predictions_come_from_it():
    guide = found(0)
    pyro.set_rng_seed(0)
    with torch.no_grad():
        log_weights, _, _ = vectorized_importance_weights(
            two_modes, guide, num_samples=4000, max_plate_nesting=1
        )
    estimate = float(log_weights.logsumexp(0) - np.log(4000))
    assert estimate == pytest.approx(two_modes_evidence(), abs=0.03)
    draws = Predictive(two_modes, guide=guide, num_samples=7, parallel=True)()
    assert draws["z"].shape[0] == 7 and bool((draws["z"] > 0).all())


@pytest.mark.parametrize("other", [AutoDelta, AutoNormal])
def test_it_stands_beside_other_guides_in_a_list(other):
    guides = AutoGuideList(two_modes)
    guides.append(AutoQBethe(poutine.block(two_modes, hide=["z"]), num_components=4))
    guides.append(other(poutine.block(two_modes, hide=["x"])))
    trained(guides, steps=100, lr=0.06)
    assert set(guides()) == set(guides.median()) == {"x", "z"}
    found = guides[0].locs.detach()[:, 0]
    assert float(found.min()) < -1 and float(found.max()) > 1


def test_medians_and_quantiles_are_those_of_the_marginals():
    guide = trained(AutoQBethe(two_modes, num_components=3), steps=100)
    weights = guide.logits.detach().softmax(0).numpy()
    locs, scales = guide.locs.detach().numpy(), guide.scales.detach().numpy()
    found = guide.quantiles([0.1, 0.5, 0.8])
    assert found["z"].shape == (3, 2) and bool((found["z"].diff(dim=0) > 0).all())
    for row, q in enumerate((0.1, 0.5, 0.8)):
        free = torch.cat([found["x"][row].reshape(1), found["z"][row].log()])
        for column in range(3):

            def excess(x, column=column, q=q):
                return weights @ stats.norm.cdf(x, locs[:, column], scales[:, column]) - q

            assert float(free[column]) == pytest.approx(optimize.brentq(excess, -50, 50), abs=1e-7)
    for name, value in guide.median().items():
        assert_close(value, found[name][1])


@pytest.mark.parametrize(
    "quantiles, words",
    [
        ([0.5, 1.5], "from 0 to 1"),
        ([-0.2], "from 0 to 1"),
        ([float("nan")], "from 0 to 1"),
        (["a"], "sequence of numbers"),
        (0.5, "sequence of numbers"),
    ],
)
def test_quantiles_are_of_probabilities(quantiles, words):
    guide = AutoQBethe(two_modes, num_components=2)
    guide()
    with pytest.raises(OptionError, match=words):
        guide.quantiles(quantiles)


def test_components_start_apart_whatever_the_starting_point():
    same = init_to_value(values={"x": torch.tensor(1.0), "z": torch.ones(2)})
    for guide in (AutoQBethe(two_modes), AutoQBethe(two_modes, init_loc_fn=same)):
        guide()
        assert float(torch.pdist(guide.locs.detach()).min()) > 0.01


def test_it_starts_on_the_boundary_of_a_support_and_in_many_dimensions_with_finite_numbers():
    def model():
        with pyro.plate("many", 3000):
            x = pyro.sample("x", dist.Beta(0.5, 0.5))
            pyro.sample("y", dist.Normal(x, 0.1), obs=torch.tensor(0.5))

    boundary = init_to_value(values={"x": torch.zeros(3000)})
    guide = trained(AutoQBethe(model, init_loc_fn=boundary, hold_weights=0), steps=3, model=model)
    for name, value in guide.named_parameters():
        assert torch.isfinite(value).all(), name


def test_components_that_are_the_same_stay_finite():
    guide = AutoQBethe(two_modes, hold_weights=0)
    guide()
    with torch.no_grad():
        guide.locs.copy_(guide.locs[:1].expand_as(guide.locs).clone())
    for _ in range(3):
        Trace_ELBO().loss_and_grads(two_modes, guide)
    assert all(torch.isfinite(p.grad).all() for p in guide.parameters())


def mixture_of_two_modes():
    root = torch.tensor([[1.0, 0.0], [0.6, 0.8]]) * 0.5
    sites = {
        "z": Normals(torch.tensor([[[0.1], [0.2]], [[0.3], [0.4]]]), 0.5 * torch.ones(2, 2, 1, 1)),
        "x": Normals(torch.tensor([[[1.4]], [[-1.4]]]), 0.2 * torch.ones(2, 1, 1, 1)),
        "v": Normals(torch.zeros(2, 1, 2), root.expand(2, 1, 2, 2)),
        "c": Categoricals(torch.zeros(2, 1, 3).log_softmax(-1)),
    }
    return JointMixture(torch.tensor([0.7, 0.3]).log(), sites)


def test_it_starts_from_the_mixture_of_a_run_in_order_of_the_programs_sites():
    posterior = SimpleNamespace(mixture=mixture_of_two_modes())
    guide = AutoQBethe.from_posterior(two_modes, posterior)
    guide()
    assert_close(guide.locs.detach(), torch.tensor([[1.4, 0.1, 0.2], [-1.4, 0.3, 0.4]]))
    assert_close(guide.scales.detach(), torch.tensor([[0.2, 0.5, 0.5]] * 2))
    assert_close(guide.logits.detach().softmax(0), torch.tensor([0.7, 0.3]))
    before = bound(guide)
    assert bound(trained(guide, steps=200)) > before + 0.1


def test_it_goes_on_from_a_run_of_qbethe_and_so_does_the_guide_of_that_run():
    posterior = pg.fit(
        two_modes, infer=pg.QBethe, num_components=4, num_steps=120, lr=0.1, progress=False
    )
    truth = two_modes_evidence()
    auto = AutoQBethe.from_posterior(two_modes, posterior)
    auto()
    for guide in (auto, posterior.guide()):
        assert truth - 0.1 < bound(guide) < truth + 0.02


def test_of_correlated_numbers_it_takes_the_standard_deviations():
    def model():
        pyro.sample("v", dist.MultivariateNormal(torch.zeros(2), torch.eye(2)))

    guide = AutoQBethe.from_posterior(model, SimpleNamespace(mixture=mixture_of_two_modes()))
    guide()
    assert_close(guide.scales.detach(), torch.full((2, 2), 0.5))


def test_what_cannot_start_it_is_told():
    def other():
        pyro.sample("w", dist.Normal(0.0, 1.0))

    def wider():
        pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))

    mixture = mixture_of_two_modes()
    with pytest.raises(OptionError, match='no continuous site "w"'):
        AutoQBethe.from_posterior(other, SimpleNamespace(mixture=mixture))()
    with pytest.raises(ShapeMismatch, match='"x" has 3 numbers in the program and 1 in'):
        AutoQBethe.from_posterior(wider, SimpleNamespace(mixture=mixture))()
    known = {"x": (torch.ones(1, dtype=torch.bool), torch.ones(1, 1))}
    with pytest.raises(InferenceError, match='"x" has nodes that were conditioned on'):
        AutoQBethe.from_posterior(two_modes, SimpleNamespace(mixture=mixture.condition(known)))()
    with pytest.raises(OptionError, match="num_components"):
        AutoQBethe(two_modes, num_components=0)
    with pytest.raises(OptionError, match="init_scale"):
        AutoQBethe(two_modes, init_scale=-1.0)


def test_a_posterior_that_is_no_mixture_is_refused():
    posterior = pg.fit(two_modes, infer=pg.EP, progress=False, num_steps=5)
    with pytest.raises(OptionError, match="has no mixture"):
        AutoQBethe.from_posterior(two_modes, posterior)


def test_a_second_guide_of_another_size_is_refused_until_the_first_ones_parameters_are_cleared():
    pyro.clear_param_store()
    AutoQBethe(two_modes, 2)()
    AutoQBethe(two_modes, 2)()  # goes on with the same parameters, as Pyro's guides do
    with pytest.raises(ShapeMismatch, match=r"2 x 3 .*in the place of 5 x 3.*clear_param_store"):
        AutoQBethe(two_modes, 5)()
    pyro.clear_param_store()
    guide = AutoQBethe(two_modes, 5)
    guide()
    assert guide.locs.shape == (5, 3)


def test_a_guide_from_a_posterior_does_not_take_up_the_parameters_of_another():
    torch.manual_seed(0)
    first = AutoQBethe(two_modes, 2)
    svi = SVI(two_modes, first, Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(3):
        svi.step()
    mixture = mixture_of_two_modes()
    second = AutoQBethe.from_posterior(two_modes, SimpleNamespace(mixture=mixture))
    second()
    assert second.locs is not first.locs
    assert_close(second.locs[:, 0], mixture.sites["x"].mean[:, 0, 0])


def minibatches(x):
    m = pyro.sample("m", dist.Normal(0.0, 3.0))
    with pyro.plate("data", len(x), subsample_size=2) as i:
        z = pyro.sample("z", dist.Normal(m, 1.0))
        pyro.sample("x", dist.Normal(z, 0.3), obs=x[i])


def test_latents_of_minibatches_are_refused_by_name():
    # one belief for all of them has an evidence lower bound above the evidence
    x = torch.full((6,), 1.5)
    with pytest.raises(SubsampleError, match=r'"z" is in plate "data", .*2 of 6'):
        AutoQBethe(minibatches)(x)
    pyro.clear_param_store()
    guide = AutoGuideList(minibatches)
    guide.append(AutoQBethe(poutine.block(minibatches, expose=["m"]), 2))
    guide.append(AutoNormal(poutine.block(minibatches, expose=["z"])))
    assert torch.isfinite(torch.tensor(SVI(minibatches, guide, Adam({}), Trace_ELBO()).step(x)))
