"""Positive discrete programs of few states, with all their states and probabilities."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor


def mixed() -> None:
    """Nodes of three, four and two states and factors of all sizes."""
    draw = torch.Generator().manual_seed(1)
    a = pyro.sample("a", dist.Categorical(torch.tensor([0.2, 0.5, 0.3])))
    b = pyro.sample("b", dist.Categorical(torch.tensor([0.1, 0.2, 0.3, 0.4])))
    c = pyro.sample("c", dist.Bernoulli(0.3)).long()
    pyro.factor("abc", torch.randn(3, 4, 2, generator=draw, dtype=torch.float64)[a, b, c])
    pyro.factor("bc", torch.randn(4, 2, generator=draw, dtype=torch.float64)[b, c])


def grid(side: int = 3, coupling: float = 0.4, seed: int = 0) -> Callable:
    """An Ising lattice with fields, spins as 0 and 1."""
    at = torch.arange(side * side).view(side, side)
    across = torch.stack([at[:, :-1].flatten(), at[:, 1:].flatten()])
    down = torch.stack([at[:-1].flatten(), at[1:].flatten()])
    i, j = torch.cat([across, down], 1)
    draw = torch.Generator().manual_seed(seed)
    field = 0.5 * torch.randn(side * side, generator=draw, dtype=torch.float64)

    def model() -> None:
        with pyro.plate("nodes", side * side):
            x = 2 * pyro.sample("x", dist.Bernoulli(0.5)) - 1
            pyro.factor("field", field * x)
        with pyro.plate("edges", len(i)):
            pyro.factor("pair", coupling * x[i] * x[j])

    return model


def all_states(graph) -> tuple[Tensor, Tensor]:
    """Codes ``[V, N]`` of every joint state and their probabilities ``[N]``, by the program."""
    cards = [site.cardinality for site in graph.sites.values() for _ in range(site.num_nodes)]
    codes = torch.tensor(list(itertools.product(*map(range, cards)))).t()
    return codes, graph.log_prob(values_of(graph, codes)).double().softmax(0)


def values_of(graph, codes: Tensor) -> dict[str, Tensor]:
    """Values ``{site: [N, *shape]}`` of codes ``[V, N]``."""
    out, start = {}, 0
    for name, site in graph.sites.items():
        own = codes[start : start + site.num_nodes].t()
        start += site.num_nodes
        out[name] = site.enumeration[own].reshape(len(own), *site.shape)
    return out
