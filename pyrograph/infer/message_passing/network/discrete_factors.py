"""Factors of discrete nodes, read into blocks: tables, binary pairs, pairs that depend on a
difference of states, checks of parity, noisy or, counts.

Values are divided by the largest of each factor, whose logs the constant adds up. Factors of one
node are part of its base. Tables on one scope are one factor where alpha allows it
(:mod:`.same_scope`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from pyrograph.errors import UnsupportedFactor, ZeroMass
from pyrograph.graph import FactorGroup
from pyrograph.graph.checked import refuse_non_finite, table_of
from pyrograph.infer.message_passing.discrete.binary import RANGE, BinaryFactors
from pyrograph.infer.message_passing.discrete.count_values import count_values
from pyrograph.infer.message_passing.discrete.counts import CountFactors
from pyrograph.infer.message_passing.discrete.differences import (
    DifferenceFactors,
    difference_values,
)
from pyrograph.infer.message_passing.discrete.noisy_or import NoisyOrFactors
from pyrograph.infer.message_passing.discrete.noisy_or_values import OneProduct, product_values
from pyrograph.infer.message_passing.discrete.parity import ParityFactors, parity_values
from pyrograph.infer.message_passing.discrete.tables import MAX_ENTRIES, TableFactors
from pyrograph.infer.message_passing.network.alphas import or_limit
from pyrograph.infer.message_passing.network.network import Block
from pyrograph.infer.message_passing.network.node_families import Alpha, NodeFamilies, by_sign
from pyrograph.infer.message_passing.network.same_counts import (
    CountPart,
    beside_others,
    multiplied_counts,
)
from pyrograph.infer.message_passing.network.same_scope import Merged, Tables, multiplied
from pyrograph.infer.message_passing.nodes.families import Categorical, Odds, zeros_refused
from pyrograph.infer.message_passing.nodes.log_values import is_zero
from pyrograph.trace.distinct import row_numbers

#: Entries up to which factors that need no tables get some if others have the same nodes.
TWIN_ENTRIES = 2**24
#: What is wrong with products that are zero everywhere.
EXCLUDE = "and the other factors on its nodes exclude each other: their product is zero"


class DiscreteFactors:
    """What is read of the discrete factors, group by group.

    Attributes:
        tables: of two or more nodes.
        differences: pairs, by the difference of their states.
        checks: of parity, by group and index, with values and alpha.
        noisy: affine in one product, by group and index, with alpha.
        counts: of weighted counts.
        tried: groups that are taken for such, or for products, by their values at some states.
    """

    def __init__(self, nodes: NodeFamilies, alpha: Alpha):
        self.nodes, self.alpha = nodes, alpha
        self.tables: list[Tables] = []
        self.differences: list[Tables] = []
        self.checks: list[tuple[FactorGroup, Tensor, Tensor, Tensor]] = []
        self.noisy: list[tuple[FactorGroup, Tensor, OneProduct, Tensor]] = []
        self.counts: list[CountPart] = []
        self.tried: list[FactorGroup] = []

    # ------------------------------------------------------------------ reading
    def read(self, group: FactorGroup) -> None:
        """Read a group.

        Raises:
            NonFiniteDensity: a value is NaN or plus infinity.
            OptionError: a factor has zeros and alpha <= 0.
            UnsupportedFactor: a factor's table would be too large.
            ZeroMass: a factor is zero everywhere.
        """
        parity = parity_values(group)
        apart = difference_values(group) if parity is None else None
        if parity is not None:
            self._read_checks(group, parity)
        elif apart is not None:
            self.differences += [Tables(*part) for part in self._read_values(group, apart)]
        elif not (self._read_product(group) or self._read_counts(group)):
            self._read_table(group)

    def _read_checks(self, group: FactorGroup, parity: Tensor) -> None:
        """Read checks of parity, those on the nodes of others as counts or tables, which may be
        multiplied."""
        twins = self._have_twins(group)
        if bool(twins.any()) and self._read_counts(group):
            return
        by_table = twins & (or_limit(self.alpha(group)) == 1)
        if group.num_entries // group.num_factors * int(by_table.sum()) > TWIN_ENTRIES:
            by_table = torch.zeros_like(by_table)
        if bool(by_table.any()):
            self._read_table(group.part(by_table.nonzero().squeeze(1)))
        rest = (~by_table).nonzero().squeeze(1)
        if len(rest):
            for _, index, values, alpha in self._read_values(group.part(rest), parity[rest]):
                self.checks.append((group, rest[index], values, alpha))

    def _read_product(self, group: FactorGroup) -> bool:
        """Read factors that are affine in one product over their nodes, if the group's are and
        their alpha serves.

        Raises:
            UnsupportedFactor: alpha does not, and they are too large for tables.
        """
        found = product_values(group)
        if found is None:
            return False
        alpha, alone = or_limit(self.alpha(group)), found.is_product
        refused = ~alone & (alpha != 1)
        if bool(refused.any()):
            if group.num_entries <= MAX_ENTRIES or count_values(group) is not None:
                return False
            e = int(refused.nonzero()[0])
            raise UnsupportedFactor(
                f"{self.nodes.graph.factor_name(group, e)} is a noisy or of {group.arity} nodes, "
                f"whose power alpha={float(alpha[e]):g} (0 being its logarithm) has no sums of few "
                "terms, and its table would have "
                f"{group.num_entries // group.num_factors:,} entries. Give this statement alpha 1: "
                f'pg.BP or pg.EP, or pg.PowerEP with alpha={{"{group.name}": 1.0}} beside others.'
            )
        by_table = ~alone & self._have_twins(group, alone)
        if group.num_entries // group.num_factors * int(by_table.sum()) > TWIN_ENTRIES:
            if count_values(group) is not None:  # which may be those of the others, and multiplied
                return False
            by_table = torch.zeros_like(by_table)
        self._absorb_products(group, alone.nonzero().squeeze(1), found)
        if bool(by_table.any()):
            self._read_table(group.part(by_table.nonzero().squeeze(1)))
        rest = (~alone & ~by_table).nonzero().squeeze(1)
        if len(rest):
            ends = found.log_ends[rest]
            peak = ends.amax(1, keepdim=True)
            self.nodes.constant = self.nodes.constant + peak.sum().to(self.nodes.constant)
            weights = [w[rest] for w in found.log_weights]
            scaled = replace(found, log_ends=ends - peak, log_weights=weights)
            self.noisy.append((group, rest, scaled, alpha[rest]))
        if not found.is_proved:
            self.tried.append(group)
        return True

    def _have_twins(self, group: FactorGroup, left_out: Tensor | None = None) -> Tensor:
        """``[E]``: which factors have the nodes of another one, so that their product takes a cycle
        away.

        Args:
            left_out: ``[E]`` factors of the group that do not count.
        """
        alike = [g for g in self.nodes.graph.factors if g.arity == group.arity and g is not group]
        number = row_numbers(torch.cat([group.scope, *(g.scope for g in alike)]))
        counts = torch.ones_like(number)
        if left_out is not None:
            counts[: len(left_out)] -= left_out.long()
        total = number.new_zeros(int(number.max()) + 1).index_add(0, number, counts)
        return total[number[: group.num_factors]] > 1

    def _absorb_products(self, group: FactorGroup, index: Tensor, found: OneProduct) -> None:
        """Products of functions of single nodes are part of these nodes' bases."""
        if not len(index):
            return
        scale = found.log_ends[index, 1].sum()
        self.nodes.constant = self.nodes.constant + scale.to(self.nodes.constant)
        for slot, weight in enumerate(found.log_weights):
            self.nodes.multiply(group.scope[index, slot], weight[index, 0].to(self.nodes.like))

    def _read_counts(self, group: FactorGroup) -> bool:
        """Read factors of weighted counts, if the group's are."""
        counts = count_values(group)
        if counts is None:
            return False
        refuse_non_finite(self.nodes.graph, group, counts.log_values)
        values = self._scaled(group, counts.log_values)
        alpha = self._alpha_without_zeros(group, values)
        counts = replace(counts, log_values=values)
        every = torch.arange(group.num_factors, device=group.scope.device)
        part = CountPart(group, every, counts, alpha)
        self.counts += [part.only(index) for index in by_sign(alpha)]
        return True

    def _read_values(
        self, group: FactorGroup, values: Tensor
    ) -> Iterator[tuple[FactorGroup, Tensor, Tensor, Tensor]]:
        """Factors that need no tables."""
        values = values.to(self.nodes.like)
        refuse_non_finite(self.nodes.graph, group, values)
        values = self._scaled(group, values)
        alpha = self._alpha_without_zeros(group, values)
        for index in by_sign(alpha):
            yield group, index, values[index], alpha[index]

    def _read_table(self, group: FactorGroup) -> None:
        advice = (
            " Checks of parity need no tables, nor do products of functions of single nodes and "
            "noisy or, nor functions of a count of nodes, as z.sum(-1), nor pairs that depend on "
            "the difference of their states alone."
        )
        table = table_of(self.nodes.graph, group, MAX_ENTRIES, advice).to(self.nodes.like)
        table = self._scaled(group, table)
        if group.arity == 1:
            every = torch.arange(group.num_factors, device=group.scope.device)
            self.nodes.absorb(group, every, table)
            return
        alpha = self._alpha_without_zeros(group, table)
        for index in by_sign(alpha):
            self.tables.append(Tables(group, index, table[index], alpha[index]))

    def _scaled(self, group: FactorGroup, log_values: Tensor) -> Tensor:
        """Values ``[E, ...]`` with a largest one of 1; the scale goes to the constant."""
        every = torch.arange(group.num_factors, device=log_values.device)
        return self._of_peak_one(group, every, log_values, "is zero")

    def _of_peak_one(
        self, group: FactorGroup, index: Tensor, log_values: Tensor, what: str
    ) -> Tensor:
        flat = log_values.flatten(1)
        peak = flat.amax(1)
        if bool((peak == -torch.inf).any()):
            e = int(index[int((peak == -torch.inf).nonzero()[0])])
            raise ZeroMass(
                f"{self.nodes.graph.factor_name(group, e)} {what} whatever its nodes are: the "
                "program's total mass is zero."
            )
        self.nodes.constant = self.nodes.constant + peak.sum().to(self.nodes.constant)
        return (flat - peak.unsqueeze(1)).view(log_values.shape)

    def _alpha_without_zeros(self, group: FactorGroup, log_values: Tensor) -> Tensor:
        """Alpha of every factor, after a look at the values ``[E, ...]``."""
        has_zeros = is_zero(log_values).flatten(1).any(1)
        alpha = or_limit(self.alpha(group), has_zeros)
        refused = has_zeros & (alpha <= 0)
        if bool(refused.any()):
            e = int(refused.nonzero()[0])
            raise zeros_refused(self.nodes.graph.factor_name(group, e), float(alpha[e]))
        return alpha

    # ------------------------------------------------------------------ all of them
    def scale_bases(self) -> None:
        """Bases of nodes with a largest state of 1.

        Raises:
            ZeroMass: a node has no state that its own factors allow.
        """
        for number, family in enumerate(self.nodes.families):
            if isinstance(family, Categorical):
                self._refuse_empty(family)
                peak = family.base.amax(1)
                self.nodes.constant = self.nodes.constant + peak.sum()
                self.nodes.families[number] = replace(family, base=family.base - peak.unsqueeze(1))

    def _refuse_empty(self, family: Categorical) -> None:
        empty = is_zero(family.base.amax(1))
        if bool(empty.any()):
            node = int(family.nodes[empty][0])
            site, index = self.nodes.graph.nodes[node]
            raise ZeroMass(
                f'node "{site}"{list(index)} has no state that its own factors allow: the '
                "program's total mass is zero. Look at the supports and hard constraints on it."
            )

    def multiply(self, one_alpha: bool) -> list[Merged]:
        """Make those on one scope one factor; what is part of others then.

        Raises:
            ZeroMass: factors on one scope exclude each other.
        """
        counts = self._multiply_counts(one_alpha)
        tables, merged = multiplied([*self.tables, *self.differences], one_alpha)
        tables = [self._at_one(part) for part in tables] if merged else tables
        self.differences = [part for part in tables if part.is_difference]
        self.tables = tables[: len(tables) - len(self.differences)]
        before = len(tables) + len(self.checks) + len(self.noisy)  # blocks
        return merged + [replace(m, block=m.block + before) for m in counts]

    def _multiply_counts(self, one_alpha: bool) -> list[Merged]:
        """Those that have the nodes of others become tables, as far as these are small; the rest
        one factor for each count. What is part of others then, by the blocks of counts."""
        rest = []
        by_table = beside_others(self.counts, self.tables, one_alpha, TWIN_ENTRIES)
        for part, which in zip(self.counts, by_table, strict=True):
            if bool(which.any()):
                tables = part.only(which).tables
                table = tables.log_table.to(self.nodes.like)
                self.tables.append(replace(tables, log_table=table))
            if not bool(which.all()):
                rest.append(part.only(~which))
        self.counts, merged = multiplied_counts(rest, one_alpha)
        if merged:
            self.counts = [self._counts_at_one(part) for part in self.counts]
        return merged

    def _counts_at_one(self, part: CountPart) -> CountPart:
        values = self._of_peak_one(part.group, part.index, part.counts.log_values, EXCLUDE)
        return replace(part, counts=replace(part.counts, log_values=values))

    def _at_one(self, part: Tables) -> Tables:
        table = self._of_peak_one(part.group, part.index, part.log_table, EXCLUDE)
        return replace(part, log_table=table.to(self.nodes.like))

    def use_odds(self, others: list[tuple[FactorGroup, Tensor]]) -> None:
        """Binary nodes whose factors are positive pairs keep log odds only.

        Args:
            others: all factors that are not of discrete nodes alone.
        """
        others = [*others, *(special[:2] for special in (*self.checks, *self.noisy))]
        others += [(part.group, part.index) for part in (*self.differences, *self.counts)]
        families = self.nodes.families
        for number, family in enumerate(families):
            if not (isinstance(family, Categorical) and family.size == 2):
                continue
            positive = not bool(is_zero(family.base).any())
            mine = [
                t.alpha.abs().clamp_min(1).view(-1, *(1,) * t.group.arity) * t.log_table
                for t in self.tables
                if number in self.nodes.wiring(t.group, t.index)[1]
            ]
            pairs = all(t.shape[1:] == (2, 2) and _spread(t) < RANGE for t in mine)
            alone = all(number not in self.nodes.wiring(g, i)[1] for g, i in others)
            if positive and pairs and alone:
                base = family.base
                families[number] = Odds(family.nodes, base[:, 1] - base[:, 0], base[:, 0])

    # ------------------------------------------------------------------ blocks
    def blocks(self) -> Iterator[tuple[Block, FactorGroup, Tensor]]:
        """Blocks with the factors that they stand for; tables, by which products are numbered,
        first."""
        for part in self.tables:
            rows, families = self.nodes.wiring(part.group, part.index)
            binary = isinstance(self.nodes.families[families[0]], Odds)
            block = (
                BinaryFactors(part.log_table, part.alpha, rows, families[0])
                if binary
                else TableFactors(part.log_table, part.alpha, rows, families)
            )
            yield block, part.group, part.index
        for part in self.differences:
            wiring = self.nodes.wiring(part.group, part.index)
            block = DifferenceFactors(part.log_table, part.alpha, *wiring)
            yield block, part.group, part.index
        for group, index, values, alpha in self.checks:
            rows, families = self.nodes.wiring(group, index)
            yield ParityFactors(values, alpha, rows, families[0]), group, index
        for group, index, found, alpha in self.noisy:
            wiring = self.nodes.wiring(group, index)
            block = NoisyOrFactors(found.log_ends, found.log_weights, alpha, *wiring)
            yield block, group, index
        for part in self.counts:
            wiring = self.nodes.wiring(part.group, part.index)
            counts = part.counts
            block = CountFactors(counts.log_values, counts.weights, part.alpha, *wiring)
            yield block, part.group, part.index


def _spread(table: Tensor) -> float:
    flat = table.detach().flatten(1)
    return float((flat.amax(1) - flat.amin(1)).max()) if flat.numel() else 0.0
