"""Conjugate factors on one scope, multiplied into one in closed form.

    prod_i exp(c_di + sum_j s_dij' T_j)  =  exp(sum_i c_di + sum_j (sum_i s_dij)' T_j)

in every state d of their labels, at alpha = 1, for the cycles that they would close otherwise
(:mod:`.on_one_grid`): several counts of one label, whose rates are not known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from pyrograph.infer.message_passing.continuous.conjugate_terms import Terms
from pyrograph.infer.message_passing.network.on_one_grid import on_shared_scopes
from pyrograph.infer.message_passing.network.product_density import (
    Like,
    apart_from,
    num_multiplied,
)
from pyrograph.infer.message_passing.network.same_scope import Locals
from pyrograph.infer.message_passing.nodes.log_values import is_zero


@dataclass(frozen=True)
class ConjugateProduct:
    """Products of conjugate factors.

    Attributes:
        whole: their first factors.
        first, others: what they are made of.
        terms: of the products.
    """

    whole: Locals
    first: Like
    others: list[Like]
    terms: Terms


def multiplied_conjugates(
    parts: list[Locals],
    terms_of: Callable[[Locals], Terms | None],
    are_held: Callable[[Locals, Tensor], bool],
) -> tuple[list[Locals], list[ConjugateProduct]]:
    """Factors that stay as they are, and products.

    Args:
        terms_of: what factors are whose nodes all have beliefs of conjugate families; None of
            others.
        are_held: as for :func:`.on_one_grid.multiplied_on_one_grid`.
    """
    among = [part for part in parts if part.group.arity > 1 and part.local.is_whole]
    products = []
    for members in on_shared_scopes(among):
        first, others = members.likes(among)
        found = _product(first, others, terms_of)
        if found is not None and are_held(found.whole, num_multiplied(first, others)):
            products.append(found)
    return apart_from(products, parts), products


def _product(
    first: Like, others: list[Like], terms_of: Callable[[Locals], Terms | None]
) -> ConjugateProduct | None:
    """None where factors are not conjugate, are about other nodes each, or leave no state: apart
    they say which statement does."""
    terms = terms_of(first.part)
    if terms is None:
        return None
    log_scale = terms.log_scale[:, first.which]
    chosen = [replace(c, which=c.which[:, first.which]) for c in terms.chosen]
    natural = [said.natural[:, first.which] for said in terms.said]
    for like in others:
        own = terms_of(like.part)
        if own is None or len(own.chosen) != len(chosen):
            return None
        for n, (mine, theirs) in enumerate(zip(chosen, own.chosen, strict=True)):
            is_same = mine.slots == theirs.slots
            if not is_same or bool((mine.which[:, like.row] != theirs.which[:, like.which]).any()):
                return None
            natural[n] = natural[n].index_add(1, like.row, own.said[n].natural[:, like.which])
        log_scale = log_scale.index_add(1, like.row, own.log_scale[:, like.which])
    if bool(is_zero(log_scale).all(0).any()):
        return None
    said = [type(own)(value) for own, value in zip(terms.said, natural, strict=True)]
    part = first.part
    local = part.local.part(first.which)
    whole = Locals(part.group, first.index, local, part.alpha[first.which])
    return ConjugateProduct(whole, first, others, Terms(log_scale, chosen, said))
