"""A module whose numbers are parameters, or computed from another module's with derivatives.

A parameter of torch's is a leaf: as one, a computed number would be cut off what it was computed
from. Computed numbers are buffers instead, which keep their history, until the module is asked for
numbers of its own: a deep copy has them, and so has a module whose derivatives are switched off.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from typing_extensions import Self


class ComputedModule(nn.Module):
    """See the module; a subclass names its numbers."""

    _names: ClassVar[tuple[str, ...]]

    def _hold(self, values: Sequence[Tensor]) -> None:
        """Take these, in the order of names, as parameters without derivatives."""
        with torch.inference_mode(False):  # what is kept has to serve autograd later on
            for name, value in zip(self._names, values, strict=True):
                value = value.clone() if value.is_inference() else value
                setattr(self, name, nn.Parameter(value, requires_grad=False))

    def _attach(self, values: Sequence[Tensor]) -> None:
        """Take those of these, held before, that have derivatives as computed numbers."""
        for name, value in zip(self._names, values, strict=True):
            if torch.is_grad_enabled() and value.requires_grad:
                delattr(self, name)
                self.register_buffer(name, value)

    @property
    def numbers(self) -> dict[str, Tensor]:
        """By name."""
        return {name: getattr(self, name) for name in self._names}

    @property
    def is_attached(self) -> bool:
        """Whether derivatives are asked for."""
        return torch.is_grad_enabled() and any(v.requires_grad for v in self.numbers.values())

    @property
    def _computed(self) -> dict[str, Tensor]:
        """Those that were computed from another module's, with their derivatives."""
        return {name: value for name, value in self.numbers.items() if name in self._buffers}

    def _own_numbers(self) -> None:
        """Computed numbers become parameters of their values."""
        for name, value in self._computed.items():
            delattr(self, name)
            # computed ones may be the other module's very own, where nothing had to change
            setattr(self, name, nn.Parameter(value.detach().clone(), requires_grad=False))

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """As of any module; False also cuts computed numbers off those they were computed from."""
        if not requires_grad:
            self._own_numbers()
        return super().requires_grad_(requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A module with parameters of its own, also where these numbers are computed ones."""
        made = memo[id(self)] = type(self).__new__(type(self))
        for value in self._computed.values():  # torch copies no tensor that has a history
            memo[id(value)] = value.detach()
        made.__setstate__(copy.deepcopy(self.__dict__, memo))
        made._own_numbers()
        return made
