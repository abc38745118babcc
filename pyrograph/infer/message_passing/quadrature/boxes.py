"""Points where a function of two or three numbers is large: boxes, halved where it varies.

A factor may be a thin shell in the numbers it reads: a measured distance, the product of two
numbers. A grid of Gauss-Hermite points falls between, wherever it is laid. Boxes that cover
[-8, 8]^r in a frame's coordinates are halved as long as log f varies by many nats over the points
of a box and the box may hold mass,

    between + log(volume)  >  log mass - 14

where ``between`` guesses what log f may be between the points: no more than half of what it varies
above the highest of them, as at a shell whose log falls with the square of the distance, and no
more above any than some times what it differs from a neighbour (:func:`.box_rules.between`), which
tells that nothing is left beyond a wall; or a peak that a search has found (:mod:`.peaks`) is
higher than all of its points; and then as long as the mass that its Gauss-Legendre rule finds in a
box is not that of its halves,

    |mass of box - mass of halves|  >  1e-7 of the whole mass

A box is halved along one axis: the one along which log f varies most while it does by many nats,
then the one whose rule has converged least, by the last two of its Legendre coefficients. A narrow
ridge along an axis takes as many boxes as it is long, not as it is narrow.

The rules of the boxes that are left make one that is as good for all functions near the one it is
made for, and smooth in what changes.

Source: adaptive cubature by subdivision (Genz & Malik 1980); the criteria are of this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from pyrograph.errors import NonFiniteDensity
from pyrograph.infer.message_passing.densities.checked import NOTHING, Improper
from pyrograph.infer.message_passing.quadrature.box_rules import (
    RULE,
    between,
    is_there,
    points,
    roughness,
)
from pyrograph.infer.message_passing.quadrature.grids import REACH, Grid
from pyrograph.infer.message_passing.quadrature.peaks import Peaks, climbed

#: Boxes per dimension to begin with.
FIRST = 4
#: Nats by which log f varies over the points of a box that says nothing of its mass yet, or by
#: which it varies so little that its mass is known.
VARIES, SMOOTH = 16.0, 0.5
#: Nats by which a peak is higher than the points of its box and they have not seen it.
HIDDEN = 1.0
#: Share of what log f varies along one axis from which another is as good to part, if it is longer.
ALIKE = 0.7
#: Boxes without anything are halved too while they are as wide as this, by dimension: a corner of
#: what is in the next one may lie between their points.
BLANK = {2: 2.0, 3: 4.0}
#: Share of the whole mass by which a box and its halves may differ, and in units of rounding.
ENOUGH, ROUNDING = 1e-7, 16.0
#: Nats below the whole mass at which boxes are not halved any more, and not kept.
SPLITS, KEEPS = 14.0, 28.0
#: Most boxes of a factor, and numbers of points that are looked at at once.
MOST_BOXES, PIECE = 2**14, 2**22
#: Most halvings along an axis: a factor may be as much narrower than the cavities as a dtype can
#: tell.
MOST_HALVINGS = 40
#: Share of the mass in boxes at the edge from which the frame is too small, and how often it grows.
AT_EDGE, MOST_GROWTHS = 1e-8, 12
#: Share of the mass in boxes that ought to be halved again from which nothing is known.
UNKNOWN = 0.01
#: What boxes are laid over: log f^alpha g at points of a grid.
LogWeight = Callable[[Grid, Tensor], Tensor]


@dataclass(frozen=True)
class Boxes:
    """Boxes of every factor, as many of each: those of edge 0 stand in.

    Shapes:
        low: ``[M, D, E, r]``, their lowest corners; edge: ``[M, D, E, r]``.
        missed: ``[D, E]``, the share of the mass in boxes that ought to be halved again.
    Attributes:
        frame: whose coordinates these are; laid_for: the grid over the cavities of that time. They
            are as good for cavities near these.
    """

    low: Tensor
    edge: Tensor
    missed: Tensor
    frame: Grid
    laid_for: Grid

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """For a checkpoint."""
        grids = self.frame.mean, self.frame.root, self.laid_for.mean, self.laid_for.root
        return self.low, self.edge, self.missed, *grids

    @classmethod
    def of_tensors(cls, *parts: Tensor) -> Boxes:
        """Boxes of their :attr:`tensors`."""
        low, edge, missed, mean, root, laid_for_mean, laid_for_root = parts
        return cls(low, edge, missed, Grid(mean, root), Grid(laid_for_mean, laid_for_root))

    @property
    def are_sure(self) -> bool:
        """Whether no factor's mass is in boxes that ought to be halved again."""
        return not bool((self.missed > UNKNOWN).any())

    def pieces(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Points ``[N, D, E, r]``, and the logs of the volumes that they stand for ``[N, D, E]``,
        about ``size`` at a time."""
        for z, volume in points(self.low, self.edge, size):
            yield z.flatten(0, 1), volume.flatten(0, 1)


class LastBoxes:
    """The boxes that were laid last, for whoever asks for the same again: a look at the evidence
    and the sweep that follows it do."""

    def __init__(self) -> None:
        self._asked: tuple[Tensor, ...] = ()
        self._boxes: Boxes | None = None

    def __call__(self, asked: Sequence[Tensor], lay: Callable[[], Boxes]) -> Boxes:
        """``lay()``, which depends on nothing but the numbers ``asked``."""
        pairs = zip(asked, self._asked, strict=False)
        if self._boxes is None or not all(torch.equal(a, b) for a, b in pairs):
            self._boxes, self._asked = lay(), tuple(a.detach() for a in asked)
        return self._boxes


def fewest_points(dim: int) -> float:
    """Of a factor that boxes tell anything of: of twice those to begin with. Infinity in dimensions
    in which there are no boxes."""
    return 2 * (FIRST * RULE[dim]) ** dim if dim in RULE else math.inf


@torch.no_grad()
def lay(
    log_weight: LogWeight,
    frame: Grid,
    laid_for: Grid,
    room: int,
    size: int = PIECE,
    enough: float = ENOUGH,
) -> Boxes:
    """Boxes over all that counts, in a frame that grows until nothing does at its edges.

    Args:
        log_weight: log f^alpha g ``[N, D, E]`` at points ``[N, D, E, r]`` of a grid.
        room: points of a factor and a state, about; as many again and more are looked at.
        size: of these at a time.
        enough: see :data:`ENOUGH`.
    """
    for _ in range(MOST_GROWTHS):
        found, at_edge = _laid(log_weight, frame, laid_for, room, size, enough)
        if not (bool(at_edge.any()) and found.are_sure):
            break
        low, high = REACH * (at_edge.to(frame.mean) + 1)
        frame = _spanning(frame, -low, high)
    return found


def spanning(first: Grid, peak: Grid) -> Grid:
    """A frame in the coordinates of ``first`` that reaches over the other grid too."""
    off = (peak.mean - first.mean).unsqueeze(-1)
    centre = torch.linalg.solve_triangular(first.root, off, upper=False).squeeze(-1)
    width = torch.linalg.solve_triangular(first.root, peak.root, upper=False).norm(dim=-1)
    low = (centre - REACH * width).clamp_max(-REACH)
    return _spanning(first, low, (centre + REACH * width).clamp_min(REACH))


def _spanning(grid: Grid, low: Tensor, high: Tensor) -> Grid:
    """From ``low`` to ``high [D, E, r]`` in a grid's coordinates."""
    centre, half = (low + high) / 2, (high - low) / (2 * REACH)
    mean = grid.mean + (grid.root @ centre.unsqueeze(-1)).squeeze(-1)
    return Grid(mean, grid.root * half[..., None, :])


def _laid(
    log_weight: LogWeight, frame: Grid, laid_for: Grid, room: int, size: int, enough: float
) -> tuple[Boxes, Tensor]:
    """Boxes in a frame, and ``[2, D, E, r]`` at which of its sides there is mass."""
    dim = frame.mean.shape[-1]
    boxes = _first_boxes(frame.mean)
    peaks = _peaks(log_weight, frame, room)
    room = min(MOST_BOXES, room // RULE[dim] ** dim)
    done: list[_Looked] = []
    tried: _Looked | None = None  # boxes whose halves are looked at, to see if these are needed
    most = dim * MOST_HALVINGS
    for halvings in range(most + 1):
        found = _looked_at(log_weight, frame, peaks, *boxes, size)
        whole = torch.cat([found.mass, *(k.mass for k in done)]).logsumexp(0)
        if tried is not None:
            served, found = _compared(tried, found, whole, enough)
            done.append(served)
        found = found.judged(whole)
        left = room - sum(_most(is_there(k.edge)) for k in [*done, found])
        wanted = found.must | found.may
        count = min(_most(wanted), left)
        if halvings == most or count < 1:
            done.append(found)
            break
        worth, at = torch.where(wanted, found.guess, -torch.inf).topk(count, 0)
        chosen = worth > -torch.inf
        tried = found.at(at, chosen)
        done.append(found.without(torch.zeros_like(wanted).scatter(0, at, chosen)))
        boxes = _halves(tried.low, tried.edge, tried.axis)
    return _counted(done, frame, laid_for)


def _peaks(log_weight: LogWeight, frame: Grid, room: int) -> Peaks | None:
    """Peaks to look for; None where f is no number somewhere out there."""
    try:
        return climbed(partial(log_weight, frame), frame.mean.shape, frame.mean, room)
    except (NonFiniteDensity, Improper):
        return None


@dataclass(frozen=True)
class _Looked:
    """Boxes that were looked at: their log masses, by how many nats log f varies over their points,
    whether a peak is hidden between these, logs of the masses that they may have, along which axis
    to halve them, by what share of the whole mass halving may still change them (their part of what
    it changed when they came to be), and which of them must or may be halved; all ``[M, D, E]``."""

    low: Tensor
    edge: Tensor
    mass: Tensor
    varied: Tensor
    hides: Tensor
    guess: Tensor
    axis: Tensor
    doubt: Tensor
    must: Tensor
    may: Tensor

    def judged(self, whole: Tensor) -> _Looked:
        """With what is to be halved, for the whole mass ``[D, E]``: boxes over which log f varies
        too much to be known, and those that their halves might correct."""
        there = is_there(self.edge) & (self.guess > whole - SPLITS)
        must = there & ((self.varied > VARIES) | self.hides)
        is_wide = self.edge.amax(-1) >= BLANK[self.low.shape[-1]]
        must = must | (self.guess < NOTHING / 2) & is_wide
        may = there & ~must & (self.varied > SMOOTH) & (self.mass > whole - SPLITS)
        return replace(self, must=must, may=may)

    def at(self, rows: Tensor, chosen: Tensor) -> _Looked:
        """Some boxes ``[m, D, E]``, those that are not chosen of edge 0."""
        corners = rows[..., None].expand(*rows.shape, self.low.shape[-1])
        names = ("mass", "varied", "hides", "guess", "axis", "doubt", "must", "may")
        found = _Looked(
            self.low.gather(0, corners),
            self.edge.gather(0, corners),
            **{name: getattr(self, name).gather(0, rows) for name in names},
        )
        return found.without(~chosen)

    def without(self, gone: Tensor) -> _Looked:
        """The others, ``[M, D, E]``: those of edge 0 stand in."""
        return replace(
            self,
            edge=self.edge.masked_fill(gone[..., None], 0.0),
            mass=self.mass.masked_fill(gone, NOTHING),
            must=self.must & ~gone,
            may=self.may & ~gone,
        )


def _compared(
    tried: _Looked, halves: _Looked, whole: Tensor, enough: float
) -> tuple[_Looked, _Looked]:
    """Boxes that need not be halved, and the halves of the others."""
    together = halves.mass.view(-1, 2, *whole.shape).logsumexp(1)
    off = ((tried.mass - whole).exp() - (together - whole).exp()).abs()
    rounding = ROUNDING * torch.finfo(off.dtype).eps
    serves = tried.may & (off < max(enough, rounding))
    halves = replace(halves, doubt=(off / 2).repeat_interleave(2, 0))
    return (
        replace(tried, may=torch.zeros_like(serves)).without(~serves),
        halves.without(serves.repeat_interleave(2, 0)),
    )


def _most(which: Tensor) -> int:
    """Most boxes of a factor, ``[M, D, E]``."""
    return int(which.sum(0).max())


def _first_boxes(like: Tensor) -> tuple[Tensor, Tensor]:
    """The same for all factors of ``like [D, E, r]``: their lowest corners and edges."""
    step = 2 * REACH / FIRST
    axis = torch.arange(FIRST, dtype=like.dtype, device=like.device) * step - REACH
    low = torch.cartesian_prod(*[axis] * like.shape[-1])[:, None, None]
    low = low.expand(-1, *like.shape)
    return low, torch.full_like(low, step)


def _halves(low: Tensor, edge: Tensor, axis: Tensor) -> tuple[Tensor, Tensor]:
    """The two boxes that boxes are made of, parted along an axis ``[M, D, E]``."""
    is_parted = torch.nn.functional.one_hot(axis, low.shape[-1]).bool()
    edge = torch.where(is_parted, edge / 2, edge)
    upper = torch.where(is_parted, low + edge, low)
    return torch.stack([low, upper], 1).flatten(0, 1), edge.repeat_interleave(2, 0)


def _looked_at(
    log_weight: LogWeight, frame: Grid, peaks: Peaks | None, low: Tensor, edge: Tensor, size: int
) -> _Looked:
    """Boxes, ``size`` points at a time; not judged yet."""
    found = []
    for z, volume in points(low, edge, size):
        value = log_weight(frame, z.flatten(0, 1)).view(volume.shape)
        top = value.amax(1)
        seen = (value + volume).logsumexp(1), top, value.amin(1), between(value, low.shape[-1])
        found.append((*seen, *roughness(value, top, low)))
    mass, top, bottom, unseen, ranges, tail = (torch.cat(own) for own in zip(*found, strict=True))
    has_zeros = bottom <= NOTHING / 2  # where there is an edge, what is beyond it says nothing
    highest = top if peaks is None else peaks.highest_in(low, edge).maximum(top)
    rises = torch.where(has_zeros, 0.0, (highest - bottom) / 2)
    varied = torch.where(has_zeros & (top > NOTHING / 2), torch.inf, top - bottom)
    volume = edge.clamp_min(torch.finfo(edge.dtype).tiny).log().sum(-1)
    rough = torch.where((varied > VARIES)[..., None], ranges, tail)
    hides = highest > top + HIDDEN
    is_like = hides[..., None] | (rough >= ALIKE * rough.amax(-1, keepdim=True))
    axis = torch.where(is_like, edge, 0.0).argmax(-1)
    undecided = torch.zeros_like(has_zeros)
    return _Looked(
        low=low,
        edge=edge,
        mass=mass,
        varied=varied,
        hides=hides,
        guess=(highest + rises).minimum(unseen.maximum(highest)) + volume,
        axis=axis,
        doubt=torch.ones_like(mass),
        must=undecided,
        may=undecided,
    )


def _counted(done: list[_Looked], frame: Grid, laid_for: Grid) -> tuple[Boxes, Tensor]:
    """The boxes that count for the mass of their factor."""
    low, edge, mass, doubt, must, may = (
        torch.cat([getattr(part, name) for part in done])
        for name in ("low", "edge", "mass", "doubt", "must", "may")
    )
    share = (mass - mass.logsumexp(0)).exp()
    counts = is_there(edge) & (share > math.exp(-KEEPS))
    slack = REACH * torch.finfo(edge.dtype).eps * 16
    sides = torch.stack([low <= slack - REACH, low + edge >= REACH - slack])
    at_edge = (share[..., None] * sides * counts[..., None]).sum(1) > AT_EDGE
    unsure = torch.where(may, doubt.minimum(share), torch.where(must, share, 0.0))
    missed = (unsure * counts).sum(0)
    order = counts.to(torch.uint8).sort(dim=0, descending=True, stable=True).indices
    at = order[: max(1, _most(counts))]
    corners = at[..., None].expand(*at.shape, low.shape[-1])
    edge = torch.where(counts.gather(0, at)[..., None], edge.gather(0, corners), 0.0)
    return Boxes(low.gather(0, corners), edge, missed, frame, laid_for), at_edge
