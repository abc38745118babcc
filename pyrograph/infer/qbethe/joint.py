"""One Gaussian of all continuous nodes from those of the scopes, within every component.

With full covariance a scope a correlates its whitened nodes, u_i = root_i^-1 (x_i - m_i), by a
matrix C_a with identity blocks, whatever its discrete nodes are. On a forest there is one Gaussian
with all these marginals that adds nothing of its own, the one whose nodes are independent given
what separates them:

    p(u) = prod_a N(u_a; 0, C_a) prod_i N(u_i; 0, I)^(1 - d_i)
    precision  J = I + sum_a (C_a^-1 - I)

and the mixture of these, with the shared weights, has the mixture beliefs of all factors and nodes
as its marginals. Where scopes close a cycle such a Gaussian need not exist.

With J = U U', U upper triangular, the covariance has the lower triangular root U^-T.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.infer.qbethe.build import Network
from pyrograph.infer.qbethe.components import Components, correlation_root

#: Largest root, in numbers over all components: 64 MB.
MOST_ENTRIES = 2**23
#: Said of correlations within factors that make no joint distribution, and why.
INDEPENDENT_DRAWS = (
    "sample() and guide() draw the nodes of a component independently, without the correlations "
    "within factors that the evidence counts and factor_marginal() has of factors without discrete "
    'nodes: {}. For joint draws take covariance="diagonal" and more components.'
)


def joined(network: Network, components: Components) -> tuple[Tensor | None, str | None]:
    """:func:`joint_root` where nodes are correlated, and what is to be said where there should be
    one and is none."""
    if not network.num_ties:
        return None, None
    if not network.joins:
        return None, INDEPENDENT_DRAWS.format("on a graph with cycles these make no joint one")
    entries = root_entries(network, components.num_components)
    if entries > MOST_ENTRIES:
        reason = f"the roots of their joint covariance would have {entries:,} entries"
        return None, INDEPENDENT_DRAWS.format(reason)
    root = joint_root(network, components)
    if root is None:
        return None, INDEPENDENT_DRAWS.format("some numbers of a factor determine each other")
    return root, None


def root_entries(network: Network, num_components: int) -> int:
    """Numbers that :func:`joint_root` holds."""
    return num_components * sum(_widths(network)) ** 2


def joint_root(network: Network, components: Components) -> Tensor | None:
    """Lower triangular roots of the covariances of all numbers, ``[L, D, D]``, node by node.

    Args:
        network: whose scopes close no cycle (``joins``).
        components: of a single restart.

    Returns:
        None if a scope's numbers determine each other, to rounding.
    """
    sizes = torch.tensor(_widths(network), device="cpu")
    first, total = sizes.cumsum(0) - sizes, int(sizes.sum())
    device = components.log_weights.device
    first = first.to(device)
    # in double precision: correlations of .9999 are ordinary along a chain
    unit = torch.eye(total, dtype=torch.float64, device=device)
    precision = unit.repeat(components.num_components, 1, 1).flatten(1)
    for scope in network.correlated:
        (shared,) = scope.wiring.ties
        tie = components.parameters[shared.name][0][:, shared.rows].double()
        inverse = torch.cholesky_inverse(correlation_root(tie, scope.sizes))  # [L, S, R, R]
        column = [
            first[nodes].unsqueeze(1) + torch.arange(size, device=device)
            for nodes, size in zip(scope.nodes.unbind(1), scope.sizes, strict=True)
        ]
        index = torch.cat(column, 1)  # [S, R]
        place = index.unsqueeze(2) * total + index.unsqueeze(1)
        extra = inverse - torch.eye(index.shape[1], dtype=torch.float64, device=device)
        precision.index_add_(1, place.flatten(), extra.flatten(1))
    backward = precision.unflatten(1, (total, total)).flip(1, 2)
    lower, failed = torch.linalg.cholesky_ex(backward)
    if bool(failed.any()):
        return None
    upper = lower.flip(1, 2)
    white = torch.linalg.solve_triangular(upper.mT, unit.expand_as(upper), upper=False)
    root = white.clone()
    for k, kind in enumerate(network.kinds):
        if not kind.is_discrete:
            start = first[kind.nodes].unsqueeze(1)
            rows = (start + torch.arange(kind.size, device=device)).flatten()
            own = components.root(k)[0].double()  # [L, V, d, d]
            root[:, rows] = (own @ white[:, rows].unflatten(1, own.shape[1:3])).flatten(1, 2)
    return root.to(components.weights) if bool(root.isfinite().all()) else None


def _widths(network: Network) -> list[int]:
    """Numbers of every node, none of discrete ones."""
    widths = torch.zeros(len(network.kind), dtype=torch.int64, device="cpu")
    for kind in network.kinds:
        if not kind.is_discrete:
            widths[kind.nodes.cpu()] = kind.size
    return widths.tolist()
