"""The best Gaussian along a forest where all factors are quadratic: their product itself.

    log p(x) = h' x - x' J x / 2 + const,        J = sum_a J_a,   h the score at x = 0

A scope hangs from one of its nodes. From the leaves inwards its other nodes c are summed out,

    J_p <- J_p + J_pp - J_pc (J_cc)^-1 J_cp,     h_p <- h_p - J_pc (J_cc)^-1 h_c

and from the roots outwards x_c given x_p has the mean (J_cc)^-1 (h_c - J_cp x_p) and the covariance
(J_cc)^-1. All scopes as far from their root are taken together: O(number of scopes), in as many
rounds as the forest is deep. By gradients the same point takes the more steps the longer chains
are, and the closer their neighbours.

Source: Rauch, Tung & Striebel (1965), on trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pyrograph.beliefs.gaussian import block_diagonal
from pyrograph.diagnostics import value_and_score
from pyrograph.graph import FactorGraph
from pyrograph.graph.forest import parent_slots
from pyrograph.infer.qbethe.build import Network
from pyrograph.infer.qbethe.components import Parameters, free_ties
from pyrograph.infer.qbethe.entropy import ScopeEntropies
from pyrograph.infer.qbethe.potentials import IntegratedPotential, QuadraticPotential

#: Solutions, of which the later ones mend the rounding of the first.
SOLUTIONS = 2
#: By how much a variance may exceed that given all other nodes: what is more is rounding of a
#: precision that has a direction without any.
MOST_INFLATED = 1e-2 / torch.finfo(torch.float64).eps


def is_gaussian(network: Network) -> bool:
    """Whether one component of full covariance can be the posterior itself, and is known in closed
    form. Discrete nodes that no factor reads are none of a Gaussian."""
    has_states = any(kind.is_discrete for kind in network.kinds)
    is_quadratic = all(isinstance(p, QuadraticPotential) for p in network.potentials)
    return network.joins and is_quadratic and not has_states


@torch.no_grad()
def exact_parameters(graph: FactorGraph, network: Network) -> Parameters | None:
    """Means, scales, shears and ties of one component, without the leading dimensions of restarts
    and components; None where the factors' product is no density.

    Args:
        network: of quadratic factors along a forest (:func:`is_gaussian`).
    """
    try:
        found = _exact_parameters(graph, network)
    except torch.linalg.LinAlgError:
        return None
    exact = {name: value.to(graph.constant) for name, value in found.items()}
    return exact if all(bool(value.isfinite().all()) for value in exact.values()) else None


def _exact_parameters(graph: FactorGraph, network: Network) -> Parameters:
    forest = _Forest(network, graph.device)
    places = places_of(graph, network)
    x = graph.constant.new_zeros(graph.dim)
    for kind, place in zip(network.kinds, places, strict=True):
        x[place] = kind.centre
    for _ in range(SOLUTIONS):
        slope = value_and_score(graph, x[None])[1][0].double()
        forest.solve([slope[place] for place in places])
        for place, step in zip(places, forest.means, strict=True):
            x[place] += step.to(x)
    return parameters_of(network, [x[place] for place in places], forest.roots, forest.covariances)


def parameters_of(
    network: Network, means: list[Tensor], roots: list[Tensor], covariances: list[Tensor]
) -> Parameters:
    """Of one Gaussian, without the leading dimensions of restarts and components.

    Args:
        means ``[V, d]``, roots ``[V, d, d]``: of nodes by kind, lower triangular ones.
        covariances: of the correlated nodes of scopes, ``[S, R, R]``.
    """
    found: Parameters = {}
    for k, kind in enumerate(network.kinds):
        root = roots[k]
        scale = root.norm(dim=2)
        found[f"mean_{k}"] = (means[k] - kind.centre) / kind.unit
        found[f"log_scale_{k}"] = (scale / kind.unit).log()
        if kind.size > 1:
            own = root.diagonal(dim1=1, dim2=2).unsqueeze(2)
            row, column = torch.tril_indices(kind.size, kind.size, -1, device=root.device)
            found[f"shear_{k}"] = (root / own)[:, row, column]
    for scope, covariance in zip(network.correlated, covariances, strict=True):
        white = block_diagonal(_of_slots(roots, scope))
        half = torch.linalg.solve_triangular(white, covariance, upper=False)
        correlation = torch.linalg.solve_triangular(white, half.mT, upper=False)
        found[scope.wiring.ties[0].name] = free_ties(
            torch.linalg.cholesky(correlation), scope.sizes
        )
    return found


def places_of(graph: FactorGraph, network: Network) -> list[Tensor]:
    """Columns ``[V, d]`` of the numbers of continuous nodes, by kind."""
    columns = graph.columns.to(graph.device)
    return [
        columns[k.nodes].unsqueeze(1) + torch.arange(k.size, device=columns.device)
        for k in network.kinds
    ]


def _of_slots(values: list[Tensor], scope: ScopeEntropies) -> list[Tensor]:
    """Of kinds' values ``[V, ...]`` those of every slot, ``[S, ...]``."""
    wiring = zip(scope.wiring.kinds, scope.wiring.rows, strict=True)
    return [values[kind][rows] for kind, rows in wiring]


@dataclass
class _Layer:
    """Scopes of one kind that hang equally far from their roots, from the same slot.

    Attributes:
        part: number of their kind; at: ``[n]`` rows of it; slot: what they hang from.
        above, below: entries ``[R]`` of that slot's numbers, and of the others'.
    """

    part: int
    at: Tensor
    slot: int
    above: Tensor
    below: Tensor


class _Forest:
    """Sums along a forest, in double precision: correlations of .9999 are ordinary.

    Attributes:
        means ``[V, d]``, roots ``[V, d, d]``: of nodes by kind, lower triangular ones.
        covariances: of the scopes, ``[S, R, R]``.
    """

    def __init__(self, network: Network, device: torch.device):
        self.network, self.device = network, device
        like = torch.zeros(0, dtype=torch.float64, device=device)
        self.own = [like.new_zeros(len(k.nodes), k.size, k.size) for k in network.kinds]
        self.shared = [
            like.new_zeros(scope.num_scopes, sum(scope.sizes), sum(scope.sizes))
            for scope in network.correlated
        ]
        by_name = {scope.wiring.ties[0].name: n for n, scope in enumerate(network.correlated)}
        for potential in network.potentials:
            precision = precision_in_numbers(network, potential, potential.precision)
            if not potential.wiring.ties:
                ((kind, rows, _),) = potential.maps
                self.own[kind].index_add_(0, rows, precision)
            else:
                (tie,) = potential.wiring.ties
                self.shared[by_name[tie.name]].index_add_(0, tie.rows, precision)
        self.layers = self._layers()
        self.hangs = [
            torch.zeros(len(k.nodes), dtype=torch.bool, device=device) for k in network.kinds
        ]
        for layer in self.layers:
            for kind, rows, _ in self._below(layer):
                self.hangs[kind][rows] = True

    def _layers(self) -> list[_Layer]:
        """From the roots outwards."""
        scopes = [scope.nodes for scope in self.network.correlated]
        if not scopes:
            return []
        slots = parent_slots(scopes, len(self.network.kind))
        depths = _depths(scopes, slots, len(self.network.kind))
        found = []
        for part, (depth, slot) in enumerate(zip(depths, slots, strict=True)):
            sizes = self.network.correlated[part].sizes
            slot_of = torch.repeat_interleave(torch.tensor(sizes, device="cpu")).to(self.device)
            both, inverse = torch.stack([depth, slot.to(depth)], 1).unique(
                dim=0, return_inverse=True
            )
            rows = inverse.argsort(stable=True).split(torch.bincount(inverse).tolist())
            for (far, k), at in zip(both.tolist(), rows, strict=True):
                above, below = ((slot_of == k) == is_above for is_above in (True, False))
                layer = _Layer(part, at, k, above.nonzero()[:, 0], below.nonzero()[:, 0])
                found.append((far, layer))
        return [layer for _, layer in sorted(found, key=lambda pair: pair[0])]

    def solve(self, slopes: list[Tensor]) -> None:
        """For h of every kind ``[V, d]``.

        Raises:
            LinAlgError: the precision has a direction that is not positive.
        """
        own, slopes = [value.clone() for value in self.own], [value.clone() for value in slopes]
        left = []
        for layer in reversed(self.layers):
            left.append(self._sum_out(layer, own, slopes))
        for value, hangs in zip(
            own, self.hangs, strict=True
        ):  # these come from what they hang from
            value[hangs] = torch.eye(value.shape[1], dtype=value.dtype, device=value.device)
        roots = [torch.linalg.cholesky(value) for value in own]
        covariance = [torch.cholesky_inverse(root) for root in roots]
        means = [_solved(root, slope) for root, slope in zip(roots, slopes, strict=True)]
        self.covariances = [torch.zeros_like(value) for value in self.shared]
        for layer, (root, gain, mean) in zip(self.layers, reversed(left), strict=True):
            scope = self.network.correlated[layer.part]
            kind, rows = scope.wiring.kinds[layer.slot], scope.wiring.rows[layer.slot][layer.at]
            inner = covariance[kind][rows]
            across = gain @ inner
            whole = torch.zeros_like(self.shared[layer.part][layer.at])
            whole[:, layer.above.unsqueeze(1), layer.above] = inner
            whole[:, layer.below.unsqueeze(1), layer.above] = across
            whole[:, layer.above.unsqueeze(1), layer.below] = across.mT
            spread = torch.cholesky_inverse(root) + across @ gain.mT
            whole[:, layer.below.unsqueeze(1), layer.below] = spread
            self.covariances[layer.part][layer.at] = whole
            mean = mean + (gain @ means[kind][rows].unsqueeze(2)).squeeze(2)
            for kind, rows, part in self._below(layer):
                covariance[kind][rows] = spread[:, part, part]
                means[kind][rows] = mean[:, part]
        for value, precision in zip(covariance, self._precisions(), strict=True):
            if bool((value.diagonal(dim1=1, dim2=2) * precision > MOST_INFLATED).any()):
                raise torch.linalg.LinAlgError("the precision is singular but for rounding")
        self.means, self.roots = means, [torch.linalg.cholesky(value) for value in covariance]

    def _precisions(self) -> list[Tensor]:
        """Of all numbers given all others, ``[V, d]`` by kind."""
        out = [own.diagonal(dim1=1, dim2=2).clone() for own in self.own]
        for scope, shared in zip(self.network.correlated, self.shared, strict=True):
            parts = shared.diagonal(dim1=1, dim2=2).split(scope.sizes, 1)
            for kind, rows, part in zip(scope.wiring.kinds, scope.wiring.rows, parts, strict=True):
                out[kind].index_add_(0, rows, part)
        return out

    def _sum_out(
        self, layer: _Layer, own: list[Tensor], slopes: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Adds to what scopes hang from, and returns of x_c given x_p the root of its precision
        ``[n, c, c]``, the gain ``[n, c, p]`` and the mean at x_p = 0 ``[n, c]``."""
        shared = self.shared[layer.part][layer.at]
        inner = shared[:, layer.below.unsqueeze(1), layer.below]
        parts = list(self._below(layer))
        slope = torch.cat([slopes[kind][rows] for kind, rows, _ in parts], 1)
        inner = inner + block_diagonal([own[kind][rows] for kind, rows, _ in parts])
        across = shared[:, layer.below.unsqueeze(1), layer.above]
        root = torch.linalg.cholesky(inner)
        gain = -torch.cholesky_solve(across, root)
        scope = self.network.correlated[layer.part]
        kind, rows = scope.wiring.kinds[layer.slot], scope.wiring.rows[layer.slot][layer.at]
        above = shared[:, layer.above.unsqueeze(1), layer.above] + across.mT @ gain
        own[kind].index_add_(0, rows, above)
        slopes[kind].index_add_(0, rows, (gain.mT @ slope.unsqueeze(2)).squeeze(2))
        return root, gain, _solved(root, slope)

    def _below(self, layer: _Layer) -> Iterator[tuple[int, Tensor, slice]]:
        """Kind, rows and place among the numbers summed out, of the slots other than the one that
        scopes hang from."""
        scope, start = self.network.correlated[layer.part], 0
        for slot, size in enumerate(scope.sizes):
            if slot != layer.slot:
                rows = scope.wiring.rows[slot][layer.at]
                yield scope.wiring.kinds[slot], rows, slice(start, start + size)
                start += size


def _solved(root: Tensor, vector: Tensor) -> Tensor:
    return torch.cholesky_solve(vector.unsqueeze(2), root).squeeze(2)


def precision_in_numbers(
    network: Network, potential: QuadraticPotential | IntegratedPotential, precision: Tensor
) -> Tensor:
    """``[E, R, R]`` by all numbers of the scopes, of one by the parts that factors read."""
    levers = []
    for kind, rows, basis in potential.maps:
        size = network.kinds[kind].size
        eye = torch.eye(size, dtype=torch.float64, device=rows.device)
        levers.append(eye.expand(len(rows), size, size) if basis is None else basis.rows(eye))
    lever = block_diagonal(levers)
    return lever.mT @ precision.double() @ lever


def _depths(scopes: list[Tensor], slots: list[Tensor], num_nodes: int) -> list[Tensor]:
    """How many scopes lie between every scope and its root."""
    nodes = [scope.cpu().numpy() for scope in scopes]
    above = [
        own[np.arange(len(own)), slot.cpu().numpy()] for own, slot in zip(nodes, slots, strict=True)
    ]
    first = np.cumsum([0, *map(len, nodes)])
    hangs_from = np.full(num_nodes, -1)  # scopes, numbered through; roots hang from none
    for start, own, parent in zip(first, nodes, above, strict=False):
        scope, slot = np.nonzero(own != parent[:, None])
        hangs_from[own[scope, slot]] = start + scope
    parent = hangs_from[np.concatenate(above)]
    depth, jump = (parent >= 0).astype(np.int64), parent
    while (jump >= 0).any():  # twice as far every time
        depth = depth + np.where(jump >= 0, depth[jump], 0)
        jump = np.where(jump >= 0, jump[jump], -1)
    return [torch.from_numpy(d) for d in np.split(depth, first[1:-1])]
