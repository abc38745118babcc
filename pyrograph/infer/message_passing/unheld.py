"""Continuous nodes that nothing holds in place: masked out, or known only jointly with others."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pyrograph.beliefs import Natural
from pyrograph.errors import InferenceError
from pyrograph.graph import FactorGraph
from pyrograph.graph.checked import unread_nodes
from pyrograph.infer.message_passing.families import Continuous
from pyrograph.infer.message_passing.network import Family


def refuse_masked_out(graph: FactorGraph) -> None:
    """Refuse continuous nodes that no factor reads: a flat belief is none.

    Raises:
        InferenceError: naming the first one.
    """
    for node in unread_nodes(graph):
        site, index = graph.nodes[node]
        if not graph.sites[site].is_discrete:
            raise InferenceError(
                f'no factor reads node "{site}"{list(index)}, so that it has no belief: it is '
                "masked out, and so is all that depends on it. Sample the unmasked elements alone "
                "(index the data by the mask, ahead of the plate); instead of obs_mask= observe "
                "the given elements and sample the others in statements of their own."
            )


def refuse_improper(
    graph: FactorGraph, families: Sequence[Family], beliefs: Sequence[Tensor | Natural]
) -> None:
    """Refuse beliefs that are no distributions.

    Raises:
        InferenceError: naming the first node.
    """
    for family, belief in zip(families, beliefs, strict=True):
        if isinstance(family, Continuous) and not bool(belief.is_proper.all()):
            node = int(family.nodes[~belief.is_proper][0])
            site, index = graph.nodes[node]
            raise InferenceError(
                f'node "{site}"{list(index)} has no proper belief: no message holds it in place by '
                "itself. Give the site a proper prior, or put what is known of it only jointly "
                "with others into one vector site."
            )
