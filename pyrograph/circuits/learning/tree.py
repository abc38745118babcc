"""A rooted tree of variables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, eq=False)
class Tree:
    """Who hangs below whom.

    Attributes:
        order: variables, the root first, parents before children.
        parent: of each variable, None of the root.
        children: of each variable, ascending.
    """

    order: list[int]
    parent: list[int | None]
    children: list[list[int]]

    @staticmethod
    def rooted(graph: nx.Graph, root: int) -> Tree:
        import networkx as nx

        parent: list[int | None] = [None] * len(graph)
        children: list[list[int]] = [[] for _ in parent]
        order = [root]
        for above, below in nx.bfs_edges(graph, root, sort_neighbors=sorted):
            parent[below] = above
            children[above].append(below)
            order.append(below)
        return Tree(order, parent, children)

    @cached_property
    def below(self) -> list[list[int]]:
        """The variables strictly below each, ascending."""
        found: list[list[int]] = [[] for _ in self.parent]
        for v in reversed(self.order):
            found[v] = sorted(w for child in self.children[v] for w in (child, *found[child]))
        return found

    def path(self, top: int, bottom: int) -> list[int]:
        """The variables from a child of ``top`` down to ``bottom``."""
        found: list[int] = []
        v: int | None = bottom
        while v is not None and v != top:
            found.append(v)
            v = self.parent[v]
        return found[::-1]
