"""Newton's method on the messages of a discrete network, for the last steps to a fixed point.

Where convergent iterations crawl (strong couplings saturate messages, and errors go round a cycle
undamped), the fixed point nearby is still a regular root of m = T(m), stable or not. With the
cavities n = B q - alpha m, the beliefs q = base + B' m and D = dT/dn, a small dense matrix per
factor, a step solves

    ( I + D alpha    - D B ) ( dm )   ( T(m) - m )
    (    - B'          I   ) ( dq ) = (     0    )

by a sparse LU factorisation, and goes as far as the residual falls. Messages are normalised over
the states that are possible. A state whose message falls steadily has its root at minus infinity,
where Newton's direction points: such states are taken out together, if their zeros hold themselves
up (:mod:`.dead_states`). What is found without them counts if they fall on when let in again.

Source: Nocedal & Wright (2006), chapter 11.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.sparse import bmat, csr_matrix, diags, identity
from scipy.sparse.linalg import splu
from torch import Tensor

from pyrograph.infer.message_passing.discrete.slots import SlotFactors
from pyrograph.infer.message_passing.network.network import beliefs_of
from pyrograph.infer.message_passing.nodes.families import Categorical
from pyrograph.infer.message_passing.nodes.log_values import ZERO, is_zero, rows_of, without
from pyrograph.infer.message_passing.settling.dead_states import that_stay_dead

#: Of a search for the fixed point.
MAX_STEPS = 80
#: Shortest part of a Newton step that is tried, and the decrease of the residual it must bring.
SHORTEST, DECREASE = 2.0**-12, 1e-4
#: Share of a column's largest entry from which on the diagonal one is taken for a pivot.
PIVOT = 0.01
#: Most numbers in all messages, and in D: fill of the factorisation grows faster than the graph.
MOST_UNKNOWNS, MOST_SLOPES = 50_000, 5_000_000
#: A state is taken for dying if its log belief, below UNLIKELY, falls under a plain step and is to
#: fall by DROP under Newton's; or if it has fallen below LOST and still falls, away from the root
#: that Newton's step sees; or if it is gone.
UNLIKELY, DROP, LOST = -1.0, 3.0, -15.0
#: Fall of a log belief in a sweep that is no rounding.
FALLING = 1e-9
#: States taken out are let in again at this log value, and must fall after so many sweeps, for as
#: many more.
FAR, SETTLING = 40.0, 20

Messages = list[list[Tensor]]


def fixed_point(
    families: list[Categorical], blocks: list[SlotFactors], messages: Messages, tol: float
) -> Messages | None:
    """The fixed point near these messages, None if none is found.

    Args:
        families: nodes, all of states.
        blocks: factors, alpha above 0.
        messages: ``[E, c_i]`` log values per block and slot.
        tol: largest log ratio of a message and its update.
    """
    count, slopes = 0, 0
    for sent in messages:
        sizes = [m.shape[1] for m in sent]
        count += sum(m.numel() for m in sent)
        slopes += len(sent[0]) * (sum(sizes) ** 2 - sum(c * c for c in sizes))
    if count > MOST_UNKNOWNS or slopes > MOST_SLOPES:
        return None
    has_zeros = any(block.has_zeros for block in blocks)
    has_zeros = has_zeros or any(bool(is_zero(family.base).any()) for family in families)
    whole = Root(families, blocks, [~is_zero(q) for q in beliefs_of(families, blocks, messages)])
    root = whole
    lost = True  # whether what has fallen far is still to be looked for
    here = root.normalised(messages)
    for _ in range(MAX_STEPS):
        gap, jacobian = root.linearised(here)
        if float(np.abs(gap).max(initial=0.0)) <= tol:
            found = root.updated(here)
            return found if root is whole or whole.falls_from(found, root.possible) else None
        step = root.direction(gap, jacobian)
        possible = root.without_dying(here, gap, step, lost=lost) if has_zeros else None
        lost = False
        if possible is not None:
            root = Root(families, blocks, possible)
            here = root.normalised(here)
            continue
        if step is None:
            return None
        length, before = 1.0, float(np.linalg.norm(gap))
        while length >= SHORTEST:
            there = root.moved(here, length * step)
            if np.linalg.norm(root.gap(there)) < (1 - DECREASE * length) * before:
                break
            length /= 2
        else:
            return None
        here = there
    return None


class Root:
    """The equation T(m) - m = 0 on states that are possible.

    Args:
        possible: per family ``[V, c]``; messages about other states are zeros.
    """

    def __init__(
        self, families: list[Categorical], blocks: list[SlotFactors], possible: list[Tensor]
    ):
        self.families, self.blocks, self.possible = families, blocks, possible
        self.starts = np.cumsum([0, *(family.base.numel() for family in families)])
        places, alphas, alive = [], [], []
        for block in blocks:
            for f, rows in zip(block.families, block.rows, strict=True):
                size = families[f].size
                states = torch.arange(size, device=rows.device)
                places.append((int(self.starts[f]) + rows.unsqueeze(1) * size + states).flatten())
                alphas.append(block.alpha.repeat_interleave(size))
                alive.append(possible[f][rows].flatten())
        self.place = torch.cat(places).cpu().numpy()  # entry of the beliefs, of every message's
        self.alpha = _numbers(alphas)
        self.alive = torch.cat(alive).cpu().numpy()

    def normalised(self, messages: Messages) -> Messages:
        """Scaled to a sum of one over the possible states, zero elsewhere."""
        return [
            [self._scaled(block, slot, m) for slot, m in enumerate(sent)]
            for block, sent in zip(self.blocks, messages, strict=True)
        ]

    def _scaled(self, block: SlotFactors, slot: int, message: Tensor) -> Tensor:
        possible = self.possible[block.families[slot]][block.rows[slot]]
        scale = torch.where(possible, message, ZERO).logsumexp(1, keepdim=True)
        return torch.where(possible, message - scale, ZERO)

    def _cavities(self, messages: Messages) -> Messages:
        beliefs = beliefs_of(self.families, self.blocks, messages)
        return [
            [
                without(rows_of(beliefs[f], rows), block.alpha.unsqueeze(1) * m)
                for f, rows, m in zip(block.families, block.rows, sent, strict=True)
            ]
            for block, sent in zip(self.blocks, messages, strict=True)
        ]

    def updated(self, messages: Messages) -> Messages:
        """T(m), about all states: what the factors say of those that are not possible, too."""
        return [
            [total / block.alpha.unsqueeze(1) for total in block.exact_sums(cavities)]
            for block, cavities in zip(self.blocks, self._cavities(messages), strict=True)
        ]

    def gap(self, messages: Messages) -> np.ndarray:
        """T(m) - m, ``[N]``; 0 for states that are not possible."""
        return self._gap_of(messages, self.normalised(self.updated(messages)))

    def _gap_of(self, messages: Messages, image: Messages) -> np.ndarray:
        pairs = zip(_flat(messages), _flat(image), strict=True)
        found = _numbers([(new - old).detach().flatten() for old, new in pairs])
        return np.where(self.alive, np.nan_to_num(found, nan=0.0), 0.0)

    @torch.enable_grad()
    def linearised(self, messages: Messages) -> tuple[np.ndarray, csr_matrix]:
        """T(m) - m and D."""
        image, values, rows, columns, start = [], [], [], [], 0
        for block, fixed in zip(self.blocks, self._cavities(messages), strict=True):
            cavities = [n.detach().requires_grad_() for n in fixed]
            new = [
                self._scaled(block, slot, total / block.alpha.unsqueeze(1))
                for slot, total in enumerate(block.exact_sums(cavities))
            ]
            offsets = start + np.cumsum([0, *(n.numel() for n in cavities)])
            for i, out in enumerate(new):
                others = [j for j in range(block.arity) if j != i]
                first = offsets[i] + np.arange(len(out)) * out.shape[1]
                for state in range(out.shape[1]) if others else ():
                    value = torch.where(is_zero(out[:, state]), 0.0, out[:, state]).sum()
                    inputs = [cavities[j] for j in others]
                    parts = torch.autograd.grad(value, inputs, retain_graph=True)
                    for j, part in zip(others, parts, strict=True):
                        size = part.shape[1]
                        values.append(part.nan_to_num(0.0, 0.0, 0.0).flatten())
                        rows.append(np.repeat(first + state, size))
                        columns.append(offsets[j] + np.arange(part.numel()))
            image.append([m.detach() for m in new])
            start = int(offsets[-1])
        place = np.concatenate(rows), np.concatenate(columns)
        slopes = csr_matrix((_numbers(values), place), (start, start))
        keep = diags(self.alive.astype(float))
        return self._gap_of(messages, image), keep @ slopes @ keep

    def direction(self, gap: np.ndarray, slopes: csr_matrix) -> np.ndarray | None:
        """dm of the system above, ``[N]``; None if it is singular."""
        count, num_beliefs = len(gap), int(self.starts[-1])
        spread = csr_matrix((np.ones(count), (np.arange(count), self.place)), (count, num_beliefs))
        system = bmat(
            [
                [identity(count) + slopes @ diags(self.alpha), -slopes @ spread],
                [-spread.T, identity(num_beliefs)],
            ],
            format="csc",
        )
        # the pattern is close to symmetric: pivots near the diagonal keep the fill small
        ordering = {"permc_spec": "MMD_AT_PLUS_A", "options": {"SymmetricMode": True}}
        try:
            factors = splu(system, diag_pivot_thresh=PIVOT, **ordering)
        except RuntimeError:  # what it raises for a pivot of 0
            return None
        step = factors.solve(np.concatenate([gap, np.zeros(num_beliefs)]))[:count]
        return step if np.isfinite(step).all() else None

    def moved(self, messages: Messages, step: np.ndarray) -> Messages:
        """m + dm, normalised."""
        flat = _flat(messages)
        parts = torch.from_numpy(step).split([m.numel() for m in flat])
        there = iter(m + part.to(m).view(m.shape) for m, part in zip(flat, parts, strict=True))
        return self.normalised([[next(there) for _ in sent] for sent in messages])

    def without_dying(
        self, messages: Messages, gap: np.ndarray, step: np.ndarray | None, *, lost: bool
    ) -> list[Tensor] | None:
        """What stays possible when dying states are taken out; None if there are none."""
        beliefs = beliefs_of(self.families, self.blocks, messages)
        plain = self._onto_beliefs(gap)
        newton = self._onto_beliefs(np.zeros_like(gap) if step is None else step)
        candidates = []
        for possible, q, drift, fall in zip(self.possible, beliefs, plain, newton, strict=True):
            best = torch.where(possible, q, ZERO).argmax(1, keepdim=True)
            drift, fall = (v - v.gather(1, best) for v in (drift, fall))
            likely = torch.where(possible, q, ZERO).log_softmax(1)
            dying = (likely < UNLIKELY) & (fall < -DROP)
            if lost:
                dying |= (likely < LOST) & (fall >= 0)  # below 0: a root is near
            gone = likely < 2 * math.log(torch.finfo(q.dtype).eps)
            candidates.append(~possible | gone | (dying & (drift < -FALLING)))
        if all(bool((c == ~ok).all()) for c, ok in zip(candidates, self.possible, strict=True)):
            return None
        dead = that_stay_dead(self.families, self.blocks, candidates)
        possible = [ok & ~d for ok, d in zip(self.possible, dead, strict=True)]
        same = all(bool((a == b).all()) for a, b in zip(possible, self.possible, strict=True))
        return None if same else possible

    def falls_from(self, found: Messages, possible: list[Tensor]) -> bool:
        """Whether states taken out, let in again far down, fall on: else their zeros are a fixed
        point, but no limit."""
        out = [mine & ~left for mine, left in zip(self.possible, possible, strict=True)]
        outside = [
            [out[f][rows] for f, rows in zip(block.families, block.rows, strict=True)]
            for block in self.blocks
        ]
        now = [
            [torch.where(o & is_zero(m), -FAR, m) for o, m in zip(*pair, strict=True)]
            for pair in zip(outside, self.normalised(found), strict=True)
        ]
        levels = []
        for sweep in range(1, 2 * SETTLING + 1):
            image = self.normalised(self.updated(now))
            now = [
                [torch.where(o, (old + new) / 2, old) for o, old, new in zip(*parts, strict=True)]
                for parts in zip(outside, now, image, strict=True)
            ]
            if sweep % SETTLING == 0:
                levels.append(beliefs_of(self.families, self.blocks, now))
        return all(
            bool((~o | (after < before) | is_zero(after)).all())
            for o, before, after in zip(out, *levels, strict=True)
        )

    def _onto_beliefs(self, change: np.ndarray) -> list[Tensor]:
        """``[V, c]`` per family: B' applied to a change of messages."""
        total = np.bincount(self.place, change, minlength=int(self.starts[-1]))
        return [
            torch.from_numpy(total[a:b]).view(family.base.shape).to(family.base)
            for family, a, b in zip(self.families, self.starts, self.starts[1:], strict=False)
        ]


def _flat(messages: Messages) -> list[Tensor]:
    return [m for sent in messages for m in sent]


def _numbers(parts: list[Tensor]) -> np.ndarray:
    return torch.cat([p.flatten() for p in parts]).double().cpu().numpy()
