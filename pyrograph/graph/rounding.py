"""What the precision of a program leaves unknown of its log density.

A program computes what depends on data alone before any latent enters, in its own precision. Of
constants c that are added to the log density, such as the -log y! of a Poisson density, what was
rounded off is lost, in whatever precision one goes on:

    error = sqrt( sum_c (w_c c eps_c / 2)^2 ),      w_c = d log p / d c, the same at any x

Constants with other weights at other x, as y in (y - x)^2, are data, and are what they are.
Cost: one pass over the graph and back, at two points.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyrograph.graph.programs import shared_program
from pyrograph.trace.localize import LocalProgram
from pyrograph.trace.source import Read

if TYPE_CHECKING:
    from pyrograph.graph.factor_graph import FactorGraph

#: Weights that are the same but for rounding.
SAME = 1e-9


def rounding_of_constants(graph: FactorGraph) -> float:
    """The error above, in nats; 0 of programs in double precision."""
    if graph.lowest_precision is torch.float64:
        return 0.0
    return _rounding(graph, graph._factors.element_ids)


def most_rounded(graph: FactorGraph) -> str:
    """The statement that most of it is of."""
    statements = graph._reading.statements
    own = [_rounding(graph, s.ids[s.ids != 0]) for s in statements]
    return statements[max(range(len(own)), key=own.__getitem__)].name


def _rounding(graph: FactorGraph, ids: Tensor) -> float:
    """Of the sum of these numbers on the graph's tape."""
    sizes = [s.num_nodes * s.width for s in graph.free_sites]
    if not len(ids) or not sizes:
        return 0.0
    recorded = shared_program(graph._reading.tape, ids, graph._value_dtype(), sizes)
    units = [[_unit(read) for read in line.reads] for line in recorded.lines]
    program = recorded.in_dtype(torch.float64)
    one, other = (_weights(program, units, x) for x in _two_points(graph))
    return math.hypot(
        *(_of_added(c, unit, w, v) for (c, unit, w), (_, _, v) in zip(one, other, strict=True))
    )


@torch.enable_grad()
def _weights(
    program: LocalProgram, units: list[list[float]], point: list[Tensor]
) -> list[tuple[Tensor, float, Tensor]]:
    """Constants that may be off, by which share, and the derivatives of the sum by them, at numbers
    ``[n, 1]`` of every site."""
    buffers = dict(enumerate(point))
    held: list[tuple[Tensor, float]] = []
    for line, own in zip(program.lines, units, strict=True):
        reads = []
        for read, unit in zip(line.reads, own, strict=True):
            constant = read.constant
            if unit:
                constant = constant.detach().clone().requires_grad_()
                held.append((constant, unit))
            rows = [gather.rows(buffers[gather.buffer]) for gather in read.gathers]
            reads.append(_assembled(read, constant, rows))
        out = line.rule.replay(line.rule.func, line.rule.static, reads)
        buffers[line.buffer] = line.settle(out)
        for buffer in line.free:
            del buffers[buffer]
    total = sum(gather.rows(buffers[gather.buffer]).sum() for gather in program.output.gathers)
    if not held or not total.requires_grad:
        return []
    found = torch.autograd.grad(total, [c for c, _ in held], materialize_grads=True)
    return [(c, unit, weight) for (c, unit), weight in zip(held, found, strict=True)]


def _unit(read: Read) -> float:
    """By which share a constant that is read may be off."""
    constant = read.constant
    if constant is None or not constant.is_floating_point() or constant.dtype is torch.float64:
        return 0.0
    return torch.finfo(constant.dtype).eps / 2


def _two_points(graph: FactorGraph) -> tuple[list[Tensor], list[Tensor]]:
    """Two values of every number, of which nothing is special, by site, ``[numbers, 1]``."""
    one, other = [], []
    for site in graph.free_sites:
        if site.enumeration is not None:
            for point, state in ((one, 0), (other, -1)):
                point.append(site.enumeration.cpu()[state].repeat(site.num_nodes).view(-1, 1))
            continue
        turn = torch.arange(site.num_nodes * site.width, device="cpu").double().unsqueeze(1)
        one.append(0.3 + 0.2 * turn.sin())
        other.append(0.4 + 0.2 * (1 + turn).cos())
    return one, other


def _assembled(read: Read, constant: Tensor | None, rows: list[Tensor]) -> Tensor | None:
    """What a step reads, with another constant in the place of its own."""
    return replace(read, constant=constant).assemble(*rows) if rows else constant


def _of_added(constant: Tensor, unit: float, one: Tensor, other: Tensor) -> float:
    """Of constants, those whose weights at the two points are the same."""
    # NaN are not the same, and what infinities choose from is no sum, nor what multiplies one
    is_finite = constant.isfinite() & one.isfinite()
    is_added = is_finite & ((one - other).abs() <= SAME * one.abs()) & (one != 0)
    return float(torch.where(is_added, unit * constant.detach() * one, 0.0).norm())
