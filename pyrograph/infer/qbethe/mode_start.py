"""One component of full covariance starts at Laplace's approximation.

    N(x*, H^-1),    x* = argmax log p,    H = -Hessian of log p at x*

with x* found by L-BFGS and then by Newton's steps, which no difference in units stops. H is the sum
of the factors' own Hessians; what is taken of its inverse are the blocks of nodes and scopes. Adam
starts far closer to where it ends than at a draw from the program, above all where regressors are
correlated or a prior is flat. Where the posterior is no Gaussian about its mode, it is no start: a
hierarchy's narrow mode at small scales would hold the component. Under N(x*, H^-1)

    E log p = log p(x*) - dim / 2

if log p is quadratic, and what is far less tells that it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pyrograph.diagnostics import value_and_score
from pyrograph.errors import InferenceError, NonFiniteDensity
from pyrograph.graph import FactorGraph
from pyrograph.infer.laplace import find_mode
from pyrograph.infer.qbethe.build import Network
from pyrograph.infer.qbethe.checkpoint import take
from pyrograph.infer.qbethe.components import Components, Kind, Parameters
from pyrograph.infer.qbethe.gaussian_forest import (
    parameters_of,
    places_of,
    precision_in_numbers,
)
from pyrograph.infer.qbethe.potentials import QuadraticPotential

#: Numbers of a graph, at most, whose Hessian is inverted; entries of its factors'.
MOST_NUMBERS, MOST_ENTRIES = 1000, 2**26
#: Newton's steps, halvings of one, and what a step may promise at a mode, in nats.
MOST_STEPS, MOST_HALVINGS, REST = 20, 10, 1e-6
#: How much less E log p may be than a Gaussian's, and for every number besides.
SLACK, EACH = 0.2, 0.02


@torch.no_grad()
def start_at_modes(
    graph: FactorGraph,
    network: Network,
    parameters: Parameters,
    energy: Callable[[Parameters], Tensor],
) -> None:
    """Moves the one component of every restart to the mode above it, if the posterior is nearly a
    Gaussian about all of these, and measures it in its own widths.

    Args:
        energy: E log p of every restart, ``[B]``.
    """
    if any(kind.is_discrete for kind in network.kinds):
        return
    places, means = places_of(graph, network), Components(network.kinds, parameters).means
    found, highest = [], []
    for restart in range(len(parameters["weights"])):
        x, unit = graph.constant.new_zeros(2, graph.dim)
        for place, kind, mean in zip(places, network.kinds, means, strict=True):
            x[place], unit[place] = mean[restart, 0], kind.unit
        own = laplace_parameters(graph, network, x, unit)
        if own is None:
            return
        found.append(own[0])
        highest.append(own[1])
    there = {name: value.clone() for name, value in parameters.items()}
    for name in found[0]:
        there[name].copy_(torch.stack([own[name] for own in found]).unsqueeze(1))
    try:
        value = energy(there)
    except NonFiniteDensity:  # it reaches where the program makes no sense
        return
    least = torch.stack(highest) - 0.5 * graph.dim - (SLACK + EACH * graph.dim)
    if bool((value >= least).all()):
        kinds = [_remeasured(k, kind, there) for k, kind in enumerate(network.kinds)]
        take(network, kinds, parameters, there)


def _remeasured(k: int, kind: Kind, parameters: Parameters) -> Kind:
    """The kind measured from where the first restart's component is, in its widths; its parameters
    are changed."""
    mean, log_scale = parameters[f"mean_{k}"], parameters[f"log_scale_{k}"]
    centre, log_unit = mean[0, 0].clone(), log_scale[0, 0].clone()
    mean.sub_(centre).div_(log_unit.exp())
    log_scale.sub_(log_unit)
    place = torch.addcmul(kind.centre, kind.unit, centre)
    return replace(kind, centre=place, unit=kind.unit * log_unit.exp())


def laplace_parameters(
    graph: FactorGraph, network: Network, start: Tensor, unit: Tensor
) -> tuple[Parameters, Tensor] | None:
    """Means, scales, shears and ties of one component, without the leading dimensions of restarts
    and components, and log p at the mode; None where there is no such mode, or it would cost too
    much.

    Args:
        network: of continuous nodes.
        start: ``[dim]`` from where to climb; unit: ``[dim]`` the steps by which.
    """
    sizes = [sum(network.kinds[k].size for k, _, _ in p.maps) for p in network.potentials]
    entries = sum(
        p.local.num_factors * r**2 for p, r in zip(network.potentials, sizes, strict=True)
    )
    if entries > MOST_ENTRIES or graph.dim > MOST_NUMBERS:
        return None
    try:
        x, _ = find_mode(graph, start, unit)
        mode = _at_mode(graph, network, x.double())
        found = None if mode is None else _parameters(graph, network, *mode[:2])
    except (InferenceError, torch.linalg.LinAlgError):  # no finite density, or no maximum
        return None
    if found is None or not all(bool(value.isfinite().all()) for value in found.values()):
        return None
    return {name: value.to(graph.constant) for name, value in found.items()}, mode[2]


def _at_mode(
    graph: FactorGraph, network: Network, x: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The mode that Newton's steps from ``x [dim]`` lead to, the root of the precision there, and
    log p; None if to none.

    Raises:
        LinAlgError: the density has no maximum here.
    """
    for _ in range(MOST_STEPS):
        log_p, score = value_and_score(graph, x[None].to(graph.constant))
        slope, root = score[0].double(), torch.linalg.cholesky(_precision(graph, network, x))
        step = torch.cholesky_solve(slope.unsqueeze(1), root).squeeze(1)
        if float(slope @ step) <= 2 * REST:
            return x, root, log_p[0]
        for _ in range(MOST_HALVINGS):
            if bool(graph.density((x + step)[None].to(graph.constant)) > log_p):
                break
            step = step / 2
        else:
            return None
        x = x + step
    return None


def _precision(graph: FactorGraph, network: Network, x: Tensor) -> Tensor:
    """-Hessian of log p at ``x [dim]``, ``[dim, dim]``."""
    places, whole = places_of(graph, network), x.new_zeros(len(x), len(x))
    for potential in network.potentials:
        numbers = [places[kind][rows] for kind, rows, _ in potential.maps]
        if isinstance(potential, QuadraticPotential):
            precision = potential.precision
        else:
            slots = zip(numbers, potential.maps, strict=True)
            parts = [x[own] if basis is None else basis.of(x[own]) for own, (*_, basis) in slots]
            precision, _ = potential.local.expanded(torch.cat(parts, 1))
        own = precision_in_numbers(network, potential, precision)
        index = torch.cat(numbers, 1)  # [E, R]
        whole.index_put_((index.unsqueeze(2), index.unsqueeze(1)), own, accumulate=True)
    return whole


def _parameters(graph: FactorGraph, network: Network, x: Tensor, root: Tensor) -> Parameters:
    """Of the Gaussian at ``x [dim]`` whose precision has this root."""
    places, covariance = places_of(graph, network), torch.cholesky_inverse(root)
    own = [covariance[place.unsqueeze(2), place.unsqueeze(1)] for place in places]
    of_scopes = []
    for scope in network.correlated:
        slots = zip(scope.wiring.kinds, scope.wiring.rows, strict=True)
        index = torch.cat([places[kind][rows] for kind, rows in slots], 1)  # [S, R]
        of_scopes.append(covariance[index.unsqueeze(2), index.unsqueeze(1)])
    roots = [torch.linalg.cholesky(value) for value in own]
    return parameters_of(network, [x[place] for place in places], roots, of_scopes)
