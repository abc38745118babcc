"""Moments of tilted distributions, f(u)^alpha g(u), on grids that follow them.

    log int f^alpha g du,   mean and covariance under f^alpha g

g is Gaussian, but for numbers with gamma or beta beliefs. Gauss-Hermite points are laid where the
tilted distribution was found before, so that near a fixed point the integrand is almost constant
and few points are enough. They are checked the first time and when they come to rest: in one
dimension by a fine scan, since a peak much narrower than g may fall between the points, in two and
three by boxes that are halved where the integrand varies. (A factor whose logarithm is concave at
all points of a fine scan has no such peak where these lie: its moments there, and those of later
scans, take fewer, if they do.)
Where these disagree (several modes, edges, shells) the few points are given up: for evenly spaced
ones over all that counts for mass or variance, since a small mode far away may be most of a
variance, and for the boxes. Both cost time, and the first cavities are wide: evenly spaced points
are given up again where few ones have come to serve; boxes are used at first where few points are
far off, and how good these are is seen once they come to rest.

Source: Liu & Pierce (1994) for adaptive Gauss-Hermite quadrature.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import torch
from torch import Tensor

from pyrograph.beliefs import Gaussian
from pyrograph.errors import NonFiniteDensity, ZeroMass
from pyrograph.graph.devices import at_once
from pyrograph.infer.message_passing.densities.checked import NOTHING, Improper
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.quadrature.box_rules import RULE
from pyrograph.infer.message_passing.quadrature.boxes import (
    ENOUGH,
    Boxes,
    LastBoxes,
    fewest_points,
    lay,
    spanning,
)
from pyrograph.infer.message_passing.quadrature.grids import Grid, evenly_spaced
from pyrograph.infer.message_passing.quadrature.on_points import (
    FEW_POINTS,
    PIECE,
    SURE,
    Agreement,
    MomentsOnPoints,
    Points,
)
from pyrograph.infer.message_passing.quadrature.sums import Surroundings, Tilted

#: Points per dimension, by effective dimension. Even: in the middle of a grid differences vanish,
#: and where they do a normal density grows without bound as its scale goes to 0.
POINTS = {1: 32, 2: 16, 3: 10, 4: 8, 5: 6}
#: Most evenly spaced points, and where these are too few; fewest; and the numbers that scans may
#: evaluate but for the first.
MOST, FINEST, FEWEST, NUMBERS = 4097, 2**16 + 1, 65, 2**22
#: Deviations and relative variances by which grids move when few points are checked for good; and
#: times after which they are checked at any rate.
AT_REST, PATIENCE = 0.05, 10
#: How often evenly spaced points are given up again: few ones that keep failing are not the ones.
RETURNS = 2
#: Squared distance, in a grid's standard deviations, from which it may miss what is there.
APART = 4.0
#: Difference of log masses, or relative one of second moments, that steps between evenly spaced
#: points may make; and of such points, how many are enough to compare two grids.
STEPS, COMPARED = 0.05, 257
#: In one dimension, where a scan costs little; in more at the first cavities, which will soon be
#: others, and later. Where better points are at hand few ones have to come close to them.
SCAN, CLOSE = Agreement(1e-4, 0.01, ENOUGH, 2**25), Agreement(1e-7, 1e-4, ENOUGH, 2**25)
GROSS, FINE = Agreement(0.05, 0.3, 1e-3, 2**23), Agreement(1e-3, 0.02, ENOUGH, 2**25)


class TiltedMoments(MomentsOnPoints):
    """Moments for a set of like factors.

    Args:
        local: their density in effective coordinates.
        alpha: ``[E]``, not 0.
        num_points: per dimension; default :data:`POINTS`.
        dim: of the grid; default that of u.
    """

    def __init__(
        self,
        local: LocalDensity,
        alpha: Tensor,
        num_points: int | None = None,
        dim: int | None = None,
    ):
        dim = local.dim if dim is None else dim
        super().__init__(local, alpha, dim, num_points or POINTS[dim])
        #: By what they may differ; copies share them.
        self._last = {GROSS: LastBoxes(), FINE: LastBoxes()}
        self.forget()

    def forget(self) -> None:
        """The next time it is found out afresh which points serve."""
        self.is_rough = self.is_checked = False
        #: Whether the next time is one to check few points for good.
        self.is_due = False
        self._most = MOST
        #: First and last of the fine points ``[2, D, E]`` at all of which log f was concave.
        self.concave: Tensor | None = None
        #: Times that points were used without being checked.
        self.age = 0
        #: How often evenly spaced points were given up for few ones.
        self.returns = 0
        #: ``[D, E]`` where points in the place of the few ones were too few the last time.
        self.coarse: Tensor | None = None
        self.boxes: Boxes | None = None
        #: Laid over g, off the grid in use, and found to hold no more.
        self.poorer: Grid | None = None

    def __call__(self, g: Surroundings, origin: Tensor, start: Grid | None, first: Grid) -> Tilted:
        """Moments of f^alpha g.

        Args:
            g: a Gaussian of batch ``[D, E]``, dimension r, or a product of several functions;
                need not be proper. It is a function of u - origin: of numbers far from 0 natural
                parameters lose their digits.
            origin: ``[D, E, r]``.
            start: the grid of the last time.
            first: where to look when there is none.

        Raises:
            ZeroMass: no point with a positive density was found.
        """
        if start is None:
            return self._afresh(g, origin, first)
        if self.is_rough and self.dim > 1:
            return self._in_boxes(g, origin, first)
        try:
            found = self._moved(g, origin, self._nearer(g, origin, start, first))
        except NonFiniteDensity:  # laid over a wider g, it may reach where f is no number
            return self._afresh(g, origin, first)
        if self.is_checked:
            return found
        self.age += 1
        if self.is_rough:
            return self._fewer(found, g, origin)
        self.is_checked = self.is_due or start.is_near(found.peak, AT_REST)
        if not self.is_checked and self.age % PATIENCE:
            return found
        return self._checked(found, g, origin, first, FINE)

    def _afresh(self, g: Surroundings, origin: Tensor, first: Grid) -> Tilted:
        """The same, where nothing is known of earlier times."""
        self.forget()
        if self.dim > 1:
            return self._first_of_several(g, origin, first)
        scan = self._scan(g, origin, first, SCAN.numbers)
        found = self._moved(g, origin, scan.peak)
        return self._even_ones(scan, g, origin) if self._differ(found, scan, SCAN) else found

    # ------------------------------------------------------------------ where to look
    def _nearer(self, g: Surroundings, origin: Tensor, start: Grid, first: Grid) -> Grid:
        """The grid of the last time, or the one laid over g for factors for which g lies off the
        last one: where it has moved far that one holds hardly any mass."""
        off = (first.mean - start.mean).unsqueeze(-1)
        z = torch.linalg.solve_triangular(start.root, off, upper=False)
        apart = z.square().sum((-1, -2)) > APART
        if not bool(apart.any()):
            return start
        if self.poorer is not None and self.poorer.is_near(first, AT_REST):
            return start
        try:
            with torch.no_grad():
                points = self._points
                if self.is_rough and len(points[0]) > COMPARED:
                    points = evenly_spaced(COMPARED, self.local.like)
                here, there = (self._weighed(g, origin, grid, points) for grid in (start, first))
        except NonFiniteDensity:  # g may reach where f is no number
            return start
        has_more = there.log_mass > here.log_mass + (STEPS if self.is_rough else SCAN.mass)
        moved = (apart & has_more & (1 / there.squares > FEW_POINTS))[..., None]
        self.poorer = None if bool(moved.any()) else first
        return Grid(
            torch.where(moved, first.mean, start.mean),
            torch.where(moved[..., None], first.root, start.root),
        )

    # ------------------------------------------------------------------ which points
    @property
    def _points(self) -> Points:
        """Points in use in one dimension."""
        return self._even(NUMBERS) if self.is_rough else self._few

    def _even(self, numbers: int) -> Points:
        """Evenly spaced points, as many as may be evaluated for all factors."""
        count = min(self._most, max(FEWEST, self._points_in(numbers)))
        return evenly_spaced(count, self.local.like)

    def _first_of_several(self, g: Surroundings, origin: Tensor, first: Grid) -> Tilted:
        """Moments in several dimensions, of which nothing is known yet."""
        try:
            found = self._moved(g, origin, first)
        except ZeroMass:  # on few points
            if not self.has_boxes or self._points_in(GROSS.numbers) < fewest_points(self.dim):
                raise
            self.is_rough = True
            return self._on_boxes(g, origin, self._laid(g, origin, first, first, GROSS))
        return self._checked(found, g, origin, first, GROSS)

    def _checked(
        self, found: Tilted, g: Surroundings, origin: Tensor, first: Grid, within: Agreement
    ) -> Tilted:
        """Moments on few points if boxes find no others, else those of boxes. Where there are none,
        or too many factors for them, points that are fewer still tell whether few are enough."""
        if self.dim == 1:
            return self._scanned(found, g, origin, first)
        if not self.has_boxes or self._points_in(within.numbers) < fewest_points(self.dim):
            return self._compared(found, g, origin)
        try:
            boxes = self._laid(g, origin, first, spanning(first, found.peak), within)
            scan = self._on_boxes(g, origin, boxes)
        except (NonFiniteDensity, Improper):  # so far out f may be no number
            return self._compared(found, g, origin)
        if not self._differ(found, scan, within):
            self.coarse = None
            return found
        if not boxes.are_sure:  # nor are they good for more than a doubt
            found = self._compared(found, g, origin)
            self.coarse = self.coarse | self._doubted(found, scan, boxes)
            return found
        self.is_rough, self.coarse = True, None
        if within is FINE:  # those of the first cavities serve once
            self.boxes = boxes
        return scan

    def _doubted(self, found: Tilted, scan: Tilted, boxes: Boxes) -> Tensor:
        """``[D, E]`` where boxes that are not sure lie elsewhere than few points, by more than what
        they know to have missed."""
        off = (found.log_mass - scan.log_mass).abs()
        unsure = -torch.log1p(-boxes.missed.clamp_max(1 - SURE))
        return (off > STEPS + unsure) & self._moments_apart(found, scan, GROSS.moments)

    def _compared(self, found: Tilted, g: Surroundings, origin: Tensor) -> Tilted:
        """The same moments; points that are fewer tell whether few are enough."""
        with torch.no_grad():
            fewer = self._on(g, origin, found.peak, self._tensor_grid(self._num_points - 1))
        off = (found.log_mass - fewer.log_mass).abs() > STEPS
        self.coarse = off | self._moments_apart(found, fewer, STEPS)
        return found

    @property
    def has_boxes(self) -> bool:
        """Whether boxes are laid at all."""
        return self.dim in RULE and not self._has_negative

    @property
    def has_checks(self) -> bool:
        """Whether other points take over where few ones are not enough."""
        return self.dim == 1 or self.has_boxes

    def _scanned(self, found: Tilted, g: Surroundings, origin: Tensor, first: Grid) -> Tilted:
        """Moments on few points if a scan that is sure finds no others, in one dimension."""
        if self._has_negative:
            return found
        try:
            scan = self._scan(g, origin, first, NUMBERS)
        except (NonFiniteDensity, Improper):  # so far out f may be no number
            return found
        unsure = torch.where((scan.half - 1).abs().amax(0) < SURE, 0.0, torch.inf)
        if self._differ(found, scan, SCAN, unsure):
            return self._even_ones(scan, g, origin)
        return found

    @torch.no_grad()
    def _scan(self, g: Surroundings, origin: Tensor, first: Grid, numbers: int) -> Tilted:
        """On evenly spaced points over the first grid, in one dimension."""
        if isinstance(g, Gaussian) and self.local.dim == 1:
            first = self._widened(g, origin, first)
        points = self._even(numbers)
        ends = first.mean[..., 0] + first.root[..., 0, 0] * points[0][[0, -1], :, :, 0]
        is_concave = self.concave is not None and _lies_in(ends, self.concave)
        if not is_concave and len(points[0]) == self._most and self._is_concave(first, points):
            self.concave, is_concave = ends, True
        if is_concave:
            scan = self._on(g, origin, first, evenly_spaced(COMPARED, self.local.like))
            if bool(((scan.half - 1).abs() < SCAN.mass).all()):  # no edge is steep for them
                return scan
        scan = self._on(g, origin, first, points)
        if scan.has_few:
            scan = self._moved_over(g, origin, scan.grid, self._even(NUMBERS))
        return scan

    def _even_ones(self, scan: Tilted, g: Surroundings, origin: Tensor) -> Tilted:
        """Evenly spaced points from now on."""
        self.is_rough = True
        return self._moved(g, origin, scan.grid)

    def _fewer(self, found: Tilted, g: Surroundings, origin: Tensor) -> Tilted:
        """The same on few points, if these have come to serve: evenly spaced ones were for cavities
        that were wider. Tried after 2, 4, 8, ... times."""
        if self.returns == RETURNS or self.age & (self.age - 1) or self.age == 1:
            return found
        few = self._few_that_serve(found, g, origin, CLOSE)
        if few is None:
            return found
        self.is_rough, self.coarse, self.age, self._most = False, None, 0, MOST
        self.returns += 1
        return self._moved(g, origin, few)

    def _in_boxes(self, g: Surroundings, origin: Tensor, first: Grid) -> Tilted:
        """On the boxes of the last time as long as they serve. When they are laid anew few points
        may do again."""
        if self.boxes is not None and self.boxes.laid_for.is_near(first):
            return self._on_boxes(g, origin, self.boxes)
        few: Grid | None = first
        with contextlib.suppress(NonFiniteDensity, Improper):  # so far out f may be no number
            self.boxes = self._laid(g, origin, first, first, FINE)
            scan = self._on_boxes(g, origin, self.boxes)
            few = self._few_that_serve(scan, g, origin, FINE)
        if few is None:
            return scan
        self.forget()
        return self._compared(self._moved(g, origin, few), g, origin)

    @torch.no_grad()
    def _few_that_serve(
        self, scan: Tilted, g: Surroundings, origin: Tensor, within: Agreement
    ) -> Grid | None:
        """Where few points lie that are as good as the boxes or evenly spaced ones of ``scan``."""
        try:
            few = self._moved_over(g, origin, scan.peak, self._few)
        except (ZeroMass, NonFiniteDensity, Improper):  # they fall between, or too far out
            return None
        is_sure = self.boxes is None or self.boxes.are_sure
        is_other = is_sure and self._differ(few, scan, within)
        return None if is_other else few.grid

    def _laid(
        self, g: Surroundings, origin: Tensor, first: Grid, frame: Grid, within: Agreement
    ) -> Boxes:
        def log_weight(grid: Grid, z: Tensor) -> Tensor:
            points = self._weights(g, origin, grid, z)
            return torch.where(points.is_zero, NOTHING, points.log_weight)

        def laid() -> Boxes:
            size = max(1, self._points_in(at_once(PIECE, origin.device)))
            room = self._points_in(within.numbers)
            return lay(log_weight, frame, first, room, size, within.enough)

        if not isinstance(g, Gaussian):
            return laid()
        asked = g.precision, g.shift, origin, first.mean, first.root, frame.mean, frame.root
        return self._last[within]([*asked, self.alpha], laid)

    def _on_boxes(self, g: Surroundings, origin: Tensor, boxes: Boxes) -> Tilted:
        found = self._on(g, origin, boxes.frame, boxes)
        half = (1 - boxes.missed).expand(2, *boxes.missed.shape)
        return replace(found, grid=boxes.frame, half=half)

    def _moved(self, g: Surroundings, origin: Tensor, grid: Grid) -> Tilted:
        """Moments on a grid that is moved until enough points carry the weight."""
        found = self._moved_over(g, origin, grid, self._points)
        if self.is_rough and self._refines(found):
            found = self._moved_over(g, origin, grid, self._points)
        if self.dim == 1:
            self.coarse = _misses(found) if self.is_rough else None
        return found

    def _refines(self, found: Tilted) -> bool:
        """Take more points where they were too few; whether there are any more."""
        if self._most == FINEST or not bool(_misses(found).any()):
            return False
        before, self._most = len(self._points[0]), FINEST
        return len(self._points[0]) > before


def _lies_in(ends: Tensor, others: Tensor) -> bool:
    """Whether intervals ``[2, D, E]`` are parts of others, and as many of the finely spaced points
    of these lie in them as are compared."""
    share = (COMPARED - 1) / (MOST - 1)
    is_wide = ends[1] - ends[0] >= share * (others[1] - others[0])
    return bool(((ends[0] >= others[0]) & (ends[1] <= others[1]) & is_wide).all())


def _misses(found: Tilted) -> Tensor:
    """``[D, E]``: where every second of evenly spaced points finds another mass or width."""
    return (found.half - 1).abs().amax(0) > STEPS
