"""The truncated Laplace function: a Laplace peak on a flat floor.

    f(x) = exp(-min(|x - loc|, cut) / scale)

Differences beyond ``cut`` all cost the same, which is what keeps edges sharp in images. On the line
f has infinite mass; on an interval [low, high] it is a proper density once divided by

    int_low^high f = sum over the sides of loc of
        scale (exp(-u / scale) - exp(-v / scale)), u and v the side's ends clipped at cut
        + (the side's length beyond cut) exp(-cut / scale).

Source: Lienart, Teh & Doucet (2015), "Expectation particle belief propagation", section 4 (the
pairwise potential of the denoising example).
"""

from __future__ import annotations

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyrograph.distributions.checks import floats, require_expansion, require_positive, validates
from pyrograph.errors import OptionError, ShapeMismatch


class TruncatedLaplace(TorchDistribution):
    """exp(-min(|x - loc|, cut) / scale), normalised on an interval if one is given.

    Without ``low`` and ``high`` it is improper: ``log_prob`` is -min(|x - loc|, cut) / scale, 0 at
    its peak, as a pairwise potential wants it (``pyro.factor("tie", fn.log_prob(x - y))``), and
    ``sample`` raises. With them it is an ordinary density on [low, high].

    Args:
        loc: peak, ``[...]``; it need not lie in the interval.
        scale: above 0, ``[...]``.
        cut: distance from which the function is flat, above 0, ``[...]``; inf for none.
        low, high: ends of the interval, finite, ``[...]``, both or neither.

    Raises:
        OptionError: a parameter is no number, loc or an end is not finite, scale or cut is not
            above 0, one end is missing, or low >= high.
        ShapeMismatch: the parameters' shapes do not broadcast.
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}  # noqa: RUF012

    def __init__(
        self,
        loc: float | Tensor,
        scale: float | Tensor,
        cut: float | Tensor,
        low: float | Tensor | None = None,
        high: float | Tensor | None = None,
        validate_args: bool | None = None,
    ):
        if (low is None) != (high is None):
            raise OptionError(
                "TruncatedLaplace: give both low and high (a density on an interval) or neither "
                "(an unnormalised potential on the line)"
            )
        self.is_proper = low is not None
        ends = (low, high) if self.is_proper else ()
        values = _broadcast(loc, scale, cut, *ends)
        self.loc, self.scale, self.cut = values[:3]
        self.low, self.high = values[3:] if self.is_proper else (None, None)
        if validates(validate_args):
            self._check_values()
        super().__init__(self.loc.shape, validate_args=validate_args)

    def _check_values(self) -> None:
        require_positive("TruncatedLaplace", scale=self.scale)
        if not bool(self.loc.isfinite().all()):
            raise OptionError("TruncatedLaplace: loc must be finite")
        if not bool((self.cut > 0).all()):
            raise OptionError("TruncatedLaplace: cut must be above 0 (inf for no cut)")
        if not self.is_proper:
            return
        if not bool((self.low < self.high).all()):
            raise OptionError("TruncatedLaplace: low must lie below high")
        for name, end in (("low", self.low), ("high", self.high)):
            if not bool(end.isfinite().all()):
                raise OptionError(
                    f"TruncatedLaplace: {name} must be finite: the floor beyond the cut has "
                    f"infinite mass on an endless side. Without a cut, write dist.Laplace, or an "
                    f"end some hundred scales from loc."
                )

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self):
        return constraints.interval(self.low, self.high) if self.is_proper else constraints.real

    def expand(self, batch_shape, _instance=None):
        new = self._get_checked_instance(TruncatedLaplace, _instance)
        batch = require_expansion("TruncatedLaplace", self.batch_shape, batch_shape)
        new.is_proper = self.is_proper
        for name in ("loc", "scale", "cut", "low", "high"):
            value = getattr(self, name)
            setattr(new, name, None if value is None else value.expand(batch))
        super(TruncatedLaplace, new).__init__(batch, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        """``[...]``; -inf outside the interval. Gradients in the value and every parameter."""
        log_f = -torch.minimum((value - self.loc).abs(), self.cut) / self.scale
        if not self.is_proper:
            return log_f
        log_mass = torch.logsumexp(torch.stack([side.log_mass() for side in self._sides()]), 0)
        outside = (value < self.low) | (value > self.high)  # NaN is not, and stays NaN
        return torch.where(outside, -torch.inf, log_f - log_mass)

    def _sides(self) -> tuple[Side, Side]:
        """The interval left and right of the peak, by distance from it."""
        below, above = self.low - self.loc, self.high - self.loc
        return (
            Side((-above).clamp_min(0), (-below).clamp_min(0), self.cut, self.scale),
            Side(below.clamp_min(0), above.clamp_min(0), self.cut, self.scale),
        )

    @torch.no_grad()
    def sample(self, sample_shape=()):
        """By inversion.

        Raises:
            OptionError: the function has no interval, hence no finite mass.
        """
        if not self.is_proper:
            raise OptionError(
                "TruncatedLaplace without low and high has infinite mass and cannot be sampled; "
                "give the interval, or use it as a potential: pyro.factor(name, fn.log_prob(x))"
            )
        shape = torch.Size(sample_shape) + self.batch_shape
        left, right = self._sides()
        go_right = torch.sigmoid(right.log_mass() - left.log_mass())
        u, v, w = torch.rand((3,) + shape, dtype=self.loc.dtype, device=self.loc.device)
        x = torch.where(u < go_right, self.loc + right.draw(v, w), self.loc - left.draw(v, w))
        return torch.minimum(torch.maximum(x, self.low), self.high)


def _broadcast(*parameters: float | Tensor) -> tuple[Tensor, ...]:
    """The parameters as tensors of one shape, in the order of the constructor."""
    try:
        tensors = floats(*parameters)
    except (TypeError, ValueError, RuntimeError) as error:
        given = ", ".join(type(value).__name__ for value in parameters)
        raise OptionError(
            f"TruncatedLaplace: the parameters are {given}; give numbers or tensors"
        ) from error
    try:
        return torch.broadcast_tensors(*tensors)
    except RuntimeError as error:
        names = ("loc", "scale", "cut", "low", "high")
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in zip(names, tensors))
        raise ShapeMismatch(f"TruncatedLaplace: shapes do not broadcast: {shapes}") from error


class Side:
    """f on one side of its peak, at distances ``near`` to ``far``; empty where they are equal."""

    def __init__(self, near: Tensor, far: Tensor, cut: Tensor, scale: Tensor):
        cut = torch.minimum(cut, far)  # no further is needed; finite also for cut = inf
        self.near, self.far, self.cut, self.scale = near, far, cut, scale
        self.start = torch.minimum(near, cut)
        #: Of the peak and of the floor, both divided by exp(-start / scale).
        self.peak = scale * -torch.expm1(-(cut - self.start) / scale)
        self.floor = (far - torch.maximum(near, cut)) * torch.exp(-(cut - self.start) / scale)

    def log_mass(self) -> Tensor:
        """-inf for an empty side."""
        mass = self.peak + self.floor
        some = mass > 0
        log_mass = torch.where(some, mass, 1).log() - self.start / self.scale
        return torch.where(some, log_mass, -torch.inf)

    def draw(self, v: Tensor, w: Tensor) -> Tensor:
        """A distance from the peak, from two uniform numbers."""
        steps = torch.expm1(-(self.cut - self.start) / self.scale)
        curved = self.start - self.scale * torch.log1p(w * steps)
        begin = torch.maximum(self.near, self.cut)
        return torch.where(
            v * (self.peak + self.floor) < self.peak, curved, begin + w * (self.far - begin)
        )
