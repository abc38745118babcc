"""Expectations at alpha = 0 in closed form, where log f is a polynomial between kinks of one
number: of absolute values and clamps, as in Laplace densities, quantile regressions and hinges.

A quadrature's points miss the kinks. With the pieces known (:mod:`~pyrograph.trace.forms.pieces`)
so is A(m, s), the expectation of log f under u ~ N(m, s^2), and

    E f'(u) = dA/dm,      E f''(u) = (dA/ds) / s

Source: :mod:`pyrograph.beliefs.expected_pieces`; the second is Price's theorem.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from pyrograph.beliefs import Conjugate
from pyrograph.beliefs.expected_pieces import expected_pieces
from pyrograph.infer.message_passing.continuous.mean_field import Expectations
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.trace.forms.pieces import Pieces, find_pieces


class KinkedForm:
    """Of a set of like factors without discrete nodes."""

    def __init__(self, pieces: Pieces):
        self.pieces = pieces

    @staticmethod
    @torch.no_grad()
    def of(local: LocalDensity) -> KinkedForm | None:
        """None where log f is another function.

        Args:
            local: in effective coordinates, in double precision.
        """
        if local.dim != 1 or local.chosen or local.discrete or local.group.is_differentiable:
            return None

        def leaves(u: Tensor) -> list[Tensor]:
            return local.leaves_at(u.unsqueeze(-1))

        pieces = find_pieces(local.program, leaves, local.like, local.num_factors)
        if pieces is None or not pieces.agree_with(lambda u: local(u[:, None, :, None])[:, 0]):
            return None
        return KinkedForm(pieces)

    def part(self, which: Tensor) -> KinkedForm:
        """Some of the factors, ``which [e]``."""
        pieces, out = self.pieces, copy(self)
        out.pieces = replace(
            pieces,
            kinks=pieces.kinks[:, which],
            origin=pieces.origin[:, which],
            unit=pieces.unit[:, which],
            coefficients=pieces.coefficients[..., which],
        )
        return out

    def __call__(self, moments: tuple[Tensor, Tensor], others: Sequence[Conjugate]) -> Expectations:
        """Of log f and its derivatives.

        Args:
            moments: mean ``[1, E, 1]`` and variance ``[1, E, 1, 1]`` of u.
            others: none.
        """
        mean, sd = moments[0][..., 0], moments[1][..., 0, 0].sqrt()
        value, by_mean, by_sd = expected_pieces(self.pieces, mean, sd)
        return Expectations(value, by_mean[..., None], (by_sd / sd)[..., None, None], [])
