"""One component of full covariance starts at Laplace's approximation.

    N(x*, H^-1),    x* = argmax log p,    H = -Hessian of log p at x*

with x* found by L-BFGS and then by Newton's steps, which no difference in units stops. H is the sum
of the factors' own Hessians; what is taken of its inverse are the blocks of nodes and scopes. Adam
starts far closer to where it ends than at a draw from the program, above all where regressors are
correlated or a prior is flat. Where the posterior is no Gaussian about its mode, it is no start: a
hierarchy's narrow mode at small scales would hold the component. Under N(x*, H^-1)

    E log p = log p(x*) - dim / 2

if log p is quadratic, and what is far less tells that it is not. So it is for independent nodes of
variances 1 / H_ii.
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

#: Components start, or climb, from no farther out than this, in units of the draws' spread.
FARTHEST = 10.0
#: Numbers of a graph, at most, whose Hessian is inverted; entries of its factors'. And those of a
#: graph of which several climbs cost little beside a run.
MOST_NUMBERS, MOST_ENTRIES = 1000, 2**26
FEW_NUMBERS, FEW_ENTRIES = 100, 2**20
#: What precisions are at least, before their roots are taken.
TINY = 1e-300
#: Newton's steps, halvings of one, and what a step may promise at a mode, in nats; at a kink, from
#: where no step keeps its promise.
MOST_STEPS, MOST_HALVINGS, REST, AT_KINK = 20, 10, 1e-6, 0.01
#: How much less E log p may be than a Gaussian's, and for every number besides.
SLACK, EACH = 0.2, 0.02


@torch.no_grad()
def start_at_modes(
    graph: FactorGraph,
    network: Network,
    parameters: Parameters,
    energy: Callable[[Parameters], Tensor],
) -> bool:
    """Moves the one component of every restart to the mode above it, if the posterior is nearly a
    Gaussian about all of these, and measures it in its own widths; whether it did.

    Args:
        network: of continuous nodes.
        energy: E log p of every restart, ``[B]``.
    """
    places, means = places_of(graph, network), Components(network.kinds, parameters).means
    found, highest = [], []
    for restart in range(len(parameters["weights"])):
        x, unit = graph.constant.new_zeros(2, graph.dim)
        for place, kind, mean in zip(places, network.kinds, means, strict=True):
            x[place], unit[place] = mean[restart, 0], kind.unit
        own = laplace_parameters(graph, network, x, unit)
        if own is None:
            return False
        found.append(own[0])
        highest.append(own[1])
    there = {name: value.clone() for name, value in parameters.items()}
    for name in found[0]:
        there[name].copy_(torch.stack([own[name] for own in found]).unsqueeze(1))
    try:
        value = energy(there)
    except NonFiniteDensity:  # it reaches where the program makes no sense
        return False
    least = torch.stack(highest) - 0.5 * graph.dim - (SLACK + EACH * graph.dim)
    if not bool((value >= least).all()):
        return False
    kinds = [_remeasured(k, kind, there) for k, kind in enumerate(network.kinds)]
    take(network, kinds, parameters, there)
    return True


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
    if not is_small(graph, network, MOST_NUMBERS, MOST_ENTRIES):
        return None
    mode = climbed(graph, network, start, unit)
    if mode is None:
        return None
    try:
        found = _parameters(graph, network, *mode[:2])
    except torch.linalg.LinAlgError:
        return None
    if not all(bool(value.isfinite().all()) for value in found.values()):
        return None
    return {name: value.to(graph.constant) for name, value in found.items()}, mode[2]


def is_small(graph: FactorGraph, network: Network, numbers: int, entries: int) -> bool:
    """Whether there are at most so many numbers, and entries of factors' Hessians."""
    sizes = [sum(network.kinds[k].size for k, _, _ in p.maps) for p in network.potentials]
    found = sum(p.local.num_factors * r**2 for p, r in zip(network.potentials, sizes, strict=True))
    return found <= entries and graph.dim <= numbers


def climbed(
    graph: FactorGraph, network: Network, start: Tensor, unit: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The mode above ``start [dim]``, the root of the precision there, and log p; None if there is
    none. Units that differ by far end a climb: the second one, of few numbers, goes by conditional
    widths."""
    fine = graph if graph.dtype == torch.float64 else graph.to(None, torch.float64)
    x, unit = start.double(), unit.double()
    for _ in range(2 if graph.dim <= FEW_NUMBERS else 1):
        try:
            x, _ = find_mode(fine, x, unit)
            return _at_mode(graph, fine, network, x)
        except torch.linalg.LinAlgError:  # no maximum
            curvature = _precision(graph, network, x).diagonal()
            unit = torch.where(curvature > 0, curvature.clamp_min(TINY).rsqrt(), unit)
        except InferenceError:  # no finite density
            break
    return None


def _at_mode(
    graph: FactorGraph, fine: FactorGraph, network: Network, x: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The mode that Newton's steps from ``x [dim]`` lead to, the root of the precision there, and
    log p; None if to none.

    Args:
        fine: the graph in double precision.

    Raises:
        LinAlgError: the density has no maximum here.
    """
    for _ in range(MOST_STEPS):
        log_p, score = value_and_score(fine, x[None])
        slope, root = score[0], torch.linalg.cholesky(_precision(graph, network, x))
        step = torch.cholesky_solve(slope.unsqueeze(1), root).squeeze(1)
        promised = float(slope @ step) / 2
        if promised <= REST:
            return x, root, log_p[0]
        for _ in range(MOST_HALVINGS):
            if bool(fine.density((x + step)[None]) > log_p):
                break
            step = step / 2
        else:
            return (x, root, log_p[0]) if promised <= AT_KINK else None
        x = x + step
    return None


def _precision(graph: FactorGraph, network: Network, x: Tensor) -> Tensor:
    """-Hessian of log p at ``x [dim]``, ``[dim, dim]``, in double precision."""
    places, whole = places_of(graph, network), x.new_zeros(len(x), len(x), dtype=torch.float64)
    x = x.to(graph.constant)
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
        whole.index_put_((index.unsqueeze(2), index.unsqueeze(1)), own.double(), accumulate=True)
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
