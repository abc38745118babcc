"""What the Stein direction asks of a kernel, and what it hands to one.

A kernel sees a *block*: B nodes whose scopes have equally many columns. It returns, for every
node of the block and summed over ordered pairs (l, m) of the n particles,

    phi(x_m)  = (1/n) sum_l [ k(x_l, x_m) s(x_l) + d/dx_l k(x_l, x_m) ]
    total     = sum_lm u(x_l, x_m),        diagonal = sum_l u(x_l, x_l)

where u is the Stein kernel of the node's own coordinates (Theorem 2 of the paper) and s the
score. ``total / n^2`` and ``(total - diagonal) / (n (n - 1))`` are the node's share of the
squared discrepancy as V- and U-statistic.

Bandwidths are measured apart from that, so that a caller may keep them for some steps.
"""

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from pyrograph.kernels.bandwidth import Bandwidth, bandwidth


@dataclass(frozen=True)
class Block:
    """Nodes that a kernel handles at once.

    Shapes:
        scope: ``[B, c, n]`` particles on the columns of each node's scope, every column shifted
            by its mean over the particles; padding rows are zero.
        own: ``[B, w, n]`` the node's own columns, shifted alike.
        score: ``[B, w, n]`` gradient of the log density on the own columns.
        size: ``[B]`` columns of each scope, padding not counted.
    """

    scope: Tensor
    own: Tensor
    score: Tensor
    size: Tensor
    #: The terms of a sum look at the same particles: what is measured once serves all of them.
    _measured: dict[Bandwidth, Tensor] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def bandwidth(self, rule: Bandwidth) -> Tensor:
        """h of the scopes by one of the rules of :mod:`.bandwidth`, or h itself: ``[B]``."""
        if rule not in self._measured:
            self._measured[rule] = bandwidth(rule, self.scope)
        return self._measured[rule]


@dataclass(frozen=True)
class SteinSums:
    """A kernel's answer. ``direction`` ``[B, w, n]``; ``total`` and ``diagonal`` ``[B]``
    (None when no discrepancy was asked for)."""

    direction: Tensor
    total: Tensor | None
    diagonal: Tensor | None


class Kernel(Protocol):
    """Anything like this is a kernel: radial or not, shift invariant or not.

    ``num_bandwidths`` is the q of :meth:`bandwidths`, 0 for a kernel that has none.
    """

    num_bandwidths: int

    def bandwidths(self, block: Block) -> Tensor:
        """What the kernel measures on the particles, ``[B, q]``, detached."""
        ...

    def stein(self, block: Block, h: Tensor, *, discrepancy: bool = True) -> SteinSums:
        """Direction and, if asked, discrepancy of every node of ``block`` at bandwidths ``h``."""
        ...

    def pairs(self, block: Block, h: Tensor) -> Tensor:
        """Stein kernel u(x_l, x_m) of every pair, summed over the nodes: ``[n, n]``."""
        ...
