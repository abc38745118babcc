"""Normals of a joint mixture, diagonal and dense: scipy, numpy, and what a draw costs."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pyrograph.beliefs import Categoricals, JointMixture, Normals

COMPONENTS, NODES, WIDTH = 3, 2, 4


class Largest(TorchDispatchMode):
    """Remembers the numbers of the largest tensor that any operation made."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [t.untyped_storage().nbytes() // t.itemsize for t in tree_leaves(out) if is_mine(t)]
        self.numel = max([self.numel, *made])
        return out


def is_mine(value):
    return isinstance(value, torch.Tensor)


def normals(is_dense, seed=0):
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(COMPONENTS, NODES, WIDTH, generator=g)
    scale = 0.3 + torch.rand(COMPONENTS, NODES, WIDTH, generator=g)
    if not is_dense:
        return Normals(mean, scale)
    lower = torch.randn(COMPONENTS, NODES, WIDTH, WIDTH, generator=g).tril(-1)
    return Normals(mean, lower + torch.diag_embed(scale))


def roots(nodes):
    """By numpy, ``[L, n, d, d]``."""
    factor = nodes.factor.detach().numpy()
    return factor if factor.ndim == 4 else factor[..., None] * np.eye(WIDTH)


@pytest.mark.parametrize("is_dense", [False, True])
def test_densities_and_scales_are_scipys(is_dense):
    nodes = normals(is_dense)
    x = torch.randn(5, NODES, WIDTH)
    found = nodes.log_prob(x)
    for k in range(COMPONENTS):
        for i in range(NODES):
            covariance = roots(nodes)[k, i] @ roots(nodes)[k, i].T
            truth = stats.multivariate_normal(nodes.mean[k, i].numpy(), covariance)
            np.testing.assert_allclose(found[:, k, i], truth.logpdf(x[:, i].numpy()), rtol=1e-10)
            np.testing.assert_allclose(nodes.scale[k, i] ** 2, covariance.diagonal())
            np.testing.assert_allclose(nodes.root[k, i], roots(nodes)[k, i])


@pytest.mark.parametrize("is_dense", [False, True])
def test_every_draw_is_its_components_mean_and_root_times_the_noise_of_the_seed(is_dense):
    nodes = normals(is_dense)
    nodes.mean.requires_grad_(), nodes.factor.requires_grad_()
    component = torch.tensor([2, 0, 0, 2, 2, 0])  # nothing of the second
    torch.manual_seed(3)
    found = nodes.sample(component)
    torch.manual_seed(3)
    noise = torch.randn(6, NODES, WIDTH).numpy()
    picked = roots(nodes)[component]
    truth = nodes.mean.detach().numpy()[component] + np.einsum("snij,snj->sni", picked, noise)
    np.testing.assert_allclose(found.detach().numpy(), truth, atol=1e-12)
    # derivatives of <v, x>: v by component, and v eps' or v eps
    v = torch.randn(6, NODES, WIDTH)
    (v * found).sum().backward()
    for k in range(COMPONENTS):
        mine = (component == k).numpy()
        own, eps = v.numpy()[mine], noise[mine]
        np.testing.assert_allclose(nodes.mean.grad[k], own.sum(0), atol=1e-12)
        along = "sni,snj->nij" if is_dense else "sni,sni->ni"
        np.testing.assert_allclose(nodes.factor.grad[k], np.einsum(along, own, eps), atol=1e-12)


@pytest.mark.parametrize("is_dense", [False, True])
def test_draws_of_wide_nodes_need_the_memory_of_the_result(is_dense):
    draws, width = 400, 60
    mean, scale = torch.randn(2, 1, width), torch.rand(2, 1, width) + 0.1
    factor = torch.diag_embed(scale) if is_dense else scale
    nodes, component = Normals(mean, factor), torch.arange(draws) % 2
    with Largest() as largest:
        found = nodes.sample(component)
    assert largest.numel <= max(found.numel(), factor.numel())


def test_draws_of_states_need_the_memory_of_the_result():
    draws, states = 400, 50
    nodes = Categoricals(torch.randn(2, 3, states).log_softmax(-1))
    with Largest() as largest:
        found = nodes.sample(torch.arange(draws) % 2)
    assert largest.numel <= found.numel()


def test_states_are_drawn_with_the_probabilities_of_their_component():
    table = torch.tensor([[[0.2, 0.8, 0.0]], [[0.5, 0.1, 0.4]], [[1.0, 0.0, 0.0]]])
    nodes = Categoricals(table.log())
    component = torch.arange(40000) % 2  # interleaved, and nothing of the third
    found = nodes.sample(component)[:, 0]
    for k in (0, 1):
        frequency = found[component == k].bincount(minlength=3) / 20000
        assert_close(frequency, table[k, 0], rtol=0, atol=0.015)


@pytest.mark.parametrize("is_dense", [False, True])
def test_given_nodes_have_no_width_and_others_stay(is_dense):
    nodes = normals(is_dense)
    value = torch.randn(NODES, WIDTH)
    weights = torch.tensor([0.2, 0.5, 0.3])
    mask = torch.tensor([True, False])
    after = JointMixture(weights.log(), {"x": nodes}).condition({"x": (mask, value)})
    # Bayes' rule for the weights
    likelihood = [
        stats.multivariate_normal(m[0].numpy(), r[0] @ r[0].T).pdf(value[0].numpy())
        for m, r in zip(nodes.mean, roots(nodes))
    ]
    truth = weights.numpy() * likelihood
    np.testing.assert_allclose(after.log_weights.exp(), truth / truth.sum())
    held = after.sites["x"]
    assert_close(held.sample(torch.tensor([0, 2]))[:, 0], value[:1].expand(2, WIDTH))
    assert_close(held.scale[:, 0], torch.zeros(COMPONENTS, WIDTH))
    assert_close(held.factor[:, 1], nodes.factor[:, 1])
