"""The expectation of log sigmoid under Gaussians of any width. Truth: a dense trapezium rule, and
its derivatives by autograd."""

import math

import pytest
import torch
from torch.testing import assert_close

from pyrograph.beliefs import expected_log_sigmoid as module
from pyrograph.beliefs.expected_log_sigmoid import expected_log_sigmoid


def trapezium(mean, sd):
    z = torch.linspace(-12, 12, 200_001)
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    return torch.trapezoid(torch.nn.functional.logsigmoid(mean + sd * z) * density, z)


@pytest.mark.parametrize("sd", [1e-8, 0.1, 0.9, 0.9999, 1.0001, 1.6, 3.0, 10.0, 100.0])
@pytest.mark.parametrize("mean", [-40.0, -3.0, 0.0, 0.7, 5.0, 200.0])
def test_it_and_its_derivatives_are_those_of_a_dense_rule(mean, sd):
    at = torch.tensor([mean, sd], requires_grad=True)
    truth = trapezium(*at)
    by_mean, by_sd = torch.autograd.grad(truth, at)[0]
    found = expected_log_sigmoid(*at.detach()[:, None])
    for value, own in zip(found, (truth, by_mean, by_sd), strict=True):
        assert_close(value[0], own.detach(), atol=2e-11, rtol=1e-11)


def test_many_are_taken_some_at_a_time_and_have_derivatives(monkeypatch):
    mean, sd = torch.randn(3, 4, 5), 3 * torch.rand(3, 4, 5) + 0.01
    whole = expected_log_sigmoid(mean, sd)
    monkeypatch.setattr(module, "CHUNK", 7 * module.WIDE_POINTS)
    for value, own in zip(expected_log_sigmoid(mean, sd), whole, strict=True):
        assert_close(value, own, rtol=0, atol=1e-15)
    mean.requires_grad_(), sd.requires_grad_()
    average, by_mean, by_sd = expected_log_sigmoid(mean, sd)
    found = torch.autograd.grad(average.sum(), (mean, sd))
    assert_close(found, (by_mean.detach(), by_sd.detach()), atol=1e-9, rtol=0)
