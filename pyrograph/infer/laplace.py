"""A cheap start: the mode, with every node as wide as its conditional there.

    x* = argmax log p,      x_i ~ N(x*_i, 1 / H_ii),      H = -Hessian of log p at x*

The diagonal of H takes one difference of scores for each colour of the Markov graph: nodes of
one colour share no factor, so that a step along all of them changes each one's score by its own
curvature alone. O((number of colours) * (one pass over the graph)), no matrix.

Conditional widths understate marginal ones; it is a start, not an approximation.
"""

import math

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.distributions import constraints

from pyrograph.diagnostics import value_and_score
from pyrograph.errors import InferenceError, NonFiniteDensity
from pyrograph.graph.colouring import colour
from pyrograph.infer.stein_checks import coordinate_name, node_of

#: Gain in log density by one step from which a point is no mode, and how many of the steepest
#: coordinates are looked at.
RISE, STEEPEST = 0.5, 8
#: Steps of a climb, at most.
MAX_STEPS = 500
#: Where a width over steps of itself is so many times as large, it is the one that counts; how
#: often that is asked, at most. From where it is so many times as small, the top is flat.
DIFFERS, MAX_REPEATS, FLAT = 1.5, 10, 1e3
EPS = torch.finfo(torch.float64).eps
#: Roundings within which what fits exactly is held, and how often a scale that falls is followed.
PINNED, MAX_CLIMBS = 1e4, 5
#: Supports of scales; and a fall of a logarithm, while the density rises, from which a scale may be
#: on its way to 0.
SCALES, SINKS = (constraints.positive, constraints.nonnegative), 2.0


def mode_and_width(graph) -> tuple[Tensor, Tensor]:
    """The mode and the conditional standard deviations there, both ``[dim]``.

    The mode is climbed to from zero by L-BFGS; a column whose curvature there is not that of a
    maximum (a ridge, say) gets the width 1.

    Raises:
        NonFiniteDensity: the density breaks down at zero or about the mode, naming the factor.
        InferenceError: the climb ended where the density still rises, naming the site.
    """
    mode, exhausted = find_mode(graph)
    fine = graph if graph.dtype == torch.float64 else graph.to(None, torch.float64)
    width = conditional_width(fine, mode)
    column = rising_column(graph, mode, width)
    if column is None or (exhausted and not _is_scale(graph, column)):
        return mode, width  # or on its way there, which is good enough to start from
    if exhausted:
        return _followed(graph, fine, mode, width, column)
    # rounding can end a climb too, and units that differ by far
    higher, _ = find_mode(fine, mode, width)
    width = conditional_width(fine, higher)
    if _is_scale(graph, column) and _sinks(mode, higher, column) and _is_pinned(higher, width):
        _refuse_a_slope(graph, higher.to(graph.dtype), column)
    column = rising_column(fine, higher, width)  # out of steps or not: it has had two climbs
    mode, width = higher.to(graph.dtype), width.to(graph.dtype)
    if column is not None:
        _refuse_a_slope(graph, mode, column)
    return mode, width


def _followed(graph, fine, mode: Tensor, width: Tensor, column: int) -> tuple[Tensor, Tensor]:
    """Where a scale that may still fall has come to rest: a regression of many coefficients is on
    its way to a mode after a first climb, latents that can fit data exactly to a spike."""
    for _ in range(MAX_CLIMBS):
        higher, _ = find_mode(fine, mode, width)
        if not _sinks(mode, higher, column):
            return mode.to(graph.dtype), width.to(graph.dtype)
        mode, width = higher, conditional_width(fine, higher)
        if _is_pinned(mode, width):
            break
    _refuse_a_slope(graph, mode.to(graph.dtype), column)


def _sinks(before: Tensor, after: Tensor, column: int) -> bool:
    return bool(after[column] < before[column] - SINKS)


def _is_pinned(x: Tensor, width: Tensor) -> bool:
    """Whether a number may move by hardly more than its rounding: all that keeps a scale from 0."""
    return bool((width < PINNED * EPS * x.double().abs()).any())


def find_mode(
    graph, start: Tensor | None = None, unit: Tensor | None = None
) -> tuple[Tensor, bool]:
    """The point at which L-BFGS from ``start`` (zero) stops, ``[dim]``, and whether for want of
    steps.

    Args:
        unit: ``[dim]`` widths, by which its first step and its rule to stop go; default 1.
    """
    highest = -math.inf
    unit = np.ones(graph.dim) if unit is None else unit.double().cpu().numpy()

    def descent(x: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal highest
        point = torch.as_tensor(x * unit, dtype=graph.dtype, device=graph.device)[None]
        try:
            log_p, score = value_and_score(graph, point)
        except NonFiniteDensity:
            if highest == -math.inf:  # where the climb starts
                raise
            # a wall that the line search can backtrack from: infinity spoils its interpolation
            return highest + 1.0, np.zeros(graph.dim)
        highest = max(highest, -float(log_p))
        return -float(log_p), -score[0].double().cpu().numpy() * unit

    begin = np.zeros(graph.dim) if start is None else start.double().cpu().numpy() / unit
    found = minimize(descent, begin, jac=True, method="L-BFGS-B", options={"maxiter": MAX_STEPS})
    out_of_steps = found.status == 1  # SciPy's code for it
    return torch.as_tensor(found.x * unit, dtype=graph.dtype, device=graph.device), out_of_steps


def rising_column(graph, x: Tensor, width: Tensor) -> int | None:
    """A coordinate along which a step of one width, or of 1, still climbs: at a mode it would lose
    1/2. None if there is none among the :data:`STEEPEST` of either unit: the steepest one's width
    may be that of a kink. The score alone may be rounding, in single precision; and a wide step can
    overshoot, so that of all columns steps of 1 are tried too."""
    log_p, score = value_and_score(graph, x[None])
    slope = score[0].abs()
    count = min(STEEPEST, len(x))
    columns = torch.cat([(slope * unit).topk(count).indices for unit in (width, 1)])
    rows = torch.arange(2 * len(columns), device=x.device)
    steps = torch.zeros(len(rows), len(x), dtype=x.dtype, device=x.device)
    lengths = torch.cat([width[columns], width[columns].clamp_max(1.0)])
    steps[rows, columns.repeat(2)] = lengths * score[0, columns].sign().repeat(2)
    rises = graph.density(x + steps) - log_p >= RISE
    return int(columns.repeat(2)[rises][0]) if bool(rises.any()) else None


def _is_scale(graph, column: int) -> bool:
    site, _ = graph.nodes[node_of(graph, column)]
    return graph.sites[site].support in SCALES


def _refuse_a_slope(graph, x: Tensor, column: int) -> None:
    name, _ = graph.nodes[node_of(graph, column)]
    readers = [
        group.name
        for group in graph.factors
        if group.arity > 1 and group.name != name and name in {site.name for site in group.slots}
    ]
    if _is_scale(graph, column) and readers and not graph.sites.keys() & set(readers):
        others = ", ".join(f'"{reader}"' for reader in readers)
        why = (
            f"The density grows without bound as a scale goes to 0 where other sites fit {others} "
            "exactly: leave init= out, or give it values of your own."
        )
    else:
        why = (
            "A centred hierarchy has none, its density grows without bound as the scale goes to "
            "0. Reparameterise it (pyro.infer.reparam.LocScaleReparam), or leave init= out."
        )
    raise InferenceError(
        f'init="laplace" found no mode: the climb ended at log density '
        f"{float(graph.density(x[None])):.4g}, which still rises along "
        f"{coordinate_name(graph, column)}. {why}"
    )


def conditional_width(graph, x: Tensor) -> Tensor:
    """Conditional standard deviations at ``x``, 1 where there is no maximum: ``[dim]``.

    Curvature is measured over steps that are short beside numbers, and where it is far less over
    steps of the width found, as at a kink, over those. Where it is far more, as at a flat top
    (-x^4), the width is between the two.

    Args:
        graph: in double precision, in which such steps are short beside densities too.
    """
    at = x.double()
    precision = conditional_precision(graph, at, EPS ** (1 / 3) * at.abs().clamp_min(1))
    is_top = precision > 0
    width = torch.where(is_top, precision.clamp_min(1e-300).rsqrt(), 1)
    shrank = torch.zeros_like(is_top)
    for _ in range(MAX_REPEATS):
        try:
            precision = conditional_precision(graph, at, width)
        except NonFiniteDensity:  # short steps have said enough
            break
        over_steps = precision.clamp_min(1e-300).rsqrt()
        counts = is_top & (precision > 0)
        grows = counts & (over_steps > DIFFERS * width)
        shrinks = counts & (over_steps * torch.where(shrank, DIFFERS, FLAT) < width)
        if not bool((grows | shrinks).any()):
            break
        shrank |= shrinks
        between = (width.square() * over_steps).pow(1 / 3)  # nearer: steps as long would overshoot
        width = torch.where(grows | shrinks, torch.where(shrank, between, over_steps), width)
    return width.to(x)


def conditional_precision(graph, x: Tensor, reach: Tensor) -> Tensor:
    """-d^2 log p / dx_i^2 at ``x`` ``[dim]``, by central differences of the score over ``reach``
    ``[dim]``: ``[dim]``."""
    node_colour = colour(*graph.neighbors).to(x.device)
    columns = graph.columns.to(x.device)
    width = columns.diff()
    node = torch.arange(len(width), device=x.device).repeat_interleave(width)
    within = torch.arange(graph.dim, device=x.device) - columns[node]
    probe = node_colour[node] * int(width.max()) + within
    precision = torch.zeros_like(x)
    for k in probe.unique().tolist():
        moved = probe == k
        step = torch.where(moved, reach, 0)
        _, score = value_and_score(graph, torch.stack([x + step, x - step]))
        precision[moved] = ((score[1] - score[0])[moved]) / (2 * reach[moved])
    return precision
