"""The log density of a differentiable graph differentiates with respect to the program's tensors.
Truth: a Gaussian's derivatives by hand."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg

SEEN, ALONE = 0.2, 0.1


def model(w):
    """One latent; a statement that reads it, and one that reads the parameter only."""
    x = pyro.sample("x", dist.Normal(w, 1.0))
    pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(SEEN))
    pyro.sample("alone", dist.Normal(w, 1.0), obs=torch.tensor(ALONE))


@pytest.fixture
def w():
    return torch.tensor(0.3, requires_grad=True)


def slope(value, w):
    return torch.autograd.grad(value.sum(), w, retain_graph=True)[0]


@pytest.mark.parametrize("verify", [True, False])
def test_every_density_of_the_graph_differentiates(w, verify):
    graph = pg.trace_graph(model, (w,), differentiable=True, verify=verify)
    x = torch.tensor([0.5, -0.7])
    expected = (x - w).sum() + 2 * (ALONE - w)
    assert_close(slope(graph.log_prob({"x": x}), w), expected.detach())
    assert_close(slope(graph.sum_of_factors({"x": x}), w), expected.detach())
    assert_close(slope(graph.density(x[:, None]), w), expected.detach())
    with torch.no_grad():
        graph.log_prob({"x": x})
    assert_close(slope(graph.log_prob({"x": x}), w), expected.detach())


def test_a_moved_graph_differentiates(w):
    with torch.no_grad():
        graph = pg.trace_graph(model, (w.detach(),)).to(dtype=torch.float32)
        assert not graph.log_prob({"x": torch.zeros(())}).requires_grad
    graph = pg.trace_graph(model, (w,), differentiable=True).to(dtype=torch.float32)
    found = graph.log_prob({"x": torch.tensor(0.5, dtype=torch.float32)})
    assert found.dtype is torch.float32
    assert_close(slope(found, w), torch.tensor(0.5 - 0.3 + ALONE - 0.3), atol=1e-6, rtol=0)


def test_a_program_without_latents_differentiates(w):
    def observed(w):
        pyro.sample("alone", dist.Normal(w, 1.0), obs=torch.tensor(ALONE))

    graph = pg.trace_graph(observed, (w,), differentiable=True)
    assert_close(slope(graph.log_prob({}), w), torch.tensor(ALONE - 0.3))


@pytest.mark.parametrize("engine", [pg.BP, pg.EP, pg.VMP], ids=lambda e: e.__name__)
def test_the_evidence_counts_what_reads_no_latent_once(engine, w):
    """y is N(w, 2) and the other N(w, 1)."""
    evidence = pg.fit(model, (w,), infer=engine, progress=False).log_evidence
    assert_close(slope(evidence, w), torch.tensor((SEEN - 0.3) / 2 + ALONE - 0.3))


def test_without_differentiable_nothing_is_attached(w):
    graph = pg.trace_graph(model, (w,))
    assert not graph.log_prob({"x": torch.zeros(())}).requires_grad


def test_weights_that_add_up_to_zero_for_now_keep_their_gradients():
    def model(w):
        x = pyro.sample("x", dist.Normal(torch.zeros(4), 1.0).mask(False))
        pyro.factor("f", (x[:2] @ w) * (x[2] - x[3]))

    w = torch.tensor([1.0, -1.0], requires_grad=True)
    graph = pg.trace_graph(model, (w,), differentiable=True)
    x = torch.tensor([0.3, -0.7, 1.1, 0.4])
    for density in (graph.log_prob, graph.sum_of_factors):
        (found,) = torch.autograd.grad(density({"x": x}), w, retain_graph=True)
        torch.testing.assert_close(found, x[:2] * (x[2] - x[3]))
