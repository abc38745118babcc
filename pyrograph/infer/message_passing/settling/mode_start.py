"""Messages at the mode: where sweeps start again when the first ones run away.

Flat messages see a factor under the prior alone. Where the prior is far wider than the posterior
and many factors are about one node, their first answers together overshoot, and sweeps may run
away although a fixed point is near the mode x*. The messages of Laplace's approximation,

    tau_i = -d2 log f / dv_i dv_i,      nu_i = d log f / dv_i + tau_i v_i,      at v = v(x*)

those of mean field with beliefs of no width, are in its neighbourhood: beliefs N(x*_i, 1 / H_ii).
At a kink, as a Laplace density's, they know no precision; mean field's do, with beliefs at x* that
are as wide as they make them. And where factors overflow under beliefs as wide as these, narrower
ones, which sweeps with damping widen as far as expectations go.

Source: Smola, Vishwanathan & Eskin (2003), whose messages, at every step, these are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.beliefs import Gaussian
from pyrograph.beliefs.gaussian import apply
from pyrograph.errors import InferenceError
from pyrograph.graph import FactorGraph
from pyrograph.infer.laplace import conditional_width, find_mode
from pyrograph.infer.message_passing.continuous.kinked_form import KinkedForm
from pyrograph.infer.message_passing.continuous.quadratic import QuadraticFactors
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.network.network import Block, Network
from pyrograph.infer.message_passing.nodes.families import Continuous, add_sites
from pyrograph.infer.message_passing.sweeps.sweep import overflow

#: How far, in standard deviations, the beliefs may be from the mode: at a kink there is no slope
#: that would hold them.
FARTHEST = 1.0
#: Rounds in which widths at kinks are found: each takes the square root of how far off they are.
ROUNDS = 30
#: Precisions, in those of the mode, tried where expectations overflow under its beliefs, as of
#: exp(u) that only a wide prior holds from below.
NARROWER = (4.0, 16.0, 64.0, 256.0)


def messages_at_mode(graph: FactorGraph, network: Network) -> list[list[Gaussian]] | None:
    """Messages per block and slot; None for discrete nodes, other beliefs than Gaussian ones, or
    without a mode that beliefs could stand at. Grids are to be laid afresh."""
    normal = [isinstance(f, Continuous) and isinstance(f.base, Gaussian) for f in network.families]
    if not all(normal):
        return None
    try:
        mode, _ = find_mode(graph)
        found = _messages_at(graph, network, mode)
        if found is None:  # units that differ by far end a climb
            fine = graph if graph.dtype == torch.float64 else graph.to(None, torch.float64)
            mode, _ = find_mode(fine, mode, conditional_width(fine, mode))
            found = _messages_at(graph, network, mode)
    except InferenceError:
        return None
    if found is None:
        return None
    for share in NARROWER:
        if not overflow(network.blocks, network.beliefs_of(found)):
            break
        found = _messages_at(graph, network, mode, share) or found
    network.forget_grids()
    return found


def _messages_at(
    graph: FactorGraph, network: Network, mode: Tensor, share: float = 1.0
) -> list[list[Gaussian]] | None:
    """Messages about a point ``[dim]``, of precisions times a share; None if beliefs do not stand
    there."""
    families, blocks = network.families, network.blocks
    mode = mode.to(graph.constant)
    points = [
        mode[graph.columns[f.nodes].unsqueeze(1) + torch.arange(f.size, device=mode.device)]
        for f in families
    ]
    messages, beliefs = [], [f.base for f in families]
    for block in blocks:
        parts = [
            points[f][rows] if basis is None else basis.of(points[f][rows])
            for f, rows, basis in zip(block.families, block.rows, block.bases, strict=True)
        ]
        precision, slope = _expanded(block, torch.cat(parts, 1))
        sent = []
        for k, (part, v) in enumerate(zip(block.parts, parts, strict=True)):
            tau = share * precision[:, part, part]
            sent.append(Gaussian(tau, slope[:, part] + apply(tau, v)))
            f = block.families[k]
            beliefs[f] = add_sites(beliefs[f], block.rows[k], sent[k], block.bases[k])
        messages.append(sent)
    beliefs = _as_wide_as_kinks(network, messages, beliefs, points)
    stands = all(_is_at(q, point) for q, point in zip(beliefs, points, strict=True))
    return messages if stands else None


def _expanded(block: QuadraticFactors | QuadratureFactors, v: Tensor) -> tuple[Tensor, Tensor]:
    """-Hessian ``[E, R, R]`` and gradient ``[E, R]`` of log f at ``v [E, R]``."""
    if isinstance(block, QuadraticFactors):
        return block.precision, block.shift - apply(block.precision, v)
    return block.local.expanded(v)


def _as_wide_as_kinks(
    network: Network, messages: list[list], beliefs: list[Gaussian], points: list[Tensor]
) -> list[Gaussian]:
    """Beliefs with messages of factors whose kinks are known, which are written into the others,
    under beliefs at the points."""
    kinked = [number for number, block in enumerate(network.blocks) if _has_kinks(block)]
    for _ in range(ROUNDS if kinked else 0):
        around = []
        for q, point in zip(beliefs, points, strict=True):
            unit = torch.eye(point.shape[-1], dtype=point.dtype, device=point.device)
            proper = q.is_proper[:, None, None]
            width = Gaussian(torch.where(proper, q.precision, unit), q.shift).covariance
            around.append(Gaussian.from_moments(point, width))
        for number in kinked:
            messages[number] = network.blocks[number].update(messages[number], around)[0]
        beliefs = network.beliefs_of(messages)
    return beliefs


def _has_kinks(block: Block) -> bool:
    if not isinstance(block, QuadratureFactors) or block.expected is None:
        return False
    return isinstance(block.expected.closed, KinkedForm)


def _is_at(belief: Gaussian, point: Tensor) -> bool:
    """Whether beliefs ``[V]`` are proper and stand at the points ``[V, d]``."""
    if not bool(belief.is_proper.all()):
        return False
    width = belief.covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    return bool(((belief.mean - point).abs() <= FARTHEST * width).all())
