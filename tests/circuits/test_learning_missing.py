"""Parameters by EM, and learning where values are missing."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.testing import assert_close

from pyrograph.circuits import Circuit, fully_factorised, tree_network
from pyrograph.circuits.learning import fit_parameters, learn_chow_liu, learn_strudel
from pyrograph.circuits.learning.completion import complete_rows
from pyrograph.circuits.learning.table import Table, read_table
from pyrograph.errors import NonFiniteDensity, OptionError, ShapeMismatch, ZeroMass


def rows_of_a_tree(n, seed=0):
    """Six binary variables, each a noisy copy of an earlier one."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2, (n, 6))
    for v, parent in ((1, 0), (2, 0), (3, 1), (4, 1), (5, 2)):
        x[:, v] = np.where(rng.random(n) < 0.8, x[:, parent], x[:, v])
    return torch.tensor(x)


def punched(x, share, seed=1):
    holes = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < share
    return torch.where(holes, -1, x)


def mixture_of_products():
    """Two components of three variables, of which the last is real."""
    nodes = []
    for probs, loc in ((0.3, -1.0), (0.6, 1.0)):
        nodes += [
            {"type": "input", "var": 0, "probs": [probs, 1 - probs]},
            {"type": "input", "var": 1, "probs": [0.2, 0.5 * probs, 0.8 - 0.5 * probs]},
            {"type": "input", "var": 2, "loc": loc, "scale": 1.0},
        ]
        nodes.append({"type": "product", "children": [len(nodes) - 3 + k for k in range(3)]})
    nodes.append({"type": "sum", "children": [3, 7], "weights": [0.4, 0.6]})
    return Circuit.from_nodes(nodes)


def mixed_rows(n=60):
    g = torch.Generator().manual_seed(0)
    which = torch.rand(n, generator=g) < 0.3
    real = torch.randn(n, generator=g) * 0.5 + torch.where(which, -2.0, 1.5)
    codes = [
        torch.where(which, 0, torch.randint(2, (n,), generator=g)).double(),
        torch.where(which, 2, torch.randint(3, (n,), generator=g)).double(),
    ]
    x = torch.stack([*codes, real], 1)
    x[torch.rand(x.shape, generator=g) < 0.2] = torch.nan
    return x


def test_em_never_lowers_the_likelihood():
    x, circuit = mixed_rows(), mixture_of_products()
    before = circuit.log_prob(x).sum()
    for _ in range(30):
        circuit = fit_parameters(circuit, x, num_steps=1)
        after = circuit.log_prob(x).sum()
        assert after >= before - 1e-10
        before = after
    assert_close(circuit.log_mass(), torch.zeros(()), rtol=0, atol=1e-12)


def test_one_em_step_equals_responsibilities_by_hand():
    x, circuit = mixed_rows(), mixture_of_products()
    fitted = fit_parameters(circuit, x, num_steps=1)
    nodes = circuit.to_nodes()
    log_p = torch.zeros(len(x), 2)
    for k, root in enumerate((0, 4)):
        for v in range(2):
            table = torch.tensor(nodes[root + v]["probs"])
            seen = ~x[:, v].isnan()
            log_p[seen, k] += table[x[seen, v].long()].log()
        seen = ~x[:, 2].isnan()
        loc = torch.tensor(nodes[root + 2]["loc"])
        log_p[seen, k] += torch.distributions.Normal(loc, 1.0).log_prob(x[seen, 2])
    r = torch.softmax(log_p + torch.tensor([0.4, 0.6]).log(), 1)
    assert_close(fitted.log_weights.exp(), r.mean(0))
    seen = ~x[:, 2].isnan()
    loc = (r[seen] * x[seen, 2:]).sum(0) / r[seen].sum(0)
    square = (r[seen] * (x[seen, 2:] - loc) ** 2).sum(0) / r[seen].sum(0)
    real = fitted.loc.isfinite()
    assert_close(fitted.loc[real], loc)
    assert_close(fitted.scale[real], square.sqrt())
    # missing codes count as the input has them
    old = torch.tensor(nodes[0]["probs"])
    seen = ~x[:, 0].isnan()
    count = torch.stack([r[seen & (x[:, 0] == t), 0].sum() for t in range(2)])
    expected = count + r[~seen, 0].sum() * old
    assert_close(fitted.log_table[0, :2].exp(), expected / expected.sum())


def test_em_on_complete_rows_of_a_deterministic_circuit_is_done_after_one_step():
    x = rows_of_a_tree(200)
    exact = learn_chow_liu(x, smoothing=0.0)
    disturbed = learn_chow_liu(x, smoothing=30.0)
    fitted = fit_parameters(disturbed, x, num_steps=1)
    assert_close(fitted.log_prob(x), exact.log_prob(x), rtol=0, atol=1e-12)


def test_pseudo_observations_follow_the_prior():
    x = rows_of_a_tree(50)
    circuit = learn_chow_liu(x)
    same = fit_parameters(circuit, x, smoothing=1e12, prior=circuit, num_steps=2)
    assert_close(same.log_prob(x), circuit.log_prob(x), rtol=0, atol=1e-8)
    even = fit_parameters(circuit, x, smoothing=1e12, num_steps=2)
    assert_close(even.log_prob(x), torch.full((50,), -6 * np.log(2)), rtol=0, atol=1e-8)


def test_em_leaves_the_circuit_it_starts_from_alone():
    circuit, x = mixture_of_products(), mixed_rows()
    before = [p.clone() for p in circuit.parameters()]
    fit_parameters(circuit, x, num_steps=3)
    for p, old in zip(circuit.parameters(), before, strict=True):
        assert torch.equal(p.nan_to_num(7.0), old.nan_to_num(7.0))


def test_em_drops_what_is_impossible():
    nodes = mixture_of_products().to_nodes()
    nodes[-1]["weights"] = [0.0, 1.0]
    x = mixed_rows()
    fitted = fit_parameters(Circuit.from_nodes(nodes), x, num_steps=3)
    alone = fit_parameters(
        Circuit.from_nodes(
            mixture_of_products().to_nodes()[4:7] + [{"type": "product", "children": [0, 1, 2]}]
        ),
        x,
        num_steps=3,
    )
    assert_close(fitted.log_prob(x), alone.log_prob(x))


def test_em_names_a_row_of_probability_zero():
    nodes = [{"type": "input", "var": 0, "probs": [1.0, 0.0]}]
    with pytest.raises(NonFiniteDensity, match="row 1 has"):
        fit_parameters(Circuit.from_nodes(nodes), torch.tensor([[0], [1]]))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_steps": 0}, OptionError),
        ({"smoothing": -1.0}, OptionError),
        ({"weights": torch.ones(3)}, ShapeMismatch),
        (
            {"prior": Circuit.from_nodes([{"type": "input", "var": 0, "probs": [1, 1]}])},
            ShapeMismatch,
        ),
    ],
)
def test_em_refuses_options_that_do_not_fit(options, error):
    x = rows_of_a_tree(20)
    with pytest.raises(error):
        fit_parameters(learn_chow_liu(x), x, **options)


def test_a_tree_from_rows_with_holes_is_a_maximum_of_their_likelihood():
    x = punched(rows_of_a_tree(400), 0.3)
    circuit = learn_chow_liu(x, smoothing=0.0)
    assert all(circuit.properties().values())
    circuit.requires_grad_()
    likelihood = circuit.log_prob(x).sum() - len(x) * circuit.log_mass()
    (gradient,) = torch.autograd.grad(likelihood, circuit.log_weights)
    assert gradient.abs().max() < 1.0  # of 400 rows
    start = learn_chow_liu(rows_of_a_tree(400), smoothing=0.0).requires_grad_()
    likelihood = start.log_prob(x).sum() - len(x) * start.log_mass()
    (gradient,) = torch.autograd.grad(likelihood, start.log_weights)
    assert gradient.abs().max() > 3.0


def highest_likelihood_of_a_chain(x, num_starts=10):
    """Of binary x_0 - x_1 - x_2 and rows with holes: all states, and a general optimiser."""
    states = np.array(list(itertools.product(range(2), repeat=3)))
    rows = np.array(
        [[all(a in (-1, b) for a, b in zip(r, t, strict=True)) for t in states] for r in x]
    )

    def loss(logits):
        p = 1 / (1 + np.exp(-logits))  # p(x_1), p(x_0 | x_1), p(x_2 | x_1)
        one = [np.full(8, p[0]), p[1 + states[:, 1]], p[3 + states[:, 1]]]
        joint = np.prod([np.where(states[:, v], q, 1 - q) for v, q in zip((1, 0, 2), one)], 0)
        return -np.log(rows @ joint).sum()

    starts = np.random.default_rng(0).normal(size=(num_starts, 5))
    return -min(minimize(loss, start, bounds=[(-15, 15)] * 5).fun for start in starts)


def test_pairs_that_are_never_present_together_leave_every_row_possible_without_a_prior():
    # the middle of the last row is missing, and the pairs of the others would exclude both values
    x = torch.tensor([[0, 0, -1], [1, 1, -1], [-1, 0, 0], [-1, 1, 1], [0, -1, 1]])
    circuit = learn_chow_liu(x, smoothing=0.0)
    expected = highest_likelihood_of_a_chain(x.numpy())
    assert circuit.log_prob(x).sum().item() == pytest.approx(expected, abs=1e-4)
    split = learn_strudel(x, smoothing=0.0, progress=False)
    assert split.log_prob(x).isfinite().all()


def shares(table, v=slice(None)):
    """Of a table's total weight, by row."""
    rows = map(tuple, table.codes[:, v].tolist())
    return dict(zip(rows, table.weight / table.weight.sum(), strict=True))


@pytest.mark.parametrize(
    ("weight", "num_draws", "error"),
    # all eight completions, as there are as many draws; and draws that are fewer
    [(1.0, 8, 0.0), (2.5, 4, 0.0), (1.0, 7, 1.0), (0.1, 7, 1.0), (3.0, 2, 1.0)],
)
def test_rows_are_completed_as_the_circuit_has_the_rest(weight, num_draws, error):
    x = rows_of_a_tree(200)
    circuit = learn_chow_liu(x)
    row = np.array([[1, -1, -1, 0, -1, 1]])
    table = Table(row, (2,) * 6, np.array([weight]))
    torch.manual_seed(0)
    count = 400 if error else 1
    parts = [complete_rows(circuit, table, num_draws) for _ in range(count)]
    found = dict.fromkeys(itertools.product(range(2), repeat=6), 0.0)
    for part in parts:
        assert part.weight.sum() == pytest.approx(weight, rel=1e-12)
        assert (part.codes[:, [0, 3, 5]] == [1, 0, 1]).all()
        for codes, share in shares(part).items():
            found[codes] += share / count
    # Bayes' rule over the enumerated states
    log_p = {c: float(circuit.log_prob(torch.tensor(c))) for c in found}
    agree = [c for c in found if (c[0], c[3], c[5]) == (1, 0, 1)]
    total = sum(np.exp(log_p[c]) for c in agree)
    for codes in agree:
        p = np.exp(log_p[codes]) / total
        noise = 4 * (p / (count * num_draws)) ** 0.5
        assert found[codes] == pytest.approx(p, abs=error * noise + 1e-12)


def test_heavy_rows_have_more_draws():
    """2^12 completions that are as likely: of n draws nearly all are distinct."""
    circuit = fully_factorised([[0.5, 0.5]] * 13)
    rows = np.full((2, 13), -1)
    rows[:, 0] = 0, 1
    torch.manual_seed(0)
    drawn = complete_rows(circuit, Table(rows, (2,) * 13, np.array([1.0, 100.0])), 5)
    counts = np.bincount(drawn.codes[:, 0])
    assert counts[0] == 5 and 430 < counts[1] <= 500
    assert drawn.weight[drawn.codes[:, 0] == 1].sum() == pytest.approx(100.0)


@pytest.mark.parametrize("weight", [1e5, 1e300])
def test_draws_of_heavy_rows_are_bounded(weight, monkeypatch):
    monkeypatch.setattr("pyrograph.circuits.learning.completion.MOST_NUMBERS", 13 * 1000)
    circuit = fully_factorised([[0.5, 0.5]] * 13)
    rows = np.full((2, 13), -1)
    rows[:, 0] = 0, 1
    drawn = complete_rows(circuit, Table(rows, (2,) * 13, np.array([weight, 3 * weight])), 5)
    assert len(drawn.codes) <= 1000
    assert drawn.weight[drawn.codes[:, 0] == 1].sum() == pytest.approx(3 * weight)


def test_what_is_learnt_does_not_hang_on_the_draws_of_a_row_that_occurs_often():
    """x_0 is never present beside x_1 = 0: by symmetry it is even there."""
    often = [[torch.nan, 0.0]] * 2000
    x = torch.tensor([[0.0, 1.0]] * 10 + [[1.0, 1.0]] * 10 + often)
    for seed in range(3):
        torch.manual_seed(seed)
        circuit = learn_strudel(x, num_steps=5, progress=False)
        assert_close(
            circuit.condition({1: 0}).marginals()[0], torch.full((2,), 0.5), rtol=0, atol=1e-9
        )


def test_rows_without_holes_are_not_drawn_again():
    x = rows_of_a_tree(20)
    table = read_table(x)
    again = complete_rows(learn_chow_liu(x), table, 5)
    assert (again.codes == table.codes).all()
    assert (again.weight == table.weight).all()


@pytest.mark.parametrize("components", [1, 2])
def test_splits_from_rows_with_holes_beat_the_tree_on_fresh_rows(components):
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.integers(0, 2, (1500, 6)))
    x[:, 2] = x[:, 0] ^ x[:, 1]  # no tree has this
    train, valid, fresh = punched(x[:800], 0.1), punched(x[800:1000], 0.1), x[1000:]
    circuit = learn_strudel(
        train, valid=valid, num_steps=40, num_components=components, progress=False
    )
    tree = learn_chow_liu(train)
    assert circuit.log_prob(fresh).mean() > tree.log_prob(fresh).mean() + 0.1
    assert_close(circuit.log_mass(), torch.zeros(()), rtol=0, atol=1e-10)
    assert circuit.properties()["deterministic"] == (components == 1)


def test_few_steps_are_validated_too_where_validation_rows_have_holes():
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.integers(0, 2, (1000, 3)))
    x[:, 2] = x[:, 0] ^ x[:, 1]
    valid = punched(x[800:], 0.1)
    circuit = learn_strudel(x[:800], valid=valid, num_steps=3, progress=False)
    assert circuit.log_prob(x).mean() > learn_chow_liu(x[:800]).log_prob(x).mean() + 0.5


def test_nan_and_minus_one_are_the_same():
    x = punched(rows_of_a_tree(60), 0.2)
    as_nan = torch.where(x < 0, torch.nan, x.double())
    assert torch.equal(learn_chow_liu(x).log_prob(x), learn_chow_liu(as_nan).log_prob(x))


@pytest.mark.parametrize("learn", [learn_chow_liu, learn_strudel])
def test_a_column_without_values_has_its_prior_or_is_refused(learn):
    options = {} if learn is learn_chow_liu else {"progress": False}
    x = rows_of_a_tree(40)
    x[:, 4] = -1
    circuit = learn(x, cards=(2, 2, 2, 2, 3, 2), smoothing=1.0, **options)
    for given in ({}, {0: 1, 5: 0}):
        found = circuit.condition(given).marginals()[4]
        assert_close(found, torch.full((3,), 1 / 3), rtol=0, atol=1e-9)
    assert all(circuit.properties().values())
    with pytest.raises(OptionError, match="variable 4 has no value"):
        learn(x, cards=(2, 2, 2, 2, 3, 2), smoothing=0.0, **options)


def three_inputs(weights, first=(0.3, 0.7)):
    """A sum of inputs of one variable."""
    nodes = [{"type": "input", "var": 0, "probs": p} for p in (first, (0.6, 0.4), (0.1, 0.9))]
    return Circuit.from_nodes([*nodes, {"type": "sum", "children": [0, 1, 2], "weights": weights}])


@pytest.mark.parametrize(
    ("own", "prior", "expected"),
    [
        ([0.2, 0.2, 0.6], [0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
        ([0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.4, 0.6, 0.0]),
        ([0.2, 0.3, 0.5], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]),
        ([0.0, 0.5, 0.5], [0.5, 0.2, 0.3], [0.0, 0.4, 0.6]),
        ([0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 1.0, 0.0]),
    ],
)
def test_a_prior_is_followed_edge_by_edge_where_weights_are_zero(own, prior, expected):
    """So many pseudo-observations decide: the fit has the prior's weights and tables."""
    reference = three_inputs(prior, first=(0.8, 0.2))
    x = torch.tensor([[0], [1], [1]])
    fitted = fit_parameters(three_inputs(own), x, smoothing=1e12, prior=reference)
    share = np.dot(expected, [0.8, 0.6, 0.1])
    assert float(fitted.log_prob([[0]]).exp()) == pytest.approx(share, abs=1e-9)


def test_a_prior_gives_no_probability_to_what_has_none():
    rows, prior = torch.tensor([[0], [0]]), fully_factorised([[0.2, 0.3, 0.5]])
    fitted = fit_parameters(fully_factorised([[0.5, 0.5, 0.0]]), rows, smoothing=10.0, prior=prior)
    # ten pseudo-observations over the two states that are possible, 4 : 6
    assert_close(fitted.log_prob([[0], [1], [2]]).exp(), torch.tensor([0.5, 0.5, 0.0]))


def chain_of_three(parents):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2,) if p is None else (2, 2) for p in parents]
    return tree_network(parents, [torch.rand(s, generator=generator) + 0.1 for s in shapes])


GAUSSIANS = Circuit.from_nodes([{"type": "input", "var": 0, "loc": 0.0, "scale": 1.0}])


@pytest.mark.parametrize(
    ("circuit", "prior", "text"),
    [
        (
            chain_of_three([None, 0, 1]),
            chain_of_three([2, 0, None]),
            r"unit \d+: input of variable \d in the prior, input of variable \d in the circuit",
        ),
        (
            fully_factorised([[0.5, 0.5], [0.2, 0.3, 0.5]]),
            fully_factorised([[0.2, 0.3, 0.5], [0.5, 0.5]]),
            "variable 0: 3 states in the prior, 2 states in the circuit",
        ),
        (fully_factorised([[0.5, 0.5]]), GAUSSIANS, "variable 0: real in the prior, 2 states in"),
        (GAUSSIANS, fully_factorised([[0.5, 0.5]]), "variable 0: 2 states in the prior, real in"),
        (
            fully_factorised([[0.5, 0.5]] * 2),
            fully_factorised([[0.5, 0.5]] * 3),
            "number of variables: 3 in the prior, 2 in the circuit",
        ),
        (
            # the same once both have lost what has no weight, but not the same inputs
            three_inputs([0.5, 0.5, 0.0]),
            three_inputs([0.0, 0.5, 0.5]).normalized(),
            "number of units: 3 in the prior, 4 in the circuit",
        ),
        (
            three_inputs([0.2, 0.3, 0.5]),
            Circuit.from_nodes(
                [
                    *three_inputs([0.2, 0.3, 0.5]).to_nodes()[:2],
                    {"type": "sum", "children": [0, 1], "weights": [0.5, 0.5]},
                    {"type": "sum", "children": [1, 2], "weights": [0.5, 0.5]},
                ]
            ),
            "unit 2: sum in the prior, input of variable 0 in the circuit",
        ),
        (
            three_inputs([0.2, 0.3, 0.5]),
            Circuit.from_nodes(
                [
                    *three_inputs([0.2, 0.3, 0.5]).to_nodes()[:3],
                    {"type": "sum", "children": [1, 0, 2], "weights": [0.2, 0.3, 0.5]},
                ]
            ),
            r"children of unit 3: \[1, 0, 2\] in the prior, \[0, 1, 2\] in the circuit",
        ),
    ],
)
def test_a_prior_of_another_structure_is_refused_in_words(circuit, prior, text):
    x = torch.zeros(2, circuit.num_variables)
    if circuit.cards[0] is None:
        x = torch.tensor([[0.0], [1.0]])
    with pytest.raises(ShapeMismatch, match=text):
        fit_parameters(circuit, x, smoothing=1.0, prior=prior)


def test_a_prior_without_mass_is_refused():
    circuit = three_inputs([0.2, 0.3, 0.5])
    with pytest.raises(ZeroMass, match="prior circuit has mass zero"):
        fit_parameters(circuit, [[0]], smoothing=1.0, prior=three_inputs([0.0, 0.0, 0.0]))


def test_a_column_without_values_leaves_what_is_learnt_of_the_others_as_it_is():
    x = rows_of_a_tree(40)
    others = [0, 1, 2, 3, 5]
    without = learn_strudel(x[:, others], progress=False)
    x[:, 4] = -1
    circuit = learn_strudel(x, cards=(2, 2, 2, 2, 3, 2), progress=False)
    rows = torch.randint(2, (20, 6))
    expected = without.log_prob(rows[:, others]) - math.log(3)
    assert_close(circuit.log_prob(rows), expected, rtol=0, atol=1e-9)


def test_data_without_any_value_are_uniform():
    x = torch.full((7, 3), torch.nan)
    circuit = learn_strudel(x, cards=(2, 3, 2), progress=False)
    every = list(itertools.product(range(2), range(3), range(2)))
    assert_close(
        circuit.log_prob(torch.tensor(every)), torch.full((12,), -math.log(12)), rtol=0, atol=1e-9
    )


def test_columns_without_values_count_among_the_edges():
    x = rows_of_a_tree(100)
    x[:, 4] = -1
    options = {"cards": (2,) * 6, "progress": False, "valid": rows_of_a_tree(50)}
    for most in (30, 40):
        assert learn_strudel(x, max_edges=most, **options).num_edges <= most
    with pytest.raises(OptionError, match=r"tree that every circuit grows from has \d+ edges"):
        learn_strudel(x, max_edges=5, **options)
