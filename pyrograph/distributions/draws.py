"""Dirichlet probabilities of any concentrations, however small.

    p_s = G(a_s) / sum_t G(a_t),    log G(a) = log G(a + 1) - E / a

for G(a) ~ Gamma(a) and E ~ Exponential(1). A gamma of small a is almost always below the range of
floating point (its log is about -1 / a), and quotients of such draws would be of what they are
clamped to. The logs are in range once the least E / a is taken off, which changes no quotient.

Source: Marsaglia & Tsang (2000), "A simple method for generating gamma variables".
"""

import torch
from torch import Tensor


@torch.no_grad()
def draw_log_probs(concentration: Tensor) -> Tensor:
    """Logs of probabilities ``[..., S]`` of Dirichlet(``concentration [..., S]``), float64."""
    a = concentration.double()
    waiting = torch.empty_like(a).exponential_()
    # in units of the least concentration, in which they are in range
    least = a.amin(-1, keepdim=True)
    waiting = waiting * (least / a)
    behind = (waiting - waiting.amin(-1, keepdim=True)) / least
    return (torch._standard_gamma(a + 1).log() - behind).log_softmax(-1)
