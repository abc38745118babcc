"""Hard constraints that leave nothing: which node or factor, in words."""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor

from pyrograph.errors import ZeroMass
from pyrograph.graph import FactorGraph
from pyrograph.infer.message_passing.network.messages import Message
from pyrograph.infer.message_passing.network.network import Network
from pyrograph.infer.message_passing.nodes.families import Categorical
from pyrograph.infer.message_passing.nodes.log_values import is_zero

#: Factors named in a message.
NAMED = 4


def refuse_contradictions(
    graph: FactorGraph, network: Network, messages: list[list[Message]], beliefs: list
) -> None:
    """Raise where the messages to a node leave it no state.

    Raises:
        ZeroMass: naming the node and the factors that exclude its states.
    """
    for number, (family, belief) in enumerate(zip(network.families, beliefs, strict=True)):
        if not isinstance(family, Categorical):
            continue
        empty = are_without_states(belief)
        if bool(empty.any()):
            row = int(empty.nonzero()[0])
            site, index = graph.nodes[int(family.nodes[row])]
            culprits = _own_excluders(graph, int(family.nodes[row]))
            culprits += _excluders(graph, network, messages, number, row)
            culprits = culprits or ["its factors"]
            raise ZeroMass(
                f'node "{site}"{list(index)} has no state left: {", ".join(culprits)} together '
                "exclude them all. The program's total mass is zero; look at these constraints "
                "and at the observed values behind them."
            )


def are_without_states(belief: Tensor) -> Tensor:
    """``[V]`` which nodes have none left, of log values ``[V, c]``."""
    peak = belief.amax(1)
    return is_zero(peak) | peak.isnan()


def _own_excluders(graph: FactorGraph, node: int) -> list[str]:
    """Names of the factors of a node alone that exclude a state: they send no messages."""
    names = []
    for group in graph.factors:
        if group.arity != 1 or not bool((group.scope == node).any()):
            continue
        excludes = is_zero(group.table()).any(1) & (group.scope[:, 0] == node)
        names += [graph.factor_name(group, e) for e in excludes.nonzero().squeeze(1).tolist()]
    return names[:NAMED]


def _excluders(
    graph: FactorGraph,
    network: Network,
    messages: list[list[Message]],
    family: int,
    row: int,
) -> list[str]:
    """Names of the factors whose message to a node excludes a state."""
    names = []
    for (group, index), block, sent in zip(network.members, network.blocks, messages, strict=True):
        for port, message in enumerate(sent):
            if block.families[port] != family or not isinstance(message, Tensor):
                continue
            excludes = is_zero(message).any(1) & (block.rows[port] == row)
            # a port may hold several messages of each factor, one after the other
            each = len(message) // len(index)
            for e in excludes.nonzero().squeeze(1).tolist():
                names.append(graph.factor_name(group, int(index[e // each])))
    return names[:NAMED]


def raise_empty(graph: FactorGraph, network: Network, number: int, factor: int) -> NoReturn:
    """Raise for a factor of a block, which has no mass under its cavities.

    Raises:
        ZeroMass: naming the factor.
    """
    group, index = network.members[number]
    e = int(index[factor])
    raise ZeroMass(
        f"{graph.factor_name(group, e)} excludes every state that the rest of the model allows: "
        "the program's total mass is zero. Look at the hard constraints around it and at the "
        "observed values."
    )
