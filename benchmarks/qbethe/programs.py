"""The models of Guo, Xiong & Ruozzi (2019), section 5, as Pyro programs.

None has a prior: a site's distribution is masked, so it is no factor and only says where to start.
"""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from bicubic import bicubic
from torch import Tensor

CYCLE = torch.tensor([[0, 1], [1, 2], [0, 2]])


def grid_edges(height: int, width: int) -> Tensor:
    """Pairs of neighbours among pixels in row order, ``[E, 2]``."""
    i = torch.arange(height * width).view(height, width)
    across = torch.stack([i[:, :-1].flatten(), i[:, 1:].flatten()], 1)
    return torch.cat([across, torch.stack([i[:-1].flatten(), i[1:].flatten()], 1)])


# ---------------------------------------------------------------------- three nodes in a cycle
def cycle_unary(x: Tensor) -> Tensor:
    """log phi, element by element."""
    return -0.1 * x.abs()


def cycle_pair(x: Tensor, y: Tensor) -> Tensor:
    """log psi = log(f_10 + f_-10), f_a = exp(-(x - a)^2 / 10 - (y + a)^2 / 10)."""
    one = -0.1 * ((x - 10).square() + (y + 10).square())
    other = -0.1 * ((x + 10).square() + (y - 10).square())
    return torch.logaddexp(one, other)


def three_cycle() -> Tensor:
    """Neighbours want opposite signs, which three nodes cannot all have: log Z = -16.1737."""
    with pyro.plate("nodes", 3):
        x = pyro.sample("x", dist.Normal(0.0, 10.0).mask(False))
        pyro.factor("phi", cycle_unary(x))
    with pyro.plate("edges", 3):
        pyro.factor("psi", cycle_pair(x[CYCLE[:, 0]], x[CYCLE[:, 1]]))
    return x


# ---------------------------------------------------------------------- denoising
#: Standard deviation of the noise; scale and cut of the truncated Laplace function.
NOISE, SCALE, CUT = 0.1, 0.03, 0.2


def truncated_laplace(difference: Tensor, scale: float = SCALE, cut: float = CUT) -> Tensor:
    """-min(|d|, cut) / scale. Not normalised, and it cannot be: it never falls below a constant."""
    return -difference.abs().clamp(max=cut) / scale


def denoising(
    observed: Tensor, noise: float = NOISE, scale: float = SCALE, cut: float = CUT
) -> Tensor:
    """Pixels ``[H W]`` seen with Gaussian noise (normalised), and tied to their four neighbours.

    Args:
        observed: ``[H, W]``.
        noise: standard deviation.
        scale, cut: of the ties, exp(-min(|x_i - x_j|, cut) / scale).
    """
    edges = grid_edges(*observed.shape)
    y = observed.flatten()
    with pyro.plate("pixels", len(y)):
        x = pyro.sample("x", dist.Normal(y, noise).mask(False))
        pyro.sample("y", dist.Normal(x, noise), obs=y)
    with pyro.plate("edges", len(edges)):
        pyro.factor("tie", truncated_laplace(x[edges[:, 0]] - x[edges[:, 1]], scale, cut))
    return x


# ---------------------------------------------------------------------- optical flow
LAMBDA_D, LAMBDA_S, EPS = 1.0, 5.0, 1e-3


def charbonnier(x: Tensor, eps: float = EPS) -> Tensor:
    """sqrt(eps^2 + x^2), a smooth absolute value."""
    return (eps**2 + x.square()).sqrt()


def optical_flow(
    first: Tensor,
    second: Tensor,
    lambda_d: float = LAMBDA_D,
    lambda_s: float = LAMBDA_S,
    eps: float = EPS,
    start: float = 1.0,
) -> Tensor:
    """Where every pixel went: (u, v) to the right and down, ``[H W, 2]``, one node per pixel.

        log f_i  = -lambda_d rho(first(i) - second(i + (u, v)_i))
        log f_ij = -lambda_s (rho(u_i - u_j) + rho(v_i - v_j)),         rho(x) = sqrt(eps^2 + x^2)

    Args:
        first, second: ``[H, W]`` grey levels, 0 to 255.
        start: standard deviation of the initial flow.
    """
    height, width = first.shape
    edges = grid_edges(height, width)
    row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    with pyro.plate("pixels", height * width):
        near_zero = dist.Normal(torch.zeros(2), start).to_event(1).mask(False)
        flow = pyro.sample("flow", near_zero)
        u, v = flow.unbind(-1)
        moved = bicubic(second, column.flatten() + u, row.flatten() + v)
        data = charbonnier(first.flatten() - moved, eps)
        pyro.factor("data", -lambda_d * data)
    with pyro.plate("edges", len(edges)):
        apart = charbonnier(flow[edges[:, 0]] - flow[edges[:, 1]], eps)
        # one at a time, so that each is an integral in one dimension
        pyro.factor("smooth_u", -lambda_s * apart[:, 0])
        pyro.factor("smooth_v", -lambda_s * apart[:, 1])
    return flow
