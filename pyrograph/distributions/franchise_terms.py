"""Probabilities of state sequences under the franchise's urns, whole and one move at a time.

The formulas stand in ``franchise``. Incrementally, the elements present form a sequence in their
own order (an element that is out closes up), the log joint is that sequence's log probability, and

    scores(i)[p, c] = log P(z with z_i = c) - log P(z without i).

Appending under the paper's urn is O(C) from the counts of moves. Any other score is a full
rescoring of C candidates per particle: under the paper's urn a change in mid-sequence changes the
probability of the whole suffix, and the franchise's tables, summed out, couple all counts by their
total number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.distributions.chinese_restaurant import log_shares
from pyrograph.distributions.labels import by_appearance
from pyrograph.distributions.seating import Seating, twin
from pyrograph.distributions.urn import Moves

#: Candidates are rescored in chunks of about this many numbers per table of a convolution.
CHUNK = 10_000_000


class SequenceTerm:
    """The franchise prior over the states present.

    ``moves`` holds the counts when the states present are the first t, else None.
    """

    def __init__(self, alpha: Tensor, gamma: Tensor, urn: str, moves: Moves | None = None):
        self.alpha, self.gamma, self.urn, self.moves = alpha, gamma, urn, moves
        self.dtype = alpha.dtype

    def scores(self, i: int, seating: Seating) -> Tensor:
        if self.urn == "paper" and i == seating.num_inside and all(seating.inside[:i]):
            if self.moves is None:
                self.moves = self._counted(seating)
            return self.moves.paper_scores(self.alpha.expand(1), self.gamma.expand(1))
        present = [j for j, inside in enumerate(seating.inside) if inside or j == i]
        labels = seating.labels
        slots = (~seating.closed()).any(0).nonzero().squeeze(1)
        shape = (len(labels), len(slots), len(present))
        candidates = labels[:, None, present].expand(shape).clone()
        candidates[..., present.index(i)] = slots
        step = max(1, CHUNK // (len(candidates) * len(present) ** 2))
        joint = [self._log_prob(part) for part in candidates.split(step, dim=1)]
        change = torch.cat(joint, dim=1) - self._log_prob_of_present(seating).unsqueeze(-1)
        scores = change.new_full((len(labels), seating.capacity), -torch.inf)
        return scores.index_copy_(1, slots, change).to(self.alpha.dtype)

    def _counted(self, seating: Seating) -> Moves:
        labels = seating.labels
        moves = Moves.empty(len(labels), seating.capacity, self.alpha.dtype, labels.device)
        for t in range(seating.num_inside):
            moves.append(labels[:, t])
        return moves

    def _log_prob(self, labels: Tensor) -> Tensor:
        # in double precision, since scores are differences
        alpha, gamma = self.alpha.double(), self.gamma.double()
        return log_sequence(by_appearance(labels), alpha, gamma, self.urn)

    def log_prob(self, seating: Seating) -> Tensor:
        return self._log_prob_of_present(seating)

    def _log_prob_of_present(self, seating: Seating) -> Tensor:
        present = [j for j, inside in enumerate(seating.inside) if inside]
        return self._log_prob(seating.labels[:, present])

    def move(self, i: int, slot: Tensor, sign: int, seating: Seating) -> None:
        if self.moves is not None and sign > 0 and i == seating.num_inside - 1:
            self.moves.append(slot)
        else:
            self.moves = None

    def select(self, index: Tensor, memo: dict) -> SequenceTerm:
        new = twin(self)
        new.moves = None if self.moves is None else self.moves.select(index)
        return new

    def grow(self, capacity: int, seating: Seating) -> None:
        if self.moves is not None:
            self.moves.grow(capacity)

    def rebuild(self, seating: Seating) -> None:
        self.moves = None


def log_sequence(states: Tensor, alpha: Tensor, gamma: Tensor, urn: str) -> Tensor:
    """Log probability of sequences ``[..., t]`` of any length, labelled in order of appearance."""
    dtype = alpha.dtype
    if states.numel() == 0:  # no sequences, or empty ones: log 1 at any parameters
        return states.new_zeros(states.shape[:-1], dtype=dtype) + 0 * (alpha + gamma)
    counts = visit_counts(states)
    alpha, gamma = alpha.double().unsqueeze(-1), gamma.double().unsqueeze(-1)
    log_seat = -(alpha + counts.left).log()
    if urn == "paper":
        oracle = alpha.log() - (counts.unvisited + gamma).log()
        fresh = oracle + torch.where(counts.entered > 0, counts.entered, gamma).log()
        again = torch.where(counts.pair > 0, counts.pair, 1).log()
        return (log_seat + torch.where(counts.pair > 0, again, fresh)).sum(-1).to(dtype)
    log_f = log_tables(states, counts.pair)
    tables = torch.arange(log_f.shape[-1], dtype=log_f.dtype, device=states.device)
    seating = log_f + tables * alpha.log() - log_rising(gamma.squeeze(-1), states.shape[-1])
    num_states = (counts.entered == 0).sum(-1)
    total = log_seat.sum(-1) + num_states * gamma.squeeze(-1).log() + seating.logsumexp(-1)
    return total.to(dtype)


def log_rising(x: Tensor, most: int) -> Tensor:
    """log of x (x + 1) ... (x + T - 1), x ``[...]``, for T = 0, ..., most: ``[..., most + 1]``."""
    unit, start = x.clamp_min(1).log().unsqueeze(-1), torch.zeros_like(x).unsqueeze(-1)
    further = torch.cat([start, log_shares(x, most - 1).cumsum(-1)], -1)
    steps = torch.arange(most, dtype=x.dtype, device=x.device)
    return torch.cat([start, x.log().unsqueeze(-1) + steps * unit + further], -1)


class VisitCounts:
    """What each move of a sequence finds, ``[..., t]`` each, from the moves before it.

    Attributes:
        pair: n_jc, moves along the same pair.
        left: n_j., moves out of the same state.
        entered: n_.c, moves into the same state.
        unvisited: U_j, moves into states that j has not visited.
    """

    def __init__(self, pair: Tensor, left: Tensor, entered: Tensor, unvisited: Tensor):
        self.pair, self.left, self.entered, self.unvisited = pair, left, entered, unvisited


@torch.no_grad()
def visit_counts(states: Tensor) -> VisitCounts:
    """Counts before each move, for states labelled in order of appearance; O(t) batched steps."""
    flat = states.reshape(-1, states.shape[-1])
    length = flat.shape[-1]
    moves = Moves.empty(len(flat), int(flat.max()) + 1, torch.float64, flat.device)
    steps = []
    for t in range(length):
        state = flat[:, t].unsqueeze(-1)
        row = moves.row()
        steps.append(
            torch.cat(
                [
                    row.gather(-1, state),
                    row.sum(-1, keepdim=True),
                    moves.entered.gather(-1, state),
                    moves.unvisited(row).sum(-1, keepdim=True),
                ],
                dim=-1,
            )
        )
        moves.append(state.squeeze(-1))
    counts = torch.stack(steps, dim=-1)
    return VisitCounts(*(c.reshape(states.shape) for c in counts.unbind(1)))


@torch.no_grad()
def log_tables(states: Tensor, pair: Tensor) -> Tensor:
    """log F(T), T = 0, ..., t: the weight of T tables in all, ``[..., t + 1]``."""
    length = states.shape[-1]
    flat, again = states.reshape(-1, length), pair.reshape(-1, length)
    num_states = int(flat.max()) + 1
    rows = torch.arange(len(flat), device=flat.device)
    # dish[k, m] = log of the coefficient of x^m in prod_t (x + r_t) over the visits t of k
    dish = pair.new_full((len(flat), num_states, length + 1), -torch.inf)
    dish[..., 0] = 0
    for t in range(length):
        old = dish[rows, flat[:, t]]
        new = old + again[:, t, None].log()
        new[:, 1:] = torch.logaddexp(new[:, 1:], old[:, :-1])
        dish[rows, flat[:, t]] = new
    m = torch.arange(1, length + 1, dtype=dish.dtype, device=flat.device)
    dish[..., 1:] += torch.lgamma(m)
    width = int(torch.nn.functional.one_hot(flat).sum(1).max()) + 1
    total = torch.full_like(dish[:, 0], -torch.inf)
    total[:, 0] = 0
    for k in range(num_states):
        used = dish[:, k, :1] == -torch.inf  # the first visit has r = 0, so m = 0 is ruled out
        total = torch.where(used, _log_convolve(total, dish[:, k, :width]), total)
    return total.reshape(states.shape[:-1] + total.shape[-1:])


def _log_convolve(a: Tensor, b: Tensor) -> Tensor:
    """log sum_m exp(a[T - m] + b[m]) for every T below the length of ``a``."""
    width = b.shape[-1]
    padded = torch.nn.functional.pad(a, (width - 1, 0), value=-torch.inf)
    windows = padded.unfold(-1, width, 1)  # [..., T, m'] holds a[T - width + 1 + m']
    return (windows + b.flip(-1).unsqueeze(-2)).logsumexp(-1)
