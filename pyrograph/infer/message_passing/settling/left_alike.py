"""Alternatives of a label that mean field has left alike, and ways to tell them apart.

Components of a mixture start alike. Where their scale is a latent too it may take in all that is
between them before they part, and the point at which they are one broad component is then a maximum
of the bound, or nearly so (:mod:`.stability`), though others are higher by far. Trials start
elsewhere, each component from what a single factor says of it, drawn at random, as k-means does
from rows of the data; where one comes higher in some sweeps the run goes on from there. Components
of several numbers, as the intercepts and slopes of two lines, start from as many factors each too:
one says nothing of them all.

Source: MacQueen (1967) for components that start from single observations; Rousseeuw (1984), "Least
median of squares regression", for sets of as many as there are numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pyrograph.beliefs import Natural
from pyrograph.errors import PyrographError
from pyrograph.graph import FactorGraph
from pyrograph.infer.message_passing.continuous.conjugate_factors import ConjugateFactors
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.network.evidence import log_evidence
from pyrograph.infer.message_passing.network.messages import Messages, movement, with_discrete_of
from pyrograph.infer.message_passing.network.network import Network
from pyrograph.infer.message_passing.sweeps.sweep import Held
from pyrograph.trace.distinct import distinct_rows

#: In widths of beliefs: two that differ by less are alike, and one that is further from its prior
#: holds data.
ALIKE, MOVED = 1e-3, 0.1
#: What a trial has to gain, in nats, and beyond it for rounding as a share of the bound.
GAIN, RISE = 0.1, 1e-9
#: Slots of a factor that are looked at, the first ones.
MOST = 8
#: Starts that are tried, and sweeps from each.
TRIALS, SWEEPS = 6, 20
#: Log value of a label's state that is not meant.
UNLIKELY = -30.0


@dataclass(frozen=True)
class Alike:
    """Factors of a block between whose nodes labels choose, though they are alike.

    Attributes:
        number: of the block; factors: ``[e]``; slots: two of its continuous slots.
    """

    number: int
    factors: Tensor
    slots: tuple[int, int]


def choices(network: Network) -> Iterator[tuple[int, tuple[int, int], Tensor]]:
    """Between which continuous nodes labels choose: numbers of blocks, two slots of one family, and
    ``[E]`` of which factors."""
    for number, block in enumerate(network.blocks):
        if not (isinstance(block, ConjugateFactors | QuadratureFactors) and block.local.discrete):
            continue
        reached = block.local.nodes_reached  # [D, E, slots]
        slots = list(enumerate(block.local.continuous))[:MOST]
        for (n, k), (m, j) in itertools.combinations(slots, 2):
            if block.families[k] != block.families[j]:
                continue
            chosen = (reached[..., n] & ~reached[..., m]).any(0)
            chosen &= (reached[..., m] & ~reached[..., n]).any(0)
            if bool(chosen.any()):
                yield number, (k, j), chosen


def alternatives(network: Network, beliefs: list) -> Alike | None:
    """The first that mean field has left alike; None if there are none."""
    return alike_choices(network, beliefs) if network.is_mean_field else None


@torch.no_grad()
def alike_choices(network: Network, beliefs: list) -> Alike | None:
    """The first alternatives whose beliefs are alike and not as their prior; None if there are
    none."""
    for number, (k, j), chosen in choices(network):
        block = network.blocks[number]
        pairs = torch.stack([block.rows[k], block.rows[j]], 1)
        pairs, place = distinct_rows(pairs)  # mixtures have one
        family = block.families[k]
        first, second = (beliefs[family][rows] for rows in pairs.unbind(1))
        base = network.families[family].base[pairs[:, 0]]
        holds = ~base.is_proper | (movement(base, first) > MOVED)
        alike = chosen & (holds & (movement(first, second) < ALIKE))[place]
        if bool(alike.any()):
            return Alike(number, alike.nonzero().squeeze(1), (k, j))
    return None


def note_on(graph: FactorGraph, network: Network, found: Alike) -> str:
    """What is to be said of them."""
    block, names = network.blocks[found.number], []
    for k in found.slots:
        nodes = network.families[block.families[k]].nodes
        site, index = graph.nodes[int(nodes[block.rows[k][int(found.factors[0])]])]
        names.append(f'"{site}"{list(index)}')
    return (
        f"{names[0]} and {names[1]} have the same belief, though labels choose between them: "
        "another maximum of the bound may be higher by far. Tell them apart in the program (prior "
        "means apart, a label that is known), or give scales beside them a prior that does not "
        "take in the distance between clusters."
    )


@torch.no_grad()
def told_apart(
    network: Network, found: Alike, at: Held, sweep: Callable[[Held], Held], seed: int
) -> Messages | None:
    """Messages under which the bound is higher, if trials find any.

    Args:
        at: where the run stands; sweep: from one place to the next; seed: of the trials.
    """
    if len(network.blocks[found.number].local.discrete) > 1:
        return None  # labels that choose together: no telling which state means which
    generator = torch.Generator().manual_seed(seed)
    best, bound = None, log_evidence(network, at.messages, at.beliefs)
    starts = [partial(_start, is_fresh=bool(number % 2)) for number in range(TRIALS)]
    if num_chosen(network.blocks[found.number], found.factors) > 1:
        starts += [_start_of_sets] * TRIALS
    for start in starts:
        try:
            trial = start(network, found, at, generator)
            for _ in range(SWEEPS):
                trial = sweep(trial)
            value = log_evidence(network, trial.messages, trial.beliefs)
        except (PyrographError, torch.linalg.LinAlgError):  # no density there
            continue
        if bool(value > bound + GAIN + RISE * bound.abs()):
            best, bound = trial.messages, value
    return best


def _start(
    network: Network, found: Alike, at: Held, generator: torch.Generator, is_fresh: bool
) -> Held:
    """Each of a block's alternatives from what one factor says of it, and labels from there.

    Args:
        is_fresh: whether other nodes beside them, a scale say, start from their priors: where they
            are, they may hold all components together.
    """
    block, messages = network.blocks[found.number], [list(sent) for sent in at.messages]
    reached, (label, *_) = block.local.nodes_reached, block.local.discrete
    family, like = block.families[found.slots[0]], found.slots[0]
    drawn = torch.randperm(len(found.factors), generator=generator, device="cpu").tolist()
    beliefs, firsts = list(at.beliefs), {}
    labels = beliefs[block.families[label]].clone()
    for n, k in enumerate(block.local.continuous):
        if block.families[k] != family or not drawn:
            continue
        e = found.factors[drawn.pop()]
        pair = (beliefs[family][block.rows[own][e : e + 1]] for own in (like, k))
        read_in = reached[:, e, n].nonzero()[:, 0]
        if not len(read_in) or not bool((movement(*pair) < ALIKE).all()):
            continue
        state = block.local.states[read_in[0], 0]
        labels[block.rows[label][e]] = UNLIKELY
        labels[block.rows[label][e], state] = 0.0
        firsts[k] = e
    beliefs[block.families[label]] = labels
    sent, _ = block.update(messages[found.number], beliefs)
    for k in block.local.continuous:
        if k in firsts:
            messages[found.number][k] = alone(sent[k], firsts[k][None])
        elif is_fresh:
            messages[found.number][k] = sent[k].mapped(torch.zeros_like)
    return with_labels(network, messages)


def _start_of_sets(network: Network, found: Alike, at: Held, generator: torch.Generator) -> Held:
    """What each state of a label chooses from what as many factors say of it as it has numbers, and
    labels from there; other nodes start from their priors."""
    block, messages = network.blocks[found.number], [list(sent) for sent in at.messages]
    (label, *_), first = block.local.discrete, found.factors[0]
    reached = block.local.nodes_reached[:, first]  # [D, slots]
    order = torch.randperm(len(found.factors), generator=generator, device="cpu")
    drawn = found.factors[order.to(found.factors.device)]
    sets = drawn[: num_chosen(block, found.factors) * len(reached)].tensor_split(len(reached))
    beliefs = list(at.beliefs)
    labels = beliefs[block.families[label]].clone()
    for own, state in zip(sets, block.local.states[:, 0], strict=True):
        labels[block.rows[label][own]] = UNLIKELY
        labels[block.rows[label][own], state] = 0.0
    beliefs[block.families[label]] = labels
    sent, _ = block.update(messages[found.number], beliefs)
    for n, k in enumerate(block.local.continuous):
        is_shared = bool(reached[:, n].all())
        own = [] if is_shared else itertools.compress(sets, reached[:, n].tolist())
        messages[found.number][k] = alone(sent[k], torch.cat([drawn[:0], *own]))
    return with_labels(network, messages)


def num_chosen(block: ConjugateFactors | QuadratureFactors, factors: Tensor) -> int:
    """Numbers of the nodes that a state of the label reads and others do not."""
    reached = block.local.nodes_reached[:, factors[0]]  # [D, slots]
    widths = torch.tensor(block.local.nodes_widths, device=reached.device)
    return int((reached & ~reached.all(0)).long().mul(widths).sum(1).max())


def with_labels(network: Network, messages: Messages) -> Held:
    """Messages to continuous nodes, and what factors then tell labels."""
    beliefs = network.beliefs_of(messages)
    pairs = zip(network.blocks, messages, strict=True)
    told = with_discrete_of([b.update(sent, beliefs)[0] for b, sent in pairs], messages)
    return Held(told, network.beliefs_of(told))


def alone(message: Natural, factors: Tensor) -> Natural:
    """That of some factors, others say nothing."""
    return message.mapped(
        lambda value: torch.zeros_like(value).index_copy(0, factors, value[factors])
    )
