"""Conjugate factors on one scope, multiplied into one in closed form.

    prod_i exp(c_di + sum_j s_dij' T_j)  =  exp(sum_i c_di + sum_j (sum_i s_dij)' T_j)

in every state d of their labels, at alpha = 1, for the cycles that they would close otherwise
(:mod:`.on_one_grid`): several counts of one label, whose rates are not known; all counts before and
after a change, each of which reads one rate or the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyrograph.infer.message_passing.continuous.conjugate_terms import Terms
from pyrograph.infer.message_passing.densities.chosen import Chosen
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
    are_held: Callable[[Locals, Tensor, Tensor], bool],
) -> tuple[list[Locals], list[ConjugateProduct]]:
    """Factors that stay as they are, and products.

    Args:
        terms_of: what factors are whose nodes all have beliefs of conjugate families; None of
            others.
        are_held: as for :func:`.on_one_grid.multiplied_on_one_grid`, given too which nodes products
            read in which states.
    """
    among = [part for part in parts if part.group.arity > 1 and part.local.is_whole]
    products = []
    for members in on_shared_scopes(among):
        first, others = members.likes(among)
        found = _product(first, others, terms_of)
        if found is None:
            continue
        if are_held(found.whole, num_multiplied(first, others), _reached(first, others)):
            products.append(found)
    return apart_from(products, parts), products


def _product(
    first: Like, others: list[Like], terms_of: Callable[[Locals], Terms | None]
) -> ConjugateProduct | None:
    """None where factors are not conjugate or leave no state: apart they say which statement
    does."""
    found = [terms_of(like.part) for like in (first, *others)]
    if any(terms is None for terms in found):
        return None
    terms = [_only(own, like.which) for own, like in zip(found, (first, *others), strict=True)]
    rows = [like.row for like in others]
    if not all(
        _is_about_same(terms[0], own, row) for own, row in zip(terms[1:], rows, strict=True)
    ):
        terms = [_by_slot(own, len(first.part.local.continuous)) for own in terms]
    whole, *parts = terms
    log_scale, natural = whole.log_scale, [said.natural for said in whole.said]
    for own, row in zip(parts, rows, strict=True):
        log_scale = log_scale.index_add(1, row, own.log_scale)
        natural = [n.index_add(1, row, s.natural) for n, s in zip(natural, own.said, strict=True)]
    if bool(is_zero(log_scale).all(0).any()):
        return None
    said = [type(own)(value) for own, value in zip(whole.said, natural, strict=True)]
    part = first.part
    local = part.local.part(first.which)
    product = Locals(part.group, first.index, local, part.alpha[first.which])
    return ConjugateProduct(product, first, others, Terms(log_scale, whole.chosen, said))


def _reached(first: Like, others: list[Like]) -> Tensor:
    """``[D, U, number of continuous slots]``: whether a factor of a product reads a node in a
    state: of two priors, one for each state of a label, each reads it in one."""
    count = first.part.local.nodes_reached[:, first.which].long()
    for like in others:
        count = count.index_add(1, like.row, like.part.local.nodes_reached[:, like.which].long())
    return count > 0


def _only(terms: Terms, which: Tensor) -> Terms:
    """Those of some of the factors, ``which [F]``."""
    chosen = [replace(each, which=each.which[:, which]) for each in terms.chosen]
    return Terms(terms.log_scale[:, which], chosen, [said[:, which] for said in terms.said])


def _is_about_same(whole: Terms, own: Terms, row: Tensor) -> bool:
    """Whether factors' terms are about the nodes that those of the products ``row [F]`` are."""
    if [each.slots for each in own.chosen] != [each.slots for each in whole.chosen]:
        return False
    pairs = zip(whole.chosen, own.chosen, strict=True)
    return all(bool((a.which[:, row] == b.which).all()) for a, b in pairs)


def _by_slot(terms: Terms, count: int) -> Terms:
    """The same with a term for each of ``count`` slots, which says nothing in states that do not
    read its node: of counts before and after a change one reads one rate, one the other."""
    chosen, said = [], []
    for slot in range(count):
        own = [
            (each.is_slot(slot)[..., None], about)
            for each, about in zip(terms.chosen, terms.said, strict=True)
            if slot in each.slots
        ]
        family = type(own[0][1])
        natural = sum(torch.where(here, about.natural, 0.0) for here, about in own)
        said.append(family(natural))
        chosen.append(Chosen(slot, [slot], torch.zeros_like(terms.chosen[0].which)))
    return Terms(terms.log_scale, chosen, said)
