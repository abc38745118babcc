"""PyTorch's fused kernels, off while a program is read.

An LSTM or an attention that one kernel computes is one operation, of which every output would be
taken to read every input, or which might draw random numbers. PyTorch writes the same layers in
plain operations, each with its rule: step t of an LSTM then reads steps 0..t.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def fused_kernels_off() -> Iterator[None]:
    """oneDNN's layers and fused attention, for the duration of a block."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch._C._set_mkldnn_enabled(before)
