"""From a factor graph to families of nodes and blocks of like factors.

Factors of one node that the node's family represents exactly (tables of a discrete node,
quadratic log densities of a continuous one) go into the family's base. All others become blocks:
binary pairs, tables, pairs that depend on a difference, quadratic factors, factors integrated by
quadrature. Where alpha is 1, or one of each scope, tables on one scope are one factor, and so are
quadratic ones, those on part of it included (:mod:`.same_scope`), and recurrences
(:mod:`.shared_work`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from pyrograph.beliefs import Conjugate, Gaussian
from pyrograph.errors import UnsupportedFactor, ZeroMass
from pyrograph.graph import FactorGraph, FactorGroup
from pyrograph.graph.checked import refuse_non_finite, table_of
from pyrograph.graph.kinds import by_kind
from pyrograph.infer.message_passing.advice import without_grids
from pyrograph.infer.message_passing.alphas import or_limit
from pyrograph.infer.message_passing.binary import RANGE, BinaryFactors
from pyrograph.infer.message_passing.conditional import quadratic_coordinates
from pyrograph.infer.message_passing.conjugate_sites import FAMILIES, kinds_of_sites, member
from pyrograph.infer.message_passing.differences import DifferenceFactors, difference_values
from pyrograph.infer.message_passing.families import Categorical, Continuous, Odds, zeros_refused
from pyrograph.infer.message_passing.log_values import is_zero, states_apart
from pyrograph.infer.message_passing.network import Block, Family, Network
from pyrograph.infer.message_passing.parity import ParityFactors, parity_values
from pyrograph.infer.message_passing.quadratic import QuadraticFactors
from pyrograph.infer.message_passing.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.reduction import LocalDensity
from pyrograph.infer.message_passing.same_scope import (
    Locals,
    Merged,
    Product,
    Tables,
    multiplied,
    multiplied_gaussians,
)
from pyrograph.infer.message_passing.shared_work import multiplied_where_shared
from pyrograph.infer.message_passing.tables import MAX_ENTRIES, TableFactors
from pyrograph.infer.message_passing.tilted import POINTS
from pyrograph.trace.distinct import row_numbers

Alpha = Callable[[FactorGroup], Tensor]


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
        family: ``"gamma"`` or ``"beta"`` by site, where no Gaussian is wanted.
        one_alpha: whether factors on one scope have the same alpha, which is their product's.

    Raises:
        NonFiniteDensity: a factor is NaN or plus infinity.
        OptionError: a factor has zeros and alpha <= 0.
        UnsupportedFactor: a factor depends on too many continuous coordinates.
        ZeroMass: a node has no state that its own factors allow.
    """
    kinds = kinds_of_sites(graph, family)
    return _Builder(graph, alpha, num_points, kinds, one_alpha).network()


class _Builder:
    def __init__(
        self,
        graph: FactorGraph,
        alpha: Alpha,
        num_points: int | None,
        kind_of_site: Mapping[str, str],
        one_alpha: bool,
    ):
        self.graph, self.alpha, self.num_points = graph, alpha, num_points
        self.one_alpha = one_alpha
        self.like = graph.constant.detach().new_zeros(0)
        self.constant = graph.constant
        self.absorbed: list[tuple[FactorGroup, Tensor]] = []
        found, self.family, self.row = by_kind(
            graph,
            lambda s: (kind_of_site[s.name], s.cardinality if s.is_discrete else s.width),
        )
        self.families: list[Family] = []
        for (kind, size), nodes in found.items():
            if kind == "discrete":
                base = states_apart(self.like.new_zeros(len(nodes), size))
                self.families.append(Categorical(nodes, base))
            else:
                batch = (len(nodes),)
                base = (
                    Gaussian.flat(batch, size, self.like)
                    if kind == "normal"
                    else FAMILIES[kind].flat(batch, self.like)
                )
                self.families.append(Continuous(nodes, base))

    def network(self) -> Network:
        tables: list[Tables] = []
        checks, differences = [], []
        locals_: list[Locals] = []
        for group in self.graph.factors:
            parity = parity_values(group) if group.is_discrete else None
            is_pair = group.is_discrete and parity is None
            apart = difference_values(group) if is_pair else None
            if parity is not None:
                self._read_values(group, parity.to(self.like), checks)
            elif apart is not None:
                self._read_values(group, apart.to(self.like), differences)
            elif group.is_discrete:
                self._read_table(group, tables)
            else:
                self._read_local(group, locals_)
        for number, family in enumerate(self.families):
            if isinstance(family, Categorical):
                self._refuse_empty(family)
                peak = family.base.amax(1)
                self.constant = self.constant + peak.sum()
                self.families[number] = replace(family, base=family.base - peak.unsqueeze(1))
        tables += [Tables(*part) for part in differences]
        tables, merged = multiplied(tables, self.one_alpha)
        tables = [self._at_one(part) for part in tables] if merged else tables
        locals_, products = multiplied_gaussians(locals_, self._is_gaussian, self.one_alpha)
        locals_, alike = multiplied_where_shared(
            self.graph, locals_, self._needs_no_points, self.one_alpha
        )
        differences = [part for part in tables if part.is_difference]
        tables = tables[: len(tables) - len(differences)]
        without_pairs = [(group, index) for group, index, _, _ in checks]
        every = [*differences, *locals_, *(own.whole for own in alike)]
        without_pairs += [(part.group, part.index) for part in every]
        self._use_odds(tables, without_pairs)
        blocks, members = [], []
        for part in tables:
            rows, families = self._wiring(part.group, part.index)
            binary = isinstance(self.families[families[0]], Odds)
            block = (
                BinaryFactors(part.log_table, part.alpha, rows, families[0])
                if binary
                else TableFactors(part.log_table, part.alpha, rows, families)
            )
            blocks.append(block)
            members.append((part.group, part.index))
        for part in differences:
            wiring = self._wiring(part.group, part.index)
            blocks.append(DifferenceFactors(part.log_table, part.alpha, *wiring))
            members.append((part.group, part.index))
        for group, index, values, alpha in checks:
            rows, families = self._wiring(group, index)
            blocks.append(ParityFactors(values, alpha, rows, families[0]))
            members.append((group, index))
        for part in itertools.chain.from_iterable(map(self._by_numbers_read, locals_)):
            blocks.append(self._local_block(part))
            members.append((part.group, part.index))
        for own in alike:
            part = own.whole
            merged.append(Merged(part.group, own.others, len(blocks), own.row))
            blocks.append(self._local_block(part))
            members.append((part.group, part.index))
        for product in products:
            merged += [
                Merged(part.factors.group, part.factors.index, len(blocks), part.row, part.columns)
                for part in product.parts[1:]
            ]
            blocks.append(self._product_block(product))
            members.append((product.group, product.index))
        return Network(
            self.families,
            blocks,
            members,
            merged,
            self.absorbed,
            self.row,
            self.family,
            self.constant,
        )

    # ------------------------------------------------------------------ discrete
    def _read_values(self, group: FactorGroup, values: Tensor, out: list) -> None:
        """Factors that need no tables: checks of parity, functions of a difference.

        Raises:
            NonFiniteDensity: a value is NaN or plus infinity.
        """
        refuse_non_finite(self.graph, group, values)
        values = self._scaled(group, values)
        alpha = self._alpha_without_zeros(group, values)
        for index in _by_sign(alpha):
            out.append((group, index, values[index], alpha[index]))

    def _read_table(self, group: FactorGroup, tables: list[Tables]) -> None:
        advice = (
            " Checks of parity need no tables, nor do pairs that depend on the difference of their "
            "states alone."
        )
        table = self._scaled(group, table_of(self.graph, group, MAX_ENTRIES, advice).to(self.like))
        if group.arity == 1:
            number = int(self.family[group.scope[0, 0]])
            family, rows = self.families[number], self.row[group.scope[:, 0]]
            self.families[number] = family.absorb(rows, table)
            self.absorbed.append((group, torch.arange(group.num_factors, device=rows.device)))
            return
        alpha = self._alpha_without_zeros(group, table)
        for index in _by_sign(alpha):
            tables.append(Tables(group, index, table[index], alpha[index]))

    def _scaled(self, group: FactorGroup, log_values: Tensor) -> Tensor:
        """Values ``[E, ...]`` with a largest one of 1; the scale goes to the constant.

        Raises:
            ZeroMass: a factor is zero everywhere.
        """
        every = torch.arange(group.num_factors, device=log_values.device)
        return self._of_peak_one(group, every, log_values, "is zero")

    def _at_one(self, part: Tables) -> Tables:
        """The same for products of factors on one scope."""
        what = "and the other factors on its nodes exclude each other: their product is zero"
        table = self._of_peak_one(part.group, part.index, part.log_table, what)
        return replace(part, log_table=table.to(self.like))

    def _of_peak_one(
        self, group: FactorGroup, index: Tensor, log_values: Tensor, what: str
    ) -> Tensor:
        flat = log_values.flatten(1)
        peak = flat.amax(1)
        if bool((peak == -torch.inf).any()):
            e = int(index[int((peak == -torch.inf).nonzero()[0])])
            raise ZeroMass(
                f"{self.graph.factor_name(group, e)} {what} whatever its nodes are: the program's "
                "total mass is zero."
            )
        self.constant = self.constant + peak.sum().to(self.constant)
        return (flat - peak.unsqueeze(1)).view(log_values.shape)

    def _alpha_without_zeros(self, group: FactorGroup, log_values: Tensor) -> Tensor:
        """Alpha of every factor, after a look at the values ``[E, ...]``."""
        has_zeros = is_zero(log_values).flatten(1).any(1)
        alpha = or_limit(self.alpha(group), has_zeros)
        refused = has_zeros & (alpha <= 0)
        if bool(refused.any()):
            e = int(refused.nonzero()[0])
            raise zeros_refused(self.graph.factor_name(group, e), float(alpha[e]))
        return alpha

    def _refuse_empty(self, family: Categorical) -> None:
        empty = is_zero(family.base.amax(1))
        if bool(empty.any()):
            node = int(family.nodes[empty][0])
            site, index = self.graph.nodes[node]
            raise ZeroMass(
                f'node "{site}"{list(index)} has no state that its own factors allow: the '
                "program's total mass is zero. Look at the supports and hard constraints on it."
            )

    def _use_odds(self, tables: list[Tables], others: list[tuple[FactorGroup, Tensor]]) -> None:
        """Binary nodes whose factors are positive pairs keep log odds only."""
        for number, family in enumerate(self.families):
            if not (isinstance(family, Categorical) and family.size == 2):
                continue
            positive = not bool(is_zero(family.base).any())
            mine = [
                t.alpha.abs().clamp_min(1).view(-1, *(1,) * t.group.arity) * t.log_table
                for t in tables
                if number in self._wiring(t.group, t.index)[1]
            ]
            pairs = all(t.shape[1:] == (2, 2) and _spread(t) < RANGE for t in mine)
            alone = all(number not in self._wiring(g, i)[1] for g, i in others)
            if positive and pairs and alone:
                base = family.base
                odds = base[:, 1] - base[:, 0]
                self.families[number] = Odds(family.nodes, odds, base[:, 0])

    def _wiring(self, group: FactorGroup, index: Tensor) -> tuple[list[Tensor], list[int]]:
        """Rows ``[E]`` and family of every slot."""
        columns = group.scope[index].unbind(1)
        return [self.row[c] for c in columns], [int(self.family[c[0]]) for c in columns]

    # ------------------------------------------------------------------ continuous
    def _read_local(self, group: FactorGroup, locals_: list[Locals]) -> None:
        alpha = or_limit(self.alpha(group))
        for index in self._by_family(group, _by_sign(alpha)):
            local = LocalDensity(group, index, self.like, self._names(group, index))
            if self._conjugates(group, index):
                self._read_conjugate(Locals(group, index, local, alpha[index]), locals_)
                continue
            quadratic = local.quadratic
            if group.arity == 1 and quadratic is not None:
                self.absorbed.append((group, index))
                number = int(self.family[group.scope[0, 0]])
                self.families[number] = self.families[number].absorb(
                    self.row[group.scope[index, 0]],
                    quadratic,
                    local.at_node,
                    local.bases[0],
                )
            else:
                locals_.append(Locals(group, index, local, alpha[index]))

    def _by_family(self, group: FactorGroup, parts: list[Tensor]) -> list[Tensor]:
        """The parts, split so that a slot's nodes are of one family."""
        which = self.family[group.scope]
        if bool((which == which[:1]).all()):
            return parts
        labels = row_numbers(which)
        return [part[labels[part] == k] for part in parts for k in labels[part].unique()]

    def _conjugates(self, group: FactorGroup, index: Tensor) -> bool:
        """Whether a node in these scopes has a gamma or beta belief."""
        bases = [self.families[f].base for f in self._wiring(group, index)[1]]
        return any(isinstance(base, Conjugate) for base in bases)

    def _read_conjugate(self, part: Locals, locals_: list[Locals]) -> None:
        group, index, local = part.group, part.index, part.local
        number = int(self.family[group.scope[index[0], 0]])
        found = None
        if group.arity == 1:
            found = member(local, type(self.families[number].base))
        if found is None:
            locals_.append(part)
            return
        self.absorbed.append((group, index))
        self.families[number] = self.families[number].absorb(
            self.row[group.scope[index, 0]], found, local.at_node
        )

    def _names(self, group: FactorGroup, index: Tensor) -> Callable[[int], str]:
        return lambda e: self.graph.factor_name(group, int(index[e]))

    def _is_gaussian(self, part: Locals) -> bool:
        """Whether these factors are integrated without quadrature."""
        return part.local.quadratic is not None and not self._conjugates(part.group, part.index)

    def _needs_no_points(self, part: Locals) -> bool:
        """Whether these are integrated in closed form, or beliefs are no Gaussians."""
        return self._is_gaussian(part) or self._conjugates(part.group, part.index)

    def _product_block(self, product: Product) -> QuadraticFactors:
        function = product.function()
        rows, families = self._wiring(product.group, product.index)
        return QuadraticFactors(
            function,
            product.log_density,
            product.parts[0].factors.alpha,
            rows,
            families,
            [None] * len(rows),
            product.widths,
        )

    def _by_numbers_read(self, part: Locals) -> list[Locals]:
        """Factors that read fewer combinations apart from those that read more, where that saves
        half the points: of an ordered outcome each level reads others."""
        if self._needs_no_points(part) or sum(part.local.widths) == 1:
            return [part]
        count = part.local.num_read
        groups = {r: (count == r).nonzero().squeeze(1) for r in count.unique().tolist()}
        points = {r: POINTS.get(r, POINTS[max(POINTS)]) ** r for r in groups}
        apart = sum(points[r] * len(which) for r, which in groups.items())
        if 2 * apart > max(points.values()) * len(count):
            return [part]
        return [part.only(which) for which in groups.values()]

    def _local_block(self, part: Locals) -> Block:
        group, index, local, alpha = part.group, part.index, part.local, part.alpha
        rows, families = self._wiring(group, index)
        has_conjugates = self._conjugates(group, index)
        if self._is_gaussian(part):
            return QuadraticFactors(
                local.quadratic,
                local.at_scope,
                alpha,
                rows,
                families,
                local.bases,
                local.widths,
            )
        bases = [self.families[f].base for f in families]
        local.reduce_jointly(
            [type(bases[k]) if isinstance(bases[k], Conjugate) else None for k in local.continuous]
        )
        is_above = not has_conjugates and bool((alpha > 0).all())
        inner = quadratic_coordinates(local) if is_above else []
        if local.dim - len(inner) not in POINTS:
            given = [] if has_conjugates or is_above else quadratic_coordinates(local)
            above = (
                f"It is quadratic in {len(given)} of them given the others, which an alpha above 0 "
                "makes use of: take pg.EP. Or: "
                if given and local.dim - len(given) in POINTS
                else ""
            )
            raise UnsupportedFactor(
                f"{self.graph.factor_name(group, int(index[0]))} depends on {local.dim} continuous "
                f"coordinates jointly, and is not quadratic: a quadrature grid serves up to "
                f"{max(POINTS)}. {above}{without_grids(self.graph, group)}"
            )
        return QuadratureFactors(local, alpha, rows, families, self.num_points, inner)


def _spread(table: Tensor) -> float:
    flat = table.detach().flatten(1)
    return float((flat.amax(1) - flat.amin(1)).max()) if flat.numel() else 0.0


def _by_sign(alpha: Tensor) -> list[Tensor]:
    """Factors with alpha = 0 and the others: their updates differ."""
    zero = alpha == 0
    parts = [zero.nonzero().squeeze(1), (~zero).nonzero().squeeze(1)]
    return [part for part in parts if len(part)]
