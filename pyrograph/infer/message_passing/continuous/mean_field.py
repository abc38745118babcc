"""Messages at alpha = 0: expectations of log f under the beliefs, and their derivatives.

A Gaussian node gets the Gaussian of the expected derivatives,

    tau = -E_q[d2 log f],      nu = E_q[d log f] + tau E_q v

found without differentiating, as moments of log f times Hermite polynomials; a node with natural
parameters eta and statistics T gets the natural gradient, the regression of log f on T,

    eta = Cov_q(T)^-1 Cov_q(T, log f)

which for a conjugate factor is its own parameter whatever the quadrature. Weights are calibrated:
what is linear in T is integrated without error, and only the rest by quadrature.

Where log f is a polynomial, as that of a product under Gaussian noise is, a few points have it
times a Hermite polynomial of degree 2 without error, however many numbers it is of.

Source: Winn & Bishop (2005); Khan & Rue (2023), eqs (8) and (10); Deville & Sarndal (1992) for
calibrated weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.beliefs import Conjugate
from pyrograph.beliefs.gaussian import apply
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.quadrature import fully_symmetric, gauss_hermite
from pyrograph.trace.forms.degree import polynomial_degree

#: Polynomials of a higher degree, or of so many points, are integrated as other functions are.
MOST_DEGREE, MOST_POINTS = 4, 3**8
#: Numbers of all factors that points have at once.
CHUNK = 2**22


def rule_without_error(local: LocalDensity) -> tuple[Tensor, Tensor] | None:
    """Nodes ``[N, r]`` and weights ``[N]`` that suffice for expectations of polynomials; None for
    other functions, and where there were too many."""
    given, dim = set(local.discrete), local.dim
    degree = polynomial_degree(local.group.program, given)
    if local.chosen or degree > MOST_DEGREE:
        return None
    of_number = max(degree, 0)
    if local.joint is None:  # numbers of u are of one slot each
        slots = set(local.continuous)
        apart = [given | (slots - {k}) for k in slots]
        of_number = max(polynomial_degree(local.group.program, others) for others in apart)
    like = local.like.dtype, local.like.device
    if of_number + 2 <= 5:
        size = 1 + 2 * dim + 2 * dim * (dim - 1) + 4 * dim * (dim - 1) * (dim - 2) // 3
        return fully_symmetric(dim, *like) if size <= MOST_POINTS else None
    number = (int(of_number) + 4) // 2  # K points are exact for degree 2 K - 1
    return gauss_hermite(number, dim, *like) if number**dim <= MOST_POINTS else None


@dataclass(frozen=True)
class Expectations:
    """Of log f over u under independent beliefs, for every state of the discrete nodes.

    Shapes:
        average: ``[D, E]``.
        slope: ``[D, E, r]``, bend: ``[D, E, r, r]``: first and second derivatives by u.
        natural: of every gamma or beta number in turn, ``[D, E, 2]``.
    """

    average: Tensor
    slope: Tensor
    bend: Tensor
    natural: list[Tensor]

    def of(self, row: Tensor) -> Expectations:
        """Those of the factors in these rows ``[e]``."""
        parts = (self.average, self.slope, self.bend)
        return Expectations(*(x[:, row] for x in parts), [x[:, row] for x in self.natural])


def expectations(
    log_density: Callable[[Tensor], Tensor],
    moments: tuple[Tensor, Tensor],
    rule: tuple[Tensor, Tensor],
    others: list[tuple[Conjugate, int]],
) -> Expectations:
    """Expectations by a rule.

    Args:
        log_density: log f, ``[N, D, E]`` of ``[N, D, E, r]``.
        moments: mean ``[D, E, r]`` and covariance ``[D, E, r, r]`` of u.
        rule: nodes ``[N, r]`` and weights ``[N]`` for N(0, I).
        others: gamma and beta beliefs, batch ``[D, E]``, and where in u they stand.
    """
    mean, covariance = moments
    z, weight = rule[0], rule[1][:, None, None]
    root = torch.linalg.cholesky(covariance)
    deviations = []
    if others:
        u = mean + apply(root, z[:, None, None, :])
        weight, deviations = _calibrated(weight, u, others)
        value = log_density(u)
    else:
        pieces = z[:, None, None, :].split(max(1, CHUNK // max(1, mean.numel())))
        value = torch.cat([log_density(mean + apply(root, piece)) for piece in pieces])
    average = (weight * value).sum(0)
    gap = weight * (value - average)
    first = torch.einsum("nde,nr->der", gap, z)
    second = torch.einsum("nde,nrs->ders", gap, z[:, :, None] * z[:, None])
    eye = torch.eye(z.shape[1], dtype=root.dtype, device=root.device)
    whitening = torch.linalg.solve_triangular(root, eye, upper=False)
    natural = []
    for off in deviations:
        scatter = torch.einsum("nde,ndei,ndej->deij", weight, off, off)
        pull = torch.einsum("nde,ndei->dei", gap, off)
        natural.append(torch.linalg.solve(scatter, pull[..., None]).squeeze(-1))
    return Expectations(
        average, apply(whitening.mT, first), whitening.mT @ second @ whitening, natural
    )


def _calibrated(
    weight: Tensor, u: Tensor, beliefs: list[tuple[Conjugate, int]]
) -> tuple[Tensor, list[Tensor]]:
    """Weights ``[N, D, E]`` under which gamma and beta numbers have the right expectations of 1 and
    T, and T minus these, ``[N, D, E, 2]`` each.

    They start as ratios of the beliefs to the normals of their moments. The correction, linear in
    T, makes everything exact that is linear in the T of every node, as conjugate factors are.
    """
    deviations = []
    for q, column in beliefs:
        at, normal = u[..., column : column + 1], q.normal
        ratio = q.log_value(at) - q.log_mass - normal.log_value(at) + normal.log_mass
        weight = weight * ratio.exp()
    weight = weight / weight.sum(0)
    for q, column in beliefs:
        statistics = q.statistics(u[..., column : column + 1])
        off = statistics - (weight[..., None] * statistics).sum(0)
        scatter = torch.einsum("nde,ndei,ndej->deij", weight, off, off)
        gap = (q.expected - (weight[..., None] * statistics).sum(0)).unsqueeze(-1)
        slope = torch.linalg.solve(scatter, gap).squeeze(-1)
        weight = weight * (1 + (off * slope).sum(-1))
        deviations.append(statistics - q.expected)
    return weight, deviations
