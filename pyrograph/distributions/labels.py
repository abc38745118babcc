"""Labellings of n elements, read as the partitions they stand for.

A labelling ``z [..., n]`` names the cluster of every element; the names carry no meaning. Here
each element is first sent to its *root*, the first element of its cluster; clusters are then
numbered in the order of their roots. All shapes are fixed by n, so that nothing depends on the
labels' values, and everything is batched over leading dimensions.
"""

import torch
from torch import Tensor


def roots(z: Tensor) -> Tensor:
    """Index of the first element of each element's cluster, ``[..., n]``. O(n log n)."""
    ordered, order = z.sort(dim=-1, stable=True)
    place = torch.arange(z.shape[-1], device=z.device)
    starts = torch.ones_like(order, dtype=torch.bool)
    starts[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    start = torch.where(starts, place, 0).cummax(dim=-1).values
    return torch.zeros_like(order).scatter(-1, order, order.gather(-1, start))


def number_roots(root: Tensor) -> Tensor:
    """Labels 0, 1, ... in order of first appearance, from the roots ``[..., n]``."""
    is_root = root == torch.arange(root.shape[-1], device=root.device)
    return (is_root.cumsum(dim=-1) - 1).gather(-1, root)


def by_appearance(z: Tensor) -> Tensor:
    """The same partition labelled 0, 1, ... in order of first appearance, ``[..., n]`` long."""
    return number_roots(roots(z))


def totals(labels: Tensor, values: Tensor, num_slots: int) -> Tensor:
    """Sums of ``values [..., n, m]`` over the elements of each slot, ``[..., num_slots, m]``.

    ``labels [..., n]`` lie in 0, ..., num_slots - 1; leading dimensions broadcast.
    """
    batch = torch.broadcast_shapes(labels.shape[:-1], values.shape[:-2])
    shape = batch + values.shape[-2:]
    index = labels.unsqueeze(-1).expand(shape)
    empty = values.new_zeros(batch + (num_slots, values.shape[-1]))
    return empty.scatter_add(-2, index, values.expand(shape))


def sizes(labels: Tensor, dtype: torch.dtype) -> Tensor:
    """Number of elements in each of n slots, ``[..., n]``, of labels below n."""
    ones = torch.ones(labels.shape + (1,), dtype=dtype, device=labels.device)
    return totals(labels, ones, labels.shape[-1]).squeeze(-1)
