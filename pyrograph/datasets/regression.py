"""Regression on binary features, with the published predictor and circuit of each data set.

Source: Khosravi, Choi, Liang, Vergari & Van den Broeck (2019), "On tractable computation of
expected predictions"; predictors of Li, Zeng, Vergari & Van den Broeck (2021), section 7.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pyrograph.datasets.root import arrays_of, data_file, numbers_of
from pyrograph.errors import DataFormatError, OptionError

NAMES = ("abalone", "insurance")
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class SupportVectors:
    """f(x) = sum_i coef_i exp(-gamma ||x - support_i||^2) + intercept.

    Shapes:
        support: ``[n, D]`` float64.
        coef: ``[n]`` float64.
    """

    support: Tensor
    coef: Tensor
    intercept: float
    gamma: float

    def predict(self, x: Tensor) -> Tensor:
        """``[B]`` at complete points ``[B, D]``."""
        squared = torch.cdist(x.double(), self.support).square()
        return (-self.gamma * squared).exp() @ self.coef + self.intercept


@dataclass(frozen=True, eq=False)
class BinaryRegression:
    """One data set.

    Attributes:
        x: ``{"train" | "valid" | "test": [N, D]}`` int64, zeros and ones.
        y: ``[N]`` float64, in original units.
        svr: the published predictor.
        psdd, vtree: paths of the circuit that was learned on ``x["train"]``.
    """

    name: str
    x: Mapping[str, Tensor]
    y: Mapping[str, Tensor]
    svr: SupportVectors
    psdd: Path
    vtree: Path


def binary_regression(name: str) -> BinaryRegression:
    """A data set of regression with binary features.

    =========  ====  =====  ====  ==  =============================================
    name       N     valid  test  D   target
    =========  ====  =====  ====  ==  =============================================
    abalone    2923  584    670   72  rings of a shell, from its sizes and weights
    insurance  936   187    215   36  medical costs in dollars, from six attributes
    =========  ====  =====  ====  ==  =============================================

    Raises:
        OptionError: there is no such data set.
        DataNotFound: ``$PYROGRAPH_DATA`` is not set or lacks ``regression_<name>``.
        DataFormatError: a file is damaged, an array is missing, or shapes or values are not as
            above.
    """
    if name not in NAMES:
        raise OptionError(f"there is no data set {name!r}; there are {', '.join(NAMES)}.")
    folder = f"regression_{name}"
    path = data_file(folder, f"{name}.npz")
    arrays = arrays_of(path, [f"{axis}_{split}" for axis in "xy" for split in SPLITS])
    x = {split: numbers_of(path, arrays, f"x_{split}", 2) for split in SPLITS}
    y = {split: numbers_of(path, arrays, f"y_{split}", 1).double() for split in SPLITS}
    width = x["train"].shape[-1]
    for split in SPLITS:
        if x[split].shape != (len(y[split]), width):
            raise DataFormatError(
                f"{path.name}: x_{split} has shape {tuple(x[split].shape)}, y_{split} "
                f"{tuple(y[split].shape)}; expected [N, {width}] and [N]."
            )
        if not bool(((x[split] == 0) | (x[split] == 1)).all()):
            raise DataFormatError(f"{path.name}: x_{split} has values other than 0 and 1.")
        x[split] = x[split].long()
    path = data_file(folder, "svr_rbf.npz")
    found = arrays_of(path, ("support_vectors", "coef", "intercept", "gamma"))
    found = {key: value.flatten() if key == "coef" else value for key, value in found.items()}
    support = numbers_of(path, found, "support_vectors", 2).double()
    coef = numbers_of(path, found, "coef", 1).double()
    if support.shape != (len(coef), width):
        raise DataFormatError(
            f"{path.name}: {len(coef)} coefficients for support vectors of shape "
            f"{tuple(support.shape)}; expected [n, {width}]."
        )
    scalars = {key: found[key].reshape(-1).squeeze() for key in ("intercept", "gamma")}
    intercept, gamma = (float(numbers_of(path, scalars, key, 0)) for key in scalars)
    return BinaryRegression(
        name,
        x,
        y,
        SupportVectors(support, coef, intercept, gamma),
        data_file(folder, f"{name}.psdd"),
        data_file(folder, f"{name}.vtree"),
    )
