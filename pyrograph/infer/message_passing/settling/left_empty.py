"""States of a label that mean field has left without data, and ways to fill them.

Where two clusters share a component another one may have none. It stays at its prior, under which
data far less wide than the prior are unlikely, so that the point is a maximum of the bound, though
the one with a component for each cluster is higher by far. Trials give the state half the factors
of another one, those most like one, or as many as the state has numbers, that are drawn of them;
where one comes higher in some sweeps the run goes on from there. A state that no cluster needs
loses its factors in a sweep or two, and the trial is over.

Source: Ueda, Nakano, Ghahramani & Hinton (2000), "SMEM algorithm for mixture models", the split.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.errors import PyrographError
from pyrograph.infer.message_passing.continuous.conjugate_factors import ConjugateFactors
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.network.evidence import log_evidence
from pyrograph.infer.message_passing.network.messages import Messages
from pyrograph.infer.message_passing.network.network import Network
from pyrograph.infer.message_passing.settling.left_alike import (
    GAIN,
    RISE,
    SWEEPS,
    TRIALS,
    UNLIKELY,
    alone,
    choices,
    num_chosen,
    with_labels,
)
from pyrograph.infer.message_passing.sweeps.sweep import Held

#: Factors, in sums of probabilities, of which a state that holds data has more.
FEWEST = 1.0
#: Sweeps for which the labels of a start are held: before its mean is there a scale is nothing like
#: that of its factors, and the state would lose them at once.
HELD = 5
#: Where whole steps come to nothing: the weight of an empty state is far out in unconstrained
#: space, and they go as far beyond.
DAMPED = 0.5


@dataclass(frozen=True)
class Empty:
    """A state of labels that no factor is likely to be in.

    Attributes:
        number: of a block; factors: ``[e]``, whose labels choose; row: of the block's states.
    """

    number: int
    factors: Tensor
    row: int


@torch.no_grad()
def left_empty(network: Network, beliefs: list) -> Empty | None:
    """The first that mean field has left without data; None if there is none."""
    if not network.is_mean_field:
        return None
    for number, _, chosen in choices(network):
        block, factors = network.blocks[number], chosen.nonzero().squeeze(1)
        if len(block.local.discrete) > 1:
            continue  # labels that choose together: no telling which state means which
        if len(factors) < 2 * num_chosen(block, factors):
            continue
        own = _shares(network, number, factors, beliefs).sum(0)
        order = own.argsort(stable=True)
        for row in order[own[order] < FEWEST].tolist():
            empty = Empty(number, factors, row)
            if not _holds(network, empty, beliefs):
                return empty
    return None


@torch.no_grad()
def filled(
    network: Network,
    empty: Empty,
    at: Held,
    sweep: Callable[[Held], Held],
    num_held: int,
    seed: int,
) -> Messages | None:
    """Messages under which the bound is higher, if trials find any.

    Args:
        at: where the run stands; sweep: from one place to the next; num_held: sweeps for which
            labels of a start are held; seed: of the trials.
    """
    generator = torch.Generator().manual_seed(seed)
    best, bound = None, log_evidence(network, at.messages, at.beliefs)
    most = num_chosen(network.blocks[empty.number], empty.factors)
    for number in range(TRIALS):
        try:
            num_drawn = most if number % 2 else 1
            trial = _start(network, empty, at, sweep, num_held, generator, num_drawn)
            for _ in range(SWEEPS):
                trial = sweep(trial)
                if not _holds(network, empty, trial.beliefs):
                    break
            else:
                value = log_evidence(network, trial.messages, trial.beliefs)
                if bool(value > bound + GAIN + RISE * bound.abs()):
                    best, bound = trial.messages, value
        except (PyrographError, torch.linalg.LinAlgError):  # no density there
            continue
    return best


def _shares(network: Network, number: int, factors: Tensor, beliefs: list) -> Tensor:
    """Probabilities of the rows of a block's states, ``[e, D]``."""
    block = network.blocks[number]
    (label,) = block.local.discrete
    log_p = beliefs[block.families[label]][block.rows[label][factors]]
    return log_p.softmax(-1)[:, block.local.states[:, 0]]


def _holds(network: Network, empty: Empty, beliefs: list) -> bool:
    """Whether what the state reads holds data, of other statements too: the steps of a loop share
    their components, and a single one need not be in all of them."""
    block = network.blocks[empty.number]
    held = _shares(network, empty.number, empty.factors, beliefs)[:, empty.row].sum()
    if bool(held >= FEWEST):
        return True
    reached = block.local.nodes_reached[:, empty.factors]  # [D, e, slots]
    own = reached[empty.row] & ~reached.all(0)
    is_own = [
        torch.zeros(len(f.nodes), dtype=torch.bool, device=own.device) for f in network.families
    ]
    for n, k in enumerate(block.local.continuous):
        is_own[block.families[k]][block.rows[k][empty.factors[own[:, n]]]] = True
    for number, other in enumerate(network.blocks):
        if number == empty.number or not isinstance(other, ConjugateFactors | QuadratureFactors):
            continue
        if len(other.local.discrete) != 1:
            continue
        slots = other.local.continuous
        among = torch.stack([is_own[other.families[k]][other.rows[k]] for k in slots], -1)
        reads = (other.local.nodes_reached & among).any(-1)  # [D, E]
        if bool(reads.any()):
            every = torch.arange(reads.shape[1], device=reads.device)
            held = held + (_shares(network, number, every, beliefs) * reads.T).sum()
    return bool(held >= FEWEST)


def _start(
    network: Network,
    empty: Empty,
    at: Held,
    sweep: Callable[[Held], Held],
    num_held: int,
    generator: torch.Generator,
    num_drawn: int,
) -> Held:
    """From labels under which the state has half the factors of another one.

    Args:
        num_drawn: factors of that one, of which the half is told that is most like them.
    """
    block = network.blocks[empty.number]
    (label,), states = block.local.discrete, block.local.states[:, 0]
    order = torch.randperm(len(empty.factors), generator=generator, device="cpu")
    order = order.to(empty.factors.device)
    row = _shares(network, empty.number, empty.factors, at.beliefs).argmax(1)[order]
    shared = empty.factors[order[row == row[0]]]

    def told(rows: Tensor, values: Tensor) -> Tensor:
        values = values.clone()
        values[rows] = UNLIKELY
        values[rows, states[empty.row]] = 0.0
        return values

    messages = [list(sent) for sent in at.messages]
    reached = block.local.nodes_reached[empty.row, empty.factors[0]]  # [slots]
    drawn = shared[:num_drawn]
    beliefs, family = list(at.beliefs), block.families[label]
    beliefs[family] = told(block.rows[label][drawn], beliefs[family])
    sent, _ = block.update(messages[empty.number], beliefs)
    for k in itertools.compress(block.local.continuous, reached.tolist()):
        messages[empty.number][k] = alone(sent[k], drawn)
    sent, _ = block.update(messages[empty.number], network.beliefs_of(messages))
    log_p = sent[label][shared]
    odds = log_p[:, states[empty.row]] - log_p[:, states[row[0]]]
    half = shared[odds.argsort(descending=True)[: (len(shared) + 1) // 2]]
    found = at
    for _ in range(num_held):
        messages = [list(sent) for sent in found.messages]
        messages[empty.number][label] = told(half, messages[empty.number][label])
        found = sweep(Held(messages, network.beliefs_of(messages)))
    return with_labels(network, found.messages)
