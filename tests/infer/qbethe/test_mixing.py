"""Mixing of nodes and pairs against its definition, and derivatives by hand against automatic ones
and differences."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.distributions import Normal

import pyrograph as pg
from pyrograph.infer.qbethe import mixing, ratios
from pyrograph.infer.qbethe.mixing import NodeMixing, PairMixing, Run, runs
from pyrograph.infer.qbethe.ratios import IndependentRatios

HERE, THERE = torch.tensor([0, 0, 1, 3, 2]), torch.tensor([1, 3, 2, 2, 0])


def positive(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float64).uniform_(0.2, 2.0).requires_grad_()


def expanded(p: Tensor, like: Tensor) -> Tensor:
    """Constants at all nodes of all components."""
    return p[:, None].expand(*like.shape[:3], like.shape[-1]) if p.dim() == 1 else p


def with_own(w: Tensor, ratio: Tensor) -> Tensor:
    """Ratios of all components ``[B, L, N, L, V]``, 1 of the own one, of those of the others."""
    size, own = w.shape[1], torch.ones_like(ratio[:, 0, :, 0])
    rows = [
        torch.stack([own if m == l else ratio[:, l, :, (m - l) % size - 1] for m in range(size)], 2)
        for l in range(size)  # noqa: E741
    ]
    return torch.stack(rows, 1)


def of_pairs(
    w: Tensor,
    first: Tensor,
    second: Tensor,
    p: Tensor,
    q: Tensor,
    here: Tensor | None = None,
    there: Tensor | None = None,
) -> Tensor:
    p, q = expanded(p, first), expanded(q, second)
    if here is not None:
        first, p = first[..., here], p[..., here]
    if there is not None:
        second, q = second[..., there], q[..., there]
    first, second = with_own(w, first), with_own(w, second)
    s = torch.einsum("bm,blnms,blkms->blnks", w, first, second)
    return -torch.einsum("bl,blns,blks,blnks->b", w, p, q, s.log())


def of_nodes(w: Tensor, ratio: Tensor, p: Tensor) -> Tensor:
    s = torch.einsum("bm,blnmv->blnv", w, with_own(w, ratio))
    return -torch.einsum("bl,blnv,blnv->bv", w, expanded(p, ratio), s.log())


def weights(count: int, is_constant: bool, batch: int, nodes: int) -> Tensor:
    return positive(count).detach() if is_constant else positive(batch, 3, count, nodes)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("block", [1, 2**20])
@pytest.mark.parametrize("rows", [(None, None), (HERE, THERE), (HERE, None)])
def test_mixing_of_pairs_and_its_derivatives_follow_the_definition(
    is_constant: bool, batch: int, block: int, rows: tuple, monkeypatch: pytest.MonkeyPatch
):
    every = slice(0, 5)
    pairs = [Run(*(every if r is None else r for r in rows))]
    monkeypatch.setattr(mixing, "BLOCK", block)  # one pair a block, and all at once
    monkeypatch.setattr(mixing, "LEAST_PAIRS", 1)
    many, more = (5 if r is None else 4 for r in rows)
    x = [
        positive(batch, 3),
        positive(batch, 3, 2, 2, many),
        positive(batch, 3, 4, 2, more),
        weights(2, is_constant, batch, many),
        weights(4, is_constant, batch, more),
    ]
    torch.testing.assert_close(PairMixing.apply(*x, pairs), of_pairs(*x, *rows))
    up = torch.linspace(1, 2, batch, dtype=torch.float64)
    free = [v for v in x if v.requires_grad]
    ours = torch.autograd.grad(PairMixing.apply(*x, pairs), free, up)
    torch.testing.assert_close(ours, torch.autograd.grad(of_pairs(*x, *rows), free, up))
    assert gradcheck(lambda *v: PairMixing.apply(*v, pairs), x, fast_mode=True)


@pytest.mark.parametrize("is_constant", [True, False])
def test_a_table_of_both_ends_gets_the_derivatives_of_both(is_constant: bool):
    w, p = positive(2, 3), weights(4, is_constant, 2, 6)
    table = positive(2, 3, 4, 6, 2).transpose(3, 4)  # in another order in memory
    free = [v for v in (w, table, p) if v.requires_grad]
    value = PairMixing.apply(w, table, table, p, p, [Run(HERE, THERE)]).sum()
    truth = of_pairs(w, table, table, p, p, HERE, THERE).sum()
    torch.testing.assert_close(value, truth)
    ours = torch.autograd.grad(value, free)
    torch.testing.assert_close(ours, torch.autograd.grad(truth, free))


@pytest.mark.parametrize("is_constant", [True, False])
def test_a_node_alone_may_be_an_end_of_all_pairs(is_constant: bool):
    w, first, second = positive(1, 3), positive(1, 3, 2, 2, 1), positive(1, 3, 4, 2, 5)
    p, q = weights(2, is_constant, 1, 1), weights(4, is_constant, 1, 5)
    x, rows = (w, first, second, p, q), (torch.zeros(5, dtype=torch.int64), None)
    pairs = [Run(rows[0], slice(0, 5))]
    torch.testing.assert_close(PairMixing.apply(*x, pairs), of_pairs(*x, *rows))
    assert gradcheck(lambda *v: PairMixing.apply(*v, pairs), x)


def grid(height: int, width: int) -> tuple[Tensor, Tensor]:
    i = torch.arange(height * width).view(height, width)
    across = torch.stack([i[:, :-1].flatten(), i[:, 1:].flatten()])
    return torch.cat([across, torch.stack([i[:-1].flatten(), i[1:].flatten()])], 1).unbind()


GRAPHS = {
    "chain": (torch.arange(9), torch.arange(1, 10)),
    "grid": grid(4, 5),
    "backwards": tuple(rows.flip(0) for rows in reversed(grid(4, 5))),
    "skips": (torch.arange(0, 20, 3), torch.arange(0, 20, 3) + 2),
    "star": (torch.zeros(8, dtype=torch.int64), torch.arange(1, 9)),
    "twice": (torch.tensor([0, 1, 1, 2, 3, 4]), torch.tensor([1, 2, 2, 3, 4, 5])),
    "grid and others": tuple(
        torch.cat([rows, torch.tensor(more)])
        for rows, more in zip(grid(4, 5), ([0, 3, 19], [12, 17, 2]), strict=True)
    ),
}


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("name", GRAPHS)
def test_runs_are_the_pairs_and_mix_like_them(
    name: str, is_constant: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mixing, "LEAST_PAIRS", 4)
    monkeypatch.setattr(mixing, "BLOCK", 3 * 6 * 7)
    here, there = GRAPHS[name]
    pairs = runs(here, there)
    found = []
    for run in pairs:
        times = torch.ones(len(run), dtype=torch.int64) if run.times is None else run.times
        rows = (
            torch.arange(r.start, r.stop) if isinstance(r, slice) else r
            for r in (run.here, run.there)
        )
        found += torch.stack(list(rows), 1).repeat_interleave(times, 0).tolist()
    assert sorted(found) == sorted(torch.stack([here, there], 1).tolist())
    is_read_as_it_lies = any(isinstance(run.here, slice) for run in pairs)
    assert is_read_as_it_lies == (name not in ("skips", "star"))
    size = int(max(here.max(), there.max())) + 1
    w, table = positive(1, 3), positive(1, 3, 2, 2, size)
    p = weights(2, is_constant, 1, size)
    free = [v for v in (w, table, p) if v.requires_grad]
    value = PairMixing.apply(w, table, table, p, p, pairs)
    truth = of_pairs(w, table, table, p, p, here, there)
    torch.testing.assert_close(value, truth)
    ours = torch.autograd.grad(value.sum(), free)
    torch.testing.assert_close(ours, torch.autograd.grad(truth.sum(), free))


def test_constants_get_no_derivative():
    w, first, second = positive(1, 3), positive(1, 3, 2, 2, 5).detach(), positive(1, 3, 4, 2, 5)
    x = (w, first, second, positive(2).detach(), positive(4).detach())
    PairMixing.apply(*x, [Run(slice(0, 5), slice(0, 5))]).sum().backward()
    expected = torch.autograd.grad(of_pairs(*x).sum(), (w, second))
    torch.testing.assert_close((w.grad, second.grad), expected)


@pytest.mark.parametrize("is_constant", [True, False])
def test_mixing_of_nodes_and_its_derivatives_follow_the_definition(is_constant: bool):
    x = positive(2, 3), positive(2, 3, 4, 2, 5), weights(4, is_constant, 2, 5)
    torch.testing.assert_close(NodeMixing.apply(*x), of_nodes(*x))
    assert gradcheck(NodeMixing.apply, x)


@pytest.mark.parametrize("arity", [3, 4, 6])
def test_scopes_of_nodes_that_are_all_but_certain_are_no_nan_in_single_precision(arity: int):
    torch.set_default_dtype(torch.float32)  # put back by the fixture of all tests

    def model():
        with pyro.plate("nodes", arity):
            x = pyro.sample("x", dist.Bernoulli(torch.tensor(0.5)).mask(False))
        pyro.factor("all", x.prod())

    engine = pg.QBethe(model, num_components=2, progress=False).setup()
    rules = engine._rules
    # components on opposite states, of which each has exp(-90) of the other's
    logits = torch.tensor([[90.0, 0.0], [0.0, 90.0]]).view(1, 2, 1, 2).repeat(1, 1, arity, 1)
    parameters = {"weights": torch.tensor([[0.0, 1.0]]), "logits_0": logits}
    for value in parameters.values():
        value.requires_grad_()
    share = 1 / (1 + math.exp(-1.0))
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    value = engine.objective(parameters, rules)
    assert float(value.detach()) == pytest.approx(share + entropy, abs=1e-5)
    by_weight, by_logits = torch.autograd.grad(value.sum(), list(parameters.values()))
    slope = share * (1 - share) * (1 + math.log(1 - share) - math.log(share))
    torch.testing.assert_close(by_weight, torch.tensor([[-slope, slope]]), atol=1e-5, rtol=0)
    torch.testing.assert_close(by_logits, torch.zeros_like(logits), atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("largest", [40.0, 0.5])
def test_ratios_are_those_of_normal_densities_up_to_the_largest(
    size: int, largest: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ratios, "LARGEST", largest)
    mean, scale = torch.randn(2, 3, 4, size, dtype=torch.float64), positive(2, 3, 4, size)
    mean.requires_grad_()
    z = torch.randn(5, size, dtype=torch.float64)
    ratio = IndependentRatios.apply(mean, scale, z)
    x = mean[:, :, None] + scale[:, :, None] * z[:, None]  # [B, L, N, V, d]
    own = Normal(mean[:, :, None], scale[:, :, None]).log_prob(x)
    others = Normal(mean[:, None, None], scale[:, None, None]).log_prob(x[:, :, :, None])
    every = (others - own[:, :, :, None]).sum(-1)  # [B, L, N, L, V]
    rows = [every[:, k][:, :, [(k + 1) % 3, (k + 2) % 3]] for k in range(3)]
    truth = torch.stack(rows, 1).clamp_max(largest).exp()
    torch.testing.assert_close(ratio, truth)
    assert (truth.max() > 1.6) and bool((truth.log() == largest).any() == (largest < 1))
    up = torch.randn_like(ratio)
    ours = torch.autograd.grad(ratio, (mean, scale), up)
    torch.testing.assert_close(ours, torch.autograd.grad(truth, (mean, scale), up))


@pytest.mark.parametrize("name", ["weights", "mean_0", "log_scale_0"])
def test_second_derivatives_are_refused_not_zero(name: str):
    def model():
        with pyro.plate("nodes", 3):
            x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0))
        with pyro.plate("pairs", 2):
            pyro.factor("pair", -(x[1:] - x[:-1]).abs())

    engine = pg.QBethe(model, num_components=2, progress=False).setup()
    value = engine.objective(engine.parameters, engine._rules).sum()
    (first,) = torch.autograd.grad(value, engine.parameters[name], create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        first.square().sum().backward()
