"""The discrete Stein kernel against its definition and the Stein identity."""

from __future__ import annotations

import functools

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.circuits import RBF, Delta, Hamming
from pyrograph.errors import NonFiniteDensity, UnsupportedFactor
from pyrograph.infer.dpvi.network import Network
from pyrograph.infer.importance import discrete_stein
from pyrograph.infer.importance.discrete_stein import (
    discrete_stein_gram,
    shift_ratios,
)
from pyrograph.infer.importance.zeros import refuse_zeros, zero_entries
from tests.infer.importance.programs import all_states, grid, mixed

KERNELS = {
    "hamming": Hamming(),
    "weighted": Hamming([0.3, 1.0, 2.0]),
    "rbf": RBF(2.0),
    "delta": Delta(),
    "sum": Hamming() + 0.5 * RBF(1.0),
    "product": Hamming() * RBF(3.0),
}


def brute_force(x, p, kernel, cards) -> torch.Tensor:
    """(A^x A^y k)(x, y) entry by entry, probabilities looked up in the list of all states."""
    states = {tuple(s): k for k, s in enumerate(x.t().tolist())}
    k = kernel.gram(x.t(), x.t(), cards.tolist())
    d, n = x.shape
    out = torch.zeros(n, n)
    for i in range(d):
        following, previous, ratio = [], [], []
        for s in states:
            up, down = list(s), list(s)
            up[i], down[i] = (s[i] + 1) % int(cards[i]), (s[i] - 1) % int(cards[i])
            following.append(states[tuple(up)])
            previous.append(states[tuple(down)])
            ratio.append(p[following[-1]] / p[states[s]])
        r, v = torch.stack(ratio), torch.tensor(previous)
        first = k[v] - r.unsqueeze(1) * k  # the operator in the first argument
        out += first[:, v] - r * first
    return out


def everything(model):
    graph = pg.trace_graph(model)
    network = Network.of_graph(graph)
    x, p = all_states(graph)
    return network, x, p


@functools.cache
def everything_of_mixed():
    return everything(mixed)


def test_ratios_are_those_of_the_probabilities():
    network, x, p = everything(mixed)
    table = p.view(3, 4, 2)
    expected = [table.roll(-1, i).flatten() / p for i in range(3)]
    assert_close(shift_ratios(network, x), torch.stack(expected), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", KERNELS)
def test_the_gram_matrix_is_its_definition(name):
    network, x, p = everything(mixed)
    kernel = KERNELS[name]
    gram = discrete_stein_gram(x, shift_ratios(network, x), network.cards, kernel)
    expected = brute_force(x, p, kernel, network.cards)
    assert_close(gram, expected, rtol=0, atol=1e-11 * float(expected.abs().max()))


@pytest.mark.parametrize("name", KERNELS)
def test_under_the_program_the_kernel_has_mean_zero(name):
    network, x, p = everything(mixed)
    gram = discrete_stein_gram(x, shift_ratios(network, x), network.cards, KERNELS[name])
    assert float((gram @ p).abs().max()) <= 1e-13 * float(gram.abs().max())


@pytest.mark.parametrize("model", [mixed, grid()], ids=["mixed", "grid"])
def test_the_gram_matrix_of_all_states_is_semi_definite_and_p_alone_in_its_null_space(model):
    network, x, p = everything(model)
    gram = discrete_stein_gram(x, shift_ratios(network, x), network.cards)
    values, vectors = torch.linalg.eigh(gram)
    assert float(values[0].abs()) <= 1e-13 * float(values[-1])
    assert float(values[1]) > 1e-10 * float(values[-1])
    null = vectors[:, 0] / vectors[:, 0].sum()
    assert_close(null, p, rtol=0, atol=1e-7)


@settings(max_examples=20)
@given(
    n=st.integers(1, 12),
    seed=st.integers(0, 10**6),
    chunk=st.sampled_from([1, 50, 2**21]),
    kernel=st.sampled_from([Hamming(), Delta(), Hamming() + 2.0 * Delta()]),
)
def test_any_points_have_a_semi_definite_matrix_however_it_is_cut(n, seed, chunk, kernel):
    network, x, _ = everything_of_mixed()
    x = x[:, torch.randint(24, (n,), generator=torch.Generator().manual_seed(seed))]
    ratios = shift_ratios(network, x)
    whole = discrete_stein_gram(x, ratios, network.cards, kernel)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discrete_stein, "CHUNK", chunk)
        cut = discrete_stein_gram(x, ratios, network.cards, kernel)
    assert_close(cut, whole)
    values = torch.linalg.eigvalsh(whole)
    assert float(values[0]) >= -1e-13 * float(values[-1].abs())


def test_a_zero_is_refused_with_its_factor_and_the_ways_out():
    def model():
        a = pyro.sample("a", dist.Bernoulli(0.3)).long()
        b = pyro.sample("b", dist.Bernoulli(0.5)).long()
        pyro.factor("either", torch.tensor([[0.0, -torch.inf], [0.0, 0.0]])[a, b])

    graph = pg.trace_graph(model)
    with pytest.raises(UnsupportedFactor, match=r'"either".*1 of its 4 states.*Soften.*sum'):
        refuse_zeros(graph, zero_entries(Network.of_graph(graph), graph))


def test_a_ratio_that_overflows_is_refused():
    def model():
        a = pyro.sample("a", dist.Bernoulli(0.5))
        pyro.factor("wall", 800 * a)

    graph = pg.trace_graph(model)
    with pytest.raises(NonFiniteDensity, match="overflow"):
        shift_ratios(Network.of_graph(graph), torch.tensor([[0]]))
