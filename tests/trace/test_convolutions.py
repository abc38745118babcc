"""Convolutions: structure, and cost on images."""

import time
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F

import pyrograph as pg
from pyrograph.errors import DenseScopeWarning
from pyrograph.trace.rules import convolutions

LAPLACE = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])


def roughness(height, width):
    """A penalty on the Laplacian of an image."""
    kernel = LAPLACE.double()[None, None]

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(height, width).double(), 1.0))
        filtered = F.conv2d(x[None, None], kernel, padding=1)
        pyro.factor("rough", -torch.logaddexp(filtered, -filtered).sum())

    return model


def test_a_filtered_image_has_one_factor_per_pixel_of_the_kernels_nonzeros():
    with warnings.catch_warnings():
        warnings.simplefilter("error", DenseScopeWarning)
        graph = pg.trace_graph(roughness(5, 4))
    expected = set()
    for i in range(5):
        for j in range(4):
            cross = [(i, j), (i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)]
            inside = [(a, b) for a, b in cross if 0 <= a < 5 and 0 <= b < 4]
            expected.add(frozenset(("x", place) for place in inside))
    found = [frozenset(scope) for scope in graph.scopes("rough")]
    assert len(found) == 20
    assert set(found) == expected


def test_a_quadratic_penalty_on_a_filtered_image_has_small_factors():
    kernel = LAPLACE.double()[None, None]

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(40, 40).double(), 1.0))
        pyro.factor("s", -(F.conv2d(x[None, None], kernel, padding=1) ** 2).sum())

    graph = pg.trace_graph(model)
    assert max(len(scope) for scope in graph.scopes("s")) == 5
    x = torch.randn(3, 40, 40).double()
    expected = dist.Normal(0.0, 1.0).log_prob(x).sum((1, 2))
    expected = expected - (F.conv2d(x[:, None], kernel, padding=1) ** 2).sum((1, 2, 3))
    torch.testing.assert_close(graph.log_prob({"x": x}), expected)


def test_an_unknown_kernel_meets_the_image_where_it_is_not_zero():
    image = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 2.0]]).double()

    def model():
        k = pyro.sample("k", dist.Normal(torch.zeros(2, 2).double(), 1.0))
        mean = F.conv2d(image[None, None], k[None, None])[0, 0]
        pyro.sample("y", dist.Normal(mean, 1.0), obs=torch.zeros(1, 2).double())

    found = [set(scope) for scope in pg.trace_graph(model).scopes("y")]
    # the image's first two columns are [1, 0], [0, 0], its last two [0, 0], [0, 2]
    assert found == [{("k", (0, 0))}, {("k", (1, 1))}]


@pytest.mark.parametrize("groups", [1, 2])
def test_the_decoder_of_an_image_is_evaluated_as_pytorch_does(groups):
    generator = torch.Generator().manual_seed(0)
    weights = [
        torch.randn(4, 6 // groups, 3, 3, generator=generator).double(),
        torch.randn(1, 6, 2, 3, generator=generator).double(),
    ]

    def decoded(z):
        wide = F.conv_transpose2d(
            z.view(1, 4, 3, 3), weights[0], stride=2, padding=1, output_padding=1, groups=groups
        )
        return F.conv2d(wide.tanh(), weights[1], stride=(1, 2), dilation=(2, 1))

    def model():
        z = pyro.sample("z", dist.Normal(torch.zeros(36).double(), 1.0))
        pyro.sample("y", dist.Normal(decoded(z), 1.0), obs=torch.zeros(()).double())

    graph = pg.trace_graph(model)
    z = torch.randn(4, 36, generator=generator).double()
    expected = dist.Normal(0.0, 1.0).log_prob(z).sum(1) + torch.stack(
        [dist.Normal(decoded(row), 1.0).log_prob(torch.zeros(()).double()).sum() for row in z]
    )
    torch.testing.assert_close(graph.log_prob({"z": z}), expected)


@pytest.mark.parametrize("channels", [2, 30], ids=["filters", "a layer"])
def test_a_convolution_differentiates_with_respect_to_image_kernel_and_bias(channels):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 2, 3, 3, generator=generator).double()
    w = torch.randn(channels, 2, 2, 2, generator=generator).double().requires_grad_()
    b = torch.randn(channels, generator=generator).double().requires_grad_()

    def energy(x):
        return -F.conv2d(x, w, b, padding=1).tanh().square().sum()

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2, 2, 3, 3).double(), 1.0))
        pyro.factor("f", energy(x))

    graph = pg.trace_graph(model, differentiable=True)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found = torch.autograd.grad(graph.log_prob({"x": ours}), (ours, w, b))
    value = energy(theirs) + dist.Normal(0.0, 1.0).log_prob(theirs).sum()
    torch.testing.assert_close(found, torch.autograd.grad(value, (theirs, w, b)))


def test_an_image_of_four_times_the_pixels_takes_some_four_times_as_long():
    def seconds(side):
        start = time.perf_counter()
        graph = pg.trace_graph(roughness(side, side))
        assert graph.num_factors == 2 * side * side
        return time.perf_counter() - start

    seconds(10)
    small = min(seconds(100) for _ in range(2))
    assert seconds(200) < 12 * small


def test_a_layer_of_very_many_channels_stays_one_block(monkeypatch):
    monkeypatch.setattr(convolutions, "MAX_READS", 50)
    model = roughness(3, 3)
    with pytest.warns(DenseScopeWarning, match="convolution"):
        graph = pg.trace_graph(model)
    x = torch.randn(3, 3).double()
    filtered = F.conv2d(x[None, None], LAPLACE.double()[None, None], padding=1)
    expected = dist.Normal(0.0, 1.0).log_prob(x).sum()
    expected = expected - torch.logaddexp(filtered, -filtered).sum()
    torch.testing.assert_close(graph.log_prob({"x": x}), expected)
