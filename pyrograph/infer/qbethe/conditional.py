"""Expected potentials of factors that are quadratic in some numbers, given the others.

A normal density of a latent mean and a latent scale is no quadratic function of both, but with
u = (t, s), t the scale,

    E log f(u) = E_t E[log f(t, s) | t] = E_t 1/(2k) sum_i log f(t, m(t) +- sqrt(k) G e_i)

for k numbers s, Gaussian given t with mean m(t) and covariance G G': 2k points are exact for what
is quadratic in s. So a grid is laid over t alone, finer than one over all of u could be, and no
point of it has to find a ridge that is as narrow as the scale.

Source: Stroud (1957), the cubature of degree 3; Rao-Blackwell's theorem.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrograph.infer.message_passing.quadrature.conditional import quadratic_coordinates
from pyrograph.infer.qbethe.potentials import IntegratedPotential

#: Numbers s, at most: of more, points scattered over all of u are fewer.
MOST_INNER = 16


class ConditionalPotential(IntegratedPotential):
    """Factors whose numbers u are sorted into t, integrated by rules, and s, in closed form."""

    @classmethod
    def recognised(cls, potential: IntegratedPotential) -> IntegratedPotential:
        """The potential with its integrals over s in closed form, or as it is."""
        local = potential.local
        inner = quadratic_coordinates(local)
        if not 0 < len(inner) <= MOST_INNER:
            return potential
        order = [n for n in range(local.dim) if n not in inner] + inner
        if local.joint is None:
            rows = torch.eye(local.dim, dtype=local.like.dtype, device=local.like.device)
            local.joint = rows[order].expand(local.num_states, local.num_factors, -1, -1)
        else:
            local.joint = local.joint[:, :, order]
        found = cls(local, potential.wiring)
        found.dim = local.dim - len(inner)
        if found.dim > 1:
            found.num_read = found.dim
        return found

    def _standard(self, points: Tensor) -> Tensor:
        k = self.local.dim - self.dim
        eye = math.sqrt(k) * torch.eye(k, dtype=points.dtype, device=points.device)
        s = torch.cat([eye, -eye])
        t = points.unsqueeze(1).expand(-1, len(s), -1)
        return torch.cat([t, s.expand(len(points), -1, -1)], 2).flatten(0, 1)
