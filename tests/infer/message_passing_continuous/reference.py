"""Independent truth: linear Gaussian models, plain expectation propagation, dense grids.

Nothing here touches the library: numpy and scipy alone.
"""

from collections.abc import Callable

import numpy as np
from scipy.special import logsumexp


class LinearGaussian:
    """log p(x) = sum_a log N(y_a; A_a x, R_a), a function of x alone.

    Args:
        dim: length of x.
    """

    def __init__(self, dim: int):
        self.precision, self.shift, self.constant = np.zeros((dim, dim)), np.zeros(dim), 0.0

    def add(self, design, value, covariance) -> "LinearGaussian":
        """Multiply N(value; design x, covariance) in; scalars are taken as 1 by 1."""
        a, y = np.atleast_2d(np.asarray(design, float)), np.atleast_1d(np.asarray(value, float))
        r = np.atleast_2d(np.asarray(covariance, float))
        inverse = np.linalg.inv(r)
        self.precision += a.T @ inverse @ a
        self.shift += a.T @ inverse @ y
        self.constant += -0.5 * y @ inverse @ y - 0.5 * np.linalg.slogdet(2 * np.pi * r)[1]
        return self

    @property
    def covariance(self) -> np.ndarray:
        return np.linalg.inv(self.precision)

    @property
    def mean(self) -> np.ndarray:
        return np.linalg.solve(self.precision, self.shift)

    @property
    def log_evidence(self) -> float:
        return self.constant + log_mass(self.precision, self.shift)


def log_mass(precision, shift) -> float:
    """Log integral of exp(-x' P x / 2 + h' x)."""
    precision, shift = np.atleast_2d(precision), np.atleast_1d(shift)
    quadratic = 0.5 * shift @ np.linalg.solve(precision, shift)
    return quadratic - 0.5 * np.linalg.slogdet(precision / (2 * np.pi))[1]


def plain_ep(
    mean,
    covariance,
    directions,
    log_f: Callable[[int, np.ndarray], np.ndarray],
    alpha: float = 1.0,
    sweeps: int = 100,
    points: int = 1201,
    step: float = 1.0,
):
    """Sequential expectation propagation for N(x; mean, covariance) prod_a f_a(b_a' x).

    Integrals are trapezoid sums over 12 cavity deviations to either side.

    Returns:
        Mean, covariance, log evidence, and the precisions of the sites.
    """
    b = np.atleast_2d(np.asarray(directions, float))
    prior = np.linalg.inv(np.atleast_2d(covariance))
    lift = prior @ np.atleast_1d(mean)
    tau, nu, ratio = np.zeros(len(b)), np.zeros(len(b)), np.zeros(len(b))
    grid = np.linspace(-12, 12, points)
    for _ in range(sweeps):
        before = tau.copy()
        for a in range(len(b)):
            cov = np.linalg.inv(prior + (b.T * tau) @ b)
            m, v = b[a] @ cov @ (lift + b.T @ nu), b[a] @ cov @ b[a]
            t, h = 1 / v - alpha * tau[a], m / v - alpha * nu[a]
            if t <= 0:
                continue  # an improper cavity
            z = h / t + grid / np.sqrt(t)
            base = -0.5 * t * z**2 + h * z
            width = np.log(z[1] - z[0])
            value = alpha * log_f(a, z) + base
            mass = logsumexp(value) + width
            weight = np.exp(value + width - mass)
            found = weight @ z
            spread = weight @ (z - found) ** 2
            tau[a] += step * (1 / spread - 1 / v) / alpha
            nu[a] += step * (found / spread - m / v) / alpha
            ratio[a] = mass - log_mass(t + alpha * tau[a], h + alpha * nu[a])
        if np.abs(tau - before).max() < 1e-13 * (1 + np.abs(tau).max()):
            break
    precision, shift = prior + (b.T * tau) @ b, lift + b.T @ nu
    evidence = log_mass(precision, shift) - log_mass(prior, lift) + ratio.sum() / alpha
    cov = np.linalg.inv(precision)
    return cov @ shift, cov, evidence, tau


def dense(log_density: Callable, low: list[float], high: list[float], points: int = 1001):
    """Log mass, means and covariance of a density on a rectangle, by the trapezoid rule.

    Args:
        log_density: of ``[..., d]`` arrays.
    """
    axes = [np.linspace(a, b, points) for a, b in zip(low, high, strict=True)]
    x = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
    value = log_density(x)
    total = logsumexp(value)
    weight = np.exp(value - total)
    mean = weight @ x
    cell = sum(np.log(axis[1] - axis[0]) for axis in axes)
    return total + cell, mean, ((x - mean) * weight[:, None]).T @ (x - mean)
