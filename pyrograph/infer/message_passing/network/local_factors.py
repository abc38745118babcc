"""Factors with continuous nodes, read into blocks: quadratic ones, and those integrated by
quadrature.

Factors of one node that its family represents exactly are part of its base. Those that are
conjugate to their nodes send messages in closed form (:mod:`.conjugate_factors`). Quadratic
factors on one scope, those on part of it included, are one factor where alpha allows it
(:mod:`.same_scope`), and so are others that a grid serves together (:mod:`.on_one_grid`), conjugate
ones (:mod:`.conjugate_products`) and recurrences (:mod:`.shared_work`).

Sums of terms of fewer numbers are divided into these (:mod:`.terms`) where no grid serves them
whole, and where that saves points: at alpha = 0, which changes nothing else, and on one node where
terms share none of its numbers. One whose terms do is projected as a whole at other alphas, which
says more, unless its grid is large: with 30 observations of 3 coefficients and Student noise EP is
0.002 off in the evidence by terms, and as a whole has all digits of dense quadrature. So are those
of several nodes, of which terms would close cycles; but where they meet in nothing but a label, and
grids in all of its states are large, they are apart: of rows of a mixture of vectors, whose
evidence changes by hundredths, a sweep takes a second for minutes. Two labels may say nothing of
each other alone and all together, as the parity of both: messages of terms would lose that.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from pyrograph.beliefs import Conjugate, LogDirichlet
from pyrograph.errors import UnsupportedFactor
from pyrograph.graph import FactorGroup
from pyrograph.infer.message_passing.continuous.conjugate_factors import ConjugateFactors
from pyrograph.infer.message_passing.continuous.conjugate_terms import Terms, conjugate_terms
from pyrograph.infer.message_passing.continuous.mean_field import rule_without_error
from pyrograph.infer.message_passing.continuous.quadratic import QuadraticFactors
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.network.alphas import or_limit
from pyrograph.infer.message_passing.network.conjugate_products import (
    ConjugateProduct,
    multiplied_conjugates,
)
from pyrograph.infer.message_passing.network.forms import Forms
from pyrograph.infer.message_passing.network.grid_sizes import numbers_in_states, numbers_read
from pyrograph.infer.message_passing.network.network import Block
from pyrograph.infer.message_passing.network.node_families import Alpha, NodeFamilies, by_sign
from pyrograph.infer.message_passing.network.on_one_grid import multiplied_on_one_grid
from pyrograph.infer.message_passing.network.product_density import Multiplied
from pyrograph.infer.message_passing.network.same_scope import (
    Locals,
    Merged,
    Product,
    multiplied_gaussians,
)
from pyrograph.infer.message_passing.network.shared_work import multiplied_where_shared
from pyrograph.infer.message_passing.network.slow_grids import warn_of_slow_grids
from pyrograph.infer.message_passing.network.terms import Divided, divided
from pyrograph.infer.message_passing.nodes.log_values import is_zero
from pyrograph.infer.message_passing.quadrature.tilted import POINTS
from pyrograph.trace.distinct import row_numbers

#: Numbers of a grid from which on terms that share some are apart.
MUCH = 2**20
#: Numbers of the grids of all labels' states from which on terms that share no others are apart.
LARGE = 2**18


class LocalFactors:
    """What is read of factors with continuous nodes, group by group.

    Attributes:
        parts: like factors.
        conjugates: products of conjugate factors.
        alike: products of others, on one grid.
        products: of quadratic factors.
    """

    def __init__(self, nodes: NodeFamilies, alpha: Alpha, num_points: int | None):
        self.nodes, self.alpha, self.num_points = nodes, alpha, num_points
        self.parts: list[Locals] = []
        self.conjugates: list[ConjugateProduct] = []
        self.alike: list[Multiplied] = []
        self.products: list[Product] = []
        self.forms = Forms(nodes, num_points)
        self._terms_of: dict[LocalDensity, Terms | None] = {}

    # ------------------------------------------------------------------ reading
    def read(self, group: FactorGroup) -> None:
        """Read a group."""
        alpha = or_limit(self.alpha(group))
        for index in self._by_family(group, by_sign(alpha)):
            families = self.nodes.kinds(group, index)
            is_whole = all(issubclass(family, Conjugate) for family in families)
            if LogDirichlet in families and not is_whole:
                raise self._not_conjugate(group, int(index[0]))
            local = LocalDensity(group, index, self.nodes.like, self.nodes.graph, is_whole)
            part = Locals(group, index, local, alpha[index])
            if group.arity > 1 or not self._is_absorbed(part):
                self.parts.append(part)

    def _by_family(self, group: FactorGroup, parts: list[Tensor]) -> list[Tensor]:
        """The parts, split so that a slot's nodes are of one family."""
        which = self.nodes.family[group.scope]
        if bool((which == which[:1]).all()):
            return parts
        labels = row_numbers(which)
        return [part[labels[part] == k] for part in parts for k in labels[part].unique()]

    def _is_absorbed(self, part: Locals) -> bool:
        """Whether factors of one node are of its family, and part of its base now."""
        (base,), local = self.nodes.bases(part.group, part.index), part.local
        if isinstance(base, Conjugate):
            terms = conjugate_terms(local.in_double(), [type(base)])
            if terms is not None and bool(is_zero(terms.log_scale).any()):
                terms = None  # zeros everywhere are told of where factors are put on grids
            said = None if terms is None else terms.said[0][0], local.at_node
            if terms is None and type(base) is LogDirichlet:
                raise self._not_conjugate(part.group, int(part.index[0]))
        else:
            said = local.quadratic, local.at_node, local.bases[0]
        if said[0] is not None:
            self.nodes.absorb(part.group, part.index, *said)
        return said[0] is not None

    # ------------------------------------------------------------------ all of them
    def multiply(self, one_alpha: bool) -> None:
        """Make those on one scope one factor."""
        parts, self.products = multiplied_gaussians(self.parts, self._is_gaussian, one_alpha)
        scopes = [part.group.scope[part.index].flatten() for part in self.parts]
        count = torch.cat([self.nodes.row[:0], *scopes]).bincount(minlength=len(self.nodes.row))
        held = partial(self.nodes.are_held, count)
        parts, self.conjugates = multiplied_conjugates(parts, self._conjugate_terms, held)
        among = [part for part in parts if not self._has_dirichlet(part)]
        parts, self.alike = multiplied_on_one_grid(self.nodes.graph, parts, among, self._dims, held)
        parts, recurrent = multiplied_where_shared(
            self.nodes.graph, parts, self._needs_no_points, one_alpha
        )
        self.alike += recurrent
        parts = [own for part in parts for own in self._in_terms(part)]
        self.parts = [own for part in parts for own in self._by_numbers_read(part)]

    def scopes(self) -> list[tuple[FactorGroup, Tensor]]:
        """Factors that are no products of quadratic ones, by group."""
        every = [*self.parts, *(own.whole for own in [*self.alike, *self.conjugates])]
        return [(part.group, part.index) for part in every]

    def _has_dirichlet(self, part: Locals) -> bool:
        """Whether a node in these scopes has a Dirichlet belief."""
        return LogDirichlet in self.nodes.kinds(part.group, part.index)

    def _conjugate_terms(self, part: Locals) -> Terms | None:
        """What factors are whose nodes all have beliefs of conjugate families, if that is that."""
        if part.local not in self._terms_of:
            kinds = self.nodes.kinds(part.group, part.index)
            self._terms_of[part.local] = conjugate_terms(part.local.in_double(), kinds)
        return self._terms_of[part.local]

    def _is_gaussian(self, part: Locals) -> bool:
        """Whether these factors are integrated without quadrature."""
        return not self.forms.conjugates(part) and part.local.quadratic is not None

    def _needs_no_points(self, part: Locals) -> bool:
        """Whether these are integrated in closed form, or beliefs are no Gaussians."""
        return self.forms.conjugates(part) or self._is_gaussian(part)

    def _not_conjugate(self, group: FactorGroup, e: int) -> UnsupportedFactor:
        """What is wrong with a factor of Dirichlet nodes."""
        bases = self.nodes.bases(group, group.scope.new_tensor([e]))
        both = zip(group.slots, bases, strict=True)
        (name, *_) = (site.name for site, base in both if type(base) is LogDirichlet)
        return UnsupportedFactor(
            f'{self.nodes.graph.factor_name(group, e)} is not conjugate to "{name}", whose family '
            'is "dirichlet": given its discrete nodes it should be a product of powers of its '
            "probabilities, not 0 and changed by no other continuous site, as Categorical, "
            "Multinomial and Dirichlet statements of known numbers are. Leave the site its "
            'Gaussian belief (family "normal"), or use pg.QBethe.'
        )

    # ------------------------------------------------------------------ blocks
    def merged(self, first: int) -> list[Merged]:
        """Factors that are part of others, whose blocks are numbered from ``first`` on."""
        first += len(self.parts)
        multiplied = [*self.alike, *self.conjugates]
        found = [
            Merged(like.group, like.index, block, like.row)
            for block, own in enumerate(multiplied, first)
            for like in own.others
        ]
        for block, product in enumerate(self.products, first + len(multiplied)):
            found += [
                Merged(part.factors.group, part.factors.index, block, part.row, part.columns)
                for part in product.parts[1:]
            ]
        return found

    def blocks(self) -> Iterator[tuple[Block, FactorGroup, Tensor]]:
        """Blocks with the factors that they stand for.

        Raises:
            UnsupportedFactor: one depends on too many continuous coordinates.
        """
        for part in [*self.parts, *(own.whole for own in self.alike)]:
            yield self._block(part), part.group, part.index
        for product in self.conjugates:
            whole = product.whole
            rows, families = self.nodes.wiring(whole.group, whole.index)
            block = ConjugateFactors(whole.local, whole.alpha, rows, families, product.terms)
            yield block, whole.group, whole.index
        for product in self.products:
            yield self._product_block(product), product.group, product.index

    def _product_block(self, product: Product) -> QuadraticFactors:
        function = product.function()
        rows, families = self.nodes.wiring(product.group, product.index)
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
        if self._needs_no_points(part) or sum(part.local.widths) == 1 or self._dims(part)[1] == 0:
            return [part]
        count = part.local.num_read
        groups = {r: (count == r).nonzero().squeeze(1) for r in count.unique().tolist()}
        points = {r: POINTS.get(r, POINTS[max(POINTS)]) ** r for r in groups}
        apart = sum(points[r] * len(which) for r, which in groups.items())
        if 2 * apart > max(points.values()) * len(count):
            return [part]
        return [part.only(which) for which in groups.values()]

    def _dims(self, part: Locals) -> tuple[int, int]:
        """Of how many numbers factors are functions, and of how many their grids are; none where
        there are no grids."""
        is_conjugate = part.local.is_whole and self._conjugate_terms(part) is not None
        if is_conjugate or self._is_gaussian(part):
            return 0, 0
        _, inner = self.forms.closed(part)
        return part.local.dim, part.local.dim - len(inner)

    # ------------------------------------------------------------------ terms
    def _in_terms(self, part: Locals) -> list[Locals]:
        """Factors, or what is left of their terms, without what is part of bases now."""
        found = self._divided(part)
        if found is None:
            return [part]
        self.nodes.divide(part.group, part.index, found.constant)
        terms = self._terms(part, found)
        return [own for own in terms if own.group.arity > 1 or not self._is_absorbed(own)]

    def _divided(self, part: Locals) -> Divided | None:
        """What factors are sums of, where that serves."""
        local, alpha = part.local, part.alpha
        is_plain = self._needs_no_points(part) or sum(local.widths) == 1
        if is_plain or local.is_whole or self._has_dirichlet(part):
            return None
        closed, inner = self.forms.closed(part)
        is_wide, is_mean_field = self.forms.is_too_wide(part, inner), bool((alpha == 0).all())
        gridded = local.dim - len(inner)
        is_large = len(local.discrete) == 1 and numbers_in_states(local, gridded) > LARGE
        if closed is not None or (inner and not (is_wide or is_large)):
            return None
        if is_mean_field and not is_wide and rule_without_error(local) is not None:
            return None
        found = divided(self.nodes.graph, part.group, part.index, local.like)
        if found is None or is_wide or (is_large and found.is_apart):
            return found
        if inner:
            return None
        is_alike = part.group.arity == 1 and (found.is_apart or numbers_read(part.local) > MUCH)
        if not (is_mean_field or is_alike):
            return None
        terms = [own for term in self._terms(part, found) for own in self._by_numbers_read(term)]
        return (
            found if sum(numbers_read(own.local) for own in terms) <= numbers_read(local) else None
        )

    def _terms(self, part: Locals, found: Divided) -> list[Locals]:
        terms = []
        for group in found.groups:
            row = group.numbers.row.to(part.index.device)
            alpha = part.alpha[torch.searchsorted(part.index, row)]
            every = torch.arange(len(row), device=row.device)
            local = LocalDensity(group, every, self.nodes.like, self.nodes.graph)
            terms.append(Locals(group, every, local, alpha))
        return terms

    # ------------------------------------------------------------------ one block
    def _block(self, part: Locals) -> Block:
        group, index, local, alpha = part.group, part.index, part.local, part.alpha
        rows, families = self.nodes.wiring(group, index)
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
        terms = self._conjugate_terms(part) if local.is_whole and group.arity > 1 else None
        if terms is not None:
            return ConjugateFactors(local, alpha, rows, families, terms)
        if self._has_dirichlet(part):
            raise self._not_conjugate(group, int(index[0]))
        closed, inner = self.forms.closed(part)
        if closed is None:
            self.forms.refuse_too_wide(part, inner)
            warn_of_slow_grids(self.nodes, part, local.dim - len(inner))
        return QuadratureFactors(local, alpha, rows, families, self.num_points, inner, closed)

    def refuse_wide_nodes(self, group: FactorGroup) -> None:
        """Refuse factors of one node each by their first one, before long work on others starts.

        Raises:
            UnsupportedFactor: they depend on more coordinates than any grid serves.
        """
        if group.arity > 1 or group.slots[0].is_discrete or group.slots[0].width <= max(POINTS):
            return
        alpha, first = or_limit(self.alpha(group)), self.nodes.like.new_zeros(1).long()
        if issubclass(self.nodes.kinds(group, first)[0], Conjugate):
            return
        local = LocalDensity(group, first, self.nodes.like, self.nodes.graph)
        part = Locals(group, first, local, alpha[first])
        if self._is_gaussian(part) or self.forms.closed(part)[0] is not None:
            return
        found = self._divided(part)
        for own in [part] if found is None else self._terms(part, found):
            if not self._is_gaussian(own):
                own.local.reduce_jointly()
                self.forms.refuse_too_wide(own, [])
