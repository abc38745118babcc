"""A mixture over all latents, site by site: sum_l w_l q_l(x).

Continuous nodes are Gaussian within a component, discrete nodes categorical. Nodes of a component
are independent, q_l(x) = prod_i q_il(x_i), or the continuous ones are correlated with each other,

    z = m_l + R_l eps,    R_l lower triangular, one eps for all of them

Then sites are blocks of rows of one root, and whatever is left of a component when some numbers
are known or left out follows from the triangular root of rows in another order (:func:`_lower`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyrograph.beliefs.gaussian import LOG_2PI
from pyrograph.shapes import broadcast_shapes


@dataclass(frozen=True)
class Normals:
    """A site's nodes under every component, unconstrained.

    Shapes:
        mean: ``[L, n, d]``; factor: ``[L, n, d, d]``, lower triangular roots of the covariances,
        or ``[L, n, d, D]``, what they make of D numbers of noise, or ``[L, n, d]``, standard
        deviations of numbers that are independent.
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
        if not self.is_dense:
            return torch.diag_embed(self.factor)
        return self.factor if self.factor.shape[-1] == self.mean.shape[-1] else _lower(self.factor)

    def log_prob(self, x: Tensor) -> Tensor:
        """``[*S, L, n]`` of ``[*S, n, d]``."""
        x = x.unsqueeze(-3)
        if self.is_diagonal:
            scale = self.scale
            white = (x - self.mean) / scale
            return (-0.5 * white.square() - scale.log() - 0.5 * LOG_2PI).sum(-1)
        normal = torch.distributions.MultivariateNormal(
            self.mean, scale_tril=self.root, validate_args=False
        )
        return normal.log_prob(x)

    def sample(self, component: Tensor) -> Tensor:
        """``[S, n, d]`` for components ``[S]``; differentiable in both tensors."""
        shape = len(component), *self.mean.shape[1:]
        noise = torch.randn(shape, dtype=torch.float64, device="cpu").to(self.mean)
        if self.is_diagonal:
            return self.mean[component] + self.scale[component] * noise
        # component by component: a root for every draw would be d times the result
        parts, place = _by_component(component, len(self.mean))
        steps = [
            torch.einsum("nij,snj->sni", root, noise[draws])
            for root, draws in zip(self.root, parts, strict=True)
        ]
        return self.mean[component] + torch.cat(steps)[place]

    def given(self, mask: Tensor, x: Tensor) -> Normals:
        """With the nodes in ``mask [n]`` held at ``x [n, d]``."""
        held = mask.unsqueeze(1)
        no_width = held.unsqueeze(2) if self.is_dense else held
        return Normals(torch.where(held, x, self.mean), torch.where(no_width, 0.0, self.factor))

    def widened(self, mask: Tensor) -> Normals:
        """With independent numbers of width 1 in the nodes in ``mask [n]``."""
        held = mask.unsqueeze(1)
        if not self.is_dense:
            return Normals(self.mean, torch.where(held, 1.0, self.factor))
        unit = torch.eye(*self.factor.shape[-2:], device="cpu").to(self.factor)
        return Normals(self.mean, torch.where(held.unsqueeze(2), unit, self.factor))


@dataclass(frozen=True)
class Categoricals:
    """A site's nodes under every component: ``log_p [L, n, c]``, normalised."""

    log_p: Tensor

    def log_prob(self, state: Tensor) -> Tensor:
        """``[*S, L, n]`` of state numbers ``[*S, n]``."""
        index = state.unsqueeze(-2).unsqueeze(-1)
        shape = broadcast_shapes(index.shape[:-1], self.log_p.shape[:-1])
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


def _lower(factor: Tensor) -> Tensor:
    """The lower triangular root ``[*, k, k]`` of F F', for F ``[*, k, D]``: by reflections, so that
    nothing is squared."""
    upper = torch.linalg.qr(factor.mT, mode="r").R
    diagonal = upper.diagonal(dim1=-2, dim2=-1)
    return torch.where(diagonal < 0, -1.0, 1.0).to(factor).unsqueeze(-2) * upper.mT


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
        is_correlated: whether continuous nodes are, within a component: the factors
            ``[L, n, d, D]`` of all sites' :class:`Normals`, one below the other, are then lower
            triangular.
    """

    log_weights: Tensor
    sites: Mapping[str, Normals | Categoricals]
    is_correlated: bool = False

    @property
    def num_components(self) -> int:
        return len(self.log_weights)

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Of sites, ``[n, d]`` of numbers or ``[n]`` of states."""
        return {
            name: nodes.mean.shape[1:] if isinstance(nodes, Normals) else nodes.log_p.shape[1:2]
            for name, nodes in self.sites.items()
        }

    def log_prob(self, values: Mapping[str, Tensor]) -> Tensor:
        """``[*S]``: log density of the given sites, others integrated out.

        Args:
            values: ``[*S, n, d]`` unconstrained numbers or ``[*S, n]`` state numbers.
        """
        numbers, states = self.log_numbers(values), self.log_states(values)
        return (numbers + states + self.log_weights).logsumexp(-1)

    def log_numbers(self, values: Mapping[str, Tensor]) -> Tensor:
        """``[*S, L]``, of the continuous sites among those given, under every component."""
        names = self._continuous(values)
        if self.is_correlated and names:
            packed = torch.cat([values[name].flatten(-2) for name in names], -1)
            return self.together(names).log_prob(packed.unsqueeze(-2)).squeeze(-1)
        parts = (self.sites[name].log_prob(values[name]).sum(-1) for name in names)
        return sum(parts, torch.zeros_like(self.log_weights))

    def log_states(self, values: Mapping[str, Tensor]) -> Tensor:
        """``[*S, L]``, of the discrete sites among those given, under every component."""
        parts = (
            nodes.log_prob(values[name]).sum(-1)
            for name, nodes in self.sites.items()
            if name in values and isinstance(nodes, Categoricals)
        )
        return sum(parts, torch.zeros_like(self.log_weights))

    def _continuous(self, among: Iterable[str]) -> list[str]:
        """Sites, in the order of rows."""
        chosen = set(among)
        return [n for n, s in self.sites.items() if n in chosen and isinstance(s, Normals)]

    def together(self, names: Sequence[str]) -> Normals:
        """Correlated sites as a single node of all their numbers, in the order of the names."""
        mean = torch.cat([self.sites[name].mean.flatten(1) for name in names], 1)
        factor = torch.cat([self.sites[name].factor.flatten(1, 2) for name in names], 1)
        if list(names) != self._continuous(self.sites):
            factor = _lower(factor)
        return Normals(mean.unsqueeze(1), factor.unsqueeze(1))

    def detached(self) -> JointMixture:
        """Without derivatives in its Gaussians."""
        sites = {
            name: Normals(nodes.mean.detach(), nodes.factor.detach())
            if isinstance(nodes, Normals)
            else nodes
            for name, nodes in self.sites.items()
        }
        return replace(self, sites=sites)

    def sample(self, component: Tensor) -> dict[str, Tensor]:
        """By site, ``[S, n, d]`` or state numbers ``[S, n]``, for components ``[S]``."""
        if not self.is_correlated:
            return {name: nodes.sample(component) for name, nodes in self.sites.items()}
        names = self._continuous(self.sites)
        drawn = self.together(names).sample(component).squeeze(1)
        numbers = dict(zip(names, self._split(drawn, names), strict=True))
        return {
            name: numbers[name] if name in numbers else nodes.sample(component)
            for name, nodes in self.sites.items()
        }

    def _split(self, packed: Tensor, names: Sequence[str]) -> list[Tensor]:
        """``[S, n, d, *rest]`` of every site, of ``[S, D, *rest]``."""
        shapes = [self.sites[name].mean.shape[1:] for name in names]
        parts = packed.split([shape.numel() for shape in shapes], 1)
        return [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]

    def draw_components(self, count: int) -> Tensor:
        """``[count]``."""
        return torch.multinomial(self.log_weights.exp(), count, replacement=True)

    def condition(self, known: Mapping[str, tuple[Tensor, Tensor]]) -> JointMixture:
        """Given some nodes.

        Args:
            known: mask ``[n]`` and values, as :meth:`log_prob` has them without S, by site.
        """
        log_weights, sites = self.log_weights, dict(self.sites)
        numbers = self._continuous(known) if self.is_correlated else []
        for name in (name for name in known if name not in numbers):
            mask, value = known[name]
            likelihood = self.sites[name].log_prob(value)  # [L, n]
            log_weights = log_weights + torch.where(mask, likelihood, 0.0).sum(1)
            sites[name] = sites[name].given(mask, value)
        if numbers:
            likelihood, changed = self._regressed({name: known[name] for name in numbers})
            log_weights = log_weights + likelihood
            sites.update(changed)
        return replace(self, log_weights=log_weights.log_softmax(0), sites=sites)

    def _regressed(
        self, known: Mapping[str, tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, dict[str, Normals]]:
        """Log densities ``[L]`` of known numbers, and all correlated sites given these.

        With the known rows first, the root is [[A, 0], [B, C]]: the others have the root C and the
        mean m + B A^-1 (x - m_known).
        """
        names = self._continuous(self.sites)
        every = self.together(names)
        mean, root = every.mean.squeeze(1), every.root.squeeze(1)
        is_known, value = [], []
        for name in names:
            one = self.sites[name].mean[0]  # [n, d]
            mask, x = known.get(name, (one.new_zeros(len(one), dtype=torch.bool), one))
            is_known.append(mask.unsqueeze(1).expand_as(one).flatten())
            value.append(x.flatten())
        held, count = torch.cat(is_known), int(torch.cat(is_known).sum())
        order = (~held).to(torch.uint8).argsort(stable=True)
        first, rest = order[:count], order[count:]
        x, around = torch.cat(value)[first], mean[:, first]
        ordered = _lower(root[:, order])
        a, b, c = ordered[:, :count, :count], ordered[:, count:, :count], ordered[:, count:, count:]
        white = torch.linalg.solve_triangular(a, (x - around).unsqueeze(-1), upper=False)
        log_det = a.diagonal(dim1=1, dim2=2).log().sum(1)
        density = -0.5 * (white.square().sum((1, 2)) + count * LOG_2PI) - log_det
        mean, after = mean.clone(), torch.zeros_like(root)
        mean[:, first], mean[:, rest] = x, mean[:, rest] + (b @ white).squeeze(-1)
        after[:, rest.unsqueeze(1), rest] = c
        parts = zip(names, self._split(mean, names), self._split(after, names), strict=True)
        return density, {name: Normals(m, factor) for name, m, factor in parts}
