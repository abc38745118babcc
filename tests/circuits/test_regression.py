"""Expected predictions against sums over all completions, and against the regression itself."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from pyrograph.circuits import RBF, Circuit, ExpectedSVR, Hamming
from pyrograph.errors import OptionError, ShapeMismatch, ZeroMass
from tests.circuits.random_circuits import random_circuit, random_vtree, states

seeds = st.integers(0, 10_000)


def problem(seed, kernel=None):
    generator = torch.Generator().manual_seed(seed)
    cards = (2 + torch.randint(2, (4,), generator=generator)).tolist()
    p = random_circuit(cards, random_vtree([0, 1, 2, 3], generator), generator)
    support = torch.stack([torch.randint(c, (6,), generator=generator) for c in cards], 1)
    coef = torch.randn(6, generator=generator)
    rows = torch.stack([torch.randint(c, (9,), generator=generator) for c in cards], 1).double()
    rows[torch.rand(rows.shape, generator=generator) < 0.5] = torch.nan
    kernel = RBF(2.0) if kernel is None else kernel
    return cards, p, ExpectedSVR(support, coef, 0.7, kernel, p), rows


@settings(max_examples=40)
@given(seed=seeds)
@pytest.mark.parametrize("kernel", [RBF(2.0), Hamming(), Hamming() + 0.5 * RBF(1.0)])
def test_predictions_are_means_over_all_completions(kernel, seed):
    cards, p, model, rows = problem(seed, kernel)
    x = states(cards)
    values = kernel.gram(x, model.support, cards) @ model.dual_coef + 0.7
    agrees = ((rows.unsqueeze(1) == x) | rows.isnan().unsqueeze(1)).all(2)
    weights = torch.where(agrees, p.log_prob(x), -torch.inf).softmax(1)
    assert_close(model.predict(rows), weights @ values, rtol=1e-10, atol=1e-10)


@given(seed=seeds)
def test_rows_without_missing_values_get_the_prediction_itself(seed):
    cards, _, model, _ = problem(seed)
    x = states(cards)
    truth = RBF(2.0).gram(x, model.support, cards) @ model.dual_coef + 0.7
    assert_close(model.predict(x), truth, rtol=1e-10, atol=1e-10)


def test_real_features_are_the_mean_over_many_draws():
    """Features given a Gaussian mixture, one of two missing."""
    nodes = [
        {"type": "input", "var": 0, "loc": 0.0, "scale": 1.0},
        {"type": "input", "var": 1, "loc": 1.0, "scale": 0.5},
        {"type": "product", "children": [0, 1]},
        {"type": "input", "var": 0, "loc": 2.0, "scale": 0.7},
        {"type": "input", "var": 1, "loc": -1.0, "scale": 1.0},
        {"type": "product", "children": [3, 4]},
        {"type": "sum", "children": [2, 5], "weights": [0.3, 0.7]},
    ]
    p = Circuit.from_nodes(nodes)
    support = torch.randn(5, 2)
    coef = torch.randn(5)
    model = ExpectedSVR(support, coef, 0.1, RBF(1.5), p)
    grid = torch.linspace(-8, 8, 4001)
    seen = torch.tensor(0.4)
    rows = torch.stack([seen.expand(len(grid)), grid], 1)
    weights = p.log_prob(rows).softmax(0)
    values = torch.exp(-(torch.cdist(rows, support) ** 2) / 1.5) @ coef + 0.1
    got = model.predict(torch.tensor([[0.4, torch.nan]]))
    assert_close(got, (weights @ values).unsqueeze(0), rtol=1e-8, atol=1e-10)


def test_arrays_give_arrays_and_no_rows_give_none():
    _, _, model, rows = problem(3)
    found = model.predict(rows.numpy())
    assert isinstance(found, np.ndarray)
    assert_close(torch.from_numpy(found), model.predict(rows), rtol=0, atol=0)
    assert model.predict(rows[:0].numpy()).shape == (0,)


def test_chunks_of_rows_change_nothing(monkeypatch):
    _, _, model, rows = problem(3)
    whole = model.predict(rows)
    monkeypatch.setattr("pyrograph.circuits.regression.CHUNK", 1)
    assert_close(model.predict(rows), whole, rtol=1e-12, atol=1e-12)


def test_rows_that_the_circuit_holds_for_impossible_are_named(monkeypatch):
    _, p, model, rows = problem(5)
    model.circuit = p.condition({0: 1})
    rows = rows.clone()
    rows[:, 0] = 1.0
    rows[4, 0] = 0.0
    with pytest.raises(ZeroMass, match="row 4"):
        model.predict(rows)
    monkeypatch.setattr("pyrograph.circuits.regression.CHUNK", 1)
    with pytest.raises(ZeroMass, match="row 4"):
        model.predict(rows)


def test_parts_that_do_not_fit_are_refused():
    _, p, model, rows = problem(1)
    with pytest.raises(ShapeMismatch, match=r"\[S, 4\]"):
        ExpectedSVR(model.support[:, :3], model.dual_coef, 0.0, RBF(1.0), p)
    with pytest.raises(ShapeMismatch, match="coefficients"):
        ExpectedSVR(model.support, model.dual_coef[:2], 0.0, RBF(1.0), p)
    with pytest.raises(ShapeMismatch, match="points"):
        model.predict(rows[:, :2])
    with pytest.raises(OptionError, match="row 1 has the value 9 of variable 2"):
        model.predict(torch.tensor([[0.0, 0, 0, 0], [0, 0, 9, 0]]))
    with pytest.raises(OptionError, match="missing value"):
        ExpectedSVR(rows[:6].nan_to_num(0).fill_(torch.nan), torch.ones(6), 0, RBF(1.0), p).predict(
            rows
        )


class TestScikitLearn:
    """The estimator among others."""

    @pytest.fixture
    def fitted(self):
        svm = pytest.importorskip("sklearn.svm")
        generator = np.random.default_rng(0)
        x = (generator.random((80, 5)) < 0.4).astype(float)
        y = x @ generator.normal(size=5) + 0.1 * generator.normal(size=80)
        nodes = [{"type": "input", "var": v, "probs": [1 - m, m]} for v, m in enumerate(x.mean(0))]
        circuit = Circuit.from_nodes([*nodes, {"type": "product", "children": [0, 1, 2, 3, 4]}])
        return svm, x, y, circuit

    @pytest.mark.parametrize("gamma", ["scale", "auto", 0.3])
    @pytest.mark.parametrize("name", ["SVR", "NuSVR"])
    def test_nothing_missing_is_the_regression_itself(self, fitted, name, gamma):
        svm, x, y, circuit = fitted
        svr = getattr(svm, name)(gamma=gamma, C=3.0).fit(x, y)
        model = ExpectedSVR.from_sklearn(svr, circuit)
        np.testing.assert_allclose(model.predict(x), svr.predict(x), rtol=0, atol=1e-10)

    def test_sparse_training_data_are_read(self, fitted):
        svm, x, y, circuit = fitted
        sparse = pytest.importorskip("scipy.sparse")
        svr = svm.SVR().fit(sparse.csr_matrix(x), y)
        dense = x[:7].copy()
        found = ExpectedSVR.from_sklearn(svr, circuit).predict(dense)
        np.testing.assert_allclose(found, svr.predict(sparse.csr_matrix(dense)), atol=1e-10)

    def test_it_ends_a_pipeline_is_cloned_and_scored(self, fitted):
        svm, x, y, circuit = fitted
        base = pytest.importorskip("sklearn.base")
        pipeline = pytest.importorskip("sklearn.pipeline")
        preprocessing = pytest.importorskip("sklearn.preprocessing")
        model = ExpectedSVR.from_sklearn(svm.SVR().fit(x, y), circuit)
        holes = x.copy()
        holes[np.random.default_rng(1).random(x.shape) < 0.3] = np.nan
        line = pipeline.make_pipeline(preprocessing.FunctionTransformer(), model)
        np.testing.assert_array_equal(line.fit(holes, y).predict(holes), model.predict(holes))
        np.testing.assert_array_equal(base.clone(model).predict(holes), model.predict(holes))
        assert base.is_regressor(model)
        assert model.score(x, y) == pytest.approx(svm.SVR().fit(x, y).score(x, y), abs=1e-12)

    def test_unfitted_and_other_kernels_are_refused(self, fitted):
        svm, x, y, circuit = fitted
        with pytest.raises(OptionError, match="not fitted"):
            ExpectedSVR.from_sklearn(svm.SVR(), circuit)
        with pytest.raises(OptionError, match="kernel='linear'"):
            ExpectedSVR.from_sklearn(svm.SVR(kernel="linear").fit(x, y), circuit)
        with pytest.raises(OptionError, match="no parameter"):
            ExpectedSVR.from_sklearn(svm.SVR().fit(x, y), circuit).set_params(colour="red")

    @pytest.mark.parametrize(
        ("change", "error", "text"),
        [
            ({"circuit": 5}, OptionError, "no circuit"),
            ({"support": [[0.0, 1.0]]}, ShapeMismatch, r"\[S, 5\]"),
            ({"dual_coef": [1.0]}, ShapeMismatch, "1 coefficients"),
            ({"intercept": np.nan}, OptionError, "one finite number"),
        ],
    )
    def test_parameters_are_set_as_they_are_first_given(self, fitted, change, error, text):
        svm, x, y, circuit = fitted
        model = ExpectedSVR.from_sklearn(svm.SVR().fit(x, y), circuit)
        before = model.predict(x)
        with pytest.raises(error, match=text):
            model.set_params(kernel=Hamming(), **change)
        np.testing.assert_array_equal(model.predict(x), before)  # all or none
        assert model.set_params(intercept=model.intercept + 1.0) is model
        np.testing.assert_allclose(model.predict(x), before + 1.0)
