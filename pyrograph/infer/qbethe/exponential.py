"""Expected potentials that are sums of polynomials times exponentials, in closed form.

Normal densities with latent scales, Poisson and gamma densities, log rates: see
:mod:`~pyrograph.trace.forms.exponentials`. Points of a quadrature see little of an exponential
under a wide component, and the optimiser would make use of that.

Source: :mod:`pyrograph.beliefs.expected_exponentials`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from pyrograph.beliefs.expected_exponentials import expected_exponentials
from pyrograph.infer.message_passing.continuous.exponential_form import exponentials_of
from pyrograph.infer.qbethe.components import Components
from pyrograph.infer.qbethe.first_order import first_order
from pyrograph.infer.qbethe.potentials import IntegratedPotential, scope_moments
from pyrograph.infer.qbethe.rules import Rules
from pyrograph.trace.forms.exponentials import Exponentials


class ExponentialPotential(IntegratedPotential):
    """Factors that are such functions in every state of their discrete nodes."""

    functions: Exponentials
    is_by_points = False

    @classmethod
    @torch.no_grad()
    def recognised(cls, potential: IntegratedPotential) -> ExponentialPotential | None:
        """The potential with its integrals in closed form, None if they are not."""
        functions = exponentials_of(potential.local.in_double())
        if functions is None:
            return None
        found = cls(potential.local, potential.wiring)
        found.functions = functions
        return found

    def expected(self, mixture: Components, rules: Rules) -> Tensor:
        mean, covariance = self._covariances(mixture)
        value = _Expected.apply(mean, covariance, self.functions)  # [B, L, D E]
        return (value * self._share(mixture).flatten(2)).sum(2)

    def _covariances(self, mixture: Components) -> tuple[Tensor, Tensor]:
        """Mean ``[B, L, D E, r]`` and covariance ``[B, L, D E, r, r]`` of u."""
        mean, root = scope_moments(mixture, self.wiring, self.maps)
        mean = mean.unsqueeze(2)
        root = (torch.diag_embed(root) if root.dim() + 1 == mean.dim() else root).unsqueeze(2)
        if self.joint is not None:
            mean = (self.joint @ mean.unsqueeze(-1)).squeeze(-1)
            root = self.joint @ root
        elif self.local.num_states > 1:
            mean = mean.expand(-1, -1, self.local.num_states, -1, -1)
            root = root.expand(-1, -1, self.local.num_states, -1, -1, -1)
        return mean.flatten(2, 3), (root @ root.mT).flatten(2, 3)


class _Expected(torch.autograd.Function):
    """E f ``[*batch, E]``; its derivatives are E f' by the mean, E f'' / 2 by the covariance.

    In double precision, whatever the dtype of components: terms of it cancel that an exponential
    makes large.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, mean: Tensor, covariance: Tensor, functions: Exponentials
    ) -> Tensor:
        found = expected_exponentials(functions, mean.double(), covariance.double())
        value, slope, bend = (own.to(mean.dtype) for own in found)
        ctx.save_for_backward(slope, bend)
        return value

    @staticmethod
    @first_order
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        slope, bend = ctx.saved_tensors
        return grad[..., None] * slope, 0.5 * grad[..., None, None] * bend, None
