"""What a state of QBethe holds of its mixture, and whether a saved one fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyrograph.errors import ShapeMismatch
from pyrograph.infer.qbethe.adam import CosineAdam
from pyrograph.infer.qbethe.build import Network
from pyrograph.infer.qbethe.components import Kind, Parameters
from pyrograph.infer.qbethe.potentials import QuadraticPotential
from pyrograph.infer.qbethe.search import LineSearch

#: By what the numbers of continuous nodes are measured.
MEASURES = ("centre", "unit")


def measures_of(network: Network) -> dict[str, Tensor]:
    """By name and number of the kind of nodes."""
    return {
        f"{name}_{k}": getattr(kind, name)
        for k, kind in enumerate(network.kinds)
        for name in MEASURES
        if not kind.is_discrete
    }


def measured_by(network: Network, saved: Mapping[str, Tensor]) -> list[Kind]:
    """The kinds of nodes with saved measures."""
    return [
        kind
        if kind.is_discrete
        else replace(kind, **{name: saved[f"{name}_{k}"].to(kind.centre) for name in MEASURES})
        for k, kind in enumerate(network.kinds)
    ]


def take(network: Network, kinds: list[Kind], parameters: Parameters, saved: Parameters) -> None:
    """The saved kinds and parameters from now on."""
    network.kinds[:] = kinds
    for potential in network.potentials:
        if isinstance(potential, QuadraticPotential):
            potential.expanded = None  # about these centres
    with torch.no_grad():
        for name, value in parameters.items():
            value.copy_(saved[name])


def refuse_other_parameters(parameters: Parameters, saved: Parameters) -> None:
    """Raise ``ShapeMismatch`` for parameters of other names or shapes."""
    ours = {name: list(value.shape) for name, value in parameters.items()}
    theirs = {name: list(value.shape) for name, value in saved.items()}
    if ours != theirs:
        raise ShapeMismatch(
            "the state belongs to other options or was saved by an earlier version: its parameters "
            f"are {theirs}, here they are {ours}. Give num_components, num_restarts and covariance "
            "of the saved run; if they are the same, correlations had other names or sizes then "
            "(tie_...), and the run has to start anew."
        )


def refuse_other_rule(rule: CosineAdam | LineSearch, saved: Mapping[str, Any], name: str) -> None:
    """Raise ``ShapeMismatch`` for the state of another optimiser than the one of this name."""
    is_search = "history_size" in saved.get("param_groups", [{}])[0]
    if is_search != isinstance(rule, LineSearch):
        raise ShapeMismatch(f'the state is not of optimizer="{name}": give the saved run\'s.')
