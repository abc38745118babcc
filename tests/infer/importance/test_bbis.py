"""Weights by a Stein discrepancy: what they do to biased points, and the engine around them."""

from __future__ import annotations

import io
from dataclasses import replace

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.circuits import Delta, Hamming
from pyrograph.errors import OptionError, ShapeMismatch, UnsupportedFactor, UnsupportedSite
from pyrograph.infer.importance import BBIS, Gibbs
from pyrograph.kernels import RBF
from tests.infer.importance.programs import all_states, grid, mixed, values_of


def fit(model, seed: int = 0, **options):
    pyro.set_rng_seed(seed)
    return BBIS(model, progress=False, **options).run()


def biased(model, n: int, seed: int = 0) -> tuple[dict, torch.Tensor, torch.Tensor]:
    """Samples from p^(1/2), the states and their probabilities."""
    graph = pg.trace_graph(model)
    x, p = all_states(graph)
    draw = torch.Generator().manual_seed(seed)
    chosen = x[:, torch.multinomial(p.sqrt(), n, replacement=True, generator=draw)]
    return values_of(graph, chosen), x, p


def exact_marginals(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return (x.double() * p).sum(1)


# ---------------------------------------------------------------------- discrete
def test_all_states_together_get_their_probabilities():
    graph = pg.trace_graph(mixed)
    x, p = all_states(graph)
    posterior = fit(mixed, samples=values_of(graph, x))
    assert posterior.converged
    found = dict(zip(map(tuple, posterior.x.t().tolist()), posterior.weights, strict=True))
    weights = torch.stack([found[tuple(s)] for s in x.t().tolist()])
    assert_close(weights, p, rtol=0, atol=1e-6)
    assert abs(float(posterior.history["objective"][-1])) < 1e-12


def test_biased_samples_are_put_right():
    model = grid()
    ratios = []
    for seed in range(5):
        samples, x, p = biased(model, 150, seed)
        truth = exact_marginals(x, p)
        before = (samples["x"].mean(0) - truth).abs().mean()
        after = (fit(model, samples=samples).marginal("x").mean - truth).abs().mean()
        ratios.append(float(after / before))
    assert max(ratios) < 1
    assert sum(ratios) / 5 < 0.6


def test_the_error_is_within_the_bound_of_the_discrepancy():
    """|sum_l w_l f(x_l) - E f| <= C_f sqrt(S), C_f^2 = f' K_p^+ f over all states."""
    model = grid(2, 0.7)
    graph = pg.trace_graph(model)
    x, p = all_states(graph)
    everything = BBIS(model, samples=values_of(graph, x), progress=False).setup()
    gram = everything.gram(x)
    f = torch.randn(len(p), 20, generator=torch.Generator().manual_seed(0))
    centred = f - p @ f
    norm = (centred * (torch.linalg.pinv(gram, hermitian=True) @ centred)).sum(0).sqrt()
    for seed in range(5):
        samples, _, _ = biased(model, 6, seed)
        engine = BBIS(model, samples=samples, progress=False)
        engine.run()
        place = (engine.x.t().unsqueeze(1) == x.t()).all(2).long().argmax(1)
        error = (engine.weights @ f[place] - p @ f).abs()
        bound = norm * engine.history["objective"][-1].clamp_min(0).sqrt()
        assert bool((error <= bound + 1e-8).all())
        assert float((error / bound).max()) > 0.01  # and the bound says something


def test_weights_are_never_worse_than_equal_ones():
    for seed in range(5):
        samples, _, _ = biased(grid(), 40, seed)
        history = fit(grid(), samples=samples).history
        assert float(history["objective"][-1]) <= float(history["equal_weights"][-1])


def test_equal_samples_share_their_weight():
    samples, _, _ = biased(mixed, 60)
    engine = BBIS(mixed, samples=samples, progress=False)
    posterior = engine.run()
    assert_close(engine.weights.sum(), torch.tensor(1.0))
    mean = (engine.weights * samples["b"].double()).sum()
    assert_close(posterior.marginal("b").mean, mean)
    first = (engine.x == engine.x[:, :1]).all(0)
    assert len(engine.weights[first].unique()) == 1


@pytest.mark.parametrize("seed", range(3))
def test_weights_of_the_posterior_are_in_the_order_of_the_samples(seed):
    graph = pg.trace_graph(mixed)
    x, p = all_states(graph)
    order = torch.randperm(len(p), generator=torch.Generator().manual_seed(seed))
    order = torch.cat([order, order[:5]])  # five states come twice
    samples = values_of(graph, x[:, order])
    posterior = fit(mixed, samples=samples)
    for name, value in samples.items():
        assert torch.equal(posterior.particles[name], value)
    share = p[order] / torch.tensor([order.tolist().count(i) for i in order.tolist()])
    assert_close(posterior.weights, share, rtol=0, atol=1e-6, check_dtype=False)


def test_equal_samples_count_together():
    """Four states, of which the most probable comes in five copies, each lighter than the rest."""

    def pair():
        pyro.sample("a", dist.Bernoulli(0.7))
        pyro.sample("b", dist.Bernoulli(0.6))

    truth = {(1, 1): 0.42, (1, 0): 0.28, (0, 1): 0.18, (0, 0): 0.12}
    states = torch.tensor([(1, 1), (1, 0), (1, 1), (0, 1), (1, 1), (0, 0), (1, 1), (1, 1)])
    posterior = fit(pair, samples={"a": states[:, 0], "b": states[:, 1]})
    assert float(posterior.weights.max()) == pytest.approx(0.28, abs=1e-6)
    assert posterior.marginal("a").mean == pytest.approx(0.7, abs=1e-6)
    assert posterior.marginal("b").probs.tolist() == pytest.approx([0.4, 0.6], abs=1e-6)

    guide = posterior.guide()
    found = zip(map(tuple, guide.codes.tolist()), guide.logits.exp().tolist(), strict=True)
    assert dict(found) == pytest.approx(truth, abs=1e-6)
    assert len(guide.codes) == 4  # the density of a state is that of its number
    assert {name: int(value) for name, value in guide.median().items()} == {"a": 1, "b": 1}
    assert posterior.guide(["b"]).logits.exp().tolist() == pytest.approx([0.4, 0.6], abs=1e-6)

    draws = posterior.sample(1000)
    drawn = list(zip(draws["a"].long().tolist(), draws["b"].long().tolist(), strict=True))
    for state, share in truth.items():  # systematic: every copy is off by less than one draw
        assert abs(drawn.count(state) - 1000 * share) < 6
    again = pg.DPVI(pair, num_particles=4, init=posterior, progress=False).run()
    assert float(again.weights.sum()) == pytest.approx(1.0)
    assert len(again.x.unique(dim=1).t()) == again.x.shape[1]


def test_smoothing_adds_to_every_sample_and_normalises():
    samples, _, _ = biased(mixed, 60)
    plain, smooth = (BBIS(mixed, samples=samples, smoothing=s, progress=False) for s in (0, 0.01))
    plain.run(), smooth.run()
    assert_close(smooth.weights, (plain.weights + 0.01) / 1.6)


def uniform_guide():
    with pyro.plate("nodes", 4):
        return {"x": pyro.sample("x", dist.Bernoulli(0.5))}


@pytest.mark.parametrize("name", ["default", "short chain", "posterior", "guide"])
def test_points_may_come_from_anywhere(name):
    model = grid(2)
    proposal = {
        "default": lambda: None,
        "short chain": lambda: Gibbs(burn_in=0, thin=4, num_chains=1),
        "posterior": lambda: pg.DPVI(model, num_particles=12, progress=False).run(),
        "guide": lambda: uniform_guide,
    }[name]()
    posterior = fit(model, proposal=proposal)
    truth = exact_marginals(*all_states(pg.trace_graph(model)))
    assert_close(posterior.marginal("x").mean, truth, rtol=0, atol=0.05)
    assert posterior.log_evidence is None


def test_the_kernel_may_be_chosen():
    samples, _, _ = biased(grid(2), 10)
    objectives = {
        float(fit(grid(2), samples=samples, kernel=k).history["objective"][-1])
        for k in (None, Hamming(), Hamming(2.0), Delta())
    }
    assert len(objectives) == 3


def either():
    """A logical or, as a probability of 0 or 1."""
    a = pyro.sample("a", dist.Bernoulli(0.3)).long()
    b = pyro.sample("b", dist.Bernoulli(0.5)).long()
    pyro.sample("c", dist.Bernoulli(torch.tensor([[0.0, 1.0], [1.0, 1.0]])[a, b]))


def forbidden():
    a = pyro.sample("a", dist.Bernoulli(0.3).mask(False))
    b = pyro.sample("b", dist.Bernoulli(0.3))
    pyro.factor("c", torch.where((a == 1) & (b == 1), -torch.inf, 0.0))


@pytest.mark.parametrize("model", [either, forbidden])
def test_a_program_with_zeros_is_refused(model):
    with pytest.raises(UnsupportedFactor, match=r'"c".*zero in .* of its . states.*Soften'):
        fit(model)


def test_a_softened_zero_is_not():
    def model():
        a = pyro.sample("a", dist.Bernoulli(0.3)).long()
        pyro.sample("b", dist.Bernoulli(torch.tensor([1e-3, 1 - 1e-3])[a]))

    # all states: between its two halves the program hardly connects, and samples of it lie there
    a, b = torch.cartesian_prod(torch.arange(2.0), torch.arange(2.0)).unbind(1)
    posterior = fit(model, samples={"a": a, "b": b})
    p = torch.tensor([0.7 * 0.999 + 0.3 * 1e-3, 0.7 * 1e-3 + 0.3 * 0.999])
    assert_close(posterior.marginal("b").probs, p, rtol=0, atol=1e-8)


# ---------------------------------------------------------------------- continuous
def gaussian():
    with pyro.plate("p", 2):
        pyro.sample("x", dist.Normal(torch.tensor([1.0, -1.0]), 0.5))
    pyro.sample("s", dist.Gamma(3.0, 2.0))


def test_particles_of_a_continuous_engine_are_reweighted():
    n = 100
    samples = {
        "x": torch.tensor([1.4, -1.4]) + 0.7 * torch.randn(n, 2),
        "s": dist.Gamma(2.0, 2.0).sample((n,)),
    }
    posterior = fit(gaussian, samples=samples)
    assert posterior.converged
    error = (posterior.marginal("x").mean - torch.tensor([1.0, -1.0])).abs().max()
    assert float(error) < 0.1
    assert float((posterior.marginal("s").mean - 1.5).abs()) < 0.15
    assert_close(posterior.particles["x"], samples["x"])
    again = fit(gaussian, proposal=posterior)
    assert_close(again.weights, posterior.weights, rtol=0, atol=1e-8)


def test_weights_lower_the_discrepancy_of_langevin_particles():
    particles = pg.fit(
        gaussian, infer=pg.Langevin, num_particles=40, num_steps=50, step_size=0.01, progress=False
    )
    history = fit(gaussian, proposal=particles).history
    assert float(history["objective"][-1]) < 0.2 * float(history["equal_weights"][-1])
    expected = pg.diagnostics.graphical_ksd(particles.graph, particles)
    assert_close(history["equal_weights"][-1], expected)


@pytest.mark.parametrize("seed", range(3))
def test_weights_of_a_float32_program_are_those_of_least_discrepancy(seed):
    """Against the Stein kernel of N(0, 1), written out in double precision."""

    def model():
        pyro.sample("x", dist.Normal(torch.tensor(0.0, dtype=torch.float32), 1.0))

    x = torch.randn(400, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    engine = BBIS(model, samples={"x": x}, kernel=RBF(2.0), progress=False)
    posterior = engine.run()
    assert engine.graph.dtype == posterior.weights.dtype == torch.float32
    assert posterior.converged
    z = x.double()
    r, s = z[:, None] - z, -z
    h = 2.0  # k = exp(-r^2 / h)
    both = s[:, None] * s + (s[:, None] - s) * 2 * r / h + 2 / h - 4 * r**2 / h**2
    gram = both * (-(r**2) / h).exp()
    w = engine.weights
    objective, equal = w @ gram @ w, gram.mean()
    assert float(objective - (gram @ w).min()) < 1e-9 * float(equal)  # w is optimal
    assert_close(posterior.history["objective"][-1], objective, rtol=1e-6, atol=0)
    assert_close(posterior.history["equal_weights"][-1], equal, rtol=1e-6, atol=0)


def moving_bounds():
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    b = pyro.sample("b", dist.Uniform(a, a + 2.0))
    pyro.sample("y", dist.Normal(b, 1.0), obs=torch.tensor(1.0))


def test_a_posterior_is_a_proposal_where_a_support_depends_on_a_latent():
    particles = pg.fit(moving_bounds, num_particles=9, num_steps=5, progress=False)
    a, free = particles.x.t()
    values = {"a": a, "b": a + 2 * free.sigmoid()}
    weighted = BBIS(moving_bounds, proposal=particles, progress=False)
    posterior = weighted.run()
    assert_close(weighted.x, particles.x)
    again = BBIS(moving_bounds, proposal=posterior, progress=False).run()  # whatever its weights
    for found in (posterior, again):
        assert_close(dict(found.particles), values)
        assert_close(found.weights, posterior.weights, rtol=0, atol=1e-8)
    # draws by weight where another number is asked for
    some = BBIS(moving_bounds, proposal=posterior, num_particles=50, progress=False).setup()
    counts = (some.x[:, None] == particles.x).all(2).double().sum(0)
    assert float(counts.sum()) == 50
    assert_close(counts / 50, posterior.weights, rtol=0, atol=1 / 50)
    with pytest.raises(UnsupportedSite, match=r'"b".*depends on other latents'):
        BBIS(moving_bounds, samples=values, progress=False).setup()


def test_a_continuous_program_needs_points():
    with pytest.raises(OptionError, match="samples="):
        fit(gaussian)
    with pytest.raises(OptionError, match="discrete"):
        fit(gaussian, proposal=Gibbs())
    with pytest.raises(OptionError, match=r"pg\.kernels"):
        fit(gaussian, proposal=torch.randn(5, 3), kernel=Hamming())


def test_mixed_kinds_of_sites_are_refused_by_name():
    def model():
        z = pyro.sample("z", dist.Bernoulli(0.4))
        pyro.sample("y", dist.Normal(z, 1.0))

    with pytest.raises(UnsupportedSite, match=r'"z".*discrete.*"y".*continuous'):
        fit(model)


# ---------------------------------------------------------------------- engine
def test_a_seed_repeats_a_run():
    options = {"num_particles": 12, "proposal": Gibbs(30, 10)}
    first, again, other = (fit(mixed, seed, **options) for seed in (1, 1, 2))
    assert_close(first.x, again.x)
    assert_close(first.weights, again.weights)
    same = first.x.shape == other.x.shape and torch.equal(first.x, other.x)
    assert not same


def test_a_saved_state_is_taken_up_again():
    engine = BBIS(mixed, num_particles=30, proposal=Gibbs(0, 3, 1), progress=False)
    posterior = engine.run()
    file = io.BytesIO()
    torch.save(engine.state_dict(), file)
    file.seek(0)
    other = BBIS(mixed, num_particles=30, proposal=Gibbs(0, 3, 1), progress=False)
    other.load_state_dict(torch.load(file, weights_only=True))
    taken = other.setup().posterior()
    assert_close(taken.weights, posterior.weights)
    assert torch.equal(taken.x, posterior.x)
    assert taken.converged
    assert_close(other.history["objective"], engine.history["objective"])


def test_a_state_of_other_points_is_refused():
    options = {"proposal": Gibbs(0, 3, 1), "progress": False}
    state = BBIS(mixed, num_particles=30, **options).setup().state_dict()
    with pytest.raises(ShapeMismatch, match="num_particles"):
        BBIS(mixed, num_particles=20, **options).setup().load_state_dict(state)


def test_a_state_of_other_weights_is_refused_and_nothing_is_taken_over():
    options = {"num_particles": 30, "proposal": Gibbs(30, 10), "progress": False}
    state = BBIS(mixed, **options).setup().state_dict()
    engine = BBIS(mixed, **options).setup()
    points = engine.x.clone()
    with pytest.raises(ShapeMismatch, match=r"weights of shape \[7\] for 30 points"):
        engine.load_state_dict({**state, "weights": state["weights"][:7]})
    assert torch.equal(engine.x, points)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_posterior_may_be_overwritten_without_harm(dtype):
    x = torch.randn(20, 2)
    engine = BBIS(gaussian, samples={"x": x, "s": x.exp()[:, 0]}, dtype=dtype, progress=False)
    posterior = engine.run()
    points, weights = engine.x.clone(), engine.weights.clone()
    posterior.x.zero_()
    posterior.weights.zero_()
    assert torch.equal(engine.x, points)
    assert torch.equal(engine.weights, weights)


def test_without_a_step_weights_are_equal_and_the_status_says_so():
    engine = BBIS(mixed, num_particles=8, progress=False).setup()
    assert_close(engine.weights, torch.full((8,), 1 / 8))
    assert "equal weights" in engine.posterior().status


def test_the_posterior_draws_and_makes_a_guide():
    posterior = fit(mixed, num_particles=50)
    assert posterior.sample(7)["a"].shape == (7,)
    weights = pyro.infer.Importance(mixed, posterior.guide(), num_samples=5)
    pyro.set_rng_seed(0)
    assert len(list(weights.run().exec_traces)) == 5


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"smoothing": -1.0}, "smoothing"),
        ({"smoothing": "a"}, "smoothing='a'"),
        ({"smoothing": None}, "smoothing=None"),
        ({"num_particles": 0}, "num_particles"),
        ({"samples": {"a": torch.zeros(3)}, "num_particles": 4}, "holds 3"),
        ({"samples": {"a": torch.zeros(3)}, "proposal": Gibbs()}, "not both"),
        ({"collapse": 0.5}, "collapse"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, text):
    with pytest.raises(OptionError, match=text):
        BBIS(mixed, **options)


@pytest.mark.parametrize("engine", [BBIS, pg.CollapsedBBIS])
def test_a_kernel_of_the_other_kind_is_refused_before_points_are_drawn(engine):
    def proposal():
        raise AssertionError("points are drawn")

    options = {"proposal": proposal, "num_particles": 2, "progress": False}
    with pytest.raises(OptionError, match=r"take one of pg.circuits"):
        engine(coins, kernel=pg.kernels.RBF(), **options).setup()
    if engine is BBIS:
        with pytest.raises(OptionError, match=r"take one of pg.kernels"):
            engine(noise, kernel=pg.circuits.Hamming(), **options).setup()


@pytest.mark.parametrize("site", ["p", "u"])
@pytest.mark.parametrize("as_function", [False, True])
def test_continuous_samples_outside_of_the_support_are_refused_by_name(site, as_function):
    def model():
        pyro.sample("p", dist.Beta(2.0, 2.0))
        pyro.sample("u", dist.Uniform(2.0, 5.0))

    values = {"p": torch.tensor([0.2, 0.6]), "u": torch.tensor([3.0, 4.0])}
    values[site][1] += 8
    given = {"proposal": lambda: values} if as_function else {"samples": values}
    with pytest.raises(OptionError, match=f'"{site}" is outside its support'):
        BBIS(model, num_particles=2, progress=False, **given).run()


def coins():
    with pyro.plate("p", 2):
        pyro.sample("b", dist.Bernoulli(0.3))


def noise():
    with pyro.plate("p", 2):
        pyro.sample("b", dist.Normal(0.3, 1.0))


@pytest.mark.parametrize(
    ("engine", "model"), [(BBIS, noise), (BBIS, coins), (pg.CollapsedBBIS, coins)]
)
def test_unknown_sites_and_other_numbers_of_points_are_refused(engine, model):
    three = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    for given in (
        {"samples": {"b": three, "typo": three}},
        {"proposal": lambda: {"b": three, "typo": three}, "num_particles": 3},
    ):
        with pytest.raises(ShapeMismatch, match=r'names "typo", which is not a latent site \(b\)'):
            engine(model, progress=False, **given).setup()
    for proposal in ({"b": three}, lambda: {"b": three}, lambda num_particles: {"b": three}):
        with pytest.raises(ShapeMismatch, match=r"num_particles"):
            engine(model, proposal=proposal, num_particles=7, progress=False).setup()
        found = engine(model, proposal=proposal, num_particles=3, progress=False).setup()
        assert 3 in found.x.shape


def test_samples_that_miss_a_site_are_refused():
    with pytest.raises(ShapeMismatch, match='"b"'):
        fit(mixed, samples={"a": torch.zeros(3)})


def test_a_kernel_of_ones_own_gets_points_in_the_programs_precision():
    class Stretched(pg.kernels.Linear):
        """(2 x)(2 y), by a matrix in single precision."""

        def pairs(self, block, h):
            return super().pairs(replace(block, scope=2 * torch.eye(1) @ block.scope), h)

    def program():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(x, 0.5), obs=torch.tensor(1.0))

    samples = {"x": torch.linspace(-1.0, 2.0, 20)}
    q = pg.fit(program, infer=pg.BBIS, samples=samples, kernel=Stretched(), progress=False)
    assert_close(q.weights.sum(), torch.tensor(1.0))


# ---------------------------------------------------------------------- better weights
def fields(strength: float):
    """Eight nodes that are nearly certain, or coins."""

    def model():
        with pyro.plate("n", 8):
            pyro.sample("x", dist.Bernoulli(logits=torch.full((8,), strength)))

    return model


def with_neighbours(share: float):
    """The best state and those one change away, ``[9, 8]``; and the weights of the first."""
    x = torch.ones(9, 8)
    x[range(1, 9), range(8)] = 0.0
    return {"x": x}, torch.tensor([share] + [(1 - share) / 8] * 8)


def test_few_states_that_hold_most_of_the_mass_are_told_of_better_weights():
    samples, wrong = with_neighbours(0.1)
    engine = BBIS(fields(3.0), samples=samples, progress=False)
    engine.run()
    assert engine.status == "converged"  # the weights are right here
    engine._take(wrong.double())
    p = torch.tensor(3.0).sigmoid()
    states = torch.cat([p.reshape(1) ** 8, (p**7 * (1 - p)).expand(8)])
    held, apart = float(states.sum()), 0.5 * float((states / states.sum() - wrong).abs().sum())
    assert f"hold {held:.2g} of the mass" in engine.status
    assert f"are {apart:.2g} (total variation)" in engine.status
    assert "pg.DPVI" in engine.status


def test_states_that_hold_little_of_the_mass_are_not():
    samples, wrong = with_neighbours(0.1)
    engine = BBIS(fields(0.1), samples=samples, progress=False)
    engine.run()
    engine._take(wrong.double())
    assert engine.status == "converged"


def test_equal_weights_that_are_right_have_converged():
    def coins():
        with pyro.plate("n", 3):
            pyro.sample("x", dist.Bernoulli(0.5))

    x, _ = all_states(pg.trace_graph(coins))
    posterior = fit(coins, samples=values_of(pg.trace_graph(coins), x))
    assert posterior.converged
    assert_close(posterior.weights, torch.full((8,), 1 / 8).double(), rtol=0, atol=1e-8)
