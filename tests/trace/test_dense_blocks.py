"""Operations without a rule: constants of the moment, particles side by side, other dtypes."""

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from torch import library

import pyrograph as pg
from pyrograph.errors import VerificationError

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


# ---------------------------------------------------------------------- particles side by side
@library.custom_op("pyrograph_tests::in_memory_order", mutates_args=())
def in_memory_order(x: torch.Tensor) -> torch.Tensor:
    """The numbers ``k * x_k``, read as a kernel does that takes memory to be contiguous."""
    return x.as_strided((x.numel(),), (1,)) * torch.arange(x.numel())


@library.custom_op("pyrograph_tests::mixed_up", mutates_args=())
def mixed_up(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@mixed_up.register_vmap
def _(info, in_dims, x):
    return 2 * info.batch_size * x, in_dims[0]


def squares_of(operation):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0))
        pyro.factor("f", -operation(x).square().sum())

    return model


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_kernel_that_ignores_strides_gets_each_particle_in_order():
    graph = pg.trace_graph(squares_of(in_memory_order))
    x = torch.randn(5, 3)
    truth = dist.Normal(0.0, 1.0).log_prob(x).sum(1) - (x * torch.arange(3)).square().sum(1)
    torch.testing.assert_close(graph.log_prob({"x": x}), truth)
    assert [float(graph.log_prob({"x": row})) for row in x] == pytest.approx(truth.tolist())


def test_an_operation_that_is_right_for_one_particle_only_is_refused():
    with pytest.raises(VerificationError, match=r"two particles are .* together.*mixed_up"):
        pg.trace_graph(squares_of(mixed_up))


# ---------------------------------------------------------------------- other dtypes
def bilinear(x):
    weight = torch.arange(9, dtype=x.dtype).view(1, 3, 3) / 8
    return F.bilinear(x[None, :3], x[None, 3:], weight)


def greatest_of_each_half(x):
    lowest = torch.full((2,), -0.5, dtype=x.dtype)
    return lowest.scatter_reduce(0, torch.tensor([0, 1, 0, 1, 1, 0]), x, "amax")


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("f", [bilinear, greatest_of_each_half])
@pytest.mark.parametrize(
    "own, other", [(torch.float32, torch.float64), (torch.float64, torch.float32)]
)
def test_constants_follow_a_graph_to_another_dtype(f, own, other):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(6, dtype=own), 1.0))
        pyro.factor("f", f(x).sin().sum())

    graph = pg.trace_graph(model).to(dtype=other)
    x = torch.randn(4, 6, dtype=other).requires_grad_()
    truth = [dist.Normal(0.0, 1.0).log_prob(row).sum() + f(row).sin().sum() for row in x]
    found = graph.density(x)
    assert found.dtype is other
    torch.testing.assert_close(found, torch.stack(truth).to(other))
    (score,) = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(score, torch.autograd.grad(sum(truth), x)[0])
