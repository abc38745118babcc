"""Messages of factors that depend on a weighted count of their nodes alone, without tables.

    f(x) = g(t),     t = sum_i n_i(x_i),     n_i whole numbers from 0 on,     0 <= t <= C

as a binomial or Poisson density whose number or rate is a count, and "at least m of k". With the
normalised cavities p_i, in any order of the nodes,

    before_{i + 1}(t) = sum_x p_i(x) before_i(t - n_i(x)),    before_1(t) = [t = 0]
    after_i(t) = sum_x p_i(x) after_{i + 1}(t + n_i(x)),      after_{k + 1}(t) = g(t)^alpha
    m_{a -> i}(x)^alpha ~ sum_t before_i(t) after_{i + 1}(t + n_i(x))

the first of which is the distribution of the count of the nodes before i, Poisson-binomial where
they have weights 0 and 1. Messages to all nodes of c states take O(k c C) and not O(c^k). No term
is negative: no digits are lost, and where terms fall below the smallest number sums are of logs. A
power of f is a function of the count too. At alpha = 0 the exponent is the limit, log m_{a -> i}(x)
= E log g(n_i(x) + sum_{j != i} n_j(x_j)) under the beliefs: the same sums with log g in the place
of g^alpha.

Source: Gail, Lubin & Rubinstein (1981), the recursion; Tarlow, Swersky, Zemel, Adams & Frey (2012),
"Fast exact inference for recursive cardinality models".
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyrograph.infer.message_passing.discrete.count_trees import sums_by_tree
from pyrograph.infer.message_passing.discrete.without_tables import WithoutTables
from pyrograph.infer.message_passing.nodes.log_values import (
    ZERO,
    bounded,
    finite_peak,
    is_zero,
    log_sum,
)

#: Sums of plain numbers below this may have lost terms: those of numbers above 1e-308, fewer than
#: 1e8 of them, are right to a relative error of 1e-20.
LOST = 1e-280

#: Fewest nodes for sums by a tree over them, and largest count for each of them.
TREE, DENSE = 12, 4


class CountFactors(WithoutTables):
    """Factors of ``k`` discrete nodes that depend on a weighted count; messages ``[E n, c]`` by
    family, of its n slots. They are computed in double precision.

    Args:
        log_values: ``[E, C + 1]`` log g.
        weights: of each slot, ``[E, c]`` whole numbers n_i.
        alpha: ``[E]``, all of them 0 or none.
        rows: of each slot, ``[E]`` rows of its family.
        families: index of each slot's family.
    """

    kind = "count"

    def __init__(
        self,
        log_values: Tensor,
        weights: list[Tensor],
        alpha: Tensor,
        rows: list[Tensor],
        families: list[int],
    ):
        super().__init__(alpha, rows, families)
        self.log_values, self._weights = log_values, weights
        self.is_mean_field = bool((alpha == 0).all())
        self.has_zeros = bool(is_zero(log_values).any())
        self._set_moves()

    def _set_moves(self) -> None:
        """``[k, 2, E, c, C + 1]``: the count before a node's state is added to t, and after, nodes
        in order of ports for the one, in reverse for the other; C + 1 where there is none."""
        size = self.log_values.shape[1]
        self._states = max(w.shape[1] for w in self._weights)
        ordered = [self._weights[k] for own in self._slots for k in own]
        self._weight = torch.stack([_padded(w, self._states, 0) for w in ordered])
        self._has_tree = len(ordered) >= TREE and size <= DENSE * len(ordered)
        weight = self._weight.unsqueeze(3)
        count = torch.arange(size, device=weight.device)
        before, after = count - weight, count + weight.flip(0)
        before = torch.where(before < 0, size, before)
        self._moves = torch.stack([before, after.clamp_max(size)], 1)

    def part(self, which: Tensor) -> CountFactors:
        """Some of the factors, ``which [e]`` ascending."""
        return CountFactors(
            self.log_values[which],
            [w[which] for w in self._weights],
            self.alpha[which],
            [r[which] for r in self._rows],
            self._families,
        )

    def _nodes(self, by_port: list[Tensor]) -> Tensor:
        """Normalised log values, ``[k, E, c]``."""
        found = []
        for value in by_port:
            log_p = value.double().log_softmax(1).view(self.num_factors, -1, value.shape[1])
            found.append(_padded(log_p.transpose(0, 1), self._states, ZERO))
        return torch.cat(found)

    def _ports(self, nodes: Tensor, like: list[Tensor]) -> list[Tensor]:
        parts = nodes.split([len(own) for own in self._slots])
        return [
            part[..., : value.shape[1]].transpose(0, 1).reshape(value.shape).to(value)
            for part, value in zip(parts, like, strict=True)
        ]

    # ------------------------------------------------------------------ sums over counts
    @property
    def _ends(self) -> Tensor:
        """``[E, C + 1]`` log g^alpha; of mean field log g."""
        values = self.log_values.double()
        return values if self.is_mean_field else self.alpha.double().unsqueeze(1) * values

    def _towards_nodes(self, log_nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Logs of sums over all other nodes, ``[k, E, c]``, and over all, ``[E]``, of normalised
        ``[k, E, c]``. Sums are of plain numbers, but where terms may have been lost, or for
        derivatives."""
        ends = self._ends
        if torch.is_grad_enabled() and (ends.requires_grad or log_nodes.requires_grad):
            return self._sums(log_nodes, ends, log_sum_of_products)
        peak = ends.amax(1, keepdim=True)
        found, total = self._plain_sums(log_nodes.exp(), (ends - peak).exp())
        lost = (torch.minimum(found.amin((0, 2)), total) < LOST).nonzero().squeeze(1)
        found, total = found.log() + peak, total.log() + peak.squeeze(1)
        if len(lost):
            part = self.part(lost)
            again, mass = part._sums(log_nodes[:, lost], part._ends, log_sum_of_products)
            found[:, lost], total[lost] = again, mass
        return found, total

    def _plain_sums(self, nodes: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`_sums` of plain numbers, by the way of fewer steps."""
        if not self._has_tree:
            return self._sums(nodes, ends, sum_of_products)
        weights = self._weight.transpose(0, 1)
        found, total = sums_by_tree(nodes.transpose(0, 1), weights, ends)
        return found.transpose(0, 1), total

    def _sums(self, nodes: Tensor, ends: Tensor, joined: Callable) -> tuple[Tensor, Tensor]:
        """The equations above in plain numbers or logs: ``[k, E, c]`` for every node of ``[k, E,
        c]``, from values ``[E, C + 1]`` after the last, and ``[E]`` over all nodes."""
        none, one = (ZERO, 0.0) if joined is log_sum_of_products else (0.0, 1.0)
        size = ends.shape[1]
        start = torch.full_like(ends, none)
        start[:, 0] = one
        state = _padded(torch.stack([start, ends]), size + 1, none)  # nothing at C + 1
        pairs = torch.stack([nodes, nodes.flip(0)], 1).unsqueeze(4)  # [k, 2, E, c, 1]
        states = []
        for node, move in zip(pairs, self._moves, strict=True):
            states.append(state)
            state = _padded(joined(_moved(state, move), node, 2), size + 1, none)
        before, after = torch.stack(states, 1)
        there = _moved(after, self._moves[:, 1])
        found = joined(there, before.flip(0)[..., :-1].unsqueeze(2), 3)
        return found.flip(0), state[1, :, 0]

    def update(self, messages: list[Tensor], beliefs: list) -> tuple[list[Tensor], Tensor | None]:
        """New messages, normalised to a largest value of one, and ``[E]`` which factors have no
        mass; None where none has zeros."""
        if self.is_mean_field:
            probs = self._nodes(self._own(beliefs)).exp()
            said, _ = self._plain_sums(probs, self._ends)
            return [v - v.amax(1, keepdim=True) for v in self._ports(said, messages)], None
        cavities, out = self._cavities(messages, beliefs), []
        sums, mass = self._towards_nodes(self._nodes(cavities))
        ports = self._ports(sums, messages)
        for sent, cavity, slots in zip(ports, cavities, self._slots, strict=True):
            sent = bounded(sent, cavity) if self.has_zeros else sent
            alpha = self.alpha.repeat_interleave(len(slots)).unsqueeze(1)
            out.append((sent - finite_peak(sent)) / alpha)
        return out, is_zero(mass) | mass.isnan() if self.has_zeros else None

    def log_ratio(self, messages: list[Tensor], beliefs: list) -> Tensor:
        """``[E]``: (1 / alpha) log E_q (f / prod_j m_j)^alpha, and its limit at alpha = 0."""
        own = self._own(beliefs)
        if self.is_mean_field:
            _, total = self._plain_sums(self._nodes(own).exp(), self._ends)
            for q, message in zip(own, messages, strict=True):
                said = (q.softmax(1) * message).sum(1)
                total = total - said.view(self.num_factors, -1).sum(1)
            return total.to(self.alpha)
        cavities = self._cavities(messages, beliefs)
        _, mass = self._towards_nodes(self._nodes(cavities))
        mass = mass + self._gap(cavities, beliefs)
        return mass.to(self.alpha) / self.alpha


def sum_of_products(value: Tensor, other: Tensor, dim: int) -> Tensor:
    """Of plain numbers."""
    return (value * other).sum(dim)


def log_sum_of_products(value: Tensor, other: Tensor, dim: int) -> Tensor:
    """Of logs."""
    return log_sum(value + other, dim)


def _padded(value: Tensor, size: int, fill: float) -> Tensor:
    """With a last axis of this size."""
    return torch.nn.functional.pad(value, (0, size - value.shape[-1]), value=fill)


def _moved(value: Tensor, index: Tensor) -> Tensor:
    """``[..., c, C + 1]`` at counts, of ``[..., C + 2]``."""
    wide = value.unsqueeze(-2).expand(*index.shape[:-1], value.shape[-1])
    return wide.gather(-1, index)
