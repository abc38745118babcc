"""Orders of labels: permutations of their states that a program does not notice.

The density of a mixture of K components is the same where these change places, in all sites that
they are in and in the states of the labels at once: its posterior has K! modes alike. Which
dimensions change places with the states is found by trying. Those of K elements, of plates and of
events, are candidates; that the density stays what it is, at points where all numbers differ,
under a transposition and under a cycle, which generate all permutations, tells the right ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pyrograph.graph import FactorGraph
from pyrograph.trace.outer_handlers import with_outer_handlers
from pyrograph.trace.plain_run import log_probs_at
from pyrograph.trace.sites import Site

#: Candidates, of which all sets are tried, at most; by what share of itself, or nats if that is
#: less than one, a density differs by rounding.
MOST_CANDIDATES, ROUNDING = 5, 1e-5

Values = dict[str, Tensor]
#: Dimensions of sites, counted from the last one of their values in the program's space.
Dimensions = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Exchange:
    """What changes places with the states of labels.

    Attributes:
        size: K.
        labels: discrete sites of K states.
        dims: where components are told apart.
    """

    size: int
    labels: tuple[Site, ...]
    dims: Dimensions

    def of(self, values: Mapping[str, Tensor], order: Tensor) -> Values:
        """Values ``[n, *site]`` with component ``order[k]`` in the place of k."""
        found, inverse = dict(values), order.argsort()
        for name, dims in self.dims.items():
            for dim in dims:
                found[name] = found[name].index_select(dim, order)
        for site in self.labels:
            own = found[site.name]
            states = site.enumeration.to(own)
            width = states[0].numel()
            is_state = (own.reshape(-1, 1, width) == states.reshape(1, -1, width)).all(-1)
            found[site.name] = states[inverse[is_state.byte().argmax(1)]].view(own.shape)
        return found

    def of_states(self, site: Site, log_probs: Tensor, order: Tensor) -> Tensor:
        """Log probabilities ``[*batch, c]`` of a site's states."""
        events = len(site.constrained_event_shape)
        for dim in self.dims.get(site.name, ()):  # all of them batch dimensions
            log_probs = log_probs.index_select(dim + events - 1, order)
        is_label = site.cardinality == self.size
        return log_probs.index_select(-1, order) if is_label else log_probs


@torch.no_grad()
def exchanges(
    graph: FactorGraph, program: tuple[Callable, tuple, dict], points: list[Values]
) -> list[Exchange]:
    """Those of labels of every number of states that have one.

    Args:
        program: the model and its arguments.
        points: values ``[1, *site]`` of all sites, in the program's space.
    """
    model, args, kwargs = program
    sites = list(graph.sites.values())
    sizes = sorted({s.cardinality for s in sites if s.is_discrete and s.cardinality > 1})
    found = []
    with with_outer_handlers(model) as model:

        def density(values: Values) -> float:
            one = {name: value[0] for name, value in values.items()}
            try:
                return float(sum(log_probs_at(model, args, kwargs, one).values()))
            except (ValueError, RuntimeError):  # no such values, or a matrix that is none
                return math.nan

        here = [density(point) for point in points]
        for size in sizes:
            for e in _candidates(sites, size):
                if all(map(partial(_is_unnoticed, e, density), points, here)):
                    found.append(e)
                    break
    return found


def orders(own: list[Exchange], wanted: int, generator: torch.Generator) -> list[list[Tensor]]:
    """Different ones of all exchanges together, the identity first: ``wanted``, or all."""
    found: dict[tuple[int, ...], list[Tensor]] = {}
    start = [torch.arange(e.size, device="cpu") for e in own]
    if not own:
        return [start]
    most = 1
    for e in own:
        most *= _factorial(e.size, wanted)
    found[_key(start)] = start
    while len(found) < min(wanted, most):
        drawn = [torch.randperm(e.size, generator=generator, device="cpu") for e in own]
        found[_key(drawn)] = drawn
    return list(found.values())


def _factorial(size: int, enough: int) -> int:
    """Of a size, or a number of ``enough`` and more."""
    found = 1
    for k in range(2, size + 1):
        found *= k
        if found >= enough:
            break
    return found


def _key(order: list[Tensor]) -> tuple[int, ...]:
    return tuple(torch.cat(order).tolist())


def _is_unnoticed(
    e: Exchange, density: Callable[[Values], float], point: Values, here: float
) -> bool:
    device = point[e.labels[0].name].device
    cycle = torch.arange(e.size, device=device).roll(1)
    swap = torch.arange(e.size, device=device)
    swap[:2] = swap[:2].flip(0)
    slack = ROUNDING * max(1.0, abs(here))
    return all(abs(density(e.of(point, order)) - here) <= slack for order in (swap, cycle))


def _candidates(sites: list[Site], size: int) -> Iterator[Exchange]:
    """Sets of dimensions of this size, the largest first."""
    labels = tuple(s for s in sites if s.is_discrete and s.cardinality == size)
    units: dict[object, Dimensions] = {}
    for site in sites:
        rank, batch = len(site.shape), len(site.batch_shape)
        plates = {dim + batch: name for name, dim, _ in site.plates}
        for k, own in enumerate(site.shape):
            if own == size and not (site.is_discrete and k >= batch):
                # a plate's dimension in all its sites, an event's in all of its own
                unit = plates.get(k, site.name if k < batch else (site.name, "event"))
                dims = units.setdefault(unit, {})
                dims[site.name] = (*dims.get(site.name, ()), k - rank)
    if len(units) > MOST_CANDIDATES:
        return
    for count in range(len(units), 0, -1):
        for chosen in itertools.combinations(units.values(), count):
            dims: Dimensions = {}
            for unit in chosen:
                for name, own in unit.items():
                    dims[name] = (*dims.get(name, ()), *own)
            yield Exchange(size, labels, dims)
