"""Kernelised discrete Stein discrepancies: how far a distribution is from a target, by its score.

With not_i, which moves variable i to its next state (modulo its number of states), and its inverse
inv_i, the Stein operator of a positive target p is

    (A_i f)(x) = f(inv_i x) - r_i(x) f(x),      r_i(x) = p(not_i x) / p(x),      E_p A_i f = 0,

which is Yang's s_i f - Delta*_i f with the score s_i = 1 - r_i: the terms f(x) cancel. Then

    KDSD^2(q, p) = E_{x, y ~ q} sum_i A_i^x A_i^y k(x, y)
                 = sum_i || q(not_i .) - q(.) r_i(.) ||_k^2.

So the discrepancy is a sum of expected kernels of signed measures, which is how it is computed:
each measure is a circuit with one leaf that differs, and the pass of ``expected`` carries the sum
over that leaf in its second channel. It is never negative, and 0 at q = p.

*Of samples whose other variables are summed out*: q(y) = [y_s = x_s] p(y_c | x_s), the measures of
i in c vanish, and that of i in s is

    mu_i = (1 / p(x_s)) ( [y_s = inv_i x_s] p(y_c, x_s) - [y_s = x_s] p(y_c, not_i x_s) ),

the circuit of p itself with the leaf of variable i moved. All pairs of samples together are the
Gram matrix of collapsed importance sampling. Two samples may sum out different variables; only
those that both hold count.

Two formulas of the paper shift inside the kernel by not_i where the inverse is needed (they agree
for binary variables): (17), middle line, and proposition 5.5.

Source: Yang, Liu, Rao & Neville (2018), "Goodness-of-fit testing for discrete distributions via
Stein discrepancy"; Li, Zeng, Vergari & Van den Broeck (2021), propositions 5.4 and 5.5.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from tqdm import tqdm

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.expectations.evidence import (
    Evidence,
    expected_kernels,
    num_passes,
    num_products,
)
from pyrograph.circuits.expectations.expected import check_dtypes, common_regions, pairs
from pyrograph.circuits.expectations.kernel_units import KernelUnits
from pyrograph.circuits.expectations.kernels import Hamming, Kernel, check_kernel
from pyrograph.circuits.expectations.positivity import refuse_zeros, refuse_zeros_beside
from pyrograph.circuits.expectations.ratio import RatioSide
from pyrograph.circuits.expectations.sides import CircuitSide, largest_size
from pyrograph.circuits.options import check_circuits
from pyrograph.errors import InvalidCircuit, NonFiniteDensity, UnsupportedFactor, ZeroMass
from pyrograph.graph.devices import at_once

#: Numbers of the widest region that are held at once: arrays of a few MB, for which no memory has
#: to be asked anew.
CHUNK = 2**20
#: Products of units, over all pairs of samples.
MOST_WORK = 1e11
MILDER = "Take the circuits in double precision, or soften the target"


def kdsd(q: Circuit, p: Circuit, kernel: Kernel | None = None) -> Tensor:
    """Squared kernelised discrete Stein discrepancy of q against the target p.

    Args:
        q: any compatible circuit, normalised or not.
        p: the target, deterministic (so that 1 / p is a circuit) and positive everywhere; it need
            not be normalised.
        kernel: default :class:`Hamming`.

    Returns:
        ``[]``.

    Raises:
        InvalidCircuit: p is not deterministic, or has a state of probability zero (also where
            torch's distributions put eps in its place, see ``Circuit.clamped_state``); the text
            names it and what to do.
        IncompatibleCircuits: no vtree fits both.
        ZeroMass: q is zero everywhere.
        OptionError: the circuits have other dtypes, or are none.
        NonFiniteDensity: ratios of the target's probabilities overflow.
    """
    kernel = Hamming() if kernel is None else kernel
    check_kernel(kernel)
    check_circuits(q, p)
    _refuse_real(p)
    p.requires("smooth", "decomposable", "structured", "deterministic", query="the target of kdsd")
    refuse_zeros(p)
    check_dtypes(q, p)
    regions = common_regions(q, p, kernel)
    if not bool(q.log_mass().isfinite()):
        raise ZeroMass("q is zero everywhere: there is no distribution to compare")
    side = RatioSide(q, p, regions)
    _, value = pairs(side, side, KernelUnits(kernel, regions, q))
    value = value.to(p.log_weights.dtype)
    if not bool(value.isfinite()):
        raise NonFiniteDensity(
            "the discrepancy overflows: the target's probabilities of neighbouring states differ "
            f"by more than the numbers of {value.dtype} do, where q has mass. {MILDER}"
        )
    # a sum of squares, of which rounding leaves less than nothing at q = p
    return value[0, 0].clamp_min(0)


def stein_gram(
    p: Circuit,
    points: Tensor,
    kernel: Kernel | None = None,
    others: Tensor | None = None,
    *,
    progress: bool = False,
) -> Tensor:
    """The Stein kernel of all pairs of samples, missing variables summed out under p given the
    rest.

    Args:
        p: the target, normalised or not, positive at all values of the variables that a sample
            holds. It need not be deterministic; but then, and where variables are summed out, a
            zero is only seen if it is next to a sample.
        points: ``[N, D]`` codes, NaN or -1 where a variable is summed out.
        kernel: default :class:`Hamming`.
        others: ``[M, D]``, default ``points``.
        progress: show a bar where it takes longer than a second.

    Returns:
        ``[N, M]``, positive semidefinite if ``others`` is None.

    Raises:
        OptionError: p is no circuit.
        InvalidCircuit: p has real variables, is not structured, or is zero at a state that counts
            (see ``p``; for samples that hold all variables also one that is possible only since
            torch's distributions clamp, as for :func:`kdsd`).
        ZeroMass: a point is impossible under p.
        UnsupportedFactor: it would take hours.
        NonFiniteDensity: ratios of the target's probabilities overflow at a point.
    """
    kernel = Hamming() if kernel is None else kernel
    check_kernel(kernel)
    check_circuits(p)
    _refuse_real(p)
    p.requires("smooth", "decomposable", "structured", query="a Stein kernel")
    regions = common_regions(p, p, kernel)
    units = KernelUnits(kernel, regions, p)
    device = p.log_weights.device
    rows = p.domain.check(points, device)
    columns = rows if others is None else p.domain.check(others, device)
    if not len(rows) or not len(columns):
        return p.log_weights.new_zeros(len(rows), len(columns))
    side = CircuitSide(p, regions, rows[:1], stein=True)
    most = pairs_at_once(side, units)
    width = min(len(columns), math.isqrt(most))
    right = Evidence(side, columns, width)
    left = right if others is None else Evidence(side, rows, most // width)
    refuse_work(num_products(left, right, units), len(left.point), len(right.point))
    if bool((left.log_mass == -torch.inf).any() or (right.log_mass == -torch.inf).any()):
        raise ZeroMass("a sample has probability zero under the target")
    for samples in (rows,) if others is None else (rows, columns):
        refuse_zeros_beside(p, samples)
    with bar_of(num_passes(left, right), progress) as bar:
        gram = expected_kernels(left, right, units, bar, stein=True)
    # 0 times a ratio that overflows is no number
    gram = gram.masked_fill(_nothing_in_common(rows, columns), 0.0).to(p.log_weights.dtype)
    _refuse_overflow(gram)
    return gram


def _nothing_in_common(rows: Tensor, columns: Tensor) -> Tensor:
    """Pairs of points that hold no variable both: ``[N, M]``."""
    held, other = ((~points.isnan()).double() for points in (rows, columns))
    return held @ other.t() == 0


def _refuse_overflow(gram: Tensor) -> None:
    """Raise for a Gram matrix with a number that is not finite.

    Raises:
        NonFiniteDensity: naming the points.
    """
    broken = ~gram.isfinite()
    if bool(broken.any()):
        row, column = broken.nonzero()[0].tolist()
        raise NonFiniteDensity(
            f"the Stein kernel of point {row} and point {column} overflows: the target's "
            "probabilities there and at neighbouring states differ by more than the numbers of "
            f"{gram.dtype} do. {MILDER}, or leave the point out"
        )


def pairs_at_once(side: CircuitSide, units: KernelUnits) -> int:
    """Pairs of samples of one pass."""
    most = at_once(CHUNK, side.circuit.log_weights.device)
    return max(1, most // (2 * largest_size([side, side]) * units.num_units))


def bar_of(num_passes: int, progress: bool) -> tqdm:
    """A bar of the passes of a Gram matrix, once they have taken a second."""
    return tqdm(desc="Stein kernel", total=num_passes, disable=not progress, leave=False, delay=1)


def refuse_work(work: float, num_rows: int, num_columns: int) -> None:
    """Raise for what would take hours.

    Args:
        work: products of units.

    Raises:
        UnsupportedFactor: with their number.
    """
    if work > MOST_WORK:
        share = math.sqrt(MOST_WORK / work)
        raise UnsupportedFactor(
            f"the Stein kernel of these {num_rows:,} by {num_columns:,} samples takes {work:.1e} "
            f"operations, over the budget of {MOST_WORK:.0e}: the target has too many units. Hold "
            'more variables in every sample (pg.CollapsedBBIS(collapse="treewidth"), of a lower '
            f"max_width=), or take fewer samples, about {int(share * num_rows):,}"
        )


def _refuse_real(p: Circuit) -> None:
    if None in p.cards:
        raise InvalidCircuit(
            f"variable {p.cards.index(None)} is real: the discrete Stein discrepancy has no "
            "meaning for it. pg.diagnostics has the Langevin one, for samples"
        )
