"""Hidden Markov chain and Ising lattice as Pyro programs, without normalising priors."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor


def chain(start: Tensor, move: Tensor, emit: Tensor, observed: Tensor, is_seen: Tensor) -> None:
    """States ``[T]`` of a hidden Markov chain.

    Args:
        start: ``[S]``; move: ``[S, S]``; emit: ``[S, symbols]``.
        observed: ``[T]`` symbols; is_seen: ``[T]``, 0 where a symbol is held out.
    """
    n = len(observed)
    with pyro.plate("times", n):
        z = pyro.sample("z", dist.Categorical(torch.ones(len(start))).mask(False))
        pyro.factor("symbols", is_seen * emit.log()[z, observed])
    pyro.factor("start", start.log()[z[0]])
    with pyro.plate("moves", n - 1):
        pyro.factor("move", move.log()[z[:-1], z[1:]])


def lattice_edges(side: int) -> Tensor:
    """Pairs of neighbours, ``[E, 2]``."""
    at = torch.arange(side * side).view(side, side)
    across = torch.stack([at[:, :-1].flatten(), at[:, 1:].flatten()], 1)
    return torch.cat([across, torch.stack([at[:-1].flatten(), at[1:].flatten()], 1)])


def ising(side: int, beta: float, field: Tensor) -> None:
    """exp(sum_i h_i x_i + beta sum_ij x_i x_j) of spins -1 and 1 on a square lattice, ``x`` being
    0 and 1; ``field`` is ``[side^2]``."""
    edges = lattice_edges(side)
    with pyro.plate("nodes", side * side):
        x = 2 * pyro.sample("x", dist.Bernoulli(0.5).mask(False)) - 1
        pyro.factor("field", field * x)
    with pyro.plate("edges", len(edges)):
        pyro.factor("pair", beta * x[edges[:, 0]] * x[edges[:, 1]])
