"""Points where a function of two or three numbers is large: boxes, halved where it varies.

A factor may be a thin shell in the numbers it reads: a measured distance, the product of two
numbers. A grid of Gauss-Hermite points falls between, wherever it is laid. Boxes that cover
[-8, 8]^r in a frame's coordinates are halved along every axis as long as log f varies by many nats
over the points of a box and the box may hold mass,

    top + varied / 2 + r log(edge)  >  log mass - 14,      top, varied over the points of a box

where the first two terms guess what may lie between the points of a shell, whose log falls with the
square of the distance; and then as long as the mass that its Gauss-Legendre rule finds in a box is
not that of its halves,

    |mass of box - mass of halves|  >  1e-6 of the whole mass

The rules of the boxes that are left make one that is as good for all functions near the one it is
made for, and smooth in what changes.

Source: adaptive cubature by subdivision (Genz & Malik 1980); the criterion is of this file.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pyrograph.infer.message_passing.checked import NOTHING
from pyrograph.infer.message_passing.grids import REACH, Grid

#: Points of a box's rule per dimension, and boxes per dimension to begin with, by dimension.
RULE, FIRST = {2: 6, 3: 4}, 4
#: Nats by which log f varies over the points of a box that says nothing of its mass yet, or by
#: which it varies so little that its mass is known.
VARIES, SMOOTH = 16.0, 0.5
#: Boxes without anything are halved too while they are as wide as this, by dimension: a corner of
#: what is in the next one may lie between their points.
BLANK = {2: 2.0, 3: 4.0}
#: Share of the whole mass by which a box and its halves may differ, and in units of rounding.
ENOUGH, ROUNDING = 1e-6, 16.0
#: Nats below the whole mass at which boxes are not halved any more, and not kept.
SPLITS, KEEPS = 14.0, 28.0
#: Most boxes of a factor, and numbers of points that are looked at at once.
MOST_BOXES, PIECE = 2**14, 2**22
#: Most halvings: a factor may be as much narrower than the cavities as a dtype can tell.
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
        low: ``[M, D, E, r]``, their lowest corners; edge: ``[M, D, E]``.
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
        for z, volume in _points(self.low, self.edge, size):
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


def _points(low: Tensor, edge: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Points ``[m, q, D, E, r]`` of the rules of some boxes, and log volumes ``[m, q, D, E]``."""
    dim = low.shape[-1]
    node, log_weight = _legendre(dim)
    node, log_weight = node.to(low)[:, None, None], log_weight.to(low)[:, None, None]
    boxes = max(1, size // len(node))
    for corner, width in zip(low.split(boxes), edge.split(boxes), strict=True):
        volume = torch.where(width > 0, dim * width.log(), NOTHING)
        yield corner[:, None] + width[:, None, ..., None] * node, volume[:, None] + log_weight


def _legendre(dim: int) -> tuple[Tensor, Tensor]:
    """Nodes ``[q, r]`` on the unit cube, logs of their weights ``[q]``."""
    x, w = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(RULE[dim]))
    nodes = torch.cartesian_prod(*[(x + 1) / 2] * dim)
    return nodes, torch.cartesian_prod(*[(w / 2).log()] * dim).sum(-1)


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
    room = min(MOST_BOXES, room // RULE[dim] ** dim)
    done: list[_Looked] = []
    tried: _Looked | None = None  # boxes whose halves are looked at, to see if these are needed
    for halvings in range(MOST_HALVINGS + 1):
        found = _looked_at(log_weight, frame, *boxes, size)
        whole = torch.cat([found.mass, *(k.mass for k in done)]).logsumexp(0)
        if tried is not None:
            served, found = _compared(tried, found, whole, enough)
            done.append(served)
        found = found.judged(whole)
        left = (room - sum(_most(k.edge > 0) for k in [*done, found])) // (2**dim - 1)
        wanted = found.must | found.may
        count = min(_most(wanted), left)
        if halvings == MOST_HALVINGS or count < 1:
            done.append(found)
            break
        worth, at = torch.where(wanted, found.guess, -torch.inf).topk(count, 0)
        chosen = worth > -torch.inf
        tried = found.at(at, chosen)
        done.append(found.without(torch.zeros_like(wanted).scatter(0, at, chosen)))
        boxes = _halves(tried.low, tried.edge)
    return _counted(done, frame, laid_for)


@dataclass(frozen=True)
class _Looked:
    """Boxes that were looked at: their log masses, which of them must or may be halved, logs of the
    masses that they may have, and by what share of the whole mass halving may still change them:
    their part of what it changed when they came to be; all ``[M, D, E]``."""

    low: Tensor
    edge: Tensor
    mass: Tensor
    varied: Tensor
    guess: Tensor
    doubt: Tensor
    must: Tensor
    may: Tensor

    def judged(self, whole: Tensor) -> _Looked:
        """With what is to be halved, for the whole mass ``[D, E]``: boxes over which log f varies
        too much to be known, and those that their halves might correct."""
        there = (self.edge > 0) & (self.guess > whole - SPLITS)
        must = there & (self.varied > VARIES)
        must = must | (self.guess < NOTHING / 2) & (self.edge >= BLANK[self.low.shape[-1]])
        may = there & ~must & (self.varied > SMOOTH) & (self.mass > whole - SPLITS)
        return replace(self, must=must, may=may)

    def at(self, rows: Tensor, chosen: Tensor) -> _Looked:
        """Some boxes ``[m, D, E]``, those that are not chosen of edge 0."""

        def take(x: Tensor) -> Tensor:
            return x.gather(0, rows)

        low = self.low.gather(0, rows[..., None].expand(*rows.shape, self.low.shape[-1]))
        rest = (take(x) for x in (self.edge, self.mass, self.varied, self.guess, self.doubt))
        found = _Looked(low, *rest, take(self.must), take(self.may))
        return found.without(~chosen)

    def without(self, gone: Tensor) -> _Looked:
        """The others, ``[M, D, E]``: those of edge 0 stand in."""
        return replace(
            self,
            edge=self.edge.masked_fill(gone, 0.0),
            mass=self.mass.masked_fill(gone, NOTHING),
            must=self.must & ~gone,
            may=self.may & ~gone,
        )


def _compared(
    tried: _Looked, halves: _Looked, whole: Tensor, enough: float
) -> tuple[_Looked, _Looked]:
    """Boxes that need not be halved, and the halves of the others."""
    parts = len(halves.mass) // len(tried.mass)
    together = halves.mass.view(-1, parts, *whole.shape).logsumexp(1)
    off = ((tried.mass - whole).exp() - (together - whole).exp()).abs()
    rounding = ROUNDING * torch.finfo(off.dtype).eps
    serves = tried.may & (off < max(enough, rounding))
    halves = replace(halves, doubt=(off / parts).repeat_interleave(parts, 0))
    return (
        replace(tried, may=torch.zeros_like(serves)).without(~serves),
        halves.without(serves.repeat_interleave(parts, 0)),
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
    return low, torch.full_like(low[..., 0], step)


def _halves(low: Tensor, edge: Tensor) -> tuple[Tensor, Tensor]:
    """The 2^r boxes that boxes are made of."""
    dim, edge = low.shape[-1], edge / 2
    corner = torch.tensor(list(itertools.product((0.0, 1.0), repeat=dim)), device="cpu").to(low)
    low = low[:, None] + edge[:, None, ..., None] * corner[:, None, None]
    return low.flatten(0, 1), edge.repeat_interleave(2**dim, 0)


def _looked_at(log_weight: LogWeight, frame: Grid, low: Tensor, edge: Tensor, size: int) -> _Looked:
    """Boxes, ``size`` points at a time; not judged yet."""
    found = []
    for z, volume in _points(low, edge, size):
        value = log_weight(frame, z.flatten(0, 1)).view(volume.shape)
        found.append(((value + volume).logsumexp(1), value.amax(1), value.amin(1)))
    mass, top, bottom = (torch.cat(parts) for parts in zip(*found, strict=True))
    has_zeros = bottom <= NOTHING / 2  # where there is an edge, what is beyond it says nothing
    rises = torch.where(has_zeros, 0.0, (top - bottom) / 2)
    varied = torch.where(has_zeros & (top > NOTHING / 2), torch.inf, top - bottom)
    guess = top + rises + low.shape[-1] * edge.clamp_min(torch.finfo(edge.dtype).tiny).log()
    none = torch.zeros_like(has_zeros)
    return _Looked(low, edge, mass, varied, guess, torch.ones_like(mass), none, none)


def _counted(done: list[_Looked], frame: Grid, laid_for: Grid) -> tuple[Boxes, Tensor]:
    """The boxes that count for the mass of their factor."""
    low, edge, mass, doubt, must, may = (
        torch.cat([getattr(part, name) for part in done])
        for name in ("low", "edge", "mass", "doubt", "must", "may")
    )
    share = (mass - mass.logsumexp(0)).exp()
    counts = (edge > 0) & (share > math.exp(-KEEPS))
    slack = REACH * torch.finfo(edge.dtype).eps * 16
    sides = torch.stack([low <= slack - REACH, low + edge[..., None] >= REACH - slack])
    at_edge = (share[..., None] * sides * counts[..., None]).sum(1) > AT_EDGE
    unsure = torch.where(may, doubt.minimum(share), torch.where(must, share, 0.0))
    missed = (unsure * counts).sum(0)
    order = counts.to(torch.uint8).sort(dim=0, descending=True, stable=True).indices
    at = order[: max(1, _most(counts))]
    edge = torch.where(counts.gather(0, at), edge.gather(0, at), 0.0)
    low = low.gather(0, at[..., None].expand(*at.shape, low.shape[-1]))
    return Boxes(low, edge, missed, frame, laid_for), at_edge
