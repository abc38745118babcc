"""Adam along a cosine. Truth: torch's own."""

import math

import pytest
import torch
from torch.testing import assert_close

from pyrograph.infer.qbethe.adam import DECAY, LAST_STEP, CosineAdam

STEPS, FREE = 12, 5


def losses(leaves, step):
    """The second leaf, such as weights that are held, is free from some step on."""
    held, free = leaves
    loss = (held.cosh() * torch.arange(1.0, 4.0)).sum()
    return loss + (free - 2).square().sum() if step >= FREE else loss


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_those_of_torch(dtype):
    start = torch.tensor([[0.3, -1.0, 2.0]], dtype=dtype), torch.zeros(1, 2, dtype=dtype)
    ours = [value.clone().requires_grad_() for value in start]
    theirs = [value.clone().requires_grad_() for value in start]
    rule, reference = CosineAdam(ours, {}, 0.0), torch.optim.Adam(theirs, lr=0.1, betas=DECAY)

    for step in range(STEPS):

        def closure(step=step):
            for leaf in ours:
                leaf.grad = None
            losses(ours, step).backward()

        done = step / STEPS
        rule.moved(closure, lambda: [0.0], lambda: False, 0.1, done)
        share = LAST_STEP + (1 - LAST_STEP) * 0.5 * (1 + math.cos(math.pi * done))
        reference.param_groups[0]["lr"] = 0.1 * share
        reference.zero_grad()
        losses(theirs, step).backward()
        reference.step()
        assert_close(ours, theirs)
        if step == STEPS // 2:  # a saved state goes on as it would have
            state = rule.state_dict()
            rule = CosineAdam(ours, {}, 0.0)
            rule.load_state_dict(state)
    assert not torch.equal(ours[1], start[1])


def test_steps_of_means_are_longer_where_components_are_wider_than_at_the_start():
    start = math.log(0.5)
    mean = torch.tensor([[1.0, 1.0, 1.0]], dtype=torch.float64).requires_grad_()
    scale = torch.tensor([[start - 3, start, start + 2]], dtype=torch.float64).requires_grad_()
    rule = CosineAdam([mean, scale], {0: 1}, start)
    before = mean.detach().clone(), scale.detach().clone()

    def closure():
        mean.grad, scale.grad = torch.ones_like(mean), torch.ones_like(scale)

    rule.moved(closure, lambda: [0.0], lambda: False, 0.1, 0.0)
    ratio = (mean - before[0]).detach() / (scale - before[1]).detach()
    assert_close(ratio, torch.tensor([[1.0, 1.0, math.exp(2)]], dtype=torch.float64))
