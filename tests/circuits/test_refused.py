"""What circuits refuse, by errors that say what to give instead."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch

from pyrograph import circuits as C
from pyrograph.errors import (
    DataNotFound,
    InvalidCircuit,
    OptionError,
    ShapeMismatch,
    UnsupportedFactor,
)

PAIR = C.fully_factorised([torch.tensor([0.4, 0.6]), torch.tensor([0.2, 0.8])])


@pytest.mark.parametrize("intercept", [[0.1, 0.2], [], math.nan, math.inf, torch.zeros(2)])
def test_an_intercept_is_one_finite_number(intercept):
    with pytest.raises(OptionError, match="intercept"):
        C.ExpectedSVR([[0, 1]], [1.0], intercept, C.RBF(1.0), PAIR)


@pytest.mark.parametrize("intercept", [0.5, [0.5], torch.tensor(0.5), torch.tensor([0.5])])
def test_an_intercept_is_added(intercept):
    found = C.ExpectedSVR([[0, 1]], [0.0], intercept, C.RBF(1.0), PAIR).predict([[0, math.nan]])
    assert float(found[0]) == 0.5


@pytest.mark.parametrize("names", [["a"], [], ["a", "b", "c"]])
def test_a_picture_takes_a_name_of_every_variable(names):
    with pytest.raises(OptionError, match=f"{len(names)} names for the circuit's 2 variables"):
        PAIR.draw(names=names)


@pytest.mark.parametrize("name", ["none.txt", "."])
def test_a_file_that_is_not_there_is_named(tmp_path, name):
    with pytest.raises(DataNotFound, match="there is no file"):
        C.Circuit.load(tmp_path / name)


@pytest.mark.parametrize("path", ["no/folder/c.txt", ".", None])
def test_a_circuit_is_written_where_a_file_can_be(tmp_path, path):
    where = None if path is None else tmp_path / path
    with pytest.raises((OptionError, DataNotFound), match=r"is a folder|no folder|no path"):
        PAIR.save(where)


@pytest.mark.parametrize(
    "call",
    [
        lambda: C.write_circuit(None, "c.txt"),
        lambda: C.read_circuit(None),
        lambda: C.read_psdd(None, None),
        lambda: C.draw_circuit(None),
        lambda: PAIR.draw(names=3),
        lambda: C.tree_network(None, None),
        lambda: C.fully_factorised(None),
        lambda: C.naive_bayes(None, None),
        lambda: C.mixture(PAIR, [1.0]),
    ],
)
def test_what_is_no_circuit_path_or_list_is_refused(call):
    with pytest.raises(OptionError, match=r"no circuit|no path|a list|no list"):
        call()


def test_a_text_in_the_place_of_its_path_is_no_file():
    text = "c a comment\n" + "psdd 3\n" * 200
    with pytest.raises(DataNotFound, match=r"no file 'c a comment.*\.\.\.'; look at the path"):
        C.read_psdd(text, text)
    with pytest.raises(DataNotFound, match="no file"):
        C.Circuit.load(text)


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf, "a", [0.5, -0.5], [None]])
def test_weights_of_a_kernel_are_refused_where_they_are_given(weight):
    with pytest.raises(OptionError, match=r"Hamming\(weight="):
        C.Hamming(weight)


@pytest.mark.parametrize(
    ("key", "node"),
    [
        ("probs", {"var": 0, "probs": torch.tensor([0.5, 0.5], requires_grad=True)}),
        ("probs", {"var": 0, "probs": [torch.tensor(0.5, requires_grad=True), 0.5]}),
        ("loc", {"var": 0, "loc": torch.tensor(0.5, requires_grad=True), "scale": 1.0}),
    ],
)
def test_numbers_whose_derivatives_would_be_lost_are_refused(key, node):
    with pytest.raises(InvalidCircuit, match=rf'node 0 has "{key}" that require grad.*detached'):
        C.Circuit.from_nodes([{"type": "input", **node}])


def test_a_device_that_cannot_be_used_is_refused():
    with pytest.raises(OptionError, match="'gpu7' is no device"):
        PAIR.to("gpu7")
    for name in ("cuda",) if not torch.cuda.is_available() else ("cuda:99",):
        for call in (PAIR.to, lambda device: PAIR.to(device=device)):
            with pytest.raises(OptionError, match=f"'{name}'"):
                call(name)
    assert PAIR.to("cpu") is PAIR and PAIR.to(torch.float64) is PAIR


def test_a_picture_is_drawn_on_axes():
    with pytest.raises(OptionError, match="ax=3 is no matplotlib axes"):
        PAIR.draw(ax=3)


def test_an_estimator_that_is_no_svr_is_named():
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import SVR

    x, y = [[0, 0], [0, 1], [1, 0], [1, 1]], [0.0, 1.0, 2.0, 2.5]
    whole = make_pipeline(SVR()).fit(x, y)
    with pytest.raises(OptionError, match=r"Pipeline is no regression .* its last step"):
        C.ExpectedSVR.from_sklearn(whole, PAIR)
    found = C.ExpectedSVR.from_sklearn(whole[-1], PAIR).predict(torch.tensor(x))
    assert found.tolist() == pytest.approx(whole.predict(x).tolist())
    with pytest.raises(OptionError, match="SVR is not fitted"):
        C.ExpectedSVR.from_sklearn(SVR(), PAIR)


def test_circuits_of_a_mixture_may_come_one_by_one():
    mixed = C.mixture((PAIR for _ in range(2)), [0.3, 0.7])
    assert float(mixed.log_prob([[1, 0]]).exp()) == pytest.approx(0.6 * 0.2)


@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        ([[0, 1, 1]], ShapeMismatch, "shape"),
        ([[0, -1]], OptionError, "row 0 of . has no value of variable 1"),
        ([[0, math.nan]], OptionError, "row 0 of . has no value of variable 1"),
        ([[0.5, 1]], OptionError, "value 0.5 of variable 0"),
        ([[0, 2]], OptionError, "value 2 of variable 1"),
    ],
)
@pytest.mark.parametrize("kernel", [C.Hamming(), C.RBF(1.0), C.Delta()])
def test_a_gram_matrix_is_of_complete_points_of_the_variables(kernel, x, error, text):
    y = torch.tensor([[0, 1], [1, 1]])
    for pair in ((torch.tensor(x), y), (y, torch.tensor(x))):
        with pytest.raises(error, match=text):
            kernel.gram(*pair, [2, 2])


def test_a_variable_of_too_many_states_is_named_before_a_kernel_is_laid_out():
    wide = C.fully_factorised([torch.ones(2) / 2, torch.ones(9000) / 9000])
    x, text = torch.tensor([[0, 5]]), "variable 1 has 9,000 states"
    with pytest.raises(UnsupportedFactor, match=text):
        C.squared_mmd(wide, wide, C.Hamming())
    with pytest.raises(UnsupportedFactor, match=text):
        C.Hamming().gram(x, x, [2, 9000])
    with pytest.raises(UnsupportedFactor, match=text):
        C.Hamming().tables([2, 9000])


def test_the_budget_of_an_expectation_is_of_all_that_is_held_together(monkeypatch):
    # one pair of units in every region: the products and a part's, and both of the Stein channel
    for budget, plain, stein in ((1, False, False), (3, True, False), (4, True, True)):
        monkeypatch.setattr("pyrograph.circuits.expectations.expected.MOST_NUMBERS", budget)
        for call, fits in (
            (lambda: C.expected_kernel(PAIR, PAIR, C.Hamming()), plain),
            (lambda: C.kdsd(PAIR, PAIR), stein),
        ):
            with (
                nullcontext() if fits else pytest.raises(UnsupportedFactor, match="numbers at once")
            ):
                call()
