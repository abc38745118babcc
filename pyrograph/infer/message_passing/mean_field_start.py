"""Where runs of mixtures start: at what mean field says.

Components that a program does not tell apart start alike and stay alike. With alpha > 0 sweeps then
mostly settle at no fixed point that is worth it: clusters apart leave each component messages whose
precisions add up to less than nothing, or one broad component takes in all of them (with unknown
scales 45 nats below the bound of mean field, on a hundred numbers in two clusters). Mean field does
tell components apart (:mod:`.settling.left_alike`), and climbs. So messages start from its beliefs
q*, as what every factor says beside them,

    m_{a -> i} = (proj_i[ f_a^alpha q* ] / q*_i)^(1 / alpha)

which is about the curvature of log f_a there. Of more components than clusters it leaves some
alike, which is better than all. Where mean field refuses the program, because of zeros say,
messages start as others do. A run that ends below mean field's bound is told of: another fixed
point is better.

Source: Minka (2005), eqs (17) and (54), with q* for the cavity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from pyrograph.beliefs import Natural
from pyrograph.errors import PyrographError
from pyrograph.graph import FactorGraph
from pyrograph.infer.message_passing.iteration import Iteration
from pyrograph.infer.message_passing.network.alphas import alpha_of_factors
from pyrograph.infer.message_passing.network.build import build
from pyrograph.infer.message_passing.network.messages import Messages
from pyrograph.infer.message_passing.network.network import Network
from pyrograph.infer.message_passing.settling.left_alike import alike_choices, choices
from pyrograph.infer.message_passing.settling.settling import Settling, leaps_for
from pyrograph.infer.message_passing.settling.stability import instability

#: Sweeps of mean field at most, and what they need not come nearer to rest than.
SWEEPS, NEAR = 100, 1e-3
#: Nats below the bound of mean field that are no error of an evidence.
BELOW = 1.0


class MeanFieldStart:
    """Where a run starts, if not at flat messages; looked for once.

    Args:
        num_points, family: see :func:`.build`.
        seed: of the trials that tell components apart.
        is_wanted: whether to look for it.

    Attributes:
        bound: mean field's, on the log evidence; minus infinity where the run did not start there.
    """

    def __init__(
        self,
        graph: FactorGraph,
        network: Network,
        num_points: int | None,
        family: Mapping[str, str],
        seed: int,
        is_wanted: bool,
    ):
        self.graph, self.network, self.num_points, self.family = graph, network, num_points, family
        self.seed, self.bound = seed, -math.inf
        self._is_known, self._found = not is_wanted, None

    @torch.no_grad()
    def messages(self) -> Messages | None:
        """None where the run needs none, or mean field knows none."""
        if not self._is_known:
            self._found, self._is_known = self._looked_for(), True
        return self._found

    def _looked_for(self) -> Messages | None:
        graph, network = self.graph, self.network
        if not applies(network):
            return None
        try:
            no_alpha = partial(alpha_of_factors, 0.0, graph)
            pilot = _run(graph, build(graph, no_alpha, self.num_points, self.family), self.seed)
            beliefs = pilot.at.beliefs
            if not _fit(network, pilot.network):
                return None
            flat = [[_nothing(m) for m in sent] for sent in network.start()]
            sent = [b.update(own, beliefs)[0] for b, own in zip(network.blocks, flat, strict=True)]
            found = network.beliefs_of(sent)
            bound = float(pilot.evidence())
        except (PyrographError, torch.linalg.LinAlgError):
            return None
        if not all(bool(q.is_proper.all()) for q in found if isinstance(q, Natural)):
            return None
        self.bound = bound
        return sent

    def note(self, evidence: Tensor) -> str | None:
        """What is to be said of an evidence, if it is below the bound."""
        if not bool(evidence < self.bound - BELOW):
            return None
        return (
            f"Mean field's bound {self.bound:.6g} is above this log evidence: the fixed point is "
            "not the best one. Take pg.VMP, compare seeds (pyro.set_rng_seed), or tell components "
            "apart in the program (prior means apart, a label that is known)."
        )


@torch.no_grad()
def applies(network: Network) -> bool:
    """Whether labels choose between continuous nodes that a sweep leaves alike, or that it does not
    come through; with alphas above 0."""
    is_above = all(bool((block.alpha > 0).all()) for block in network.blocks)
    if not is_above or next(choices(network), None) is None:
        return False
    messages = network.start()
    beliefs = network.beliefs_of(messages)
    pairs = zip(network.blocks, messages, strict=True)
    try:
        after = network.beliefs_of([block.update(sent, beliefs)[0] for block, sent in pairs])
        return alike_choices(network, after) is not None
    except (PyrographError, torch.linalg.LinAlgError):
        return True
    finally:
        network.forget_grids()


def _run(graph: FactorGraph, network: Network, seed: int) -> Iteration:
    """Mean field, where it ends or has gone for long enough."""
    settling = Settling(graph, network, None, leaps_for(network, NEAR), True, True)
    run = Iteration(graph, network, "sequential", settling, network.start(), False, seed)
    for done in range(SWEEPS):
        residual, _ = run.with_new_starts(partial(run.step, done == 0, NEAR), done > 0)
        if float(residual) > NEAR:
            continue
        start = run.told_apart()
        if start is None:
            found = instability(run.next_sweep, run.at.messages, run.at.beliefs, done, seed)
            start = None if found is None else found.nearby
        if start is None:
            break
        run.leave_for(start)
    return run


def _fit(network: Network, other: Network) -> bool:
    """Whether beliefs of one are of the kinds of the other."""
    own, others = ([(type(f), type(f.base)) for f in n.families] for n in (network, other))
    return own == others


def _nothing(message: Tensor | Natural) -> Tensor | Natural:
    is_natural = isinstance(message, Natural)
    return message.mapped(torch.zeros_like) if is_natural else torch.zeros_like(message)
