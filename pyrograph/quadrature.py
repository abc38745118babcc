"""Rules against the standard normal density.

    int f(z) N(z; 0, I) dz = sum_k w_k f(z_k)

Gauss-Hermite grids are exact for degree 2K - 1 in each variable. Polynomials of many variables need
far fewer points than a grid has: those of the grid of three, with all numbers but three at 0.

The error of the rule of K points for a smooth f is K! f^(2K)(xi) / (2K)!; Guo, Xiong & Ruozzi
(2019) print its standard form for sigma = 1 with another exponent.
"""

import math
from functools import lru_cache
from itertools import combinations, product

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


@lru_cache(maxsize=64)
def _fully_symmetric(
    dim: int, dtype: torch.dtype, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    d = dim
    # by the moments of x^2 y^2 z^2, x^2 y^2, x^2 and 1; of x^4 and x^4 y^2 they are right then
    three = 1 / 216
    two = 1 / 36 - (d - 2) / 108
    one = 1 / 6 - 2 * (d - 1) * two - 2 * (d - 1) * (d - 2) * three
    none = 1 - 2 * d * one - 2 * d * (d - 1) * two - 4 * d * (d - 1) * (d - 2) / 3 * three
    nodes, weights = [], []
    for size, weight in enumerate((none, one, two, three)):
        for places in combinations(range(d), size):
            for signs in product((-math.sqrt(3), math.sqrt(3)), repeat=size):
                point = [0.0] * d
                for place, value in zip(places, signs, strict=True):
                    point[place] = value
                nodes.append(point)
                weights.append(weight)
    own = (torch.tensor(part, dtype=torch.float64, device="cpu") for part in (nodes, weights))
    return tuple(part.to(device, dtype) for part in own)


@torch.inference_mode(False)
def fully_symmetric(
    dim: int, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """A rule that is exact for polynomials of degree 7, and 5 in each variable.

    Args:
        dim: d variables, 1 or more.

    Shapes:
        output: nodes ``[N, d]`` and weights ``[N]``, some of them negative, which sum to 1;
            N = 1 + 2 d + 2 d (d - 1) + 4 d (d - 1) (d - 2) / 3.

    Raises:
        OptionError: ``dim`` is no whole number, at least 1.

    Source: McNamee & Stenger (1967), "Construction of fully symmetric numerical integration
    formulas", for such rules; weights from the moments.
    """
    nodes, weights = _fully_symmetric(count("dim", dim), dtype, device)
    return nodes.clone(), weights.clone()
