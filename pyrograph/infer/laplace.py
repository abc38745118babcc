"""A cheap start: the mode, with every node as wide as its conditional there.

    x* = argmax log p,      x_i ~ N(x*_i, 1 / H_ii),      H = -Hessian of log p at x*

The diagonal of H takes one difference of scores for each colour of the Markov graph: nodes of
one colour share no factor, so that a step along all of them changes each one's score by its own
curvature alone. O((number of colours) * (one pass over the graph)), no matrix.

Conditional widths understate marginal ones; it is a start, not an approximation.
"""

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from pyrograph.diagnostics import value_and_score
from pyrograph.graph.colouring import colour


def laplace(num_particles: int, graph, generator: torch.Generator, max_steps: int = 500) -> Tensor:
    """Draws about the mode: ``[num_particles, dim]`` in the graph's space.

    The mode is climbed to from zero by L-BFGS; a column whose curvature there is not that of a
    maximum (a ridge, say) gets the width 1.

    Raises:
        NonFiniteDensity: the density breaks down on the way, naming the factor.
    """
    mode = find_mode(graph, max_steps)
    precision = conditional_precision(graph, mode)
    width = torch.where(precision > 0, precision.clamp_min(1e-300).rsqrt(), 1)
    noise = torch.randn(graph.dim, num_particles, generator=generator, dtype=torch.float64).t()
    return mode + width * noise.to(mode)


def find_mode(graph, max_steps: int) -> Tensor:
    """The point at which L-BFGS stops, ``[dim]``."""

    def descent(x: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.as_tensor(x, dtype=graph.dtype, device=graph.device)[None]
        log_p, score = value_and_score(graph, point)
        return -float(log_p), -score[0].double().cpu().numpy()

    found = minimize(
        descent, np.zeros(graph.dim), jac=True, method="L-BFGS-B", options={"maxiter": max_steps}
    )
    return torch.as_tensor(found.x, dtype=graph.dtype, device=graph.device)


def conditional_precision(graph, x: Tensor) -> Tensor:
    """-d^2 log p / dx_i^2 at ``x`` ``[dim]``, by central differences of the score: ``[dim]``."""
    pointer, index = graph.neighbors
    node_colour = colour(pointer.cpu(), index.cpu()).to(x.device)
    columns = graph.columns.to(x.device)
    width = columns.diff()
    node = torch.arange(len(width), device=x.device).repeat_interleave(width)
    within = torch.arange(graph.dim, device=x.device) - columns[node]
    probe = node_colour[node] * int(width.max()) + within
    reach = torch.finfo(x.dtype).eps ** (1 / 3)
    precision = torch.zeros_like(x)
    for k in probe.unique().tolist():
        step = torch.where(probe == k, reach * x.abs().clamp_min(1), 0)
        _, score = value_and_score(graph, torch.stack([x + step, x - step]))
        moved = step > 0
        precision[moved] = ((score[1] - score[0]) / (2 * step))[moved]
    return precision
