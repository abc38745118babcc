"""Circuits learnt from complete data: the tree, and splits of it."""

import functools
import itertools
import math
import tracemalloc

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from pyrograph.circuits import Circuit, fit_parameters, fully_factorised
from pyrograph.circuits.learning import learn_chow_liu, learn_strudel
from pyrograph.circuits.learning.chow_liu import PairCounts
from pyrograph.circuits.learning.growth import Growth
from pyrograph.circuits.learning.table import read_table
from pyrograph.errors import OptionError, ShapeMismatch


def every_state(cards):
    return torch.tensor(list(itertools.product(*map(range, cards))))


def dependent_rows(n, cards, seed=0):
    """Rows of a mixture of three products: no tree fits them."""
    rng = np.random.default_rng(seed)
    tables = [rng.dirichlet(np.full(c, 0.4), 3) for c in cards]
    component = rng.integers(0, 3, n)
    columns = [
        (table[component].cumsum(1) < rng.random((n, 1))).sum(1).clip(max=table.shape[1] - 1)
        for table in tables
    ]
    return torch.tensor(np.stack(columns, 1))


def best_tree_log_likelihood(x):
    """The largest of all trees, each of maximum likelihood: entropies of variables and pairs."""

    @functools.cache
    def entropy(*columns):
        _, count = np.unique(x[:, columns].numpy(), axis=0, return_counts=True)
        return -(count / len(x) * np.log(count / len(x))).sum()

    def told(v, w):
        return entropy(v) + entropy(w) - entropy(min(v, w), max(v, w))

    num_variables = x.shape[1]
    best = max(sum(told(v, w) for v, w in edges) for edges in all_trees(num_variables))
    return best - sum(entropy(v) for v in range(num_variables))


def all_trees(d):
    for code in itertools.product(range(d), repeat=d - 2):
        yield list(nx.from_prufer_sequence(code).edges)


def holds(circuit, *names):
    found = circuit.properties()
    return all(found[name] for name in names or found)


@pytest.mark.parametrize("cards", [(2, 2, 2, 2, 2), (2, 3, 4, 2, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_no_tree_on_five_variables_is_more_likely(cards, seed):
    x = dependent_rows(150, cards, seed)
    circuit = learn_chow_liu(x, cards=cards, smoothing=0.0)
    best = best_tree_log_likelihood(x)
    assert_close(circuit.log_prob(x).mean().item(), best, rtol=0, atol=1e-12)
    assert holds(circuit)


def test_the_tree_of_a_chain_is_found():
    rng = np.random.default_rng(1)
    order = [3, 0, 5, 1, 4, 2]
    x = np.zeros((4000, 6), np.int64)
    x[:, order[0]] = rng.integers(0, 2, 4000)
    for v, w in itertools.pairwise(order):
        x[:, w] = np.where(rng.random(4000) < 0.8, x[:, v], rng.integers(0, 2, 4000))
    tree = PairCounts.of(read_table(torch.tensor(x))).tree()
    found = {frozenset((v, p)) for v, p in enumerate(tree.parent) if p is not None}
    assert found == {frozenset(pair) for pair in itertools.pairwise(order)}
    assert tree.order[0] in (5, 1)  # the middle of the chain


def test_the_smoothed_tree_is_its_closed_form():
    cards, s = (2, 3, 2, 4), 2.5
    x = dependent_rows(60, cards)
    circuit = learn_chow_liu(x, cards=cards, smoothing=s)
    tree = PairCounts.of(read_table(x, cards), s).tree()

    def frequency(*columns):
        size = [cards[v] for v in columns]
        count = np.zeros(size)
        np.add.at(count, tuple(x[:, v].numpy() for v in columns), 1)
        return (count + s / math.prod(size)) / (len(x) + s)

    states = every_state(cards)
    expected = torch.zeros(len(states))
    for v, parent in enumerate(tree.parent):
        if parent is None:
            expected += torch.tensor(frequency(v)).log()[states[:, v]]
        else:
            table = frequency(parent, v) / frequency(parent)[:, None]
            expected += torch.tensor(table).log()[states[:, parent], states[:, v]]
    assert_close(circuit.log_prob(states), expected)


def test_mutual_information_is_that_of_each_pair():
    x = dependent_rows(80, (2, 3, 4))
    found = PairCounts.of(read_table(x, (2, 3, 4))).mutual_information()
    for v, w in itertools.combinations(range(3), 2):
        joint = np.zeros((4, 4))
        np.add.at(joint, (x[:, v], x[:, w]), 1 / len(x))
        outer = joint.sum(1, keepdims=True) * joint.sum(0)
        seen = joint > 0
        expected = (joint[seen] * np.log(joint[seen] / outer[seen])).sum()
        assert found[v, w] == pytest.approx(expected, abs=1e-12)
        assert found[w, v] == found[v, w]


def test_row_weights_count_like_repeated_rows():
    x = dependent_rows(30, (2, 3, 2))
    times = torch.arange(30) % 3
    repeated = x.repeat_interleave(times, 0)
    for learn in (learn_chow_liu, lambda *a, **k: learn_strudel(*a, progress=False, **k)):
        weighted = learn(x, cards=(2, 3, 2), weights=times)
        assert_close(
            weighted.log_prob(x), learn(repeated, cards=(2, 3, 2)).log_prob(x), rtol=0, atol=1e-12
        )


@settings(max_examples=25)
@given(
    cards=st.lists(st.integers(2, 4), min_size=2, max_size=5),
    seed=st.integers(0, 10**6),
    steps=st.integers(1, 30),
    depth=st.integers(0, 3),
    smoothing=st.sampled_from([0.0, 0.3, 5.0]),
    edge=st.sampled_from(["flow", "dependence", "random"]),
    variable=st.sampled_from(["mutual information", "random"]),
)
def test_splits_keep_a_deterministic_distribution_and_its_likelihood(
    cards, seed, steps, depth, smoothing, edge, variable
):
    x = dependent_rows(40, cards, seed)
    train, valid = read_table(x[:30], cards), read_table(x[30:], cards)
    torch.manual_seed(seed)
    growth = Growth(train, valid, smoothing, smoothing, depth, edge, variable)
    before = growth.splitting.log_likelihood[0]
    for _ in range(steps):
        if not growth.step():
            break
        after = growth.splitting.log_likelihood[0]
        if smoothing == 0:
            assert after >= before - 1e-9
        before = after
    circuit = growth.splitting.circuit()
    assert holds(circuit)
    assert circuit.num_edges == growth.splitting.num_edges
    total = circuit.log_prob(every_state(cards)).logsumexp(0)
    assert_close(total, torch.zeros(()), rtol=0, atol=1e-9)
    for rows, kept in ((x[:30], 0), (x[30:], 1)):
        expected = circuit.log_prob(rows).sum().item()
        assert growth.splitting.log_likelihood[kept] == pytest.approx(expected, abs=1e-8)


def test_unlimited_splits_reach_the_empirical_distribution():
    x = dependent_rows(40, (2, 3, 2, 2))
    circuit = learn_strudel(x, smoothing=0.0, num_steps=1000, copy_depth=4, progress=False)
    _, group, count = np.unique(x.numpy(), axis=0, return_inverse=True, return_counts=True)
    expected = torch.tensor(np.log(count / len(x)))[group.reshape(-1)]
    assert_close(circuit.log_prob(x), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("edge", ["flow", "dependence"])
@pytest.mark.parametrize("seed", [5, 11, 13])
def test_unlimited_splits_of_weighted_rows_reach_their_shares(edge, seed):
    x = torch.unique(dependent_rows(100, (2,) * 8, seed), dim=0)
    weights = torch.tensor(np.random.default_rng(seed).random(len(x)))
    options = {"smoothing": 0.0, "num_steps": 2000, "copy_depth": 8, "progress": False}
    circuit = learn_strudel(x, weights=weights, edge=edge, **options)
    expected = (weights / weights.sum()).log()
    assert_close(circuit.log_prob(x), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_an_edge_that_no_weight_takes_has_the_flow_zero(seed):
    x = dependent_rows(100, (2,) * 6, seed)
    weights = torch.tensor(np.random.default_rng(seed).random(len(x)))
    growth = Growth(read_table(x, weights=weights), None, 1.0, 1.0)
    while growth.step():
        pass
    for unit in growth.splitting.sums.values():
        for flow, rows in zip(unit.counts[0], unit.rows, strict=True):
            assert flow == growth.splitting.weight[rows, 0].sum()


def test_a_split_with_all_the_shrinkage_changes_nothing():
    x = dependent_rows(50, (2, 3, 2, 2))
    tree = learn_chow_liu(x)
    split = learn_strudel(x, shrinkage=1e12, num_steps=5, progress=False)
    assert split.num_edges > tree.num_edges
    states = every_state((2, 3, 2, 2))
    assert_close(split.log_prob(states), tree.log_prob(states), rtol=0, atol=1e-8)


def test_no_step_is_the_tree():
    x = dependent_rows(50, (2, 3, 2, 2))
    circuit = learn_strudel(x, num_steps=0, progress=False)
    assert_close(circuit.log_prob(x), learn_chow_liu(x).log_prob(x), rtol=0, atol=1e-12)


def test_the_circuit_of_the_best_validation_comes_back():
    x = dependent_rows(400, (2,) * 8, seed=3)
    train, valid = x[:100], x[100:]
    options = {"smoothing": 0.1, "shrinkage": 0.1, "progress": False}
    best = learn_strudel(train, valid=valid, num_steps=20, patience=20, **options)
    scores = [
        learn_strudel(train, num_steps=k, **options).log_prob(valid).mean().item()
        for k in range(0, 21, 2)
    ]
    found = best.log_prob(valid).mean().item()
    assert found >= max(scores) - 1e-12
    assert found > scores[-1] + 1e-3  # later steps overfit


@pytest.mark.parametrize("max_edges", [60, 80])
def test_a_hole_in_the_validation_rows_does_not_throw_the_last_splits_away(max_edges):
    x = dependent_rows(1500, (2,) * 6, seed=1)
    train, valid = x[:1000], x[1000:].double()
    valid[0, 0] = torch.nan
    grown = [learn_strudel(train, num_steps=k, progress=False) for k in range(10)]
    scores = [c.log_prob(valid).mean().item() for c in grown if c.num_edges <= max_edges]
    assert len(scores) < len(grown)  # the edges, not the steps, end it
    found = learn_strudel(train, valid=valid, max_edges=max_edges, progress=False)
    assert found.num_edges <= max_edges
    assert found.log_prob(valid).mean().item() >= scores[-1] - 1e-12 > scores[0] + 1e-3


@pytest.mark.parametrize("patience", [1, 3, 5])
def test_little_patience_goes_on_after_a_better_validation(patience):
    x = dependent_rows(1500, (2,) * 6, seed=1)
    train, valid = x[:1000], x[1000:].double()
    valid[0, 0] = torch.nan
    grown = [learn_strudel(train, num_steps=k * patience, progress=False) for k in range(3)]
    scores = [circuit.log_prob(valid).mean().item() for circuit in grown]
    found = learn_strudel(train, valid=valid, patience=patience, num_steps=30, progress=False)
    assert found.log_prob(valid).mean().item() >= scores[2] > scores[1] > scores[0]


def test_splitting_by_dependence_needs_fewer_edges():
    x = dependent_rows(2000, (2,) * 10, seed=3)
    options = {"smoothing": 0.0, "max_edges": 200, "progress": False}
    by_flow = learn_strudel(x, edge="flow", **options)
    by_dependence = learn_strudel(x, edge="dependence", **options)
    assert by_dependence.num_edges <= 200
    assert by_dependence.log_prob(x).sum() > by_flow.log_prob(x).sum()


def test_max_edges_holds_with_and_without_validation():
    x = dependent_rows(300, (2,) * 8)
    for valid in (None, x[200:]):
        circuit = learn_strudel(x[:200], valid=valid, max_edges=150, progress=False)
        assert circuit.num_edges <= 150
    assert learn_strudel(x, max_edges=150, progress=False).num_edges > 75


def test_components_share_a_structure_and_fit_better_on_the_rows():
    x = dependent_rows(300, (2,) * 6)
    options = {"num_steps": 3, "smoothing": 0.0, "progress": False}
    one = learn_strudel(x, **options)
    torch.manual_seed(0)
    mixture = learn_strudel(x, num_components=3, **options)
    assert holds(mixture, "smooth", "decomposable", "structured")
    assert mixture.log_prob(x).sum() > one.log_prob(x).sum() + 1
    total = mixture.log_prob(every_state((2,) * 6)).logsumexp(0)
    assert_close(total, torch.zeros(()), rtol=0, atol=1e-10)


def test_a_mixture_is_at_rest_under_expectation_maximisation():
    """Iterations of another implementation gain nothing, though they gain much from its start."""
    x = dependent_rows(400, (2, 3, 2, 2, 3, 2))
    torch.manual_seed(0)
    mixture = learn_strudel(x, num_steps=2, num_components=3, smoothing=0.0, progress=False)
    value = mixture.log_prob(x).mean()
    again = fit_parameters(mixture, x, num_steps=20, smoothing=0.0, progress=False)
    assert 0 <= float(again.log_prob(x).mean() - value) < 2e-3


@pytest.mark.parametrize(
    "options",
    [{"edge": "random", "variable": "random"}, {"num_components": 3}],
    ids=["random splits", "mixture"],
)
def test_the_seed_decides(options):
    x = dependent_rows(100, (2,) * 6)

    def learn(seed):
        torch.manual_seed(seed)
        return learn_strudel(x, num_steps=10, progress=False, **options).log_prob(x)

    assert torch.equal(learn(1), learn(1))
    assert not torch.equal(learn(1), learn(2))


@pytest.mark.parametrize("learn", [learn_chow_liu, learn_strudel])
def test_constant_single_and_unseen_states(learn):
    options = {} if learn is learn_chow_liu else {"progress": False}
    one = learn(torch.tensor([[0], [1], [1]]), smoothing=0.0, **options)
    assert_close(one.log_prob(torch.tensor([[1.0]])).exp(), torch.tensor([2 / 3]))
    constant = torch.tensor([[0, 1, 0], [0, 0, 1], [0, 1, 1]])
    circuit = learn(constant, **options)
    assert circuit.cards == (2, 2, 2)
    assert circuit.log_prob(constant).isfinite().all()
    unseen = learn(constant, cards=(3, 2, 2), smoothing=1.0, **options)
    states = every_state((3, 2, 2))
    assert unseen.log_prob(states).isfinite().all()
    assert_close(unseen.log_prob(states).logsumexp(0), torch.zeros(()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("learn", [learn_chow_liu, learn_strudel])
@pytest.mark.parametrize(
    ("data", "options", "error", "text"),
    [
        ([[0.0, 0.5]], {}, OptionError, "row 0 of data has the value 0.5 of variable 1"),
        ([[0, 1], [-2, 1]], {}, OptionError, "row 1 of data has the value -2 of variable 0"),
        (torch.zeros(0, 3), {}, ShapeMismatch, "at least one row"),
        (torch.zeros(3), {}, ShapeMismatch, "expected"),
        ([[0, 3]], {"cards": (2, 3)}, OptionError, "variable 1 has the code 3"),
        ([[0, 1]], {"cards": (2,)}, ShapeMismatch, "cards has 1"),
        ([[0, -1], [1, -1]], {}, OptionError, "variable 1 has no value"),
        ([[0, 1]], {"smoothing": -1.0}, OptionError, "smoothing=-1.0"),
        ([[0, 1]], {"weights": [1.0, 2.0]}, ShapeMismatch, "weights have shape"),
        ([[0, 1]], {"weights": [-1.0]}, OptionError, "not negative"),
    ],
)
def test_what_is_no_data_is_refused(learn, data, options, error, text):
    with pytest.raises(error, match=text):
        learn(torch.as_tensor(data), **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"edge": "most"}, "edge='most'"),
        ({"variable": "x"}, "variable='x'"),
        ({"num_components": 0}, "num_components=0"),
        ({"copy_depth": -1}, "copy_depth=-1"),
        ({"shrinkage": math.nan}, "shrinkage=nan"),
    ],
)
def test_options_that_cannot_be_are_refused(options, text):
    with pytest.raises(OptionError, match=text):
        learn_strudel(torch.tensor([[0, 1], [1, 0]]), **options)


def test_states_may_be_met_in_validation_rows_alone():
    x = torch.tensor([[0, 1], [1, 0], [1, 1]])
    valid = torch.tensor([[2, -1], [0, -1]])
    circuit = learn_strudel(x, valid=valid, progress=False)
    assert circuit.cards == (3, 2)
    assert circuit.log_prob(valid).isfinite().all()


@pytest.mark.parametrize("valid", [torch.zeros(2, 3), torch.zeros(2), torch.zeros(0, 2)])
def test_validation_rows_have_the_columns_of_the_others(valid):
    with pytest.raises(ShapeMismatch, match="valid has shape"):
        learn_strudel(torch.tensor([[0, 1], [1, 0]]), valid=valid, cards=(2, 2), progress=False)


# ---------------------------------------------------------------------- parameters
def independent(card, num_binary):
    return fully_factorised([torch.ones(card)] + [torch.ones(2)] * num_binary)


GAUSSIAN = [
    {"type": "input", "var": 0, "loc": 0.0, "scale": 1.0},
    {"type": "input", "var": 1, "probs": [0.5, 0.5]},
    {"type": "product", "children": [0, 1]},
]


def test_expected_counts_are_frequencies_with_missing_values_shared_out():
    """One step on independent variables: p <- (count + missing p) / N."""
    x = torch.tensor([[0, 1], [4, 0], [4, -1], [2, 1], [-1, 1]])
    fitted = fit_parameters(independent(6, 1), x, num_steps=1)
    first, second = (m.tolist() for m in fitted.marginals())
    assert_close(first, [(n + 1 / 6) / 5 for n in (1, 0, 1, 0, 2, 0)])
    assert_close(second, [(1 + 1 / 2) / 5, (3 + 1 / 2) / 5])


def test_the_number_of_states_costs_no_passes_over_the_rows():
    class Operations(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += 1
            return func(*args, **(kwargs or {}))

    counts = []
    for card in (4, 200):
        with Operations() as seen:
            fit_parameters(independent(card, 3), torch.randint(2, (50, 4)), num_steps=1)
        counts.append(seen.count)
    assert counts[1] <= counts[0] + 10


@pytest.mark.parametrize(
    ("weights", "error"),
    [
        ([-1.0, -1.0, -1.0], OptionError),
        ([1.0, -3.0, 1.0], OptionError),
        ([0.0, 0.0, 0.0], OptionError),
        ([1.0, math.nan, 1.0], OptionError),
        ([1.0, 1.0], ShapeMismatch),
    ],
)
def test_rows_that_count_less_than_nothing_are_refused(weights, error):
    x = torch.tensor([[0, 1], [1, 1], [1, 0]])
    for given_weights in (weights, torch.tensor(weights)):
        with pytest.raises(error, match="weights"):
            fit_parameters(independent(2, 1), x, weights=given_weights)


def test_a_constant_real_column_is_refused_by_number():
    circuit = Circuit.from_nodes(GAUSSIAN)
    x = torch.stack([torch.full((9,), 0.1), torch.arange(9) % 2], 1)
    with pytest.raises(OptionError, match=r"variable 0 is real and has no value but 0.1"):
        fit_parameters(circuit, x)
    x[0] = torch.tensor([7.0, 1.0])
    with pytest.raises(OptionError, match="variable 0"):
        fit_parameters(circuit, x, weights=(torch.arange(9) > 0).double())
    x[:, 0] = torch.nan  # nothing is known: as it was
    fitted = fit_parameters(circuit, x)
    assert float(fitted.scale[0]) == 1.0
    assert_close(fitted.marginals()[1].tolist(), [4 / 9, 5 / 9])


def test_the_narrowest_gaussian_of_weighted_rows_is_that_of_repeated_ones():
    def at(loc):
        return {"type": "input", "var": 0, "loc": loc, "scale": 1.0}

    two = {"type": "sum", "children": [0, 1], "weights": [0.5, 0.5]}
    circuit = Circuit.from_nodes([at(0.0), at(100.0), two])
    x = torch.tensor([[0.0], [0.5], [1.0], [100.0], [torch.nan]]).double()
    times = torch.tensor([1, 1, 1, 50, 3])
    fitted = fit_parameters(circuit, x, weights=times, num_steps=20)
    same = fit_parameters(circuit, x.repeat_interleave(times, 0), num_steps=20)
    spread = x[:4].repeat_interleave(times[:4], 0).std(correction=0)
    assert_close(fitted.scale, same.scale, rtol=1e-12, atol=0)
    assert float(fitted.scale[1].detach()) == pytest.approx(1e-3 * float(spread), rel=1e-9)


def test_parameters_that_carry_derivatives_are_fitted_all_the_same():
    x = torch.tensor([[0, 1], [1, 1], [1, 0]])
    fitted = fit_parameters(independent(2, 1).requires_grad_(), x)
    assert_close(fitted.marginals()[0].tolist(), [1 / 3, 2 / 3])
    assert not any(p.requires_grad for p in fitted.parameters())


# ---------------------------------------------------------------------- containers and options
def test_tables_of_pandas_are_rows_everywhere():
    pd = pytest.importorskip("pandas")
    x = dependent_rows(60, (2, 3, 2))
    frame = pd.DataFrame(x.numpy())
    circuit = learn_chow_liu(x, smoothing=0.0)
    refitted = fit_parameters(circuit, frame)
    assert_close(refitted.log_prob(x), circuit.log_prob(x), rtol=0, atol=1e-9)
    found = [learn_strudel(x, valid=v, num_steps=5, progress=False) for v in (x, frame)]
    assert_close(found[0].log_prob(x), found[1].log_prob(x), rtol=0, atol=0)


@pytest.mark.parametrize("learn", [learn_chow_liu, learn_strudel])
def test_a_column_that_numbers_the_rows_is_refused_by_number(learn):
    x = torch.cat([dependent_rows(20, (2, 2)), torch.full((20, 1), 2_000_000)], 1)
    with pytest.raises(OptionError, match=r"variable 2 alone 2,000,001.*GB"):
        learn(x)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_steps": "a"}, "num_steps='a'"),
        ({"num_steps": None}, "num_steps=None"),
        ({"max_edges": math.inf}, "max_edges=inf"),
        ({"patience": math.nan}, "patience=nan"),
        ({"max_edges": 1}, "max_edges=1, but the tree"),
    ],
)
def test_numbers_that_are_no_counts_are_refused(options, text):
    with pytest.raises(OptionError, match=text):
        learn_strudel(dependent_rows(20, (2, 2, 2)), progress=False, **options)


@pytest.mark.parametrize("num_components", [0, 1, 2])
def test_memory_grows_with_the_square_of_the_states(num_components):
    """0 is the tree; a table per state of a variable of c states is c^2 numbers, and there are some
    copies of it."""
    c = 200
    x = torch.arange(c).unsqueeze(1).expand(c, 2)
    options = {"num_steps": 1, "num_components": num_components, "progress": False}
    learn_chow_liu(x[:5])  # what is imported on the way does not count
    tracemalloc.start()
    circuit = learn_strudel(x, **options) if num_components else learn_chow_liu(x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert circuit.cards == (c, c)
    assert peak < 80 * 8 * c**2


@pytest.mark.parametrize("learn", [learn_chow_liu, learn_strudel, fit_parameters])
def test_weights_whose_sum_overflows_are_refused(learn, recwarn):
    x = torch.randint(2, (50, 2))
    given = (independent(2, 1), x) if learn is fit_parameters else (x,)
    with pytest.raises(OptionError, match=r"weights of up to 1e\+307 add up .* by one number"):
        learn(*given, weights=torch.full((50,), 1e307, dtype=torch.float64))
    assert not recwarn.list


@pytest.mark.parametrize("smoothing", [1e100, 1e155, 1e300])
def test_pseudo_observations_without_end_make_every_state_alike(smoothing):
    circuit = learn_chow_liu(dependent_rows(20, (2, 3, 2)), cards=(2, 3, 2), smoothing=smoothing)
    expected = torch.full((12,), -math.log(12))
    assert_close(circuit.log_prob(every_state((2, 3, 2))), expected, rtol=0, atol=1e-12)


def test_counts_beyond_the_range_of_floating_point_are_refused():
    x = dependent_rows(20, (2, 3, 2))
    with pytest.raises(OptionError, match="divide weights and smoothing by one number"):
        learn_chow_liu(x, smoothing=1e308)
    with pytest.raises(OptionError, match="divide weights and smoothing by one number"):
        learn_chow_liu(x, weights=torch.full((20,), 1e306))
