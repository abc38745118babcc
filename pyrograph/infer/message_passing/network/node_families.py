"""Where nodes stand while factors are read: families of like nodes, and what they have absorbed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from pyrograph.beliefs import Gaussian, Natural
from pyrograph.graph import FactorGraph, FactorGroup
from pyrograph.graph.kinds import by_kind
from pyrograph.infer.message_passing.network.network import Family
from pyrograph.infer.message_passing.network.same_scope import Locals
from pyrograph.infer.message_passing.nodes.conjugate_sites import FAMILIES
from pyrograph.infer.message_passing.nodes.families import Categorical, Continuous
from pyrograph.infer.message_passing.nodes.log_values import states_apart

#: Of a group's factors, ``[E]``.
Alpha = Callable[[FactorGroup], Tensor]


class NodeFamilies:
    """Nodes by family, in rows.

    Args:
        kind_of_site: the family of every site's nodes.

    Attributes:
        families: one for nodes of one kind and size.
        family, row: ``[V]`` of every node.
        absorbed: factors that are part of their nodes' bases.
        divided: factors that are several, their terms.
        constant: log of what depends on no latent, and of what factors have been divided by.
        like: a tensor of the graph's dtype and device.
    """

    def __init__(self, graph: FactorGraph, kind_of_site: Mapping[str, str]):
        self.graph = graph
        self.like = graph.constant.detach().new_zeros(0)
        self.constant = graph.constant
        self.absorbed: list[tuple[FactorGroup, Tensor]] = []
        self.divided: list[tuple[FactorGroup, Tensor]] = []
        found, self.family, self.row = by_kind(
            graph,
            lambda s: (kind_of_site[s.name], s.cardinality if s.is_discrete else s.width),
        )
        self.families: list[Family] = []
        for (kind, size), nodes in found.items():
            if kind == "discrete":
                base = states_apart(self.like.new_zeros(len(nodes), size))
                self.families.append(Categorical(nodes, base))
            else:
                batch = (len(nodes),)
                base = (
                    Gaussian.flat(batch, size, self.like)
                    if kind == "normal"
                    else FAMILIES[kind].flat(batch, size, self.like)
                )
                self.families.append(Continuous(nodes, base))

    def wiring(self, group: FactorGroup, index: Tensor) -> tuple[list[Tensor], list[int]]:
        """Rows ``[E]`` and family of every slot."""
        columns = group.scope[index].unbind(1)
        return [self.row[c] for c in columns], [int(self.family[c[0]]) for c in columns]

    def bases(self, group: FactorGroup, index: Tensor) -> list[Any]:
        """Of the family of every slot."""
        return [self.families[f].base for f in self.wiring(group, index)[1]]

    def kinds(self, group: FactorGroup, index: Tensor) -> list[type[Natural]]:
        """Of the beliefs of a set of factors' continuous slots."""
        bases = self.bases(group, index)
        return [type(b) for b, s in zip(bases, group.slots, strict=True) if not s.is_discrete]

    def are_held(
        self, count: Tensor, whole: Locals, size: Tensor, reached: Tensor | None = None
    ) -> bool:
        """Whether something besides products of ``size [U]`` factors each holds their nodes, in
        states that do not read them.

        Args:
            count: ``[V]`` of how many factors nodes have that are not part of bases.
            reached: ``[D, U, number of continuous slots]``, whether the products read a node in a
                state; None where ``whole`` knows.
        """
        reached = whole.local.nodes_reached if reached is None else reached
        bases, scope = self.bases(whole.group, whole.index), whole.group.scope[whole.index]
        for n, k in enumerate(whole.local.continuous):
            is_held = bases[k].is_proper[self.row[scope[:, k]]] | (count[scope[:, k]] > size)
            if not bool((is_held | reached[..., n].all(0)).all()):
                return False
        return True

    def absorb(self, group: FactorGroup, index: Tensor, *said: Any) -> None:
        """Multiply factors ``[E]`` of one node each, which say this, into their nodes' base."""
        self.multiply(group.scope[index, 0], *said)
        self.absorbed.append((group, index))

    def multiply(self, nodes: Tensor, *said: Any) -> None:
        """Multiply functions of like nodes ``[E]`` into their base."""
        number = int(self.family[nodes[0]])
        self.families[number] = self.families[number].absorb(self.row[nodes], *said)

    def divide(self, group: FactorGroup, index: Tensor, constant: Tensor) -> None:
        """Factors ``[E]`` are their terms from now on, and this constant."""
        self.constant = self.constant + constant
        self.divided.append((group, index))


def by_sign(alpha: Tensor) -> list[Tensor]:
    """Factors with alpha = 0 and the others: their updates differ."""
    zero = alpha == 0
    parts = [zero.nonzero().squeeze(1), (~zero).nonzero().squeeze(1)]
    return [part for part in parts if len(part)]
