"""Layers that PyTorch computes by one kernel: recurrent networks and attention, by hand."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import pyrograph as pg
from pyrograph.errors import RandomDrawError

PRIOR = dist.Normal(torch.tensor(0.0), torch.tensor(1.0))


@pytest.fixture(autouse=True)
def single_precision(clean_state):
    """That of most networks, and the only one that some kernels have."""
    torch.set_default_dtype(torch.float32)


def program(layer, shape):
    """A normal latent of this shape, through the layer to observations of 0."""

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(shape), 1.0).to_event(1))
        out = layer(x)
        pyro.sample("o", dist.Normal(out, 1.0).to_event(1), obs=torch.zeros(out.shape))

    return model


# ---------------------------------------------------------------------- recurrent
def lstm_by_hand(net, x):
    """Hochreiter & Schmidhuber's equations with a forget gate, ``[T, d]`` to ``[T, h]``."""
    h = c = torch.zeros(net.hidden_size)
    out = []
    for step in x:
        gates = net.weight_ih_l0 @ step + net.bias_ih_l0 + net.weight_hh_l0 @ h + net.bias_hh_l0
        i, f, g, o = gates.chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        out.append(h)
    return torch.stack(out)


def test_many_particles_of_a_recurrent_network_in_single_precision_get_their_own_density():
    torch.manual_seed(0)
    net = nn.LSTM(2, 3)
    graph = pg.trace_graph(program(lambda x: net(x)[0], (4, 2)))
    # Step t reads steps 0..t.
    assert [len(scope) for scope in graph.scopes("o")] == [1, 2, 3, 4]

    def truth(x):
        return PRIOR.log_prob(x).sum() + PRIOR.log_prob(lstm_by_hand(net, x)).sum()

    xs = torch.randn(6, 4, 2)
    expected = torch.stack([truth(x) for x in xs])
    torch.testing.assert_close(graph.log_prob({"x": xs}), expected, rtol=1e-5, atol=1e-4)

    flat = graph.flatten({"x": xs}).requires_grad_()
    (found,) = torch.autograd.grad(graph.density(flat).sum(), flat)
    inputs = xs.clone().requires_grad_()
    (score,) = torch.autograd.grad(torch.stack([truth(x) for x in inputs]).sum(), inputs)
    torch.testing.assert_close(found, score.flatten(1), rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------- attention
def plain(x):
    return F.scaled_dot_product_attention(x, x, x)


def causal(x):
    return F.scaled_dot_product_attention(x, x, x, is_causal=True)


def asked_for_a_kernel(x):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return plain(x)


def attention_by_hand(x, reads_later=True):
    """``softmax(x x' / sqrt(d)) x``, ``[heads, T, d]``."""
    scores = x @ x.mT / math.sqrt(x.shape[-1])
    if not reads_later:
        later = torch.ones(scores.shape[-2:]).triu(1).bool()
        scores = scores.masked_fill(later, -torch.inf)
    return scores.softmax(-1) @ x


@pytest.mark.parametrize("attention", [plain, causal, asked_for_a_kernel])
def test_attention_without_dropout_is_followed_head_by_head(attention):
    graph = pg.trace_graph(program(attention, (1, 2, 3, 4)))
    assert graph.num_nodes == 6
    for head in range(2):
        own = {("x", (0, head, t)) for t in range(3)}
        for scope in graph.scopes("o")[3 * head : 3 * head + 3]:
            assert set(scope) <= own
    xs = torch.randn(5, 1, 2, 3, 4)
    means = attention_by_hand(xs, reads_later=attention is not causal)
    expected = (PRIOR.log_prob(xs) + PRIOR.log_prob(means)).flatten(1).sum(1)
    torch.testing.assert_close(graph.log_prob({"x": xs}), expected, rtol=1e-5, atol=1e-4)


def test_an_encoder_layer_in_evaluation_mode_is_followed():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    own, norm = layer.self_attn, F.layer_norm

    def by_hand(x):
        q, k, v = (x @ own.in_proj_weight.T + own.in_proj_bias).chunk(3, -1)
        heads = [
            (q[:, c] @ k[:, c].T / math.sqrt(2)).softmax(-1) @ v[:, c]
            for c in (slice(0, 2), slice(2, 4))
        ]
        x = norm(x + own.out_proj(torch.cat(heads, -1)), (4,))
        return norm(x + layer.linear2(layer.linear1(x).relu()), (4,))

    graph = pg.trace_graph(program(layer, (1, 3, 4)))
    xs = torch.randn(5, 1, 3, 4)
    means = torch.stack([by_hand(x[0]) for x in xs])
    expected = PRIOR.log_prob(xs).flatten(1).sum(1) + PRIOR.log_prob(means).flatten(1).sum(1)
    torch.testing.assert_close(graph.log_prob({"x": xs}), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("backends", [[], [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]])
def test_attention_with_dropout_is_refused(backends):
    def dropped(x):
        if not backends:
            return F.scaled_dot_product_attention(x, x, x, dropout_p=0.2)
        with sdpa_kernel(backends):
            return F.scaled_dot_product_attention(x, x, x, dropout_p=0.2)

    with pytest.raises(RandomDrawError):
        pg.trace_graph(program(dropped, (1, 2, 3, 4)))


def test_fused_kernels_are_on_again_after_a_program_was_read():
    before = torch._C._get_mkldnn_enabled(), torch.backends.cuda.flash_sdp_enabled()
    inside = []

    def model():
        inside.append((torch._C._get_mkldnn_enabled(), torch.backends.cuda.flash_sdp_enabled()))
        pyro.sample("x", dist.Normal(0.0, 1.0))

    pg.trace_graph(model)
    assert inside == [before, (False, False)]
    assert before == (torch._C._get_mkldnn_enabled(), torch.backends.cuda.flash_sdp_enabled())
