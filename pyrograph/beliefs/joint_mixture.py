"""A mixture over all latents, site by site: sum_l w_l prod_i q_il(x_i).

Continuous nodes are Gaussian within a component, discrete nodes categorical.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LOG_2_PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class Normals:
    """A site's nodes under every component, unconstrained.

    Shapes:
        mean: ``[L, n, d]``; factor: ``[L, n, d, d]``, lower triangular roots of the covariances,
        or ``[L, n, d]``, standard deviations of numbers that are independent.
    """

    mean: Tensor
    factor: Tensor

    @property
    def is_dense(self) -> bool:
        """Whether the factor is of roots."""
        return self.factor.dim() > self.mean.dim()

    @property
    def is_diagonal(self) -> bool:
        """Whether a node's numbers are independent, by the shapes alone."""
        return not self.is_dense or self.mean.shape[-1] == 1

    @property
    def scale(self) -> Tensor:
        """Standard deviations ``[L, n, d]``."""
        return self.factor.norm(dim=-1) if self.is_dense else self.factor

    @property
    def root(self) -> Tensor:
        """``[L, n, d, d]`` whatever the covariance is like."""
        return self.factor if self.is_dense else torch.diag_embed(self.factor)

    def log_prob(self, x: Tensor) -> Tensor:
        """``[*S, L, n]`` of ``[*S, n, d]``."""
        x = x.unsqueeze(-3)
        if self.is_diagonal:
            scale = self.scale
            white = (x - self.mean) / scale
            return (-0.5 * white.square() - scale.log() - 0.5 * LOG_2_PI).sum(-1)
        normal = torch.distributions.MultivariateNormal(
            self.mean, scale_tril=self.factor, validate_args=False
        )
        return normal.log_prob(x)

    def sample(self, component: Tensor) -> Tensor:
        """``[S, n, d]`` for components ``[S]``; differentiable in both tensors."""
        noise = torch.randn(len(component), *self.mean.shape[1:]).to(self.mean)
        if self.is_diagonal:
            return self.mean[component] + self.scale[component] * noise
        # component by component: a root for every draw would be d times the result
        parts, place = _by_component(component, len(self.mean))
        steps = [
            torch.einsum("nij,snj->sni", root, noise[draws])
            for root, draws in zip(self.factor, parts, strict=True)
        ]
        return self.mean[component] + torch.cat(steps)[place]

    def given(self, mask: Tensor, x: Tensor) -> Normals:
        """With the nodes in ``mask [n]`` held at ``x [n, d]``."""
        held = mask.unsqueeze(1)
        no_width = held.unsqueeze(2) if self.is_dense else held
        return Normals(torch.where(held, x, self.mean), torch.where(no_width, 0.0, self.factor))


@dataclass(frozen=True)
class Categoricals:
    """A site's nodes under every component: ``log_p [L, n, c]``, normalised."""

    log_p: Tensor

    def log_prob(self, state: Tensor) -> Tensor:
        """``[*S, L, n]`` of state numbers ``[*S, n]``."""
        index = state.unsqueeze(-2).unsqueeze(-1)
        shape = torch.broadcast_shapes(index.shape[:-1], self.log_p.shape[:-1])
        table = self.log_p.expand(*shape, self.log_p.shape[-1])
        return table.gather(-1, index.expand(*shape, 1)).squeeze(-1)

    def sample(self, component: Tensor) -> Tensor:
        """State numbers ``[S, n]`` for components ``[S]``."""
        parts, place = _by_component(component, len(self.log_p))
        drawn = [
            torch.distributions.Categorical(logits=log_p, validate_args=False).sample((len(draws),))
            for log_p, draws in zip(self.log_p, parts, strict=True)
            if len(draws)
        ]
        return torch.cat(drawn)[place]

    def given(self, mask: Tensor, state: Tensor) -> Categoricals:
        """With the nodes in ``mask [n]`` held at states ``[n]``."""
        hot = torch.nn.functional.one_hot(state, self.log_p.shape[-1]).to(self.log_p).log()
        return Categoricals(torch.where(mask.unsqueeze(1), hot, self.log_p))


def _by_component(component: Tensor, count: int) -> tuple[Sequence[Tensor], Tensor]:
    """Positions of each component's draws, and of every draw ``[S]`` in their concatenation."""
    order = component.argsort(stable=True)
    return order.split(component.bincount(minlength=count).tolist()), order.argsort()


@dataclass(frozen=True)
class JointMixture:
    """The mixture.

    Attributes:
        log_weights: ``[L]``, normalised.
        sites: nodes of every site, in row-major order.
    """

    log_weights: Tensor
    sites: Mapping[str, Normals | Categoricals]

    @property
    def num_components(self) -> int:
        return len(self.log_weights)

    def log_prob(self, values: Mapping[str, Tensor]) -> Tensor:
        """``[*S]``: log density of the given sites, others integrated out.

        Args:
            values: ``[*S, n, d]`` unconstrained numbers or ``[*S, n]`` state numbers.
        """
        parts = [self.sites[name].log_prob(value).sum(-1) for name, value in values.items()]
        return (sum(parts) + self.log_weights).logsumexp(-1)

    def draw_components(self, count: int) -> Tensor:
        """``[count]``."""
        return torch.multinomial(self.log_weights.exp(), count, replacement=True)

    def condition(self, known: Mapping[str, tuple[Tensor, Tensor]]) -> JointMixture:
        """Given some nodes.

        Args:
            known: mask ``[n]`` and values, as :meth:`log_prob` has them without S, by site.
        """
        log_weights, sites = self.log_weights, dict(self.sites)
        for name, (mask, value) in known.items():
            likelihood = self.sites[name].log_prob(value)  # [L, n]
            log_weights = log_weights + torch.where(mask, likelihood, 0.0).sum(1)
            sites[name] = sites[name].given(mask, value)
        return JointMixture(log_weights.log_softmax(0), sites)
