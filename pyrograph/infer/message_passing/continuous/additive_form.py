"""Expectations at alpha = 0 where log f is a sum of functions of one number each,

    log f(u) = sum_i g_i(u_i)

as the logarithms of a simplex are, which is broken off a stick: of K probabilities

    log p_k = log s_k(u_k) + sum_{j < k} log(1 - s_j(u_j)),     s_j = sigmoid(u_j - log(K - 1 - j))

so that categorical, multinomial and Dirichlet statements are of this kind. Points on lines through
the mean m of the beliefs, along the axes, then know all of it, instead of a grid in all numbers:

    E log f = log f(m) + sum_i (E_i - log f(m)),      E_i = E_{u_i} log f(m_1, .., u_i, .., m_r)

    E d_i log f = E_i' ,      E d_i^2 log f = E_i'' ,      E d_i d_j log f = 0

of which the derivatives of E_i by the mean of u_i are moments times Hermite polynomials, as in
:mod:`.mean_field`.

That log f is such a sum is seen at points: with two of them, a and b,

    log f(a) + log f(b) = log f(a but b_i) + log f(b but a_i)        for every i.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor

from pyrograph.beliefs import Conjugate
from pyrograph.infer.message_passing.continuous.mean_field import CHUNK, Expectations
from pyrograph.infer.message_passing.densities.checked import CheckedDensity
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.quadrature.tilted import POINTS
from pyrograph.quadrature import gauss_hermite

#: Scales of pairs of points, and how far off the sums may be, relative to their terms: further out
#: 1 - sigmoid(u) has fewer digits.
SCALES, ROUNDING = (1.0, 0.3, 2.0, 1.0, 3.0), 1e-10


class AdditiveForm:
    """Of a set of like factors.

    Args:
        local: their density in effective coordinates, in double precision.
        num_points: on each line.
    """

    def __init__(self, local: LocalDensity, num_points: int):
        self.density, self.num_points = CheckedDensity(local), num_points
        self.z, self.weight = gauss_hermite(num_points, 1, local.like.dtype, local.like.device)

    @staticmethod
    @torch.no_grad()
    def of(local: LocalDensity, num_points: int | None = None) -> AdditiveForm | None:
        """None where log f is another function, or one of a single number."""
        if local.dim < 2 or local.chosen or not _is_additive(local):
            return None
        return AdditiveForm(local, num_points or POINTS[1])

    def part(self, which: Tensor) -> AdditiveForm:
        """Some of the factors, ``which [e]``."""
        out = copy(self)
        out.density = CheckedDensity(self.density.local.part(which))
        return out

    def __call__(self, moments: tuple[Tensor, Tensor], others: Sequence[Conjugate]) -> Expectations:
        """Of log f and its derivatives.

        Args:
            moments: mean ``[D, E, r]`` and covariance ``[D, E, r, r]`` of u.
            others: none.
        """
        sd = moments[1].diagonal(dim1=-2, dim2=-1).sqrt()
        log_f = self._on_lines(self.z, moments, sd)
        centre = self._values(moments[0][None], moments)  # [1, D, E]
        z, weight = self.z.view(-1, 1, 1, 1), self.weight.view(-1, 1, 1, 1)
        gain = weight * (log_f - centre[..., None])  # [n, D, E, r]
        by_line = gain.sum(0)
        gap = gain - weight * by_line
        bend = (gap * (z * z)).sum(0) / sd.square()
        return Expectations(
            centre[0] + by_line.sum(-1), (gap * z).sum(0) / sd, torch.diag_embed(bend), []
        )

    def overflow(self, moments: tuple[Tensor, Tensor], within: float) -> bool:
        """Whether some log f is too large a number at the ends of the lines, or so many standard
        deviations off."""
        mean, sd = moments[0], moments[1].diagonal(dim1=-2, dim2=-1).sqrt()
        far = max(within, float(self.z.abs().max()))
        u = torch.cat([mean[None], _lines(self.z.new_tensor([-far, far]), mean, sd).flatten(0, 1)])
        return bool(self.density.too_large(self.density(u, mean), u, mean).any())

    def _on_lines(self, z: Tensor, moments: tuple[Tensor, Tensor], sd: Tensor) -> Tensor:
        """log f so many standard deviations off the mean in one number each, ``[n, D, E, r]``."""
        lines = _lines(z, moments[0], sd).flatten(0, 1)
        found = self._values(lines, moments)
        return found.unflatten(0, (len(z), -1)).movedim(1, -1)

    def _values(self, u: Tensor, moments: tuple[Tensor, Tensor]) -> Tensor:
        pieces = u.split(max(1, CHUNK // max(1, u[0].numel())))
        return torch.cat([self.density.positive(piece, moments) for piece in pieces])


def _lines(z: Tensor, mean: Tensor, sd: Tensor) -> Tensor:
    """Points ``[n, r, D, E, r]`` that are so many ``sd`` off the mean in one number each."""
    axes = torch.diag_embed(sd).movedim(-2, 0)  # [r, D, E, r]
    return mean + z.view(-1, 1, 1, 1, 1) * axes


def _is_additive(local: LocalDensity) -> bool:
    """Whether log f is a sum of functions of one number of u each, in all states."""
    size = (2, local.num_states, local.num_factors, local.dim)
    generator = torch.Generator().manual_seed(0)
    for scale in SCALES:
        z = torch.randn(size, generator=generator, dtype=torch.float64, device="cpu")
        a, b = scale * z.to(local.like)
        whole = local(torch.stack([a, b]))
        for i in range(local.dim):
            mask = torch.arange(local.dim, device=a.device) == i
            swapped = local(torch.stack([torch.where(mask, b, a), torch.where(mask, a, b)]))
            size_of = 1 + whole.abs().sum(0) + swapped.abs().sum(0)
            off = (whole.sum(0) - swapped.sum(0)).abs()
            if not bool((off <= ROUNDING * size_of).all()):
                return False
    return True
