"""Scopes all of whose nodes another has too.

Where two or more scopes, none of them part of another, hold a third it belongs to none of them:
whichever it went to, the others would be treated differently.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Most nodes that are looked for in other scopes, for scopes of a size: beyond they all stay.
COMPARED = 2**22


def contained(scopes: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Scopes that are part of exactly one of the largest, and that one.

    Args:
        scopes: distinct ones, ``[n, k]`` for every size k; numbered in this order.

    Returns:
        Numbers ``[m]`` and ``[m]``.
    """
    device = scopes[0].device
    counts, sizes = [len(s) for s in scopes], [s.shape[1] for s in scopes]
    empty = torch.zeros(0, dtype=torch.int64, device=device)
    if sum(n > 0 for n in counts) < 2:
        return empty, empty
    number = torch.arange(sum(counts), device=device).split(counts)
    node = torch.cat([s.flatten() for s in scopes])
    of_scope = torch.cat([own.repeat_interleave(k) for own, k in zip(number, sizes, strict=True)])
    missing = torch.cat([torch.full_like(s, max(sizes) - s.shape[1]).flatten() for s in scopes])
    num_nodes, num_sizes = int(node.max()) + 1, max(sizes) + 1
    entries = (of_scope * num_nodes + node).sort().values
    by_size, order = (node * num_sizes + missing).sort()  # of a node the largest first
    of_scope = of_scope[order]
    inner, outer = [empty], [empty]
    for own, scope, size in zip(number, scopes, sizes, strict=True):
        start = torch.searchsorted(by_size, scope * num_sizes)
        stop = torch.searchsorted(by_size, scope * num_sizes + max(sizes) - size)
        count, rarest = (stop - start).min(1)  # larger scopes with the node that fewest have
        if int(count.sum()) * size > COMPARED:
            continue
        i = torch.arange(len(own), device=device).repeat_interleave(count)
        place = torch.arange(len(i), device=device) - (count.cumsum(0) - count)[i]
        other = of_scope[start.gather(1, rarest.unsqueeze(1)).squeeze(1)[i] + place]
        sought = other.unsqueeze(1) * num_nodes + scope[i]
        found = torch.searchsorted(entries, sought).clamp_max(len(entries) - 1)
        holds = (entries[found] == sought).all(1)
        inner.append(own[i[holds]])
        outer.append(other[holds])
    inner, outer = torch.cat(inner), torch.cat(outer)
    is_inner = torch.zeros(sum(counts), dtype=torch.bool, device=device).index_fill(0, inner, True)
    inner, outer = inner[~is_inner[outer]], outer[~is_inner[outer]]
    alone = inner.bincount(minlength=sum(counts))[inner] == 1
    return inner[alone], outer[alone]
