"""Maximum mean discrepancy between two samples.

    MMD^2(x, y) = E k(x, x') + E k(y, y') - 2 E k(x, y)

The bandwidth follows the kernel's rule on the *second*, reference sample, so that figures of
several approximations against one reference can be compared. O((n + m)^2 d) time; rows are
chunked, but ``"median"`` holds the m(m-1)/2 distances of the reference at once, and ``"fast"`` 4 m.

Source: Gretton, Borgwardt, Rasch, Schoelkopf & Smola (2012), Lemma 6.
"""

import torch
from torch import Tensor

from pyrograph.errors import OptionError, ShapeMismatch
from pyrograph.kernels import RBF, Radial
from pyrograph.kernels.bandwidth import bandwidth, median_of_pairs
from pyrograph.kernels.stein import check_statistic

#: Pairs of points that are held at once.
CHUNK_ELEMENTS = 2**22


def mmd(x: Tensor, y: Tensor, kernel: Radial | None = None, statistic: str = "V") -> Tensor:
    """Squared MMD of the samples ``x`` and ``y``.

    Args:
        x: ``[n, *event]``, the sample under test.
        y: ``[m, *event]``, the reference; the bandwidth comes from it.
        kernel: a radial kernel, default ``RBF()``.
        statistic: ``"V"`` (biased, never negative) or ``"U"`` (unbiased, l = m left out).

    Shapes:
        output: ``[]``.

    Raises:
        ShapeMismatch: the events differ, or a sample is empty.
        OptionError: unknown statistic, or ``"U"`` with a single point; the kernel is not radial;
            a sample is no tensor, not of floating numbers, or not finite.
    """
    kernel = RBF() if kernel is None else kernel
    if not isinstance(kernel, Radial):
        raise OptionError(
            f"kernel={kernel!r} is not a radial kernel such as pg.kernels.RBF(); of a sum take the "
            "weighted sum of the discrepancies"
        )
    for name, sample in (("x", x), ("y", y)):
        if not isinstance(sample, Tensor):
            raise OptionError(
                f"{name} is a {type(sample).__name__}; give one tensor [n, *event], such as the "
                "values of one site"
            )
    if x.dim() == 0 or x.shape[1:] != y.shape[1:] or 0 in (len(x), len(y)):
        raise ShapeMismatch(
            f"samples have shapes {tuple(x.shape)} and {tuple(y.shape)}; expected [n, *event] "
            "and [m, *event] with the same event"
        )
    check_statistic(statistic, min(len(x), len(y)))
    for name, sample in (("x", x), ("y", y)):
        if not sample.is_floating_point():
            raise OptionError(
                f"{name} holds {sample.dtype}; give floating numbers: {name}.double()"
            )
        if not sample.isfinite().all():
            raise OptionError(f"{name} holds NaN or infinite numbers")
    dtype = torch.promote_types(x.dtype, y.dtype)
    # a small difference of means, with a bandwidth that is the square of the data's scale
    x, y = x.reshape(len(x), -1).double(), y.reshape(len(y), -1).double()
    if isinstance(kernel.bandwidth, str):  # relative: squares need neither vanish nor overflow
        unit = _power_of_two(y - y.mean(0))
        x, y = x / unit, y / unit
    if kernel.bandwidth == "median":
        h = median_of_pairs(y)  # a tenth of the memory that bandwidth() takes
    else:
        (h,) = bandwidth(kernel.bandwidth, (y - y.mean(0)).t()[None])
    within = sum(_within(kernel, z, h, statistic) for z in (x, y))
    found = within - 2 * _total(kernel, x, y, h) / (len(x) * len(y))
    return (found.clamp_min(0) if statistic == "V" else found).to(dtype)


def _power_of_two(z: Tensor) -> Tensor:
    """One near the largest number, by which division is exact; 1 if all are zero."""
    top = z.abs().amax()
    return torch.where(top > 0, torch.exp2(top.log2().floor()), 1.0)


def _within(kernel: Radial, z: Tensor, h: Tensor | float, statistic: str) -> Tensor:
    """E k(z, z') over ordered pairs; a radial kernel is 1 on the diagonal."""
    n = len(z)
    total = _total(kernel, z, z, h)
    return total / n**2 if statistic == "V" else (total - n) / (n * (n - 1))


def _total(kernel: Radial, x: Tensor, y: Tensor, h: Tensor | float) -> Tensor:
    size = max(1, CHUNK_ELEMENTS // len(y))
    return torch.stack([kernel.gram(part, y, h).sum() for part in x.split(size)]).sum()
