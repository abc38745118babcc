"""Functions whose second derivatives PyTorch gives as NaN, written so that it does not.

log(e^a + e^b) has the first derivatives 1 / (1 + e^(b - a)) and 1 / (1 + e^(a - b)). Where one of
the exponentials overflows the derivative of that is infinity over infinity; those of a softmax are
products of its shares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def log_add_exp(a: Tensor, b: Tensor) -> Tensor:
    """``torch.logaddexp``."""
    return torch.stack(torch.broadcast_tensors(a, b)).logsumexp(0)


OTHERWISE: dict[Callable, Callable] = {torch.logaddexp: log_add_exp}


class SecondDerivatives(TorchFunctionMode):
    """Meanwhile these functions are computed otherwise."""

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None):
        return OTHERWISE.get(func, func)(*args, **(kwargs or {}))
