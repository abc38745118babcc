"""Boxes: products of sets of states on which a joint table has no zero.

They are the supports that a product of marginals can have where it must not leave that of p. A
smaller box is a limit of a larger one, so only those matter that cannot be widened. Of a box B the
scale-free divergence is at least -log p(B) / (1 - alpha), with equality where p is a product on B:
the heaviest boxes come first.

All of them are found by going through the sets of states of all variables but the largest, whose
set follows: O(prod_i 2^c_i * (number of joint states)). Where these are too many, boxes grow from
the heaviest joint states by what adds most mass, and none is known to be the best.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: How many boxes are looked at, the heaviest ones.
BOXES = 6
#: More combinations of sets of states than this are not gone through.
MAX_SETS = 4096
#: From how many joint states boxes grow then.
SEEDS = 2


def supports(log_mass: Tensor) -> list[list[Tensor]]:
    """Boxes of every table of a flat batch ``[B, c_1, ..., c_d]``.

    The heaviest ones that cannot be widened, :data:`BOXES` of them at most, where there are no
    more than :data:`MAX_SETS` combinations of sets of states; else those that grow from the
    heaviest joint states.

    Returns:
        of each box one bool mask ``[B, c_i]`` per variable.
    """
    cards = log_mass.shape[1:]
    few = math.prod(2**c - 1 for c in cards) // (2 ** max(cards) - 1) <= MAX_SETS
    find = heaviest_boxes if few else grown_boxes
    found = [find(table) for table in log_mass]
    most = max(map(len, found))
    # a table of fewer boxes repeats its first
    rows = torch.stack([torch.stack(f + f[:1] * (most - len(f))) for f in found], 1)
    return [list(row.split(cards, -1)) for row in rows]


def heaviest_boxes(log_mass: Tensor) -> list[Tensor]:
    """The heaviest boxes of ``[c_1, ..., c_d]`` that cannot be widened.

    Returns:
        masks ``[c_1 + ... + c_d]``, the heaviest first.
    """
    cards = list(log_mass.shape)
    largest = cards.index(max(cards))
    others = cards[:largest] + cards[largest + 1 :]
    mass = scaled_mass(log_mass)
    inside, sets = mass.new_ones(1, 1), mass.new_ones(1, 0)
    for card in others:
        subsets = 1 + torch.arange(2**card - 1, device=mass.device)
        subsets = (subsets[:, None] >> torch.arange(card, device=mass.device) & 1).to(mass)
        old = sets.repeat_interleave(len(subsets), 0)
        sets = torch.cat([old, subsets.repeat(len(sets), 1)], 1)
        inside = torch.einsum("ks,tc->ktsc", inside, subsets).reshape(len(sets), -1)
    table = mass.movedim(largest, -1).reshape(-1, cards[largest])
    zero = (log_mass == -math.inf).movedim(largest, -1).reshape(table.shape)
    last = (inside @ zero.to(mass) == 0).to(mass)  # the states that meet no zero
    weight = ((inside @ table) * last).sum(-1)
    parts = list(sets.split(others, -1))
    boxes = torch.cat(parts[:largest] + [last] + parts[largest:], -1).bool()
    found: list[Tensor] = []
    while len(found) < BOXES and bool(weight.max() > 0):
        found.append(boxes[weight.argmax()])
        weight[(boxes <= found[-1]).all(-1)] = 0
    return found


def grown_boxes(log_mass: Tensor) -> list[Tensor]:
    """Boxes about the heaviest joint states of ``[c_1, ..., c_d]``, masks ``[c_1 + ... + c_d]``."""
    seeds = log_mass.flatten().topk(min(SEEDS, log_mass.numel())).indices
    seeds = seeds[log_mass.flatten()[seeds] > -math.inf]
    return [grow(log_mass, torch.unravel_index(seed, log_mass.shape)) for seed in seeds]


def grow(log_mass: Tensor, start: tuple[Tensor, ...]) -> Tensor:
    """The box about one joint state, widened by what adds most mass until nothing can."""
    mass, zero, cards = scaled_mass(log_mass), log_mass == -math.inf, list(log_mass.shape)
    sets = [torch.arange(c, device=s.device) == s for c, s in zip(cards, start)]
    while True:
        gains = [slab_gains(mass, zero, sets, i) for i in range(len(cards))]
        gain, best = torch.cat(gains).max(0)
        box = torch.cat(sets)
        if bool(gain < 0):
            return box
        box[best] = True
        sets = list(box.split(cards))


def slab_gains(mass: Tensor, zero: Tensor, sets: list[Tensor], i: int) -> Tensor:
    """What each state of variable ``i`` would add to a box ``[c_i]``, -1 where it must not."""
    others = [k for k in range(len(sets)) if k != i]
    mass, zero = mass.movedim(i, -1), zero.movedim(i, -1)
    for k in others:  # the dimensions of those before it are gone
        mass, zero = mass[sets[k]].sum(0), zero[sets[k]].any(0)
    return torch.where(sets[i] | zero, -1, mass)


def scaled_mass(log_mass: Tensor) -> Tensor:
    """Masses, the largest of them 1, in double precision."""
    return (log_mass - log_mass.amax()).detach().double().exp()
