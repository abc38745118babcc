"""Step rules: how far particles move along a direction.

    AdaGrad   G <- G + g^2                     x <- x + lr g / (sqrt(G) + eps)
    RMSProp   G <- d G + (1 - d) g^2           x <- x + lr g / sqrt(G + eps)
    Adam      m, v running means of g, g^2     x <- x + lr m^ / (sqrt(v^) + eps)

coordinate by coordinate, for each particle. A rule is a value without state; what it remembers
is a dict of tensors that the caller keeps, replaced and never changed in place.

A rule whose first steps have length lr does not know how wide a density is. Where that is known, as
after a Laplace start, it steps in coordinates in which the density is about 1 wide.

Source: Duchi, Hazan & Singer (2011); Kingma & Ba (2015); RMSProp with lr 5e-3, d 0.9, eps 1e-6
is the schedule released with Wang, Zeng & Liu (2018).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pyrograph.checks import fraction, positive
from pyrograph.errors import OptionError
from pyrograph.kernels.coordinates import Coordinates

Memory = dict[str, Tensor]


class Optimizer(Protocol):
    """A step rule."""

    def start(self, x: Tensor) -> Memory:
        """What the rule remembers before the first step at ``x``."""
        ...

    def step(self, x: Tensor, direction: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Particles and memory after one step along ``direction``."""
        ...


@dataclass(frozen=True)
class AdaGrad:
    """Steps shrink with the accumulated direction, so ``lr`` is about the first step's length
    and needs no tuning to the scale of the density."""

    lr: float = 1.0
    eps: float = 1e-10

    def __post_init__(self):
        _settle(self, positive, "lr", "eps")

    def start(self, x: Tensor) -> Memory:
        return {"accumulated": _squares_of(x)}

    def step(self, x: Tensor, direction: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        wide = direction.double()
        accumulated = memory["accumulated"].addcmul(wide, wide)
        length = accumulated.sqrt().add_(self.eps).to(x)
        return x.addcdiv(direction, length, value=self.lr), {"accumulated": accumulated}


@dataclass(frozen=True)
class RMSProp:
    """Steps of nearly constant length ``lr``; does not settle closer than that."""

    lr: float = 5e-3
    decay: float = 0.9
    eps: float = 1e-6

    def __post_init__(self):
        _settle(self, positive, "lr", "eps")
        _settle(self, fraction, "decay")

    def start(self, x: Tensor) -> Memory:
        return {"average": _squares_of(x)}

    def step(self, x: Tensor, direction: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        average = self.decay * memory["average"] + (1 - self.decay) * direction.double().square()
        length = (average + self.eps).sqrt().to(x)
        return x + self.lr * direction / length, {"average": average}


@dataclass(frozen=True)
class Adam:
    """Running means of direction and square, corrected for their start at zero."""

    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self):
        _settle(self, positive, "lr", "eps")
        if not isinstance(self.betas, tuple | list) or len(self.betas) != 2:
            raise OptionError(f"Adam: betas={self.betas!r} must be two numbers in [0, 1)")
        betas = tuple(fraction("Adam: betas", beta) for beta in self.betas)
        object.__setattr__(self, "betas", betas)

    def start(self, x: Tensor) -> Memory:
        return {
            "mean": torch.zeros_like(x),
            "square": _squares_of(x),
            "count": torch.zeros((), dtype=torch.float64, device="cpu"),
        }

    def step(self, x: Tensor, direction: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        first, second = self.betas
        count = memory["count"] + 1
        mean = first * memory["mean"] + (1 - first) * direction
        square = second * memory["square"] + (1 - second) * direction.double().square()
        k = float(count)
        scale = ((square / (1 - second**k)).sqrt() + self.eps).to(x)
        x = x + self.lr * (mean / (1 - first**k)) / scale
        return x, {"mean": mean, "square": square, "count": count}


def _squares_of(x: Tensor) -> Tensor:
    """Zeros for squares of directions, which overflow in single precision where a density is
    narrower than 1e-19."""
    return torch.zeros_like(x, dtype=torch.float64)


def _settle(rule: Optimizer, check: Callable[[str, float], float], *names: str) -> None:
    """Make options of a frozen rule the plain numbers that they were checked for."""
    for name in names:
        value = check(f"{type(rule).__name__}: {name}", getattr(rule, name))
        object.__setattr__(rule, name, value)


def started(rule: Optimizer, x: Tensor, coordinates: Coordinates | None = None) -> Memory:
    """What a rule remembers before the first step at ``x`` ``[n, dim]``.

    Args:
        coordinates: those it steps in; None leaves ``x`` as it is.
    """
    return rule.start(x if coordinates is None else coordinates.inward(x))


def stepped(
    rule: Optimizer,
    x: Tensor,
    direction: Tensor,
    memory: Memory,
    coordinates: Coordinates | None = None,
) -> tuple[Tensor, Memory]:
    """One step of a rule in these coordinates."""
    if coordinates is None:
        return rule.step(x, direction, memory)
    z = coordinates.inward(x)
    there, memory = rule.step(z, coordinates.inward(direction), memory)
    return x + coordinates.outward(there - z), memory
