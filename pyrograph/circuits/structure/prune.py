"""A circuit without the units that are impossible."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pyrograph.circuits.structure.leaves import Domain
from pyrograph.circuits.structure.units import INPUT, Units


def prune(
    units: Units,
    domain: Domain,
    log_mass: Tensor,
    log_weights: Tensor,
    log_table: Tensor,
    loc: Tensor,
    scale: Tensor,
) -> tuple[Units, Domain, Tensor, Tensor, Tensor, Tensor]:
    """The arguments of the smaller circuit.

    Args:
        log_mass: ``[N]``, -inf of impossible units; the root is possible.
        log_weights: edges of weight -inf go, too.
    """
    used, kept_edges = possible(units, log_mass, log_weights)
    if used.all() and kept_edges.all():
        return units, domain, log_weights, log_table, loc, scale
    device = log_weights.device
    weights = torch.as_tensor(kept_edges[units.edge_is_sum], device=device)
    inputs = torch.as_tensor(used[units.kind == INPUT], device=device)
    var = domain.var[used[units.kind == INPUT]]
    return (
        units.part(used, kept_edges),
        Domain(domain.cards, var),
        log_weights[weights],
        log_table[inputs],
        loc[inputs],
        scale[inputs],
    )


def possible(units: Units, log_mass: Tensor, log_weights: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Which units ``[N]`` and edges ``[E]`` are left; the arguments are those of :func:`prune`."""
    alive = log_mass.detach().isfinite().cpu().numpy()
    edge_alive = alive[units.child] & alive[units.parent]
    edge_alive[units.edge_is_sum] &= (log_weights.detach() > -torch.inf).cpu().numpy()
    used = units.reached(edge_alive)
    return used, edge_alive & used[units.parent]
