"""Collapsed importance sampling against enumeration."""

import io
import itertools
import math
from typing import ClassVar

import networkx as nx
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from networkx.algorithms.approximation import treewidth_min_fill_in
from pyro import poutine
from pyro.infer import Importance, Predictive, Trace_ELBO, TraceEnum_ELBO
from pyro.poutine import trace
from torch.testing import assert_close

import pyrograph as pg
from pyrograph import circuits
from pyrograph.circuits.collapsed_posterior import CollapsedGuide
from pyrograph.circuits.compiling.held import HeldCircuit, nodes_to_hold
from pyrograph.circuits.expectations.expected import num_pairs
from pyrograph.errors import OptionError, ShapeMismatch, UnsupportedFactor, UnsupportedSite
from pyrograph.infer import Gibbs
from pyrograph.infer.importance import simplex_weights
from tests.circuits.random_circuits import states

CARDS = (3, 4, 2, 2, 3)
#: A few nodes forget their start long before the 2,000 steps of the default.
BRIEF = Gibbs(100, 50)


def chain(seed=0):
    """A loop of five sites with mixed numbers of states, and all its probabilities."""
    generator = torch.Generator().manual_seed(seed)
    tables = [torch.randn(CARDS[i], CARDS[(i + 1) % 5], generator=generator) for i in range(5)]

    def model():
        z = [pyro.sample(f"z{i}", dist.Categorical(torch.ones(c) / c)) for i, c in enumerate(CARDS)]
        for i, table in enumerate(tables):
            pyro.factor(f"f{i}", table[z[i], z[(i + 1) % 5]])

    x = states(CARDS)
    log_p = sum(t[x[:, i], x[:, (i + 1) % 5]] for i, t in enumerate(tables))
    return model, x, log_p.softmax(0)


def truth_of(x, p, i):
    return torch.stack([p[x[:, i] == s].sum() for s in range(CARDS[i])])


def error(posterior, x, p):
    return max(
        float((posterior.marginal(f"z{i}").probs - truth_of(x, p, i)).abs().max()) for i in range(5)
    )


def values(codes):
    return {f"z{i}": codes[:, i] for i in range(5)}


@pytest.mark.parametrize("collapse", [np.float32(0.5), np.int64(1)])
def test_a_share_may_be_a_number_of_numpy(collapse):
    model, x, _ = chain()
    options = {"samples": values(x[:10]), "num_steps": 0, "progress": False}
    with pytest.warns(pg.errors.ConvergenceWarning):
        posterior = pg.CollapsedBBIS(model, collapse=collapse, **options).run()
    summed = (posterior.points == -1).sum(1)
    assert summed.tolist() == [round(5 * float(collapse))] * 10


def test_all_variables_collapsed_is_exact():
    model, x, p = chain()
    labels = [(f"z{i}", ()) for i in range(5)]
    for collapse in (1.0, labels):
        options = {"collapse": collapse, "proposal": BRIEF, "num_particles": 2}
        engine = pg.CollapsedBBIS(model, progress=False, **options)
        assert error(engine.run(), x, p) < 1e-12


def test_marginals_are_weighted_means_of_exact_conditionals():
    model, x, p = chain()
    samples = x[torch.randint(len(x), (12,))]
    engine = pg.CollapsedBBIS(model, collapse=0.4, samples=values(samples), progress=False)
    posterior = engine.run()
    points = posterior.points
    assert bool(((points == -1).sum(1) == 2).all())
    assert bool(((points == samples) | (points == -1)).all())
    assert (points == -1).any(0).all()  # other variables in other samples
    agrees = ((points.unsqueeze(1) == x) | (points == -1).unsqueeze(1)).all(2)
    mixture = posterior.weights @ torch.where(agrees, p.log(), -torch.inf).softmax(1)
    for i in range(5):
        assert_close(posterior.marginal(f"z{i}").probs, truth_of(x, mixture, i), rtol=0, atol=1e-12)


def test_weighting_biased_samples_beats_leaving_them_equal():
    """Uniform states, none of them by p."""
    model, x, p = chain()
    wins, better = 0, []
    for seed in range(10):
        pyro.set_rng_seed(seed)
        samples = values(x[torch.randint(len(x), (60,))])
        engine = pg.CollapsedBBIS(model, collapse=0.4, samples=samples, progress=False)
        engine.setup()
        before = error(engine.posterior(), x, p)
        after = error(engine.run(), x, p)
        wins += after < before
        better.append(after / before)
        history = engine.history
        assert history["objective"][-1] <= history["equal_weights"][-1] + 1e-12
    assert wins >= 8  # 9 of 10 when it was written
    assert sorted(better)[5] < 0.7


def test_collapsing_lowers_the_discrepancy():
    model, x, _ = chain()
    samples = values(x[torch.randint(len(x), (40,))])
    found = [
        pg.CollapsedBBIS(model, collapse=c, samples=samples, progress=False).run()
        for c in (0.0, 0.4, 0.8)
    ]
    objectives = [float(f.history["objective"][-1]) for f in found]
    assert objectives == sorted(objectives, reverse=True)


def test_nothing_collapsed_is_plain_black_box_sampling():
    model, x, _ = chain()
    samples = values(x[torch.randint(len(x), (30,))])
    plain = pg.BBIS(model, samples=samples, progress=False)
    collapsed = pg.CollapsedBBIS(model, collapse=0.0, samples=samples, progress=False)
    a, b = plain.run(), collapsed.run()
    assert_close(plain.history["objective"], collapsed.history["objective"], rtol=1e-8, atol=1e-12)
    for i in range(5):
        assert_close(a.marginal(f"z{i}").probs, b.marginal(f"z{i}").probs, rtol=0, atol=1e-6)


def test_samples_and_guide_follow_the_mixture():
    model, x, _ = chain()
    engine = pg.CollapsedBBIS(model, collapse=0.6, num_particles=20, progress=False)
    posterior = engine.run()
    drawn = posterior.sample(40_000)
    for i in range(5):
        share = torch.bincount(drawn[f"z{i}"], minlength=CARDS[i]) / 40_000
        assert_close(share, posterior.marginal(f"z{i}").probs, rtol=0, atol=0.012)
    guide = posterior.guide()
    density = guide.__dict__["samples"].log_prob(x).exp()
    assert_close(density.sum(), torch.ones(()), rtol=0, atol=1e-10)
    for i in range(5):
        assert_close(truth_of(x, density, i), posterior.marginal(f"z{i}").probs, rtol=0, atol=1e-10)
    found = trace(guide).get_trace()
    codes = torch.stack([found.nodes[f"z{i}"]["value"] for i in range(5)])
    row = (x == codes).all(1)
    assert_close(found.log_prob_sum().exp(), density[row][0], rtol=1e-10, atol=0)


def test_results_feed_predictive_and_importance():
    model, x, p = chain()
    pyro.set_rng_seed(3)  # weights p / q of this guide vary by .29 of their mean
    options = {"num_particles": 30, "proposal": BRIEF, "progress": False}
    posterior = pg.fit(model, infer=pg.CollapsedBBIS, **options)
    predicted = Predictive(model, posterior_samples=posterior.sample(7))()
    assert predicted["f0"].shape[0] == 7
    state = pyro.condition(model, {f"z{i}": x[0, i] for i in range(5)})
    log_evidence = trace(state).get_trace().log_prob_sum() - p[0].log()
    guide = posterior.guide()
    found = Importance(model, guide, num_samples=130).run()
    estimate = torch.stack(found.log_weights).logsumexp(0) - torch.tensor(130.0).log()
    # states that agree with no sample are never proposed
    covered = p[guide.__dict__["samples"].log_prob(x) > -torch.inf].sum().log()
    assert -0.2 < covered < 0
    assert_close(estimate, log_evidence + covered, rtol=0, atol=0.1)


def test_a_guide_is_rebuilt_from_its_state():
    model, x, _ = chain()
    guide = pg.fit(model, infer=pg.CollapsedBBIS, num_particles=9, progress=False).guide()
    file = io.BytesIO()
    torch.save(guide.state_dict(), file)
    file.seek(0)
    again = CollapsedGuide.from_state_dict(torch.load(file, weights_only=True))
    before, after = (g.__dict__["samples"].log_prob(x) for g in (guide, again))
    assert_close(before, after, rtol=0, atol=0)


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_a_guides_median_and_quantiles_are_those_of_the_nodes(is_rebuilt):
    """With all nodes summed out they are the program's own: by enumeration."""
    model, x, p = chain()
    options = {"collapse": 1.0, "num_particles": 5, "proposal": BRIEF, "progress": False}
    guide = pg.fit(model, infer=pg.CollapsedBBIS, **options).guide()
    if is_rebuilt:
        guide = CollapsedGuide.from_state_dict(guide.state_dict())
    median, quantiles = guide.median(), guide.quantiles([0.2, 0.7])
    for i in range(5):
        truth = truth_of(x, p, i)
        assert int(median[f"z{i}"]) == int(truth.argmax())
        reached = [int((truth.cumsum(0) < q).sum()) for q in (0.2, 0.7)]
        assert quantiles[f"z{i}"].tolist() == reached


def test_quantiles_leave_out_states_that_are_vectors_and_plates_keep_their_shape():
    def model():
        with pyro.plate("rows", 3, dim=-2):
            pyro.sample("w", dist.OneHotCategorical(torch.tensor([0.2, 0.5, 0.3])))
        with pyro.plate("columns", 2):
            pyro.sample("b", dist.Bernoulli(torch.tensor([0.3, 0.9])))

    options = {"collapse": 1.0, "num_particles": 4, "progress": False}
    guide = pg.fit(model, infer=pg.CollapsedBBIS, **options).guide()
    median, quantiles = guide.median(), guide.quantiles([0.05, 0.5, 0.95])
    assert_close(median["w"], torch.tensor([0.0, 1.0, 0.0]).expand(3, 1, 3))
    assert_close(median["b"], torch.tensor([0.0, 1.0]))
    assert set(quantiles) == {"b"}
    assert_close(quantiles["b"], torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))


def test_a_guide_that_is_rebuilt_has_the_same_weights_whatever_they_are():
    """Normalised a second time, a fifth of them would be others in the last digit."""
    model, _, _ = chain()
    posterior = pg.fit(model, infer=pg.CollapsedBBIS, num_particles=9, progress=False)
    for _ in range(50):
        posterior.weights = torch.rand(9).softmax(0)
        guide = posterior.guide()
        again = CollapsedGuide.from_state_dict(guide.state_dict())
        before, after = (g.__dict__["samples"].log_weights for g in (guide, again))
        assert torch.equal(before, after)


def test_a_checkpoint_gives_the_same_posterior():
    model, _, _ = chain()

    def engine():
        return pg.CollapsedBBIS(model, num_particles=15, proposal=BRIEF, progress=False)

    first = engine()
    first.run()
    second = engine()
    second.load_state_dict(first.state_dict())
    posterior = second.run()
    assert_close(posterior.points, first.posterior().points, rtol=0, atol=0)
    assert_close(posterior.weights, first.posterior().weights, rtol=0, atol=0)


def test_the_seed_decides_samples_and_sets():
    model, _, _ = chain()

    def run(seed):
        pyro.set_rng_seed(seed)
        options = {"num_particles": 15, "proposal": BRIEF, "progress": False}
        return pg.fit(model, infer=pg.CollapsedBBIS, **options)

    a, b, c = run(1), run(1), run(2)
    assert torch.equal(a.points, b.points)
    assert torch.equal(a.weights, b.weights)
    assert not torch.equal(a.points, c.points)


class TestZeros:
    """``either`` of the network asia is "tuberculosis or lung cancer": a table of zeros."""

    @pytest.fixture
    def asia(self, data_root):
        return pg.datasets.bayesian_network("asia")

    def test_shares_are_refused_with_the_reason_and_the_fix(self, asia):
        with pytest.raises(UnsupportedFactor, match=r"is zero in .*[Ss]often.*pg.CollapsedBBIS"):
            pg.CollapsedBBIS(asia, collapse=0.5, progress=False).setup()
        with pytest.raises(UnsupportedFactor, match=r"is zero in"):
            pg.BBIS(asia, progress=False).setup()

    def test_the_bound_variable_summed_out_leaves_the_rest_positive(self, asia):
        """All 16 states of the others as samples: their weights are their probabilities."""
        held = states([2, 2, 2, 2])
        samples = {name: torch.zeros(16, dtype=torch.int64) for name in asia.names}
        samples |= {n: held[:, i] for i, n in enumerate(("asia", "smoke", "tub", "lung"))}
        posterior = pg.fit(
            asia,
            infer=pg.CollapsedBBIS,
            collapse=[("either", ()), ("xray", ()), ("dysp", ()), ("bronc", ())],
            samples=samples,
            progress=False,
        )
        circuit = posterior.circuit
        for node, marginal in zip(posterior.graph.nodes, circuit.marginals(), strict=True):
            got = posterior.marginal(node[0]).probs
            assert_close(got, marginal, rtol=0, atol=1e-6)

    def test_default_samples_are_draws_that_cross_the_zeros(self, asia):
        """Single-site chains stay where ``either`` is as at their start."""
        engine = pg.CollapsedBBIS(
            asia, collapse=[("either", ())], num_particles=2000, num_steps=0, progress=False
        )
        with pytest.warns(pg.errors.ConvergenceWarning):
            posterior = engine.run()  # no step: equal weights
        for node, truth in zip(posterior.graph.nodes, posterior.circuit.marginals(), strict=True):
            got = posterior.marginal(node[0]).probs
            assert_close(got, truth, rtol=0, atol=0.05)

    def test_a_variable_still_bound_is_named(self, asia):
        samples = {name: torch.ones(3, dtype=torch.int64) for name in asia.names}
        with pytest.raises(UnsupportedFactor, match=r"is zero in|is bound to others"):
            pg.CollapsedBBIS(asia, collapse=[("xray", ())], samples=samples, progress=False).setup()

    @pytest.mark.parametrize(("summed", "named"), [("b", "d"), ("a", "d"), ("c", "b"), ("d", "b")])
    def test_the_factor_whose_zero_stays_in_sight_is_named(self, summed, named):
        """b may be 1 only where a is, and d only where c is."""

        def below(name, of):
            table = torch.tensor([[0.0, -torch.inf], [0.0, 0.0]])
            pyro.sample(name, dist.Categorical(logits=table[of.long()]))

        def model():
            below("b", pyro.sample("a", dist.Bernoulli(0.5)))
            below("d", pyro.sample("c", dist.Bernoulli(0.5)))

        with pytest.raises(UnsupportedFactor, match=f'"{named}".* is zero in 1 of its 4 states'):
            pg.CollapsedBBIS(model, collapse=[(summed, ())], progress=False).setup()


@pytest.mark.parametrize(
    "collapse",
    [-0.1, 1.5, True, np.float64(2.0), torch.tensor(True), np.array(False), [("nobody", ())]],
)
def test_sets_that_make_no_sense_are_refused(collapse):
    model, _, _ = chain()
    with pytest.raises(OptionError, match="collapse="):
        pg.CollapsedBBIS(model, collapse=collapse, progress=False).setup()


def test_continuous_sites_are_refused():
    def model():
        pyro.sample("x", dist.Normal(0.0, 1.0))

    with pytest.raises(UnsupportedSite, match='"x"'):
        pg.CollapsedBBIS(model, progress=False).setup()


def test_programs_that_are_too_large_to_compile_are_refused_before_any_work():
    def model():
        with pyro.plate("i", 20, dim=-2), pyro.plate("j", 20, dim=-1):
            x = pyro.sample("x", dist.Bernoulli(torch.full((20, 20), 0.5)))
        pyro.factor("right", (x[:, :-1] * x[:, 1:]).sum())
        pyro.factor("down", (x[:-1] * x[1:]).sum())

    with pytest.raises(UnsupportedFactor, match="over the budget"):
        pg.CollapsedBBIS(model, proposal=Gibbs(), progress=False).setup()


def test_the_ising_grid_of_the_paper_is_read_off_a_few_samples(data_root):
    model = pg.datasets.read_uai(data_root / "ising_4x4" / "rand_4_4_id0.uai")
    lines = (data_root / "ising_4x4" / "marginals.csv").read_text().split()[1:]
    truth = torch.tensor([float(line.split(",")[-1]) for line in lines])
    posterior = pg.fit(
        model, infer=pg.CollapsedBBIS, num_particles=100, proposal=Gibbs(), progress=False
    )
    (site,) = posterior.graph.sites
    # the mean error was .010 to .035 on eight seeds
    assert (posterior.marginal(site).probs[:, 1] - truth).abs().mean() < 0.05
    assert posterior.converged


def lattice(side, seed=0):
    """An Ising model with random fields."""
    generator = torch.Generator().manual_seed(seed)
    field = 0.4 * torch.randn(side, side, generator=generator)

    def model():
        with pyro.plate("i", side, dim=-2), pyro.plate("j", side, dim=-1):
            x = pyro.sample("x", dist.Bernoulli(torch.full((side, side), 0.5)))
        s = 2 * x - 1
        pyro.factor("field", (field * s).sum())
        pyro.factor("right", (0.3 * s[:, :-1] * s[:, 1:]).sum())
        pyro.factor("down", (0.3 * s[:-1] * s[1:]).sum())

    return model


@pytest.mark.parametrize("kernel", [None, circuits.RBF(3.0) + 0.5 * circuits.Hamming(0.2)])
def test_held_nodes_apart_give_the_same_gram_as_the_whole_circuit(kernel):
    graph = pg.trace_graph(lattice(4))
    whole = circuits.compile_graph(graph)
    held = nodes_to_hold(graph, 1)
    apart = HeldCircuit(graph, held)
    points = torch.full((25, 16), -1)
    points[:, held] = torch.randint(2, (25, len(held)))
    gram = circuits.stein_gram(whole, points, kernel)
    assert_close(apart.stein_gram(points, kernel), gram, rtol=1e-9, atol=1e-9)
    assert_close(apart.log_prob(points), whole.log_prob(points), rtol=1e-12, atol=0)
    for a, b in zip(apart.marginals(points), whole.marginals(points), strict=True):
        assert_close(a, b, rtol=0, atol=1e-12)


def test_held_nodes_apart_block_by_block_give_the_same_gram(monkeypatch):
    graph = pg.trace_graph(lattice(3))
    held = nodes_to_hold(graph, 1)
    apart = HeldCircuit(graph, held)
    points = torch.full((13, 9), -1)
    points[:, held] = torch.randint(2, (13, len(held)))
    points[5] = points[2]
    whole = apart.stein_gram(points)
    monkeypatch.setattr("pyrograph.circuits.expectations.stein.CHUNK", 1)
    assert_close(apart.stein_gram(points), whole, rtol=1e-10, atol=1e-12)


class Bar:
    """Counts in the place of tqdm."""

    made: ClassVar[list] = []

    def __init__(self, desc, total, disable, **_):
        self.total, self.is_shown, self.done = total, not disable, 0
        self.made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def update(self):
        self.done += 1


@pytest.mark.parametrize("is_shown", [True, False])
@pytest.mark.parametrize("collapse", [0.5, "treewidth"])
def test_a_bar_goes_over_all_passes_of_the_gram_matrix(monkeypatch, collapse, is_shown):
    monkeypatch.setattr("pyrograph.circuits.expectations.stein.CHUNK", 500)
    monkeypatch.setattr("pyrograph.circuits.expectations.stein.tqdm", Bar)
    monkeypatch.setattr(Bar, "made", [])
    options = {"collapse": collapse, "max_width": 1, "proposal": BRIEF, "progress": is_shown}
    pg.CollapsedBBIS(lattice(3), num_particles=8, **options).run()
    (bar,) = Bar.made
    assert bar.is_shown == is_shown
    assert bar.done == bar.total > 1


@pytest.mark.parametrize("collapse", [0.5, "treewidth"])
def test_a_gram_matrix_that_would_take_hours_is_refused_before_the_first_pass(
    monkeypatch, collapse
):
    options = {"collapse": collapse, "max_width": 1, "progress": False}
    engine = pg.CollapsedBBIS(lattice(3), num_particles=20, **options).setup()
    monkeypatch.setattr("pyrograph.circuits.expectations.stein.MOST_WORK", 1e3)
    monkeypatch.delattr("pyrograph.circuits.expectations.evidence.pairs")  # what a pass calls
    with pytest.raises(UnsupportedFactor, match=r"operations, over the budget.*max_width=.*fewer"):
        engine.run()


def test_held_nodes_of_several_states_in_factors_of_three_give_the_same_gram():
    table = torch.randn(2, 3, 2, 3)

    def model():
        z = [pyro.sample(f"z{i}", dist.Categorical(torch.ones(c))) for i, c in enumerate((2, 3, 2))]
        w = pyro.sample("w", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))
        pyro.factor("f", table[z[0], z[1], z[2], w])
        pyro.factor("g", 0.5 * table[z[0], z[1], 0, 0])

    graph = pg.trace_graph(model)
    apart, whole = HeldCircuit(graph, [1, 3]), circuits.compile_graph(graph)
    held = states([3, 3])
    points = torch.full((9, 4), -1)
    points[:, 1], points[:, 3] = held[:, 0], held[:, 1]
    assert_close(apart.stein_gram(points), circuits.stein_gram(whole, points), rtol=1e-9, atol=1e-9)


def masked(num_nodes):
    """All nodes coupled but one, which no factor reads."""

    def model():
        with pyro.plate("a", num_nodes), poutine.mask(mask=torch.arange(num_nodes) != 1):
            z = pyro.sample("z", dist.Bernoulli(0.4))
        for i in range(num_nodes):
            for j in range(i + 1, num_nodes):
                if 1 not in (i, j):
                    pyro.factor(f"f{i}_{j}", 0.1 * (z[i] == z[j]))

    return model


def test_a_held_node_without_factors_has_equal_probabilities():
    graph = pg.trace_graph(masked(5))
    held = [1, 2, 3, 4]
    apart, whole = HeldCircuit(graph, held), circuits.compile_graph(graph)
    points = torch.randint(2, (20, 5))
    points[:, 0] = -1
    assert_close(apart.log_prob(points), whole.log_prob(points), rtol=1e-12, atol=0)
    assert_close(apart.stein_gram(points), circuits.stein_gram(whole, points), rtol=1e-9, atol=1e-9)
    assert_close(apart.marginals(points)[1], torch.eye(2)[points[:, 1]])
    options = {"collapse": [("z", (0,))], "max_edges": 300, "proposal": BRIEF}
    every = pg.CollapsedBBIS(masked(8), num_particles=20, progress=False, **options)
    assert torch.isfinite(every.run().marginal("z").probs).all()
    assert isinstance(every.circuit, HeldCircuit)


def path(num_nodes):
    def model():
        with pyro.plate("n", num_nodes):
            z = pyro.sample("z", dist.Bernoulli(0.45))
        pyro.factor("f", 0.3 * (z[1:] == z[:-1]).sum())

    return model


@pytest.mark.parametrize(
    ("model", "num_nodes", "is_apart"),
    [(path(200), 200, False), (lattice(4), 16, False), (lattice(8), 64, True)],
    ids=["path", "small lattice", "lattice"],
)
def test_nodes_are_held_apart_where_the_whole_circuit_costs_more(model, num_nodes, is_apart):
    graph = pg.trace_graph(model)
    side = 1 if num_nodes > 100 else round(num_nodes**0.5)
    summed = [v for v in range(num_nodes) if (v // side + v % side) % 2]
    engine = pg.CollapsedBBIS(
        model, num_particles=10, collapse=[graph.nodes[v] for v in summed], progress=False
    )
    engine.setup()
    assert isinstance(engine.circuit, HeldCircuit) == is_apart
    held = [v for v in range(num_nodes) if v not in summed]
    whole, apart = circuits.compile_graph(graph), HeldCircuit(graph, held)
    assert (apart.num_pairs(len(held)) < num_pairs(whole)) == is_apart


def test_a_budget_that_only_the_whole_circuit_keeps_is_enough():
    """Every factor has copies of its own of the held nodes, here of all but one."""
    graph = pg.trace_graph(path(30))
    budget = 300
    with pytest.raises(UnsupportedFactor):
        HeldCircuit(graph, range(1, 30), budget)
    engine = pg.CollapsedBBIS(
        path(30), num_particles=5, collapse=[("z", (0,))], max_edges=budget, progress=False
    )
    assert isinstance(engine.setup().circuit, circuits.Circuit)


def test_a_posterior_may_be_overwritten_without_harm():
    model, _, _ = chain()
    engine = pg.CollapsedBBIS(model, num_particles=5, progress=False)
    posterior = engine.run()
    points, weights = engine.x.clone(), engine.weights.clone()
    posterior.points.fill_(0)
    posterior.weights.zero_()
    assert torch.equal(engine.x, points)
    assert torch.equal(engine.weights, weights)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_what_is_left_of_a_lattice_is_as_narrow_as_asked(width):
    graph = pg.trace_graph(lattice(9))
    held = set(nodes_to_hold(graph, width))
    left = nx.grid_2d_graph(9, 9)
    left.remove_nodes_from([divmod(v, 9) for v in held])
    assert treewidth_min_fill_in(left)[0] <= width
    assert len(held) < 60 / width


def test_a_lattice_too_wide_to_compile_is_sampled_with_its_treewidth_collapsed():
    """Too wide for the budget given, not for the one that the truth is computed with."""
    model = lattice(8)
    with pytest.raises(UnsupportedFactor):
        pg.CollapsedBBIS(model, collapse=0.5, max_edges=5000, progress=False).setup()
    whole = circuits.compile_graph(pg.trace_graph(model))
    truth = torch.stack([m[1] for m in whole.marginals()])
    engine = pg.CollapsedBBIS(
        model, collapse="treewidth", num_particles=40, max_edges=5000, progress=False
    )
    engine.setup()
    posterior = engine.posterior()
    assert isinstance(posterior.circuit, HeldCircuit)
    # without weights: conditionals of a few independent states
    got = posterior.marginal("x").probs[..., 1].flatten()
    assert (got - truth).abs().mean() < 0.03
    engine.step()
    weighted = engine.posterior()
    assert weighted.converged
    history = weighted.history
    assert history["objective"][-1] < history["equal_weights"][-1]
    draws = weighted.sample(5)["x"]
    assert draws.shape == (5, 8, 8)
    guide = weighted.guide()
    file = io.BytesIO()
    torch.save(guide.state_dict(), file)
    file.seek(0)
    again = CollapsedGuide.from_state_dict(torch.load(file, weights_only=True))
    codes = draws.flatten(1).long()
    before, after = (g.__dict__["samples"].log_prob(codes) for g in (guide, again))
    assert before.isfinite().all()
    assert_close(before, after, rtol=0, atol=0)


def test_weights_differentiate_in_the_kernel_and_in_the_model():
    """Through the Gram matrix and the quadratic program, against central differences."""
    model, x, _ = chain()
    circuit = circuits.compile_graph(pg.trace_graph(model))
    circuit.requires_grad_()
    points = x[torch.randperm(len(x))[:14]].clone()
    points[:, 1] = -1
    points = points.unique(dim=0)  # the Gram matrix says nothing of how equal points share
    cost = torch.randn(len(points))
    rate = torch.tensor(0.3, requires_grad=True)

    def value(weight):
        gram = circuits.stein_gram(circuit, points, circuits.Hamming(weight))
        return cost @ simplex_weights(gram)

    value(rate).backward()
    step = 1e-5
    with torch.no_grad():
        numeric = (value(0.3 + step) - value(0.3 - step)) / (2 * step)
        assert_close(rate.grad, numeric, rtol=1e-4, atol=1e-7)
        for k in (0, 3):
            circuit.log_weights[k] += step
            up = value(0.3)
            circuit.log_weights[k] -= 2 * step
            down = value(0.3)
            circuit.log_weights[k] += step
            numeric = (up - down) / (2 * step)
            assert_close(circuit.log_weights.grad[k], numeric, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("unequal", [-6.0, -torch.inf])
def test_particles_are_joint_draws_that_other_engines_can_start_from(unequal):
    """Both nodes are even alone, and differ in nearly all states: modes of the single nodes are
    both (0, 0)."""

    def model():
        a = pyro.sample("a", dist.Bernoulli(torch.tensor(0.5)))
        b = pyro.sample("b", dist.Bernoulli(torch.tensor(0.5)))
        pyro.factor("differ", torch.where(a != b, 0.0, unequal))

    labels = [("a", ()), ("b", ())]
    samples = {name: torch.zeros(200) for name in ("a", "b")}  # nothing of them is held
    engine = pg.CollapsedBBIS(model, collapse=labels, samples=samples, progress=False)
    posterior = engine.run()
    state = torch.get_rng_state()
    a, b = posterior.particles["a"], posterior.particles["b"]
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(a, posterior.particles["a"])
    agree = float(torch.tensor(unequal).exp() / (1 + torch.tensor(unequal).exp()))
    assert abs(float((a == b).double().mean()) - agree) <= 0.02
    assert abs(float(a.mean()) - 0.5) <= 0.15
    if unequal > -torch.inf:
        found = pg.BBIS(model, proposal=posterior, progress=False).run()
        assert abs(float(found.marginal("a").probs[1]) - 0.5) <= 5e-3


def test_particles_keep_what_their_samples_hold():
    model, x, _ = chain()
    samples = x[torch.randint(len(x), (12,))]
    engine = pg.CollapsedBBIS(model, collapse=0.4, samples=values(samples), progress=False)
    posterior = engine.run()
    found = torch.stack([posterior.particles[f"z{i}"] for i in range(5)], 1)
    assert bool(((found == posterior.points) | (posterior.points == -1)).all())


@pytest.mark.parametrize("first", [lambda q: q.particles, lambda q: q.sample(3)])
def test_what_is_first_read_in_inference_mode_serves_autograd_later(first):
    model, x, _ = chain()
    samples = values(x[torch.randint(len(x), (12,))])
    posterior = pg.CollapsedBBIS(model, collapse=0.4, samples=samples, progress=False).run()
    with torch.inference_mode():
        first(posterior)
        posterior.marginal("z0")
        guide = posterior.guide()
    a = torch.ones(12, dtype=torch.float64, requires_grad=True)
    z = posterior.particles["z1"].double()
    (a * z).sum().backward()
    assert_close(a.grad, z)  # d (a . z) / d a
    w = torch.ones((), dtype=torch.float64, requires_grad=True)
    node = trace(guide).get_trace().nodes[f"_{guide._pyro_name}_state"]
    log_q = node["fn"].log_prob(node["value"])
    (w * log_q).backward()
    assert_close(w.grad, log_q)  # d (w log q) / d w


def bound_pair():
    """b needs a: p(a = 1) = 0.3, p(b = 1 | a) = 0.8 a."""
    a = pyro.sample("a", dist.Bernoulli(torch.tensor(0.3)))
    pyro.sample("b", dist.Bernoulli(a * 0.8))


def bound_pair_beside(num_nodes):
    """Beside it nodes that agree pairwise, of which a width of 1 needs all but two held."""

    def model():
        bound_pair()
        with pyro.plate("n", num_nodes):
            z = pyro.sample("z", dist.Bernoulli(torch.tensor(0.4)))
        for i, j in itertools.combinations(range(num_nodes), 2):
            pyro.factor(f"f{i}_{j}", 1.0 * (z[i] == z[j]))

    return model


def test_a_narrow_program_with_zeros_is_summed_out_exactly():
    posterior = pg.CollapsedBBIS(bound_pair, collapse="treewidth", progress=False).run()
    assert bool((posterior.points == -1).all())
    assert abs(float(posterior.marginal("a").probs[1]) - 0.3) <= 1e-7
    assert abs(float(posterior.marginal("b").probs[1]) - 0.24) <= 1e-7


def test_held_nodes_of_a_program_with_zeros_are_drawn_where_the_whole_fits_the_budget():
    options = {"collapse": "treewidth", "max_width": 1, "num_particles": 60, "progress": False}
    engine = pg.CollapsedBBIS(bound_pair_beside(3), **options)
    posterior = engine.run()
    assert isinstance(engine.circuit, HeldCircuit)
    assert int((posterior.points != -1).any(0).sum()) == 1
    assert abs(float(posterior.marginal("b").probs[1]) - 0.24) <= 1e-7
    z = states([2, 2, 2])
    log_p = torch.where(z == 1, 0.4, 0.6).log().sum(1) + (z == z.roll(-1, 1)).sum(1)
    truth = log_p.softmax(0) @ z.to(log_p)
    assert_close(posterior.marginal("z").probs[:, 1], truth, rtol=0, atol=1e-5)
    with pytest.raises(OptionError, match="too wide to be drawn from"):
        pg.CollapsedBBIS(bound_pair_beside(6), max_edges=200, **options).setup()


def counted():
    """Two coins whose odds depend on a state, and the number of heads seen through noise."""
    a = pyro.sample("a", dist.Categorical(torch.ones(3) / 3))
    with pyro.plate("p", 2):
        b = pyro.sample("b", dist.Bernoulli(0.2 + 0.2 * a.to(torch.get_default_dtype())))
    pyro.sample("y", dist.Normal(b.sum(-1), 1.0), obs=torch.tensor(1.0))


def log_evidence_of_counted():
    density = [math.exp(-0.5 * (1 - heads) ** 2) / math.sqrt(2 * math.pi) for heads in range(3)]
    total = 0.0
    for a in range(3):
        q = 0.2 + 0.2 * a
        odds = (1 - q) ** 2, 2 * q * (1 - q), q**2
        total += sum(p * d for p, d in zip(odds, density, strict=True)) / 3
    return math.log(total)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("collapse", [1.0, [("a", ())], [("b", (0,)), ("b", (1,))]])
def test_an_elbo_that_sums_out_takes_the_guide_in_either_precision(collapse, dtype):
    torch.set_default_dtype(dtype)
    options = {"collapse": collapse, "num_particles": 40, "proposal": BRIEF, "progress": False}
    guide = pg.fit(counted, infer=pg.CollapsedBBIS, **options).guide()
    again = CollapsedGuide.from_state_dict(guide.state_dict())
    enumerating = TraceEnum_ELBO(max_plate_nesting=1, strict_enumeration_warning=False)
    for each in (guide, again):
        nodes = trace(each).get_trace()
        nodes.compute_log_prob()
        kinds = {node["log_prob"].dtype for node in nodes.nodes.values() if "log_prob" in node}
        assert kinds == {dtype}
        # all states of what is held are among the samples, so that the guide is exact
        for elbo in (Trace_ELBO(), enumerating):
            loss = elbo.loss(counted, each)
            assert loss == pytest.approx(-log_evidence_of_counted(), abs=1e-5)


@pytest.mark.parametrize(
    ("sites", "text"),
    [
        (3, "needs a list of names"),
        ([["a"]], "no latent site"),
        (["q"], 'no latent site "q"; the latent sites are: a, b'),
        ([], "no site to draw"),
        ("b", "all sites only"),
    ],
)
def test_a_guide_of_other_than_all_sites_is_refused_with_the_reason(sites, text):
    options = {"num_particles": 9, "proposal": BRIEF, "progress": False}
    posterior = pg.fit(counted, infer=pg.CollapsedBBIS, **options)
    with pytest.raises(OptionError, match=text):
        posterior.guide(sites)


def test_a_guide_of_the_only_site_takes_its_name():
    def model():
        pyro.sample("state", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))

    posterior = pg.fit(model, infer=pg.CollapsedBBIS, num_particles=9, progress=False)
    for sites in (None, "state", ["state"], ["state", "state"]):
        assert 0 <= int(posterior.guide(sites)()["state"]) < 3


@pytest.mark.parametrize("missing", ["a", "b"])
def test_samples_that_miss_a_site_are_refused_by_its_name_summed_out_or_not(missing):
    def two():
        a = pyro.sample("a", dist.Bernoulli(0.4))
        pyro.sample("b", dist.Bernoulli(0.3 + 0.2 * a))

    samples = {"a": torch.tensor([0.0, 1.0]), "b": torch.tensor([0.0, 1.0])}
    del samples[missing]
    engine = pg.CollapsedBBIS(two, collapse=[("a", ())], samples=samples, progress=False)
    with pytest.raises(ShapeMismatch, match=rf'no values of site "{missing}".*which are ignored'):
        engine.run()
