"""``torch.autograd.Function``s of a program: told of where their gradients are others'."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.ops.special import safe_log
from torch.utils.checkpoint import checkpoint

import pyrograph as pg
from pyrograph.errors import PyrographWarning


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Clipped(torch.autograd.Function):
    """The other way of writing one, and gradients that differ only where they are large."""

    @staticmethod
    def forward(x):
        return x * 1.0

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-1e3, 1e3)


class Safe(torch.autograd.Function):
    """Of a function that PyTorch would give a gradient of NaN."""

    @staticmethod
    def forward(ctx, x):
        return x + (x - x).sqrt()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Square(torch.autograd.Function):
    """Its backward is its derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.detach() ** 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class Forward(torch.autograd.Function):
    """Without derivatives in the program."""

    @staticmethod
    def forward(ctx, x):
        return x.exp()


bound = StraightThrough.apply

OTHERS = {"straight through": bound, "clipped": Clipped.apply, "safe": Safe.apply}
DERIVATIVES = {
    "its own derivative": Square.apply,
    "none": Forward.apply,
    "of a constant": lambda x: x * bound(torch.full((3,), 1.2)),
    "Pyro's": lambda x: safe_log(x.exp()),
    "a checkpoint": lambda x: checkpoint(torch.exp, x, use_reentrant=True),
    "a derivative": lambda x: torch.func.grad(lambda u: (u**3).sum())(x),
}


def program(function):
    def model():
        scale = pyro.sample("scale", dist.Gamma(2.0, 2.0))
        x = pyro.sample("x", dist.Normal(torch.zeros(3), scale))
        pyro.sample("y", dist.Normal(function(x), 1.0), obs=torch.full((3,), 0.4))

    return model


def density(function, scale, x):
    prior = dist.Gamma(2.0, 2.0).log_prob(scale) + dist.Normal(0.0, scale).log_prob(x).sum()
    return prior + dist.Normal(function(x), 1.0).log_prob(torch.full((3,), 0.4)).sum()


@pytest.mark.parametrize("unconstrained", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_a_backward_that_is_no_derivative_is_told_of(name, unconstrained):
    model = program(OTHERS[name])
    what = "StraightThrough|Clipped|Safe"
    with pytest.warns(PyrographWarning, match=rf"backward of its own \(({what}) after.*\.py:\d+"):
        pg.trace_graph(model, unconstrained=unconstrained)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = pg.trace_graph(model, verify=False)
    scale, x = torch.tensor(0.7), torch.tensor([0.4, -1.3, 2.2])
    found = graph.log_prob({"scale": scale, "x": x})
    torch.testing.assert_close(found, density(OTHERS[name], scale, x))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # a checkpoint's
@pytest.mark.parametrize("unconstrained", [False, True])
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_are_no_news(name, unconstrained):
    """Warnings are errors here. Truth of the gradient: autograd's, where there is one."""
    function = DERIVATIVES[name]
    pg.trace_graph(program(function), unconstrained=unconstrained)
    graph = pg.trace_graph(program(function))
    scale, x = torch.tensor(0.7), torch.tensor([0.4, -1.3, 2.2], requires_grad=True)
    found = graph.log_prob({"scale": scale, "x": x})
    torch.testing.assert_close(found, density(function, scale, x))
    if name not in ("none", "a checkpoint"):  # that has gradients by .backward() only
        (gradient,) = torch.autograd.grad(found, x)
        (expected,) = torch.autograd.grad(density(function, scale, x), x)
        torch.testing.assert_close(gradient, expected)


def test_states_have_no_gradients():
    """Warnings are errors here; a constant with a gradient of its own is none of a latent's."""
    weight = torch.tensor(0.5, requires_grad=True)

    def model():
        z = pyro.sample("z", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Normal(bound(z * 1.2) * weight, 1.0), obs=torch.tensor(1.0))

    found = pg.trace_graph(model).log_prob({"z": torch.tensor([0.0, 1.0])})
    likelihood = dist.Normal(torch.tensor([0.0, 0.5]), 1.0).log_prob(torch.tensor(1.0))
    torch.testing.assert_close(found, torch.tensor([0.7, 0.3]).log() + likelihood)


def test_nothing_of_the_watch_is_left():
    base = torch.autograd.function._SingleLevelFunction
    with pytest.warns(PyrographWarning):
        pg.trace_graph(program(bound))
    assert "apply" not in vars(base)
    x = torch.ones(2, requires_grad=True)
    (gradient,) = torch.autograd.grad(bound(x).sum(), x)
    assert gradient.tolist() == [1.0, 1.0]


class Fails(torch.autograd.Function):
    """Its backward works once, or not at all."""

    @staticmethod
    def forward(ctx, x, fails):
        ctx.x, ctx.fails = x.detach(), fails
        return x.detach() ** 2

    @staticmethod
    def backward(ctx, grad):
        assert not ctx.fails
        slope = 2 * ctx.x
        del ctx.x
        return grad * slope, None


@pytest.mark.parametrize("fails", [False, True])
def test_a_backward_that_fails_is_no_other_gradient(fails):
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("f", -Fails.apply(x, fails))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = pg.trace_graph(model)
    x = torch.tensor(0.7)
    torch.testing.assert_close(graph.log_prob({"x": x}), dist.Normal(0.0, 1.0).log_prob(x) - x**2)
