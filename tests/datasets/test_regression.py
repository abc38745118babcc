import numpy as np
import pytest
import torch
from torch.testing import assert_close

from pyrograph.datasets import binary_regression
from pyrograph.errors import DataFormatError, DataNotFound, OptionError

#: Rows of the splits, features, and RMSE of the published predictor on valid and test.
DOCUMENTED = {
    "abalone": ((2923, 584, 670), 72, (2.26493, 2.66687)),
    "insurance": ((936, 187, 215), 36, (7284.08, 7629.47)),
}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_data_are_the_documented_ones(data_root, name):
    rows, features, errors = DOCUMENTED[name]
    data = binary_regression(name)
    for split, count in zip(("train", "valid", "test"), rows, strict=True):
        assert data.x[split].shape == (count, features) and data.y[split].shape == (count,)
        assert data.x[split].dtype == torch.int64 and data.y[split].dtype == torch.float64
    for split, expected in zip(("valid", "test"), errors, strict=True):
        residual = data.svr.predict(data.x[split]) - data.y[split]
        assert_close(float(residual.square().mean().sqrt()), expected, rtol=1e-5, atol=0)
    assert data.psdd.is_file() and data.vtree.is_file()


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A tiny "abalone" in its place."""
    folder = tmp_path / "regression_abalone"
    folder.mkdir()
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))
    for suffix in ("psdd", "vtree"):
        (folder / f"abalone.{suffix}").write_text("")
    save(folder)
    return folder


def save(folder, **changes):
    data = {f"x_{split}": np.eye(2, dtype=np.uint8) for split in ("train", "valid", "test")}
    data |= {f"y_{split}": np.array([1.0, 2.0]) for split in ("train", "valid", "test")}
    svr = {"support_vectors": np.eye(2), "coef": np.ones((1, 2)), "intercept": 3.0, "gamma": 0.5}
    for name, value in changes.items():
        (svr if name in svr else data)[name] = value
    for archive, arrays in (("abalone.npz", data), ("svr_rbf.npz", svr)):
        np.savez(folder / archive, **{k: v for k, v in arrays.items() if v is not None})


def test_the_predictor_is_a_sum_of_kernels(folder):
    svr = binary_regression("abalone").svr
    expected = 3.0 + np.exp(-0.5) + np.exp(-0.5)
    assert_close(svr.predict(torch.zeros(1, 2)), torch.tensor([expected]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, r"abalone\.npz: there is no array 'y_test'"),
        ({"coef": None}, r"svr_rbf\.npz: there is no array 'coef'"),
        ({"y_valid": np.ones(3)}, r"x_valid has shape \(2, 2\), y_valid \(3,\)"),
        ({"x_test": np.zeros((2, 3))}, r"x_test has shape \(2, 3\)"),
        ({"x_train": np.full((2, 2), 2)}, "x_train has values other than 0 and 1"),
        ({"coef": np.ones(3)}, "3 coefficients for support vectors"),
        ({"x_train": np.full((2, 2), 0.5)}, "x_train has values other than 0 and 1"),
        ({"x_train": np.array([["a"]])}, "x_train is <U1 of shape"),
        ({"y_test": np.array([1.0, np.nan])}, "y_test has NaN or infinite numbers"),
        ({"y_test": np.array(1.0)}, r"y_test is float64 of shape \(\); expected numbers in 1"),
        ({"coef": np.array([np.inf, 1.0])}, "coef has NaN or infinite numbers"),
        ({"gamma": np.array(np.nan)}, "gamma has NaN or infinite numbers"),
        ({"intercept": np.ones(0)}, r"intercept is float64 of shape \(0,\)"),
        ({"intercept": np.array("x")}, "intercept is <U1"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(folder, changes, message):
    save(folder, **changes)
    with pytest.raises(DataFormatError, match=message):
        binary_regression("abalone")


def test_a_damaged_file_is_refused(folder):
    path = folder / "svr_rbf.npz"
    whole = path.read_bytes()
    for content in (b"", b"no archive", whole[:-30], whole[:60] + b"!" * 20 + whole[80:]):
        path.write_bytes(content)
        with pytest.raises(DataFormatError, match=r"svr_rbf\.npz: it is no archive"):
            binary_regression("abalone")


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(OptionError, match=r"'elevators'.*abalone, insurance"):
        binary_regression("elevators")


def test_absent_data_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))
    with pytest.raises(DataNotFound, match=r"insurance\.npz"):
        binary_regression("insurance")
