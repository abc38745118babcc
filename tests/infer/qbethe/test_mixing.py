"""Mixing of pairs against its definition, with the derivatives of automatic differentiation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from pyrograph.infer.qbethe import mixing
from pyrograph.infer.qbethe.mixing import PairMixing


def as_defined(w: Tensor, first: Tensor, second: Tensor, p: Tensor, q: Tensor) -> Tensor:
    s = torch.einsum("bm,blnms,blkms->blnks", w, first, second)
    p, q = p.expand(*first.shape[:3], first.shape[-1]), q.expand(*second.shape[:3], p.shape[-1])
    return -torch.einsum("bl,blns,blks,blnks->b", w, p, q, s.log())


def inputs(batch: int, shared: bool) -> list[Tensor]:
    torch.manual_seed(0)
    components, n, k, pairs = 3, 2, 4, 5
    lead = (1, 1) if shared else (batch, components)
    last = 1 if shared else pairs
    shapes = [
        (batch, components),
        (batch, components, n, components, pairs),
        (batch, components, k, components, pairs),
        (*lead, n, last),
        (*lead, k, last),
    ]
    x = [torch.empty(s, dtype=torch.float64).uniform_(0.2, 2.0).requires_grad_() for s in shapes]
    return [*x[:3], *(v.detach() for v in x[3:])] if shared else x


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("block", [1, 2**20])
def test_mixing_of_pairs_and_its_derivatives_follow_the_definition(
    shared: bool, batch: int, block: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mixing, "BLOCK", block)  # one pair a block, and all at once
    x = inputs(batch, shared)
    torch.testing.assert_close(PairMixing.apply(*x), as_defined(*x))
    up = torch.linspace(1, 2, batch, dtype=torch.float64)
    free = x[:3] if shared else x
    ours = torch.autograd.grad(PairMixing.apply(*x), free, up)
    torch.testing.assert_close(ours, torch.autograd.grad(as_defined(*x), free, up))
    assert gradcheck(PairMixing.apply, x)


def test_constants_get_no_derivative():
    w, first, second, p, q = inputs(1, True)
    first = first.detach()
    x = (w, first, second, p, q)
    PairMixing.apply(*x).sum().backward()
    expected = torch.autograd.grad(as_defined(*x).sum(), (w, second))
    torch.testing.assert_close((w.grad, second.grad), expected)
