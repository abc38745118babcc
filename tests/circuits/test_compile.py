import csv
import itertools
import math
import tracemalloc

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.circuits.compiling.compile import compile_graph
from pyrograph.circuits.compiling.elimination import (
    EliminationTree,
    balanced_tree,
    min_fill,
    neighborhoods,
)
from pyrograph.datasets import DiscreteModel, bayesian_network, read_uai, uai_reference
from pyrograph.errors import (
    NonFiniteDensity,
    OptionError,
    UnsupportedFactor,
    UnsupportedSite,
    ZeroMass,
)
from tests.datasets.test_uai import log_z_by_elimination

ALL = {"smooth": True, "decomposable": True, "structured": True, "deterministic": True}


def random_model(seed, *, zeros=0.0, levels=None, max_variables=6):
    """Mixed cardinalities, factors of up to four variables, isolated ones and several components.

    Args:
        levels: number of different values, so that many are equal.
    """
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, max_variables + 1))
    cards = tuple(int(c) for c in rng.integers(1, 4, count))
    scopes, tables = [], []
    for _ in range(int(rng.integers(0, 2 * count))):
        arity = int(rng.integers(1, min(4, count) + 1))
        scope = tuple(int(v) for v in rng.choice(count, arity, replace=False))
        shape = [cards[v] for v in scope]
        values = rng.normal(size=shape) if levels is None else rng.integers(levels, size=shape)
        values = np.where(rng.uniform(size=shape) < zeros, -np.inf, values)
        if np.isfinite(values).any():
            scopes.append(scope)
            tables.append(torch.tensor(values, dtype=torch.float64))
    return DiscreteModel(cards, tuple(scopes), tuple(tables))


def enumerated(graph, evidence=()):
    """All states ``[S, D]`` in the order of nodes and their log densities by the graph itself."""
    evidence = {graph.nodes.index(label): int(s) for label, s in dict(evidence).items()}
    cards = [graph.sites[site].cardinality for site, _ in graph.nodes]
    ranges = [[evidence[v]] if v in evidence else range(c) for v, c in enumerate(cards)]
    states = torch.tensor(list(itertools.product(*ranges)))
    values, start = {}, 0
    for site in graph.sites.values():
        codes = states[:, start : start + site.num_nodes]
        values[site.name] = site.enumeration[codes].reshape(-1, *site.shape)
        start += site.num_nodes
    return states, graph.log_prob(values).double()


def check(graph, evidence=None, **options):
    """The compiled circuit has the density, log Z, properties and marginals of the enumeration."""
    states, log_density = enumerated(graph, evidence or {})
    circuit = compile_graph(graph, evidence, **options)
    assert circuit.properties() == ALL
    assert_close(circuit.log_prob(states), log_density, rtol=0, atol=1e-10)
    log_z = log_density.logsumexp(0)
    assert_close(circuit.log_mass(), log_z, rtol=0, atol=1e-10)
    probs = (log_density - log_z).exp()
    for v, marginal in enumerate(circuit.marginals()):
        expected = torch.zeros(circuit.cards[v]).index_add(0, states[:, v], probs)
        assert_close(marginal, expected, rtol=0, atol=1e-10)
    state, highest = circuit.most_probable()
    assert_close(highest, log_density.max(), rtol=0, atol=1e-10)
    assert_close(circuit.log_prob(state), highest, rtol=0, atol=1e-10)
    return circuit


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_a_random_graph_is_compiled_exactly(seed):
    check(pg.trace_graph(random_model(seed)))


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.sampled_from([0.2, 0.6]))
def test_zeros_and_equal_values_are_compiled_exactly(seed, zeros):
    graph = pg.trace_graph(random_model(seed, zeros=zeros, levels=2))
    if enumerated(graph)[1].max() == -torch.inf:
        with pytest.raises(ZeroMass, match="no state of the program is possible: "):
            compile_graph(graph)
    else:
        check(graph)


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_evidence_keeps_its_variable_with_one_state(seed):
    graph = pg.trace_graph(random_model(seed, levels=3))
    rng = np.random.default_rng(seed)
    evidence = {
        label: int(rng.integers(graph.sites[label[0]].cardinality))
        for label in graph.nodes
        if rng.uniform() < 0.4
    }
    circuit = check(graph, evidence)
    for label, state in evidence.items():
        assert circuit.marginals()[graph.nodes.index(label)][state] == 1


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_any_order_gives_the_same_density(seed):
    graph = pg.trace_graph(random_model(seed, levels=3))
    shuffled = np.random.default_rng(seed).permutation(graph.num_nodes)
    check(graph, order=[graph.nodes[v] for v in shuffled])


def test_equal_numbers_make_the_circuit_smaller():
    """x3 reads only the sum of three variables; the circuit counts, the table does not."""
    cards = (2,) * 12
    total = torch.tensor(list(itertools.product((0, 1), repeat=12))).sum(1)
    noise = torch.rand(2**12)

    def edges(values):
        model = DiscreteModel(cards, (tuple(range(12)),), (values.reshape(cards).double(),))
        return compile_graph(pg.trace_graph(model)).num_edges

    assert edges(total.double().square()) < 500 < 4000 < edges(noise)


def test_a_chain_has_a_circuit_of_few_layers():
    rng = np.random.default_rng(0)
    count = 300
    tables = tuple(torch.tensor(rng.normal(size=(2, 2))) for _ in range(count - 1))
    model = DiscreteModel((2,) * count, tuple((t, t + 1) for t in range(count - 1)), tables)
    circuit = compile_graph(pg.trace_graph(model))
    message = torch.zeros(2)
    for table in tables:
        message = (message.unsqueeze(1) + table).logsumexp(0)
    assert_close(circuit.log_mass(), message.logsumexp(0), rtol=0, atol=1e-9)
    assert circuit.units.depth.max() < 40
    assert circuit.num_edges < 20 * count


# ---------------------------------------------------------------------- programs
def weather():
    """Numbers of states 2, 3 and a batch of 2; values that are no codes; an observation."""
    rain = pyro.sample("rain", dist.Bernoulli(0.3))
    with pyro.plate("days", 2):
        wind = pyro.sample("wind", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))
    loc = rain + wind.to(rain).sum()
    pyro.sample("seen", dist.Normal(loc, 1.0), obs=torch.tensor(2.0))


def test_variables_are_the_nodes_in_their_order_and_constants_count():
    graph = pg.trace_graph(weather)
    circuit = check(graph)
    assert circuit.cards == (2, 3, 3)
    check(graph, {("rain", ()): 1.0, ("wind", (1,)): 2})


def test_values_of_evidence_are_those_of_the_program():
    def model():
        pyro.sample("z", dist.OneHotCategorical(torch.tensor([0.2, 0.3, 0.5])))
        pyro.sample("n", dist.Binomial(2, torch.tensor(0.3)))

    graph = pg.trace_graph(model)
    held = {("z", ()): torch.tensor([0.0, 1.0, 0.0]), ("n", ()): 2}
    circuit = compile_graph(graph, held)
    assert_close(circuit.log_mass(), torch.tensor(0.3 * 0.09).log())
    assert circuit.marginals()[0].tolist() == [0, 1, 0]


def test_sites_that_the_graph_holds_fixed_have_one_state():
    graph = pg.trace_graph(weather, fixed={"rain": torch.tensor(1.0)})
    free = compile_graph(pg.trace_graph(weather), {("rain", ()): 1.0})
    held = compile_graph(graph)
    assert held.marginals()[0].tolist() == [0, 1]
    assert_close(held.log_mass(), free.log_mass())
    with pytest.raises(OptionError, match="fixed"):
        compile_graph(graph, {("rain", ()): 0.0})


def clusters():
    """Sites that have no list of states: reals, positive ones, vectors, counts without end."""
    z = pyro.sample("z", dist.Categorical(torch.tensor([0.2, 0.3, 0.5], dtype=torch.double)))
    x = pyro.sample("x", dist.Normal(z.double(), 1.0))
    with pyro.plate("n", 2):
        b = pyro.sample("b", dist.Bernoulli(torch.tensor(0.3, dtype=torch.double)))
        s = pyro.sample("s", dist.Gamma(torch.tensor(2.0, dtype=torch.double), 1.0 + z))
        pyro.factor("bs", -s * b * x)
    loc = torch.stack([z.double(), -z.double()])
    v = pyro.sample("v", dist.Normal(loc, 0.7).to_event(1))
    k = pyro.sample("k", dist.Poisson(1.0 + b.sum()))
    pyro.factor("vk", 0.1 * v.sum() * k)


CLUSTERS = {
    "x": torch.tensor(0.3, dtype=torch.double),
    "s": torch.tensor([0.4, 1.7], dtype=torch.double),
    "v": torch.tensor([0.2, -1.1], dtype=torch.double),
    "k": torch.tensor(2.0, dtype=torch.double),
}


def log_cluster(z, b):
    """By SciPy."""
    x, s, v, k = (CLUSTERS[name].numpy() for name in "xsvk")
    b = np.array(b)
    return (
        math.log([0.2, 0.3, 0.5][z])
        + stats.norm.logpdf(x, z)
        + stats.bernoulli.logpmf(b, 0.3).sum()
        + stats.gamma.logpdf(s, 2.0, scale=1 / (1 + z)).sum()
        - (s * b * x).sum()
        + stats.norm.logpdf(v, [z, -z], 0.7).sum()
        + stats.poisson.logpmf(k, 1 + b.sum())
        + 0.1 * v.sum() * k
    )


@pytest.mark.parametrize("fixed", [(), ("x",), ("s", "k"), ("x", "s", "v", "k")])
def test_sites_without_a_list_of_states_may_be_given(fixed):
    graph = pg.trace_graph(clusters, fixed={name: CLUSTERS[name] for name in fixed})
    evidence = {
        (site, index): CLUSTERS[site][index] if index else CLUSTERS[site]
        for site, index in graph.nodes
        if site in CLUSTERS and site not in fixed
    }
    circuit = compile_graph(graph, evidence)
    at = [site in CLUSTERS for site, _ in graph.nodes]
    assert [c for c, given in zip(circuit.cards, at, strict=True) if given] == [1] * 5
    states = list(itertools.product(range(3), (0, 1), (0, 1)))
    truth = torch.tensor([log_cluster(z, b) for z, *b in states])
    found = torch.zeros(len(states), len(at))
    found[:, ~torch.tensor(at)] = torch.tensor(states).to(found)
    assert_close(circuit.log_prob(found), truth, rtol=0, atol=1e-6)
    assert_close(circuit.log_mass(), truth.logsumexp(0), rtol=0, atol=1e-6)


def test_evidence_in_an_unconstrained_graph_is_in_its_space():
    def model():
        z = pyro.sample("z", dist.Bernoulli(torch.tensor(0.3, dtype=torch.double)))
        pyro.sample("s", dist.Exponential(1 + z))

    graph = pg.trace_graph(model, unconstrained=True)
    circuit = compile_graph(graph, {("s", ()): math.log(0.4)})
    jacobian = math.log(0.4)
    truth = math.log(0.7 * math.exp(-0.4) + 0.3 * 2 * math.exp(-0.8)) + jacobian
    assert float(circuit.log_mass()) == pytest.approx(truth, abs=1e-6)


def test_values_of_sites_without_states_are_checked():
    graph = pg.trace_graph(clusters)
    given = {(site, i): CLUSTERS[site][i] if i else CLUSTERS[site] for site, i in graph.nodes[1:2]}
    with pytest.raises(UnsupportedSite, match=r'site "s".*evidence= on all its nodes'):
        compile_graph(graph, {**given, ("s", (0,)): 1.0})
    with pytest.raises(OptionError, match=r'site "s" \(Gamma\) is outside its support'):
        compile_graph(graph, {("s", (0,)): 1.0, ("s", (1,)): -1.0})
    with pytest.raises(OptionError, match=r"\[1.0, 2.0\] is no value of \('x', \(\)\)"):
        compile_graph(graph, {("x", ()): [1.0, 2.0]})
    with pytest.raises(OptionError, match=r"\('v', \(\)\): .* numbers of shape \[2\]"):
        compile_graph(graph, {("v", ()): 1.0})
    fixed = pg.trace_graph(clusters, fixed=CLUSTERS)
    assert compile_graph(fixed, {("x", ()): 0.3}).cards[1] == 1
    with pytest.raises(OptionError, match="fixed at another value"):
        compile_graph(fixed, {("x", ()): 0.4})


def test_one_node_alone_is_a_circuit():
    circuit = check(pg.trace_graph(lambda: pyro.sample("x", dist.Categorical(torch.ones(4)))))
    assert circuit.cards == (4,)


def test_what_cannot_be_compiled_is_refused_with_the_reason():
    def continuous():
        pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("z", dist.Bernoulli(0.5))

    with pytest.raises(UnsupportedSite, match=r'site "x".*not finite and discrete'):
        compile_graph(pg.trace_graph(continuous))

    def broken():
        z = pyro.sample("z", dist.Bernoulli(0.5))
        pyro.factor("f", torch.tensor([0.0, torch.nan])[z.long()])

    with pytest.raises(NonFiniteDensity, match='factor "f"'):
        compile_graph(pg.trace_graph(broken, verify=False))
    graph = pg.trace_graph(weather)
    with pytest.raises(OptionError, match=r"\('snow', \(\)\).*not there"):
        compile_graph(graph, {("snow", ()): 1})
    with pytest.raises(OptionError, match=r"\[3\] is no value of \('wind', \(0,\)\)"):
        compile_graph(graph, {("wind", (0,)): 3})
    with pytest.raises(OptionError, match="order='random'"):
        compile_graph(graph, order="random")
    with pytest.raises(OptionError, match="misses"):
        compile_graph(graph, order=[("rain", ())])


def test_impossible_evidence_has_no_mass():
    def model():
        x = pyro.sample("x", dist.Bernoulli(0.5))
        y = pyro.sample("y", dist.Bernoulli(0.5))
        pyro.factor("same", torch.eye(2).log()[x.long(), y.long()])

    with pytest.raises(ZeroMass, match="under this evidence"):
        compile_graph(pg.trace_graph(model), {("x", ()): 1.0, ("y", ()): 0.0})


def test_a_circuit_beyond_the_budget_is_refused_before_it_is_built():
    side = 24
    edges = [
        (side * i + j, side * (i + di) + j + dj)
        for i in range(side)
        for j in range(side)
        for di, dj in ((0, 1), (1, 0))
        if i + di < side and j + dj < side
    ]
    model = DiscreteModel((2,) * side**2, tuple(edges), (torch.rand(2, 2),) * len(edges))
    with pytest.raises(UnsupportedFactor, match=r"width \d\d.*evidence.*CollapsedBBIS.*pg\.BP"):
        compile_graph(pg.trace_graph(model))
    small = pg.trace_graph(random_model(3))
    with pytest.raises(UnsupportedFactor, match="over the budget of 1:"):
        compile_graph(small, max_edges=1)


def chain(length, card):
    torch.manual_seed(0)
    tables = torch.randn(length - 1, card, card)
    scopes = tuple((k, k + 1) for k in range(length - 1))
    return pg.trace_graph(DiscreteModel((card,) * length, scopes, tuple(tables)))


def test_a_chain_is_cut_apart_where_that_costs_few_pairs():
    def depth(length, card):
        neighbors = neighborhoods([(k, k + 1) for k in range(length - 1)], length)
        return balanced_tree(neighbors, (card,) * length).depth

    assert depth(500, 2) < 20
    assert depth(500, 4) == 251
    # the size of the chain, not of the chain cut apart
    assert compile_graph(chain(200, 6)).num_edges < 200 * (6**2 + 2 * 6)


def test_the_budget_chooses_among_trees():
    graph = chain(300, 2)
    shallow = compile_graph(graph)
    deep = compile_graph(graph, max_edges=shallow.num_edges - 1)
    assert deep.num_edges < shallow.num_edges
    assert_close(deep.log_mass(), shallow.log_mass(), rtol=1e-12, atol=0)
    with pytest.raises(UnsupportedFactor, match=r"width 1 .*order=\["):
        compile_graph(graph, max_edges=1000)


# ---------------------------------------------------------------------- elimination
@settings(max_examples=40)
@given(st.integers(0, 10_000))
def test_an_elimination_tree_covers_every_factor_by_a_path(seed):
    model = random_model(seed, max_variables=10)
    neighbors = neighborhoods(model.scopes, model.num_variables)
    tree = balanced_tree(neighbors, model.cardinalities)
    assert sorted(tree.order) == list(range(model.num_variables))
    above = [set() for _ in tree.order]
    for v in reversed(tree.order):
        if tree.parent[v] >= 0:
            above[v] = above[tree.parent[v]] | {tree.parent[v]}
        assert set(tree.context[v]) <= above[v]
    for scope in model.scopes:
        lowest = min(scope, key=tree.order.index)
        assert set(scope) <= {lowest, *tree.context[lowest]}


def test_min_fill_eliminates_a_tree_without_fill():
    neighbors = neighborhoods([(0, 1), (1, 2), (1, 3), (3, 4)], 5)
    order = min_fill(neighbors, (2,) * 5)
    assert EliminationTree.of_order(order, neighbors, (2,) * 5).width == 1


# ---------------------------------------------------------------------- real instances
def test_the_ising_grid_of_the_paper_has_its_log_z_and_marginals(data_root):
    graph = pg.trace_graph(read_uai(data_root / "ising_4x4" / "rand_4_4_id0.uai"))
    circuit = compile_graph(graph)
    assert circuit.properties() == ALL
    assert_close(float(circuit.log_mass()), -5.074742719429882, rtol=0, atol=1e-12)
    rows = csv.reader((data_root / "ising_4x4" / "marginals.csv").read_text().splitlines()[1:])
    expected = torch.tensor([float(row[-1]) for row in rows])
    assert_close(torch.stack(circuit.marginals())[:, 1], expected, rtol=0, atol=1e-9)
    assert circuit.num_edges < 1000


@pytest.mark.parametrize("name", ["asia", "cancer", "earthquake", "survey"])
@pytest.mark.parametrize("is_observed", [False, True])
def test_small_bayesian_networks_are_those_of_the_enumeration(data_root, name, is_observed):
    network = bayesian_network(name)
    graph = pg.trace_graph(network)
    last = network.names[-1]
    check(graph, {(last, ()): 1} if is_observed else None)


@pytest.mark.parametrize("name", ["sachs", "alarm"])
def test_larger_bayesian_networks_add_up_to_one(data_root, name):
    network = bayesian_network(name)
    graph = pg.trace_graph(network)
    circuit = compile_graph(graph)
    assert circuit.properties() == ALL
    assert_close(float(circuit.log_mass()), 0.0, rtol=0, atol=1e-3)  # tables are rounded
    first, last = graph.nodes[0], graph.nodes[-1]
    held = compile_graph(graph, {first: 0, last: 1})
    observed = pg.trace_graph(network, ({first[0]: 0, last[0]: 1},))
    expected = log_z_by_elimination(observed)
    assert_close(float(held.log_mass()), expected, rtol=0, atol=1e-10)
    point = torch.full((graph.num_nodes,), math.nan)
    point[0], point[-1] = 0, 1
    assert_close(float(circuit.log_prob(point)), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["Promedus_24", "Promedus_30", "Promedus_22"])
def test_instances_of_small_width_have_their_reference_solution(data_root, name):
    model, reference = read_uai(name), uai_reference(name)
    graph = pg.trace_graph(model)
    circuit = compile_graph(graph)
    assert circuit.properties() == ALL
    assert_close(float(circuit.log_mass()), reference.log_evidence, rtol=0, atol=1e-9)
    for label, found in zip(graph.nodes, circuit.marginals(), strict=True):
        expected = reference.marginals[model.variable(*label)]
        assert_close(found, expected, rtol=0, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CSP_12"])
def test_instances_of_middling_width_have_their_reference_solution(data_root, name):
    circuit = compile_graph(pg.trace_graph(read_uai(name)), max_edges=2**25)
    assert_close(float(circuit.log_mass()), uai_reference(name).log_evidence, rtol=0, atol=1e-9)


def test_a_wide_node_that_would_pad_every_input_is_refused_by_name():
    """1800 distinct inputs of two states, in a table of 600 columns each."""

    probs = torch.rand(600, 3)

    def model():
        z = pyro.sample("z", dist.Categorical(torch.ones(600)))
        with pyro.plate("i", 3):
            pyro.sample("x", dist.Bernoulli(probs[z]))

    graph = pg.trace_graph(model)
    most = 10_000
    with pytest.raises(UnsupportedFactor, match=r"as wide as that of z, 600 states.*max_edges"):
        compile_graph(graph, max_edges=most)
    circuit = compile_graph(graph)
    assert circuit.log_table.numel() > 32 * most
    assert circuit.num_edges <= most


def test_a_wide_node_is_refused_before_its_inputs_are_laid_out():
    """3000 inputs of 3000 states are 72 MB; the budget is 17 MB."""

    def model():
        z = pyro.sample("z", dist.Categorical(torch.ones(3000)))
        for k in range(3):
            pyro.sample(f"x{k}", dist.Bernoulli(torch.linspace(0.1, 0.5 + 0.1 * k, 3000)[z]))

    graph = pg.trace_graph(model)
    tracemalloc.start()
    try:
        with pytest.raises(UnsupportedFactor, match=r"as wide as that of z, 3,000 states"):
            compile_graph(graph, max_edges=2**16)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("law", "text"),
    [
        (dist.Bernoulli(torch.tensor([0.5, 0.2])).to_event(1), r"2 discrete.*\.to_event\(1\)"),
        (dist.Binomial(torch.tensor([2.0, 3.0]), 0.5), "unequal numbers of states"),
        (dist.Poisson(2.0), "finitely many"),
        (dist.Normal(0.0, 1.0), "finite and discrete"),
    ],
)
def test_sites_without_a_list_of_states_are_refused_for_what_they_are(law, text):
    def model():
        pyro.sample("x", law.mask(True))

    with pytest.raises(UnsupportedSite, match=f'"x".*{text}'):
        compile_graph(pg.trace_graph(model))


@pytest.mark.parametrize("value", [None, "a", [0, 1], [[1], [2, 3]], {}])
def test_evidence_that_is_no_value_is_refused(value):
    def model():
        pyro.sample("x", dist.Bernoulli(0.5))

    graph = pg.trace_graph(model)
    with pytest.raises(OptionError, match=r"'x', \(\)"):
        compile_graph(graph, evidence={("x", ()): value})
    with pytest.raises(OptionError, match="no dict"):
        compile_graph(graph, evidence=[value])
