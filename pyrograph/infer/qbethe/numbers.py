"""Single numbers that factors read of their nodes, and expectations that follow from their moments.

A factor that reads a number x_k of each of its nodes, independent in a component, has

    E log f = F(m_1, v_1, ..., m_k, v_k),          m, v: means and variances

where F is known in closed form with its derivatives: of quadratic factors (:mod:`.quadratic`), and
of polynomials between kinks (:mod:`.piecewise`). All factors and components are read, evaluated and
differentiated at once, in the few operations that small graphs are made of.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.qbethe.components import Components, taken
from pyrograph.infer.qbethe.first_order import first_order

#: From means and variances, ``[B, L, k, E]`` both, to sums of E log f over factors, ``[B, L]``, and
#: their derivatives by m and by v / 2.
Integral = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


class Numbers:
    """Where factors read one number of each of k nodes.

    Args:
        local: such factors.
        kinds, rows: of every slot's nodes.
    """

    def __init__(self, local: LocalDensity, kinds: list[int], rows: list[Tensor]):
        self.kinds = kinds
        self._places = [
            own if columns is None else own * width + columns[:, 0]
            for own, columns, width in zip(rows, local.columns, local.nodes_widths, strict=True)
        ]
        #: Among all numbers of the only kind, ``[k E]``.
        self._together = torch.cat(self._places) if len(set(kinds)) == 1 else None
        #: Whether these are the first ones, in their order.
        self._in_order = self._together is not None and torch.equal(
            self._together, torch.arange(len(self._together), device=self._together.device)
        )

    @property
    def is_of_one_kind(self) -> bool:
        return self._together is not None

    def __call__(self, values: list[Tensor | None]) -> tuple[Tensor, Tensor | None]:
        """Numbers ``[B, L, ...]`` and rows ``[k E]`` of what is read among them, None if it is all
        in its order, of values ``[B, L, V, d]`` of every kind."""
        if self._together is None:
            every = zip(self.kinds, self._places, strict=True)
            return torch.cat([taken(values[k].flatten(2), place) for k, place in every], 2), None
        numbers = values[self.kinds[0]]
        is_all = self._in_order and numbers[0, 0].numel() == len(self._together)
        return numbers, None if is_all else self._together

    def read(self, values: list[Tensor | None]) -> Tensor:
        """``[B, L, k, E]``."""
        numbers, rows = self(values)
        numbers = numbers.flatten(2)
        read = numbers if rows is None else taken(numbers, rows)
        return read.unflatten(2, (len(self.kinds), -1))


#: Sums of E log f over factors that are closed: where they read, and how.
Closed = tuple[Numbers, Integral]


def expected_together(closed: list[Closed], mixture: Components) -> Tensor:
    """Sums of E log f over all of these factors, ``[B, L]``: those that read numbers of one kind of
    nodes in one go."""
    alike: dict[int, list[Closed]] = {}
    for n, (numbers, integral) in enumerate(closed):
        kind = numbers.kinds[0] if numbers.is_of_one_kind else -1 - n
        alike.setdefault(kind, []).append((numbers, integral))
    total = []
    for same in alike.values():
        parts = []
        for numbers, integral in same:
            mean, rows = numbers(mixture.means)
            parts.append((rows, len(numbers.kinds), integral))
        scale, _ = numbers(mixture.scales)
        total.append(ExpectedOfNumbers.apply(mean, scale, parts))
    return sum(total[1:], total[0])


class ExpectedOfNumbers(torch.autograd.Function):
    """Sums of E log f over factors, ``[B, L]``.

    Shapes:
        mean, scale: ``[B, L, ...]``, means and standard deviations of W numbers.
        parts: of factors alike each the rows that are read ``[k E]``, or None for all; k; and the
            integral.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        mean: Tensor,
        scale: Tensor,
        parts: list[tuple[Tensor | None, int, Integral]],
    ) -> Tensor:
        batch, variance = mean.shape[:2], scale.square()
        both = by_rows = by_all = None
        values = []
        for rows, slots, integral in parts:
            if rows is None:
                moments = mean.reshape(*batch, slots, -1), variance.reshape(*batch, slots, -1)
                value, *slopes = integral(*moments)
                own = [slope.reshape(mean.shape) for slope in slopes]
                by_all = own if by_all is None else _added(by_all, own)
            else:
                if both is None:
                    both = torch.stack([mean, variance]).view(-1, mean[0, 0].numel())
                    by_rows = torch.zeros_like(both)
                read = both.index_select(1, rows).view(2, *batch, slots, -1)
                value, *slopes = integral(*read.unbind())
                found = torch.stack(slopes).view(-1, len(rows))
                by_rows.scatter_add_(1, rows.expand_as(found), found)
            values.append(value)
        slopes = by_all
        if by_rows is not None:
            slopes = [slope.reshape(mean.shape) for slope in by_rows.chunk(2)]
            if by_all is not None:
                slopes = _added(slopes, by_all)
        ctx.save_for_backward(slopes[0], scale * slopes[1])
        return sum(values[1:], values[0])

    @staticmethod
    @first_order
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        by_mean, by_scale = ctx.saved_tensors
        grad = grad.view(*grad.shape, *(1,) * (by_mean.dim() - 2))
        return grad * by_mean, grad * by_scale, None


def _added(some: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    return [a + b for a, b in zip(some, others, strict=True)]


class OnLine:
    """Integral of functions of u = sum_k a_k x_k.

    Args:
        lever: ``[k, E]``, a.
        integral: from mean and standard deviation of u, ``[B, L, E]``, to E log f summed over E and
            its derivatives by both.
    """

    def __init__(
        self, lever: Tensor, integral: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
    ):
        self.lever, self.square, self.integral = lever, lever.square(), integral

    def __call__(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sd = (self.square * variance).sum(2).sqrt_()
        value, by_mean, by_sd = self.integral((self.lever * mean).sum(2), sd)
        by_half = by_sd.div_(sd)
        return value, by_mean.unsqueeze(2) * self.lever, by_half.unsqueeze(2) * self.square
