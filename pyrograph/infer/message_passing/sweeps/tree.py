"""Belief propagation on a forest of pairs in O(log V) rounds, whatever its depth.

A sweep moves a message by one edge, so a chain of V nodes would take V of them. Here nodes with at
most two neighbours are summed out, an independent set at a time: a leaf becomes a factor of its
neighbour, a node between two others a factor of both,

    f(a, b) = sum_v g(v) f_1(a, v) f_2(v, b)

Every round removes a constant share of what is left. Going back, the cavity messages of the new
factor's ends are those of the two old ones, which gives every message of the original graph.

Source: Miller & Reif (1985), rake and compress; Pearl (1988) for the messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.infer.message_passing.discrete.binary import BinaryFactors
from pyrograph.infer.message_passing.discrete.differences import DifferenceFactors
from pyrograph.infer.message_passing.discrete.states import (
    as_slots,
    family_of_states,
    in_form_of,
    normalised,
)
from pyrograph.infer.message_passing.discrete.tables import TableFactors
from pyrograph.infer.message_passing.network.network import Network
from pyrograph.infer.message_passing.nodes.families import Categorical, Odds
from pyrograph.infer.message_passing.nodes.log_values import ZERO, log_product, without

#: Largest number of states that nodes are padded to.
MAX_STATES = 64


def applies(network: Network) -> bool:
    """Whether all factors are tables of pairs with alpha = 1; cycles are not looked for."""
    sizes = [
        f.size if isinstance(f, Categorical) else 2
        for f in network.families
        if isinstance(f, Categorical | Odds)
    ]
    return (
        len(sizes) == len(network.families)
        and max(sizes, default=0) <= MAX_STATES
        and all(
            isinstance(block, BinaryFactors)
            or (isinstance(block, TableFactors) and block.arity == 2)
            or (isinstance(block, DifferenceFactors) and block.fits_tables)
            for block in network.blocks
        )
        and all(bool((block.alpha == 1).all()) for block in network.blocks)
    )


def exact_messages(network: Network) -> list[list[Tensor]]:
    """The fixed point of belief propagation, in the form of the network's blocks."""
    families = [family_of_states(f) for f in network.families]
    blocks = [as_slots(b) for b in network.blocks]
    size = max(family.size for family in families)
    unary = families[0].base.new_full((len(network.row), size), ZERO)
    for family in families:
        unary[family.nodes, : family.size] = family.base
    ends, own, tables = [], [], []
    for block in blocks:
        nodes = [families[f].nodes[r] for f, r in zip(block.families, block.rows, strict=True)]
        ends.append(torch.stack(nodes, 1))
        own.append(block.log_table)
        pad = [n for width in reversed(own[-1].shape[1:]) for n in (0, size - width)]
        tables.append(torch.nn.functional.pad(own[-1], pad))
    sent = _Contraction(unary, torch.cat(ends), torch.cat(tables)).solve()
    out, start = [], 0
    for block, table, original in zip(blocks, own, network.blocks, strict=True):
        cavities = sent[start : start + block.num_factors]
        start += block.num_factors
        slots = [cavities[:, k, : families[f].size] for k, f in enumerate(block.families)]
        found = [
            (table + slots[1].unsqueeze(1)).logsumexp(2),
            (table + slots[0].unsqueeze(2)).logsumexp(1),
        ]
        out.append(in_form_of(original, [normalised(m) for m in found]))
    return out


@dataclass
class _Round:
    """Nodes summed out together.

    Attributes:
        leaf, joint: nodes with one and with two neighbours.
        leaf_edge ``[n]``, leaf_slot: the leaf's edge, and its end of it.
        joint_edge ``[n, 2]``, joint_slot: both edges, and its ends of them.
        made: ``[n]`` the edges put in their place.
    """

    leaf: Tensor
    leaf_edge: Tensor
    leaf_slot: Tensor
    joint: Tensor
    joint_edge: Tensor
    joint_slot: Tensor
    made: Tensor


class _Contraction:
    """Sums out the nodes of a forest, and sends messages back.

    Args:
        unary: ``[V, c]`` log values.
        ends: ``[E, 2]`` nodes of every edge; tables: ``[E, c, c]`` log values.
    """

    def __init__(self, unary: Tensor, ends: Tensor, tables: Tensor):
        self.unary = unary
        self.num_edges = self.num_made = len(ends)
        # a node that is summed out makes at most one edge
        most = len(ends) + len(unary)
        self.ends, self.tables = ends.new_empty(most, 2), tables.new_empty(most, *tables.shape[1:])
        self.ends[: len(ends)], self.tables[: len(ends)] = ends, tables
        self.place = ends.new_empty(len(unary))
        self.generator = torch.Generator().manual_seed(0)

    def solve(self) -> Tensor:
        """Messages from the ends of every edge into it, ``[E, 2, c]`` log values."""
        alive = torch.arange(self.num_edges, device=self.ends.device)
        nodes = torch.arange(len(self.unary), device=self.ends.device)
        rounds = []
        while len(alive):
            step, alive, nodes = self._sum_out(alive, nodes)
            rounds.append(step)
        self.sent = self.unary.new_zeros(self.num_made, 2, self.unary.shape[1])
        self.beliefs = self.unary.clone()  # right for the nodes that were never summed out
        for step in reversed(rounds):
            self._send_back(step)
        return self.sent[: self.num_edges]

    def _oriented(self, edge: Tensor, slot: Tensor) -> Tensor:
        """Tables with the chosen end first, ``[n, c, c]``."""
        table = self.tables[edge]
        return torch.where(slot.view(-1, 1, 1) == 0, table, table.mT)

    def _sum_out(self, alive: Tensor, nodes: Tensor) -> tuple[_Round, Tensor, Tensor]:
        """One round over the edges and nodes that are left; those that are left after it."""
        self.place[nodes] = torch.arange(len(nodes), device=nodes.device)
        ends = self.place[self.ends[alive]]  # as places among the nodes: a round costs what is left
        degree = torch.bincount(ends.flatten(), minlength=len(nodes))
        rank = torch.randperm(len(nodes), generator=self.generator, device="cpu").to(ends.device)
        rank = torch.where((degree == 1) | (degree == 2), rank, -1)  # the others stay
        a, b = ends.unbind(1)
        rival = torch.full_like(rank, -1)
        rival = rival.scatter_reduce(0, a, rank[b], "amax").scatter_reduce(0, b, rank[a], "amax")
        chosen = rank > rival
        # edges of the chosen nodes, sorted by node: one or two each
        node = ends.t().flatten()
        place = chosen[node].nonzero().squeeze(1)
        place = place[node[place].argsort(stable=True)]
        edge, slot = alive[place % len(alive)], place // len(alive)
        single = degree[node[place]] == 1
        node = nodes[node[place]]
        pairs = (~single).nonzero().squeeze(1).view(-1, 2)
        made = self.num_made + torch.arange(len(pairs), device=ends.device)
        step = _Round(
            node[single],
            edge[single],
            slot[single],
            node[pairs[:, 0]],
            edge[pairs],
            slot[pairs],
            made,
        )
        self._rake(step)
        self._compress(step)
        left = ~chosen[ends].any(1)
        return step, torch.cat([alive[left], made]), nodes[~chosen & (degree > 0)]

    def _rake(self, step: _Round) -> None:
        message = (
            self._oriented(step.leaf_edge, step.leaf_slot) + self.unary[step.leaf].unsqueeze(2)
        ).logsumexp(1)
        target = self.ends[step.leaf_edge, 1 - step.leaf_slot]
        self.unary = self.unary.index_add(0, target, message)

    def _compress(self, step: _Round) -> None:
        first, second = step.joint_edge.unbind(1)
        one, two = step.joint_slot.unbind(1)
        left = self._oriented(first, one) + self.unary[step.joint].unsqueeze(2)  # [n, v, a]
        right = self._oriented(second, two)  # [n, v, b]
        self.num_made += len(step.made)
        self.tables[step.made] = log_product(left, right)
        self.ends[step.made, 0] = self.ends[first, 1 - one]
        self.ends[step.made, 1] = self.ends[second, 1 - two]

    def _send_back(self, step: _Round) -> None:
        for slot in (0, 1):
            edge, own = step.joint_edge[:, slot], step.joint_slot[:, slot]
            self.sent[edge, 1 - own] = self.sent[step.made, slot]
        received = [
            (
                self._oriented(step.joint_edge[:, k], step.joint_slot[:, k])
                + self.sent[step.made, k].unsqueeze(1)
            ).logsumexp(2)
            for k in (0, 1)
        ]
        own = self.unary[step.joint]
        for k in (0, 1):
            edge, slot = step.joint_edge[:, k], step.joint_slot[:, k]
            self.sent[edge, slot] = normalised(own + received[1 - k])
        self.beliefs[step.joint] = normalised(own + received[0] + received[1])
        table = self._oriented(step.leaf_edge, step.leaf_slot)
        own = self.unary[step.leaf]
        target = self.ends[step.leaf_edge, 1 - step.leaf_slot]
        up = (table + own.unsqueeze(2)).logsumexp(1)
        down = normalised(without(self.beliefs[target], up))
        self.sent[step.leaf_edge, step.leaf_slot] = normalised(own)
        self.sent[step.leaf_edge, 1 - step.leaf_slot] = down
        self.beliefs[step.leaf] = normalised(own + (table + down.unsqueeze(1)).logsumexp(2))
