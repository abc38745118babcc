"""Programs whose structure cannot be read: each is refused, with the place and the way out."""

import copy
import io
import math
import pickle
import random

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import config_enumerate
from pyro.infer.reparam import ConjugateReparam, DiscreteCosineReparam, HaarReparam
from pyro.ops.tensor_utils import idct
from torch import Tensor
from torch.utils import dlpack

from pyrograph import BP, fit, trace_graph
from pyrograph.errors import (
    ControlFlowError,
    LatentMutationError,
    LatentShapeError,
    NonFiniteDensity,
    OptionError,
    RandomDrawError,
    ScopeBudgetError,
    ShapeMismatch,
    StructureError,
    SubsampleError,
    UnsupportedOperation,
    UnsupportedSite,
    VerificationError,
)

from .helpers import error


def scalar(use):
    """``use`` is applied to a scalar latent "x" after its statement."""

    def model():
        x = pyro.sample("x", dist.Normal(0.5, 1.0))
        pyro.factor("f", torch.as_tensor(use(x)).sum() + x)

    return model


def vector(use):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0))
        use(x)
        pyro.factor("f", x)

    return model


def integer(use):
    def model():
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))
        use(z)
        pyro.factor("f", 0.1 * z)

    return model


def loop(x):
    while x < 10:
        x = x + 5
    return x


def assertion(x):
    assert x < 1000
    return x


READS = {
    "if": lambda x: 1.0 if x > 0 else 0.0,
    "while": loop,
    "assert": assertion,
    "bool": lambda x: float(bool(x)),
    "not": lambda x: float(not x),
    "and": lambda x: (x > 0) and 1.0,
    "item": lambda x: x.item(),
    "float": lambda x: float(x),
    "int": lambda x: int(x),
    "complex": lambda x: complex(x).real,
    "round": lambda x: float(x).__round__(),
    "math": lambda x: math.exp(x),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: float(x.numpy()),
    "detached numpy": lambda x: float(x.detach().cpu().numpy()),
    "asarray": lambda x: float(np.asarray(x)),
    "array": lambda x: float(np.array(x)),
    "ufunc": lambda x: float(np.exp(x)),
    "python min": lambda x: min(x, 3.0),
    "sorted": lambda x: sorted([x, x + 1])[0],
    "chained comparison": lambda x: 1.0 if -1 < x < 1 else 0.0,
    "membership": lambda x: float(x in [1.0, 2.0]),
    "tensor of a list": lambda x: torch.tensor([x, 2 * x]).sum(),
    "tensor of a nested list": lambda x: torch.tensor([[1.0, x], [2 * x, 0.0]]).sum(),
    "tensor of a tuple": lambda x: torch.tensor((x, 1.0)).sum(),
    "as_tensor of a list": lambda x: torch.as_tensor([x, 2 * x]).sum(),
    "new_tensor": lambda x: torch.zeros(1).new_tensor([x, x]).sum(),
    "legacy constructor": lambda x: torch.Tensor([x, x]).sum(),
    "legacy double constructor": lambda x: torch.DoubleTensor([x, x]).sum(),
    "deepcopy": lambda x: copy.deepcopy(x),
    "deepcopy of a list": lambda x: copy.deepcopy([x])[0],
    "equal": lambda x: float(torch.equal(x, torch.zeros(()))),
    "allclose": lambda x: float(torch.allclose(x, torch.zeros(()))),
    "any in if": lambda x: 1.0 if (x > 0).any() else 0.0,
    "numpy function": lambda x: float(np.maximum(x, 0.0)),
    "from_numpy": lambda x: torch.from_numpy(np.atleast_1d(x.numpy())).sum(),
    "is_nonzero": lambda x: float(x.is_nonzero()),
    "full": lambda x: torch.full((3,), float(x)).sum(),
    "numpy from_dlpack": lambda x: float(np.from_dlpack(x.detach())),
    "from_dlpack": lambda x: torch.from_dlpack(x.detach()),
    "to_dlpack": lambda x: dlpack.from_dlpack(dlpack.to_dlpack(x)),
    "to_dlpack of torch": lambda x: torch.from_dlpack(torch.to_dlpack(x)),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "pickle of a list": lambda x: pickle.loads(pickle.dumps([x], protocol=2))[0],
    "save": lambda x: torch.save(x, io.BytesIO()) or 1.0,
}


# NumPy's own notes on tensors, before the refusal.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", READS)
def test_reading_a_latent_in_python_is_refused(name):
    words = ['"x"', "torch.where", "torch.stack", "fixed="]
    error(ControlFlowError, words, scalar(READS[name]))


INTEGER_READS = {
    "int": lambda z: int(z),
    "range of int": lambda z: list(range(int(z))),
    "range": lambda z: list(range(z)),
    "list index": lambda z: ["a", "b", "c"][z],
    "dictionary of values": lambda z: {0: "a", 1: "b", 2: "c"}[z.item()],
    "slice stop": lambda z: torch.arange(5)[:z],
    "eye": lambda z: torch.eye(int(z)),
    "zeros": lambda z: torch.zeros(int(z) + 1),
    "plate size": lambda z: pyro.plate("p", int(z) + 1),
    "sequential plate": lambda z: list(pyro.plate("p", int(z) + 1)),
    "match": lambda z: "a" if z == 0 else "b",
    "hex": lambda z: hex(z),
}


@pytest.mark.parametrize("name", INTEGER_READS)
def test_using_a_discrete_latent_as_a_python_integer_is_refused(name):
    error(ControlFlowError, ['"z"', "tensor indexing", "fixed="], integer(INTEGER_READS[name]))


SHAPES = {
    "boolean selection": lambda x: x[x > 0],
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "nonzero": lambda x: torch.nonzero(x),
    "where of a condition": lambda x: torch.where(x > 0),
    "argwhere": lambda x: torch.argwhere(x > 0),
    "unique": lambda x: torch.unique(x),
    "unique_consecutive": lambda x: torch.unique_consecutive(x),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_that_depends_on_a_latent_is_refused(name):
    error(LatentShapeError, ['"x"', "mask"], vector(SHAPES[name]))


def test_the_number_of_repeats_cannot_be_a_latent():
    def model():
        z = pyro.sample("z", dist.Categorical(torch.ones(3, 3)))
        torch.repeat_interleave(torch.arange(3.0), z)

    with pytest.raises(StructureError, match='"z"'):
        trace_graph(model)


DRAWS = {
    "normal": lambda x: torch.normal(x, 1.0),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "poisson": lambda x: torch.poisson(x.exp()),
    "multinomial": lambda x: torch.multinomial(x.exp(), 1),
    "dirichlet": lambda x: dist.Dirichlet(x.exp()).sample(),
    "gamma": lambda x: dist.Gamma(x.exp(), 1.0).sample(),
    "normal sample": lambda x: dist.Normal(x, 1.0).sample(),
    "categorical sample": lambda x: dist.Categorical(logits=x).sample(),
    "binomial": lambda x: torch.binomial(torch.full((3,), 5.0), x.sigmoid()),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_random_draw_that_depends_on_a_latent_is_refused(name):
    error(RandomDrawError, ['"x"', "pyro.sample"], vector(DRAWS[name]))


def first(x):
    x[0] = 1.0


def augmented(x):
    x += 1


def augmented_item(x):
    x[1] *= 2


MUTATIONS = {
    "item assignment": first,
    "augmented assignment": augmented,
    "augmented item": augmented_item,
    "mul_": lambda x: x.mul_(2),
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(1.0),
    "copy_": lambda x: x.copy_(torch.ones(3)),
    "clamp_": lambda x: x.clamp_(min=0),
    "through a view": lambda x: x.view(3, 1)[0].add_(1),
    "through detach": lambda x: x.detach().add_(1),
    "through data": lambda x: x.data.add_(1),
    "out": lambda x: torch.add(x, 1, out=x),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([0]), torch.ones(1)),
    "scatter_": lambda x: x.scatter_(0, torch.tensor([0]), 1.0),
    "masked_fill_": lambda x: x.masked_fill_(torch.tensor([True, False, True]), 0.0),
    "mask assignment": lambda x: x.__setitem__(torch.tensor([True, False, True]), 0.0),
    "relu inplace": lambda x: torch.nn.functional.relu(x, inplace=True),
    "with a constant": lambda x: x.copy_(torch.zeros(3)),
    "normal_": lambda x: x.normal_(),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_changing_a_latent_in_place_is_refused(name):
    with pytest.raises(StructureError) as caught:
        trace_graph(vector(MUTATIONS[name]))
    assert isinstance(caught.value, (LatentMutationError, RandomDrawError))
    assert '"x"' in str(caught.value)
    if isinstance(caught.value, LatentMutationError):
        assert "clone()" in str(caught.value)


def subsampled(**options):
    def model(y):
        with pyro.plate("data", len(y), **options) as index:
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(x, 1.0), obs=y[index])

    return model


@pytest.mark.parametrize(
    "options", [{"subsample_size": 2}, {"subsample": torch.tensor([0, 2])}], ids=["size", "given"]
)
def test_a_subsampled_plate_is_refused(options):
    error(SubsampleError, ['"data"', '"x"', "2 of 5"], subsampled(**options), torch.randn(5))


def test_a_subsampled_sequential_plate_is_refused():
    def model(y):
        for i in pyro.plate("data", len(y), subsample_size=2):
            pyro.sample(f"x{i}", dist.Normal(y[i], 1.0))

    error(SubsampleError, ['"data"', "2 of 5"], model, torch.randn(5))


def test_a_plate_subsampled_around_a_factor_is_refused():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 6, subsample_size=3):
            pyro.factor("f", x)

    error(SubsampleError, ['"data"', "3 of 6"], model)


def test_two_statements_of_one_name_are_refused():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("twice", dist.Normal(x, 1.0), obs=torch.tensor(0.0))
        pyro.sample("twice", dist.Normal(x, 2.0), obs=torch.tensor(0.0))

    with pytest.raises(RuntimeError, match="twice"):
        trace_graph(model)


def test_two_latent_sites_of_one_name_are_refused():
    def model():
        pyro.sample("twice", dist.Normal(0.0, 1.0))
        pyro.sample("twice", dist.Normal(0.0, 2.0))

    with pytest.raises(RuntimeError, match="twice"):
        trace_graph(model)


def test_reads_over_the_budget_are_refused(monkeypatch):
    monkeypatch.setattr("pyrograph.trace.operands.MAX_READS", 1000)

    def model(a):
        x = pyro.sample("x", dist.Normal(torch.zeros(60), 1.0))
        pyro.factor("dense", -((a @ x) ** 2))

    error(ScopeBudgetError, ['"x"', "sparse"], model, torch.rand(60, 60))


def test_a_latent_index_into_a_latent_table_over_the_budget_is_refused(monkeypatch):
    monkeypatch.setattr("pyrograph.trace.rules.lookups.MAX_CANDIDATES", 1000)

    def model(n, k):
        table = pyro.sample("table", dist.Normal(torch.zeros(k), 1.0))
        z = pyro.sample("z", dist.Categorical(torch.ones(k)).expand([n]))
        pyro.factor("f", table[z])

    error(ScopeBudgetError, ["fixed="], model, 40, 40)


def test_factors_that_all_read_one_sum_have_a_budget_together(monkeypatch):
    """No operation reads much, but every factor reads every node."""
    monkeypatch.setattr("pyrograph.trace.demand.MAX_DEMANDED", 1000)

    def model(count):
        with pyro.plate("nodes", 40):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
        total = torch.logsumexp(x, 0)
        with pyro.plate("many", count):
            pyro.factor("f", torch.tanh(total * torch.arange(1.0, count + 1.0)))

    assert trace_graph(model, (25,)).num_factors == 65
    error(ScopeBudgetError, ['statement "f"', "1,000"], model, 26)


# ---------------------------------------------------------------------- not one fixed function
def test_random_numbers_outside_sample_are_found_by_the_check():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("f", x * torch.rand(()))

    error(RandomDrawError, ["second point", '"f"', "aten.rand", "pyro.sample"], model)


def test_python_random_numbers_are_found_by_the_check():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("f", x * random.random())

    error(VerificationError, ["second point", '"f"'], model)


def test_noise_of_a_reparameterised_draw_is_found_by_the_check():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("f", dist.Normal(x, 1.0).rsample())

    with pytest.raises((VerificationError, RandomDrawError)):
        trace_graph(model)


def test_dropout_is_refused():
    def model():
        x = pyro.sample("x", dist.Normal(torch.ones(50), 1.0))
        pyro.factor("f", torch.nn.functional.dropout(x, 0.5).sum())

    with pytest.raises((VerificationError, RandomDrawError)):
        trace_graph(model)


def test_state_between_runs_is_found_by_the_check():
    runs = []

    def model():
        runs.append(1)
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("f", x * len(runs))

    error(VerificationError, ["state between runs"], model)


def test_the_check_can_be_turned_off():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("f", x * random.random())

    assert trace_graph(model, verify=False).num_nodes == 1


def test_sites_that_come_and_go_are_refused():
    runs = []

    def model():
        runs.append(1)
        pyro.sample(f"x{len(runs)}", dist.Normal(0.0, 1.0))

    error(StructureError, ["x1", "x2"], model)


# ---------------------------------------------------------------------- options
def test_fixing_an_unknown_site_is_refused():
    words = ['"nowhere"', "x"]
    error(OptionError, words, vector(lambda x: None), fixed={"nowhere": torch.tensor(0)})


def test_fixing_an_observed_site_is_refused():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(0.0))

    error(OptionError, ['"y"', "x"], model, fixed={"y": torch.tensor(0.0)})


def test_fixing_at_a_wrong_shape_is_refused():
    error(ShapeMismatch, ['"x"', "(4,)", "(3,)"], vector(lambda x: x), fixed={"x": torch.zeros(4)})


def test_a_support_without_a_map_from_the_reals_is_refused():
    class Odd(dist.MultivariateNormal):
        support = dist.constraints.symmetric  # no map registered

    def model():
        pyro.sample("odd", Odd(torch.zeros(2), torch.eye(2), validate_args=False))

    error(UnsupportedSite, ['"odd"', "Odd"], model, unconstrained=True)


@pytest.mark.parametrize("shape", [(), (2,)], ids=["scalar", "vector"])
def test_writing_to_a_position_given_by_a_latent_is_refused(shape):
    def model():
        z = pyro.sample("z", dist.Categorical(torch.ones(*shape, 3)))
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        buffer = torch.zeros(3)
        buffer[z] = x
        pyro.factor("f", buffer)

    error(UnsupportedOperation, ['"z"', "torch.where"], model)


def test_reinterpreting_bits_of_a_latent_is_refused():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0))
        pyro.factor("f", x.view(torch.int64).double())

    error(UnsupportedOperation, ["reinterpreted"], model)


def test_a_site_that_is_drawn_without_a_density_is_refused():
    def model():
        p = pyro.sample("p", dist.Beta(1.0, 1.0))
        pyro.sample("y", dist.Binomial(3, p), obs=torch.tensor(1.0))

    conjugate = poutine.reparam(model, config={"p": ConjugateReparam(dist.Beta(2.0, 3.0))})
    error(RandomDrawError, ['"p_updated"', "ConjugateReparam"], conjugate)


def test_a_site_in_all_its_states_at_once_is_refused():
    def model():
        z = pyro.sample("z", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Normal(z, 1.0), obs=torch.tensor(1.0))

    enumerated = poutine.enum(config_enumerate(model), first_available_dim=-1)
    error(UnsupportedOperation, ['"z"', "poutine.enum", "without that handler"], enumerated)


def test_complex_numbers_are_refused():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0))
        pyro.factor("f", (torch.complex(x, x) * 2j).abs())

    error(UnsupportedOperation, ["complex"], model)


def test_a_cosine_transform_is_refused_with_what_takes_its_place():
    y = torch.randn(6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 2.0).expand([6]).to_event(1))
        pyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=y)

    def product():
        c = pyro.sample("c", dist.Normal(0.0, 2.0).expand([6]).to_event(1))
        pyro.sample("y", dist.Normal(c @ idct(torch.eye(6)), 1.0).to_event(1), obs=y)

    cosine = poutine.reparam(model, config={"x": DiscreteCosineReparam(dim=-1)})
    error(UnsupportedOperation, ["x @ idct(torch.eye(n))", "HaarReparam"], cosine)
    truth = dist.Normal(0.0, math.sqrt(5.0)).log_prob(y).sum()  # the transform is orthonormal
    for instead in (product, poutine.reparam(model, config={"x": HaarReparam(dim=-1)})):
        posterior = fit(instead, infer=BP, progress=False)
        torch.testing.assert_close(posterior.log_evidence, truth)


def test_errors_of_the_program_itself_pass_unchanged():
    def model():
        raise ZeroDivisionError("my own")

    with pytest.raises(ZeroDivisionError, match="my own"):
        trace_graph(model)


def test_the_place_in_the_program_is_named():
    def model():
        pyro.sample("earlier", dist.Normal(0.0, 1.0))
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        if x > 3:
            return

    with pytest.raises(ControlFlowError) as caught:
        trace_graph(model)
    assert 'after statement "x"' in str(caught.value)
    assert "if x > 3:" in str(caught.value)
    assert "test_refused_programs.py" in str(caught.value)


def test_the_statement_whose_density_reads_a_latent_is_named():
    class Branching(dist.Normal):
        def log_prob(self, value):
            return super().log_prob(value) if self.loc > 0 else super().log_prob(-value)

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("culprit", Branching(x, 1.0), obs=torch.tensor(0.5))

    error(ControlFlowError, ['statement "culprit"', '"x"'], model)


def test_a_refusal_leaves_no_mode_or_handler_behind():
    with pytest.raises(ControlFlowError):
        trace_graph(scalar(float))
    assert float(torch.ones(())) == 1.0
    trace = poutine.trace(scalar(lambda x: x)).get_trace()
    assert isinstance(trace.log_prob_sum(), Tensor)
    assert trace_graph(scalar(lambda x: x)).num_nodes == 1


@pytest.mark.parametrize("seed", range(20))
def test_draws_that_give_the_same_number_by_luck_are_found(seed):
    pyro.set_rng_seed(seed)

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        sign = 2.0 if int(torch.randint(0, 2, ())) else 1.0
        pyro.factor("f", sign * x)

    error(RandomDrawError, ['"f"', "pyro.sample"], model)


def test_draws_that_only_start_parameters_are_no_fault():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("f", pyro.param("w", torch.randn(())) * x)

    pyro.clear_param_store()
    trace_graph(model)
    pyro.clear_param_store()


def test_derivatives_inside_the_program_are_refused_by_the_statement_before():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        y = x.clone().requires_grad_()
        pyro.factor("f", torch.autograd.grad(y**3, y)[0])

    error(UnsupportedOperation, ['after statement "x"', "plain operations"], model)


def test_forward_over_reverse_derivatives_are_refused_with_what_to_write():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0))
        pyro.factor("f", torch.func.hessian(lambda v: (v**3).sum())(x).sum())

    error(UnsupportedOperation, ['after statement "x"', "torch.func.jacrev twice"], model)


@pytest.mark.parametrize("latent", ["matrix", "right-hand side"])
def test_least_squares_are_refused_with_what_to_write(latent):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0))
        a, b = torch.arange(1.0, 7.0).view(3, 2).sqrt(), torch.ones(3, 1)
        a, b = (a * x[:, None], b) if latent == "matrix" else (a, x[:, None])
        pyro.factor("f", torch.linalg.lstsq(a, b).solution.sum())

    error(UnsupportedOperation, ['"x"', "torch.linalg.lstsq", "torch.linalg.pinv(A) @ b"], model)


def test_functions_of_functions_are_refused():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("f", torch.cond(x > 0, lambda a: a + 0, lambda a: -a, (x,)))

    error(UnsupportedOperation, ['after statement "x"', "torch.cond"], model)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_data_that_are_no_numbers_are_refused_by_their_place(bad):
    y = torch.tensor([[0.3, 1.0], [bad, 2.0]])

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 2):
            pyro.sample("y", dist.Normal(x, torch.ones(2)).to_event(1), obs=y)

    pyro.enable_validation(False)  # with it, Pyro refuses NaN
    error(NonFiniteDensity, ['"y"', f"{bad} at [1, 0]", "of 4 numbers 1"], model)


@pytest.mark.parametrize("seed", range(8))
def test_masked_data_may_be_anything_where_few_latents_have_mass(seed):
    y = torch.tensor([0.9, math.nan])

    def model():
        z = pyro.sample("z", dist.Categorical(torch.ones(4)))
        with pyro.plate("rows", 2):
            inside = dist.Uniform(0.5 * z, 0.5 * z + 0.5, validate_args=False)
            pyro.sample("y", inside.mask(y.isfinite()), obs=y)

    pyro.set_rng_seed(seed)
    pyro.enable_validation(False)
    graph = trace_graph(model)
    density = [float(graph.log_prob({"z": torch.tensor(k)})) for k in range(4)]
    assert density == pytest.approx([-math.inf, math.log(0.5), -math.inf, -math.inf])


def test_masked_data_may_be_anything():
    y = torch.tensor([0.3, math.inf])

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 2):
            pyro.sample("y", dist.Normal(x, 1.0).mask(y.isfinite()), obs=y)

    graph = trace_graph(model)
    expected = dist.Normal(0.0, 1.0).log_prob(torch.tensor(0.7))
    expected = expected + dist.Normal(0.7, 1.0).log_prob(y[0])
    assert float(graph.log_prob({"x": torch.tensor(0.7)})) == pytest.approx(float(expected))
