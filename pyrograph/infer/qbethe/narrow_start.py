"""Components of posteriors that are far narrower than the program's draws start there.

Steps of Adam are shares of what draws are apart. Where a posterior is a hundred times narrower and
more, as of data in other units than the prior's, it takes hundreds of them to narrow down, or the
shortest ones are too long. Several modes are looked for, from several draws, and components start
about all of them; of a hierarchy, which has none, about mean field's beliefs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyrograph.errors import NonFiniteDensity
from pyrograph.graph import FactorGraph
from pyrograph.infer.qbethe.build import Network
from pyrograph.infer.qbethe.checkpoint import take
from pyrograph.infer.qbethe.components import Parameters
from pyrograph.infer.qbethe.gaussian_forest import places_of
from pyrograph.infer.qbethe.mode_start import (
    EACH,
    FARTHEST,
    FEW_ENTRIES,
    FEW_NUMBERS,
    SLACK,
    climbed,
    is_small,
)

#: How many times as narrow as its unit a number is of which Adam's steps are too long.
NARROW = 100.0
#: Climbs to modes, how many of the first ones may fail; modes at most, in conditional widths, that
#: are the same; how much lower than the best ones, in nats, modes have no mass to speak of.
CLIMBS, FAILED, SAME, LOWER = 8, 2, 1.0, 10.0


@dataclass(frozen=True)
class Place:
    """Where components may start: independent nodes of these means and deviations, ``[dim]`` each;
    E log p there, and the free energy but for a constant."""

    mean: Tensor
    width: Tensor
    energy: float
    value: float

    def is_at(self, mode: Tensor) -> bool:
        return bool(((mode - self.mean).abs() < SAME * self.width).all())


class NarrowStart:
    """Looks for places to start, and moves components there.

    Args:
        network: of continuous nodes, with what means are measured in so far.
        energy: E log p of every restart, ``[B]``.
        mean_field: its means and standard deviations, ``[dim]`` each, where it serves.
    """

    def __init__(
        self,
        graph: FactorGraph,
        network: Network,
        energy: Callable[[Parameters], Tensor],
        mean_field: Callable[[], tuple[Tensor, Tensor] | None],
    ):
        self.graph, self.network = graph, network
        self._energy, self._mean_field = energy, mean_field
        self._columns = places_of(graph, network)
        self._centre, self._unit = graph.constant.new_zeros(2, graph.dim)
        for at, kind in zip(self._columns, network.kinds, strict=True):
            self._centre[at], self._unit[at] = kind.centre, kind.unit

    @torch.no_grad()
    def places(self, draws: Tensor | None) -> list[Place]:
        """Modes above draws, the best one first, about which the posterior is nearly a Gaussian; or
        where mean field ends, if there are none or that is far better. No place where the best is
        not far narrower than the units.

        Args:
            draws: ``[n, dim]``; None where it is known that there is no such mode.
        """
        if not is_small(self.graph, self.network, FEW_NUMBERS, FEW_ENTRIES):
            return []  # beside a run climbs would cost much
        found = [] if draws is None else self._modes(draws)
        if found is None:
            return []
        field = self._mean_field()
        place = None if field is None else self._place(*field)
        if place is not None and (not found or place.value > found[0].value + LOWER):
            found = [place] if self._is_narrow(place) else []
        return [own for own in found if own.value > found[0].value - LOWER]

    def _modes(self, draws: Tensor) -> list[Place] | None:
        """None if they are not narrow."""
        found: list[Place] = []
        inner = (draws - self._centre) / self._unit
        inner = self._centre + inner.clamp(-FARTHEST, FARTHEST) * self._unit
        for number, start in enumerate([self._centre, *inner[: CLIMBS - 1]]):
            if not found and number == FAILED:
                break
            own = self._at_mode(start, found)
            if own is None:
                continue
            if not found and not self._is_narrow(own):
                return None
            found.append(own)
        return sorted(found, key=lambda own: -own.value)

    def _is_narrow(self, place: Place) -> bool:
        """Whether a number is far narrower there than its unit."""
        return bool((NARROW * place.width < self._unit).any())

    def _at_mode(self, start: Tensor, others: list[Place]) -> Place | None:
        """The mode above ``start [dim]``; None if there is none, the posterior is no Gaussian
        there, or it is one of others."""
        mode = climbed(self.graph, self.network, start, self._unit)
        if mode is None or any(other.is_at(mode[0]) for other in others):
            return None
        mean, root, highest = mode
        found = self._place(mean, 1 / root.norm(dim=1))
        least = float(highest) - 0.5 * self.graph.dim - (SLACK + EACH * self.graph.dim)
        return found if found is not None and found.energy >= least else None

    def _place(self, mean: Tensor, width: Tensor) -> Place | None:
        """None where log p has no mean there."""
        like = self.graph.constant.detach()
        own: Parameters = {"weights": like.new_zeros(1, 1)}
        for k, (kind, at) in enumerate(zip(self.network.kinds, self._columns, strict=True)):
            own[f"mean_{k}"] = ((mean[at] - kind.centre) / kind.unit).to(like)[None, None]
            own[f"log_scale_{k}"] = (width[at] / kind.unit).log().to(like)[None, None]
        for name, (scopes, numbers) in self.network.num_ties.items():
            own[name] = like.new_zeros(1, 1, scopes, numbers)
        try:
            value = float(self._energy(own))
        except NonFiniteDensity:
            return None
        return Place(mean, width, value, value + float(width.log().sum()))

    @torch.no_grad()
    def move(
        self,
        parameters: Parameters,
        places: list[Place],
        init_scale: float,
        generator: torch.Generator,
    ) -> None:
        """Components to these places, if any, in turn, measured in the first one's widths.

        Args:
            init_scale: width of a component in those of its place.
        """
        if not places:
            return
        like = self.graph.constant.detach()
        batch, components = parameters["weights"].shape
        which = torch.arange(batch * components, device=like.device) % len(places)
        noise = torch.randn(
            len(which), self.graph.dim, generator=generator, dtype=torch.float64, device="cpu"
        ).to(like.device)
        spread = torch.stack([place.width for place in places])[which]
        means = torch.stack([place.mean for place in places])[which] + spread * noise
        widths = init_scale * spread
        kinds, there = [], dict(parameters)
        for k, (kind, at) in enumerate(zip(self.network.kinds, self._columns, strict=True)):
            centre, unit = places[0].mean[at], places[0].width[at]
            kinds.append(replace(kind, centre=centre.to(like), unit=unit.to(like)))
            shape = batch, components, *at.shape
            there[f"mean_{k}"] = ((means[:, at] - centre) / unit).to(like).reshape(shape)
            there[f"log_scale_{k}"] = (widths[:, at] / unit).log().to(like).reshape(shape)
        take(self.network, kinds, parameters, there)
