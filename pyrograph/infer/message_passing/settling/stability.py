"""Whether sweeps would come back to the fixed point at which they ended.

Near a fixed point m* = T(m*) a sweep takes a small difference d to

    d' = J d,      J = dT / dm at m*

Nodes that a program does not tell apart start alike and stay alike: sweeps end at a fixed point
that has the program's symmetry even where every difference would grow. Power iteration from a
random difference, scaled back to the same size after each sweep, finds by how much.

What counts is an eigenvalue of J beyond 1, a difference that grows the way it points: sweeps that
take the share eta of the step have eigenvalues 1 - eta + eta lambda, and no damping brings such a
one below 1; with mean field the bound is at no maximum. One below -1 is an oscillation, which
damping cures and which says nothing of the fixed point. The sweeps here take half a step at most,
which keeps +lambda and -lambda apart, and the growth is measured along the difference itself,

    lambda ~ 1 + (r - 1) / eta,      r = <d', d> / <d, d>

in beliefs: means in standard deviations, relative variances, log probabilities.

Of discrete networks with alpha > 0 nothing is said. Their symmetric fixed point may have the right
marginals where others have wrong ones: those of the Ising model without a field are uniform. For
the same reason mean field of discrete networks stays where it is, and is told of; with continuous
nodes a run goes on from a way along the difference: components come to hold clusters of their own,
and factors of a product leave 0.

Source: Heskes (2003), "Stable fixed points of loopy belief propagation are minima of the Bethe free
energy", for stability under enough damping.
Cost: a fifth of the sweeps of the run, but for MOST and FEWEST, and MORE where something grows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyrograph.beliefs import Gaussian, LogGamma, Natural
from pyrograph.diagnostics.score import outside_modes
from pyrograph.errors import PyrographError
from pyrograph.infer.message_passing.continuous.conjugate_factors import ConjugateFactors
from pyrograph.infer.message_passing.continuous.quadratic import QuadraticFactors
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.network.evidence import log_evidence
from pyrograph.infer.message_passing.network.messages import (
    Message,
    Messages,
    flattened,
    unflattened,
)
from pyrograph.infer.message_passing.network.network import Block, Network
from pyrograph.infer.message_passing.nodes.basis import seen
from pyrograph.infer.message_passing.nodes.families import Continuous
from pyrograph.infer.message_passing.sweeps.sweep import Sweep, is_lost

#: Sweeps, as a share of those of the run, and at least and at most; what grows by then has to grow
#: for MORE sweeps: a difference may also grow for a while and then die away.
SHARE, FEWEST, MOST, MORE = 0.2, 5, 20, 20
#: Eigenvalue from which a fixed point counts as unstable: directions in which sweeps hardly move
#: are at 1, but for rounding.
LEAST = 1.05
#: The same of mean field, where up to LEAST the bound has to rise along the difference as well, by
#: more than its rounding, in units of the dtype's precision.
LEAST_CLIMB, ROUNDING = 1.005, 16.0
#: A growth that rises by more from one sweep to the next is not known yet.
RISING = 0.01
#: Longest step: with +lambda and -lambda both in J, whole ones would never tell which.
STEP = 0.5
#: By which a step away is longer than the one before, and the longest.
FURTHER, FAR = 3.0, 1e3
#: Largest difference, by dtype: far above what rounding moves, and small enough to be linear.
SIZE = {torch.float64: 1e-3, torch.float32: 1e-2}


def may_be_unstable(network: Network) -> bool:
    """Whether there is anything to look for: Gaussian functions have one fixed point, of discrete
    networks see above."""
    return any(
        isinstance(block, ConjugateFactors | QuadratureFactors)
        or (bool((block.alpha <= 0).all()) and not isinstance(block, QuadraticFactors))
        for block in network.blocks
    )


@dataclass
class Instability:
    """A fixed point that sweeps would leave.

    Attributes:
        status: what is to be said of it.
        nearby: messages a way along the difference that grows.
    """

    status: str
    nearby: Messages


@outside_modes()
@torch.no_grad()
def instability(
    sweep: Sweep, messages: Messages, beliefs: list, num_done: int, seed: int
) -> Instability | None:
    """Whether sweeps would leave the fixed point at which they ended. Nothing is changed.

    Args:
        sweep: of the run; messages, beliefs: where it ended; num_done: its sweeps.
        seed: of the first difference; which of those that grow it leads to depends on it.
    """
    sweep = replace(sweep, eta=min(sweep.eta, STEP), is_residual=False)
    count = min(MOST, max(FEWEST, int(SHARE * num_done)))
    try:
        return _growing(sweep, messages, beliefs, count, seed)
    except (PyrographError, torch.linalg.LinAlgError):  # there is no density so near: not known
        return None


def may_be_left(network: Network) -> bool:
    """Whether a run leaves unstable fixed points by itself, see above."""
    return any(isinstance(family, Continuous) for family in network.families)


def _growing(
    sweep: Sweep, messages: Messages, beliefs: list, count: int, seed: int
) -> Instability | None:
    """A difference that keeps growing, if there is one."""
    network = sweep.network
    families = zip(network.families, beliefs, strict=True)
    if not all(bool(b.is_proper.all()) for f, b in families if isinstance(f, Continuous)):
        return None
    generator = torch.Generator().manual_seed(seed)  # the run's own stream stays where it is
    origin, there = flattened(messages), sweep.tried(messages, beliefs)
    target = flattened(there.messages)
    step = flattened(
        [
            _nudges(block, sent, beliefs, generator)
            for block, sent in zip(network.blocks, messages, strict=True)
        ]
    )
    size = SIZE[origin.dtype]
    least, last = LEAST_CLIMB if network.is_mean_field else LEAST, -math.inf
    nudged = network.beliefs_of(unflattened(origin + size * step, messages))
    reach = _largest(_apart(beliefs, nudged)) / size
    for k in range(count + MORE):
        if not 0 < reach < math.inf:
            return None
        step = step / reach
        start = unflattened(origin + size * step, messages)
        held = network.beliefs_of(start)
        found = sweep.tried(start, held)
        if bool(found.num_skipped):  # a factor that was passed over tells nothing
            return None
        before, after = _apart(beliefs, held), _apart(there.beliefs, found.beliefs)
        d, image = (torch.cat([p.flatten() for p in parts]) for parts in (before, after))
        growth = 1 + (float((image @ d) / (d @ d)) - 1) / sweep.eta
        if k + 1 >= count and not growth > least and not growth > last + RISING:
            return None
        last = growth
        gap = flattened(found.messages) - target  # of zeros, which stay, NaN
        step, reach = torch.where(gap.isnan(), 0.0, gap), _largest(after)
    if not growth > least:  # it rose to the end, and is not known
        return None
    if network.is_mean_field:
        higher = _higher(network, messages, step / reach, size)
        start = start if higher is None and growth > LEAST else higher
    return None if start is None else Instability(_said(sweep, growth, after), start)


def _higher(network: Network, messages: Messages, step: Tensor, size: float) -> Messages | None:
    """Along a difference that grows, as far as mean field's bound rises: sweeps would take long
    from a little way along it. None if it does not rise by more than rounding."""
    origin, held = flattened(messages), network.beliefs_of(messages)
    best = float(log_evidence(network, messages, held))
    slack = ROUNDING * torch.finfo(origin.dtype).eps * abs(best)
    start = None
    while size < FAR:
        other = unflattened(origin + size * step, messages)
        try:
            beliefs = network.beliefs_of(other)
            lost = is_lost(network, held, beliefs)
            value = -math.inf if lost else float(log_evidence(network, other, beliefs))
        except (PyrographError, torch.linalg.LinAlgError):  # beyond where there is a density
            return start
        if not value >= best - slack:
            return start
        if value > best + slack:
            start, best = other, value
        size *= FURTHER
    return start


def _said(sweep: Sweep, growth: float, parts: list[Tensor]) -> str:
    """Of a difference of beliefs ``[V, n]`` by family."""
    most = [part.abs().amax() for part in parts]
    k = max(range(len(parts)), key=lambda k: float(most[k]))
    row = int(parts[k].abs().amax(1).argmax())
    site, index = sweep.graph.nodes[int(sweep.network.families[k].nodes[row])]
    bound = ", no maximum of the bound" if sweep.network.is_mean_field else ""
    has_continuous = may_be_left(sweep.network)
    other = ", or take pg.QBethe, which starts from draws of the priors" if has_continuous else ""
    return (
        f"But the fixed point is unstable{bound}: a small difference grows {growth:.3g} times with "
        f'every sweep, most at "{site}"{list(index)}. Nodes that the program does not tell apart, '
        "such as the components of a mixture, stay alike as they start. Tell them apart in the "
        "program (prior means a little apart, a label that is known), start from other messages "
        f"(init=){other}."
    )


def _nudges(
    block: Block, messages: list[Message], beliefs: list, generator: torch.Generator
) -> list[Message]:
    """Differences of a block's messages, in units of the beliefs: Gaussian ones of mean and
    precision, log values of discrete ones, counts of conjugate ones."""

    def noise(like: Tensor) -> Tensor:
        drawn = torch.randn(like.shape, generator=generator, dtype=torch.float64, device="cpu")
        return drawn.to(like)

    out: list[Message] = []
    for k, (message, family, rows) in enumerate(
        zip(messages, block.families, block.rows, strict=True)
    ):
        if isinstance(message, Tensor):
            out.append(noise(message))
        elif isinstance(message, Gaussian):
            held = seen(beliefs[family], rows, block.bases[k])
            unit = held.precision.diagonal(dim1=-2, dim2=-1)
            bend = noise(unit) * unit
            shift = noise(unit) * unit.sqrt() + bend * held.mean
            out.append(Gaussian(torch.diag_embed(bend), shift))
        else:
            held = beliefs[family].natural[rows]
            size = held.sqrt()
            if isinstance(message, LogGamma):  # a rate has units
                size = torch.stack([size[..., 0], torch.zeros_like(size[..., 1])], -1)
            out.append(type(message)(noise(held) * size))
    return out


def _apart(before: list, after: list) -> list[Tensor]:
    """By how much beliefs differ, ``[V, n]`` by family. States of no probability say nothing,
    however far their logs move."""
    parts = []
    for old, new in zip(before, after, strict=True):
        if isinstance(old, Natural):
            variance, spread = old.variance, new.variance
            shift = (new.mean - old.mean) / variance.sqrt()
            parts.append(torch.cat([shift, spread / variance - 1], 1))
        elif old.dim() == 1:
            parts.append((new - old).unsqueeze(1))
        else:
            p, q = old.log_softmax(1), new.log_softmax(1)
            parts.append(torch.where(p.exp() > torch.finfo(p.dtype).eps, q - p, 0.0))
    return parts


def _largest(parts: list[Tensor]) -> float:
    return float(torch.stack([part.abs().amax() for part in parts]).amax())
