"""Two measures and an order made ready for a divergence; what does not fit is refused by name."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrograph.divergences.measures import Atomic, Discrete, Gaussian, Gridded, common_dtype
from pyrograph.errors import NonFiniteDensity, OptionError, ShapeMismatch, ZeroMass
from pyrograph.shapes import broadcast_shapes

#: A covariance whose sides differ by more than this part of its largest entry is not symmetric.
ASYMMETRY = 1e-4


def order(alpha: float | Tensor, like: Tensor) -> Tensor:
    """``alpha`` as a tensor of the dtype and device of ``like``."""
    try:
        alpha = torch.as_tensor(alpha, dtype=like.dtype, device=like.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(f"alpha={alpha!r} must be a number, or a tensor of them") from error
    if not bool(alpha.isfinite().all()):
        raise OptionError(f"alpha={alpha.tolist()} must be finite")
    return alpha


def atom_pair(p: Atomic, q: Atomic, alpha: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log masses of ``p`` and ``q`` on their common atoms, ``[..., n]``, and ``alpha``."""
    a, b = paired_atoms(p, q)
    check_atoms("p", a)
    check_atoms("q", b)
    dtype = common_dtype([a, b])
    a, b = a.to(dtype), b.to(dtype)
    alpha = order(alpha, a)
    shared_batch("p, q and alpha", a.shape[:-1], b.shape[:-1], alpha.shape)
    return a, b, alpha


def paired_atoms(p: Atomic, q: Atomic) -> tuple[Tensor, Tensor]:
    """Log masses of ``p`` and ``q`` on their common atoms, ``[..., n]``."""
    kinds = f"{type(p).__name__} and {type(q).__name__}"
    if type(p) is not type(q) or not isinstance(p, Atomic):
        raise ShapeMismatch(
            f"{kinds}: both measures must be of one kind; Gaussian.on_grid(p) and "
            "Factorised.joint() put an approximation on the atoms of p"
        )
    if isinstance(p, Discrete) and p.cards != q.cards:
        raise ShapeMismatch(f"{kinds}: {p.cards} and {q.cards} states; both need the same")
    if isinstance(p, Gridded) and p.points.shape[-1] != q.points.shape[-1]:
        raise ShapeMismatch(f"{kinds}: {p.points.shape[-1]} and {q.points.shape[-1]} grid points")
    a, b = p.log_atoms, q.log_atoms
    shared_batch(kinds, a.shape[:-1], b.shape[:-1])
    if isinstance(p, Gridded) and not bool((p.points == q.points).all()):
        raise ShapeMismatch(f"{kinds}: the grids have different points; use one grid for both")
    return a, b


def gaussian_order(p: Gaussian, q: Gaussian, alpha: float | Tensor) -> Tensor:
    """``alpha`` for two Gaussians that are finite and live on the same space."""
    if p.mean.shape[-1] != q.mean.shape[-1]:
        raise ShapeMismatch(
            f"Gaussians of {p.mean.shape[-1]} and {q.mean.shape[-1]} dimensions: "
            "both must live on the same space"
        )
    alpha = order(alpha, p.mean.to(common_dtype([p.mean, q.mean])))
    shared_batch("p, q and alpha", gaussian_batch("p", p), gaussian_batch("q", q), alpha.shape)
    return alpha


def gaussian_batch(name: str, gaussian: Gaussian) -> torch.Size:
    """The batch of a Gaussian whose parameters are finite and whose covariance is symmetric."""
    mean, covariance = gaussian.mean, gaussian.covariance
    batch = shared_batch(
        f"log_mass, mean and covariance of {name}",
        gaussian.log_mass.shape,
        mean.shape[:-1],
        covariance.shape[:-2],
    )
    check_atoms(name, gaussian.log_mass)
    if not bool(mean.isfinite().all()):
        raise NonFiniteDensity(f"{name} has a mean that is NaN or infinite")
    if bool(covariance.isinf().any()):
        raise NonFiniteDensity(
            f"{name} has a covariance that is infinite: a flat density has no shape to compare. "
            "Leave that dimension out, or give a large variance"
        )
    gap = (covariance - covariance.mT).abs().amax((-2, -1))
    if bool((gap > ASYMMETRY * covariance.abs().amax((-2, -1))).any()):
        raise OptionError(
            f"{name} has a covariance that is not symmetric; of a Cholesky factor L it is L @ L.mT"
        )
    return batch


def shared_batch(what: str, *shapes: torch.Size) -> torch.Size:
    """The batch that ``shapes`` broadcast to."""
    try:
        return broadcast_shapes(*shapes)
    except ValueError as error:
        listed = " and ".join(str(list(shape)) for shape in shapes)
        raise ShapeMismatch(f"{what}: batches {listed} do not broadcast") from error


def check_atoms(name: str, log_masses: Tensor) -> None:
    """Refuse log masses that are no numbers."""
    if not bool((log_masses < math.inf).all()):
        raise NonFiniteDensity(
            f"{name} has log masses that are NaN or plus infinity; -inf stands for zero"
        )


def check_mass(name: str, log_atoms: Tensor) -> None:
    """Refuse measures ``[..., n]`` without any mass, which cannot be normalised."""
    empty = (log_atoms == -math.inf).all(-1)
    if bool(empty.any()):
        raise ZeroMass(
            f"{name} has no mass at all in {int(empty.sum())} of {empty.numel()} measures, and so "
            "cannot be normalised; leave those out"
        )


def check_target(p: Atomic) -> None:
    """Refuse measures that no member of a family approximates."""
    if not isinstance(p, Atomic):
        raise ShapeMismatch(
            f"{type(p).__name__} is no measure on atoms; approximate a Discrete or a Gridded one, "
            "such as Gaussian.on_grid(p) or Factorised.joint()"
        )
    if not p.log_atoms.numel():
        raise OptionError(f"p is empty: its batch has the shape {list(p.batch_shape)}")
    check_atoms("p", p.log_atoms)
    check_mass("p", p.log_atoms)
