"""Values that are not there, as numpy and pandas say it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import r2_score

from pyrograph import circuits as C
from pyrograph.errors import OptionError

P = (0.3, 0.2)
PAIR = C.fully_factorised([[1 - p, p] for p in P])
#: x_0 is missing in the second row, x_1 in the third.
CODES = np.array([[1, 0], [0, 1], [1, 1]])
HOLES = np.array([[False, False], [True, False], [False, True]])
TRUTH = [P[0] * (1 - P[1]), P[1], P[0]]


def masked():
    return np.ma.masked_array(CODES, HOLES)


def nullable(dtype):
    pd = pytest.importorskip("pandas")
    values = CODES.astype(bool) if dtype == "boolean" else CODES
    columns = [np.where(HOLES[:, v], None, values[:, v]) for v in range(2)]
    return pd.DataFrame({v: pd.array(column, dtype=dtype) for v, column in zip("ab", columns)})


SAID = {
    "masked array": masked,
    "list of masked rows": lambda: list(masked()),
    "masked floats that are no codes": lambda: np.ma.masked_array(
        np.where(HOLES, 7.5, CODES), HOLES
    ),
    "Int64": lambda: nullable("Int64"),
    "Int8": lambda: nullable("Int8"),
    "boolean": lambda: nullable("boolean"),
    "rows of Int64": lambda: [row for _, row in nullable("Int64").iterrows()],
}


@pytest.mark.parametrize("make", SAID.values(), ids=SAID)
def test_what_is_masked_or_na_is_summed_out(make):
    assert PAIR.log_prob(make()).exp().tolist() == pytest.approx(TRUTH, rel=1e-14)


@pytest.mark.parametrize("make", SAID.values(), ids=SAID)
@pytest.mark.parametrize("learn", [C.learn_chow_liu, C.learn_strudel])
def test_what_is_masked_or_na_is_not_learnt_from(learn, make):
    options = {} if learn is C.learn_chow_liu else {"num_steps": 0, "progress": False}
    torch.manual_seed(0)
    found = learn(make(), cards=[2, 2], **options)
    torch.manual_seed(0)
    rows = torch.tensor(np.where(HOLES, math.nan, CODES))
    expected = learn(rows, cards=[2, 2], **options)
    assert torch.equal(found.log_prob(CODES), expected.log_prob(CODES))


def test_a_column_of_na_alone_needs_its_number_of_states():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": [0, 1, 1], "b": pd.array([None] * 3, dtype="Int64")})
    with pytest.raises(OptionError, match="variable 1 has no value"):
        C.learn_chow_liu(frame)


def test_weights_that_are_masked_are_refused():
    with pytest.raises(OptionError, match="weights are finite"):
        C.learn_chow_liu(CODES, weights=np.ma.masked_array([1.0, 1.0, 1.0], [0, 1, 0]))


def test_expected_predictions_sum_out_what_is_masked():
    model = C.ExpectedSVR([[0, 1]], [2.0], 0.5, C.Hamming(), PAIR)
    # Hamming's kernel is exp(-1/2) for each of two variables that differs
    differs = math.exp(-1 / 2)
    e = [P[0] * differs + 1 - P[0], P[1] + (1 - P[1]) * differs]
    truth = [0.5 + 2 * k for k in (differs**2, e[0], differs * e[1])]
    assert model.predict(masked()).tolist() == pytest.approx(truth, rel=1e-14)
    y = np.array([1.5, 2.0, 2.5])
    assert model.score(masked(), y) == pytest.approx(r2_score(y, truth), rel=1e-12)
