"""What a demanding user tries: other containers, degenerate and huge circuits, numbers at the edge.

Truth is enumeration, numpy and scikit-learn.
"""

import copy
import itertools
import math
import pickle
import time

import matplotlib
import numpy as np
import pytest
import torch
from torch.testing import assert_close

from pyrograph.circuits import (
    RBF,
    Circuit,
    Delta,
    ExpectedSVR,
    Hamming,
    KernelCircuit,
    compatible,
    expected_kernel,
    fully_factorised,
    kdsd,
    learn_chow_liu,
    mixture,
    squared_mmd,
    stein_gram,
    tree_network,
)
from pyrograph.errors import (
    DataFormatError,
    InvalidCircuit,
    OptionError,
    ShapeMismatch,
    UnsupportedFactor,
    ZeroMass,
)
from tests.circuits.random_circuits import deterministic_circuit, states

matplotlib.use("Agg")


def unit(var, *probs):
    return {"type": "input", "var": var, "probs": list(probs)}


def mixing(children, weights):
    return {"type": "sum", "children": children, "weights": weights}


def coin():
    return Circuit.from_nodes([unit(0, 0.2, 0.8)])


def chain(count):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2,)] + [(2, 2)] * (count - 1)
    draws = [torch.rand(s, generator=generator, dtype=torch.float64) for s in shapes]
    tables = [t / t.sum(-1, keepdim=True) for t in draws]
    return tree_network([None, *range(count - 1)], tables), tables


# ---------------------------------------------------------------------- containers
def test_one_unit_is_a_circuit_with_all_answers():
    c = coin()
    assert c.num_edges == 0 and all(c.properties().values())
    assert_close(c.marginals()[0], torch.tensor([0.2, 0.8], dtype=torch.float64))
    state, value = c.most_probable()
    assert state.tolist() == [1] and math.isclose(float(value.exp()), 0.8)
    assert_close(expected_kernel(c, c, Delta()).item(), 0.04 + 0.64)
    assert_close(kdsd(c, c, Hamming()).item(), 0.0)


def test_a_variable_of_one_state_is_certain():
    c = Circuit.from_nodes(
        [unit(0, 3.0), unit(1, 0.5, 0.5), {"type": "product", "children": [0, 1]}]
    )
    assert_close(c.log_mass().exp().item(), 3.0)
    assert c.sample(4)[:, 0].tolist() == [0] * 4
    assert_close(kdsd(c, c, Hamming()).item(), 0.0)


@pytest.mark.parametrize(
    "kind", ["list", "array", "bytes", "read-only", "float32", "objects", "frame", "bool"]
)
def test_points_may_come_in_any_container(kind):
    c, _ = chain(3)
    x = np.array([[0, 1, 1], [1, 0, 1]])
    truth = c.log_prob(torch.tensor(x))
    frozen = x.copy()
    frozen.setflags(write=False)
    given = {
        "list": x.tolist(),
        "array": x,
        "bytes": x.astype(np.uint8),
        "read-only": frozen,
        "float32": x.astype(np.float32),
        "objects": x.astype(object),
        "bool": x.astype(bool),
    }
    if kind == "frame":
        given["frame"] = pytest.importorskip("pandas").DataFrame(x, columns=list("abc"))
    assert_close(c.log_prob(given[kind]), truth)
    assert_close(c.marginals(given[kind])[1], torch.eye(2, dtype=torch.float64)[x[:, 1]])
    assert c.most_probable(given[kind])[0].tolist() == x.tolist()
    assert stein_gram(c, given[kind]).shape == (2, 2)


def test_missing_is_nan_none_or_minus_one_alike():
    c, tables = chain(2)
    total = (tables[0] @ tables[1]).log()[1]
    for hole in (math.nan, -1, None):
        assert_close(c.log_prob([[hole, 1]])[0], total)


def test_text_is_no_table_of_numbers():
    with pytest.raises(OptionError, match="table of numbers"):
        coin().log_prob([["a"]])


def test_nothing_asked_gives_nothing():
    c, _ = chain(3)
    none = torch.zeros(0, 3)
    assert c.log_prob(none).shape == (0,)
    assert c.sample(0).shape == (0, 3)
    assert c.fill_in(none).shape == (0, 3)
    assert [part.shape[0] for part in c.most_probable(none)] == [0, 0]
    assert stein_gram(c, none).shape == (0, 0)


@pytest.mark.parametrize("wrong", [-1, 2.5, (2, 3), "two"])
def test_numbers_of_samples_that_are_none_are_refused(wrong):
    with pytest.raises(OptionError, match="num_samples"):
        coin().sample(wrong)


@pytest.mark.parametrize("evidence", [[1], {"a": 1}, {1: 0}, {-1: 0}, {0: 1.5}, {0: 2}])
def test_evidence_that_names_no_state_is_refused(evidence):
    with pytest.raises(OptionError):
        coin().condition(evidence)


# ---------------------------------------------------------------------- nodes
@pytest.mark.parametrize(
    "nodes",
    [
        [3],
        [unit("a", 0.5, 0.5)],
        [unit(0.5, 0.5, 0.5)],
        [{"type": "input", "var": 0, "probs": 0.5}],
        [{"type": "input", "var": 0, "probs": [[0.1, 0.9]]}],
        [{"type": "input", "var": 0, "log_probs": [0.0, math.inf]}],
        [{"type": "input", "var": 0, "log_probs": [math.nan, 0.0]}],
        [{"type": "input", "var": 0, "loc": 0.0, "scale": math.inf}],
        [unit(0, 0.5, 0.5), {"type": "sum", "children": [0]}],
        [unit(0, 0.5, 0.5), {"type": "sum", "children": 0, "weights": [1.0]}],
    ],
)
def test_nodes_that_cannot_be_are_refused_as_invalid_circuits(nodes):
    with pytest.raises(InvalidCircuit, match="node"):
        Circuit.from_nodes(nodes)


@pytest.mark.parametrize("scale", [900.0, -900.0])
def test_nodes_carry_weights_that_no_float_reaches(scale):
    nodes = [
        unit(0, 0.5, 0.5),
        unit(0, 0.1, 0.9),
        {"type": "sum", "children": [0, 1], "log_weights": [scale, scale + math.log(3)]},
    ]
    c = Circuit.from_nodes(nodes)
    again = Circuit.from_nodes(c.to_nodes())
    assert math.isclose(float(again.log_mass()), scale + math.log(4))
    assert_close(again.marginals()[0], torch.tensor([0.2, 0.8], dtype=torch.float64))
    assert abs(float(squared_mmd(c, again, Hamming()))) < 1e-12
    # E k(x, y) and the discrepancy of [0.2, 0.8] against [0.5, 0.5], by hand
    far = Circuit.from_nodes([unit(0, 0.5, 0.5), mixing([0], [1.0])])
    far.log_weights.data[0] = -scale
    like = (0.5 + 0.5 * math.exp(-1)) * 1.0
    assert math.isclose(float(expected_kernel(c, far, Hamming())), 4 * like, rel_tol=1e-9)
    signed = np.array([0.8 - 0.2, 0.2 - 0.8])
    k = np.array([[1, math.exp(-1)], [math.exp(-1), 1]])
    assert math.isclose(float(kdsd(c, far, Hamming())), signed @ k @ signed, rel_tol=1e-9)
    assert_close(stein_gram(far, [[0], [1], [-1]]), stein_gram(far.normalized(), [[0], [1], [-1]]))


def test_nodes_of_ordinary_numbers_are_written_as_they_are_read():
    nodes = [unit(0, 0.25, 0.75), unit(0, 1.0, 0.0), mixing([0, 1], [0.0, 2.0])]
    assert Circuit.from_nodes(nodes).to_nodes() == nodes


def test_a_product_of_one_child_counts_as_the_child_in_nodes_and_text(tmp_path):
    path = tmp_path / "c.txt"
    path.write_text(
        "circuit 1 float64\nvariables 2\ninput 0 log_probs -0.5 -1.5\nproduct 0\nproduct 1\n"
    )
    nodes = [unit(0, math.exp(-0.5), math.exp(-1.5)), {"type": "product", "children": [0]}]
    for c in (Circuit.load(path), Circuit.from_nodes(nodes)):
        assert c.properties()["structured"]
        assert_close(c.log_prob([[0], [1]]), torch.tensor([-0.5, -1.5], dtype=torch.float64))


# ---------------------------------------------------------------------- numbers that change
def test_determinism_follows_weights_that_become_zero():
    c = Circuit.from_nodes([unit(0, 0.5, 0.5), unit(0, 0.1, 0.9), mixing([0, 1], [0.4, 0.6])])
    with pytest.raises(InvalidCircuit, match="deterministic"):
        c.most_probable()
    c.log_weights.data[0] = -math.inf
    assert c.properties()["deterministic"]
    assert_close(c.most_probable()[1].exp().item(), 0.54)
    c.log_weights.data[0] = 0.0
    assert not c.properties()["deterministic"]
    with pytest.raises(InvalidCircuit, match="deterministic"):
        kdsd(c, c, Hamming())


def test_derivatives_of_kdsd_are_finite_where_inputs_are_indicators():
    generator = torch.Generator().manual_seed(0)
    p = deterministic_circuit((2, 3), generator).requires_grad_()
    q = deterministic_circuit((2, 3), generator)
    kdsd(q, p, Hamming()).backward()
    assert p.log_table.grad.isfinite().all() and p.log_weights.grad.isfinite().all()
    step = 1e-6
    moved = copy.deepcopy(p).requires_grad_(False)
    moved.log_weights[0] += step
    slope = (kdsd(q, moved, Hamming()) - kdsd(q, p, Hamming())) / step
    assert_close(p.log_weights.grad[0], slope.detach(), rtol=1e-4, atol=1e-8)


def test_numbers_of_one_circuit_have_one_dtype():
    c = coin()
    with pytest.raises(InvalidCircuit, match="dtypes"):
        Circuit(c.units, c.domain, c.log_weights.data.float(), c.log_table.data, c.loc, c.scale)


def test_a_circuit_that_is_zero_everywhere_has_no_discrepancy():
    zero = Circuit.from_nodes([unit(0, 0.5, 0.5), unit(0, 0.1, 0.9), mixing([0, 1], [0.0, 0.0])])
    for ask in (
        lambda: squared_mmd(coin(), zero, Hamming()),
        lambda: kdsd(zero, coin(), Hamming()),
        lambda: zero.sample(2),
    ):
        with pytest.raises(ZeroMass):
            ask()
    assert expected_kernel(zero, coin(), Hamming()) == 0


# ---------------------------------------------------------------------- size
def test_a_chain_of_thousands_of_variables_is_answered_in_seconds():
    c, tables = chain(2500)
    began = time.perf_counter()
    assert c.properties()["deterministic"] and compatible(c, c)
    # a quarter of a minute where regions cost the square of the length
    assert time.perf_counter() - began < 5
    hand = math.log(tables[0][0]) + sum(math.log(t[0, 0]) for t in tables[1:])
    assert math.isclose(float(c.log_prob(torch.zeros(2500))), hand, rel_tol=1e-9)


def test_delta_of_a_long_chain_is_the_product_of_transfer_matrices():
    c, tables = chain(1000)
    # sum_x p(x)^2 along the chain, scaled so that it stays in range
    row, log = tables[0] ** 2, 0.0
    for table in tables[1:]:
        row = row @ table**2
        log += math.log(row.sum())
        row = row / row.sum()
    assert math.isclose(math.log(float(expected_kernel(c, c, Delta()))), log, rel_tol=1e-9)


def test_a_sum_of_tens_of_thousands_of_children_meets_another_circuit():
    count = 30_000
    rows = np.random.default_rng(0).dirichlet((1, 1), count)
    weights = np.random.default_rng(1).dirichlet(np.ones(count))
    nodes = [unit(0, *row) for row in rows.tolist()]
    wide = Circuit.from_nodes([*nodes, mixing(list(range(count)), weights.tolist())])
    mean = weights @ rows
    assert_close(wide.log_prob([[0], [1]]).exp().numpy(), mean)
    assert_close(expected_kernel(coin(), wide, Delta()).item(), float(mean @ [0.2, 0.8]))


def test_sums_above_sums_mix_like_matrices():
    rng = np.random.default_rng(0)
    inputs, nodes = rng.uniform(size=(40, 3)), []
    nodes += [unit(0, *row) for row in inputs.tolist()]
    value, rows = inputs, list(range(40))
    for _ in range(4):  # each level reads the one before and the inputs
        weight = rng.uniform(size=(40, len(rows)))
        first = len(nodes)
        nodes += [mixing(rows, w) for w in weight.tolist()]
        value = np.concatenate([weight @ value, inputs])
        rows = [*range(first, first + 40), *range(40)]
    top = rng.uniform(size=len(rows))
    c = Circuit.from_nodes([*nodes, mixing(rows, top.tolist())])
    truth = top @ value
    assert_close(c.log_prob([[0], [1], [2]]).exp().numpy(), truth)
    k = RBF(2.0).gram(*[torch.arange(3).unsqueeze(1)] * 2, [3]).numpy()
    assert math.isclose(float(expected_kernel(c, c, RBF(2.0))), truth @ k @ truth, rel_tol=1e-10)


def test_a_thousand_sums_on_top_of_each_other_are_no_recursion():
    nodes = [unit(0, 0.2, 0.8)] + [mixing([n], [1.0]) for n in range(1010)]
    deep = Circuit.from_nodes(nodes)
    assert_close(kdsd(deep, coin(), Hamming()).item(), 0.0)
    assert_close(expected_kernel(deep, deep, Delta()).item(), 0.68)


def test_independent_variables_have_the_product_of_their_kernels():
    probs = [torch.tensor([0.3, 0.7])] * 500
    c = fully_factorised(probs)
    one = 0.58 + 0.42 * math.exp(-1 / 500)
    assert math.isclose(float(expected_kernel(c, c, Hamming())), one**500, rel_tol=1e-5)


def test_impossible_units_of_a_deep_circuit_are_left_out():
    c, tables = chain(400)
    given = c.condition(dict.fromkeys(range(0, 400, 2), 1))
    assert given.num_edges < c.num_edges
    after = tables[1][1] * tables[2][:, 1]
    assert_close(given.marginals()[1], after / after.sum())


# ---------------------------------------------------------------------- kernels
@pytest.mark.parametrize("kernel", [None, "hamming", Hamming, 0.5])
def test_what_is_no_kernel_is_refused_by_name(kernel):
    for ask in (expected_kernel, squared_mmd):
        with pytest.raises(OptionError, match="no kernel of"):
            ask(coin(), coin(), kernel)


def test_kernels_with_numbers_that_cannot_be_are_refused():
    for make in (
        lambda: RBF("median"),
        lambda: RBF(torch.tensor([1.0, 2.0])),
        lambda: -1 * Delta(),
        lambda: Hamming("a").terms(1),
    ):
        with pytest.raises(OptionError):
            make()
    with pytest.raises(TypeError):
        Delta() + 1


def test_inputs_of_a_kernel_circuit_may_be_kernels_or_matrices():
    c, _ = chain(2)
    table = [[1.0, 0.3], [0.3, 1.0]]
    nodes = [
        {"type": "input", "var": 0, "kernel": RBF(2.0)},
        {"type": "input", "var": 1, "kernel": table},
        {"type": "product", "children": [0, 1]},
    ]
    p = c.log_prob(states((2, 2))).exp()
    k = np.kron([[1, math.exp(-0.5)], [math.exp(-0.5), 1]], table)
    assert_close(
        expected_kernel(c, c, KernelCircuit(nodes)).item(), float(p.numpy() @ k @ p.numpy())
    )
    for wrong in (
        [{"type": "input", "var": 0}, *nodes[1:]],
        [*nodes[:2], {"type": "product", "children": [0, 1, 1]}],
        [*nodes[:2], mixing([0, 1], [1.0, 1.0])],
    ):
        with pytest.raises(InvalidCircuit):
            expected_kernel(c, c, KernelCircuit(wrong))


def test_kdsd_of_a_mixture_is_the_double_sum_with_weighted_hamming():
    cards, generator = (3, 2, 4), torch.Generator().manual_seed(5)
    p, r = (deterministic_circuit(cards, generator) for _ in range(2))
    q = mixture([p, r], [0.3, 0.7])
    kernel = Hamming([0.1, 0.7, 0.0])
    x = states(cards)
    of = {tuple(s): n for n, s in enumerate(x.tolist())}
    mass, target = (c.log_prob(x).exp().numpy() for c in (q, p))
    mass, k = mass / mass.sum(), kernel.gram(x, x, cards).numpy()
    total = 0.0
    for i in range(len(cards)):
        after = [of[tuple((v + (j == i)) % cards[j] for j, v in enumerate(s))] for s in x.tolist()]
        signed = mass[after] - mass * target[after] / target
        total += signed @ k @ signed
    assert math.isclose(float(kdsd(q, p, kernel)), total, rel_tol=1e-10)
    assert abs(float(kdsd(p, p, kernel))) < 1e-12


def test_the_gram_matrix_in_blocks_of_rows_and_columns_is_the_same(monkeypatch):
    p = deterministic_circuit((2, 3, 2, 2), torch.Generator().manual_seed(0))
    x = states((2, 3, 2, 2)).double()
    x[::3, 1] = math.nan
    whole, part = stein_gram(p, x), stein_gram(p, x, others=x[:7])
    monkeypatch.setattr(
        "pyrograph.circuits.expectations.stein.CHUNK", 100
    )  # fewer pairs than columns
    assert_close(stein_gram(p, x), whole)
    assert_close(stein_gram(p, x, others=x[:7]), part)
    assert_close(whole[:, :7], part)


def test_what_would_take_hours_or_all_memory_is_refused_at_once(monkeypatch):
    p, _ = chain(5)
    monkeypatch.setattr("pyrograph.circuits.expectations.stein.MOST_WORK", 1e3)
    with pytest.raises(UnsupportedFactor, match="operations"):
        stein_gram(p, states((2,) * 5))
    monkeypatch.setattr("pyrograph.circuits.expectations.expected.MOST_NUMBERS", 2)
    with pytest.raises(UnsupportedFactor, match="numbers at once"):
        expected_kernel(p, p, Hamming())


# ---------------------------------------------------------------------- regression
@pytest.fixture(scope="module")
def regression():
    svm = pytest.importorskip("sklearn.svm")
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (120, 4))
    y = x @ [1.0, 2.0, -1.0, 0.5] + x[:, 0] * x[:, 1] + rng.normal(0, 0.1, 120)
    svr = svm.SVR(C=10.0, gamma=0.4).fit(x, y)
    circuit = learn_chow_liu(torch.tensor(x))
    holes = np.where(rng.random(x.shape) < 0.4, np.nan, x)
    return svr, circuit, x, holes, y


def test_rows_with_holes_get_the_mean_of_sklearn_over_completions(regression):
    svr, circuit, _, holes, _ = regression
    found = ExpectedSVR.from_sklearn(svr, circuit).predict(holes)
    every = np.array(list(itertools.product((0, 1), repeat=4)))
    p = circuit.log_prob(every).exp().numpy()
    for row, value in zip(holes[:30], found, strict=False):
        fits = ((every == row) | np.isnan(row)).all(1)
        assert math.isclose(value, p[fits] @ svr.predict(every[fits]) / p[fits].sum(), abs_tol=1e-9)


def test_it_lives_in_scikit_learns_tools(regression):
    base = pytest.importorskip("sklearn.base")
    from sklearn.metrics import r2_score
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    svr, circuit, x, holes, y = regression
    estimator = ExpectedSVR.from_sklearn(svr, circuit)
    assert estimator.n_features_in_ == 4 and "support vectors" in repr(estimator)
    for other in (base.clone(estimator), pickle.loads(pickle.dumps(estimator))):
        assert_close(other.predict(x), svr.predict(x))
    weight = np.linspace(0.1, 1, len(y))
    truth = r2_score(y, estimator.predict(holes), sample_weight=weight)
    assert math.isclose(estimator.score(holes, y, sample_weight=weight), truth)
    assert len(cross_val_score(estimator, holes, y, cv=3)) == 3
    grid = GridSearchCV(estimator, {"kernel": [RBF(0.1), RBF(1 / 0.4)]}, cv=3).fit(holes, y)
    assert grid.best_params_["kernel"] == RBF(1 / 0.4)
    pipe = make_pipeline(FunctionTransformer(), estimator)
    assert_close(pipe.predict(holes), estimator.predict(holes))


def test_parts_as_scikit_learn_holds_them_are_taken(regression):
    svr, circuit, x, _, _ = regression
    parts = svr.support_vectors_, svr.dual_coef_, svr.intercept_, RBF(1 / 0.4), circuit
    assert_close(ExpectedSVR(*parts).predict(x), svr.predict(x))
    nothing = ExpectedSVR(np.zeros((0, 4)), [], 0.5, RBF(1.0), circuit)
    assert nothing.predict(x[:3]).tolist() == [0.5] * 3


def test_what_is_no_regression_is_refused(regression):
    svm = pytest.importorskip("sklearn.svm")
    _, circuit, x, _, y = regression
    with pytest.raises(OptionError, match="no regression"):
        ExpectedSVR.from_sklearn(svm.SVC().fit(x, y > 1), circuit)
    with pytest.raises(ShapeMismatch):
        ExpectedSVR(np.zeros((2, 3)), [1.0, 1.0], 0.0, RBF(1.0), circuit)


# ---------------------------------------------------------------------- files and pictures
def test_a_circuit_saves_loads_and_draws_itself(tmp_path):
    c, _ = chain(4)
    c.save(tmp_path / "c.txt")
    again = Circuit.load(tmp_path / "c.txt")
    assert torch.equal(again.log_prob(states((2,) * 4)), c.log_prob(states((2,) * 4)))
    shown = {text.get_text() for text in c.draw(names=list("abcd")).texts}
    assert {"×", "+"} <= shown and any(text.startswith("d") for text in shown)


def test_files_that_are_no_text_and_numbers_of_half_width_are_refused(tmp_path):
    (tmp_path / "c.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataFormatError, match="no text"):
        Circuit.load(tmp_path / "c.bin")
    with pytest.raises(OptionError, match="double"):
        coin().half().save(tmp_path / "c.txt")


def test_a_copy_shares_no_numbers():
    c = coin()
    other = copy.deepcopy(c)
    other.log_table.data[0, 0] = -math.inf
    assert_close(c.log_prob([0]).exp().item(), 0.2)
    assert other.log_prob([0]) == -math.inf


# ---------------------------------------------------------------------- kernels and nodes
def test_a_product_of_any_number_of_squared_exponentials_is_one():
    """1 / h = sum_i 1 / h_i, and E exp(-(x - y)^2 / h) = sqrt(h / (h + 4)) for x, y ~ N(0, 1)."""
    normal = Circuit.from_nodes([{"type": "input", "var": 0, "loc": 0.0, "scale": 1.0}])
    h = 1 / (1 / 1.0 + 1 / 2.0 + 1 / 3.0 + 1 / 5.0)
    kernels = (
        RBF(1.0) * RBF(2.0) * RBF(3.0) * RBF(5.0),
        RBF(1.0) * (RBF(2.0) * RBF(3.0)) * RBF(5.0),
    )
    for kernel in kernels:
        found = expected_kernel(normal, normal, kernel)
        assert math.isclose(float(found), math.sqrt(h / (h + 4)), rel_tol=1e-12)
    with pytest.raises(UnsupportedFactor, match="closed form"):
        expected_kernel(normal, normal, RBF(1.0) * RBF(2.0) * Delta())


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ([unit(0, 0.2, 0.8), mixing([0.7], [1.0])], r"node 1.*\[0\.7\].*whole numbers"),
        ([unit(0, 0.2, 0.8), mixing([math.nan], [1.0])], "node 1.*whole numbers"),
        ([unit(None, 0.2, 0.8)], "node 0.*None"),
        ([unit(math.inf, 0.2, 0.8)], "node 0.*inf"),
        ([{"type": "input", "var": 0, "loc": "a", "scale": 1.0}], "node 0.*'a'"),
        ([{"type": "input", "var": 0, "loc": 0.0, "scale": None}], "node 0.*None"),
    ],
)
def test_numbers_of_nodes_that_are_none_are_refused_by_node(nodes, text):
    with pytest.raises(InvalidCircuit, match=text):
        Circuit.from_nodes(nodes)
