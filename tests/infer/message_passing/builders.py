"""Discrete models that know their own truth: the program, and sums over all its states.

A model is a list of log tables over nodes 0 .. n - 1; the truth comes from the broadcast sum of
the tables, without the library. The program has either one site per node or one plate of nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.ops.indexing import Vindex
from torch import Tensor

import pyrograph as pg

INF = float("inf")


@dataclass(frozen=True)
class Tables:
    """Log tables over discrete nodes; called, the Pyro program of their product.

    Attributes:
        cards: states of every node.
        scopes: nodes of every table, ascending; tables: their log values.
        plated: one site ``x`` in a plate, and one statement ``f1``, ``f2``, ... per arity (nodes
            of like cardinality only); else sites ``x0``, ``x1``, ... and statements ``f0``, ...
    """

    cards: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]
    tables: tuple[Tensor, ...]
    plated: bool = False

    def __call__(self) -> None:
        if self.plated:
            self._plated()
        else:
            self._scattered()

    def _scattered(self) -> None:
        x = [
            pyro.sample(f"x{i}", dist.Categorical(logits=torch.zeros(c)).mask(False))
            for i, c in enumerate(self.cards)
        ]
        for k, (scope, table) in enumerate(zip(self.scopes, self.tables)):
            pyro.factor(f"f{k}", Vindex(table)[tuple(x[i] for i in scope)])

    def _plated(self) -> None:
        like = self.tables[0].new_zeros(self.cards[0])
        with pyro.plate("nodes", len(self.cards)):
            x = pyro.sample("x", dist.Categorical(logits=like).mask(False))
        for arity in sorted({len(s) for s in self.scopes}):
            mine = self.of_arity(arity)
            table = torch.stack([self.tables[k] for k in mine])
            scope = torch.tensor([self.scopes[k] for k in mine])
            with pyro.plate(f"tables{arity}", len(mine)):
                at = (torch.arange(len(mine)), *(x[..., s] for s in scope.unbind(1)))
                pyro.factor(f"f{arity}", Vindex(table)[at])

    def of_arity(self, arity: int) -> list[int]:
        return [k for k, scope in enumerate(self.scopes) if len(scope) == arity]

    # ------------------------------------------------------------------ truth
    @property
    def joint(self) -> Tensor:
        """Log weights of all states, ``[*cards]``."""
        total = torch.zeros(self.cards, dtype=self.tables[0].dtype)
        for scope, table in zip(self.scopes, self.tables):
            shape = [c if i in scope else 1 for i, c in enumerate(self.cards)]
            total = total + table.reshape(shape)
        return total

    @property
    def log_z(self) -> Tensor:
        return self.joint.flatten().logsumexp(0)

    def marginal(self, *nodes: int) -> Tensor:
        """Of ascending nodes, jointly."""
        joint = (self.joint - self.log_z).exp()
        return joint.sum([i for i in range(len(self.cards)) if i not in nodes])

    # ------------------------------------------------------------------ what was found
    def beliefs(self, posterior) -> list[Tensor]:
        """Probabilities of every node."""
        if self.plated:
            return list(posterior.marginal("x").probs)
        return [posterior.marginal(f"x{i}").probs for i in range(len(self.cards))]

    def factor_beliefs(self, posterior) -> dict[int, Tensor]:
        """Probabilities over the scope of every table of two and more nodes, by its number."""
        if not self.plated:
            wide = [k for k, scope in enumerate(self.scopes) if len(scope) > 1]
            return {k: posterior.factor_marginal(f"f{k}")[0] for k in wide}
        found = {}
        for arity in {len(s) for s in self.scopes} - {1}:
            mine = self.of_arity(arity)
            found.update(zip(mine, posterior.factor_marginal(f"f{arity}")))
        return found


def random_model(
    cards, scopes, seed: int, strength: float = 1.0, zeros: float = 0.0, plated: bool = False
) -> Tables:
    """Normal log tables on every node and on the given scopes; a share of the wide ones' entries
    is zero, but never that of the states all 0."""
    g = torch.Generator().manual_seed(seed)
    every = [(i,) for i in range(len(cards))] + [tuple(sorted(s)) for s in scopes]
    tables = []
    for scope in every:
        shape = [cards[i] for i in scope]
        table = strength * torch.randn(shape, generator=g, dtype=torch.float64)
        if zeros and len(scope) > 1:
            out = torch.rand(shape, generator=g, dtype=torch.float64) < zeros
            out[(0,) * len(scope)] = False
            table = table.masked_fill(out, -INF)
        tables.append(table)
    return Tables(tuple(cards), tuple(every), tuple(tables), plated)


# ---------------------------------------------------------------------- trees
def chain(seed: int) -> Tables:
    return random_model((2,) * 9, [(i, i + 1) for i in range(8)], seed, 2.0, plated=True)


def star(seed: int) -> Tables:
    return random_model((3,) * 8, [(3, i) for i in range(8) if i != 3], seed, 2.0, plated=True)


def mixed_tree(seed: int) -> Tables:
    """A random tree of 2 to 4 states and one state."""
    rng = np.random.default_rng(seed)
    cards = (*(int(c) for c in rng.integers(2, 5, 7)), 1)
    return random_model(cards, [(int(rng.integers(i)), i) for i in range(1, 8)], seed, 2.0)


def triples(seed: int) -> Tables:
    """Factors of three and four nodes that close no cycle, and a second component."""
    return random_model((2, 3, 2, 4, 2, 2, 3, 2), [(0, 1, 2), (2, 3, 4, 5), (6, 7)], seed, 2.0)


def tree_with_zeros(seed: int) -> Tables:
    cards = (3, 2, 3, 2, 4, 2, 3)
    scopes = [(0, 1, 2), (2, 3), (2, 4), (4, 5, 6)]
    return random_model(cards, scopes, seed, 2.0, zeros=0.4)


TREES = [chain, star, mixed_tree, triples, tree_with_zeros]


# ---------------------------------------------------------------------- cycles
def grid_edges(n: int) -> list[tuple[int, int]]:
    across = [(n * r + c, n * r + c + 1) for r in range(n) for c in range(n - 1)]
    return across + [(n * r + c, n * r + c + n) for r in range(n - 1) for c in range(n)]


def boltzmann(seed: int, strength: float = 0.7) -> Tables:
    """A 4 x 4 grid of binary nodes."""
    return random_model((2,) * 16, grid_edges(4), seed, strength, plated=True)


def potts(seed: int) -> Tables:
    """Three states, pairs and factors of three nodes."""
    scopes = [(0, 1, 2), (2, 3, 4), (0, 4, 5), (1, 3), (1, 5), (0, 3)]
    return random_model((3,) * 6, scopes, seed, 0.6, plated=True)


def mixed_cycle(seed: int) -> Tables:
    scopes = [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2, 4)]
    return random_model((2, 3, 4, 2, 3), scopes, seed, 0.7)


def cycle_with_zeros(seed: int) -> Tables:
    scopes = [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2, 4)]
    return random_model((2, 3, 4, 2, 3), scopes, seed, 0.7, zeros=0.2)


CYCLES = [boltzmann, potts, mixed_cycle, cycle_with_zeros]


def run(model, engine=None, *args, **options):
    """A posterior, without a progress bar."""
    return pg.fit(model, args, infer=engine or pg.BP, progress=False, **options)


def log_of_rest(t: Tensor) -> Tensor:
    """log (1 - e^-t)."""
    return torch.where(t < 0.7, torch.log(-torch.expm1(-t)), torch.log1p(-torch.exp(-t)))


def random_messages(engine, seed: int, scale: float = 1.0) -> None:
    """Overwrite an engine's messages with noise."""
    g = torch.Generator().manual_seed(seed)
    engine.messages = [
        [scale * torch.randn(m.shape, generator=g, dtype=torch.float64).to(m) for m in block]
        for block in engine.messages
    ]
