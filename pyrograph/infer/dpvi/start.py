"""Where DPVI starts: local maxima, from scattered, opposite and equal states.

A bound over few particles has many local optima, and which one is reached is decided here: every
scattered state comes with its opposite, for models that do not change under it, and nodes that are
all in their first, second, ... state for models whose neighbours want to agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrograph.errors import OptionError, ShapeMismatch
from pyrograph.graph import FactorGraph
from pyrograph.infer.dpvi.clusters import CHUNK, Clusters
from pyrograph.trace.sites import tensor_of

#: Fewest starts, and sweeps of each.
FEWEST, SWEEPS = 32, 100
#: Whole numbers of which torch works out no common dtype with others.
UNSIGNED = {torch.uint16, torch.uint32, torch.uint64}
#: Scores of all states of all nodes, in all starts of equal states, at most; or those of FEWEST.
MOST_SCORES = 2**24


def scattered(cards: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Independent uniform states ``[V, count]``, their opposites, and equal states: ``[V, M]``."""
    u = torch.rand(len(cards), count, generator=generator, dtype=torch.float64, device="cpu")
    c = cards.cpu().unsqueeze(1)
    x = (u * c).long()
    most = int(c.max())
    # with many states, some that are evenly apart
    count = min(most, max(FEWEST, MOST_SCORES // int(c.sum())))
    equal = (torch.arange(count, device="cpu") * (most - 1) // max(1, count - 1)).minimum(c - 1)
    return torch.cat([x, c - 1 - x, equal], 1).to(cards.device)


def climbed(x: Tensor, blocks: list[Clusters]) -> Tensor:
    """Local maxima from states ``[V, M]``: every block in turn takes its best states."""
    largest = max((len(clusters) * clusters.num_states for clusters in blocks), default=1)
    parts = x.split(max(1, CHUNK // largest), 1)
    return torch.cat([_climbed(part, blocks) for part in parts], 1)


def _climbed(x: Tensor, blocks: list[Clusters]) -> Tensor:
    x = x.clone()
    moving = torch.arange(x.shape[1], device=x.device)
    for _ in range(SWEEPS):
        here = x[:, moving]
        moved = torch.zeros_like(moving, dtype=torch.bool)
        for clusters in blocks:
            local, present = clusters.local_scores(here), clusters.current(here).unsqueeze(2)
            best, state = local.max(2)
            # ties keep what is there, so that climbing ends
            better = best > local.gather(2, present).squeeze(2)
            state = torch.where(better, state, present.squeeze(2))
            moved |= better.any(0)
            here[clusters.nodes.flatten()] = clusters.states[state].permute(0, 2, 1).flatten(0, 1)
        x[:, moving] = here
        moving = moving[moved]  # the others have come to rest
        if not len(moving):
            break
    return x


def comparable(value: Any) -> Tensor:
    """Given values as a tensor whose numbers can be told apart.

    Raises:
        TypeError: they are complex, or of a layout that torch cannot sort. What is no tensor
            raises what torch raises.
    """
    value = tensor_of(value)
    if value.is_complex():
        raise TypeError(f"its numbers are {value.dtype}; give whole or floating ones")
    if value.layout is not torch.strided or value.is_nested:
        raise TypeError(f"it is laid out as {value.layout}; give a dense one, .to_dense()")
    return value.long() if value.dtype in UNSIGNED else value


def codes_of(graph: FactorGraph, values: Mapping[str, Any]) -> Tensor:
    """Numbers of states ``[V, M]`` of values ``{site: [M, *site shape]}``.

    Raises:
        ShapeMismatch: a site is missing or unknown, has another shape, or not as many values as
            another.
        OptionError: a value is none of the site's states, or no tensor can be made of them.
    """
    unknown = [name for name in values if name not in graph.sites]
    if unknown:
        raise ShapeMismatch(
            f'values name "{unknown[0]}", which is no latent site; these are '
            + ", ".join(f'"{name}"' for name in graph.sites)
        )
    rows = []
    for name, site in graph.sites.items():
        if name not in values:
            raise ShapeMismatch(f'no values of site "{name}"; expected [M, *{site.shape}]')
        try:
            value = comparable(values[name]).to(site.enumeration.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise OptionError(
                f'values given for site "{name}" are no tensor [M, *{site.shape}]: {error}'
            ) from error
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
        wrong = (found < 0).nonzero()
        if len(wrong):
            m, node = wrong[0].tolist()
            value = value[m, node].tolist()
            raise OptionError(
                f'a value given for site "{name}" is none of its states: '
                f"{value if site.event_shape else value[0]} in row {m}, at "
                f"{[int(k) for k in np.unravel_index(node, site.batch_shape)]}"
            )
        rows.append(found.t())
    return torch.cat(rows)
