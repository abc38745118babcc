"""Parzen windows: densities from data by a Gaussian kernel on every row.

    p(x) = sum_m w_m prod_a N(x_a; c_ma, h_a^2)

c_m are the distinct rows, w_m the fractions of the data at them: on 20000 rows of two integer
columns that is a sum over a few hundred centres, and the same density. The kernel is a product,
so integrating a column out leaves the density of the other columns at *their* bandwidths: with
one h per variable, densities of pairs and of single variables agree exactly.

Source: Parzen (1962); the bandwidth is Silverman (1986), equation 3.31.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

from pyrograph.errors import OptionError, ShapeMismatch

#: Numbers held at once where values at many points are asked for: what stays in a cache.
CHUNK = 2**18
#: Interquartile range of the standard normal, to the digits that Silverman gives.
NORMAL_IQR = 1.34


def silverman_bandwidth(data: Tensor) -> Tensor:
    """h = 0.9 min(sd, IQR / 1.34) N^(-1/5) of every column.

    A column more than half of whose rows are equal can have no interquartile range; then the
    standard deviation (of N - 1) stands alone.

    Shapes:
        data: ``[N, D]``.
        output: ``[D]``.

    Raises:
        ShapeMismatch: the data have another shape, or fewer than two rows.
        OptionError: they are not floating and finite, or a column is constant, so that no width
            follows from it.
    """
    data = checked_data(data)
    wide = data.to(torch.promote_types(data.dtype, torch.float32))  # halves have no quantiles
    sd = wide.std(0)
    low, high = wide.quantile(wide.new_tensor([0.25, 0.75]), 0)
    iqr = (high - low) / NORMAL_IQR
    spread = torch.where(iqr > 0, torch.minimum(sd, iqr), sd)
    constant = (data == data[0]).all(0).nonzero().flatten().tolist()
    if constant:
        raise OptionError(
            f'bandwidth="silverman" has no width for constant columns, here {constant}. Leave '
            f"them out of the data, or give the widths as a number or a tensor [D]."
        )
    return (0.9 * spread * len(data) ** -0.2).to(data)


def as_numbers(given: Tensor | np.ndarray, shape: str, subject: str = "data are") -> Tensor:
    """A tensor, or an array as a tensor; ``shape`` and ``subject`` are for messages.

    Raises:
        OptionError: it is neither, or its elements are no numbers, or some of them are masked.
    """
    if isinstance(given, Tensor):
        return given
    if not isinstance(given, np.ndarray):
        kind = type(given).__name__
        raise OptionError(f"{subject} {kind}; hand in a tensor or an array {shape}")
    masked = np.ma.count_masked(given)
    if masked:
        raise OptionError(
            f"{subject} a masked array, {masked} of whose numbers are masked; leave out or fill "
            f"the rows that they are in"
        )
    plain = np.ma.getdata(given)
    try:  # torch takes no strides below 0, and no other byte order
        plain = plain.astype(plain.dtype.newbyteorder("="), order="C", copy=False)
        return torch.as_tensor(plain, device="cpu")
    except TypeError as error:
        raise OptionError(f"{subject} an array of {given.dtype}; hand in one of floats") from error


def checked_data(data: Tensor | np.ndarray, fewest: int = 2) -> Tensor:
    """Rows ``[N, D]`` of finite numbers.

    Raises:
        ShapeMismatch: they have another shape, or are too few.
        OptionError: they are not floating and finite.
    """
    data = as_numbers(data, "[N, D]")
    if data.dim() != 2 or data.shape[0] < fewest or data.shape[1] < 1:
        count = "two rows" if fewest == 2 else "one row"
        raise ShapeMismatch(
            f"data have shape {tuple(data.shape)}; expected [N, D] with {count} or more"
        )
    if not data.is_floating_point():
        raise OptionError(f"data are {data.dtype}; hand in data.double() or another floating type")
    if not bool(data.isfinite().all()):
        row = int((~data.isfinite()).any(1).nonzero()[0])
        raise OptionError(f"row {row} of the data is not finite; leave out or fill such rows")
    return data


def checked_bandwidth(
    data: Tensor, bandwidth: float | Sequence[float] | Tensor | np.ndarray, words: str = ""
) -> Tensor:
    """Widths ``[D]``, of the dtype and device of ``data``; ``words`` are what else is allowed.

    Raises:
        ShapeMismatch: they are neither one nor D.
        OptionError: they are no numbers, or not finite and above 0.
    """
    if isinstance(bandwidth, np.ndarray):
        bandwidth = as_numbers(bandwidth, "[D]", "bandwidth is")
    try:
        width = torch.as_tensor(bandwidth, dtype=data.dtype, device=data.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(
            f"bandwidth={bandwidth!r} must be {words}a number, or a tensor or a sequence [D]"
        ) from error
    if width.dim() and width.shape != data.shape[1:]:
        raise ShapeMismatch(
            f"bandwidth has shape {tuple(width.shape)}; the data have {data.shape[1]} columns"
        )
    if not bool((width.isfinite() & (width > 0)).all()):
        raise OptionError("bandwidths must be finite and above 0")
    return width.expand(data.shape[1])


def _checked_columns(columns: Sequence[Sequence[int]] | Tensor, data: Tensor) -> Tensor:
    """``[B, k]`` numbers of columns of the data."""
    try:
        numbers = torch.as_tensor(columns, device=data.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(f"columns={columns!r} must be groups [B, k] of columns") from error
    if numbers.dim() != 2 or numbers.numel() == 0:
        raise ShapeMismatch(f"columns have shape {tuple(numbers.shape)}; expected groups [B, k]")
    if numbers.dtype is torch.bool or numbers.is_floating_point() or numbers.is_complex():
        raise OptionError(f"columns are {numbers.dtype}; expected whole numbers")
    d = data.shape[1]
    beyond = numbers[(numbers < -d) | (numbers >= d)].unique().tolist()
    if beyond:
        raise OptionError(f"columns {beyond} are not in the data; theirs are 0 .. {d - 1}")
    return numbers.long()


@dataclass(frozen=True, eq=False)
class Parzen:
    """B densities over k variables each, ready to be evaluated side by side.

    Shapes:
        centres: ``[B, M, k]`` distinct rows, M the largest number of them.
        log_weights: ``[B, M]``, normalised; ``-inf`` where a density has fewer than M centres.
        bandwidth: ``[B, k]`` standard deviations of the kernels.
    """

    centres: Tensor
    log_weights: Tensor
    bandwidth: Tensor

    @classmethod
    def fit(
        cls,
        data: Tensor | np.ndarray,
        columns: Sequence[Sequence[int]] | Tensor,
        bandwidth: float | Sequence[float] | Tensor | np.ndarray,
    ) -> "Parzen":
        """One density for each of B groups of k columns.

        Args:
            data: ``[N, D]``, floating, a tensor or an array.
            columns: B times k numbers of columns.
            bandwidth: a number for all columns, or ``[D]``.

        Raises:
            ShapeMismatch: one of the three has another shape.
            OptionError: ``data`` are not floating and finite, ``columns`` are not among theirs, or
                ``bandwidth`` is not finite and above 0.
        """
        data = checked_data(data, fewest=1)
        columns, bandwidth = _checked_columns(columns, data), checked_bandwidth(data, bandwidth)
        found = [_distinct(data[:, c]) for c in columns]
        most = max(len(rows) for rows, _ in found)
        # The fill has no weight; it is a row of the data, so that numbers at it are ordinary ones.
        centres = torch.stack([torch.cat([r, r[:1].expand(most - len(r), -1)]) for r, _ in found])
        weights = data.new_zeros(len(found), most)
        for weight, (_, counts) in zip(weights, found):
            weight[: len(counts)] = counts / len(data)
        return cls(centres, weights.log(), bandwidth[columns])

    def __getitem__(self, index: Tensor | Sequence[int]) -> "Parzen":
        """The densities at these places of the batch."""
        return Parzen(self.centres[index], self.log_weights[index], self.bandwidth[index])

    @cached_property
    def _log_peaks(self) -> Tensor:
        """Log value of every weighted kernel at its own centre, ``[B, M]``."""
        k = self.bandwidth.shape[-1]
        scale = self.bandwidth.log().sum(-1, keepdim=True) + 0.5 * k * math.log(2 * math.pi)
        return self.log_weights - scale

    def _log_kernels(self, a: int, coordinate: Tensor) -> Tensor:
        """Log of every kernel of the a-th variable at ``[*, B]``, up to its peak; ``[*, B, M]``."""
        # subtracted before it is scaled: of data far from 0, quotients lose the digits that differ
        gap = coordinate.unsqueeze(-1) - self.centres[..., a]
        return -0.5 * (gap / self.bandwidth[:, a].unsqueeze(-1)).square()

    def log_prob(self, *x: Tensor) -> Tensor:
        """Log density of each of the B densities at its own point; differentiable.

        Holds ``[*, B, M]`` numbers; :meth:`log_prob_of_many` does not.

        Args:
            x: the k coordinates, ``[*, B]`` each.

        Returns:
            ``[*, B]``.
        """
        exponent = self._log_peaks
        for a, coordinate in enumerate(x):
            exponent = exponent + self._log_kernels(a, coordinate)
        return exponent.logsumexp(-1)

    def log_prob_of_many(self, *x: Tensor) -> Tensor:
        """:meth:`log_prob` at ``[S, B]`` coordinates, at most ``CHUNK`` numbers at once."""
        rows = max(1, CHUNK // self.log_weights.numel())
        return torch.cat([self.log_prob(*part) for part in zip(*(c.split(rows) for c in x))])

    def entropy(self) -> Tensor:
        """-sum_m w_m log p(c_m), ``[B]``: the mean of -log p over the data it was fitted to."""
        log_p = self.log_prob_of_many(*self.centres.transpose(0, 1).unbind(-1))  # [M, B]
        return -(self.log_weights.exp() * log_p.t()).sum(-1)

    def draw(self, given: Tensor) -> Tensor:
        """The last coordinate of S draws, given the ones before it.

        A centre is drawn with its weight times its kernel at the given coordinates, then the
        coordinate from the kernel of that centre.

        Shapes:
            given: ``[S, B, k - 1]``; of one variable the last size is 0.
            output: ``[S, B]``.
        """
        rows = max(1, CHUNK // self.log_weights.numel())
        drawn = []
        for part in given.split(rows):
            logits = self.log_weights
            for a in range(part.shape[-1]):
                logits = logits + self._log_kernels(a, part[..., a])
            centre = Categorical(logits=logits.expand(len(part), -1, -1)).sample()  # [S, B]
            loc = self.centres[..., -1].gather(1, centre.t()).t()
            drawn.append(torch.normal(loc, self.bandwidth[:, -1].expand_as(loc)))
        return torch.cat(drawn)

    def distribution(self) -> MixtureSameFamily:
        """Densities of one variable as a distribution of batch shape ``[B]``."""
        kernels = Normal(self.centres[..., 0], self.bandwidth)
        return MixtureSameFamily(Categorical(logits=self.log_weights), kernels)


def _distinct(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows of ``[N, k]`` and how often each comes."""
    code, count = torch.zeros(len(rows), dtype=torch.int64, device=rows.device), 1
    for column in rows.unbind(1):  # many times faster than unique(dim=0)
        values, rank = column.unique(return_inverse=True)
        if count * len(values) >= 2**63:
            code, count = code.unique(return_inverse=True)[1], len(rows)
        code, count = code * len(values) + rank, count * len(values)
    _, which, counts = code.unique(return_inverse=True, return_counts=True)
    one = torch.empty_like(counts).scatter_(0, which, torch.arange(len(rows), device=rows.device))
    return rows[one], counts
