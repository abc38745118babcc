"""Nodes in the order of their kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from pyrograph.graph.factor_graph import FactorGraph
from pyrograph.trace.sites import Site

K = TypeVar("K")


def by_kind(
    graph: FactorGraph, kind_of: Callable[[Site], K]
) -> tuple[dict[K, Tensor], Tensor, Tensor]:
    """Nodes ``[V]`` of every kind, and ``[num_nodes]`` each node's number of its kind and row among
    these."""
    members: dict[K, list[int]] = {}
    start = 0
    for site in graph.sites.values():
        members.setdefault(kind_of(site), []).extend(range(start, start + site.num_nodes))
        start += site.num_nodes
    nodes = {
        kind: torch.tensor(own, dtype=torch.int64, device=graph.device)
        for kind, own in members.items()
    }
    number = torch.zeros(start, dtype=torch.int64, device=graph.device)
    row = torch.zeros_like(number)
    for k, own in enumerate(nodes.values()):
        number[own], row[own] = k, torch.arange(len(own), device=graph.device)
    return nodes, number, row
