"""What a factor graph's nodes and factors are, and which depend on which.

A node is one batch element of a latent site, a factor one element (or one term) of a statement's
log density, its scope exactly the nodes it depends on. No numbers of particles are looked at here:
:mod:`.factor_graph` computes densities over this structure.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyrograph.checks import whole_number
from pyrograph.errors import ShapeMismatch
from pyrograph.graph import draw, markov
from pyrograph.graph.factor_group import FactorGroup
from pyrograph.graph.factors import Factors
from pyrograph.trace.localize import LocalProgram
from pyrograph.trace.reading import Reading
from pyrograph.trace.sites import Site

if TYPE_CHECKING:
    import networkx as nx
    from torch_geometric.data import Data, HeteroData

Label = tuple[str, tuple[int, ...]]


class Structure:
    """Nodes, factors and scopes of a program that was read.

    Args:
        value_dtype: of log densities.
        compile_group: a function of some factors, given their numbers ``[E]`` and scopes
            ``[E, arity]``.
    """

    def __init__(
        self,
        reading: Reading,
        value_dtype: torch.dtype,
        compile_group: Callable[[Tensor, Tensor], LocalProgram],
    ) -> None:
        self.sites: dict[str, Site] = {s.name: s for s in reading.sites}
        self.fixed, self.masked = reading.fixed, reading.masked
        self.free_sites = [s for s in reading.sites if s.name not in reading.fixed]
        self.device = self.free_sites[0].device if self.free_sites else torch.device("cpu")
        self._nodes_of: dict[str, slice] = {}
        node, widths = 0, []
        for site in reading.sites:
            self._nodes_of[site.name] = slice(node, node + site.num_nodes)
            width = 0 if site.name in reading.fixed else site.width
            widths.append(torch.full((site.num_nodes,), width, device="cpu"))
            node += site.num_nodes
        self.num_nodes = node
        self.columns = torch.zeros(node + 1, dtype=torch.int64, device="cpu")
        if widths:
            self.columns[1:] = torch.cat(widths).cumsum(0)
        self.dim = int(self.columns[-1])
        node_of_leaf = torch.arange(node, device="cpu").repeat_interleave(self.columns.diff())
        self._site_of_node = torch.repeat_interleave(
            torch.arange(len(reading.sites), device="cpu"),
            torch.tensor([s.num_nodes for s in reading.sites], dtype=torch.int64, device="cpu"),
        )
        self._factors = Factors.of_reading(reading, node_of_leaf, value_dtype)
        self.constant, self.num_factors = self._factors.constant, len(self._factors)
        self.factors = tuple(
            self._make_group(index, scope, compile_group)
            for index, scope in self._factors.alike(reading.sites, self._site_of_node)
        )

    def _make_group(
        self, index: Tensor, scope: Tensor, compile_group: Callable[[Tensor, Tensor], LocalProgram]
    ) -> FactorGroup:
        numbers = self._factors.statement[index].unique().tolist()
        names = tuple(self._factors.names[k] for k in numbers)
        sites = list(self.sites.values())
        slots = tuple(sites[k] for k in self._site_of_node[scope[0]].tolist())
        return FactorGroup(names[0], names, scope, index, slots, compile_group)

    # ------------------------------------------------------------------ labels
    @functools.cached_property
    def nodes(self) -> tuple[Label, ...]:
        """``(site, index)`` labels, in site order then row-major order."""
        return tuple(
            (site.name, index)
            for site in self.sites.values()
            for index in itertools.product(*(range(n) for n in site.batch_shape))
        )

    def node_id(self, site: str, *index: int) -> int:
        """Position of a node in :attr:`nodes`.

        Raises:
            KeyError: there is no such site.
            ShapeMismatch: the index is not one of its elements.
        """
        shape = self._site(site).batch_shape
        numbers = [whole_number(i) for i in index]
        if len(index) != len(shape) or any(
            i is None or not -n <= i < n for i, n in zip(numbers, shape, strict=True)
        ):
            raise ShapeMismatch(
                f'index {index} does not fit site "{site}", whose batch shape is {shape}.'
            )
        flat = 0
        for i, n in zip(numbers, shape, strict=True):
            flat = flat * n + i % n
        return self._nodes_of[site].start + flat

    def nodes_of(self, site: str) -> slice:
        """Where a site's nodes stand in :attr:`nodes`, in row-major order.

        Raises:
            KeyError: there is no such site.
        """
        return self._nodes_of[self._site(site).name]

    def _site(self, name: str) -> Site:
        if name not in self.sites:
            raise KeyError(f'no latent site "{name}"; there are {", ".join(self.sites) or "none"}.')
        return self.sites[name]

    def scopes(self, statement: str) -> list[tuple[Label, ...]]:
        """Node labels of every factor of a statement, in row-major order of its elements."""
        return [
            tuple(self.nodes[v] for v in scope) for scope in self._factors.of_statement(statement)
        ]

    @property
    def is_split(self) -> bool:
        """Whether some log-density element was split into several factors."""
        return self._factors.is_split

    # ------------------------------------------------------------------ views
    @functools.cached_property
    def neighbors(self) -> tuple[Tensor, Tensor]:
        """Open Markov blankets as CSR ``(ptr [num_nodes + 1], node ids)``, ascending."""
        return markov.neighbors([g.scope for g in self.factors], self.num_nodes, self.device)

    def blanket(self, site: str, *index: int) -> frozenset[Label]:
        """Markov blanket of a node: all nodes it shares a factor with, itself excluded."""
        ptr, nodes = self.neighbors
        v = self.node_id(site, *index)
        return frozenset(self.nodes[u] for u in nodes[ptr[v] : ptr[v + 1]].tolist())

    @functools.cached_property
    def data(self) -> HeteroData:
        """Bipartite torch-geometric view: ``variable``, ``factor`` and ``scope`` edges."""
        return markov.hetero_data(self)

    def markov_graph(self) -> Data:
        """Undirected graph of variables that share a factor, without self loops."""
        return markov.markov_graph(self)

    def to_networkx(self) -> nx.Graph:
        """Bipartite ``networkx.Graph``: node labels and ``(statement, number)`` factors."""
        return markov.to_networkx(self)

    def draw(self, ax=None, positions: Mapping[Label, tuple[float, float]] | None = None):
        """Picture of the factor graph; returns the matplotlib axes."""
        return draw.draw(self, ax, positions)

    # ------------------------------------------------------------------ names of factors
    def statements_of(self, group: FactorGroup) -> list[str]:
        """The statement of every factor of a group."""
        numbers = self._factors.statement[group.index.cpu()].tolist()
        return [self._factors.names[k] for k in numbers]

    def draws(self, group: FactorGroup) -> Tensor:
        """Whether a factor is of the statement that draws the node in a slot, ``[E, arity]``."""
        number = {name: k for k, name in enumerate(self.sites)}
        of_statement = torch.tensor([number.get(n, -1) for n in self._factors.names], device="cpu")
        drawn = of_statement[self._factors.statement[group.index.cpu()]]
        is_own = drawn.unsqueeze(1) == self._site_of_node[group.scope.cpu()]
        return is_own.to(group.scope.device)

    def factor_name(self, group: FactorGroup, e: int) -> str:
        """``factor "r"[12] (scope x[3], x[7])`` for factor e of a group; of a change of variables,
        which no statement of the program has, it says so."""
        statement, number = self._factors.place(int(group.index[e]))
        labels = [self.nodes[v] for v in group.scope[e].tolist()]
        names = ", ".join(s + (str(list(i)) if i else "") for s, i in labels)
        site, _, kind = statement.rpartition(":")
        what = f', the change of variables of site "{site}"' if kind == "jacobian" else ""
        return f'factor "{statement}"[{number}] (scope {names}{what})'

    def __repr__(self) -> str:
        sites = [f"{s.name}{list(s.batch_shape)}" for s in self.sites.values()]
        if len(sites) > 8:
            sites = [*sites[:4], f"... {len(sites)} sites"]
        sites = ", ".join(sites)
        return (
            f"FactorGraph({self.num_nodes} nodes, {self.num_factors} factors in "
            f"{len(self.factors)} groups; sites: {sites})"
        )
