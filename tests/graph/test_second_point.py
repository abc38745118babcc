"""The point at which graph and program are compared, and what is said where they differ."""

import ctypes

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.errors import RandomDrawError, VerificationError
from pyrograph.graph.programs import shared_program
from pyrograph.trace.sites import draw_apart

# ---------------------------------------------------------------------- other states
RARE = {
    "Bernoulli": lambda: dist.Bernoulli(torch.full((5,), 1e-3)),
    "Categorical": lambda: dist.Categorical(torch.tensor([0.999, 0.001]).expand(5, 2)),
    "OneHotCategorical": lambda: dist.OneHotCategorical(torch.tensor([0.999, 0.001]).expand(5, 2)),
    "Poisson": lambda: dist.Poisson(torch.full((5,), 1e-3)),
    "Binomial": lambda: dist.Binomial(torch.arange(1.0, 6.0), torch.full((5,), 1e-3)),
    "an event": lambda: dist.Bernoulli(torch.full((5, 3), 1e-3)).to_event(1),
    "a masked one": lambda: dist.Bernoulli(torch.full((5,), 1e-3)).mask(torch.ones(5).bool()),
    "a single one": lambda: dist.Bernoulli(torch.tensor(1e-3)),
}


@pytest.mark.parametrize("name", RARE)
def test_a_draw_apart_is_possible_and_equal_nowhere(name):
    fn = RARE[name]()
    for _ in range(5):
        other = fn.sample()
        found = draw_apart(fn, "z", other)
        assert found.shape == other.shape and found.dtype == other.dtype
        differs = found != other
        dims = other.dim() - len(fn.batch_shape) if name == "OneHotCategorical" else 0
        assert bool((differs.any(-1) if dims else differs).all())
        assert bool(fn.log_prob(found).isfinite().all())


def test_states_of_no_probability_are_no_states_to_go_to():
    probs = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.0, 0.5]])
    other = torch.zeros(2, dtype=torch.int64)
    for _ in range(10):
        assert draw_apart(dist.Categorical(probs), "z", other).tolist() == [0, 2]


def test_a_program_that_makes_no_sense_in_a_rare_state_is_read_in_another():
    """The table has no entry for the second state; where Pyro draws the first it is no error."""

    def model():
        z = pyro.sample("z", dist.Categorical(torch.tensor([1 - 1e-4, 1e-4]).double()))
        mean = torch.zeros(1).double()[z]
        pyro.sample("y", dist.Normal(mean, 1.0), obs=torch.tensor(0.0).double())

    assert pg.trace_graph(model).num_nodes == 1


@pytest.mark.parametrize("seed", range(5))
def test_state_that_follows_a_rare_latent_is_seen(seed):
    """The value leaves by a way that nothing watches."""

    def model():
        z = pyro.sample("z", dist.Bernoulli(torch.tensor(1e-3).double()))
        mean = 3.0 * ctypes.c_double.from_address(z.data_ptr()).value
        pyro.sample("y", dist.Normal(torch.tensor(mean).double(), 1.0), obs=torch.tensor(0.0))

    pyro.set_rng_seed(seed)
    with pytest.raises(VerificationError, match="second point"):
        pg.trace_graph(model)


# ---------------------------------------------------------------------- long programs
def noisy_chain():
    x = torch.zeros(())
    for t in range(100):
        x = pyro.sample(f"x{t}", dist.Normal(x, 1.0))
        pyro.sample(f"y{t}", dist.Normal(x + torch.randn(()), 1.0), obs=torch.zeros(()))


def test_a_refusal_of_a_long_program_is_short_and_compiles_no_program_for_each_statement(
    monkeypatch,
):
    compiled = []

    def counted(*args):
        compiled.append(None)
        return shared_program(*args)

    monkeypatch.setattr("pyrograph.graph.factor_graph.shared_program", counted)
    with pytest.raises(RandomDrawError, match=r"(\"y\d+\", ){4}\"y\d+\" and \d+ others") as refusal:
        pg.trace_graph(noisy_chain)
    assert len(compiled) < 5
    assert len(str(refusal.value)) < 1500


def test_only_the_statements_that_differ_are_named():
    runs = []

    def model():
        runs.append(None)
        x = pyro.sample("x", dist.Normal(torch.zeros(3).double(), 1.0).to_event(1))
        pyro.sample("a", dist.Normal(x.sum(), 1.0), obs=torch.tensor(0.0).double())
        pyro.sample("b", dist.Normal(x[0] + len(runs), 1.0), obs=torch.tensor(0.0).double())
        pyro.sample("c", dist.Normal(float(len(runs)), 1.0), obs=torch.tensor(0.0))

    with pytest.raises(VerificationError, match=r'statement "b", "c"\. '):
        pg.trace_graph(model)


# ---------------------------------------------------------------------- 16 bits
def gaussians(dtype, n):
    x = pyro.sample("x", dist.Normal(torch.zeros(n, dtype=dtype), torch.ones(n, dtype=dtype)))
    y = dist.Normal(x, torch.ones(n, dtype=dtype)).to_event(1)
    pyro.sample("y", y, obs=torch.ones(n, dtype=dtype))


def rounded_sum(dtype, n):
    x = pyro.sample("x", dist.Normal(torch.zeros(n).double(), 3.0))
    pyro.factor("f", -x.sum().to(dtype).double())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("n", [3, 40])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("model", [gaussians, rounded_sum], ids=lambda f: f.__name__)
def test_programs_in_16_bits_are_read_at_every_seed(model, dtype, n, seed):
    pyro.set_rng_seed(seed)
    assert pg.trace_graph(model, (dtype, n)).num_nodes == n


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_16_bits_a_wrong_density_is_still_seen(dtype):
    runs = []

    def model():
        runs.append(None)
        gaussians(dtype, 3)
        pyro.factor("f", torch.tensor(2.0 * len(runs), dtype=dtype))

    with pytest.raises(VerificationError, match='statement "f"'):
        pg.trace_graph(model)


# ---------------------------------------------------------------------- constants in 32 bits
def beside_observed(values):
    k = pyro.sample("k", dist.Normal(torch.zeros(()).double(), 1.0))
    with pyro.plate("n", len(values)):
        scale = torch.ones((), dtype=values.dtype)
        pyro.sample("x", dist.Normal(torch.zeros_like(scale), scale), obs=values)
    pyro.factor("f", k)


def beside_held(values):
    k = pyro.sample("k", dist.Normal(torch.zeros(()).double(), 1.0))
    with pyro.plate("n", len(values)):
        x = pyro.sample("x", dist.Bernoulli(torch.tensor(0.3, dtype=values.dtype)))
    pyro.factor("f", k * x.sum())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("model", [beside_observed, beside_held], ids=lambda f: f.__name__)
def test_constant_statements_in_single_precision_are_compared_as_such(model, seed):
    """Pyro adds them up in single precision, the graph in double."""
    torch.manual_seed(seed)
    values, k = torch.randn(10 + seed, dtype=torch.float32), torch.randn(())
    prior = dist.Normal(0.0, 1.0).log_prob(k)
    if model is beside_observed:
        graph = pg.trace_graph(model, (values,))
        truth = prior + dist.Normal(0.0, 1.0).log_prob(values.double()).sum() + k
    else:
        values = (values > 0).float()
        graph = pg.trace_graph(model, (values,), fixed={"x": values})
        truth = prior + dist.Bernoulli(0.3).log_prob(values.double()).sum() + k * values.sum()
    torch.testing.assert_close(graph.log_prob({"k": k}), truth, rtol=1e-6, atol=1e-6)


def test_beside_constants_in_single_precision_a_wrong_density_is_still_seen():
    runs = []

    def model():
        runs.append(None)
        beside_observed(torch.ones(3, dtype=torch.float32))
        pyro.factor("g", torch.tensor(0.01 * len(runs)))

    with pytest.raises(VerificationError, match='statement "g"'):
        pg.trace_graph(model)


# ---------------------------------------------------------------------- beside large statements
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_wrong_statement_is_seen_beside_one_of_great_size(dtype):
    """A million observations in Kelvin, at a prior draw: -3e11 nats of no importance."""
    runs = []
    y = 287 + 0.02 * torch.randn(1000, dtype=dtype)

    def model():
        zero = torch.zeros((), dtype=dtype)
        m = pyro.sample("m", dist.Normal(287 + zero, 10.0))
        with pyro.plate("n", 1000), pyro.poutine.scale(scale=1000.0):
            pyro.sample("y", dist.Normal(m, 0.02), obs=y)
        runs.append(None)
        b = pyro.sample("b", dist.Normal(zero, 1.0))
        with pyro.plate("k", 20):
            pyro.sample("z", dist.Normal(b, 1.0 + len(runs)), obs=y[:20])

    with pytest.raises(VerificationError, match='statement "z"'):
        pg.trace_graph(model)


@pytest.mark.parametrize("seed", range(4))
def test_elements_that_cancel_beside_it_are_rounding(seed):
    pyro.set_rng_seed(seed)
    size = 1e6 * torch.randn(5000, dtype=torch.float32)
    size = size - size.mean()

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros((), dtype=torch.float32), 1.0))
        with pyro.plate("n", 5000):
            pyro.factor("f", size * torch.tanh(x))
            pyro.sample("y", dist.Normal(x, 1e-4), obs=size.sign())

    assert pg.trace_graph(model).num_nodes == 1


def test_sums_that_16_bits_do_not_hold_are_infinite_in_both():
    def model():
        one = torch.ones(3000, dtype=torch.float16)
        x = pyro.sample("x", dist.Normal(0 * one, one))
        pyro.sample("y", dist.Normal(x, 0.1 * one).to_event(1), obs=0 * one)

    assert pg.trace_graph(model).num_nodes == 3000


@pytest.mark.parametrize("seed", range(3))
def test_terms_that_cancel_in_one_element_beside_it_are_rounding(seed):
    pyro.set_rng_seed(seed)
    x = 100 * torch.randn(500, 4, dtype=torch.float32)
    y = (torch.rand(500) < 0.5).float()

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(4, dtype=torch.float32), 1.0).to_event(1))
        logits = x @ w
        pyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)
        pyro.factor("centred", (logits - logits.mean()).sum())

    assert pg.trace_graph(model).num_nodes == 1


def test_the_second_point_costs_the_program_once_however_many_statements(monkeypatch):
    """What is asked of the whole graph is not asked of every statement."""
    asked = []
    narrowest = pg.FactorGraph._narrowest

    def counted(self, others):
        asked.append(len(others))
        return narrowest(self, others)

    monkeypatch.setattr(pg.FactorGraph, "_narrowest", counted)

    def walk():
        x = torch.zeros(())
        for t in range(60):
            x = pyro.sample(f"x{t}", dist.Normal(x, 1.0))

    pg.trace_graph(walk)
    assert len(asked) < 10
