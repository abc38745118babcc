"""Evidence that is rounded is an estimate, whatever it would be worth in exact arithmetic.

A single precision log y! of a million is one of the numbers 1 apart: a bound that is made of such
constants may be off by more than it is loose by (see :mod:`pyrograph.graph.rounding`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.graph import FactorGraph
from pyrograph.graph.rounding import most_rounded

#: Nats that are not spoken of.
UNSPOKEN = 0.01


def is_rounded(graph: FactorGraph, evidence: Tensor) -> bool:
    """Whether constants leave more unknown than that, and than the evidence's last digit."""
    last = torch.finfo(graph.result_dtype).eps * abs(float(evidence.detach()))
    return graph.rounding > max(UNSPOKEN, last)


def note_on_rounding(graph: FactorGraph) -> str:
    """What is to be said of it."""
    precision = str(graph.lowest_precision).removeprefix("torch.")
    return (
        f'Constants of "{most_rounded(graph)}" are so large that {precision} rounds the evidence '
        f"by about {graph.rounding:.1g} nats: it is an estimate. Give the program data and "
        "parameters in float64."
    )
