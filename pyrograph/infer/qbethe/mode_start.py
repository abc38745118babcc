"""One component of full covariance starts at Laplace's approximation.

    N(x*, H^-1),    x* = argmax log p,    H = -Hessian of log p at x*

with x* found by L-BFGS and then by Newton's steps, which no difference in units stops. H is the sum
of the factors' own Hessians; what is taken of its inverse are the blocks of nodes and scopes, along
a forest (:mod:`.gaussian_forest`) or, where scopes close cycles, from the whole matrix. Adam starts
far closer to where it ends than at a draw from the program, above all where regressors are
correlated or a prior is flat.
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
    Forest,
    parameters_of,
    places_of,
    precision_in_numbers,
)
from pyrograph.infer.qbethe.potentials import QuadraticPotential

#: Numbers of a graph with cycles, at most, whose whole Hessian is inverted; entries of factors'.
MOST_NUMBERS, MOST_ENTRIES = 2000, 2**26
#: Newton's steps, halvings of one, and what a step may promise at a mode, in nats.
MOST_STEPS, MOST_HALVINGS, REST = 20, 10, 1e-6


@torch.no_grad()
def start_at_modes(
    graph: FactorGraph,
    network: Network,
    parameters: Parameters,
    objective: Callable[[Parameters], Tensor],
) -> None:
    """Moves the one component of every restart to the mode above it, if that is a better start for
    all of them, and measures it in its own widths.

    Args:
        objective: of every restart, ``[B]``.
    """
    if any(kind.is_discrete for kind in network.kinds):
        return
    places, means = places_of(graph, network), Components(network.kinds, parameters).means
    found = []
    for restart in range(len(parameters["weights"])):
        x, unit = graph.constant.new_zeros(2, graph.dim)
        for place, kind, mean in zip(places, network.kinds, means, strict=True):
            x[place], unit[place] = mean[restart, 0], kind.unit
        found.append(laplace_parameters(graph, network, x, unit))
        if found[-1] is None:
            return
    there = {name: value.clone() for name, value in parameters.items()}
    for name in found[0]:
        there[name].copy_(torch.stack([own[name] for own in found]).unsqueeze(1))
    before, after = _value(objective, parameters), _value(objective, there)
    if bool((after >= before).all()):
        kinds = [_remeasured(k, kind, there) for k, kind in enumerate(network.kinds)]
        take(network, kinds, parameters, there)


def _value(objective: Callable[[Parameters], Tensor], parameters: Parameters) -> Tensor:
    """Minus infinity where it is none."""
    try:
        return torch.nan_to_num(objective(parameters), nan=-torch.inf, neginf=-torch.inf)
    except NonFiniteDensity:
        return parameters["weights"].new_full((len(parameters["weights"]),), -torch.inf)


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
) -> Parameters | None:
    """Means, scales, shears and ties of one component, without the leading dimensions of restarts
    and components; None where there is no such mode, or it would cost too much.

    Args:
        network: of continuous nodes.
        start: ``[dim]`` from where to climb; unit: ``[dim]`` the steps by which.
    """
    sizes = [sum(network.kinds[k].size for k, _, _ in p.maps) for p in network.potentials]
    entries = sum(
        p.local.num_factors * r**2 for p, r in zip(network.potentials, sizes, strict=True)
    )
    if entries > MOST_ENTRIES or not (network.joins or graph.dim <= MOST_NUMBERS):
        return None
    try:
        x, _ = find_mode(graph, start, unit)
        found = _at_mode(graph, network, x.double())
    except (InferenceError, torch.linalg.LinAlgError):  # no finite density, or no maximum
        return None
    if found is None or not all(bool(value.isfinite().all()) for value in found.values()):
        return None
    return {name: value.to(graph.constant) for name, value in found.items()}


def _at_mode(graph: FactorGraph, network: Network, x: Tensor) -> Parameters | None:
    """Of the mode that Newton's steps from ``x [dim]`` lead to, None if to none.

    Raises:
        LinAlgError: the density has no maximum here.
    """
    places = places_of(graph, network)
    for _ in range(MOST_STEPS):
        log_p, score = value_and_score(graph, x[None].to(graph.constant))
        slope = score[0].double()
        inverse = _Inverse(network, graph, places, _precisions(network, places, x))
        step = inverse.of(slope)
        if float(slope @ step) <= 2 * REST:
            roots, covariances = inverse.roots, inverse.covariances
            return parameters_of(network, [x[place] for place in places], roots, covariances)
        for _ in range(MOST_HALVINGS):
            if bool(graph.density((x + step)[None].to(graph.constant)) > log_p):
                break
            step = step / 2
        else:
            return None
        x = x + step
    return None


def _precisions(network: Network, places: list[Tensor], x: Tensor) -> list[Tensor]:
    """-Hessians of all factors at ``x [dim]``, ``[E, R, R]`` by the numbers of their scopes."""
    found = []
    for potential in network.potentials:
        precision = potential.precision if isinstance(potential, QuadraticPotential) else None
        if precision is None:
            parts = [
                x[places[kind]][rows] if basis is None else basis.of(x[places[kind]][rows])
                for kind, rows, basis in potential.maps
            ]
            precision, _ = potential.local.expanded(torch.cat(parts, 1))
        found.append(precision_in_numbers(network, potential, precision))
    return found


class _Inverse:
    """Parts of the inverse of the sum of factors' precisions.

    Attributes:
        roots: of nodes by kind; covariances: of correlated nodes, once :meth:`of` was called.
    """

    def __init__(
        self, network: Network, graph: FactorGraph, places: list[Tensor], precisions: list[Tensor]
    ):
        self.network, self.places, self.dim = network, places, graph.dim
        self.forest = Forest(network, graph.device, precisions) if network.joins else None
        self.precisions = precisions

    def of(self, slope: Tensor) -> Tensor:
        """H^-1 g, ``[dim]``.

        Raises:
            LinAlgError: H is not positive definite.
        """
        if self.forest is None:
            return self._dense(slope)
        self.forest.solve([slope[place] for place in self.places])
        self.roots, self.covariances = self.forest.roots, self.forest.covariances
        step = torch.zeros_like(slope)
        for place, part in zip(self.places, self.forest.means, strict=True):
            step[place] = part
        return step

    def _dense(self, slope: Tensor) -> Tensor:
        whole = slope.new_zeros(self.dim, self.dim)
        for potential, precision in zip(self.network.potentials, self.precisions, strict=True):
            index = self._numbers([(kind, rows) for kind, rows, _ in potential.maps])
            whole.index_put_((index.unsqueeze(2), index.unsqueeze(1)), precision, accumulate=True)
        root = torch.linalg.cholesky(whole)
        inverse = torch.cholesky_inverse(root)
        self.roots = [
            torch.linalg.cholesky(inverse[place.unsqueeze(2), place.unsqueeze(1)])
            for place in self.places
        ]
        self.covariances = []
        for scope in self.network.correlated:
            slots = zip(scope.wiring.kinds, scope.wiring.rows, strict=True)
            index = self._numbers(list(slots))
            self.covariances.append(inverse[index.unsqueeze(2), index.unsqueeze(1)])
        return torch.cholesky_solve(slope.unsqueeze(1), root).squeeze(1)

    def _numbers(self, slots: list[tuple[int, Tensor]]) -> Tensor:
        """Columns ``[E, R]`` of scopes, by the kinds and rows of their slots."""
        return torch.cat([self.places[kind][rows] for kind, rows in slots], 1)
