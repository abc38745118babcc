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

A label with several such sets beside it closes a cycle with every other one that has the same, as
rows of a mixture with unknown weights w and means mu do: w - z_n - mu - z_m - w. Its scopes are one
region of all of them, and so are the sets,

    sum_n H(z_n, w, mu) + (1 - N) H(w, mu)

which is a forest again, as p(w, mu) prod_n p(z_n | w, mu) is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from pyrograph.graph.forest import is_forest
from pyrograph.infer.qbethe.components import Kind
from pyrograph.infer.qbethe.entropy import ScopeEntropies
from pyrograph.infer.qbethe.wiring import Tie, Wiring
from pyrograph.trace.distinct import row_numbers


@dataclass(frozen=True)
class Nodes:
    """Nodes by kind.

    Attributes:
        kinds: of nodes; kind: ``[num_nodes]`` of each node; row: ``[num_nodes]`` in its kind.
    """

    kinds: list[Kind]
    kind: Tensor
    row: Tensor

    def wiring(self, scope: Tensor) -> Wiring:
        """Of like scopes ``[E, arity]``, without ties."""
        columns = scope.unbind(1)
        return Wiring([int(self.kind[c[0]]) for c in columns], [self.row[c] for c in columns], [])

    def entropies(self, scope: Tensor, **core) -> ScopeEntropies:
        """Of like scopes ``[S, arity]``."""
        wiring = self.wiring(scope)
        return ScopeEntropies(wiring, [self.kinds[k].size for k in wiring.kinds], scope, **core)

    def slots(self, scope: Tensor, is_discrete: bool) -> list[int]:
        """Of like scopes."""
        of_slots = self.kind[scope[0]].tolist()
        return [k for k, own in enumerate(of_slots) if self.kinds[own].is_discrete == is_discrete]

    def alike(self, scopes: Tensor) -> list[Tensor]:
        """Rows of ``[E, k]`` whose nodes are of the same kinds, as index tensors."""
        labels = row_numbers(self.kind[scopes])
        return [(labels == k).nonzero().squeeze(1) for k in labels.unique()]


def different(rows: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Different rows of ``[E, k]`` tensors, and where theirs are among them."""
    every = torch.cat(rows)
    inverse = row_numbers(every)
    unique = every.new_empty(int(inverse.max()) + 1, every.shape[1])
    unique = unique.index_copy_(0, inverse, every)
    return unique, list(inverse.split([len(own) for own in rows]))


@dataclass
class Sets:
    """Different sets of continuous nodes, two and more, that scopes have.

    Attributes:
        nodes: ``[C, k]``, those of like nodes together.
        of: for the scopes that have such which of these tensors theirs are in, at which rows
            ``[S]``.
    """

    nodes: list[Tensor] = field(default_factory=list)
    of: dict[int, tuple[int, Tensor]] = field(default_factory=dict)


def sets_of(scopes: list[Tensor], by_kind: Nodes) -> Sets:
    """Of like scopes ``[S, arity]``, some at a time."""
    found: dict[tuple[int, ...], dict[int, Tensor]] = {}
    for number, nodes in enumerate(scopes):
        own = nodes[:, by_kind.slots(nodes, is_discrete=False)]
        if own.shape[1] > 1:
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
    """

    def __init__(self, scopes: list[Tensor], by_kind: Nodes, ties: list[tuple[str, Tensor]]):
        self.by_kind = by_kind
        self.scopes = without_label_cycles(scopes, by_kind)
        self.sets = sets_of(self.scopes, by_kind)
        self.cores = [by_kind.entropies(nodes) for nodes in self.sets.nodes]
        for core in self.cores:
            core.wiring.ties[:] = ties_in(core.nodes, ties)

    def counting(self, like: Tensor) -> list[Tensor]:
        """1 - d_i, ``[V]`` of every kind."""
        kinds = self.by_kind.kinds
        found = [torch.ones(len(k.nodes), device=like.device, dtype=like.dtype) for k in kinds]
        for nodes in [*self.sets.nodes, *self._beside()]:
            wiring = self.by_kind.wiring(nodes)
            for k, rows in zip(wiring.kinds, wiring.rows, strict=True):
                found[k] = found[k].index_add(0, rows, -found[k].new_ones(len(rows)))
        return found

    def _beside(self) -> list[Tensor]:
        """What scopes have beside sets of continuous nodes: all nodes of others."""
        found = []
        for number, nodes in enumerate(self.scopes):
            mine = self.by_kind.slots(nodes, is_discrete=True)
            if number not in self.sets.of:
                found.append(nodes)
            elif mine:
                found.append(nodes[:, mine])
        return found

    def entropies(self) -> list[ScopeEntropies]:
        """Of scopes and of sets of continuous nodes, as often as these count."""
        times = [torch.ones(core.num_scopes, device=core.nodes.device) for core in self.cores]
        found = []
        for number, nodes in enumerate(self.scopes):
            mine, core = self.by_kind.slots(nodes, is_discrete=True), None
            if number in self.sets.of:
                if not mine:
                    continue  # it is a set of continuous nodes
                own, rows = self.sets.of[number]
                times[own].index_add_(0, rows, -torch.ones_like(rows, dtype=times[own].dtype))
                is_shared = self.cores[own].num_scopes < len(nodes)  # looked at once, not by row
                if is_shared or self.cores[own].wiring.ties:
                    core = self.cores[own], rows
            chosen = nodes if core is None else nodes[:, mine]
            found.append(self.by_kind.entropies(chosen, core=core))
        counted = (core.counted(t) for core, t in zip(self.cores, times, strict=True))
        return [*(own for parts in counted for own in parts), *found]

    @property
    def is_forest(self) -> bool:
        """Whether regions make one: a set of correlated nodes is one node more, which its nodes
        hang from and the discrete nodes of its scopes."""
        first, edges, number = [], [], len(self.by_kind.kind)
        for part in self.sets.nodes:
            first.append(number + torch.arange(len(part), device=part.device).unsqueeze(1))
            edges.append(torch.cat([part, first[-1]], 1))
            number += len(part)
        for n, nodes in enumerate(self.scopes):
            if n not in self.sets.of:
                edges.append(nodes)
                continue
            discrete = nodes[:, self.by_kind.slots(nodes, is_discrete=True)]
            if discrete.shape[1]:
                own, rows = self.sets.of[n]
                edges.append(torch.cat([discrete, first[own][rows]], 1))
        return is_forest(edges, number)


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


def without_label_cycles(scopes: list[Tensor], by_kind: Nodes) -> list[Tensor]:
    """The same, those of a label as one where other labels have the same sets beside them, and
    nothing else has."""
    of_labels: dict[bytes, list[int]] = {}
    for n, nodes in enumerate(scopes):
        discrete = by_kind.slots(nodes, is_discrete=True)
        if len(discrete) == 1 and nodes.shape[1] > 1:
            labels = nodes[:, discrete[0]].unique()
            of_labels.setdefault(labels.cpu().numpy().tobytes(), []).append(n)
    found = dict(enumerate(scopes))
    for own in of_labels.values():
        united = _united([scopes[n] for n in own], by_kind)
        if united is None:
            continue
        others = [nodes for n, nodes in found.items() if n not in own]
        if not _are_in_labelled(united[:, 1:], others, by_kind):
            for n in own:
                del found[n]
            of_kinds = [united[rows] for rows in by_kind.alike(united)]
            found.update(enumerate(of_kinds, max(found, default=-1) + len(scopes) + 1))
    return list(found.values())


def _united(scopes: list[Tensor], by_kind: Nodes) -> Tensor | None:
    """Labels and all the nodes of their scopes, ``[n, 1 + k]``; None unless each has as many, and
    shares all of them with another label or none."""
    columns = []
    for nodes in scopes:
        (slot,) = by_kind.slots(nodes, is_discrete=True)
        labels, beside = nodes[:, slot], nodes[:, by_kind.slots(nodes, is_discrete=False)]
        count = len(labels.unique())
        if len(labels) % count:
            return None
        order = torch.argsort(labels * len(by_kind.kind) + beside[:, 0])
        labels = labels[order].view(count, -1)
        if bool((labels != labels[:, :1]).any()):
            return None
        columns += beside[order].view(*labels.shape, -1).unbind(1)
    if len(columns) < 2:
        return None
    beside = torch.cat(columns, 1)
    unique, (rows,) = different([beside])
    is_disjoint = len(unique.unique()) == unique.numel()
    is_shared = bool((rows.bincount() > 1).all())
    return torch.cat([labels[:, :1], beside], 1) if is_disjoint and is_shared else None


def _are_in_labelled(nodes: Tensor, scopes: list[Tensor], by_kind: Nodes) -> bool:
    """Whether any are in scopes that have discrete nodes too."""
    mine = torch.zeros(len(by_kind.kind), dtype=torch.bool, device=nodes.device)
    mine[nodes] = True
    labelled = [own for own in scopes if by_kind.slots(own, is_discrete=True)]
    return any(bool(mine[own].any()) for own in labelled)
