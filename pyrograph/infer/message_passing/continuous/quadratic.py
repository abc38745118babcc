"""Messages of factors that are Gaussian in all of their nodes: no integral is approximated.

    f(v) = exp(-v' P v / 2 + h' v + c),     v = (v_1, ..., v_k), one part per node

With cavities exp(-v_j' L_j v_j / 2 + l_j' v_j) and the rest r of the scope without i,

    alpha tau_i = alpha P_ii - alpha P_ir (alpha P_rr + L_r)^-1 alpha P_ri
    alpha nu_i  = alpha h_i  - alpha P_ir (alpha P_rr + L_r)^-1 (alpha h_r + l_r)

and at alpha = 0 tau_i = P_ii, nu_i = h_i - P_ir E v_r. At alpha = 1 this is Gaussian belief
propagation.

Source: Minka (2005), eq (54), for Gaussian factors and beliefs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyrograph.beliefs import Gaussian
from pyrograph.beliefs.gaussian import apply, block_diagonal, stacked
from pyrograph.beliefs.natural import where
from pyrograph.infer.message_passing.continuous.one_each import OneEach
from pyrograph.infer.message_passing.nodes.basis import Basis, part_of, seen
from pyrograph.infer.message_passing.nodes.families import Continuous


class QuadraticFactors(OneEach):
    """Gaussian factors on two or more nodes.

    Args:
        function: P and h above, batch ``[E]``, dimension R.
        log_density: log f ``[E]`` at ``[E, R]``, c included.
        alpha: ``[E]``.
        rows: of each slot, ``[E]`` rows of its family.
        families: index of each slot's family.
        bases: of each slot, what is read of its nodes.
        widths: r of each slot, adding up to R.
    """

    def __init__(
        self,
        function: Gaussian,
        log_density: Callable[[Tensor], Tensor],
        alpha: Tensor,
        rows: list[Tensor],
        families: list[int],
        bases: list[Basis],
        widths: list[int],
    ):
        self.function, self.log_density = function, log_density
        self.precision, self.shift = function.precision, function.shift
        self.alpha, self.rows, self.families, self.bases = alpha, rows, families, bases
        self.has_zeros = False
        self.is_mean_field = bool((alpha == 0).all())
        ends = torch.tensor(widths, device="cpu").cumsum(0).tolist()
        self.parts = [slice(end - w, end) for end, w in zip(ends, widths, strict=True)]
        if self.is_mean_field:
            self._own = [self.precision[:, own, own] for own in self.parts]  # P_ii
            self._across = self.precision - block_diagonal(self._own)

    def part(self, which: Tensor) -> QuadraticFactors:
        """Some of the factors, ``which [e]`` ascending."""

        def log_density(v: Tensor) -> Tensor:
            every = v.new_zeros(self.num_factors, v.shape[1]).index_copy(0, which, v)
            return self.log_density(every)[which]

        return QuadraticFactors(
            self.function[which],
            log_density,
            self.alpha[which],
            [own[which] for own in self.rows],
            self.families,
            [part_of(basis, which) for basis in self.bases],
            [part.stop - part.start for part in self.parts],
        )

    def start(self, families: list[Continuous]) -> list[Gaussian]:
        """Flat; for mean field what the factors say about nodes whose neighbours are at 0."""
        own = [Gaussian(self.precision[:, p, p], self.shift[:, p]) for p in self.parts]
        return own if self.is_mean_field else [0.0 * message for message in own]

    def cavities(self, messages: list[Gaussian], beliefs: list) -> list[Gaussian]:
        return [
            seen(beliefs[f], rows, basis) - self.alpha * message
            for f, rows, basis, message in zip(
                self.families, self.rows, self.bases, messages, strict=True
            )
        ]

    def update(
        self, messages: list[Gaussian], beliefs: list
    ) -> tuple[list[Gaussian], Tensor | None]:
        """New messages, and ``[E]`` which updates were skipped for an improper cavity."""
        if self.is_mean_field:
            return self._mean_field(beliefs), None
        apart = stacked(self.cavities(messages, beliefs))
        scaled = self.alpha * self.function
        out, skipped = [], torch.zeros_like(self.alpha, dtype=torch.bool)
        widths = [part.stop - part.start for part in self.parts]
        for old, (new, bad) in zip(messages, without_each(scaled, apart, widths), strict=True):
            skipped = skipped | bad
            out.append(where(bad, old, (1 / self.alpha) * new))
        return out, skipped

    def _mean_field(self, beliefs: list) -> list[Gaussian]:
        shift = self.shift
        for part, f, rows, basis in zip(
            self.parts, self.families, self.rows, self.bases, strict=True
        ):
            shift = shift - apply(self._across[:, :, part], seen(beliefs[f], rows, basis).mean)
        return [Gaussian(own, shift[:, p]) for own, p in zip(self._own, self.parts, strict=True)]

    def _joint(self, cavities: list[Gaussian]) -> Gaussian:
        """f^alpha times the cavities, up to a constant."""
        return self.alpha * self.function + stacked(cavities)

    def log_ratio(self, messages: list[Gaussian], beliefs: list) -> Tensor:
        """``[E]``: (1 / alpha) log E_q (f / prod_j m_j)^alpha, and its limit at alpha = 0, with
        messages scaled to 1 at the means of the beliefs."""
        own = [
            seen(beliefs[f], rows, basis)
            for f, rows, basis in zip(self.families, self.rows, self.bases, strict=True)
        ]
        points = [q.mean.detach() for q in own]
        point = torch.cat(points, 1)
        at_point = self.log_density(point)
        function = self.function.about(point)
        if self.is_mean_field:
            q = stacked(own)
            sent = [m.about(p) for m, p in zip(messages, points, strict=True)]
            gap = function - stacked(sent)
            trace = (gap.precision * block_diagonal([q.covariance for q in own])).sum((1, 2))
            return at_point + gap.log_value(q.mean - point) - 0.5 * trace
        cavities = [
            c.about(p) for c, p in zip(self.cavities(messages, beliefs), points, strict=True)
        ]
        mass = (self.alpha * function + stacked(cavities)).log_mass
        whole = sum(q.about(p).log_mass for q, p in zip(own, points, strict=True))
        return at_point + (mass - whole) / self.alpha

    def marginals(self, messages: list[Gaussian], beliefs: list) -> Gaussian:
        """Beliefs over the scopes, batch ``[E]``, dimension R."""
        if self.is_mean_field:
            return stacked(
                [
                    seen(beliefs[f], rows, basis)
                    for f, rows, basis in zip(self.families, self.rows, self.bases, strict=True)
                ]
            )
        return self._joint(self.cavities(messages, beliefs))


def without_each(
    function: Gaussian, apart: Gaussian, widths: list[int]
) -> list[tuple[Gaussian, Tensor]]:
    """For every part v_i what the function says about it, the others being integrated out:

        int f(v) prod_{j != i} c_j(v_j) dv_j,    and ``[E]`` whether that integral diverges.

    Halves of the parts are integrated out, then halves of those that are left: the cost is that of
    one inverse, and no c_i is divided out again, which would cost digits.

    Args:
        function: f, batch ``[E]``; apart: prod_j c_j, with a block for each part.
        widths: numbers of each part.
    """
    diverges = torch.zeros_like(function.shift[:, 0], dtype=torch.bool)
    return _without_each(function, apart, widths, diverges)


def _without_each(
    function: Gaussian, apart: Gaussian, widths: list[int], diverges: Tensor
) -> list[tuple[Gaussian, Tensor]]:
    if len(set(widths)) == 1:
        return _of_equal_widths(function, apart, len(widths), diverges)
    middle = next(i for i, width in enumerate(widths) if width != widths[0])
    first, then = slice(0, sum(widths[:middle])), slice(sum(widths[:middle]), None)
    out = []
    for own, other, kept in (first, then, widths[:middle]), (then, first, widths[middle:]):
        reduced, bad = _integrated(function, apart, own, other)
        out += _without_each(reduced, _part(apart, own, own), kept, diverges | bad)
    return out


def _of_equal_widths(
    function: Gaussian, apart: Gaussian, count: int, diverges: Tensor
) -> list[tuple[Gaussian, Tensor]]:
    """All halves of a size at once: batch ``[E, number of them]``."""
    missing = 2 ** (count - 1).bit_length() - count  # parts that nothing depends on
    if missing:
        size = missing * function.d // count
        nothing = Gaussian.flat(function.shift.shape[:1], size, function.shift)
        one = torch.eye(size, dtype=function.shift.dtype, device=function.shift.device)
        one = Gaussian(one.expand_as(nothing.precision), nothing.shift)
        function, apart = stacked([function, nothing]), stacked([apart, one])
    function, apart, diverges = function[:, None], apart[:, None], diverges[:, None]
    for _ in range((count - 1).bit_length()):
        half = function.d // 2
        first, then = slice(0, half), slice(half, None)
        pairs = [
            (*_integrated(function, apart, own, other), _part(apart, own, own))
            for own, other in ((first, then), (then, first))
        ]
        (a, bad_a, apart_a), (b, bad_b, apart_b) = pairs
        function, apart = a.mapped(_in_turn, b), apart_a.mapped(_in_turn, apart_b)
        diverges = _in_turn(diverges | bad_a, diverges | bad_b)
    return [(function[:, i], diverges[:, i]) for i in range(count)]


def _in_turn(a: Tensor, b: Tensor) -> Tensor:
    """Those of ``[E, n, ...]`` and ``[E, n, ...]``, one after the other."""
    return torch.stack([a, b], 2).flatten(1, 2)


def _part(function: Gaussian, rows: slice, columns: slice) -> Gaussian:
    return Gaussian(function.precision[..., rows, columns], function.shift[..., rows])


def _integrated(
    function: Gaussian, apart: Gaussian, own: slice, other: slice
) -> tuple[Gaussian, Tensor]:
    """Of f times what is apart, without the other numbers; and whether their integral diverges."""
    inner = _part(function, other, other) + _part(apart, other, other)
    across = function.precision[..., own, other]
    spread = across @ inner.covariance
    tau = function.precision[..., own, own] - spread @ across.mT
    nu = function.shift[..., own] - apply(spread, inner.shift)
    return Gaussian(tau, nu), ~inner.is_proper


def lifted(function: Gaussian, bases: list[Basis], widths: list[int]) -> Gaussian:
    """A function of parts v_i = B_i x_i as one of whole nodes x: batch ``[E]``, dimension sum d.

    Args:
        bases: of each slot, what parts are of whole nodes.
        widths: d of each slot.
    """
    basis = of_whole_nodes(bases, widths, function.shift)
    if basis is None:
        return function
    return Gaussian(basis.mT @ function.precision @ basis, apply(basis.mT, function.shift))


def of_whole_nodes(bases: list[Basis], widths: list[int], like: Tensor) -> Tensor | None:
    """B with v = B x for all slots together, ``[E, R, sum d]``; None for v = x.

    Args:
        like: ``[E, R]``.
    """
    if all(basis is None for basis in bases):
        return None
    down = [
        torch.eye(d, dtype=like.dtype, device=like.device).expand(len(like), d, d)
        if basis is None
        else basis.rows(like)
        for basis, d in zip(bases, widths, strict=True)
    ]
    return block_diagonal(down)
