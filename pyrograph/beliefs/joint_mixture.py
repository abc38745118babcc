"""A mixture over all latents, site by site: sum_l w_l prod_i q_il(x_i).

Continuous nodes are Gaussian within a component, discrete nodes categorical.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

LOG_2_PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class Normals:
    """A site's nodes under every component.

    Shapes:
        mean: ``[L, n, d]``; root: ``[L, n, d, d]``, lower triangular; both unconstrained.
    """

    mean: Tensor
    root: Tensor

    def log_prob(self, x: Tensor) -> Tensor:
        """``[*S, L, n]`` of ``[*S, n, d]``."""
        if self.mean.shape[-1] == 1:
            scale = self.root.squeeze(-1)
            white = (x.unsqueeze(-3) - self.mean) / scale
            return (-0.5 * white.square() - scale.log() - 0.5 * LOG_2_PI).squeeze(-1)
        normal = torch.distributions.MultivariateNormal(
            self.mean, scale_tril=self.root, validate_args=False
        )
        return normal.log_prob(x.unsqueeze(-3))

    def sample(self, component: Tensor) -> Tensor:
        """``[S, n, d]`` for components ``[S]``; differentiable in both tensors."""
        noise = torch.randn(len(component), *self.mean.shape[1:]).to(self.mean)
        step = (self.root[component] @ noise.unsqueeze(-1)).squeeze(-1)
        return self.mean[component] + step

    def given(self, mask: Tensor, x: Tensor) -> Normals:
        """With the nodes in ``mask [n]`` held at ``x [n, d]``."""
        mean = torch.where(mask.unsqueeze(1), x, self.mean)
        return Normals(mean, torch.where(mask[:, None, None], 0.0, self.root))


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
        logits = self.log_p[component]
        return torch.distributions.Categorical(logits=logits, validate_args=False).sample()

    def given(self, mask: Tensor, state: Tensor) -> Categoricals:
        """With the nodes in ``mask [n]`` held at states ``[n]``."""
        hot = torch.nn.functional.one_hot(state, self.log_p.shape[-1]).to(self.log_p).log()
        return Categoricals(torch.where(mask.unsqueeze(1), hot, self.log_p))


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
