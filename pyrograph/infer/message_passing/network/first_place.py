"""Where nodes stand at first that no Gaussian factor holds: about 0, or about their priors.

Such nodes start from N(0, 1) in unconstrained space. A prior in other units than those of 0 lies
where that has nothing left: a scale of data in the millions has its logarithm at 14. All factors
would answer for 0 at once, and sweeps run away. Nodes whose prior, the factor of the statement that
draws them, has its mode farther than :data:`REACH` from 0 therefore start from N(place, 1), the
place on the way from 0 to the mode where the prior is :data:`LOSS` nats lower, if there is one:
from the mode itself of a vague prior, as Gamma(0.01, 1e-8), which hardly bends there, sweeps would
run away too.

A prior may hang on other nodes, as that of levels of groups about a level of 1e5 does. Its mode is
looked for as soon as these have a place, the mean of their Gaussian factors or one as above, in as
many rounds as it takes, :data:`ROUNDS` at most. What data say of a node is no place to start from:
one number of a stochastic volatility that happens to be 0 says minus infinity.

The mode is climbed to by Newton's steps, coordinate by coordinate, each within a radius that
doubles where log f rises and is a quarter where it does not: O(log of the distance) evaluations of
factors.

Source: the radius is that of Nocedal & Wright (2006), algorithm 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyrograph.beliefs import Gaussian
from pyrograph.beliefs.gaussian import apply
from pyrograph.graph import FactorGraph, FactorGroup
from pyrograph.infer.message_passing.continuous.quadratic import QuadraticFactors
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.nodes.families import Continuous, add_sites

#: Standard deviations of N(0, 1) within which it sees a prior.
REACH = 3.0
#: Steps of a climb, at most; lengths of steps from which on it is over.
MAX_STEPS, SHORT = 40, 0.1
#: Nats that a place may be below its mode; halvings of the way to it.
LOSS, HALVINGS = 2.0, 20
#: Rounds in which nodes find places by those of others.
ROUNDS = 5


def moved_to_priors(
    families: Sequence,
    blocks: Sequence,
    members: Sequence[tuple[FactorGroup, Tensor]],
    messages: list[list],
) -> list[list] | None:
    """First messages, by block and port, about other places than 0 where priors are far from it;
    None where none are.

    Args:
        members: of each block, its group and ``[E]`` the factors of the group.
    """
    graphs = [block.local.graph for block in blocks if isinstance(block, QuadratureFactors)]
    if not graphs:
        return None
    places = _Places(graphs[0], families, blocks, members)
    if not places.far:
        return None
    moved = []
    for block, sent in zip(blocks, messages, strict=True):
        own = list(sent)
        for k, message in enumerate(sent):
            number = block.families[k]
            if number not in places.far or not isinstance(block, QuadratureFactors):
                continue
            v = places.seen(number, block, k).to(message.shift)
            own[k] = Gaussian(message.precision, apply(message.precision, v))
        moved.append(own)
    return moved


class _Places:
    """Where nodes of Gaussian beliefs stand, as far as that is known: ``x[f]`` is ``[V, d]`` and
    ``is_known[f]`` ``[V]`` for every such family f; ``far`` are those with nodes to be moved."""

    def __init__(
        self,
        graph: FactorGraph,
        families: Sequence,
        blocks: Sequence,
        members: Sequence[tuple[FactorGroup, Tensor]],
    ):
        normal = {
            number: Gaussian(f.base.precision.detach(), f.base.shift.detach()).in_double()
            for number, f in enumerate(families)
            if isinstance(f, Continuous) and isinstance(f.base, Gaussian)
        }
        self.is_known = {number: base.is_proper for number, base in normal.items()}
        self.x = {number: _means(base) for number, base in normal.items()}
        kinds = QuadraticFactors, QuadratureFactors
        #: With ``[E, arity]`` whether a factor is the prior of the node at a port.
        self.blocks = [
            (block, graph.draws(group)[index])
            for block, (group, index) in zip(blocks, members, strict=True)
            if isinstance(block, kinds) and all(f in normal for f in block.families)
        ]
        self.is_far = {number: torch.zeros_like(held) for number, held in self.is_known.items()}
        self._find(normal)
        self.far = {number for number, is_far in self.is_far.items() if bool(is_far.any())}
        for number, own in self.x.items():
            self.x[number] = torch.where(self.is_far[number].unsqueeze(1), own, 0)

    def _find(self, normal: dict[int, Gaussian]) -> None:
        for _ in range(ROUNDS):
            found = {}
            for number, base in normal.items():
                own = _Prior(self, number, base)
                if not own.terms:
                    continue
                mode, is_top = _climbed(own)
                is_new = is_top & own.is_read & ~self.is_known[number]
                self.is_far[number] |= is_new & (mode.abs() > REACH).any(1)
                found[number] = _on_the_way(own, mode), is_new
            for number, (place, is_new) in found.items():
                self.x[number] = torch.where(is_new.unsqueeze(1), place, self.x[number])
                self.is_known[number] = self.is_known[number] | is_new
            if not any(bool(is_new.any()) for _, is_new in found.values()):
                break

    def seen(self, number: int, block: QuadraticFactors | QuadratureFactors, k: int) -> Tensor:
        """Places ``[E, r]`` of the nodes of a family at a port of a block."""
        return _seen(self.x[number], block, k)


class _Prior:
    """The priors of a family's nodes, times the Gaussian part of what they have to themselves,
    where all other nodes that these read have a place."""

    def __init__(self, places: _Places, number: int, base: Gaussian):
        self.places, self.base = places, base
        #: Block, port, and which of its factors count, ``[E]``.
        self.terms: list[tuple[QuadraticFactors | QuadratureFactors, int, Tensor]] = []
        self.is_read = torch.zeros_like(places.is_known[number])
        for block, is_prior in places.blocks:
            known = [
                places.is_known[f][rows] for f, rows in zip(block.families, block.rows, strict=True)
            ]
            for k in (k for k, f in enumerate(block.families) if f == number):
                others = [own for j, own in enumerate(known) if j != k]
                counts = torch.stack([is_prior[:, k], ~known[k], *others]).all(0)
                if bool(counts.any()):
                    self.terms.append((block, k, counts))
                    self.is_read[block.rows[k][counts]] = True

    def _scopes(self, x: Tensor, block: QuadraticFactors | QuadratureFactors, port: int) -> Tensor:
        """Places ``[E, R]`` of the nodes that factors read, with this family's at ``x``."""
        parts = [
            _seen(x, block, k) if k == port else self.places.seen(f, block, k)
            for k, f in enumerate(block.families)
        ]
        return torch.cat(parts, 1)

    def log_value(self, x: Tensor) -> Tensor:
        """``[V]`` at ``x [V, d]``, minus infinity where it is no number."""
        total = (x * (self.base.shift - apply(self.base.precision, x) / 2)).sum(1)
        for block, k, counts in self.terms:
            v = self._scopes(x, block, k)
            if isinstance(block, QuadraticFactors):
                precision, shift = block.precision.detach(), block.shift.detach()
                value = (v * (shift - apply(precision, v) / 2)).sum(1)
            else:
                value = block.local.at_scope(v).detach()
            total = total.index_add(0, block.rows[k], torch.where(counts, value.to(total), 0))
        return torch.nan_to_num(total, nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)

    def expanded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Curvature and slope along every coordinate, ``[V, d]`` each."""
        total = self.base
        for block, k, counts in self.terms:
            v, part = self._scopes(x, block, k), block.parts[k]
            if isinstance(block, QuadraticFactors):
                precision = block.precision.detach().to(v)
                slope = block.shift.detach().to(v) - apply(precision, v)
            else:
                precision, slope = block.local.expanded(v)
            precision = torch.where(counts[:, None, None], precision[:, part, part], 0)
            slope = torch.where(counts[:, None], slope[:, part], 0)
            site = Gaussian(precision, slope + apply(precision, v[:, part]))
            total = add_sites(total, block.rows[k], site, block.bases[k])
        slope = total.shift - apply(total.precision, x)
        return total.precision.diagonal(dim1=-2, dim2=-1), slope


def _seen(x: Tensor, block: QuadraticFactors | QuadratureFactors, k: int) -> Tensor:
    rows, basis = block.rows[k], block.bases[k]
    return (x[rows] if basis is None else basis.of(x[rows])).double()


def _means(base: Gaussian) -> Tensor:
    """``[V, d]``, 0 of those that have none."""
    eye = torch.eye(base.d, dtype=base.shift.dtype, device=base.shift.device)
    is_held = base.is_proper
    precision = torch.where(is_held[:, None, None], base.precision, eye)
    return Gaussian(precision, torch.where(is_held[:, None], base.shift, 0)).mean


def _climbed(own: _Prior) -> tuple[Tensor, Tensor]:
    """From 0 to the modes ``[V, d]``; and ``[V]`` where the climb ended at one."""
    x = torch.zeros_like(own.base.shift)
    height = own.log_value(x)
    radius = torch.ones_like(height)
    is_over = ~height.isfinite()
    for _ in range(MAX_STEPS):
        curvature, slope = own.expanded(x)
        newton = torch.where(curvature > 0, slope / curvature, slope.sign() * torch.inf)
        step = newton.clamp(-radius.unsqueeze(1), radius.unsqueeze(1)).nan_to_num(0.0)
        there = own.log_value(x + step)
        rises = (there > height) & ~is_over
        x = torch.where(rises.unsqueeze(1), x + step, x)
        height = torch.where(rises, there, height)
        radius = torch.where(rises, 2 * radius, radius / 4)
        is_over = is_over | (step.abs() < SHORT).all(1)
        if bool(is_over.all()):
            break
    curvature, slope = own.expanded(x)  # at an edge of what numbers hold steps are short too
    is_near = (curvature > 0) & (slope.abs() <= curvature)
    return x, is_over & height.isfinite() & is_near.all(1)


def _on_the_way(own: _Prior, mode: Tensor) -> Tensor:
    """On the way from 0 to modes, the first points that are hardly lower than these, ``[V, d]``."""
    least = own.log_value(mode) - LOSS
    share, step = torch.ones_like(least), 0.5
    for _ in range(HALVINGS):
        nearer = share - step
        serves = own.log_value(nearer.unsqueeze(1) * mode) >= least
        share, step = torch.where(serves, nearer, share), step / 2
    return share.unsqueeze(1) * mode
