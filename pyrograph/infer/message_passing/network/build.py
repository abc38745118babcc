"""From a factor graph to families of nodes and blocks of like factors.

Factors of one node that the node's family represents exactly (tables of a discrete node,
quadratic log densities of a continuous one) go into the family's base. All others become blocks,
of discrete nodes (:mod:`.discrete_factors`) or with continuous ones (:mod:`.local_factors`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pyrograph.graph import FactorGraph
from pyrograph.infer.message_passing.network.discrete_factors import DiscreteFactors
from pyrograph.infer.message_passing.network.local_factors import LocalFactors
from pyrograph.infer.message_passing.network.network import Network
from pyrograph.infer.message_passing.network.node_families import Alpha, NodeFamilies
from pyrograph.infer.message_passing.nodes.conjugate_sites import kinds_of_sites


def build(
    graph: FactorGraph,
    alpha: Alpha,
    num_points: int | None = None,
    family: Mapping[str, str] = MappingProxyType({}),
    one_alpha: bool = False,
) -> Network:
    """Sort nodes and factors.

    Args:
        alpha: of a group's factors, ``[E]``.
        num_points: of the quadrature, per dimension.
        family: ``"gamma"``, ``"beta"`` or ``"dirichlet"`` by site, where no Gaussian is wanted.
        one_alpha: whether factors on one scope have the same alpha, which is their product's.

    Raises:
        NonFiniteDensity: a factor is NaN or plus infinity.
        OptionError: a factor has zeros and alpha <= 0.
        UnsupportedFactor: a factor depends on too many continuous coordinates.
        ZeroMass: a node has no state that its own factors allow.
    """
    nodes = NodeFamilies(graph, kinds_of_sites(graph, family))
    discrete, local = DiscreteFactors(nodes, alpha), LocalFactors(nodes, alpha, num_points)
    for group in graph.factors:
        local.refuse_wide_nodes(group)
    for group in graph.factors:
        (discrete if group.is_discrete else local).read(group)
    discrete.scale_bases()
    merged = discrete.multiply(one_alpha)
    local.multiply(one_alpha)
    discrete.use_odds(local.scopes())
    blocks = list(discrete.blocks())
    merged += local.merged(len(blocks))
    blocks += local.blocks()
    return Network(
        nodes.families,
        [block for block, _, _ in blocks],
        [(group, index) for _, group, index in blocks],
        merged,
        nodes.absorbed,
        nodes.divided,
        nodes.row,
        nodes.family,
        nodes.constant,
        discrete.tried,
    )
