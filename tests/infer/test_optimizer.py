"""Step rules against plain recursions and torch's optimisers."""

import pytest
import torch
from torch.testing import assert_close

from pyrograph.errors import OptionError
from pyrograph.infer import AdaGrad, Adam, RMSProp


def trajectory(rule, start, directions):
    x, memory, out = start, rule.start(start), []
    for g in directions:
        x, memory = rule.step(x, g, memory)
        out.append(x)
    return torch.stack(out)


def torch_trajectory(make, start, directions):
    x = start.clone().requires_grad_()
    optimizer, out = make([x]), []
    for g in directions:
        x.grad = -g  # torch descends
        optimizer.step()
        out.append(x.detach().clone())
    return torch.stack(out)


def problem():
    return torch.randn(3, 2), torch.randn(6, 3, 2)


def test_adagrad_and_adam_are_torchs():
    start, directions = problem()
    ours = trajectory(AdaGrad(lr=0.7, eps=1e-10), start, directions)
    theirs = torch_trajectory(
        lambda p: torch.optim.Adagrad(p, lr=0.7, eps=1e-10), start, directions
    )
    assert_close(ours, theirs)
    ours = trajectory(Adam(lr=0.2), start, directions)
    theirs = torch_trajectory(lambda p: torch.optim.Adam(p, lr=0.2, eps=1e-8), start, directions)
    assert_close(ours, theirs)


def test_rmsprop_is_the_released_recursion():
    start, directions = problem()
    x, average = start.clone(), torch.zeros_like(start)
    for g in directions:
        average = 0.9 * average + 0.1 * g**2
        x = x + 5e-3 * g / torch.sqrt(average + 1e-6)
    assert_close(trajectory(RMSProp(), start, directions)[-1], x)


@pytest.mark.parametrize("rule", [AdaGrad(), Adam(), RMSProp()], ids=repr)
def test_steps_leave_their_inputs_alone_and_zero_directions_do_not_move(rule):
    x = torch.randn(3, 2)
    memory = rule.start(x)
    kept = {name: value.clone() for name, value in memory.items()}
    moved, _ = rule.step(x, torch.zeros_like(x), memory)
    assert_close(moved, x)
    rule.step(x, torch.ones_like(x), memory)
    assert all(torch.equal(memory[name], kept[name]) for name in kept)


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdaGrad(lr=0),
        lambda: Adam(lr=-1.0),
        lambda: Adam(betas=(0.9, 1.0)),
        lambda: Adam(betas=0.9),
        lambda: Adam(betas=(0.9, 0.9, 0.9)),
        lambda: RMSProp(decay=1.5),
        lambda: RMSProp(eps=0.0),
    ],
)
def test_rates_are_checked(make):
    with pytest.raises(OptionError):
        make()
