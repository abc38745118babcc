"""The alpha-divergence of two unnormalised measures, and the scale that minimises it.

    D_alpha(p || q) = [int alpha p + (1 - alpha) q - p^alpha q^(1 - alpha)] / (alpha (1 - alpha))

with the limits KL(q || p) at alpha = 0 and KL(p || q) at alpha = 1, KL(p || q) being
int p log(p / q) + q - p. It is >= 0, zero only for p = q, and D_alpha(p, q) =
D_(1 - alpha)(q, p). alpha = 1/2 is twice the squared Hellinger distance, alpha = 2 half the
chi-square distance.

For Gaussians everything follows from R = -log(int p^alpha q^(1 - alpha)) / (alpha (1 - alpha))
of the normalised densities, which has a closed form: with E = Lp^-1 (Sq - Sp) Lp^-T and
y = Lp^-1 (mp - mq),

    2 R = y' (I + alpha E)^-1 y + sum_i [log1p(alpha e_i) / alpha - log1p(e_i)] / (1 - alpha),

infinite where I + alpha E is not positive definite, which is where the integral diverges.

Source: Minka (2005), "Divergence measures and message passing", eqs (2) to (8).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrograph.divergences.measures import Discrete, Gaussian, Gridded
from pyrograph.divergences.pairs import atom_pair, check_mass, gaussian_order
from pyrograph.divergences.pointwise import (
    gaussian_gap,
    is_limit,
    log_product,
    masked_expm1,
    oriented,
    pointwise_divergence,
)
from pyrograph.errors import OptionError

#: Where the log affinity of two normalised measures is below this, it is computed from the
#: affinity's distance to one: the logarithm cancels there, and the distance elsewhere.
NEAR_ONE = 0.5

Measure = Discrete | Gridded | Gaussian


def alpha_divergence(p: Measure, q: Measure, alpha: float | Tensor) -> Tensor:
    """D_alpha(p || q), one value per element of the batch.

    Args:
        p, q: two measures of one kind; their batches broadcast.
        alpha: number, or tensor that broadcasts with the batch. Within 1e-8 of 0 or 1 the
            limit is taken.

    Returns:
        ``[...]``, ``inf`` where the integral diverges: q without support where p has mass for
        alpha >= 1, p without support where q has mass for alpha <= 0, and Gaussians whose
        ``alpha / Sp + (1 - alpha) / Sq`` is not positive definite.

    Raises:
        ShapeMismatch: the measures do not live on the same space, or batches do not broadcast.
        NonFiniteDensity: a mass is NaN or infinite, or the mean or covariance of a Gaussian is.
        OptionError: alpha is no finite number, or a covariance is not positive definite.
    """
    if isinstance(p, Gaussian) and isinstance(q, Gaussian):
        alpha = gaussian_order(p, q, alpha)
        c = alpha * (1 - alpha)
        limit = is_limit(c)
        shape = gaussian_shape_divergence(p, q, alpha)
        # D of the masses, plus what the shapes add: nothing where a mass is zero
        masses = pointwise_divergence(p.log_mass, q.log_mass, alpha)
        both = _both_have_mass(p, q)
        log_mixed = torch.where(both, log_product(p.log_mass, q.log_mass, alpha), 0)
        curved = masked_expm1(log_mixed, -c * torch.where(limit, 0, shape))
        added = torch.where(limit, log_mixed.exp() * shape, -curved / torch.where(limit, 1, c))
        return masses + torch.where(both, added, 0)
    a, b, alpha = atom_pair(p, q, alpha)
    return pointwise_divergence(a, b, alpha[..., None]).sum(-1)


def log_affinity(p: Measure, q: Measure, alpha: float | Tensor) -> Tensor:
    """log int p^alpha q^(1 - alpha), ``[...]``; arguments as in :func:`alpha_divergence`."""
    if isinstance(p, Gaussian) and isinstance(q, Gaussian):
        alpha = gaussian_order(p, q, alpha)
        c = alpha * (1 - alpha)
        shape = gaussian_shape_divergence(p, q, alpha)
        shape = torch.where((c != 0) & _both_have_mass(p, q), shape, 0)
        return log_product(p.log_mass, q.log_mass, alpha) - c * shape
    a, b, alpha = atom_pair(p, q, alpha)
    return log_product(a, b, alpha[..., None]).logsumexp(-1)


def optimal_scale(p: Measure, q: Measure, alpha: float | Tensor) -> Tensor:
    """log s of the scale that minimises D_alpha(p || s q), eq (8).

        s = (int p^alpha q^(1 - alpha) / int q)^(1 / alpha),   log s = E_q[log p / q] at alpha = 0

    The mass of s q never exceeds that of p for alpha < 1 and never falls below it for
    alpha > 1; it does not decrease with alpha (Theorem 2).

    Returns:
        ``[...]``; ``-inf`` and ``inf`` where no positive scale makes the divergence finite.

    Raises:
        ZeroMass: q is zero on all atoms, and no scale changes that.
    """
    if isinstance(p, Gaussian) and isinstance(q, Gaussian):
        alpha = gaussian_order(p, q, alpha)
        shape = gaussian_shape_divergence(p, q, alpha)
        shape = torch.where((alpha != 1) & _both_have_mass(p, q), shape, 0)
        return p.log_mass - q.log_mass - (1 - alpha) * shape
    a, b, alpha = atom_pair(p, q, alpha)
    check_mass("q", b)
    limit = is_limit(alpha)
    divisor = torch.where(limit, 1, alpha)
    # of q normalised and p at most 1: what is divided by alpha are small numbers
    scale_of_p = a.amax(-1)
    scale_of_p = torch.where(scale_of_p > -math.inf, scale_of_p, 0).detach()
    offset = scale_of_p - b.logsumexp(-1)
    a, b = a - scale_of_p[..., None], b - b.logsumexp(-1, keepdim=True)
    plain = log_product(a, b, alpha[..., None]).logsumexp(-1) / divisor

    # near alpha = 0 the logarithm above is close to zero: centre it
    both = (a > -math.inf) & (b > -math.inf)
    t = torch.where(both, a - torch.where(both, b, 0), 0)
    weights = torch.where(both, b.exp(), 0)
    centre = (weights * t).sum(-1)
    u = alpha[..., None] * torch.where(both, t - centre[..., None], 0)
    # where q alone is zero so is p^alpha q^(1 - alpha), for alpha < 1
    is_nothing = (b == -math.inf) & ((a == -math.inf) | (alpha[..., None] < 1))
    mild = (both | is_nothing).all(-1) & (u.abs().amax(-1) < 1)
    excess = (weights * torch.where(mild[..., None], u, 0).expm1()).sum(-1)
    centred = centre + excess.log1p() / divisor

    p_covers_q = ((a > -math.inf) | (b == -math.inf)).all(-1)
    at_limit = torch.where(p_covers_q, centre, -math.inf)
    return offset + torch.where(limit, at_limit, torch.where(mild, centred, plain))


def scale_free_divergence(p: Measure, q: Measure, alpha: float | Tensor) -> Tensor:
    """-log(int p^alpha q^(1 - alpha)) / (alpha (1 - alpha)) of the *normalised* p and q.

    Renyi's divergence over alpha. At the optimal scale D_alpha(p || s q) is an increasing
    function of it, so both have the same minimiser, but this one neither over- nor underflows.
    Limits KL(q || p) at alpha = 0 and KL(p || q) at 1; same infinities and errors as the
    divergence.

    Raises:
        ZeroMass: a measure on atoms has no mass and cannot be normalised.
    """
    if isinstance(p, Gaussian) and isinstance(q, Gaussian):
        return gaussian_shape_divergence(p, q, gaussian_order(p, q, alpha))
    a, b, alpha = atom_pair(p, q, alpha)
    check_mass("p", a)
    check_mass("q", b)
    return normalised_divergence(a, b, alpha)


def normalised_divergence(a: Tensor, b: Tensor, alpha: float | Tensor) -> Tensor:
    """:func:`scale_free_divergence` of log masses ``[..., n]``; not finite where they are not."""
    alpha = torch.as_tensor(alpha, dtype=a.dtype, device=a.device)
    a = a - a.logsumexp(-1, keepdim=True)
    b = b - b.logsumexp(-1, keepdim=True)
    c = alpha * (1 - alpha)
    limit = is_limit(c)
    divisor = torch.where(limit, 1, c)
    log_affinity = log_product(a, b, alpha[..., None]).logsumexp(-1)
    near = log_affinity.abs() < NEAR_ONE
    # int p^alpha q^(1 - alpha) = 1 - c D; elsewhere D can overflow, and is asked of p = q = 1
    used = (near | limit)[..., None]
    a, b = torch.where(used, a, 0), torch.where(used, b, 0)
    divergence = pointwise_divergence(a, b, alpha[..., None]).sum(-1)
    by_distance = -(-torch.where(near & ~limit, c * divergence, 0)).log1p() / divisor
    by_logarithm = -log_affinity / divisor
    return torch.where(limit, divergence, torch.where(near, by_distance, by_logarithm))


def gaussian_shape_divergence(p: Gaussian, q: Gaussian, alpha: Tensor) -> Tensor:
    """R of the module's docstring, ``[...]``: the scale-free divergence in closed form."""
    difference = p.mean - q.mean
    alpha_matrix, cov_p, cov_q = oriented(alpha[..., None, None], p.covariance, q.covariance)
    alpha = alpha_matrix[..., 0, 0]
    root = cholesky(cov_p)
    cholesky(cov_q)
    half = torch.linalg.solve_triangular(root, cov_q - cov_p, upper=False)
    excess = torch.linalg.solve_triangular(root, half.mT, upper=False)
    excess = (excess + excess.mT) / 2
    y = torch.linalg.solve_triangular(root, difference[..., None], upper=False)
    e = torch.linalg.eigvalsh(excess)
    finite = (1 + alpha[..., None] * e > 0).all(-1)
    identity = torch.eye(e.shape[-1], dtype=e.dtype, device=e.device)
    mixed = torch.where(finite[..., None, None], identity + alpha_matrix * excess, identity)
    square = (y * torch.linalg.solve(mixed, y)).sum((-2, -1))
    gap = gaussian_gap(e, alpha[..., None]).sum(-1)
    return torch.where(finite, (square + gap) / 2, math.inf)


def _both_have_mass(p: Gaussian, q: Gaussian) -> Tensor:
    """Where neither measure is zero, ``[...]``: a zero measure has no shape."""
    return (p.log_mass > -math.inf) & (q.log_mass > -math.inf)


def cholesky(covariance: Tensor) -> Tensor:
    """Cholesky factor, or an error that says which covariance has none."""
    root, failed = torch.linalg.cholesky_ex(covariance)
    if bool(failed.any()):
        raise OptionError(
            f"Gaussian: {int((failed > 0).sum())} of {failed.numel()} covariances are not positive "
            "definite; a divergence needs proper Gaussians"
        )
    return root
