"""Gauss-Hermite rules against the standard normal density.

    int f(z) N(z; 0, I) dz = sum_k w_k f(z_k),      exact for degree 2K - 1 in each variable

The error of the rule of K points for a smooth f is K! f^(2K)(xi) / (2K)!; Guo, Xiong & Ruozzi
(2019) print its standard form for sigma = 1 with another exponent.
"""

from functools import lru_cache

import numpy as np
import torch
from scipy.special import roots_hermitenorm
from torch import Tensor

from pyrograph.checks import count


@lru_cache(maxsize=64)
def _rule(num_points: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = roots_hermitenorm(num_points)  # of any size: asymptotic series from 150 on
    return nodes, weights / weights.sum()


@lru_cache(maxsize=64)
def _grid(
    num_points: int, dim: int, dtype: torch.dtype, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    nodes, weights = (torch.from_numpy(a) for a in _rule(num_points))
    grid = torch.cartesian_prod(*[nodes] * dim).reshape(-1, dim)
    weight = torch.cartesian_prod(*[weights] * dim).reshape(-1, dim).prod(1)
    return grid.to(device, dtype), weight.to(device, dtype)


@torch.inference_mode(False)  # what is kept has to serve autograd later on
def gauss_hermite(
    num_points: int,
    dim: int = 1,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Tensor]:
    """The tensor grid of a rule: the caller's own tensors, to keep or to change.

    Args:
        num_points: K, per variable, 1 or more.
        dim: variables, 1 or more; the grid has K^dim points.

    Shapes:
        output: nodes ``[K^dim, dim]`` and weights ``[K^dim]``, which sum to 1.

    Raises:
        OptionError: ``num_points`` or ``dim`` is no whole number, at least 1.
    """
    num_points, dim = count("num_points", num_points), count("dim", dim)
    nodes, weights = _grid(num_points, dim, dtype, device)
    return nodes.clone(), weights.clone()
