"""A filter over labellings: element after element, on sums of each particle's own clusters.

The pool of shared clusters (:mod:`pyrograph.distributions.seating`) pays in sweeps. In one pass
with few particles its bookkeeping costs more than the sums it saves: here all clusters stand in one
tensor ``[R, K, C]``, K particles with C slots each. A normal-inverse-gamma cluster of n elements
has location m and spread 2 b_n; where y joins, in each dimension,

    g = y - m,   m <- y - r_n g,   2 b_n+1 = 2 b_n + r_n g^2,   r_n = kappa_n / (kappa_n + 1),
    cost_n = sum a_n log 2 b_n,   log p_n = const_n - cost_n.

What the log joint gains by element i in a cluster, with the restaurant's weight w_n = n (w_0 =
alpha) and counts n_v + concentration_v of the symbol v of element i, where data are symbols, is

    gain = c_n - cost_n+1 + log(n_v + concentration_v),
    c_n = log w_n + const_n+1 - const_n + cost_n - log(n + sum of all concentrations),

less log(alpha + t), which no choice depends on and which is left to the end. c_n is a row of the
state. Where element i joins, c_n+1 is looked up by size, but for the cost, which has been scored:
K numbers a step, while others are only copied. Slots are filled in order; c is -inf behind the
first free one. Labels are back pointers, put together when somebody asks.

Source: Saeedi, Kulkarni, Mansinghka & Gershman (2017), section 3.2 and eqs (16) to (19).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyrograph.distributions.chinese_restaurant import log_partition
from pyrograph.distributions.labels import in_order
from pyrograph.distributions.mixture_term import AT_ONCE
from pyrograph.infer.dpvi.labellings.forward_state import Room, Sums

#: Slots at first, and the least by which there are more when they run out.
ROOM = 4
#: Numbers in the state from which on particles had better share their clusters.
LARGE = 150_000


class ForwardPass:
    """A filter that has taken in some elements.

    Args:
        sums: of data and priors.
        labels: ``[K, n]``, -1 of elements that are out.
        score: ``[K]``, of these labels.
        slots: C; a few more than are in use, if 0.

    Attributes:
        num_inside: number of elements that are in.
        score: ``[K]``, by falling score once an element came in.
    """

    def __init__(self, sums: Sums, labels: Tensor, score: Tensor, slots: int = 0):
        self.sums, self.num_inside = sums, int((labels[0] >= 0).sum())
        self._labels = in_order(labels)
        self._elements: list[int] = []
        self._chosen: list[Tensor] = []
        self._slots: list[int] = []
        #: What the scores are short of.
        self._offset = self.sums.log_total[self.num_inside]
        self._score = score.double() + self._offset
        #: Clusters of the particle that has most, or more.
        self._used = int(self._labels.max()) + 1 if self.num_inside else 0
        self._room = Room(self.sums, len(score), slots or self._used + ROOM)
        self._fill(self._room.state.whole)

    def _fill(self, whole: Tensor) -> None:
        """The state from the labels."""
        sums, m = self.sums, len(self.sums.prior)
        slot = torch.arange(whole.shape[2], device=whole.device)
        size = torch.empty(whole.shape[1:], dtype=torch.int64, device=whole.device)
        step = max(1, AT_ONCE // max(1, len(slot) * self._labels.shape[1]))
        for first in range(0, len(self._labels), step):
            part = slice(first, first + step)
            members = self._labels[part].unsqueeze(1) == slot.unsqueeze(1)  # [k, C, n]
            for term, rows in sums.rows:
                totals = term.totals_of(members.flatten(0, 1))
                whole[rows, part] = totals.unflatten(1, members.shape[:2])
            size[part] = members.sum(2)
        whole[m - 1] = size
        ahead = sums.ahead[:, size]
        whole[m] = ahead[-1] + sums.costs(whole[:m], size)
        whole[m + 1 :] = ahead[:-1]
        whole[m].masked_fill_(slot > (size > 0).sum(1, keepdim=True), -torch.inf)

    # ------------------------------------------------------------------ steps
    def take_in(self, i: int, most: int) -> bool:
        """The best extensions by element i; whether they are all."""
        room, sums, slots = self._room, self.sums, self._room.slots
        self._extend(room, i)
        scores = room.scores
        # an element that finds others has two extensions at least, so that not all can be kept
        too_many = room.count == most and self.num_inside > 0
        best, chosen = scores.topk(most if too_many else min(most + 1, len(scores)))
        is_all, into, state = False, room, room.other
        if not too_many:
            possible = len(best)
            if float(best[-1]) == -torch.inf:
                possible = int((best > -torch.inf).sum())
            is_all, kept = possible <= most, min(most, possible)
            best, chosen = best[:kept], chosen[:kept]
            if kept != room.count:
                into = Room(sums, kept, slots)
                state = into.state
        parent, size, place = into.parent, into.size, into.place
        torch.index_select(room.parent_and_slot, 1, chosen, out=into.chosen)
        torch.index_select(room.state.whole, 1, parent, out=state.whole)
        torch.index_select(room.ahead, 1, chosen, out=into.joined_ahead)
        torch.sub(into.joined_pull, sums.points[i], out=into.joined_m)
        size.copy_(into.joined_size)
        torch.index_select(sums.joining, 1, size, out=into.looked_up)
        if sums.by_product:
            torch.addcmul(into.constant, into.joined_c, into.joined_power, out=into.joined_c)
        else:
            into.joined_c.add_(into.constant)
        torch.add(into.slot, into.start, out=place)
        starts = int(size.min()) == 1
        if starts:  # the next slot is open; where no cluster started this is its own, filled below
            behind = place + size.eq(1)
            state.c.index_fill_(0, behind, sums.first)
        state.flat.scatter_(1, into.places, into.joined_rows)
        if into is room:
            room.state, room.other = state, room.state
        self._room, self._score = into, best
        if starts:
            self._used += 1
            if self._used > slots - 2:
                self._widen()
        self._elements.append(i)
        self._chosen.append(chosen)
        self._slots.append(slots)
        self.num_inside += 1
        self._offset = sums.log_total[self.num_inside]
        return is_all

    def _extend(self, room: Room, i: int) -> None:
        """Scores of every particle with element i in every slot."""
        sums, state = self.sums, room.state
        torch.add(state.sums, sums.columns[i], out=room.ahead_sums)
        gain = state.c
        if sums.dims:
            gap, twice_b, cost = room.gap, room.twice_b, room.ahead_cost
            torch.mul(gap, state.ratio, out=room.pull)
            twice_b.addcmul_(room.pull, gap)
            if sums.by_product:
                torch.prod(twice_b, 0, out=cost).log_()  # a_n is the same for all, and follows
                gain = torch.addcmul(gain, cost, state.same_power, value=-1, out=room.gain)
            else:
                torch.log(twice_b, out=room.log_b).mul_(state.power)
                gain = torch.sub(gain, torch.sum(room.log_b, 0, out=cost), out=room.gain)
        for rows, (_, symbols) in zip(state.symbols, sums.symbols, strict=True):
            logs = torch.log(rows[symbols[i]], out=room.logs)
            gain = torch.add(gain, logs, out=room.gain)
        torch.add(room.gains, self._score.unsqueeze(1), out=room.score)

    def _widen(self) -> None:
        """More slots, if the two that are spare are in use somewhere."""
        old, sums = self._room, self.sums
        size = old.state.whole[len(sums.prior) - 1]
        self._used = int((size > 0).sum(1).max())
        if self._used <= old.slots - 2:
            return
        self._room = Room(sums, old.count, old.slots + max(ROOM, old.slots // 4))
        whole = self._room.state.whole
        empty = torch.cat([sums.prior, sums.prior.new_tensor([-torch.inf]), sums.ahead[:-1, 0]])
        whole.copy_(empty.view(-1, 1, 1))
        whole[:, :, : old.slots] = old.state.whole

    # ------------------------------------------------------------------ results
    @property
    def score(self) -> Tensor:
        return self._score - self._offset

    @property
    def slots(self) -> int:
        """C."""
        return self._room.slots

    @property
    def unshifted(self) -> Tensor:
        """``[K]``: the scores as steps add to them."""
        return self._score

    def hold(self, unshifted: Tensor) -> None:
        """Go on from these if they are the present scores, which adding the offset rounded."""
        unshifted = unshifted.to(self._score.device)
        if torch.equal(unshifted - self._offset, self.score):
            self._score = unshifted.clone()

    @property
    def is_large(self) -> bool:
        """Whether particles had better share their clusters from here on."""
        return self._room.state.whole.numel() > LARGE

    @property
    def bound(self) -> float:
        first = self._score[0]
        # one pass over the scores, where logsumexp takes several
        return float(first) - float(self._score.log_softmax(0)[0]) - self._offset

    def rescore(self, constant: Tensor) -> None:
        """Scores anew from the sums, and the log density of everything else."""
        sums = self.sums
        held = self._room.state.whole[: len(sums.prior)]
        size = held[-1].long()
        terms = sums.log_marginals(held, size)
        inside = int(size[:1].sum())
        # beside many scores torch takes one constant's precision for theirs
        score = constant + log_partition(size, sums.alpha.double(), inside)
        self._score = score + torch.where(size > 0, terms, 0).sum(1) + self._offset

    @torch.inference_mode()
    def labels(self) -> Tensor:
        """``[K, n]``, -1 of elements that are out."""
        if self._elements:
            count, device = len(self._score), self._score.device
            slots = torch.tensor(self._slots, device=device).unsqueeze(1)
            most = max(map(len, self._chosen))
            few = [c if len(c) == most else pad(c, (0, most - len(c))) for c in self._chosen]
            chosen = torch.stack(few)  # [T, K]
            parent = torch.floor_divide(chosen, slots)
            # by doubling: where the pasts of the last particles stood after each step
            past = torch.cat([parent[1:], torch.arange(most, device=device)[None]])
            reach = 1
            while reach < len(past):
                past[:-reach] = past[:-reach].gather(1, past[reach:])
                reach *= 2
            past = past[:, :count]
            self._labels = self._labels.index_select(0, parent[0].index_select(0, past[0]))
            self._labels[:, self._elements] = (chosen - parent * slots).gather(1, past).T
            self._elements, self._chosen, self._slots = [], [], []
        return self._labels
