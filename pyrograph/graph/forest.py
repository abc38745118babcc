"""Whether scopes close a cycle: on a forest, beliefs that agree on nodes make a distribution."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor


def is_forest(scopes: Iterable[Tensor], num_nodes: int) -> bool:
    """Whether the bipartite graph of nodes and factors has no cycle.

    Args:
        scopes: node ids ``[E, arity]``, of factors of two and more nodes; two factors of one
            scope close a cycle.
    """
    first, edges = num_nodes, []
    for scope in scopes:
        scope = scope.cpu()
        factor = first + torch.arange(len(scope)).unsqueeze(1).expand_as(scope)
        edges.append(torch.stack([factor.flatten(), scope.flatten()]))
        first += len(scope)
    if not edges:
        return True
    factor, node = torch.cat(edges, 1).numpy()
    links = coo_array((np.ones(len(node), np.int8), (factor, node)), shape=(first, first))
    components = connected_components(links, directed=False, return_labels=False)
    return len(node) == first - components
