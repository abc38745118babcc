"""Labellings of n elements, read as the partitions they stand for.

A labelling ``z [..., n]`` names the cluster of every element; the names carry no meaning. Sorting
puts the elements of a cluster side by side, a *run*; a sum over every cluster is then a prefix sum
that starts afresh with each run, log2(n) shifts of the data, and stands at the run's last place.
All shapes are fixed by n and nothing is written to places that labels decide, so that the
computations are batched over leading dimensions and can be traced with z latent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.distributions.checks import require_broadcast


class Runs:
    """The clusters of ``z [..., n]`` as runs of its stable sort.

    Attributes:
        order: ``[..., n]``, the element at each place.
        start: ``[..., n]``, the place where each place's run starts.
        ends: ``[..., n]`` bool, whether a place is the last of its run: one per cluster.
    """

    def __init__(self, z: Tensor):
        ordered, self.order = z.sort(dim=-1, stable=True)
        self._place = torch.arange(z.shape[-1], device=z.device)
        changes = ordered[..., 1:] != ordered[..., :-1]
        edge = torch.ones_like(ordered[..., :1], dtype=torch.bool)
        self.ends = torch.cat([changes, edge], dim=-1)
        starts = torch.cat([edge, changes], dim=-1)
        self.start = torch.where(starts, self._place, 0).cummax(dim=-1).values

    @property
    def sizes(self) -> Tensor:
        """``[..., n]``: elements of the run up to each place; at ``ends``, the cluster's size."""
        return self._place - self.start + 1

    def ordered(self, values: Tensor) -> Tensor:
        """``values [..., n, m]`` of the element at each place, ``[..., n, m]``."""
        batch = require_broadcast("labels", values=values.shape[:-2], labels=self.order.shape[:-1])
        shape = batch + values.shape[-2:]
        return values.expand(shape).gather(-2, self.order.unsqueeze(-1).expand(shape))

    def firsts(self, ordered: Tensor) -> Tensor:
        """At each place what ``ordered [..., n, m]`` has where the place's run starts."""
        return ordered.gather(-2, self.start.unsqueeze(-1).expand(ordered.shape))

    def sums(self, values: Tensor) -> Tensor:
        """Sums of ``values [..., n, m]`` over each run up to each place, ``[..., n, m]``."""
        return self.sums_in_order(self.ordered(values))

    def sums_in_order(self, ordered: Tensor) -> Tensor:
        """The same of values that are :meth:`ordered`."""
        total, reach = ordered, 1
        while reach < total.shape[-2]:
            before = torch.cat(
                [torch.zeros_like(total[..., :reach, :]), total[..., :-reach, :]], dim=-2
            )
            same_run = (self._place - reach >= self.start).unsqueeze(-1)
            total = total + torch.where(same_run, before, 0)
            reach *= 2
        return total

    def roots(self) -> Tensor:
        """``[..., n]``: the first element of each element's cluster."""
        return self.order.gather(-1, self.start).gather(-1, self.order.argsort(dim=-1))


def number_roots(root: Tensor) -> Tensor:
    """Labels 0, 1, ... in order of first appearance, from the roots ``[..., n]``."""
    is_root = root == torch.arange(root.shape[-1], device=root.device)
    return (is_root.cumsum(dim=-1) - 1).gather(-1, root)


def by_appearance(z: Tensor) -> Tensor:
    """The same partition labelled 0, 1, ... in order of first appearance, ``[..., n]`` long."""
    return number_roots(Runs(z).roots())


def in_order(labels: Tensor) -> Tensor:
    """Labels ``[K, n]`` renamed by first appearance: 0, 1, ...; -1 stays."""
    count, n = labels.shape
    if n == 0:
        return labels
    place = torch.arange(n, device=labels.device).expand_as(labels)
    if int(labels.max()) > labels.numel():  # names that are large numbers
        names, labels = labels.unique(return_inverse=True)
        labels = labels - int(names[0] < 0)
    width = int(labels.max()) + 2
    first = torch.full((count, width), n, device=labels.device)
    first = first.scatter_reduce(1, (labels + 1).clamp_min(0), place, "amin")
    first[:, 0] = n  # elements that are out
    rank = first.argsort(1).argsort(1)
    return torch.where(labels < 0, -1, rank.gather(1, labels + 1))
