"""Supports as plain data, so that a saved guide can be rebuilt without its model.

A description is a dict of strings, numbers and tensors: it survives
``torch.load(weights_only=True)``.
"""

from typing import Any

import torch
from pyro.distributions import constraints
from torch import Tensor
from torch.distributions.constraints import Constraint

from pyrograph.errors import UnsupportedSite

# Constraints without parameters, by the name they are exported under.
CONSTANT = {
    name: getattr(constraints, name)
    for name in (
        "real",
        "positive",
        "nonnegative",
        "unit_interval",
        "simplex",
        "corr_cholesky",
        "corr_matrix",
        "lower_cholesky",
        "unit_lower_cholesky",
        "softplus_lower_cholesky",
        "positive_definite",
        "positive_semidefinite",
        "softplus_positive",
        "ordered_vector",
        "positive_ordered_vector",
    )
}
# Constraints with bounds: the class and its bounds in the order of its arguments.
BOUNDED = {
    "greater_than": (constraints.greater_than, ("lower_bound",)),
    "greater_than_eq": (constraints.greater_than_eq, ("lower_bound",)),
    "less_than": (constraints.less_than, ("upper_bound",)),
    "interval": (constraints.interval, ("lower_bound", "upper_bound")),
    "half_open_interval": (constraints.half_open_interval, ("lower_bound", "upper_bound")),
}


def describe(support: Constraint | None, site: str) -> dict[str, Any]:
    """Plain description of a support.

    Raises:
        UnsupportedSite: the support depends on latents (None), or is of no known kind.
    """
    if support is None:
        raise UnsupportedSite(
            f'site "{site}" has a support that depends on other latents, so no guide can be made '
            "for it that stands apart from the model. Write it with a fixed support and transform "
            "it in the model, or leave it out: posterior.guide(sites=[...])."
        )
    bounded = tuple(cls for cls, _ in BOUNDED.values())
    for name, constraint in CONSTANT.items():
        same_type = type(support) is type(constraint) and type(support) not in bounded
        if support is constraint or same_type:
            return {"kind": name}
    if isinstance(support, constraints.independent):
        return {
            "kind": "independent",
            "base": describe(support.base_constraint, site),
            "dims": support.reinterpreted_batch_ndims,
        }
    for name, (cls, bounds) in BOUNDED.items():
        if isinstance(support, cls):
            return {"kind": name} | {bound: _plain(getattr(support, bound)) for bound in bounds}
    raise UnsupportedSite(
        f'site "{site}" has support {support}, which a guide cannot save and rebuild. Write the '
        "site with a standard support, or leave it out: posterior.guide(sites=[...])."
    )


def restore(description: dict[str, Any], device: torch.device | str = "cpu") -> Constraint:
    """The constraint of a description, its bounds on ``device``; inverse of :func:`describe`."""
    kind = description["kind"]
    if kind == "independent":
        return constraints.independent(restore(description["base"], device), description["dims"])
    if kind in BOUNDED:
        cls, names = BOUNDED[kind]
        bounds = (description[name] for name in names)
        return cls(*(b.to(device) if isinstance(b, Tensor) else b for b in bounds))
    return CONSTANT[kind]


def on_edge(support: Constraint, value: Tensor) -> Tensor:
    """Which numbers lie on the ends of an interval or the faces of a simplex, of ``value``'s shape.

    These lie at infinity, but ``biject_to`` takes numbers there to finite ones, a little inside.
    """
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if isinstance(support, constraints.interval | constraints.half_open_interval):
        lower, upper = (
            torch.as_tensor(bound, dtype=value.dtype, device=value.device)
            for bound in (support.lower_bound, support.upper_bound)
        )
        return (value <= lower) | (value >= upper)
    if isinstance(support, type(constraints.simplex)):
        return value <= 0
    return torch.zeros_like(value, dtype=torch.bool)


def _plain(bound: float | Tensor) -> float | Tensor:
    return bound.detach().clone() if isinstance(bound, Tensor) else float(bound)
