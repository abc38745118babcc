"""The evidence of a set of messages, and what it is worth.

    log Z = log int q + sum_a (1 / alpha_a) log E_q (f_a / prod_i m_{a -> i})^alpha_a

with q = prod_i base_i prod_a m_{a -> i}, which is the same for any scale of the messages; at
alpha_a = 0 the term is E_q log (f_a / m_a). With t_a = 1 / alpha_a the inequality of Hoelder and
its reverse make it a bound, for any messages,

    an upper one    if all t_a > 0 and sum_a t_a <= 1,
    a lower one     if all t_a < 0 (alpha = 0 being their limit), or if exactly one is positive
                    and sum_a t_a >= 1.

Factors absorbed exactly, those of one node, count for nothing: any t would do.

Source: Minka (2005), eq (66) and Theorem 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.infer.message_passing.network.network import Network
from pyrograph.posterior.posterior import EvidenceKind


def log_evidence(network: Network, messages: list[list], beliefs: list) -> Tensor:
    """Eq (66): ``[]``."""
    total = network.constant
    for family, belief in zip(network.families, beliefs, strict=True):
        total = total + family.log_mass(belief).sum()
    for block, message in zip(network.blocks, messages, strict=True):
        total = total + block.log_ratio(message, beliefs).sum()
    return total


def kind_of(network: Network, forest: bool, converged: bool) -> EvidenceKind:
    """What eq (66) is worth for these alphas. Quadrature that has errors and what rests on probes
    make no bound."""
    if network.has_quadrature_errors or network.probed or network.tried:
        return "estimate"
    alphas = [block.alpha for block in network.blocks]
    alpha = torch.cat(alphas) if alphas else torch.zeros(0, device="cpu")
    is_bp = forest and converged and not network.projects and bool((alpha == 1).all())
    if len(alpha) == 0 or is_bp:
        return "exact"
    if bool((alpha <= 0).all()):
        return "lower bound"
    t = 1 / alpha[alpha != 0]
    has_zero = bool((alpha == 0).any())
    if bool((alpha > 0).all()) and float(t.sum()) <= 1:
        return "upper bound"
    if not has_zero and int((t > 0).sum()) == 1 and float(t.sum()) >= 1:
        return "lower bound"
    return "estimate"
