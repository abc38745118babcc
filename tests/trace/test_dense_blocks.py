"""Operations without a rule keep the constants of the moment, whatever is written to them later."""

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F

import pyrograph as pg

pytestmark = pytest.mark.filterwarnings("ignore::pyrograph.errors.DenseScopeWarning")


def changed_between(x):
    weight = torch.arange(9.0).view(1, 3, 3) / 9
    first = F.bilinear(x[None, :3], x[None, 3:], weight)
    weight.mul_(2.0)
    return first - F.bilinear(x[None, 3:], x[None, :3], weight)


def changed_after(x):
    weight = torch.ones(1, 3, 3)
    result = F.bilinear(x[None, :3], x[None, 3:], weight)
    weight.zero_()
    return result


def accumulated(x):
    return torch.arange(6.0).put_(torch.tensor([1, 4, 1]), x[:3], accumulate=True)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("f", [changed_between, changed_after, accumulated])
def test_a_constant_that_is_changed_later_counts_as_it_was(f, verify):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(6), 1.0))
        pyro.factor("f", f(x).sin().sum())

    graph = pg.trace_graph(model, verify=verify)
    x = torch.randn(6)
    prior = dist.Normal(0.0, 1.0).log_prob(x).sum()
    torch.testing.assert_close(graph.log_prob({"x": x}), prior + f(x).sin().sum())


def test_a_parameter_that_is_changed_into_another_keeps_its_gradient():
    w = torch.linspace(-1.0, 1.0, 9, requires_grad=True)

    def f(x, w):
        weight = w.view(1, 3, 3) * 1.0
        first = F.bilinear(x[None, :3], x[None, 3:], weight)
        weight.mul_(2.0)
        return (first * F.bilinear(x[None, 3:], x[None, :3], weight)).sum()

    def model(w):
        x = pyro.sample("x", dist.Normal(torch.zeros(6), 1.0).mask(False))
        pyro.factor("f", f(x, w))

    graph = pg.trace_graph(model, (w,), differentiable=True)
    x = torch.randn(6)
    (found,) = torch.autograd.grad(graph.log_prob({"x": x}), w)
    torch.testing.assert_close(found, torch.autograd.grad(f(x, w), w)[0])
