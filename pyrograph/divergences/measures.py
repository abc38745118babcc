"""Unnormalised measures: masses on atoms, densities on a grid, Gaussians, products of marginals.

Everything is kept as logarithms, zero mass is -inf, and leading dimensions are a batch. A
density on a grid is a measure on the grid's points with masses density * weight: since
p^alpha q^(1 - alpha) w = (p w)^alpha (q w)^(1 - alpha), both kinds share one arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from pyrograph.checks import whole_number
from pyrograph.errors import OptionError, ShapeMismatch


def take_tensors(measure: object, *names: str) -> None:
    """Bring tensors to one floating dtype, the highest of theirs; that of whole numbers is the
    default."""
    values = {name: getattr(measure, name) for name in names}
    for name, value in values.items():
        check_real(f"{type(measure).__name__}: {name}", value)
    dtype = common_dtype(values.values())
    for name, value in values.items():
        object.__setattr__(measure, name, value.to(dtype))


def check_real(name: str, value: object) -> None:
    """Refuse what is no tensor of real numbers."""
    if not isinstance(value, Tensor):
        raise OptionError(f"{name} is a {type(value).__name__}; give a tensor")
    if value.is_complex() or value.dtype == torch.bool:
        raise OptionError(f"{name} is {value.dtype}; give a tensor of real numbers")


def common_dtype(values: Iterable[Tensor]) -> torch.dtype:
    """The highest floating dtype of all; the default one if there is none."""
    dtype = reduce(torch.promote_types, (value.dtype for value in values))
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


class Atomic:
    """A measure given by the masses of finitely many atoms."""

    @property
    def log_atoms(self) -> Tensor:
        """Log masses of the atoms, ``[..., n]``."""
        raise NotImplementedError

    def with_atoms(self, log_atoms: Tensor) -> Atomic:
        """The measure on the same atoms with other log masses, ``[..., n]``."""
        raise NotImplementedError

    def expand(self, batch: tuple[int, ...]) -> Atomic:
        """The same measure for every element of a wider batch."""
        raise NotImplementedError

    def flatten(self) -> Atomic:
        """The batch as one dimension."""
        raise NotImplementedError

    def select(self, index: Tensor) -> Atomic:
        """Elements of a flat batch."""
        raise NotImplementedError

    def copied(self) -> Atomic:
        """A copy out of reach of derivatives; made outside inference mode it can be differentiated,
        wherever this one was made."""
        raise NotImplementedError

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch."""
        return tuple(self.log_atoms.shape[:-1])

    @property
    def log_mass_total(self) -> Tensor:
        """Log of the total mass, ``[...]``."""
        return self.log_atoms.logsumexp(-1)

    def scaled(self, log_scale: Tensor | float) -> Atomic:
        """This measure times exp(``log_scale``), ``log_scale`` of the batch's shape."""
        like = self.log_atoms
        log_scale = torch.as_tensor(log_scale, dtype=like.dtype, device=like.device)
        return self.with_atoms(self.log_atoms + log_scale[..., None])


@dataclass(frozen=True)
class Discrete(Atomic):
    """Masses of the joint states of one or more discrete variables.

    Args:
        log_mass: ``[..., c_1, ..., c_d]``, -inf where the mass is zero.
        num_variables: d, how many trailing dimensions are variables.

    Raises:
        ShapeMismatch: fewer dimensions than variables.
    """

    log_mass: Tensor
    num_variables: int = 1

    def __post_init__(self):
        take_tensors(self, "log_mass")
        given = self.num_variables
        number = whole_number(given)
        if number is None:
            raise OptionError(f"Discrete: num_variables={given!r} must be a whole number")
        object.__setattr__(self, "num_variables", number)
        if not 1 <= self.num_variables <= self.log_mass.dim():
            raise ShapeMismatch(
                f"Discrete: num_variables={self.num_variables} does not fit log_mass of shape "
                f"{list(self.log_mass.shape)}; its last num_variables dimensions are the states"
            )

    @property
    def cards(self) -> tuple[int, ...]:
        """Number of states of each variable."""
        return tuple(self.log_mass.shape[-self.num_variables :])

    @property
    def log_atoms(self) -> Tensor:
        return self.log_mass.flatten(-self.num_variables)

    def with_atoms(self, log_atoms: Tensor) -> Discrete:
        return replace(self, log_mass=log_atoms.unflatten(-1, self.cards))

    def expand(self, batch: tuple[int, ...]) -> Discrete:
        return replace(self, log_mass=self.log_mass.expand(batch + self.cards))

    def flatten(self) -> Discrete:
        return replace(self, log_mass=self.log_mass.reshape((-1,) + self.cards))

    def select(self, index: Tensor) -> Discrete:
        return replace(self, log_mass=self.log_mass[index])

    def copied(self) -> Discrete:
        return replace(self, log_mass=self.log_mass.detach().clone())


@dataclass(frozen=True)
class Gridded(Atomic):
    """A density on the line, known at the points of a grid.

    Args:
        log_density: ``[..., n]``, -inf where the density is zero.
        points: ``[..., n]`` or ``[n]``, increasing.
        log_weights: logs of the quadrature weights, like ``points``; the trapezoid rule if
            None. Zeros make the measure one of atoms at the points.

    Raises:
        ShapeMismatch: points or weights do not fit the density.
    """

    log_density: Tensor
    points: Tensor
    log_weights: Tensor | None = None

    def __post_init__(self):
        given = () if self.log_weights is None else ("log_weights",)
        take_tensors(self, "log_density", "points", *given)
        for name in ("log_density", "points", *given):
            if not getattr(self, name).dim():
                raise ShapeMismatch(f"Gridded: {name} is a number; its shape is [..., n]")
        if self.log_weights is None:
            object.__setattr__(self, "log_weights", trapezoid_log_weights(self.points))
        for name in ("points", "log_weights"):
            if getattr(self, name).shape[-1] != self.log_density.shape[-1]:
                raise ShapeMismatch(
                    f"Gridded: {name} has shape {list(getattr(self, name).shape)}, log_density "
                    f"{list(self.log_density.shape)}; give one value per grid point"
                )

    @property
    def log_atoms(self) -> Tensor:
        return self.log_density + self.log_weights

    def with_atoms(self, log_atoms: Tensor) -> Gridded:
        return replace(self, log_density=log_atoms - self.log_weights)

    def expand(self, batch: tuple[int, ...]) -> Gridded:
        shape = batch + self.log_density.shape[-1:]
        return Gridded(
            self.log_density.expand(shape),
            self.points.expand(shape),
            self.log_weights.expand(shape),
        )

    def flatten(self) -> Gridded:
        n = self.log_density.shape[-1]
        full = self.expand(self.batch_shape)
        return Gridded(
            full.log_density.reshape(-1, n),
            full.points.reshape(-1, n),
            full.log_weights.reshape(-1, n),
        )

    def select(self, index: Tensor) -> Gridded:
        return Gridded(self.log_density[index], self.points[index], self.log_weights[index])

    def copied(self) -> Gridded:
        parts = (self.log_density, self.points, self.log_weights)
        return Gridded(*(part.detach().clone() for part in parts))


def trapezoid_log_weights(points: Tensor) -> Tensor:
    """Logs of the trapezoid rule's weights on increasing ``points``, ``[..., n]``."""
    gaps = points.diff(dim=-1)
    if not bool((gaps > 0).all()):
        raise OptionError("Gridded: points must increase strictly; sort them and drop duplicates")
    ends = torch.zeros_like(points[..., :1])
    return ((torch.cat([gaps, ends], -1) + torch.cat([ends, gaps], -1)) / 2).log()


@dataclass(frozen=True)
class Gaussian:
    """exp(``log_mass``) times a normal density.

    Args:
        log_mass: log of the total mass, ``[...]``.
        mean: ``[..., d]``.
        covariance: ``[..., d, d]``, positive definite.

    Raises:
        ShapeMismatch: mean and covariance disagree.
    """

    log_mass: Tensor
    mean: Tensor
    covariance: Tensor

    def __post_init__(self):
        take_tensors(self, "log_mass", "mean", "covariance")
        if not self.mean.dim():
            raise ShapeMismatch("Gaussian: the mean is a number; its shape is [..., d]")
        dim = self.mean.shape[-1]
        if not dim:
            raise ShapeMismatch(
                f"Gaussian: the mean has shape {list(self.mean.shape)}: no dimension is left. A "
                "point has a mass alone, which is a Discrete measure of one state"
            )
        if self.covariance.shape[-2:] != (dim, dim):
            raise ShapeMismatch(
                f"Gaussian: mean has {dim} dimensions, covariance has shape "
                f"{list(self.covariance.shape)}; it must end in [{dim}, {dim}]"
            )

    def scaled(self, log_scale: Tensor | float) -> Gaussian:
        """This measure times exp(``log_scale``)."""
        return replace(self, log_mass=self.log_mass + log_scale)

    def on_grid(self, like: Gridded) -> Gridded:
        """The density at the points of ``like``; one dimension only."""
        if not isinstance(like, Gridded):
            raise OptionError(
                f"Gaussian.on_grid takes the Gridded measure whose points it is seen at, not a "
                f"{type(like).__name__}"
            )
        if self.mean.shape[-1] != 1:
            raise ShapeMismatch(
                f"Gaussian: {self.mean.shape[-1]} dimensions; a grid on the line takes one"
            )
        variance = self.covariance[..., 0]
        square = (like.points - self.mean) ** 2 / variance
        log_density = -0.5 * (square + (2 * math.pi * variance).log())
        return replace(like, log_density=self.log_mass[..., None] + log_density)


@dataclass(frozen=True)
class Factorised:
    """exp(``log_mass``) times a product of marginals of discrete variables.

    Args:
        log_mass: log of the total mass, ``[...]``.
        log_marginals: one tensor ``[..., c_i]`` per variable, each normalised.

    Raises:
        OptionError: the mass or a marginal is no tensor, or there is no marginal.
    """

    log_mass: Tensor
    log_marginals: tuple[Tensor, ...]

    def __post_init__(self):
        tables = self.log_marginals
        if not isinstance(tables, tuple | list) or not tables:
            raise OptionError(
                f"Factorised: log_marginals is {tables!r}; give a tuple of one tensor per variable"
            )
        check_real("Factorised: log_mass", self.log_mass)
        for i, table in enumerate(tables):
            check_real(f"Factorised: marginal {i}", table)
            if not table.dim():
                raise ShapeMismatch(f"Factorised: marginal {i} is a number; its shape is [..., c]")
        dtype = common_dtype([self.log_mass, *tables])
        object.__setattr__(self, "log_mass", self.log_mass.to(dtype))
        object.__setattr__(self, "log_marginals", tuple(table.to(dtype) for table in tables))

    def scaled(self, log_scale: Tensor | float) -> Factorised:
        """This measure times exp(``log_scale``)."""
        return replace(self, log_mass=self.log_mass + log_scale)

    def joint(self) -> Discrete:
        """The table over all joint states, ``[..., c_1, ..., c_d]``."""
        d = len(self.log_marginals)
        columns = [
            m.reshape(m.shape[:-1] + (1,) * i + m.shape[-1:] + (1,) * (d - 1 - i))
            for i, m in enumerate(self.log_marginals)
        ]
        return Discrete(sum(columns), d).scaled(self.log_mass)
