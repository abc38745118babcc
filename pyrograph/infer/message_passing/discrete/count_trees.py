"""Sums over the counts of all other nodes, for all nodes at once, by a binary tree over the nodes.

Upwards, the distribution of the count below is the convolution of those of both children.
Downwards, what a function of the whole count is on the average, as a function of the count below,

    h_left(s) = sum_t p_right(t) h(s + t),     h_root = g

The same numbers as one node after the other, and as good ones since no term is negative, but in
steps as many as the tree has levels: for nodes that add little each, C near k, they are as many
terms.

Source: Tarlow, Swersky, Zemel, Adams & Frey (2012).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def sums_by_tree(nodes: Tensor, weights: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """E g(n_i(x) + count of all others), and E g(count).

    Args:
        nodes: ``[E, k, c]`` probabilities of states.
        weights: ``[E, k, c]`` what they add to the count.
        ends: ``[E, C + 1]`` g.

    Shapes:
        output: ``[E, k, c]``, ``[E]``.
    """
    count, k, _ = nodes.shape
    none = nodes.new_zeros(count, k, int(weights.max()) + 1)
    below = none.scatter_add(2, weights, nodes)
    levels = [below]
    while below.shape[1] > 1:
        if below.shape[1] % 2:  # one that adds nothing
            alone = torch.zeros_like(below[:, :1])
            alone[..., 0] = 1
            below = torch.cat([below, alone], 1)
            levels[-1] = below
        size = below.shape[2]
        wide = pad(below[:, ::2], (size - 1, size - 1))
        below = _sums(wide, below[:, 1::2].flip(2))[..., : ends.shape[1]]
        levels.append(below)
    total = (below.squeeze(1) * pad(ends, (0, below.shape[2] - ends.shape[1]))).sum(1)
    h = ends.unsqueeze(1)
    for below in reversed(levels[:-1]):
        size, pairs = below.shape[2], below.shape[1] // 2
        h = pad(h[:, :pairs], (0, max(0, 2 * size - 1 - h.shape[2])))[..., : 2 * size - 1]
        other = below.unflatten(1, (pairs, 2)).flip(2).flatten(1, 2)
        h = _sums(h.repeat_interleave(2, 1), other)
    h = pad(h, (0, max(0, none.shape[2] - h.shape[2])))
    return h[:, :k].gather(2, weights), total


def _sums(value: Tensor, weight: Tensor) -> Tensor:
    """sum_t weight(t) value(s + t), ``[..., n]``, of ``[..., n + m - 1]`` and ``[..., m]``."""
    windows = value.unfold(-1, weight.shape[-1], 1)
    return (windows @ weight.unsqueeze(-1)).squeeze(-1)
