"""Where DPVI starts: local maxima, from scattered, opposite and equal states.

A bound over few particles has many local optima, and which one is reached is decided here: every
scattered state comes with its opposite, for models that do not change under it, and nodes that are
all in their first, second, ... state for models whose neighbours want to agree.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrograph.errors import NonFiniteDensity, OptionError, ShapeMismatch
from pyrograph.graph import FactorGraph
from pyrograph.infer.dpvi.labelled import Labellings
from pyrograph.infer.dpvi.labelled_program import LabelledProgram
from pyrograph.infer.dpvi.network import CHUNK, Clusters
from pyrograph.posterior import Posterior

#: Passes of filtering in random orders, by which labellings start.
ORDERS = 4
#: Fewest starts, and sweeps of each.
FEWEST, SWEEPS = 32, 100
#: Scores of all states of all nodes, in all starts of equal states, at most; or those of FEWEST.
MOST_SCORES = 2**24


def scattered(cards: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Independent uniform states ``[V, count]``, their opposites, and equal states: ``[V, M]``."""
    u = torch.rand(len(cards), count, generator=generator, dtype=torch.float64)
    c = cards.cpu().unsqueeze(1)
    x = (u * c).long()
    most = int(c.max())
    # with many states, some that are evenly apart
    count = min(most, max(FEWEST, MOST_SCORES // int(c.sum())))
    equal = (torch.arange(count) * (most - 1) // max(1, count - 1)).minimum(c - 1)
    return torch.cat([x, c - 1 - x, equal], 1).to(cards.device)


def climbed(x: Tensor, blocks: list[Clusters]) -> Tensor:
    """Local maxima from states ``[V, M]``: every block in turn takes its best states."""
    largest = max((len(clusters) * clusters.num_states for clusters in blocks), default=1)
    parts = x.split(max(1, CHUNK // largest), 1)
    return torch.cat([_climbed(part, blocks) for part in parts], 1)


def _climbed(x: Tensor, blocks: list[Clusters]) -> Tensor:
    x = x.clone()
    for _ in range(SWEEPS):
        moved = False
        for clusters in blocks:
            local, present = clusters.local_scores(x), clusters.current(x).unsqueeze(2)
            best, state = local.max(2)
            # ties keep what is there, so that climbing ends
            better = best > local.gather(2, present).squeeze(2)
            state = torch.where(better, state, present.squeeze(2))
            moved |= bool(better.any())
            x[clusters.nodes.flatten()] = clusters.states[state].permute(0, 2, 1).flatten(0, 1)
        if not moved:
            break
    return x


def codes_of(graph: FactorGraph, values: Mapping[str, Any]) -> Tensor:
    """Numbers of states ``[V, M]`` of values ``{site: [M, *site shape]}``.

    Raises:
        ShapeMismatch: a site is missing, has another shape, or not as many values as another.
        OptionError: a value is none of the site's states.
    """
    rows = []
    for name, site in graph.sites.items():
        if name not in values:
            raise ShapeMismatch(f'no values of site "{name}"; expected [M, *{site.shape}]')
        value = torch.as_tensor(values[name], device=site.enumeration.device)
        if tuple(value.shape[1:]) != site.shape or not value.dim():
            raise ShapeMismatch(
                f'values of site "{name}" have shape {tuple(value.shape)}; expected '
                f"[M, *{site.shape}]"
            )
        if rows and len(value) != rows[0].shape[1]:
            raise ShapeMismatch(
                f'there are {len(value)} values of site "{name}" and {rows[0].shape[1]} of '
                "another: M must be the same"
            )
        states = site.enumeration.reshape(site.cardinality, -1)
        value = value.reshape(len(value), site.num_nodes, states.shape[1])
        # each different state or value once: comparing all with all would not fit
        both = torch.cat([states, value.flatten(0, 1)])
        distinct, which = both.unique(dim=0, return_inverse=True)
        number = torch.full((len(distinct),), -1, device=which.device)
        number[which[: len(states)]] = torch.arange(len(states), device=which.device)
        found = number[which[len(states) :]].view(value.shape[:2])
        if bool((found < 0).any()):
            raise OptionError(f'a value given for site "{name}" is none of its states')
        rows.append(found.t())
    return torch.cat(rows)


def num_partitions(sizes: Sequence[int], most: int) -> int:
    """Ways to partition sets of these sizes, or a number above ``most`` if there are more."""
    total = 1
    for n in sizes:
        row = [1]  # Bell's triangle
        while len(row) < n and row[-1] <= most:
            row = list(itertools.accumulate(row, initial=row[-1]))
        total *= row[-1]
        if total > most:
            break
    return total


def first_labellings(
    program: LabelledProgram,
    init: str | Posterior | Mapping[str, Any],
    num_particles: int,
    generator: torch.Generator,
) -> Labellings:
    """Passes of filtering, in the order of the elements and in random ones, or what the user
    starts from.

    Raises:
        ShapeMismatch: labels of a site are missing, or have another shape.
        OptionError: there are none, or they are no labels.
    """
    found = Labellings(program)
    if isinstance(init, Posterior | Mapping):
        if isinstance(init, Posterior):
            init = init.sample(max(FEWEST, 4 * num_particles))
        values = {name: _labels(name, value) for name, value in init.items()}
        return found.starting_from(values).distinct(num_particles)
    passes = [found.filtered(found.elements, num_particles)]
    if program.is_exchangeable and init == "icm":
        for _ in range(ORDERS):
            order = torch.randperm(len(found.elements), generator=generator).tolist()
            elements = [found.elements[k] for k in order]
            passes.append(Labellings(program).filtered(elements, num_particles))
    best = max(passes, key=lambda found: float(found.bound))
    return best.joined(*(found.labels() for found in passes)).distinct(num_particles)


def _labels(name: str, value: Any) -> Tensor:
    """Labels as whole numbers."""
    value = torch.as_tensor(value)
    if not value.numel() or bool((value.long() != value).any()) or int(value.min()) < 0:
        raise OptionError(f'init= of "{name}" must be labels 0, 1, ..., one labelling at least')
    return value.long()


def refuse_broken_data(program: LabelledProgram) -> None:
    """Whether the data have a density.

    Raises:
        NonFiniteDensity: they have none with all elements in one cluster.
    """
    one = {
        name: torch.zeros(1, *site.event_shape, dtype=torch.int64, device=program.device)
        for name, site in program.sites.items()
    }
    score = float(program.log_prob(one))
    if not math.isfinite(score):
        raise NonFiniteDensity(
            f"the log density with all in one cluster is {score}. Look at the data: NaN or "
            "infinite numbers, or symbols without mass. A relation may have NaN where cells are "
            "held out; rows of a mixture may not: leave them out."
        )
