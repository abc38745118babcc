"""Regions of the Bethe free energy: whose entropies count, and how often.

Factors of equal scopes share one belief: their entropy counts once, as if they were one factor.

Scopes whose continuous nodes C are the same, whatever their discrete ones, share more than nodes,
such as rows of a mixture with labels all of its means; with full covariance they share their
correlations. So C is a region of its own beside scopes and nodes,

    sum_a H(b_a) + sum_C (1 - m_C) H(b_C) + sum_i (1 - d_i) H(b_i)

where m_C counts the scopes with discrete nodes too, C counts among the scopes whether or not a
factor reads just C, and d_i counts those of i's scopes that have other continuous nodes once a C.
Without C, as in the paper, whose scopes share single nodes, every row but one would take the
entropy of which mode the means are in once more than it gives: one mode alone would be left.

Labels that stand beside C in several scopes, as in a chain of states whose transitions are unknown,
are regions with it, as often as a forest of labels has them,

    sum_a H(b_a) + sum_{i, C} (1 - d_iC) H(b_iC) + (1 - m_C - sum_i (1 - d_iC)) H(b_C)

for d_iC scopes of i with C, and node i counts these as one. Where scopes of labels share numbers
and still close cycles, numbers are united first (:mod:`.common_cores`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from pyrograph.graph.forest import components, is_forest
from pyrograph.infer.qbethe.common_cores import with_common_cores
from pyrograph.infer.qbethe.entropy import ScopeEntropies
from pyrograph.infer.qbethe.nodes import Nodes, different
from pyrograph.infer.qbethe.wiring import Tie


@dataclass
class Sets:
    """Different sets of continuous nodes that scopes have.

    Attributes:
        nodes: ``[C, k]``, those of like nodes together.
        of: for the scopes that have such which of these tensors theirs are in, at which rows
            ``[S]``.
    """

    nodes: list[Tensor] = field(default_factory=list)
    of: dict[int, tuple[int, Tensor]] = field(default_factory=dict)


def sets_of(scopes: list[Tensor], by_kind: Nodes, beside_labels: bool = False) -> Sets:
    """Of like scopes ``[S, arity]``, some at a time.

    Args:
        beside_labels: a node by itself is a set too where several labels stand beside it.
    """
    found: dict[tuple[int, ...], dict[int, Tensor]] = {}
    for number, nodes in enumerate(scopes):
        own = nodes[:, by_kind.slots(nodes, is_discrete=False)]
        is_beside = beside_labels and nodes.shape[1] > 2
        if own.shape[1] > 1 or (own.shape[1] == 1 and is_beside):
            found.setdefault(tuple(by_kind.kind[own[0]].tolist()), {})[number] = own
    sets = Sets()
    for own in found.values():
        unique, inverse = different(list(own.values()))
        where = zip(own, inverse, strict=True)
        sets.of.update((n, (len(sets.nodes), rows)) for n, rows in where)
        sets.nodes.append(unique)
    return sets


class Regions:
    """Of scopes.

    Args:
        scopes: different ones ``[S, arity]`` of two and more nodes, those of like nodes together.
        ties: of sets of nodes that are correlated in a component, ``[C, k]`` each.

    Attributes:
        scopes: those whose entropies count; sets: of continuous nodes in them.
        is_forest: whether regions make one.
    """

    def __init__(self, scopes: list[Tensor], by_kind: Nodes, ties: list[tuple[str, Tensor]]):
        self.by_kind = by_kind
        self._take(scopes, ties)
        if self.is_forest:
            return
        united = with_common_cores(scopes, by_kind)
        if united is not scopes:
            self._take(united, ties)
            if not self._have_whole(ties):
                self._take(scopes, ties)

    def _take(self, scopes: list[Tensor], ties: list[tuple[str, Tensor]]) -> None:
        self.scopes = scopes
        self.sets = sets_of(scopes, self.by_kind, beside_labels=True)
        self.cores = [self.by_kind.entropies(nodes) for nodes in self.sets.nodes]
        for core in self.cores:
            core.wiring.ties[:] = ties_in(core.nodes, ties)
        self._labels = [self._labels_beside(own) for own in range(len(self.cores))]
        self.is_forest = self._are_forest()

    def _have_whole(self, ties: list[tuple[str, Tensor]]) -> bool:
        """Whether sets have the tie of all correlated nodes of which they have two."""
        size = len(self.by_kind.kind)
        members = [(name, _membership(tied, size).T) for name, tied in ties]
        for core in self.cores:
            mine = _membership(core.nodes, size)
            for name, of_ties in members:
                common = (mine @ of_ties > 1).tocoo()
                met = set(zip(common.row.tolist(), common.col.tolist(), strict=True))
                known = [tie.rows.tolist() for tie in core.wiring.ties if tie.name == name]
                if met != {pair for rows in known for pair in enumerate(rows)}:
                    return False
        return True

    def _discrete(self, number: int) -> Tensor:
        """``[S, labels]`` of like scopes."""
        nodes = self.scopes[number]
        return nodes[:, self.by_kind.slots(nodes, is_discrete=True)]

    def _labels_beside(self, own: int) -> tuple[Tensor, Tensor, Tensor]:
        """Labels beside sets, ``[P]``, which set it is, and in how many scopes."""
        pairs = [torch.zeros(0, 2, dtype=torch.int64, device=self.by_kind.kind.device)]
        for number, (which, rows) in self.sets.of.items():
            labels = self._discrete(number)
            if which == own and labels.shape[1]:
                beside = rows.unsqueeze(1).expand_as(labels)
                pairs.append(torch.stack([labels, beside], 2).flatten(0, 1))
        pairs, count = torch.cat(pairs).unique(dim=0, return_counts=True)
        return pairs[:, 0], pairs[:, 1], count

    def counting(self, like: Tensor) -> list[Tensor]:
        """1 - d_i, ``[V]`` of every kind."""
        kind, row = self.by_kind.kind, self.by_kind.row
        counted = [*self.sets.nodes, *(labels for labels, _, _ in self._labels)]
        counted += [own for n, own in enumerate(self.scopes) if n not in self.sets.of]
        every = torch.cat([kind[:0], *(own.flatten() for own in counted)])
        found = []
        for k, own in enumerate(self.by_kind.kinds):
            count = torch.bincount(row[every[kind[every] == k]], minlength=len(own.nodes))
            found.append(1 - count.to(like))
        return found

    def entropies(self) -> list[ScopeEntropies]:
        """Of scopes, of labels beside sets of continuous nodes and of these sets, as often as they
        count."""
        times = [torch.ones(core.num_scopes, device=core.nodes.device) for core in self.cores]
        found = []
        for number, nodes in enumerate(self.scopes):
            discrete, core = self._discrete(number), None
            if number in self.sets.of:
                if not discrete.shape[1]:
                    continue  # it is a set of continuous nodes
                own, rows = self.sets.of[number]
                times[own].index_add_(0, rows, -torch.ones_like(rows, dtype=times[own].dtype))
                is_shared = self.cores[own].num_scopes < len(nodes)  # looked at once, not by row
                if is_shared or self.cores[own].wiring.ties or discrete.shape[1] > 1:
                    core = self.cores[own], rows
            chosen = nodes if core is None else discrete
            found.append(self.by_kind.entropies(chosen, core=core))
        for own, (labels, rows, count) in enumerate(self._labels):
            again = (count > 1).nonzero().squeeze(1)
            often = (1 - count[again]).to(times[own])
            times[own].index_add_(0, rows[again], -often)
            labels = labels[again].unsqueeze(1)
            for like in self.by_kind.alike(labels) if len(labels) else []:
                core = self.cores[own], rows[again[like]]
                found.append(self.by_kind.entropies(labels[like], core=core, times=often[like]))
        counted = (core.counted(t) for core, t in zip(self.cores, times, strict=True))
        return [*(own for parts in counted for own in parts), *found]

    def _are_forest(self) -> bool:
        """Whether regions make one: a set of continuous nodes is one node more, which its nodes
        hang from, and of every tree of labels beside it one."""
        edges, number = [], len(self.by_kind.kind)
        for own, part in enumerate(self.sets.nodes):
            first = number + torch.arange(len(part), device=part.device)
            edges.append(torch.cat([part, first.unsqueeze(1)], 1))
            beside = [self._discrete(n) for n, (which, _) in self.sets.of.items() if which == own]
            linked = [discrete for discrete in beside if discrete.shape[1] > 1]
            labels, rows, _ = self._labels[own]
            tree = components(linked, number).to(labels.device)[labels]
            trees, at = torch.stack([tree, rows], 1).unique(dim=0, return_inverse=True)
            root = labels.new_zeros(len(trees)).scatter_(0, at, labels)
            edges += [*linked, torch.stack([root, first[trees[:, 1]]], 1)]
            number += len(part)
        edges += [own for n, own in enumerate(self.scopes) if n not in self.sets.of]
        return is_forest(edges, number)


def _membership(sets: Tensor, num_nodes: int) -> csr_array:
    """``[S, num_nodes]`` of sets ``[S, k]``, ones."""
    nodes = sets.cpu().numpy()
    ends = np.arange(len(nodes) + 1) * nodes.shape[1]
    ones = np.ones(nodes.size, dtype=np.int64)
    return csr_array((ones, nodes.flatten(), ends), shape=(len(nodes), num_nodes))


def ties_in(nodes: Tensor, ties: list[tuple[str, Tensor]]) -> list[Tie]:
    """Of correlated nodes that stand beside each other in like sets ``[C, k]``, in their order. Of
    sets within each other the widest one counts."""
    found: dict[int, Tie] = {}
    free = set(range(nodes.shape[1]))
    for name, tied in sorted(ties, key=lambda tie: -tie[1].shape[1]):
        width = tied.shape[1]
        for first in range(nodes.shape[1] - width + 1):
            slots = range(first, first + width)
            unique, (_, rows) = different([tied, nodes[:, first : first + width]])
            # all of them are among these
            if len(unique) == len(tied) and free.issuperset(slots):
                found[first] = Tie(name, rows, slice(first, first + width))
                free.difference_update(slots)
    return [found[first] for first in sorted(found)]
