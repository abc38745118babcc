"""A kernel as units by regions, next to the circuits it meets.

A product of univariate kernels has one unit in every region, whatever the vtree: it is reshaped to
the regions of the circuits. A sum of such products has one unit a term. A kernel circuit brings its
own units.
"""

from __future__ import annotations

import torch

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.expectations.kernels import Kernel
from pyrograph.circuits.expectations.mixing import Mixing
from pyrograph.circuits.expectations.univariate import Univariate, check_matrices
from pyrograph.circuits.structure.regions import Regions, arranged
from pyrograph.circuits.structure.units import variables


class KernelUnits:
    """Units of a kernel.

    Attributes:
        num_units: in the region that has most.
        inputs: of every region of one variable, its univariate kernels.
        below: ``[l, parts]``.
        mixing: sums, the last with one row.
    """

    def __init__(self, kernel: Kernel, regions: Regions, like: Circuit):
        numbers = like.log_weights.double()
        units = kernel.units(like.num_variables)
        self.inputs: list[list[Univariate]] = []
        if units is not None:
            every, weights = kernel.numbers()
            linear = torch.tensor([*weights, 0.0], dtype=numbers.dtype, device=numbers.device)
            rows = arranged(units, regions)
            self.inputs = [[every[i] for i in region.inputs] for region in rows]
            self.below = [torch.as_tensor(region.below, device=numbers.device) for region in rows]
            self.mixing = [Mixing(region, linear) for region in rows]
            self.num_units = max(len(region.inputs) + len(region.below) for region in rows)
            self._check_matrices(regions, like)
            return
        terms = kernel.terms(like.num_variables)
        self.num_units = len(terms)
        one = torch.arange(len(terms), device=numbers.device)
        for scope, parts in zip(regions.scopes, regions.parts, strict=True):
            own = [] if parts else [factors[variables(scope)[0]] for _, factors in terms]
            self.inputs.append(own)
        self.below = [one.unsqueeze(1).expand(-1, len(parts)) for parts in regions.parts]
        whole = torch.tensor([[w for w, _ in terms]], dtype=numbers.dtype, device=numbers.device)
        self.mixing = [_Weighted(None)] * (len(regions) - 1) + [_Weighted(whole)]
        self._check_matrices(regions, like)

    def _check_matrices(self, regions: Regions, like: Circuit) -> None:
        """Of one variable after the other, as they are needed."""
        for scope, kernels in zip(regions.scopes, self.inputs, strict=True):
            if kernels:
                check_matrices(like.cards, variables(scope), len(kernels))


class _Weighted:
    """The sum over the terms, at the root alone."""

    def __init__(self, weights: torch.Tensor | None):
        self.weights = weights

    def __call__(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        if self.weights is None:
            return x
        return torch.tensordot(self.weights, x, ([1], [dim])).movedim(0, dim)
