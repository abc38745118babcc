"""Marginals of all variables at once: one derivative of a circuit's value at the evidence.

    p(x_v = s | e) = sum of i's share times p_i(s) over the inputs i of variable v,
    share of i = d log circuit(e) / d log i(e)

the probability that a draw given e comes to that input. The shares of all inputs are one pass
backwards: O(number of edges) for each piece of evidence.

Source: Darwiche (2003), "A differential approach to inference in Bayesian networks".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

from pyrograph.circuits.expectations.scaling import log
from pyrograph.circuits.structure.leaves import Leaves
from pyrograph.diagnostics.score import outside_modes
from pyrograph.errors import ZeroMass

if TYPE_CHECKING:
    from pyrograph.circuits.circuit import Circuit


@outside_modes()
def marginals_given(circuit: Circuit, points: Tensor) -> list[Tensor | MixtureSameFamily]:
    """Of every variable: ``[B, card]`` of a discrete one, point masses where its value is given;
    of a real one a mixture, given the first row.

    Args:
        points: ``[B, D]``, checked, NaN where missing.

    Raises:
        ZeroMass: a row is impossible.
    """
    is_attached, kept = circuit.is_attached, circuit.numbers
    if not is_attached:
        kept = {name: value.detach() for name, value in kept.items()}
    log_weights, *of_inputs = kept.values()
    leaves = Leaves(circuit.domain, *of_inputs)
    shares = _shares(circuit, leaves, log_weights, points, is_attached)
    out: list[Tensor | MixtureSameFamily] = []
    mass, var = leaves.log_mass(), leaves.var
    table = (leaves.log_table - torch.where(mass.isfinite(), mass, 0.0).unsqueeze(1)).exp()
    number = torch.bincount(var, minlength=len(circuit.cards)).tolist()
    inputs_of = var.argsort(stable=True).split(number)
    for v, (card, own) in enumerate(zip(circuit.cards, inputs_of, strict=True)):
        if card is None:
            inputs = Normal(leaves.loc[own], leaves.scale[own])
            # as probabilities they would be rounded up to the dtype's epsilon
            mixing = Categorical(logits=log(shares[own, 0]))
            out.append(MixtureSameFamily(mixing, inputs))
            continue
        free = shares[own].t() @ table[own, :card]
        state = torch.arange(card, device=free.device)
        is_given = (points[:, v].unsqueeze(1) == state).to(free)
        missing = points[:, v].isnan().unsqueeze(1)
        out.append(torch.where(missing, free, is_given))
    return out


def _shares(
    circuit: Circuit, leaves: Leaves, log_weights: Tensor, points: Tensor, is_attached: bool
) -> Tensor:
    """``[inputs, B]``; differentiable where numbers are attached."""
    with torch.enable_grad():
        at_inputs = leaves.log_prob(points).double()
        if not at_inputs.requires_grad:
            at_inputs.requires_grad_()
        total = circuit.layers.values(at_inputs, log_weights)[-1][0]
        if not bool(total.isfinite().all()):
            row = int((~total.isfinite()).nonzero()[0])
            raise ZeroMass(f"no state is possible (row {row} of the evidence): the mass is zero")
        (shares,) = torch.autograd.grad(total.sum(), at_inputs, create_graph=is_attached)
    return shares.to(log_weights.dtype)
