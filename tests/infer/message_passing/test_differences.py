"""Pairs that depend on the difference of their states alone. Truth: sums over all states, plain
loops over tables, finite differences; the same model through tables."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro.ops.indexing import Vindex
from torch.autograd import gradcheck
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import pyrograph as pg
from pyrograph.errors import OptionError, UnsupportedFactor, ZeroMass
from pyrograph.infer.message_passing.discrete import differences
from pyrograph.infer.message_passing.discrete.differences import DifferenceFactors
from pyrograph.infer.message_passing.discrete.tables import TableFactors
from pyrograph.infer.message_passing.network import discrete_factors
from pyrograph.infer.message_passing.settling.double_loop import DoubleLoop

from .builders import INF, Tables, grid_edges, run
from .references import fractional_bp


# ---------------------------------------------------------------------- functions of a difference
def gaps(c):
    return torch.arange(1 - c, c).double()


def truncated(c, count):
    return -(0.2 + torch.rand(count, 1)) * gaps(c).abs().clamp(max=5)


def steep(c, count):
    """Down to 1e-30 of the peak at a distance of 10 at most, and on below the smallest number."""
    return -(0.7 + torch.rand(count, 1)) * gaps(c) ** 2


def ragged(c, count):
    return 3 * torch.randn(count, 2 * c - 1)


def banded(c, count):
    return torch.where(gaps(c).abs() > 4, -INF, truncated(c, count))


def one_sided(c, count):
    """x_0 < x_1, however far."""
    return torch.where(gaps(c) >= 0, -INF, ragged(c, count))


KINDS = [truncated, steep, ragged, banded, one_sided]


def dense(log_value):
    """``[..., c, c]`` from the values at -(c - 1) .. c - 1."""
    c = (log_value.shape[-1] + 1) // 2
    state = torch.arange(c)
    return log_value[..., state.unsqueeze(1) - state + c - 1]


def model_of(kind, c, num_nodes, scopes, seed=0):
    torch.manual_seed(seed)
    own = [torch.randn(c) for _ in range(num_nodes)]
    pairs = dense(kind(c, len(scopes)))
    every = [(i,) for i in range(num_nodes)] + list(scopes)
    return Tables((c,) * num_nodes, tuple(every), (*own, *pairs), plated=True)


def cycle(kind, c):
    return model_of(kind, c, 3, [(0, 1), (1, 2), (0, 2)])


def kinds_of_blocks(model, **options):
    engine = pg.BP(model, progress=False, **options).setup()
    return [type(block) for block in engine.network.blocks]


@pytest.fixture
def through_tables(monkeypatch):
    """A function that runs with differences not looked for."""

    def same(call):
        with monkeypatch.context() as patch:
            patch.setattr(discrete_factors, "difference_values", lambda group: None)
            return call()

    return same


# ---------------------------------------------------------------------- sums of one block
def blocks_of(log_value, alpha, kind=DifferenceFactors):
    count = len(log_value)
    rows = [torch.arange(count), torch.arange(count, 2 * count)]
    value = log_value if kind is DifferenceFactors else dense(log_value)
    return kind(value, torch.full((count,), alpha, dtype=log_value.dtype), rows, [0, 0])


@given(
    seed=st.integers(0, 10**6),
    c=st.sampled_from([3, 16, 24, 41, 64]),
    kind=st.sampled_from(KINDS),
    sharpness=st.sampled_from([1.0, 30.0, 300.0]),
    alpha=st.sampled_from([1.0, 0.5, 2.0]),
    like=st.booleans(),
)
def test_every_sum_has_nine_digits_however_far_below_the_peak(
    seed, c, kind, sharpness, alpha, like
):
    torch.manual_seed(seed)
    log_value = kind(c, 1).expand(5, -1) if like else kind(c, 5)
    n = [sharpness * torch.randn(5, c) for _ in range(2)]
    tilted = alpha * dense(log_value)
    truth = [(tilted + n[1].unsqueeze(1)).logsumexp(2), (tilted + n[0].unsqueeze(2)).logsumexp(1)]
    for found, expected in zip(blocks_of(log_value, alpha).exact_sums(n), truth):
        assert_close(found, expected, rtol=1e-13, atol=1e-9)  # logs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alpha", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("dtype, atol", [(torch.float64, 1e-9), (torch.float32, 2e-4)])
def test_whatever_is_asked_of_a_block_is_what_tables_say(kind, alpha, dtype, atol):
    c = 32
    log_value = kind(c, 6).to(dtype)
    if alpha == 0 and bool(log_value.isinf().any()):
        log_value = log_value.clamp_min(-30)
    ours, theirs = (blocks_of(log_value, alpha, kind) for kind in (DifferenceFactors, TableFactors))
    beliefs = [torch.randn(12, c, dtype=dtype)]
    messages = [0.3 * torch.randn(6, c, dtype=dtype) for _ in range(2)]
    names = ["log_ratio", "marginals"] + ["largest_ratio"] * (alpha > 0)
    for name in names:
        found, expected = (getattr(b, name)(messages, beliefs) for b in (ours, theirs))
        assert_close(found, expected, rtol=1e-5 if dtype == torch.float32 else 1e-9, atol=atol)
    for found, expected in zip(
        ours.update(messages, beliefs)[0], theirs.update(messages, beliefs)[0]
    ):
        assert_close(found, expected, rtol=1e-5 if dtype == torch.float32 else 1e-9, atol=atol)


# ---------------------------------------------------------------------- whole models
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
@pytest.mark.parametrize("c", [17, 30])
def test_a_chain_is_exact(kind, schedule, c):
    model = model_of(kind, c, 3, [(0, 1), (1, 2)])
    assert kinds_of_blocks(model) == [DifferenceFactors]
    posterior = run(model, schedule=schedule)
    assert posterior.evidence_kind == "exact"
    assert_close(posterior.log_evidence, model.log_z, rtol=0, atol=1e-9)
    for node, belief in enumerate(model.beliefs(posterior)):
        assert_close(belief, model.marginal(node), rtol=0, atol=1e-9)
    for k, belief in model.factor_beliefs(posterior).items():
        assert_close(belief, model.marginal(*model.scopes[k]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("alpha", [1.0, 0.6])
@pytest.mark.parametrize("kind", [truncated, banded])
def test_a_cycle_comes_to_the_fixed_point_of_plain_loops(kind, alpha):
    model = cycle(kind, 16)
    assert kinds_of_blocks(model) == [DifferenceFactors]
    nodes, factors = fractional_bp(model, alpha)
    posterior = run(model, pg.FractionalBP, alpha=alpha, tol=1e-11)
    for found, expected in zip(model.beliefs(posterior), nodes):
        assert_close(found, torch.as_tensor(expected), rtol=0, atol=1e-8)
    for found, expected in zip(model.factor_beliefs(posterior).values(), factors):
        assert_close(found, torch.as_tensor(expected), rtol=0, atol=1e-8)


PRESETS = [
    (pg.BP, {}),
    (pg.FractionalBP, {"alpha": 2.0}),
    (pg.FractionalBP, {"alpha": -0.5, "damping": 0.7}),
    (pg.VMP, {}),
    (pg.TRW, {}),
    (pg.TRW, {"edge_appearance": "optimize", "num_trees": 3}),
    (pg.BP, {"schedule": "residual"}),
]


@pytest.mark.parametrize("preset, options", PRESETS)
@pytest.mark.parametrize("c", [16, 40])
def test_presets_end_where_they_end_with_tables(preset, options, c, through_tables):
    model = cycle(truncated, c)
    ours = run(model, preset, num_steps=2000, **options)
    theirs = through_tables(lambda: run(model, preset, num_steps=2000, **options))
    assert ours.converged and theirs.converged
    assert ours.evidence_kind == theirs.evidence_kind
    assert_close(ours.log_evidence, theirs.log_evidence, rtol=0, atol=1e-7)
    for a, b in zip(model.beliefs(ours), model.beliefs(theirs)):
        assert_close(a, b, rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", [truncated, banded])
def test_the_double_loop_takes_the_same_steps_as_with_tables(kind, through_tables):
    model = cycle(kind, 16)

    def steps():
        engine = pg.BP(model, progress=False).setup()
        loop = DoubleLoop(engine.graph, engine.network)
        return [loop.step(1e-8) for _ in range(5)][-1][0]

    for a, b in zip(steps(), through_tables(steps)):
        assert_close(a, b, rtol=0, atol=1e-9)


def test_states_too_far_apart_have_no_mass():
    model = model_of(banded, 16, 3, [(0, 1), (1, 2)])
    pinned = [torch.full((16,), -INF) for _ in range(2)]
    pinned[0][0], pinned[1][15] = 0.0, 0.0
    tables = (pinned[0], model.tables[1], pinned[1], *model.tables[3:])
    for schedule in ("parallel", "sequential"):
        with pytest.raises(ZeroMass):
            run(Tables(model.cards, model.scopes, tables, plated=True), schedule=schedule)


def test_mean_field_refuses_a_band():
    with pytest.raises(OptionError, match="has zeros"):
        run(cycle(banded, 16), pg.VMP)


# ---------------------------------------------------------------------- derivatives
def triangle(c, pair):
    first, second = torch.tensor([0, 1, 0]), torch.tensor([1, 2, 2])
    own = torch.randn(3, c)

    def model(parameters):
        with pyro.plate("nodes", 3):
            x = pyro.sample("x", dist.Categorical(logits=own))
        with pyro.plate("edges", 3):
            pyro.factor("pair", pair(parameters, x[..., first], x[..., second]))

    return model


def weighted(w, a, b):
    return -w * (a - b).abs().clamp(max=5)


def weighted_band(w, a, b):
    return torch.where((a - b).abs() > 4, -INF, weighted(w, a, b))


@pytest.mark.parametrize("pair, c", [(weighted, 16), (weighted_band, 16), (weighted, 3)])
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("engine", [pg.BP, pg.VMP])
def test_derivatives_are_those_of_finite_differences(pair, c, alike, engine):
    if engine is pg.VMP and pair is weighted_band:
        return
    model = triangle(c, pair)
    w = torch.full((3,), 0.4) if alike else torch.tensor([0.3, 0.5, 0.2])

    def value(w):
        posterior = run(model, engine, w, tol=1e-13, num_steps=3000)
        return posterior.log_evidence, posterior.marginal("x").probs[:2, 0]

    at = (w.requires_grad_(),)
    assert gradcheck(value, at, eps=1e-5, atol=1e-6, check_undefined_grad=False)


def test_a_table_of_free_entries_that_starts_as_a_difference_keeps_its_own_derivatives():
    c = 16
    model = triangle(c, lambda table, a, b: Vindex(table)[a, b])
    start = dense(truncated(c, 1))[0].requires_grad_()
    engine = pg.BP(model, progress=False).setup(start)
    assert [type(block) for block in engine.network.blocks] == [TableFactors]
    posterior = run(model, pg.BP, start, tol=1e-12)
    (found,) = torch.autograd.grad(posterior.marginal("x").probs[0, 0], start)
    moved = []
    for step in (1e-5, -1e-5):
        table = start.detach().clone()
        table[3, 5] += step
        moved.append(run(model, pg.BP, table, tol=1e-12).marginal("x").probs[0, 0])
    assert_close(found[3, 5], (moved[0] - moved[1]) / 2e-5, rtol=0, atol=1e-7)


# ---------------------------------------------------------------------- what is found
def test_one_entry_off_its_diagonal_makes_tables_of_a_group():
    model = cycle(truncated, 16)
    tables = [t.clone() for t in model.tables]
    tables[4][15, 14] += 1e-6
    other = Tables(model.cards, model.scopes, tuple(tables), plated=True)
    assert kinds_of_blocks(model) == [DifferenceFactors]
    assert kinds_of_blocks(other) == [TableFactors]


def test_values_that_are_equal_up_to_rounding_are_a_difference():
    def model():
        with pyro.plate("nodes", 3):
            x = pyro.sample("x", dist.Categorical(logits=torch.zeros(20)))
        place = 0.1 * x
        pyro.factor("pair", -((place[..., :-1] - place[..., 1:]) ** 2).sum(-1))

    assert kinds_of_blocks(model) == [DifferenceFactors]


def test_few_states_keep_their_tables():
    assert kinds_of_blocks(cycle(truncated, 5)) == [TableFactors]


class Largest(TorchDispatchMode):
    """Elements of the largest tensor with storage of its own that some operation returned."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else [out]:
            if isinstance(value, torch.Tensor):
                own = value.untyped_storage().nbytes() // value.element_size()
                self.size = max(self.size, own)
        return out


def image(n, c, weights=None):
    edges = torch.tensor(grid_edges(n))
    weights = torch.rand(len(edges)) + 0.2 if weights is None else weights
    own = torch.randn(n * n, c)

    def model():
        with pyro.plate("pixels", n * n):
            x = pyro.sample("x", dist.Categorical(logits=own))
        with pyro.plate("edges", len(edges)):
            gap = (x[..., edges[:, 0]] - x[..., edges[:, 1]]).abs()
            pyro.factor("smooth", -weights * gap.clamp(max=5))

    return model


def test_an_image_of_64_labels_never_holds_its_tables():
    with Largest() as largest:
        engine = pg.BP(image(100, 64), progress=False).setup()
        engine.step()
    entries = 19800 * 64**2
    assert largest.size < entries / 15
    assert engine.posterior().log_evidence.isfinite()


def test_beyond_the_budget_of_tables_all_but_beliefs_of_pairs_is_there(monkeypatch, through_tables):
    model = model_of(truncated, 12, 3, [(0, 1), (1, 2)])
    for module in (differences, discrete_factors):
        monkeypatch.setattr(module, "MAX_ENTRIES", 200)
    with pytest.raises(UnsupportedFactor, match="over the budget"):
        through_tables(lambda: run(model))
    posterior = run(model)
    assert_close(posterior.log_evidence, model.log_z, rtol=0, atol=1e-9)
    for node, belief in enumerate(model.beliefs(posterior)):
        assert_close(belief, model.marginal(node), rtol=0, atol=1e-9)
    with pytest.raises(OptionError, match="marginals of its nodes"):
        posterior.factor_marginal("f2")


def test_factors_that_are_all_alike_share_one_kernel(through_tables):
    model = image(6, 32, torch.tensor(0.5))
    (block,) = pg.BP(model, progress=False).setup().network.blocks
    assert block.shared.shape == (32, 32)
    ours, theirs = run(model), through_tables(lambda: run(model))
    assert_close(ours.marginal("x").probs, theirs.marginal("x").probs, rtol=0, atol=1e-7)
