"""Where a mixture starts: means at draws from the program, widths from their spread.

Where a program does not say what nodes are drawn from, a flat prior, draws mean nothing, and nearly
so those of a vague one, such as Gamma(.01, .01), half of which are below e^-69: these nodes start
about the posterior's mode, as wide as their conditionals there, if all are continuous; else no
farther out than their numbers reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pyrograph.errors import InferenceError, NonFiniteDensity
from pyrograph.graph import FactorGraph
from pyrograph.infer.laplace import mode_and_width
from pyrograph.infer.qbethe.build import Network
from pyrograph.infer.qbethe.components import Parameters
from pyrograph.infer.qbethe.label_start import start_at_images
from pyrograph.infer.qbethe.mean_field import mean_field
from pyrograph.infer.qbethe.mode_start import FARTHEST
from pyrograph.infer.qbethe.narrow_start import NarrowStart
from pyrograph.trace.outer_handlers import with_outer_handlers
from pyrograph.trace.plain_run import plain_run
from pyrograph.trace.supports import is_real

#: Draws of the program, at least, from which spreads are taken, and at most for starting means.
FEWEST, MOST = 8, 64
#: Spreads are at most so many times that of the inner draws: far in a heavy tail nothing would come
#: back.
HEAVIEST = 3.0
#: How many times the spread of a site's numbers one's own is, or the other way round, of which it
#: is no chance of few draws.
APART = 10.0
#: A bounded site whose draws in unconstrained space are farther out than this is vague; how far out
#: its components start where nothing better is known, and how wide: as shares of where exponentials
#: overflow.
NEAR, INSIDE, STEP = 0.25, 0.5, 0.05
#: Expected log densities of this size and more overflow soon, if their gradients have not; how
#: often components are halved until theirs are smaller.
HUGE, MOST_HALVINGS = 1e30, 10
#: Spread of the logits of discrete nodes: components have to differ to part.
JITTER = 0.5


@torch.no_grad()
def starting_parameters(
    network: Network,
    graph: FactorGraph,
    program: tuple[Callable, tuple, dict],
    shape: tuple[int, int],
    init_scale: float,
    is_full: bool,
    generator: torch.Generator,
    energy: Callable[[Parameters], Tensor],
) -> Parameters:
    """Parameters of B restarts and L components; fills in what means are measured in.

    Args:
        program: the model and its arguments.
        shape: B and L.
        init_scale: width of a component in units of the draws' spread.
        energy: expected log density of every restart, ``[B]``. Where it is no number at draws, as
            that of exp(u) under N(0, 1000^2), all start about the mode, or at draws where there is
            none, as narrow as it takes.
    """
    draws = _draws(graph, program, max(FEWEST, min(MOST, math.prod(shape))))
    origin = _Origin(graph, network, draws)
    start = partial(_about, origin, shape, init_scale, is_full, generator)
    first, kinds = start(), list(network.kinds)
    has_states = any(kind.is_discrete for kind in network.kinds)
    if has_states and start_at_images(
        graph, network, program, first, init_scale, generator, energy
    ):
        return first
    if _is_finite(energy, first):
        if not has_states and not (is_full and shape[1] == 1):
            points = graph.flatten({s.name: draws[s.name] for s in graph.free_sites})
            narrow = NarrowStart(graph, network, energy, partial(mean_field, graph, program))
            narrow.move(first, narrow.places(points), init_scale, generator)
        return first
    origin.moves_to_mode()
    for halvings in range(0, MOST_HALVINGS + 1, 2):
        origin.share = 0.5**halvings
        found = start()
        if _is_finite(energy, found):
            return found
    network.kinds[:] = kinds
    return first  # the first step says what is wrong with it


def _is_finite(energy: Callable[[Parameters], Tensor], parameters: Parameters) -> bool:
    """Whether energies are numbers of a size whose gradients are."""
    try:
        return bool((energy(parameters).abs() < HUGE).all())
    except NonFiniteDensity:
        return False


def _about(
    origin: _Origin,
    shape: tuple[int, int],
    init_scale: float,
    is_full: bool,
    generator: torch.Generator,
) -> Parameters:
    """Components about an origin."""
    (batch, components), network, like = shape, origin.network, origin.like
    wanted = batch * components
    parameters: Parameters = {"weights": like.new_zeros(batch, components)}
    for k, kind in enumerate(network.kinds):
        count, size = len(kind.nodes), kind.size
        if kind.is_discrete:
            noise = _noise((batch, components, count, size), generator)
            parameters[f"logits_{k}"] = (JITTER * noise).to(like)
            continue
        draws, centre, unit = origin.of(kind.nodes, size, generator)
        network.kinds[k] = replace(kind, centre=centre, unit=unit)
        chosen = draws[torch.arange(wanted, device=like.device) % len(draws)]
        if wanted > len(draws):
            chosen = chosen + unit * _noise(chosen.shape, generator).to(like)
        start = ((chosen - centre) / unit).clamp(-FARTHEST, FARTHEST)
        parameters[f"mean_{k}"] = start.reshape(batch, components, count, size)
        width = torch.full_like(parameters[f"mean_{k}"], init_scale * origin.share).log()
        parameters[f"log_scale_{k}"] = width
        if is_full and size > 1:
            parameters[f"shear_{k}"] = like.new_zeros(
                batch, components, count, size * (size - 1) // 2
            )
    for name, (scopes, numbers) in network.num_ties.items():
        parameters[name] = like.new_zeros(batch, components, scopes, numbers)
    return parameters


class _Origin:
    """What is known of where nodes are: draws, and the mode where these mean nothing.

    Args:
        free: draws of every continuous site, in the graph's space.
    """

    def __init__(self, graph: FactorGraph, network: Network, free: dict[str, Tensor]):
        self.graph, self.network, self.free = graph, network, free
        self.like = graph.constant.detach()
        #: Where exponentials overflow.
        self.end = math.log(torch.finfo(self.like.dtype).max)
        self.vague = _beyond(graph, free, NEAR * self.end)
        self.flat = self.vague | _nodes(graph, _sites_without_prior(graph))
        self.mode = _mode(graph, network) if bool(self.flat.any()) else None
        #: How wide components start, of what was asked for, and how far from the mode.
        self.share = 1.0

    def moves_to_mode(self) -> None:
        """Take the mode for all nodes from now on, if there is one."""
        self.flat = torch.ones_like(self.flat)
        self.mode = _mode(self.graph, self.network) if self.mode is None else self.mode

    def of(
        self, nodes: Tensor, size: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draws ``[n, V, size]`` of all nodes of a size, their centre and what they are measured
        in, ``[V, size]`` each."""
        sites = [s for s in self.graph.sites.values() if not s.is_discrete and s.width == size]
        draws = torch.cat([self.free[s.name].reshape(-1, s.num_nodes, size) for s in sites], 1)
        draws = draws.to(self.like)
        unit = _spread(self.graph, draws, size)
        if self.mode is None:
            far = self.vague[nodes, None]
            if bool(far.any()):
                reach = INSIDE * self.end
                draws = torch.where(far, draws.clamp(-reach, reach), draws)
                unit = torch.where(far, unit.clamp_max(STEP * self.end), unit)
            return draws, draws.median(0).values, unit
        flat, columns = self.flat[nodes, None], _columns(self.graph, nodes, size)
        place = torch.where(flat, self.mode[0][columns], draws.median(0).values)
        unit = torch.where(flat, self.mode[1][columns], unit)
        noise = _noise(draws.shape, generator).to(self.like)
        return torch.where(flat, place + self.share * unit * noise, draws), place, unit


def _sites_without_prior(graph: FactorGraph) -> list[str]:
    """That no draw of the program says anything about."""
    return [s.name for s in graph.sites.values() if s.distribution == "ImproperUniform"]


def _beyond(graph: FactorGraph, free: dict[str, Tensor], reach: float) -> Tensor:
    """``[num_nodes]`` nodes of bounded sites of which a draw is farther out than numbers reach."""
    found = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
    for name, draws in free.items():
        site = graph.sites[name]
        if not is_real(site.support):
            far = draws.reshape(len(draws), site.num_nodes, -1).abs() > reach
            found[graph.nodes_of(name)] = far.any(2).any(0)
    return found


def _nodes(graph: FactorGraph, names: list[str]) -> Tensor:
    """``[num_nodes]`` which are of these sites."""
    found = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
    for name in names:
        found[graph.nodes_of(name)] = True
    return found


def _mode(graph: FactorGraph, network: Network) -> tuple[Tensor, Tensor] | None:
    """The mode and the conditional widths, ``[dim]``; None without a mode to start from."""
    if any(kind.is_discrete for kind in network.kinds):
        return None
    try:
        return mode_and_width(graph)
    except InferenceError:  # draws are as good as anything
        return None


def _columns(graph: FactorGraph, nodes: Tensor, size: int) -> Tensor:
    """Of nodes' numbers, ``[V, size]``."""
    first = graph.columns.to(nodes.device)[nodes]
    return first.unsqueeze(1) + torch.arange(size, device=nodes.device)


def _noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")


def _draws(
    graph: FactorGraph, program: tuple[Callable, tuple, dict], count: int
) -> dict[str, Tensor]:
    """``[count, *site]`` of every continuous site, in the graph's space."""
    model, args, kwargs = program
    with with_outer_handlers(model) as model:
        points = [plain_run(model, args, kwargs, {}, True).free for _ in range(count)]
    return {
        name: torch.stack([point[name] for point in points])
        for name, site in graph.sites.items()
        if not site.is_discrete
    }


def _spread(graph: FactorGraph, draws: Tensor, size: int) -> Tensor:
    """``[V, size]``: standard deviation of a site's numbers over draws and nodes alike, so that
    few draws are enough; over draws alone of numbers that are so far from it that they have other
    units."""
    parts, start = [], 0
    for site in graph.sites.values():
        if site.is_discrete or site.width != size:
            continue
        own = draws[:, start : start + site.num_nodes].flatten(1)
        start += site.num_nodes
        square = (own - own.mean(0)).square() * (len(own) / (len(own) - 1))
        off = (own - own.median(0).values).abs()
        common = _bounded(square.mean().sqrt(), off.median())
        single = _bounded(square.mean(0).sqrt(), off.median(0).values)
        apart = (single > 0) & ((single / common).log().abs() > math.log(APART))
        spread = torch.where(apart, single, common)
        spread = torch.where(spread > 0, spread, torch.ones_like(spread))
        parts.append(spread.reshape(site.num_nodes, size))
    return torch.cat(parts)


def _bounded(spread: Tensor, off: Tensor) -> Tensor:
    """Standard deviations, as far as the median distances from the median are those of a normal."""
    inner = off / 0.6745
    return torch.where(inner > 0, spread.minimum(HEAVIEST * inner), spread)
