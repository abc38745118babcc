"""What a demanding user tries with weighted samples of a program.

Truth is enumeration of the program's states.
"""

import itertools
import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Importance, Predictive, Trace_ELBO
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.circuits import RBF, Delta, Hamming, compile_graph, kdsd, stein_gram
from pyrograph.errors import OptionError, ShapeMismatch, UnsupportedFactor
from tests.infer.importance.programs import all_states, values_of


def counts():
    """States that are 0 .. 2 as numbers of type float, in a plate, and one outside of it."""
    a = pyro.sample("a", dist.Categorical(torch.tensor([0.2, 0.5, 0.3])))
    with pyro.plate("n", 3):
        b = pyro.sample("b", dist.Binomial(2, torch.tensor([0.3, 0.5, 0.7])))
    pyro.factor("f", -0.3 * ((a - b) ** 2).sum())


def hidden():
    """Vectorises: every statement keeps to its plates."""
    a = pyro.sample("a", dist.Bernoulli(0.4))
    with pyro.plate("n", 3):
        b = pyro.sample("b", dist.Binomial(2, 0.3 + 0.4 * a))
        pyro.sample("y", dist.Normal(b, 1.0), obs=torch.tensor([0.0, 1.0, 2.0]))


def truth_of(model):
    """Means of the sites, log Z, and all states with their probabilities."""
    graph = pg.trace_graph(model)
    codes, p = all_states(graph)
    values = values_of(graph, codes)
    means = {k: torch.tensordot(p, v.double(), 1) for k, v in values.items()}
    return means, graph.log_prob(values).double().logsumexp(0), values, p


def run(engine, model, **options):
    pyro.set_rng_seed(0)
    return engine(model, progress=False, **options).run()


def few():
    return {
        "a": torch.tensor([0, 1, 2, 1, 1]),
        "b": torch.tensor([[0, 1, 2], [1, 1, 1], [2, 2, 2], [0, 0, 0], [0, 0, 0]]),
    }


ENGINES = [pg.BBIS, pg.CollapsedBBIS]


# ---------------------------------------------------------------------- samples
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["numbers", "arrays", "lists"])
def test_samples_may_come_in_any_container(engine, kind):
    def told(samples):
        as_given = {"numbers": torch.Tensor.double, "arrays": np.asarray, "lists": list}
        return {k: as_given[kind](v) for k, v in samples.items()}

    given = told(few()) if kind != "lists" else {k: v.tolist() for k, v in few().items()}
    plain = run(engine, counts, samples=few())
    assert_close(run(engine, counts, samples=given).weights, plain.weights)


@pytest.mark.parametrize("ignored", [-1, 99, math.nan])
def test_columns_of_collapsed_nodes_may_hold_anything(ignored):
    plain = few()
    filled = {k: v.double() for k, v in few().items()}
    filled["a"][:] = ignored
    filled["b"][:, 1] = ignored
    labels = [("b", (1,)), ("a", ())]
    first, second = (
        run(pg.CollapsedBBIS, counts, samples=s, collapse=labels) for s in (plain, filled)
    )
    assert_close(first.weights, second.weights)
    assert_close(first.marginal("b").probs, second.marginal("b").probs)
    filled["b"][0, 0] = ignored
    with pytest.raises(OptionError, match=r"none of its states: .* in row 0, at \[0\]"):
        run(pg.CollapsedBBIS, counts, samples=filled, collapse=labels)


@pytest.mark.parametrize("engine", ENGINES)
def test_one_sample_has_all_the_weight_and_none_is_refused(engine):
    one = {k: v[:1] for k, v in few().items()}
    assert_close(run(engine, counts, samples=one).weights.sum().item(), 1.0)
    with pytest.raises(OptionError, match="num_particles=0"):
        run(engine, counts, samples={k: v[:0] for k, v in few().items()})


@pytest.mark.parametrize("engine", ENGINES)
def test_samples_outside_of_the_support_are_refused(engine):
    wrong = few()
    wrong["b"][2, 1] = 3
    with pytest.raises(OptionError, match='"b"'):
        run(engine, counts, samples=wrong)
    with pytest.raises(ShapeMismatch):
        run(engine, counts, samples={"b": few()["b"]})


def test_every_sample_twice_gives_the_same_answer():
    twice = {k: torch.cat([v, v]) for k, v in few().items()}
    once, again = (run(pg.BBIS, counts, samples=s) for s in (few(), twice))
    assert_close(again.marginal("b").probs, once.marginal("b").probs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kernel", [Hamming([0.1, 0.5, 0.0, 2.0]), RBF(3.0) + 0.5 * Delta()])
def test_all_states_are_weighted_by_their_probabilities_whatever_the_kernel(kernel):
    means, _, values, p = truth_of(counts)
    # a kernel that tells all states apart; a weight of zero does not, but the state is determined
    engine = pg.BBIS(counts, samples=values, kernel=kernel * Delta(), progress=False)
    engine.run()
    assert_close(engine.weights, p, rtol=1e-5, atol=1e-7)
    collapsed = run(pg.CollapsedBBIS, counts, samples=values, kernel=kernel, collapse=1.0)
    assert_close(collapsed.marginal("b").mean.double(), means["b"], rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- what is collapsed
@pytest.mark.parametrize(
    "collapse",
    ["half", None, ["a"], ("a", ()), [("b", 0)], [("c", ())], 1.5, [["b", [0]]], [("b", [0])]],
)
def test_sets_that_name_no_nodes_are_refused(collapse):
    with pytest.raises(OptionError, match="collapse"):
        run(pg.CollapsedBBIS, counts, collapse=collapse, num_particles=5)


def test_labels_may_come_from_a_generator_and_twice():
    labels = [("a", ()), ("b", (2,))]
    plain = run(pg.CollapsedBBIS, counts, samples=few(), collapse=labels)
    other = run(pg.CollapsedBBIS, counts, samples=few(), collapse=(x for x in [*labels, labels[0]]))
    assert_close(plain.marginal("a").probs, other.marginal("a").probs)


def test_collapsing_everything_is_exact_with_one_sample():
    means, _, _, _ = truth_of(counts)
    one = {k: v[:1] for k, v in few().items()}
    posterior = run(pg.CollapsedBBIS, counts, samples=one, collapse=1.0)
    for site, mean in means.items():
        assert_close(posterior.marginal(site).mean.double(), mean, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- guides in Pyro
@pytest.fixture(scope="module")
def collapsed():
    return run(pg.CollapsedBBIS, hidden, collapse=1.0, num_particles=3)


def test_nothing_drawn_has_the_shapes_of_the_sites(collapsed):
    assert {k: tuple(v.shape) for k, v in collapsed.sample(0).items()} == {"a": (0,), "b": (0, 3)}


def test_draws_in_parallel_have_the_moments_of_the_program(collapsed):
    means, _, values, p = truth_of(hidden)
    pyro.set_rng_seed(0)
    found = Predictive(hidden, guide=collapsed.guide(), num_samples=4000, parallel=True)()
    a, b = found["a"].reshape(-1).double(), found["b"].reshape(4000, 3).double()
    assert_close(a.mean(), means["a"], rtol=0, atol=0.04)
    assert_close(b.mean(0), means["b"], rtol=0, atol=0.06)
    # joint, not site by site
    truth = (p.unsqueeze(1) * values["a"].double().unsqueeze(1) * values["b"].double()).sum(0)
    assert_close((a.unsqueeze(1) * b).mean(0), truth, rtol=0, atol=0.06)


@pytest.mark.parametrize("is_parallel", [False, True])
def test_the_bound_of_an_exact_guide_is_log_z_in_every_draw(collapsed, is_parallel):
    _, log_z, _, _ = truth_of(hidden)
    loss = Trace_ELBO(num_particles=6, vectorize_particles=is_parallel, max_plate_nesting=1).loss(
        hidden, collapsed.guide()
    )
    assert math.isclose(-loss, float(log_z), rel_tol=1e-5)


def test_importance_weights_of_an_exact_guide_are_all_z(collapsed):
    _, log_z, _, _ = truth_of(hidden)
    found = Importance(hidden, collapsed.guide(), num_samples=5).run()
    for weight in found.log_weights:
        assert math.isclose(float(weight), float(log_z), rel_tol=1e-5)


# ---------------------------------------------------------------------- numbers at the edge
def test_a_program_of_tiny_evidence_is_sampled_and_compared_all_the_same():
    def tiny():
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))
        x = pyro.sample("x", dist.Bernoulli(0.3))
        pyro.factor("f", -2000.0 + 0.5 * z * x)

    means, log_z, _, _ = truth_of(tiny)
    assert float(log_z) < -1900
    target = compile_graph(pg.trace_graph(tiny))
    assert abs(float(kdsd(target, target))) < 1e-12
    every = torch.tensor(list(itertools.product(range(3), range(2))))
    p = (target.log_prob(every) - target.log_mass()).exp()
    assert_close(stein_gram(target, every) @ p, torch.zeros(6).double(), rtol=0, atol=1e-12)
    posterior = run(pg.CollapsedBBIS, tiny, collapse=[("z", ())], num_particles=40)
    assert_close(posterior.marginal("z").mean.double(), means["z"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("low", [-math.inf, -1e30])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_zero_in_a_factor_is_refused_in_every_form(engine, low):
    def zero():
        a = pyro.sample("a", dist.Bernoulli(0.5))
        b = pyro.sample("b", dist.Bernoulli(0.5))
        pyro.factor("f", torch.tensor([[0.0, 0.0], [0.0, low]])[a.long(), b.long()])

    with pytest.raises(UnsupportedFactor, match='"f"'):
        run(engine, zero, num_particles=10)


def test_an_or_gate_is_exact_once_its_output_is_summed_out():
    def gate():
        a = pyro.sample("a", dist.Bernoulli(0.3))
        b = pyro.sample("b", dist.Bernoulli(0.2))
        table = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
        c = pyro.sample("c", dist.Bernoulli(table[a.long(), b.long()]))
        pyro.sample("y", dist.Normal(c, 1.0), obs=torch.tensor(1.0))

    means, _, values, _ = truth_of(gate)
    every = {k: v[values["c"] == ((values["a"] + values["b"]) > 0)] for k, v in values.items()}
    posterior = run(pg.CollapsedBBIS, gate, samples=every, collapse=[("c", ())])
    for site in "abc":
        assert_close(posterior.marginal(site).mean.double(), means[site], rtol=1e-4, atol=1e-5)


def test_an_or_gate_of_which_an_input_is_summed_out_is_refused_with_the_node():
    def gate():
        a = pyro.sample("a", dist.Bernoulli(0.3))
        b = pyro.sample("b", dist.Bernoulli(0.3))
        # torch writes 1e-7 in the place of these zeros
        pyro.sample("c", dist.Bernoulli(torch.tensor([[0.0, 1.0], [1.0, 1.0]])[a.long(), b.long()]))

    with pytest.raises(UnsupportedFactor, match="is bound to others"):
        run(pg.CollapsedBBIS, gate, collapse=[("a", ())], num_particles=50)


# ---------------------------------------------------------------------- continuous programs
def test_particles_of_a_langevin_run_are_weighted_towards_the_posterior():
    def normal():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(1.0))

    pyro.set_rng_seed(0)
    particles = {"x": 0.5 + 1.2 * torch.randn(100)}  # too wide: the posterior is N(1/2, 1/2)
    posterior = pg.BBIS(normal, samples=particles, progress=False).run()
    found = posterior.marginal("x")
    assert abs(float(found.mean) - 0.5) < 0.05 < 0.5
    assert abs(float(found.variance) - 0.5) < 0.1 < particles["x"].var() - 0.5
    with pytest.raises(OptionError, match="kernels"):
        pg.BBIS(normal, samples=particles, kernel=Hamming(), progress=False).run()
