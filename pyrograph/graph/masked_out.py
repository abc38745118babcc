"""Nodes that no factor reads: steps beyond the end of a short series, data that ``obs_mask`` shows.

Masks that are tensors take statements of some elements out of a program, and leave latents behind
that nothing speaks of. Pyro's enumeration leaves such latents out of the evidence. Here a density
of its own stands in for what was masked out,

    s(x) = 1 / K   for a node of K states,        s(x) = N(x; 0, I)   in unconstrained space,

whose integral is 1: it adds nothing to log Z, and touches no other node. What a belief says of such
a node is s, and nothing of the program. A site that is ``mask(False)`` as a whole is one of a field
of factors alone, whose partition function counts the states of nodes that have no factor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    Normal,
    TransformedDistribution,
    biject_to,
)
from torch.distributions.constraints import Constraint

from pyrograph.graph.factor_graph import FactorGraph
from pyrograph.trace.sites import JACOBIAN, STANDS_IN


def unread_nodes(graph: FactorGraph) -> Tensor:
    """Nodes that no factor reads, but for log Jacobians: they are masked out, ``[n]`` ascending."""
    unread = torch.ones(graph.num_nodes, dtype=torch.bool, device=graph.device)
    for group in graph.factors:
        if not all(name.endswith(JACOBIAN) for name in group.statements):
            unread[group.scope.flatten()] = False
    return unread.nonzero()[:, 0]


def masked_out(graph: FactorGraph) -> dict[str, Tensor]:
    """Which nodes masks leave without any factor, ``{site: [*batch]}`` on the CPU, of sites that
    have some. Sites whose support depends on latents have no density that could stand in."""
    if not graph.masked:
        return {}
    unread = torch.zeros(graph.num_nodes, dtype=torch.bool, device="cpu")
    unread[unread_nodes(graph).cpu()] = True
    found = {
        name: (unread[graph.nodes_of(name)] & is_masked).reshape(graph.sites[name].batch_shape)
        for name, is_masked in graph.masked.items()
        if graph.sites[name].support is not None and name not in graph.fixed
    }
    return {name: own for name, own in found.items() if bool(own.any())}


def standing_in(model: Callable, masked: Mapping[str, Tensor]) -> Callable:
    """The program, to be read with densities that stand in for what was masked out.

    Args:
        masked: see :func:`masked_out`.
    """

    def program(*args: Any, **kwargs: Any) -> Any:
        with _Marking(masked):
            return model(*args, **kwargs)

    return program


class _Marking(Messenger):
    """Marks the nodes in which a density stands in."""

    def __init__(self, masked: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.masked = masked

    def _pyro_sample(self, msg: dict) -> None:
        if msg["name"] in self.masked:  # a dict of its own: the program may share one among sites
            msg["infer"] = {**msg["infer"], STANDS_IN: self.masked[msg["name"]]}


def stand_in(support: Constraint, like: Tensor) -> Distribution:
    """Independent standard normals in unconstrained space, for values ``[*batch, *event]``."""
    to_support = biject_to(support)
    event = support.event_dim
    shape = to_support.inverse_shape(like.shape)
    normal = Normal(like.new_zeros(shape), like.new_ones(shape))
    return TransformedDistribution(Independent(normal, event), [to_support])


def replaced_nodes(graph: FactorGraph) -> Tensor:
    """Nodes of which a density stands in, ``[n]`` ascending."""
    found = [
        graph.nodes_of(site.name).start + site.stands_in.flatten().nonzero().squeeze(1)
        for site in graph.sites.values()
        if site.stands_in is not None
    ]
    return torch.cat([torch.zeros(0, dtype=torch.int64, device="cpu"), *found])


def note_on_masked(graph: FactorGraph) -> str | None:
    """What masks do to the evidence and to beliefs; None where they take out observations alone."""
    nodes = replaced_nodes(graph).tolist()
    notes = []
    if len(nodes) == 1:
        notes.append(
            f"No factor reads node {_label(graph, nodes[0])} (masked out): the evidence leaves "
            "it out, as Pyro's enumeration does, and its belief says nothing."
        )
    elif nodes:
        notes.append(
            f"No factor reads {len(nodes)} nodes (masked out), {_label(graph, nodes[0])} the "
            "first: the evidence leaves them out, as Pyro's enumeration does, and their beliefs "
            "say nothing."
        )
    known = set(nodes)
    without_prior = [
        node
        for site, is_masked in graph.masked.items()
        if graph.sites[site].is_discrete and not bool(is_masked.all())
        for place in is_masked.nonzero().squeeze(1).tolist()
        if (node := graph.nodes_of(site).start + place) not in known
    ]
    if without_prior:
        notes.append(
            f"Discrete nodes that are masked out ({len(without_prior)}, "
            f"{_label(graph, without_prior[0])} the first) count without their prior in what other "
            "statements say of them, as in log_prob_sum(), where Pyro's enumeration would keep the "
            "prior. Mask the observations alone."
        )
    return " ".join(notes) or None


def _label(graph: FactorGraph, node: int) -> str:
    site, index = graph.nodes[node]
    return f'"{site}"{list(index) if index else ""}'
