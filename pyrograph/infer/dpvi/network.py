"""A discrete factor graph as tables.

    score(x) = sum_a log f_a(x_a)

Zeros are entries of one finite number, so far below all others that no sum of these comes near it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pyrograph.errors import ZeroMass
from pyrograph.graph import FactorGraph
from pyrograph.graph.checked import table_of
from pyrograph.infer.dpvi.lookup import rows_at
from pyrograph.infer.dpvi.mass import MOST_ENTRIES, log_mass_of
from pyrograph.trace.distinct import row_numbers

#: Largest table of a group of factors.
MAX_ENTRIES = 2**28
#: Most entries of a factor whose table is copied for every slot that looks at it.
WIDE = 2**10
#: What a zero counts for, at least: a power of two, so that its multiples stay exact.
EXCLUDED = -(2.0**40)
#: Zeros count for so much more than all that other terms could add up to, but for no more than what
#: can still be added up.
APART, MOST = 4.0, 2.0**1000
#: Entries from which on down a finite number stands for a zero, such as the least one of a dtype.
AS_ZERO = -(2.0**100)
#: Tables whose every entry is below this are shifted to the constant, else they look like zeros.
FAR = -(2.0**30)
#: Joint states that are counted: no machine holds 2 to this power of them.
MOST_BITS = 62


@dataclass(frozen=True)
class Tables:
    """Like factors.

    Attributes:
        scope: ``[E, k]`` nodes.
        values: ``[E, c_1, ..., c_k]`` log values, zeros as the network's ``excluded``.
    """

    scope: Tensor
    values: Tensor

    @cached_property
    def flat(self) -> Tensor:
        return self.values.reshape(-1)

    @property
    def strides(self) -> list[int]:
        """Of the slots' states in a factor's table; factors are ``entries`` apart."""
        cards = self.values.shape[1:]
        return [math.prod(cards[k + 1 :]) for k in range(len(cards))]

    @property
    def entries(self) -> int:
        return math.prod(self.values.shape[1:])

    def at(self, x: Tensor) -> Tensor:
        """Log values ``[E, K]`` at states ``[V, K]``."""
        place = torch.arange(len(self.scope), device=x.device).unsqueeze(1) * self.entries
        for slot, stride in zip(self.scope.unbind(1), self.strides, strict=True):
            place = place.add(x.index_select(0, slot), alpha=stride)
        return self.flat.index_select(0, place.reshape(-1)).view(place.shape)

    @cached_property
    def _seen(self) -> dict[tuple[int, ...], Seen]:
        return {}

    def seen_by(self, slots: tuple[int, ...]) -> Seen:
        """The table as some nodes see it, whose joint states are to be compared.

        Args:
            slots: of every slot, which of the nodes 0, 1, ... stands there, -1 for none of them.
        """
        if slots not in self._seen:
            self._seen[slots] = self._seen_by(slots)
        return self._seen[slots]

    def _seen_by(self, slots: tuple[int, ...]) -> Seen:
        own: dict[int, tuple[int, int]] = {}
        rest = []
        for node, card, stride in zip(slots, self.values.shape[1:], self.strides, strict=True):
            if node < 0:
                rest.append((card, stride))
            else:  # a node may stand in two slots
                own[node] = card, stride + own.get(node, (card, 0))[1]
        at_own = _places([own[node] for node in sorted(own)])
        if self.entries > WIDE:
            steps = [stride for _, stride in rest]
            return Seen(self.flat, self.entries, steps, at_own.to(self.values.device))
        place = (_places(rest).unsqueeze(1) + at_own).flatten()
        values = self.values.flatten(1)
        if place.tolist() != list(range(self.entries)):
            values = values.index_select(1, place.to(values.device))
        cards = [card for card, _ in rest]
        steps = [math.prod(cards[k + 1 :]) for k in range(len(cards))]
        return Seen(values.reshape(-1, len(at_own)).contiguous(), math.prod(cards), steps)


@dataclass(frozen=True)
class Seen:
    """Tables of like factors as some nodes see them.

    Attributes:
        values: ``[N, C]`` at all C joint states of these nodes, which lie side by side so that they
            are read at once; or, where ``offsets`` are given, all values ``[N]`` as they are.
        size: places of a factor; steps: what the states of every slot of another node add to one.
        offsets: ``[C]``, what joint states of the nodes add to a place.
    """

    values: Tensor
    size: int
    steps: list[int]
    offsets: Tensor | None = None

    def at(self, place: Tensor) -> Tensor:
        """``[*batch, C]`` at places ``[*batch]``."""
        if self.offsets is None:
            return rows_at(self.values, place)
        every = place.unsqueeze(-1) + self.offsets
        return self.values.index_select(0, every.flatten()).view(every.shape)


def _places(slots: list[tuple[int, int]]) -> Tensor:
    """Of all joint states of slots of some ``(cards, stride)``, the last one's fastest, ``[C]``."""
    place = torch.zeros(1, dtype=torch.int64, device="cpu")
    for card, stride in slots:
        place = (place.unsqueeze(1) + stride * torch.arange(card, device="cpu")).flatten()
    return place


class Network:
    """Discrete nodes and the tables over them.

    Args:
        cards: ``[V]`` numbers of states.
        tables: of the factors.
        constant: what no node changes.
        excluded: what a zero counts for in the tables; no sum of other terms comes near it.
    """

    def __init__(
        self,
        cards: Tensor,
        tables: list[Tables],
        constant: Tensor,
        excluded: float = EXCLUDED,
    ):
        self.cards, self.tables, self.constant = cards, tables, constant
        self.excluded = excluded

    @property
    def num_nodes(self) -> int:
        return len(self.cards)

    @cached_property
    def has_zeros(self) -> bool:
        """Whether a factor is zero in some state."""
        return any(bool((group.values <= self.excluded / 2).any()) for group in self.tables)

    @cached_property
    def num_left(self) -> Tensor:
        """``[V]`` states of every node that factors of it alone leave."""
        is_out = torch.zeros(self.num_nodes, int(self.cards.max()), dtype=torch.bool, device="cpu")
        for group in (group for group in self.tables if group.scope.shape[1] == 1):
            factor, state = (group.values <= self.excluded / 2).cpu().nonzero(as_tuple=True)
            is_out[group.scope[:, 0].cpu()[factor], state] = True
        return self.cards.cpu() - is_out.sum(1)

    @property
    def excludes_a_node(self) -> bool:
        """Whether factors of one node leave it no state, which proves that there is no mass."""
        return bool((self.num_left == 0).any())

    @cached_property
    def num_states(self) -> float:
        """Number of joint states; infinity where there are more than there could be particles."""
        if float(self.cards.double().log2().sum()) > MOST_BITS:
            return math.inf
        return math.prod(self.cards.tolist())

    def states(self) -> Tensor:
        """``[V, num_states]`` all joint states, the last node's fastest."""
        number = torch.arange(self.num_states, device=self.cards.device)
        behind = self.cards.flip(0).cumprod(0).flip(0)  # of a node and all after it
        return number % behind.unsqueeze(1) // (behind // self.cards).unsqueeze(1)

    @cached_property
    def log_mass(self) -> float | None:
        """Of all joint states; None where the sum would take much work."""
        groups = self.summed()
        if sum(group.values.numel() for group in groups) > MOST_ENTRIES:
            return None
        scopes, tables = [], []
        for group in groups:
            is_zero = group.values <= self.excluded / 2
            scopes += group.scope.tolist()
            tables += list(group.values.masked_fill(is_zero, -torch.inf).cpu().numpy())
        mass = log_mass_of(self.cards.tolist(), scopes, tables)
        return None if mass is None else mass + float(self.constant)

    def summed(self) -> list[Tables]:
        """The same factors, of every group those on the same nodes added up."""
        found = []
        for group in self.tables:
            number = row_numbers(group.scope)
            count = int(number.max()) + 1 if len(number) else 0
            if count == len(number):
                found.append(group)
                continue
            scope = group.scope.new_zeros(count, group.scope.shape[1])
            scope[number] = group.scope
            values = group.values.new_zeros(count, *group.values.shape[1:])
            found.append(Tables(scope, values.index_add(0, number, group.values)))
        return found

    @classmethod
    def of_graph(cls, graph: FactorGraph) -> Network:
        """The tables of a program's factors, in double precision.

        Raises:
            UnsupportedFactor: a table would be too large.
            NonFiniteDensity: a factor is NaN or plus infinity in some state.
            ZeroMass: a factor is zero in all states.
        """
        constant = graph.constant.detach().double()
        cards = [
            torch.full((s.num_nodes,), s.cardinality, dtype=torch.int64, device="cpu")
            for s in graph.sites.values()
        ]
        tables = []
        for group in graph.factors:
            values = table_of(graph, group, MAX_ENTRIES).detach().double()
            top = values.flatten(1).amax(1)
            if bool((top == -torch.inf).any()):
                e = int((top == -torch.inf).nonzero()[0])
                raise ZeroMass(
                    f"{graph.factor_name(group, e)} is zero in all states: a hard constraint that "
                    "nothing meets, or an observation outside of the support."
                )
            top = torch.where(top < FAR, top, 0.0)
            constant = constant + top.sum()
            tables.append(Tables(group.scope, values - top.view(-1, *(1,) * len(group.slots))))
        excluded = worth_of_zero(tables, constant)
        tables = [Tables(g.scope, g.values.clamp_min(excluded)) for g in tables]
        return cls(torch.cat(cards).to(graph.device), tables, constant, excluded)

    def score(self, x: Tensor) -> Tensor:
        """``[K]`` of states ``[V, K]``, the constant included."""
        total = self.constant.expand(x.shape[1])
        for group in self.tables:
            total = total + group.at(x).sum(0)
        return total

    def has_mass(self, score: Tensor) -> Tensor:
        """Whether states of these scores are no zeros of any factor."""
        return score - self.constant > self.excluded / 2

    def among(self, nodes: Tensor) -> Network:
        """The same with those factors alone that read none but ``nodes [n]``."""
        is_one = torch.zeros_like(self.cards, dtype=torch.bool)
        is_one[nodes] = True
        tables = []
        for group in self.tables:
            all_are = is_one[group.scope].all(1)
            tables.append(Tables(group.scope[all_are], group.values[all_are]))
        return Network(self.cards, tables, self.constant, self.excluded)

    def clusters_by_cards(self, clusters: Tensor) -> Iterator[Tensor]:
        """Clusters ``[n, m]``, those of like numbers of states together."""
        cards = self.cards[clusters]
        labels = row_numbers(cards)
        for k in range(int(labels.max()) + 1 if len(labels) else 0):
            yield clusters[labels == k]


def worth_of_zero(tables: list[Tables], constant: Tensor) -> float:
    """What zeros, -inf in these tables, count for: no sum of finite entries comes near it, nor does
    its rounding beside the constant hide it."""
    most, least = 0.0, 0.0
    for group in tables:
        values = group.values.flatten(1)
        most += float(values.amax(1).clamp_min(0).sum())
        least -= float(torch.where(values < AS_ZERO, 0, values).amin(1).sum())
    reach = min(APART * max(most, least, abs(float(constant))), MOST)
    return EXCLUDED if reach <= -EXCLUDED else -(2.0 ** math.ceil(math.log2(reach)))
