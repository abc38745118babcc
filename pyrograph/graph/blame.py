"""Which factor breaks, by name: the first non-finite log density or gradient, or one that torch
cannot differentiate; sums by statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyrograph.errors import UnsupportedFactor
from pyrograph.graph.spaces import as_tensors, leaf_buffers

if TYPE_CHECKING:
    from pyrograph.graph.factor_graph import FactorGraph
    from pyrograph.graph.factor_group import FactorGroup


def first_non_finite(graph: FactorGraph, x: Tensor) -> str | None:
    """``log density of factor "r"[12] (scope x[3], x[7]) is nan at particle 4``, or None.

    Args:
        x: particles ``[n, dim]``.
    """
    for group in graph.factors:
        log_prob, grads = differentiated(graph, group, x)
        sums = [g.reshape(*log_prob.shape, -1).sum(-1) for g in grads if g is not None]
        for what, q in [("log density", log_prob), *(("gradient", g) for g in sums)]:
            bad = (~q.isfinite()).nonzero()
            if len(bad):
                particle, e = bad[0].tolist()
                value, name = q[particle, e].item(), graph.factor_name(group, e)
                return f"{what} of {name} is {value} at particle {particle}"
    return None


def differentiated(
    graph: FactorGraph, group: FactorGroup, x: Tensor
) -> tuple[Tensor, list[Tensor | None]]:
    """Log densities ``[n, E]`` of a group's factors at particles, and their gradients
    ``[n, E, *event]`` slot by slot; None in those that they do not depend on."""
    values = [v.detach() for v in graph.local_values(group, x)]
    wanted = [v.requires_grad_() for v in values if v.is_floating_point()]
    with torch.enable_grad():
        log_prob = group.log_prob(values)
        if not log_prob.requires_grad:
            return log_prob, [None] * len(values)
        grads = iter(torch.autograd.grad(log_prob.sum(), wanted, allow_unused=True))
    return log_prob, [next(grads) if v.is_floating_point() else None for v in values]


@contextmanager
def naming_underivable(graph: FactorGraph) -> Iterator[None]:
    """Names the factor where torch says of an operation that it has no derivative.

    Raises:
        UnsupportedFactor: there is one.
    """
    try:
        yield
    except RuntimeError as error:
        name = _underivable(graph) if tells_of_no_derivative(error) else None
        if name is None:
            raise
        said = str(error).rstrip(".")
        raise UnsupportedFactor(
            f"{name} has no derivative for torch, which says: {said}. Write it with operations "
            "that have one (a step by torch.where), or take an engine that integrates by points, "
            "pg.EP."
        ) from error


def _underivable(graph: FactorGraph) -> str | None:
    """The first factor whose gradient torch refuses."""
    point = graph.constant.detach().new_zeros(1, graph.dim)
    for group in graph.factors:
        try:
            differentiated(graph, group, point)
        except RuntimeError as error:
            if tells_of_no_derivative(error):
                return graph.factor_name(group, 0)
    return None


def tells_of_no_derivative(error: RuntimeError) -> bool:
    """Whether torch refuses to differentiate an operation."""
    return "derivative for" in str(error) and "not implemented" in str(error)


def statement_sums(
    graph: FactorGraph, values: Mapping[str, Tensor], of_sizes: bool = False
) -> Tensor:
    """Log densities of the statements, in order: all elements at once, then sums.

    Args:
        values: one tensor per free site, ``[*batch, *event]`` in the graph's space.
        of_sizes: of the absolute values of the elements.
    """
    taken = torch.abs if of_sizes else torch.positive
    statements = graph._reading.statements
    known = [taken(s.values[s.ids == 0].double()).sum() for s in statements]
    sums = torch.stack(known) if known else torch.zeros(0, dtype=torch.float64, device="cpu")
    if any(bool((s.ids != 0).any()) for s in statements):
        buffers, _ = leaf_buffers(
            graph.free_sites, as_tensors(graph.free_sites, values, graph.device)
        )
        elements = graph._density_program()(buffers)[:, 0].double().cpu()
        sizes = torch.tensor([int((s.ids != 0).sum()) for s in statements], device="cpu")
        owner = torch.arange(len(statements), device="cpu").repeat_interleave(sizes)
        sums = sums.index_add(0, owner, taken(elements))
    return sums
