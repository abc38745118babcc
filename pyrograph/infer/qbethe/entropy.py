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
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from pyrograph.beliefs.gaussian import LOG_2PI
from pyrograph.infer.qbethe.components import Components, taken
from pyrograph.infer.qbethe.mixing import NodeMixing, PairMixing, Run, runs, spread
from pyrograph.infer.qbethe.overlaps import Overlap, overlaps_together, product, ratio_together
from pyrograph.infer.qbethe.potentials import CHUNK, scope_moments
from pyrograph.infer.qbethe.ratios import LARGEST, ratio_at_drawn_states
from pyrograph.infer.qbethe.rules import MAX_POINTS, Rule, Rules
from pyrograph.infer.qbethe.wiring import Wiring

HALF_LOG_2PIE = 0.5 * (1 + LOG_2PI)
#: Largest grid of a pair of single numbers, which is never held in memory as a whole, and how much
#: larger one of labels beside the one core that there is.
MAX_PAIR_POINTS, AS_ONE = 2**14, 2**4
#: Points per number of a core. Every label beside it adds the errors of the core's points once
#: more, on which an optimiser lives: with 400 points four components of 30 labels beside 60 numbers
#: ended 1.4 nats lower than with so many, below one component.
PER_NUMBER = 32


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


def node_entropies(
    mixture: Components, own: list[Tensor], overlap: list[Overlap] | None
) -> list[Tensor]:
    """H(b_i), ``[B, V]`` of every kind."""
    out = []
    for n, entropy in enumerate(own):
        value = (mixture.weights.unsqueeze(-1) * entropy).sum(1)
        if overlap is not None:
            value = value + NodeMixing.apply(mixture.weights, overlap[n].ratio, overlap[n].weight)
        out.append(value)
    return out


class ScopeEntropies:
    """Entropies of the beliefs over like scopes, ``[B]`` their sum.

    Args:
        wiring: of all nodes, or of the discrete ones beside a core.
        sizes: of the kinds in the wiring.
        nodes: ``[S, slots]``.
        core: continuous nodes that are correlated, or that scopes share, and ``[S]`` which of these
            a scope has.
        times: how often scopes of continuous nodes, or with a core, count, ``[S]``; None: once.
    """

    def __init__(
        self,
        wiring: Wiring,
        sizes: list[int],
        nodes: Tensor,
        core: tuple[ScopeEntropies, Tensor] | None = None,
        times: Tensor | None = None,
    ):
        self.wiring, self.sizes, self.nodes, self.core = wiring, sizes, nodes, core
        self.times = times

    def counted(self, times: Tensor) -> list[ScopeEntropies]:
        """Those that count, as often as they do, ``[S]``: once, and otherwise."""
        found = []
        for which, is_once in ((times == 1, True), ((times != 1) & (times != 0), False)):
            rows = which.nonzero().squeeze(1)
            if len(rows):
                often = None if is_once else times[rows]
                own = self.wiring.part(rows), self.sizes, self.nodes[rows]
                found.append(ScopeEntropies(*own, times=often))
        return found

    @property
    def num_scopes(self) -> int:
        return len(self.nodes)

    def __call__(
        self, mixture: Components, own: list[Tensor], overlap: list[Overlap] | None, rules: Rules
    ) -> Tensor:
        closed = self._closed(mixture, own)
        closed = closed if self.times is None else closed * self.times.to(closed)
        value = (mixture.weights * closed.sum(-1)).sum(1)
        return value if overlap is None else value + self.mixing(mixture, overlap, rules)

    def _closed(self, mixture: Components, own: list[Tensor]) -> Tensor:
        """Of every component, ``[B, L, S]``."""
        closed = sum(
            taken(own[kind], rows)
            for kind, rows in zip(self.wiring.kinds, self.wiring.rows, strict=True)
        )
        if self.wiring.ties:
            n = self.wiring.correlation_root(mixture, self.sizes)
            closed = closed + n.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        if self.core is not None:
            core, at = self.core
            closed = closed + taken(core._closed(mixture, own), at)
        return closed

    def mixing(self, mixture: Components, overlap: list[Overlap], rules: Rules) -> Tensor:
        """What several components add to the entropies of single ones, ``[B]``."""
        if self.core is not None:
            return self._mixing_beside_core(mixture, overlap, rules)
        # a number that labels share, as the coupling of a ring of spins, may count once by itself
        if self.wiring.ties or self.times is not None or len(self.sizes) == 1:
            return self._mixing_together(mixture, rules)
        if self._num_points(overlap) > (MAX_PAIR_POINTS if self._is_pair else MAX_POINTS):
            return self._mixing_by_samples(mixture, rules)
        return self._mixing_on_grid(mixture, overlap)

    @property
    def _is_pair(self) -> bool:
        """Of single numbers or states."""
        return len(self.sizes) == 2 and max(self.sizes) == 1

    @cached_property
    def _runs(self) -> list[Run]:
        """Of the pairs."""
        return runs(*self.wiring.rows)

    def _num_points(self, overlap: list[Overlap], part: slice = slice(None)) -> int:
        return math.prod(overlap[kind].ratio.shape[2] for kind in self.wiring.kinds[part])

    def _mixing_on_grid(self, mixture: Components, overlap: list[Overlap]) -> Tensor:
        """On the product of the nodes' own points, half of the nodes against the others."""
        slots = [overlap[kind] for kind in self.wiring.kinds]
        if len(slots) == 2:
            a, b = slots
            return PairMixing.apply(
                mixture.weights, a.ratio, b.ratio, a.weight, b.weight, self._runs
            )
        half = len(slots) // 2
        width = max(self._num_points(overlap, part) for part in (slice(half), slice(half, None)))
        numbers = width * mixture.weights.numel() * mixture.num_components
        total = mixture.weights.new_zeros(len(mixture.weights))
        for chosen in torch.arange(self.num_scopes, device=total.device).split(
            max(1, CHUNK // numbers)
        ):
            every = [x.at(rows[chosen]) for x, rows in zip(slots, self.wiring.rows, strict=True)]
            first, second = product(every[:half]), product(every[half:])
            whole = [Run(slice(0, len(chosen)), slice(0, len(chosen)))]
            total = total + PairMixing.apply(
                mixture.weights, first.ratio, second.ratio, first.weight, second.weight, whole
            )
        return total

    def _mixing_together(self, mixture: Components, rules: Rules) -> Tensor:
        """Of continuous nodes as one of as many numbers, as often as scopes count."""
        mean, root = self._together(mixture)
        times = mean.new_ones(()) if self.times is None else self.times.to(mean)
        total = mean.new_zeros(len(mean))
        rule = self._rule(mean, rules, is_core=self.times is not None)
        for part in overlaps_together(mean, root, rule):
            mixing = NodeMixing.apply(mixture.weights, part.ratio, part.weight)
            total = total + (mixing * times).sum(1)
        return total

    def _mixing_beside_core(
        self, mixture: Components, overlap: list[Overlap], rules: Rules
    ) -> Tensor:
        """On the core's points and all states of the discrete nodes."""
        core, at = self.core
        mean, root = core._together(mixture)
        rule = core._rule(mean, rules, is_core=True)
        most = MAX_PAIR_POINTS * (AS_ONE if core.num_scopes == 1 else 1)
        if len(rule.weights) * math.prod(self.sizes) > most:
            return self._mixing_by_samples(mixture, rules)
        slots = zip(self.wiring.kinds, self.wiring.rows, strict=True)
        states = product([overlap[kind].at(rows) for kind, rows in slots])
        if self.times is not None:
            states = Overlap(states.ratio, states.weight * self.times.to(mean))
        pairs, ends = [Run(at, slice(0, self.num_scopes))], [states]
        if core.num_scopes == 1:  # it is never spread over the scopes, whose states are its points
            size = max(1, CHUNK // (mixture.weights.numel() * len(rule.weights)))
            pairs, ends = [Run(slice(0, 1), slice(0, 1))], states.as_one(size)
        total = mean.new_zeros(len(mean))
        for part in overlaps_together(mean, root, rule):
            for end in ends:
                total = total + PairMixing.apply(
                    mixture.weights, part.ratio, end.ratio, part.weight, end.weight, pairs
                )
        return total

    def _together(self, mixture: Components) -> tuple[Tensor, Tensor]:
        """Of continuous nodes, see :func:`.scope_moments`."""
        maps = [(k, r, None) for k, r in zip(self.wiring.kinds, self.wiring.rows, strict=True)]
        return scope_moments(mixture, self.wiring, maps)

    @staticmethod
    def _rule(mean: Tensor, rules: Rules, is_core: bool) -> Rule:
        dim = mean.shape[-1]
        least = PER_NUMBER * dim if is_core else 0
        return rules(dim, mean[..., 0].numel() * mean.shape[1], least=least)

    def _mixing_by_samples(self, mixture: Components, rules: Rules) -> Tensor:
        """Of scopes too large for a grid, by as many points whatever their size.

        Discrete nodes take the state in whose share of the component's distribution a point falls;
        a weight of 1 that depends on the probabilities keeps the derivative right.
        """
        parts = self._drawn(mixture)
        numbers = mixture.weights.numel() * mixture.num_components * self.num_scopes
        widths = [part.width for part in parts]
        least = 0 if self.core is None else PER_NUMBER * sum(widths)
        rule = rules(sum(widths), numbers, least=least)
        total = mixture.weights.new_zeros(len(mixture.weights))
        size = max(1, CHUNK // max(1, numbers))
        for points, weights in zip(rule.points.split(size), rule.weights.split(size), strict=True):
            first, *rest = [part(z) for part, z in zip(parts, points.split(widths, 1), strict=True)]
            ratio, weight = first.ratio, weights.view(-1, 1) * first.weight
            for number, other in enumerate(rest):
                if number:  # the product of three would overflow in single precision
                    ratio = ratio.clamp_max(math.exp(LARGEST))
                ratio, weight = ratio * other.ratio, weight * other.weight
            weight = weight.expand(*ratio.shape[:3], -1) if weight.dim() > 2 else weight[:, 0]
            mixing = NodeMixing.apply(mixture.weights, ratio, weight)
            if self.times is not None:
                mixing = mixing * self.times.to(mixing)
            total = total + mixing.sum(1)
        return total

    @cached_property
    def _places(self) -> list[tuple[Tensor, Tensor | None]]:
        """Of every slot, and of the core last, the nodes that any scope has, each once, and which
        of these each scope has; None for the scopes' own. So nodes that many scopes share, such as
        the means of a mixture's components, are looked at once."""
        cores = [] if self.core is None else [self.core[1]]
        found = []
        for rows in (*self.wiring.rows, *cores):
            nodes, at = rows.unique(return_inverse=True)
            found.append((nodes, at) if len(nodes) < len(rows) else (rows, None))
        return found

    def _drawn(self, mixture: Components) -> list[_Part]:
        """What is drawn by itself, of the nodes in :attr:`_places`."""
        found: list[_Part] = []
        own: list[tuple[Tensor, Tensor]] = []  # independent numbers that no scopes share, together
        for kind, (rows, at) in zip(self.wiring.kinds, self._places, strict=False):
            if mixture.kinds[kind].is_discrete:
                log_p = taken(mixture.log_probs[kind], rows)
                found.append(_Part(1, partial(_at_drawn_states, log_p), at))
                continue
            mean, root = taken(mixture.means[kind], rows), mixture.roots[kind]
            width = taken(mixture.scales[kind] if root is None else root, rows)
            if root is None and at is None:
                own.append((mean, width))
            else:
                found.append(_part_together(mean, width, at))
        if own:
            mean, scale = (torch.cat(parts, -1) for parts in zip(*own, strict=True))
            found.append(_part_together(mean, scale, None))
        if self.core is not None:
            rows, at = self._places[-1]
            mean, root = self.core[0]._together(mixture)
            found.append(_part_together(taken(mean, rows), taken(root, rows), at))
        return sorted(found, key=_Part.is_own)  # products of shared ones are small


@dataclass(frozen=True)
class _Part:
    """Nodes of like scopes that are drawn by themselves.

    Attributes:
        width: numbers of a point that they take.
        overlap: of the different ones, at points ``[N, width]``; weights are factors of those of
            the points.
        at: which of them each scope has; None: one each.
    """

    width: int
    overlap: Callable[[Tensor], Overlap]
    at: Tensor | None

    def is_own(self) -> bool:
        """Whether scopes have one each."""
        return self.at is None

    def __call__(self, z: Tensor) -> Overlap:
        found = self.overlap(z)
        weight = found.weight if found.weight.dim() < 4 else spread(found.weight, self.at)
        return Overlap(spread(found.ratio, self.at), weight)


def _part_together(mean: Tensor, root: Tensor, at: Tensor | None) -> _Part:
    """Of numbers, see :func:`ratio_together`."""
    one = torch.ones_like(mean[0, 0, :1, 0])
    return _Part(mean.shape[-1], lambda z: Overlap(ratio_together(mean, root, z), one), at)


def _at_drawn_states(log_p: Tensor, z: Tensor) -> Overlap:
    return Overlap(*ratio_at_drawn_states(log_p, z[:, 0]))
