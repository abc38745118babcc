"""Have particles arrived, and are they as wide as the target? Two checks that need no truth.

    E_p[ s_i ] = 0,        E_p[ s_i (x_i - m) ] = -1 for every m,        s = grad log p

(integration by parts). The second sees a spread that is off, not a set of particles that is far
away as a whole; the first sees that: for a Gaussian p whose particles are b of its standard
deviations off, and as wide as p, |mean s_i| sd_i is b. For other p the first may fail where the
mean of x_i is right: s_i reads the neighbours of i too, so a scale beside it that is too wide, or
a dependence that is missed, does it. O(n dim).

Both look at one coordinate, beside its neighbours as they are. Where a chain of sites is strongly
correlated, all of it may be shifted by its standard deviation or far too narrow while each site
fits its neighbours. So a claim takes the same identities along a few sums of coordinates,
:func:`common_misfit`: a shift or a lack of width that sites next to each other share. What other
combinations of sites share they do not see. Nor, beyond Gaussians, is the ratio one of variances:
it weighs the particles by how the score grows, and under heavy tails, where that falls off,
particles may lack most of the variance and have a ratio near 1.

*Independent particles* miss both by chance. A warning grants them :data:`ERRORS` standard errors
beyond what counts as off: it should never be false. A claim that they have arrived grants far
less, :func:`common_errors` and these not on top: it is asked for at every step, and a drifting
run would stop wherever the band is wide enough to let it.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.diagnostics import variance_ratio

#: |mean score| * sd above which particles have not arrived. Settled runs of 10 to 200 particles
#: stay below 0.06 on near-Gaussian targets, runs whose means are wrong lie above 0.3. Where scales
#: multiply sites, as in a hierarchy, 0.2 to 0.5 also comes of right means in a wrong shape.
#: Beyond ``FAR_OFF`` ratios of variances, of neighbours that are right, are not spoken of.
OFF, FAR_OFF = 0.2, 0.5
#: Variance ratios outside of which the status says so: of the median coordinate, of the worst one.
NARROW, WIDE = 0.9, 1.1
FAR_NARROW, FAR_WIDE = 0.5, 2.0
#: Outside of which the status of a run that has converged tells of the worst one: where ``tol`` was
#: met on the way to the target's width, the run ends as the ratio passes ``FAR_NARROW``.
TOLD_NARROW, TOLD_WIDE = 0.7, 1.4
#: Outside of which, and of what chance may do, chains have not converged: no kernel holds them
#: narrow, but steps that are too few; the discretisation makes them wider.
CHAINS_NARROW, CHAINS_WIDE = 0.8, 1.25
#: Sums of coordinates that a claim takes to fit, their shift that counts as off, and the standard
#: errors granted to them: no kernel arranges sums of sites that are no neighbours.
WAVES, COMMON_OFF, COMMON_ERRORS = 4, 0.5, 2.5
#: Standard errors that a warning grants to particles drawn independently.
ERRORS = 5.0


@dataclass(frozen=True)
class SteinChecks:
    """What Stein's identity says of particles, coordinate by coordinate.

    Coordinates whose score is 0 at every particle have no density to be compared with; they
    count as settled.

    Shapes:
        shift: ``[dim]``, |mean score| * sd; 0 if the particles fit.
        ratio: ``[dim]``, variance of the particles by that of the target if that is Gaussian and
            the other coordinates are right.
        shift_by_chance, ratio_by_chance: ``[dim]``, how far chance may have them from 0 and 1.
    """

    shift: Tensor
    ratio: Tensor
    shift_by_chance: Tensor
    ratio_by_chance: Tensor

    @classmethod
    def of(cls, x: Tensor, score: Tensor, errors: float | Tensor = 0.0) -> "SteinChecks":
        """The checks of particles ``[n, dim]`` and their scores.

        Args:
            errors: standard errors of the two means by which independent particles may miss the
                identities, one number or ``[dim]``; 0 for particles that arrange themselves.
        """
        known = (score != 0).any(0)
        granted = errors / len(x) ** 0.5
        mean, centred = score.mean(0), x - x.mean(0)
        sd = _root_mean_square(centred)
        shift = torch.where(known, mean.abs() * sd, 0)
        ratio = torch.where(known, variance_ratio(x, score), 1)
        return cls(
            shift,
            ratio,
            granted * _root_mean_square(score - mean) * sd,
            granted * _root_mean_square(score * centred + ratio),
        )

    @property
    def clear_shift(self) -> Tensor:
        """The shifts, as much nearer to 0 as chance may account for: ``[dim]``."""
        return (self.shift - self.shift_by_chance).clamp_min(0)

    @property
    def clear_ratio(self) -> Tensor:
        """The ratios, as much nearer to 1 as chance may account for: ``[dim]``."""
        ratio, error = self.ratio, self.ratio_by_chance
        # upwards in logarithms: the error of a ratio grows with it
        upper = (ratio * torch.exp(-error / ratio)).clamp_min(1)
        return torch.where(ratio > 1, upper, (ratio + error).clamp_max(1))

    @property
    def arrived(self) -> bool:
        """Whether no mean score is off; numbers that overflow are."""
        return bool((self.clear_shift <= OFF).all())

    @property
    def passed(self) -> bool:
        """Whether no mean score is off and no spread far off, beyond chance."""
        ratio = self.clear_ratio
        return self.arrived and bool(((ratio >= FAR_NARROW) & (ratio <= FAR_WIDE)).all())

    def unsettled(self, narrow: float = FAR_NARROW, wide: float = FAR_WIDE) -> int | None:
        """A coordinate whose mean score or spread is off by more than counts as off and by more
        than chance may account for. A claim of convergence takes that there is none."""
        right = self.shift <= self.shift_by_chance.clamp_min(OFF)
        alike = (self.ratio >= narrow) & (self.ratio <= wide)
        off = ~(right & (alike | (self.clear_ratio == 1)))
        return int(off.int().argmax()) if bool(off.any()) else None

    def worst_told(self) -> int | None:
        """The coordinate whose spread is furthest off, if a run that has converged tells of it."""
        ratio = self.clear_ratio
        column = int(ratio.log().abs().argmax())
        return None if TOLD_NARROW <= ratio[column] <= TOLD_WIDE else column

    def most_shifted(self) -> int:
        """The coordinate whose mean score is furthest off."""
        return int(self.clear_shift.nan_to_num(torch.inf).argmax())

    def misshapen(self) -> int | None:
        """The coordinate whose variance is furthest off, if clearly so.

        Of particles that are far away the ratio is none of variances, and below 0, where scores
        rise with x, it never is."""
        if not bool((self.clear_shift <= FAR_OFF).all()):
            return None
        ratio = self.clear_ratio.nan_to_num(torch.inf).where(self.ratio > 0, 1)
        column = int(ratio.log().abs().argmax())
        return None if NARROW <= ratio[column] <= WIDE else column

    def too_wide(self) -> int | None:
        """The widest coordinate, if it or the median one is too wide."""
        ratio = self.clear_ratio.nan_to_num(torch.inf)
        off = ratio.median() > WIDE or ratio.max() > FAR_WIDE
        return int(ratio.argmax()) if off else None

    def too_narrow(self) -> int | None:
        """The narrowest coordinate, if it or the median one is too narrow."""
        ratio = self.clear_ratio
        off = ratio.median() <= NARROW or ratio.min() < FAR_NARROW
        return int(ratio.argmin()) if off else None


def common_misfit(x: Tensor, score: Tensor) -> tuple[float, float] | None:
    """Shift and ratio of a sum of coordinates that is off or too narrow; None if there is none.

    The sums are sum_i cos(pi j (i + 1/2) / dim) x_i / sd_i, j = 0 .. 3, over the coordinates in
    node order, with sd_i of the particles ``[n, dim]``: directions that vary little along a chain.
    """
    known = (score != 0).any(0)
    centred, score = x[:, known] - x[:, known].mean(0), score[:, known]
    sd = _root_mean_square(centred)
    n, dim = centred.shape
    place = torch.pi * (torch.arange(dim, device="cpu").to(x) + 0.5) / dim
    waves = torch.cos(place[:, None] * torch.arange(min(WAVES, dim), device="cpu").to(x))
    waves = waves / waves.square().sum(0).sqrt()
    sums = centred / torch.where(sd > 0, sd, 1) @ waves
    checks = SteinChecks.of(sums, score * sd @ waves, COMMON_ERRORS)
    right = checks.shift <= checks.shift_by_chance.clamp_min(COMMON_OFF)
    # the ratio of n Gaussian draws has a standard error of sqrt(2 / n)
    wide = checks.ratio >= min(FAR_NARROW, 1 - COMMON_ERRORS * (2 / n) ** 0.5)
    off = ~(right & wide)
    worst = int(off.int().argmax()) if bool(off.any()) else None
    return None if worst is None else (float(checks.shift[worst]), float(checks.ratio[worst]))


def uncommon_spread(x: Tensor, score: Tensor, kind: Tensor, errors: float) -> int | None:
    """A coordinate of like ones whose ratios are off on average, beyond chance; None if none is.

    Means over like coordinates know the ratio better than any one of them: sites that a scale holds
    too near may look right one by one.

    Args:
        kind: ``[dim]``, whole numbers from 0 on, equal for like coordinates.
        errors: standard errors granted to means over independent particles ``[n, dim]``: a claim is
            asked for at every step, so few.
    """
    columns = (score != 0).any(0).nonzero().squeeze(1)
    own, kinds = -(score * (x - x.mean(0)))[:, columns], kind[columns]
    size = int(kind.max()) + 1
    number = torch.bincount(kinds, minlength=size)
    means = own.new_zeros(len(x), size).index_add_(1, kinds, own) / number.clamp_min(1)
    ratio = means.mean(0)
    granted = errors * _root_mean_square(means - ratio) / len(x) ** 0.5
    narrow = 1 - ratio > granted.clamp_min(1 - NARROW)
    off = (number > 0) & (narrow | (ratio - 1 > granted.clamp_min(CHAINS_WIDE - 1)))
    if not bool(off.any()):
        return None
    k = int(off.int().argmax())
    excess = (own.mean(0) - 1) * (ratio[k] - 1).sign()  # as its kind is off
    return int(columns[torch.where(kinds == k, excess, -torch.inf).argmax()])


def _root_mean_square(x: Tensor) -> Tensor:
    """Over particles ``[n, dim]``: ``[dim]``. In units of the largest, as squares leave the range
    of single precision where scores are per metre of atoms: chance would grant them anything."""
    size = x.abs().amax(0)
    unit = torch.where(size > 0, size, 1)
    return unit * (x / unit).square().mean(0).sqrt()


def common_errors(dim: int) -> float:
    """Standard errors that the furthest of ``dim`` means is about off, sqrt(2 log(2 dim))."""
    return math.sqrt(2 * math.log(2 * dim))


def node_of(graph, column: int) -> int:
    """The node that a column of flat particles belongs to."""
    column = torch.tensor(column, device="cpu")
    return int(torch.searchsorted(graph.columns.cpu(), column, right=True)) - 1


def coordinate_name(graph, column: int) -> str:
    """The site and index that a column of flat particles belongs to."""
    node = node_of(graph, column)
    site, index = graph.nodes[node]
    start, stop = graph.columns[node : node + 2].tolist()
    inside = f", coordinate {column - start}" if stop - start > 1 else ""
    place = f"[{', '.join(map(str, index))}]" if index else ""
    return f'site "{site}"{place}{inside}'


def without_density(graph) -> Tensor:
    """Nodes in no factor's scope, as those a mask takes all factors from: ``[num_nodes]``."""
    bare = graph.columns.cpu().diff() > 0
    for group in graph.factors:
        bare[group.scope.flatten().cpu()] = False
    return bare
