"""Entropies of mixtures of products, for nodes and for scopes.

    H(b) = sum_l w_l ( H_l - E_l log sum_m w_m b_m / b_l )

The first part is closed. In the second the sum is at least w_l, so that what quadrature has to
integrate is bounded by -log w_l, whatever the components' widths. For a product of nodes the
ratios multiply,

    b_m / b_l = prod_i r_i[l, m](x_i)

so they are computed once per node, on each node's own points, and combined by scope.

Source: Guo, Xiong & Ruozzi (2019), eq (5), in a form that does not cancel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.beliefs.gaussian import LOG_2PI, apply
from pyrograph.infer.qbethe.components import Components, correlation_root, taken
from pyrograph.infer.qbethe.mixing import PairMixing
from pyrograph.infer.qbethe.potentials import CHUNK, Wiring, scope_moments
from pyrograph.infer.qbethe.rules import MAX_POINTS, Rules

HALF_LOG_2PIE = 0.5 * (1 + LOG_2PI)
#: Largest grid of a pair of single numbers, which is never held in memory as a whole.
MAX_PAIR_POINTS = 2**14
#: Largest log ratio of a node.
LARGEST = 40.0


@dataclass(frozen=True)
class Overlap:
    """Ratios r[l, m] of a kind's nodes, at points of every component.

    Shapes:
        ratio: ``[B, L, N, M, V]``, 1 on m = l.
        weight: ``[N]``, or ``[B, L, N, V]``, of the points.
    """

    ratio: Tensor
    weight: Tensor


def component_entropies(mixture: Components) -> list[Tensor]:
    """``[B, L, V]`` of every kind."""
    out = []
    for n, kind in enumerate(mixture.kinds):
        if kind.is_discrete:
            log_p = mixture.log_probs[n]
            out.append(-(log_p.exp() * log_p).sum(-1))
            continue
        root = mixture.roots[n]
        scale = mixture.scales[n] if root is None else root.diagonal(dim1=-2, dim2=-1)
        out.append(scale.log().sum(-1) + kind.size * HALF_LOG_2PIE)
    return out


def overlaps(mixture: Components, rules: Rules) -> list[Overlap]:
    """Of every kind."""
    out = []
    for n, kind in enumerate(mixture.kinds):
        if kind.is_discrete:
            log_p = mixture.log_probs[n].movedim(-1, 2)  # [B, L, c, V]
            ratio = log_p.transpose(1, 2).unsqueeze(1) - log_p.unsqueeze(3)  # [B, L, c, M, V]
            out.append(Overlap(_bounded(ratio), log_p.exp()))
            continue
        mean, root = mixture.means[n], mixture.roots[n]
        rule = rules(kind.size, mean[..., 0].numel() * mixture.num_components)
        z = rule.points
        if root is None:
            ratio = _independent_ratio(mean, mixture.scales[n], z)
        else:
            ratio = _normal_ratio(mean, root, z)
        out.append(Overlap(_bounded(ratio), rule.weights))
    return out


def node_entropies(
    mixture: Components, own: list[Tensor], overlap: list[Overlap] | None
) -> list[Tensor]:
    """H(b_i), ``[B, V]`` of every kind."""
    out = []
    for n, entropy in enumerate(own):
        value = (mixture.weights.unsqueeze(-1) * entropy).sum(1)
        if overlap is not None:
            value = value + _mixing(mixture, overlap[n].ratio, overlap[n].weight)
        out.append(value)
    return out


def _bounded(log_ratio: Tensor) -> Tensor:
    """Ratios, of which products do not overflow: so large ones come at points without weight."""
    return log_ratio.clamp_max(LARGEST).exp()


def _mixing(mixture: Components, ratio: Tensor, weight: Tensor) -> Tensor:
    """-sum_l w_l E_l log sum_m w_m r[l, m], ``[B, V]``, of ratios ``[B, L, N, M, V]``."""
    inner = (ratio * mixture.weights[:, None, None, :, None]).sum(3).log()
    form = "n,blnv->blv" if weight.dim() == 1 else "blnv,blnv->blv"
    return -(mixture.weights.unsqueeze(-1) * torch.einsum(form, weight, inner)).sum(1)


class ScopeEntropies:
    """Entropies of the beliefs over like scopes, ``[B]`` their sum.

    Args:
        sizes: of the kinds in the scope.
        nodes: ``[S]`` of every slot.
    """

    def __init__(self, wiring: Wiring, sizes: list[int], nodes: list[Tensor]):
        self.wiring, self.sizes, self.nodes = wiring, sizes, nodes
        self.has_ties = wiring.ties is not None

    @property
    def num_scopes(self) -> int:
        return len(self.wiring.rows[0])

    def __call__(
        self, mixture: Components, own: list[Tensor], overlap: list[Overlap] | None, rules: Rules
    ) -> Tensor:
        closed = sum(
            taken(own[kind], rows)
            for kind, rows in zip(self.wiring.kinds, self.wiring.rows, strict=True)
        )
        if self.has_ties:
            name, at = self.wiring.ties
            n = correlation_root(taken(mixture.parameters[name], at), self.sizes)
            closed = closed + n.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        value = (mixture.weights * closed.sum(-1)).sum(1)
        if overlap is None:
            return value
        if self.has_ties:
            return value + self._mixing_of_correlated(mixture, rules)
        if self._num_points(overlap) > (MAX_PAIR_POINTS if self._is_pair else MAX_POINTS):
            return value + self._mixing_by_samples(mixture, rules)
        return value + self._mixing_on_grid(mixture, overlap)

    @property
    def _is_pair(self) -> bool:
        """Of single numbers or states."""
        return len(self.sizes) == 2 and max(self.sizes) == 1

    def _num_points(self, overlap: list[Overlap], part: slice = slice(None)) -> int:
        return math.prod(overlap[kind].ratio.shape[2] for kind in self.wiring.kinds[part])

    def _mixing_on_grid(self, mixture: Components, overlap: list[Overlap]) -> Tensor:
        """On the product of the nodes' own points, half of the nodes against the others."""
        half = len(self.wiring.kinds) // 2
        width = max(self._num_points(overlap, part) for part in (slice(half), slice(half, None)))
        numbers = width * mixture.weights.numel() * mixture.num_components
        total = mixture.weights.new_zeros(len(mixture.weights))
        for chosen in torch.arange(self.num_scopes, device=total.device).split(
            max(1, CHUNK // numbers)
        ):
            slots = [
                self._slot(overlap[kind], rows[chosen])
                for kind, rows in zip(self.wiring.kinds, self.wiring.rows, strict=True)
            ]
            (first, p), (second, q) = _product(slots[:half]), _product(slots[half:])
            total = total + PairMixing.apply(mixture.weights, first, second, p, q)
        return total

    @staticmethod
    def _slot(overlap: Overlap, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Ratios ``[B, L, N, M, S]`` of a slot and weights ``[B or 1, L or 1, N, S or 1]``."""
        ratio, weight = _columns(overlap.ratio, rows), overlap.weight
        if weight.dim() == 1:
            return ratio, weight[None, None, :, None]
        return ratio, _columns(weight, rows)

    def _mixing_of_correlated(self, mixture: Components, rules: Rules) -> Tensor:
        maps = [(k, r, None) for k, r in zip(self.wiring.kinds, self.wiring.rows, strict=True)]
        mean, root = scope_moments(mixture, self.wiring, maps)
        rule = rules(mean.shape[-1], mean[..., 0].numel() * mixture.num_components)
        size = max(1, CHUNK // max(1, mean.numel() * mixture.num_components))
        total = mean.new_zeros(len(mean))
        for z, weight in zip(rule.points.split(size), rule.weights.split(size), strict=True):
            total = total + _mixing(mixture, _bounded(_normal_ratio(mean, root, z)), weight).sum(1)
        return total

    def _mixing_by_samples(self, mixture: Components, rules: Rules) -> Tensor:
        """Of scopes too large for a grid, by as many points whatever their size.

        Discrete nodes take the state in whose share of the component's distribution a point falls;
        a weight of 1 that depends on the probabilities keeps the derivative right.
        """
        is_discrete = [mixture.kinds[kind].is_discrete for kind in self.wiring.kinds]
        widths = [1 if d else size for d, size in zip(is_discrete, self.sizes, strict=True)]
        numbers = mixture.weights.numel() * mixture.num_components * self.num_scopes
        rule = rules(sum(widths), numbers)
        total = mixture.weights.new_zeros(len(mixture.weights))
        size = max(1, CHUNK // max(1, numbers))
        for points, weights in zip(rule.points.split(size), rule.weights.split(size), strict=True):
            log_ratio, log_weight = 0.0, 0.0
            slots = zip(self.wiring.kinds, self.wiring.rows, points.split(widths, 1), strict=True)
            for kind, rows, z in slots:
                if mixture.kinds[kind].is_discrete:
                    ratio, weight = _at_drawn_states(mixture.log_probs[kind][:, :, rows], z[:, 0])
                    log_weight = log_weight + weight
                else:
                    mean, root = mixture.means[kind][:, :, rows], mixture.root(kind)[:, :, rows]
                    ratio = _normal_ratio(mean, root, z)
                log_ratio = log_ratio + ratio
            inner = (log_ratio + mixture.log_weights[:, None, None, :, None]).logsumexp(3)
            if isinstance(log_weight, Tensor):
                inner = inner * log_weight.exp()
            average = torch.einsum("n,blns->bl", weights, inner)
            total = total - (mixture.weights * average).sum(1)
        return total


def _product(slots: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Ratios and weights at the points of several slots together."""
    (ratio, weight), *others = slots
    for other, share in others:
        ratio = (ratio.unsqueeze(3) * other.unsqueeze(2)).flatten(2, 3)
        weight = (weight.unsqueeze(3) * share.unsqueeze(2)).flatten(2, 3)
    return ratio, weight


def _normal_ratio(mean: Tensor, root: Tensor, z: Tensor) -> Tensor:
    """log N_m / N_l, ``[B, L, N, M, S]``, at the points ``z [N, d]`` of every component l."""
    x = mean.unsqueeze(2) + apply(root.unsqueeze(2), z[:, None, :])
    eye = torch.eye(z.shape[1], dtype=z.dtype, device=z.device).expand_as(root)
    inverse = torch.linalg.solve_triangular(root, eye, upper=False)
    off = apply(inverse[:, None, None], x.unsqueeze(3) - mean[:, None, None])
    log_det = root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    ratio = -0.5 * off.square().sum(-1) + 0.5 * z.square().sum(1)[:, None, None]
    return ratio + log_det[:, :, None, None] - log_det[:, None, None]


def _independent_ratio(mean: Tensor, scale: Tensor, z: Tensor) -> Tensor:
    """The same for independent numbers of a node, in few operations on the large array."""
    shift = (mean.unsqueeze(2) - mean.unsqueeze(1)) / scale.unsqueeze(1)  # [B, L, M, S, d]
    stretch = scale.unsqueeze(2) / scale.unsqueeze(1)
    gain = stretch.log().sum(-1).unsqueeze(2) + 0.5 * z.square().sum(1)[:, None, None]
    off = [
        torch.addcmul(a.unsqueeze(2), b.unsqueeze(2), at[:, None, None])
        for a, b, at in zip(shift.unbind(-1), stretch.unbind(-1), z.unbind(1), strict=True)
    ]
    for part in off:
        gain = torch.addcmul(gain, part, part, value=-0.5)
    return gain


def _at_drawn_states(log_p: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """log p_m / p_l ``[B, L, N, M, S]`` at states drawn from every component l by normal points,
    and log weights ``[B, L, N, S]``, zeros with the derivative of log p_l."""
    log_p = log_p.transpose(2, 3)  # [B, L, c, S]
    with torch.no_grad():
        ends = log_p.exp().cumsum(2)[:, :, :-1].unsqueeze(2)  # [B, L, 1, c - 1, S]
        state = (torch.special.ndtr(z)[:, None, None] > ends).sum(3)  # [B, L, N, S]
    own = log_p.gather(2, state)
    batch, components = log_p.shape[:2]
    others = log_p.unsqueeze(1).expand(batch, components, *log_p.shape[1:])
    index = state.unsqueeze(2).expand(-1, -1, components, -1, -1)  # [B, L, M, N, S]
    ratio = others.gather(3, index).transpose(2, 3) - own.unsqueeze(3)
    return ratio, own - own.detach()


def _columns(value: Tensor, rows: Tensor) -> Tensor:
    """``value[..., rows]``, whose derivative is a sum over contiguous numbers."""
    flat = value.reshape(-1, value.shape[-1]).index_select(1, rows)
    return flat.view(*value.shape[:-1], len(rows))
