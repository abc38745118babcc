"""A model with its hand-derived structure, and its log density by Pyro's own code.

Nothing here imports pyrograph: the values that the tests compare with come from Pyro's trace,
from ``torch.distributions.biject_to`` and from scopes written down by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to

Label = tuple[str, tuple[int, ...]]
Scopes = dict[str, list[frozenset[Label]]]


def node(site: str, *index: int) -> Label:
    return (site, index)


def scope(*labels: Label) -> frozenset[Label]:
    return frozenset(labels)


def nodes(site: str, indices: Iterable) -> frozenset[Label]:
    """Nodes of one site; an index is an int or a tuple."""
    return frozenset((site, i if isinstance(i, tuple) else (i,)) for i in indices)


def singles(site: str, *shape: int) -> list[frozenset[Label]]:
    """One factor per node of a site, in row-major order."""
    return [scope((site, tuple(i))) for i in all_indices(*shape)]


def largest(scopes: Iterable[frozenset[Label]]) -> set[frozenset[Label]]:
    """The scopes that no other one contains."""
    distinct = set(scopes)
    return {s for s in distinct if not any(s < t for t in distinct)}


def all_indices(*shape: int) -> list[tuple[int, ...]]:
    return [tuple(i) for i in torch.ones(shape).nonzero().tolist()] if shape else [()]


@dataclass
class Case:
    """A program and what is known about it.

    Attributes:
        scopes: every statement that depends on a latent, one scope per factor.
        blankets: hand-derived blankets of some nodes.
        fixed: sites held while the structure is read.
        jacobians: sites whose map from the reals has a log Jacobian that varies.
        unconstrained: traced in unconstrained space too.
        unconstrained_scopes: statements whose scopes differ there.
        draws: how to draw sites that have no ``sample``.
        static: statements that list nodes which need not move them (static dependence).
        pairwise: all neighbours interact in pairs. Not so where a latent index chooses among nodes
            (mu[z] joins all of mu, but for any z only one counts) or terms cancel.
        summed: statements whose elements are sums: their scopes are compared up to splits that
            join no further nodes, that is by the largest ones.
        tolerance: relative to the magnitude of the log density.
    """

    model: Callable
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    scopes: Scopes = field(default_factory=dict)
    blankets: dict[Label, frozenset[Label]] = field(default_factory=dict)
    fixed: dict[str, Tensor] | None = None
    jacobians: tuple[str, ...] = ()
    unconstrained: bool = True
    unconstrained_scopes: Scopes = field(default_factory=dict)
    draws: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    static: tuple[str, ...] = ()
    pairwise: bool = True
    summed: tuple[str, ...] = ()
    tolerance: float = 1e-10


class Hold(Messenger):
    """Puts values at latent sites, mapped from the reals for the sites named in ``free``."""

    def __init__(self, values: dict[str, Tensor], free: Iterable[str] = ()) -> None:
        super().__init__()
        self.values, self.free = values, set(free)
        self.log_jacobian = torch.zeros(())

    def _pyro_sample(self, msg: dict) -> None:
        if msg["name"] not in self.values:
            return
        value, support = self.values[msg["name"]], msg["fn"].support
        if msg["name"] in self.free and not support.is_discrete:
            transform = biject_to(support)
            free, value = value, transform(value)
            self.log_jacobian = (
                self.log_jacobian + transform.log_abs_det_jacobian(free, value).sum()
            )
        msg["value"] = value


class Draw(Messenger):
    """Draws the latent sites and keeps them, in the program's space or in unconstrained space."""

    def __init__(self, case: Case, unconstrained: bool) -> None:
        super().__init__()
        self.case, self.unconstrained = case, unconstrained
        self.values: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: dict) -> None:
        name, fn = msg["name"], msg["fn"]
        if msg["is_observed"] or msg["value"] is not None or type(fn).__name__ == "_Subsample":
            return
        if msg["infer"] and msg["infer"].get("_deterministic"):
            return
        held = self.case.fixed or {}
        if name in held:
            value = held[name]
        elif name in self.case.draws:
            value = self.case.draws[name]()
        else:
            value = fn.sample().detach()
        msg["value"] = value
        if self.unconstrained and name not in held and not fn.support.is_discrete:
            value = biject_to(fn.support).inv(value)
        self.values[name] = value


def draw_point(case: Case, unconstrained: bool) -> dict[str, Tensor]:
    """A random point of the program's latents; sites held by ``fixed`` are included."""
    with torch.no_grad(), Draw(case, unconstrained) as draw:
        case.model(*case.args, **case.kwargs)
    return draw.values


def draw_points(case: Case, unconstrained: bool, n: int) -> dict[str, Tensor]:
    """``n`` points, ``{site: [n, *batch, *event]}``."""
    points = [draw_point(case, unconstrained) for _ in range(n)]
    return {name: torch.stack([p[name] for p in points]) for name in points[0]}


def at(points: dict[str, Tensor], k: int) -> dict[str, Tensor]:
    return {name: value[k] for name, value in points.items()}


def pyro_trace(case: Case, values: dict[str, Tensor], unconstrained: bool):
    """Pyro's trace at given values, and the log Jacobian of the map there."""
    free = set(values) - set(case.fixed or {}) if unconstrained else ()
    with Hold(values, free) as hold:
        trace = poutine.trace(case.model).get_trace(*case.args, **case.kwargs)
    trace.compute_log_prob()
    return trace, hold.log_jacobian


def pyro_log_prob(case: Case, values: dict[str, Tensor], unconstrained: bool = False) -> Tensor:
    trace, log_jacobian = pyro_trace(case, values, unconstrained)
    return trace.log_prob_sum() + log_jacobian
