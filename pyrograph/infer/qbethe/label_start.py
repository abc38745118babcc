"""Components of a mixture with labels start where mean field ends, in different orders of labels.

Draws from the program tell the components of its mixture apart by chance, and climbs by gradients
from there end many nats low: of three clusters on a line with unknown weights and scales, 13 to 16
with one component of independent nodes, of which mean field is the optimum. Its K! images
(:mod:`.label_orders`) are as good, and disjoint as a rule: L of them together gain log L. Where
labels have one order only, several components start at draws: other modes are where chance finds
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyrograph.errors import NonFiniteDensity
from pyrograph.graph import FactorGraph
from pyrograph.infer.qbethe.build import Network
from pyrograph.infer.qbethe.checkpoint import take
from pyrograph.infer.qbethe.components import Parameters
from pyrograph.infer.qbethe.gaussian_forest import places_of
from pyrograph.infer.qbethe.label_orders import exchanges, orders
from pyrograph.infer.qbethe.mean_field import moments, settled

#: What states keep, so that logits can move; points at which orders are tried.
LEAST, POINTS = 1e-4, 2


@dataclass(frozen=True)
class Image:
    """Mean field's beliefs in one order of labels: means and widths of all numbers, ``[dim]`` each,
    and log probabilities ``[nodes, c]`` of discrete sites."""

    mean: Tensor
    width: Tensor
    log_probs: Mapping[str, Tensor]


def images(
    graph: FactorGraph,
    program: tuple[Callable, tuple, dict],
    wanted: int,
    generator: torch.Generator,
) -> list[Image]:
    """Mean field's beliefs in different orders of labels, at most as many as wanted; none where
    VMP does not serve."""
    found = settled(graph, program)
    if found is None:
        return []
    posterior, draws = found
    points = [{name: value[n : n + 1] for name, value in draws.items()} for n in range(POINTS)]
    own = exchanges(graph, program, points) if wanted > 1 else []
    log_probs = {}
    for name, site in graph.sites.items():
        if site.is_discrete:
            log_probs[name] = posterior.marginal(name).logits  # of one-hot ones too, normalised
    made = []
    for order in orders(own, wanted, generator):
        values, of_states = draws, dict(log_probs)
        for e, places in zip(own, order, strict=True):
            values = e.of(values, places.to(graph.device))
            for name, value in of_states.items():
                of_states[name] = e.of_states(graph.sites[name], value, places.to(graph.device))
        where = moments(graph, values)
        if where is not None:
            flat = {n: v.reshape(graph.sites[n].num_nodes, -1) for n, v in of_states.items()}
            made.append(Image(*where, flat))
    return made


@torch.no_grad()
def start_at_images(
    graph: FactorGraph,
    network: Network,
    program: tuple[Callable, tuple, dict],
    parameters: Parameters,
    init_scale: float,
    generator: torch.Generator,
    energy: Callable[[Parameters], Tensor],
) -> bool:
    """Moves the components of the first restart to mean field's beliefs, in turn to those of
    different orders of labels, and measures them in their widths; whether it did.

    Args:
        energy: E log p of every restart, ``[B]``.
    """
    if all(kind.is_discrete for kind in network.kinds):
        return False
    components = parameters["weights"].shape[1]
    found = images(graph, program, components, generator)
    if len(found) < min(2, components):
        return False
    which = torch.arange(components, device=graph.device) % len(found)
    noise = torch.randn(
        components, graph.dim, generator=generator, dtype=torch.float64, device="cpu"
    ).to(graph.device)
    noise[: len(found)] = 0  # there are no others there
    mean, width = torch.stack([own.mean for own in found]), torch.stack([i.width for i in found])
    start, width_of = mean[which] + width[which] * noise, init_scale * width[which]
    kinds, there = [], {name: value.clone() for name, value in parameters.items()}
    for k, (kind, at) in enumerate(zip(network.kinds, places_of(graph, network), strict=True)):
        if kind.is_discrete:
            kinds.append(kind)
            there[f"logits_{k}"][0] = _log_probs(graph, network, k, found)[which]
            continue
        centre, unit = mean[:, at].mean(0), width[:, at].amax(0)
        if not bool((width[:, at] > 0).all()):
            return False  # to rounding one point
        kinds.append(replace(kind, centre=centre.to(kind.centre), unit=unit.to(kind.unit)))
        means, log_scales = there[f"mean_{k}"], there[f"log_scale_{k}"]
        # other restarts stay where they are
        means[1:] = (torch.addcmul(kind.centre, kind.unit, means[1:]) - centre) / unit
        log_scales[1:] += (kind.unit / unit).log()
        means[0], log_scales[0] = (start[:, at] - centre) / unit, (width_of[:, at] / unit).log()
    before = list(network.kinds), {name: value.clone() for name, value in parameters.items()}
    take(network, kinds, parameters, there)
    try:
        if bool(energy(parameters)[0].isfinite()):
            return True
    except NonFiniteDensity:  # beliefs reach where the program makes no sense
        pass
    take(network, before[0], parameters, before[1])
    return False


def _log_probs(graph: FactorGraph, network: Network, k: int, found: list[Image]) -> Tensor:
    """Of the states of a kind's nodes, ``[images, V, c]``, none of them impossible."""
    kind = network.kinds[k]
    out = graph.constant.new_zeros(len(found), len(kind.nodes), kind.size)
    for name in found[0].log_probs:
        nodes = torch.arange(graph.num_nodes, device=graph.device)[graph.nodes_of(name)]
        if int(network.kind[nodes[0]]) == k:
            own = torch.stack([image.log_probs[name] for image in found])
            out[:, network.row[nodes]] = own.to(out)
    return out.clamp_min(math.log(LEAST))
