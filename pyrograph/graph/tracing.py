"""From a Pyro program to its factor graph, checked against Pyro at a second point."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pyrograph.errors import StructureError, VerificationError
from pyrograph.graph.factor_graph import FactorGraph
from pyrograph.trace.program import Point, plain_run, read_program


def trace_graph(
    model: Callable,
    model_args: tuple = (),
    model_kwargs: dict | None = None,
    *,
    unconstrained: bool = False,
    fixed: Mapping[str, Tensor] | None = None,
    verify: bool = True,
) -> FactorGraph:
    """Read the element-level factor graph of a Pyro program.

    Args:
        model: any Pyro program (conditioned, reparameterised, ... ones too).
        unconstrained: map continuous sites to unconstrained space, with log Jacobians as factors.
        fixed: ``{site: value}`` held while the structure is read; their values may then index.
        verify: compare the graph with Pyro's own log density at a second point.

    Raises:
        StructureError: (a subclass) the structure cannot be read; the text says what to write.
        VerificationError: graph and program disagree at the second point.
    """
    kwargs = dict(model_kwargs or {})
    held = {name: torch.as_tensor(value) for name, value in (fixed or {}).items()}
    point = plain_run(model, tuple(model_args), kwargs, held, unconstrained)
    reading = read_program(model, tuple(model_args), kwargs, held, unconstrained)
    names = [s.name for s in reading.sites]
    if set(names) != set(point.values):
        differ = ", ".join(sorted(set(names) ^ set(point.values)))
        raise StructureError(
            f"two runs of the program had different latent sites ({differ}): which sites exist "
            f"must not depend on random values."
        )
    graph = FactorGraph(reading, unconstrained=unconstrained)
    if graph.device.type != "cpu":
        graph = graph.to(graph.device)
    if verify:
        _verify(graph, point)
    return graph


def _verify(graph: FactorGraph, point: Point) -> None:
    """A wrong rule, or Python state that followed a latent's value, shows at another point."""
    values = {s.name: point.unconstrained[s.name] for s in graph.free_sites}
    theirs = point.log_prob + point.log_jacobian
    _compare(graph, graph.log_prob(values), theirs, "the traced graph gives log density")
    if graph.is_split:
        _compare(graph, graph.sum_of_factors(values), theirs, "the graph's factors sum up to")


def _compare(graph: FactorGraph, ours: Tensor, theirs: Tensor, what: str) -> None:
    """Equal but for rounding, which grows with the number of terms; both infinite or NaN alike."""
    ours, theirs = ours.double().cpu(), theirs.double().cpu()
    precision = 1e-8 if graph.lowest_precision is torch.float64 else 1e-4
    scale = 1.0 + float(theirs.abs()) if bool(theirs.isfinite()) else 1.0
    tolerance = precision * scale * max(1.0, graph.num_factors**0.5 / 100)
    if not torch.allclose(ours, theirs, rtol=0.0, atol=tolerance, equal_nan=True):
        raise VerificationError(
            f"{what} {float(ours):.10g} at a second point, Pyro gives "
            f"{float(theirs):.10g}. The program is not a fixed function of its latents: it draws "
            f"random numbers outside pyro.sample, keeps state between runs, or reads a latent's "
            f"value in a way that was not caught. Please remove that (or report it)."
        )
