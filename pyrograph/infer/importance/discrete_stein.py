"""The discrete Stein kernel of every pair of states.

    k_p(x, y) = sum_i A_i^x A_i^y k(x, y),    (A_i f)(x) = f(inv_i x) - r_i(x) f(x),
    r_i(x) = p(not_i x) / p(x)

not_i adds 1 to the code of node i modulo its number of states and inv_i takes 1 from it, so that
sum_x p(x) (A_i f)(x) = 0 for every f: E_p k_p(x, .) = 0, without the normaliser of p. This is the
kernelised discrete Stein discrepancy with the score s_i = 1 - r_i. For k a product over variables,
A_i acts on one factor of it: with a_i(x) = e(inv_i x_i) - r_i(x) e(x_i) in R^c and T_i the table
of that factor,

    k_p(x, y) = sum_i (a_i(x)' T_i a_i(y)) prod_{j != i} T_j[x_j, y_j].

O(n^2 sum_i c_i), by rows. p must be positive (see :mod:`.zeros`): where it is not, chains do not
reach all states, r_i is infinite, and E_p k_p is no longer zero.

Source: Yang, Liu, Rao & Neville (2018), theorem 2; Li, Zeng, Vergari & Van den Broeck (2021),
equation (17), with the inverse shift inside the kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.circuits.expectations.kernels import Hamming, Kernel
from pyrograph.errors import NonFiniteDensity
from pyrograph.graph.devices import at_once
from pyrograph.infer.dpvi.clusters import Clusters
from pyrograph.infer.dpvi.network import Network

#: Numbers held at once by a part of the rows.
CHUNK = 2**21


def shift_ratios(network: Network, x: Tensor) -> Tensor:
    """r_i(x) = p(not_i x) / p(x).

    Args:
        x: ``[V, n]`` codes.

    Shapes:
        output: ``[V, n]`` float64.

    Raises:
        NonFiniteDensity: a ratio overflows.
    """
    out = torch.ones(x.shape, dtype=torch.float64, device=x.device)
    every = torch.arange(network.num_nodes, device=x.device).unsqueeze(1)
    for nodes in network.clusters_by_cards(every):
        clusters = Clusters(network, nodes)
        local, now = clusters.local_scores(x), clusters.current(x).unsqueeze(2)
        following = (now + 1) % clusters.num_states
        out[nodes.squeeze(1)] = (local.gather(2, following) - local.gather(2, now)).squeeze(2).exp()
    if not bool(out.isfinite().all()):
        raise NonFiniteDensity(
            "the probabilities of two states that differ in one node are more than e^700 apart: "
            "their ratio, which the discrete Stein kernel needs, overflows. Temper the factors, or "
            "leave such states out of the samples."
        )
    return out


def discrete_stein_gram(
    x: Tensor, ratios: Tensor, cards: Tensor, kernel: Kernel | None = None
) -> Tensor:
    """k_p of every pair of states.

    Args:
        x: ``[V, n]`` codes; ratios: ``[V, n]`` of :func:`shift_ratios`; cards: ``[V]``.
        kernel: a sum of products of univariate kernels; default ``Hamming()``.

    Shapes:
        output: ``[n, n]`` float64, positive semi-definite.
    """
    n = x.shape[1]
    out = torch.zeros(n, n, dtype=torch.float64, device=x.device)
    for weight, tables in (kernel or Hamming()).tables(cards.tolist()):
        batches = [
            _batch(x[nodes], ratios[nodes], [tables[i] for i in nodes.tolist()])
            for nodes in _by_cards(cards)
        ]
        size = max(1, at_once(CHUNK, x.device) // (n * len(cards)))
        for first in range(0, n, size):
            rows = slice(first, min(first + size, n))
            out[rows, first:] += weight * _rows(batches, rows)
    return out.triu() + out.triu(1).t()


def _by_cards(cards: Tensor) -> list[Tensor]:
    """Nodes by their number of states."""
    return [(cards == c).nonzero().squeeze(1) for c in cards.unique().tolist()]


def _batch(x: Tensor, ratios: Tensor, tables: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Of nodes with as many states each: T ``[m, c, c]``, e and a ``[m, n, c]``."""
    table = torch.stack(tables).to(x.device)
    here = torch.nn.functional.one_hot(x, table.shape[1]).double()
    return table, here, here.roll(-1, 2) - ratios.unsqueeze(2) * here


def _rows(batches: list[tuple[Tensor, Tensor, Tensor]], rows: slice) -> Tensor:
    """The Stein kernel of one product, ``[rows, n - rows.start]``: from the diagonal on.

    The product over j != i is that of the factors other than zero, times zero if one of them is.
    """
    product, zeros, parts = 1.0, 0, []
    for table, here, shifted in batches:
        value, stein = (  # [m, rows, columns]
            a[:, rows] @ table @ a[:, rows.start :].transpose(1, 2) for a in (here, shifted)
        )
        is_zero = value == 0
        value = torch.where(is_zero, 1.0, value)
        product = product * value.prod(0)
        zeros = zeros + is_zero.sum(0)
        parts.append((stein / value, is_zero))
    # a zero of this very factor does not count
    return product * sum(torch.where(zeros == z, stein, 0.0).sum(0) for stein, z in parts)
