"""Messages into nodes of one colour, one colour after the other.

No message into a node depends on the belief of another one of its colour (:mod:`.read_together`),
so that all of them may be sent at once: only these nodes' factors are looked at, and a sweep over
all colours costs what all messages do, however many colours there are. But for factors integrated
on grids at alpha other than 0: their grids move together, and all are looked at for every colour
that reads one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.beliefs import Natural
from pyrograph.graph import FactorGraph
from pyrograph.graph.colouring import colour
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.network.messages import Message
from pyrograph.infer.message_passing.network.network import Block, Family, Network
from pyrograph.infer.message_passing.nodes.basis import part_of
from pyrograph.infer.message_passing.nodes.log_values import rows_of
from pyrograph.infer.message_passing.sweeps.read_together import that_depend

#: Share of a block's factors from which on all of them are looked at: it saves cutting them out.
MOST = 0.5


def colour_of_nodes(graph: FactorGraph, network: Network) -> Tensor:
    """``[V]``: no messages into nodes of one colour depend on each other's beliefs."""
    pointer, index = that_depend(graph, network)
    return colour(pointer.cpu(), index.cpu()).to(graph.device)


@dataclass(frozen=True)
class Port:
    """Messages that a turn sends from a port of a block.

    Shapes:
        read: ``[M]`` rows of the messages of the factors that are looked at, None for all.
        sent: ``[m]`` which of these are sent; rows: ``[m]`` where they stand among all messages.
        nodes: ``[m]`` rows of their nodes in the family, places: among those of the colour.
    """

    read: Tensor | None
    sent: Tensor
    rows: Tensor
    nodes: Tensor
    places: Tensor


@dataclass(frozen=True)
class Sender:
    """Factors of a block that send messages in a turn.

    Attributes:
        number: of the block; block: the factors that are looked at.
        factors: ``[e]`` which ones of the whole block, None for all.
        ports: of the block; slots: which of them send some.
    """

    number: int
    block: Block
    factors: Tensor | None
    ports: list[Port]
    slots: list[int]

    def read(self, messages: list[Message]) -> list[Message]:
        """Those of the factors that are looked at."""
        pairs = zip(messages, self.ports, strict=True)
        return [m if port.read is None else taken(m, port.read) for m, port in pairs]

    def with_flags(self, flags: Tensor, flagged: Tensor) -> Tensor:
        """``[E]`` flags of all factors, and those of the ones that are looked at."""
        if self.factors is None:
            return flags | flagged
        return flags.index_copy(0, self.factors, flags[self.factors] | flagged)

    def sent(self, messages: list[Message]) -> list[Message]:
        """Of these, what is sent, by slot."""
        return [taken(messages[k], self.ports[k].sent) for k in self.slots]


@dataclass(frozen=True)
class Turn:
    """Messages into nodes of one colour.

    Attributes:
        senders: of the blocks that send some; nodes: of each family, rows of these nodes.
    """

    families: Sequence[Family]
    senders: list[Sender]
    nodes: list[Tensor]

    def held(self, beliefs: list) -> list:
        """Of these nodes."""
        return [taken(q, rows) for q, rows in zip(beliefs, self.nodes, strict=True)]

    def beliefs_of(self, sent: list[list[Message]]) -> list:
        """Of these nodes, under messages by sender and slot."""
        incoming: list[list[tuple]] = [[] for _ in self.nodes]
        for sender, messages in zip(self.senders, sent, strict=True):
            block = sender.block
            for k, message in zip(sender.slots, messages, strict=True):
                port = sender.ports[k]
                part = (port.places, message)
                if isinstance(message, Natural):
                    part = (*part, part_of(block.bases[k], port.sent))
                incoming[block.families[k]].append(part)
        both = zip(self.families, incoming, self.nodes, strict=True)
        return [family.beliefs(parts, rows) for family, parts, rows in both]


class Turns:
    """The colours in turn.

    Args:
        colours: ``[V]`` of the graph's nodes; families, blocks: over the graph.
    """

    def __init__(self, colours: Tensor, families: Sequence[Family], blocks: Sequence[Block]):
        self.count, self._families = int(colours.max()) + 1, families
        self._colours = [colours[family.nodes] for family in families]
        self._nodes, self._places = [], []
        for own in self._colours:
            nodes = _by_number(own, self.count)
            place = torch.empty_like(own)
            for rows in nodes:
                place[rows] = torch.arange(len(rows), device=rows.device)
            self._nodes.append(nodes)
            self._places.append(place)
        #: By block, the messages of every factor in each port, ``[E, n]``; and the factors that
        #: each turn looks at, None for all.
        self._messages: list[list[Tensor]] = []
        self._factors: list[list[Tensor | None]] = []
        for block in blocks:
            self._messages.append([_by_sender(port, block.num_factors) for port in block.senders])
            self._factors.append(self._looked_at(block))
        self._ports: dict[tuple[int, int], list[Port]] = {}
        #: Programs of factors take long to cut out; tables and the like do not, and are large.
        self._parts: dict[tuple[int, int], QuadratureFactors] = {}

    def _looked_at(self, block: Block) -> list[Tensor | None]:
        colours = [self._colours[f][r] for f, r in zip(block.families, block.rows, strict=True)]
        senders, count = torch.cat(block.senders), block.num_factors
        pairs = (torch.cat(colours) * count + senders).unique()
        factors = _by_number(torch.div(pairs, count, rounding_mode="floor"), self.count)
        has_grids = isinstance(block, QuadratureFactors) and not block.is_mean_field
        found = [(pairs % count)[which] for which in factors]
        return [
            None if len(which) > MOST * count or (has_grids and len(which)) else which
            for which in found
        ]

    def of(self, blocks: Sequence[Block]) -> Iterator[Turn]:
        """Over the blocks, or copies of them."""
        for turn in range(self.count):
            senders = [self._sender(block, number, turn) for number, block in enumerate(blocks)]
            nodes = [of_family[turn] for of_family in self._nodes]
            yield Turn(self._families, [s for s in senders if s is not None], nodes)

    def _sender(self, block: Block, number: int, turn: int) -> Sender | None:
        factors, key = self._factors[number][turn], (number, turn)
        if factors is not None and not len(factors):
            return None
        if key not in self._ports:
            self._ports[key] = [
                self._port(family, rows, of_factor, turn, factors)
                for family, rows, of_factor in zip(
                    block.families, block.rows, self._messages[number], strict=True
                )
            ]
        part = block if factors is None else self._part(block, factors, key)
        ports = self._ports[key]
        slots = [k for k, port in enumerate(ports) if len(port.sent)]
        return Sender(number, part, factors, ports, slots)

    def _port(
        self, family: int, rows: Tensor, of_factor: Tensor, turn: int, factors: Tensor | None
    ) -> Port:
        read = None if factors is None else of_factor[factors].flatten().sort().values
        nodes = rows if read is None else rows[read]
        sent = (self._colours[family][nodes] == turn).nonzero().squeeze(1)
        nodes = nodes[sent]
        where = sent if read is None else read[sent]
        return Port(read, sent, where, nodes, self._places[family][nodes])

    def _part(self, block: Block, factors: Tensor, key: tuple[int, int]) -> Block:
        if key in self._parts:
            return self._parts[key]
        found = block.part(factors)
        if isinstance(block, QuadratureFactors):
            self._parts[key] = found
        return found


def _by_number(numbers: Tensor, count: int) -> list[Tensor]:
    """Positions of every number below ``count``, ascending."""
    order = numbers.argsort(stable=True)
    return list(order.split(numbers.bincount(minlength=count).tolist()))


def _by_sender(senders: Tensor, count: int) -> Tensor:
    """``[E, n]``: messages of every factor, each of which sends as many."""
    return senders.argsort(stable=True).view(count, -1)


# ---------------------------------------------------------------------- messages and beliefs
def owned(value: Message) -> Message:
    """A copy, into which may be written."""
    return value.mapped(Tensor.clone) if isinstance(value, Natural) else value.clone()


def taken(value: Message, rows: Tensor) -> Message:
    """Some rows of messages or beliefs."""
    return value[rows] if isinstance(value, Natural) or value.dim() == 1 else rows_of(value, rows)


def written(value: Message, rows: Tensor, new: Message) -> Message:
    """Messages or beliefs with some rows written over, in place."""
    if not isinstance(value, Natural):
        return value.index_copy_(0, rows, new)
    # a new object: moments of the old one are not those of what it holds now
    return value.mapped(lambda all_of_them, some: all_of_them.index_copy_(0, rows, some), new)
