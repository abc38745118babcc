"""Which factor breaks: the first non-finite log density or gradient, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pyrograph.graph.factor_graph import FactorGraph


def first_non_finite(graph: FactorGraph, x: Tensor) -> str | None:
    """``log density of factor "r"[12] (scope x[3], x[7]) is nan at particle 4``, or None.

    Args:
        x: particles ``[n, dim]``.
    """
    for group in graph.factors:
        values = [v.detach() for v in graph.local_values(group, x)]
        wanted = [v.requires_grad_() for v in values if v.is_floating_point()]
        with torch.enable_grad():
            log_prob = group.log_prob(values)
            quantities = [("log density", log_prob)]
            if log_prob.requires_grad:
                grads = torch.autograd.grad(log_prob.sum(), wanted, allow_unused=True)
                quantities += [
                    ("gradient", g.reshape(*log_prob.shape, -1).sum(-1))
                    for g in grads
                    if g is not None
                ]
        for what, q in quantities:
            bad = (~q.isfinite()).nonzero()
            if len(bad):
                particle, e = bad[0].tolist()
                value, name = q[particle, e].item(), graph.factor_name(group, e)
                return f"{what} of {name} is {value} at particle {particle}"
    return None
