"""A convergent way to the fixed points of belief propagation, fractional or not.

The (fractional) Bethe free energy, with c_a = 1 / alpha_a and c_i = 1 - sum_a c_a,

    F(b) = sum_a ( E log f_a + c_a H(b_a) ) + sum_i ( E log base_i + c_i H(b_i) )

is to be made stationary over beliefs that agree on their marginals. Where c_i < 0 the entropy of a
node is convex; replaced by its tangent at the beliefs as they stand it leaves a concave problem
below F, so that every outer step raises F and the beliefs settle. The concave problem is solved
node by node, with r_{a -> i} = sum_{x \\ i} f_a^alpha prod_{j != i} n_j and c_i^+ = max(c_i, 0),

    b_i ~ ( base_i b_i_old^(c_i^+ - c_i) prod_a r_{a -> i}^c_a )^(1 / (c_i^+ + sum_a c_a))
    n_{i -> a} = b_i / r_{a -> i}

for all nodes of one colour of the Markov graph at once. A fixed point of both loops is one of
message passing, m_{a -> i} = r_{a -> i}^(1 / alpha). The outer loop may crawl near its end; now and
then Newton's method takes the rest of the way (:mod:`.newton`).

Source: Yuille (2002); Heskes (2006), "Convexity arguments for efficient minimization of the Bethe
and Kikuchi free energies".
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.graph import FactorGraph
from pyrograph.infer.message_passing.discrete.binary import BinaryFactors
from pyrograph.infer.message_passing.discrete.slots import SlotFactors
from pyrograph.infer.message_passing.discrete.states import (
    as_slots,
    as_states,
    by_slot,
    family_of_states,
    in_form_of,
    normalised,
)
from pyrograph.infer.message_passing.network.network import Network, beliefs_of
from pyrograph.infer.message_passing.nodes.log_values import add_rows, rows_of, without
from pyrograph.infer.message_passing.settling.newton import fixed_point
from pyrograph.infer.message_passing.sweeps.turns import (
    Turn,
    Turns,
    colour_of_nodes,
    owned,
    written,
)

#: Sweeps of the inner loop for one step of the outer one.
INNER_SWEEPS = 5
#: Newton's method is tried after so many outer steps, then after twice as many, and so on.
FIRST_TRY = 20
#: Share of the tolerance that it must reach.
NEWTON_SHARE = 0.1


def is_discrete(network: Network) -> bool:
    """Whether the double loop applies: sums over states alone, every alpha above 0."""
    return all(
        isinstance(block, BinaryFactors | SlotFactors) and bool((block.alpha > 0).all())
        for block in network.blocks
    )


class DoubleLoop:
    """Beliefs and node-to-factor messages of a discrete network.

    Args:
        network: over the graph, see :func:`is_discrete`.
    """

    def __init__(self, graph: FactorGraph, network: Network):
        self.network = network
        self.families = [family_of_states(family) for family in network.families]
        self.blocks = [as_slots(block) for block in network.blocks]
        self._turns = Turns(colour_of_nodes(graph, network), self.families, self.blocks)
        self.sent = [block.start(self.families) for block in self.blocks]  # n, log values
        weight = [family.base.new_zeros(len(family.base)) for family in self.families]
        for block in self.blocks:
            for family, rows in zip(block.families, block.rows, strict=True):
                weight[family] = weight[family].index_add(0, rows, block.alpha.reciprocal())
        self.weight = weight  # sum_a c_a
        self.beliefs = [family.base.log_softmax(1) for family in self.families]
        self._num_done = 0

    def start_from(self, messages: list[list[Tensor]], beliefs: list[Tensor]) -> None:
        """Go on from messages of the plain iteration: n = q / m^alpha."""
        states = [as_states(belief) for belief in beliefs]
        self.beliefs = [state.log_softmax(1) for state in states]
        for number, (block, message) in enumerate(zip(self.blocks, messages, strict=True)):
            self.sent[number] = block.cavities(by_slot(message), states)

    def step(self, tol: float) -> list[list[Tensor]]:
        """One step of the outer loop; the messages m it has come to, in the network's form.

        Args:
            tol: change of a log message that a fixed point may have left.
        """
        tangent = self.beliefs
        # the updates write into them, and a step may be undone
        self.beliefs = [owned(q) for q in tangent]
        self.sent = [[owned(n) for n in sent] for sent in self.sent]
        for _ in range(INNER_SWEEPS):
            for turn in self._turns.of(self.blocks):
                self._update(turn, tangent)
        messages = [
            [normalised(r / table.alpha.unsqueeze(1)) for r in self._sums(number)]
            for number, table in enumerate(self.blocks)
        ]
        self._num_done += 1
        tries = self._num_done // FIRST_TRY
        if tries * FIRST_TRY == self._num_done and tries & (tries - 1) == 0:
            found = fixed_point(self.families, self.blocks, messages, NEWTON_SHARE * tol)
            if found is not None:
                messages = [[normalised(m) for m in sent] for sent in found]
                self.start_from(messages, beliefs_of(self.families, self.blocks, messages))
        return [
            in_form_of(block, sent)
            for block, sent in zip(self.network.blocks, messages, strict=True)
        ]

    def _sums(self, number: int) -> list[Tensor]:
        return [normalised(r) for r in self.blocks[number].bounded_sums(self.sent[number])]

    def _update(self, turn: Turn, tangent: list[Tensor]) -> None:
        """Beliefs of the nodes of a colour, and what they send."""
        total = []
        for family, weight, old, nodes in zip(
            self.families, self.weight, tangent, turn.nodes, strict=True
        ):
            bent = (weight[nodes] - 1).clamp_min(0).unsqueeze(1)  # c+ - c, c = 1 - weight
            own = torch.where(bent > 0, bent * rows_of(old, nodes), 0.0)
            total.append(rows_of(family.base, nodes) + own)
        received = []
        for sender in turn.senders:
            block = sender.block
            sums = block.bounded_sums(sender.read(self.sent[sender.number]))
            received.append(sender.sent([normalised(r) for r in sums]))
            for k, r in zip(sender.slots, received[-1], strict=True):
                port, family = sender.ports[k], block.families[k]
                part = r / block.alpha[port.sent].unsqueeze(1)
                total[family] = add_rows(total[family], port.places, part)
        for number, nodes in enumerate(turn.nodes):
            weight = self.weight[number][nodes]
            power = weight + (1 - weight).clamp_min(0)
            new = (total[number] / power.unsqueeze(1)).log_softmax(1)
            self.beliefs[number] = written(self.beliefs[number], nodes, new)
        for sender, sums in zip(turn.senders, received, strict=True):
            own = self.sent[sender.number]
            for k, r in zip(sender.slots, sums, strict=True):
                port, family = sender.ports[k], sender.block.families[k]
                new = normalised(without(rows_of(self.beliefs[family], port.nodes), r))
                own[k] = written(own[k], port.rows, new)

    def carried(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        kept = {f"belief.{k}": b.clone() for k, b in enumerate(self.beliefs)}
        kept["num_done"] = torch.tensor(self._num_done, device="cpu")
        for b, block in enumerate(self.sent):
            kept |= {f"sent.{b}.{s}": n.clone() for s, n in enumerate(block)}
        return kept

    def restore(self, state: dict[str, Tensor]) -> None:
        self._num_done = int(state["num_done"])
        self.beliefs = [state[f"belief.{k}"].to(b) for k, b in enumerate(self.beliefs)]
        self.sent = [
            [state[f"sent.{b}.{s}"].to(n) for s, n in enumerate(block)]
            for b, block in enumerate(self.sent)
        ]
