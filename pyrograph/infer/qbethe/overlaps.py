"""Ratios of the densities of a mixture's components, at points of nodes and of several together.

For a product of nodes ratios multiply, so they are computed once per node, on each node's own
points, and combined by scope.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.infer.qbethe.components import Components
from pyrograph.infer.qbethe.mixing import columns
from pyrograph.infer.qbethe.potentials import CHUNK
from pyrograph.infer.qbethe.ratios import (
    LARGEST,
    IndependentRatios,
    bounded,
    normal_log_ratio,
    ratio_in_states,
)
from pyrograph.infer.qbethe.rules import Rule, Rules


@dataclass(frozen=True)
class Overlap:
    """Ratios r[l, m] of a kind's nodes for the M = L - 1 others of every component, at its points.

    Shapes:
        ratio: ``[B, L, N, M, V]``.
        weight: ``[N]``, or ``[B, L, N, V]``, of the points.
    """

    ratio: Tensor
    weight: Tensor

    def at(self, rows: Tensor) -> Overlap:
        """Of nodes, ``[S]``."""
        weight = self.weight if self.weight.dim() == 1 else columns(self.weight, rows)
        return Overlap(columns(self.ratio, rows), weight)

    def as_one(self, size: int) -> list[Overlap]:
        """Points and states of all nodes as those of a single one, about ``size`` at a time."""
        ratio = self.ratio.movedim(3, 4)  # [B, L, N, V, M]
        weight = self.weight.view(1, 1, -1, 1) if self.weight.dim() == 1 else self.weight
        each = max(1, size // ratio.shape[2])
        return [
            Overlap(r.flatten(2, 3).unsqueeze(-1), w.flatten(2).unsqueeze(-1))
            for r, w in zip(
                ratio.split(each, 3), weight.expand(ratio.shape[:-1]).split(each, 3), strict=True
            )
        ]


def overlaps(mixture: Components, rules: Rules) -> list[Overlap]:
    """Of every kind."""
    out = []
    for n, kind in enumerate(mixture.kinds):
        if kind.is_discrete:
            log_p = mixture.log_probs[n].movedim(-1, 2).contiguous()  # [B, L, c, V]
            out.append(Overlap(ratio_in_states(log_p), log_p.exp()))
            continue
        mean, root = mixture.means[n], mixture.roots[n]
        rule = rules(kind.size, mean[..., 0].numel() * mixture.num_components)
        if root is None:
            ratio = IndependentRatios.apply(mean, mixture.scales[n], rule.points)
        else:
            ratio = bounded(normal_log_ratio(mean, root, rule.points))
        out.append(Overlap(ratio, rule.weights))
    return out


def overlaps_together(mean: Tensor, root: Tensor, rule: Rule) -> Iterator[Overlap]:
    """Of continuous nodes together, some points at a time.

    Shapes:
        mean: ``[B, L, S, R]``; root: the same of independent numbers, or ``[B, L, S, R, R]``.
    """
    size = max(1, CHUNK // max(1, mean.numel() * mean.shape[1]))
    for z, weight in zip(rule.points.split(size), rule.weights.split(size), strict=True):
        yield Overlap(ratio_together(mean, root, z), weight)


def ratio_together(mean: Tensor, root: Tensor, z: Tensor) -> Tensor:
    """``[B, L, N, M, S]``."""
    if root.dim() == mean.dim():
        return IndependentRatios.apply(mean, root, z)
    return bounded(normal_log_ratio(mean, root, z))


def product(slots: list[Overlap]) -> Overlap:
    """At the points of several slots together."""
    first, *others = slots
    ratio, weight = first.ratio, first.weight
    for other in others:
        ratio = (ratio.unsqueeze(3) * other.ratio.unsqueeze(2)).flatten(2, 3)
        ratio = ratio.clamp_max(math.exp(LARGEST))  # of many nodes it overflows in single precision
        if weight.dim() == other.weight.dim() == 1:
            weight = torch.outer(weight, other.weight).flatten()
        else:
            p, q = (w.view(1, 1, -1, 1) if w.dim() == 1 else w for w in (weight, other.weight))
            weight = (p.unsqueeze(3) * q.unsqueeze(2)).flatten(2, 3)
    return Overlap(ratio, weight)
