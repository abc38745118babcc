"""Predictions of a support vector regression when features are missing.

    f(x_o) = E_{x_m ~ p(. | x_o)} [ sum_i a_i k(s_i, (x_o, x_m)) + b ]
           = sum_i a_i E[k(s_i, (x_o, x_m)) | x_o] + b

The expectation of the kernel between a circuit p under evidence and a point is the pass of
``expected`` with points on one side. All rows and all support vectors go through it together;
in a region of few variables there are few distinct rows and few distinct support vectors, so most
of the circuit is evaluated for a handful of pairs, and no missing value is filled in or sampled.
Exact for the learned p.

Source: Li, Zeng, Vergari & Van den Broeck (2021), section 5.1 and proposition 5.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.expectations.expected import common_regions, pairs
from pyrograph.circuits.expectations.kernel_units import KernelUnits
from pyrograph.circuits.expectations.kernels import RBF, Kernel, check_kernel
from pyrograph.circuits.expectations.sides import CircuitSide, PointSide, largest_size, most_edges
from pyrograph.circuits.options import check_circuits
from pyrograph.circuits.structure.leaves import numbers
from pyrograph.errors import OptionError, ShapeMismatch, ZeroMass

if TYPE_CHECKING:
    from sklearn.svm import SVR, NuSVR
    from sklearn.utils import Tags

#: Numbers of the widest region that are held at once.
CHUNK = 2**23

#: What ``ExpectedSVR`` is made of, by the names of its arguments.
PARAMETERS = ("support", "dual_coef", "intercept", "kernel", "circuit")


class ExpectedSVR:
    """The expected prediction of a fitted regression under a distribution of its features.

    It predicts like the regression it is made from where nothing is missing. It follows
    scikit-learn's interface (parameters, ``predict``, ``score``, NaN allowed) and may end a
    ``Pipeline``; ``fit`` changes nothing, as both parts are fitted already.

    Args:
        support: ``[S, D]`` support vectors: codes of discrete features, values of real ones.
        dual_coef: ``[S]``, the a above.
        intercept: b.
        kernel: of the regression.
        circuit: a distribution of the D features, smooth, decomposable and structured, normalised
            or not.

    Raises:
        ShapeMismatch: the parts do not fit each other.
        OptionError: a coefficient or the intercept is not finite, or ``circuit`` is none.
    """

    def __init__(
        self,
        support: Tensor | np.ndarray,
        dual_coef: Tensor | np.ndarray,
        intercept: float,
        kernel: Kernel,
        circuit: Circuit,
    ):
        self.support, self.dual_coef, self.intercept = support, dual_coef, intercept
        self.kernel, self.circuit = kernel, circuit
        check_circuits(circuit)
        shape = tuple(np.shape(support))
        if len(shape) != 2 or shape[1] != circuit.num_variables:
            raise ShapeMismatch(
                f"support vectors have shape {shape}; expected [S, {circuit.num_variables}], the "
                "circuit's variables"
            )
        count = int(np.prod(np.shape(dual_coef)))
        if count != shape[0]:
            raise ShapeMismatch(f"{count} coefficients for {shape[0]} support vectors")
        if not bool(numbers(dual_coef).isfinite().all()):
            raise OptionError("dual_coef has a coefficient that is NaN or infinite")
        offset = numbers(intercept)
        if offset.numel() != 1 or not bool(offset.isfinite().all()):
            raise OptionError(f"intercept={intercept!r} must be one finite number")

    @staticmethod
    def from_sklearn(svr: SVR | NuSVR, circuit: Circuit) -> ExpectedSVR:
        """Of a fitted ``sklearn.svm.SVR`` or ``NuSVR`` with ``kernel="rbf"``.

        Raises:
            OptionError: it is not fitted, is no regression, or has another kernel.
        """
        if getattr(svr, "_impl", None) not in ("epsilon_svr", "nu_svr"):
            raise OptionError(
                f"{type(svr).__name__} is no regression that is read here: give an SVR or a NuSVR; "
                "of a Pipeline its last step, and a circuit of the transformed data"
            )
        if not hasattr(svr, "support_vectors_"):
            raise OptionError(f"{type(svr).__name__} is not fitted: call its fit(X, y) first")
        if svr.kernel != "rbf":
            raise OptionError(
                f"kernel={svr.kernel!r}: from_sklearn reads kernel='rbf', which is a product over "
                "features. Another product kernel can be handed to ExpectedSVR(...) itself"
            )
        support = svr.support_vectors_
        if not isinstance(support, np.ndarray):
            support = support.toarray()
        coef = (
            svr.dual_coef_ if isinstance(svr.dual_coef_, np.ndarray) else svr.dual_coef_.toarray()
        )
        # ``gamma="scale"`` and "auto" are resolved when it is fitted
        bandwidth = 1 / float(svr._gamma)
        return ExpectedSVR(support, coef[0], float(svr.intercept_[0]), RBF(bandwidth), circuit)

    @torch.no_grad()
    def predict(self, X: Tensor | np.ndarray) -> Tensor | np.ndarray:
        """Expected predictions.

        Args:
            X: ``[N, D]`` with NaN where a feature is missing.

        Returns:
            ``[N]``, a tensor if X is one, else an array.

        Raises:
            ShapeMismatch, OptionError: a row does not fit the circuit's variables.
            ZeroMass: what is observed in a row is impossible under the circuit.
        """
        circuit = self.circuit
        device = circuit.log_weights.device
        rows = circuit.domain.check(X, device)
        intercept = float(numbers(self.intercept))
        if not len(rows) or not len(self.support):
            return self._like(X, rows.new_full((len(rows),), intercept))
        check_kernel(self.kernel)
        regions = common_regions(circuit, circuit, self.kernel)
        kernel = KernelUnits(self.kernel, regions, circuit)
        support = circuit.domain.check(self.support, device)
        if bool(support.isnan().any()):
            raise OptionError("a support vector has a missing value")
        points = PointSide(regions, support, circuit.cards, torch.float64)
        coef = numbers(self.dual_coef, device).flatten()
        # points that are equal count together
        coef = coef.new_zeros(points.patterns.count[-1]).index_add_(0, points.patterns.point, coef)
        side = CircuitSide(circuit, regions, rows[:1])
        size = largest_size([side, points]) * kernel.num_units * len(coef)
        chunk = max(1, CHUNK // max(size, most_edges(side)))
        found = [
            self._chunk(side.at(rows[first : first + chunk]), points, kernel, coef, first)
            for first in range(0, len(rows), chunk)
        ]
        return self._like(X, torch.cat(found) + intercept)

    def _like(self, X: Tensor | np.ndarray, predictions: Tensor) -> Tensor | np.ndarray:
        """A tensor of the circuit's precision if X is one, else an array."""
        if isinstance(X, Tensor):
            return predictions.to(self.circuit.log_weights.dtype)
        return predictions.double().cpu().numpy()

    def _chunk(
        self, side: CircuitSide, points: PointSide, kernel: KernelUnits, coef: Tensor, first: int
    ) -> Tensor:
        impossible = side.log_mass == -torch.inf
        if bool(impossible.any()):
            raise ZeroMass(
                f"row {first + int(impossible.nonzero()[0])}: what is observed has probability "
                "zero under the circuit. Learn it with smoothing, or from data that have such rows"
            )
        value, _ = pairs(side, points, kernel)
        return (value @ coef)[side.patterns.point]

    # ------------------------------------------------------------ scikit-learn's interface
    def fit(self, X: Any = None, y: Any = None) -> ExpectedSVR:
        """Nothing is left to fit; returns itself."""
        return self

    def score(
        self,
        X: Tensor | np.ndarray,
        y: Tensor | np.ndarray,
        sample_weight: Tensor | np.ndarray | None = None,
    ) -> float:
        """R^2, the share of the (weighted) variance of y that the predictions explain."""
        from sklearn.metrics import r2_score

        predicted = self.predict(numbers(X).cpu().numpy())
        return float(r2_score(np.asarray(y), predicted, sample_weight=sample_weight))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {name: getattr(self, name) for name in PARAMETERS}

    def set_params(self, **params: Any) -> ExpectedSVR:
        """Replace some of them, all or none.

        Raises:
            ShapeMismatch, OptionError: as the constructor, or there is no such parameter.
        """
        for name in params:
            if name not in PARAMETERS:
                raise OptionError(f"no parameter {name!r}; there are {', '.join(PARAMETERS)}")
        self.__dict__.update(vars(ExpectedSVR(**(self.get_params() | params))))
        return self

    @property
    def n_features_in_(self) -> int:
        """D."""
        return self.circuit.num_variables

    def __repr__(self) -> str:
        return (
            f"ExpectedSVR({np.shape(self.support)[0]} support vectors, {self.kernel!r}, "
            f"{self.circuit!r})"
        )

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Tags:
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=False),
            regressor_tags=RegressorTags(),
            input_tags=InputTags(allow_nan=True),
        )
