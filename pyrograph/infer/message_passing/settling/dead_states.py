"""States that hard constraints and each other keep at zero.

Around a cycle of constraints the Bethe free energy may be stationary only where some beliefs are
zero though no single message says so from the start: messages about them fall for ever, and only
their limit is a fixed point. A set S of states is such a limit when the zeros hold themselves up,

    m_{a -> i}(x) = 0  iff  in all x_a, x_i = x, f_a(x_a) > 0: n_{j -> a}(x_j) = 0 for a j != i
    n_{j -> a}(x_j) = 0  iff  some b != a has m_{b -> j}(x_j) = 0

with a zero message to every state of S. Cavities leave the factor's own message out, so that a
zero which a factor only hears back from itself does not count.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.infer.message_passing.discrete.slots import SlotFactors
from pyrograph.infer.message_passing.nodes.families import Categorical
from pyrograph.infer.message_passing.nodes.log_values import ZERO, is_zero


def that_stay_dead(
    families: list[Categorical], blocks: list[SlotFactors], candidates: list[Tensor]
) -> list[Tensor]:
    """The largest part of the candidates whose zeros hold themselves up.

    Args:
        candidates: per family ``[V, c]``; they include what is zero already.
    """
    dead = [c.clone() for c in candidates]
    zeros = [
        [dead[f][rows] for f, rows in zip(block.families, block.rows, strict=True)]
        for block in blocks
    ]
    while True:
        count = _counts(families, blocks, zeros)
        found = []
        for block, said in zip(blocks, zeros, strict=True):
            cavities = [
                torch.where(count[f][rows] - z.to(count[f]) > 0.5, ZERO, 0.0).to(block.alpha)
                for f, rows, z in zip(block.families, block.rows, said, strict=True)
            ]
            found.append(
                [
                    is_zero(total) & dead[f][rows]
                    for total, f, rows in zip(
                        block.exact_sums(cavities), block.families, block.rows, strict=True
                    )
                ]
            )
        kept = [d & (c > 0.5) for d, c in zip(dead, _counts(families, blocks, found), strict=True)]
        settled = all(bool((a == b).all()) for a, b in zip(dead, kept, strict=True)) and all(
            bool((a == b).all())
            for old, new in zip(zeros, found, strict=True)
            for a, b in zip(old, new, strict=True)
        )
        dead, zeros = kept, found
        if settled:
            return dead


def _counts(
    families: list[Categorical], blocks: list[SlotFactors], zeros: list[list[Tensor]]
) -> list[Tensor]:
    """How many of a node's factors, its own included, exclude each state: ``[V, c]``."""
    count = [is_zero(family.base).to(family.base) for family in families]
    for block, said in zip(blocks, zeros, strict=True):
        for f, rows, z in zip(block.families, block.rows, said, strict=True):
            count[f] = count[f].index_add(0, rows, z.to(count[f]))
    return count
