"""Constants as programs may write them: by keyword, sparse in a list, of inference mode."""

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import ControlFlowError

BUILDERS = {
    "tensor": lambda x, numbers: torch.tensor(data=numbers),
    "as_tensor": lambda x, numbers: torch.as_tensor(data=numbers),
    "asarray": lambda x, numbers: torch.asarray(obj=numbers),
    "new_tensor": lambda x, numbers: x.new_tensor(data=numbers),
}


def normal(x, mean):
    return dist.Normal(mean, 1.0).log_prob(x).sum(-1)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_list_of_numbers_may_be_given_by_keyword(name):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        mean = x * BUILDERS[name](x, [1.0, 2.0, -3.0])
        pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=torch.ones(3))

    x = torch.randn(4, 3)
    truth = normal(x, 0.0) + normal(torch.ones(3), x * torch.tensor([1.0, 2.0, -3.0]))
    assert_close(pg.trace_graph(model).log_prob({"x": x}), truth)


@pytest.mark.parametrize("name", BUILDERS)
def test_latents_in_a_list_given_by_keyword_are_refused(name):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.factor("f", BUILDERS[name](x, [1.0, [x[1]]][1:]).sum())

    with pytest.raises(ControlFlowError, match=r'latent site "x" is read in Python'):
        pg.trace_graph(model)


@pytest.mark.parametrize("given", [{"num_classes": 3}, {}])
def test_states_may_be_given_to_one_hot_by_keyword(given):
    weights = torch.tensor([0.5, -1.0, 2.0])

    def model():
        z = pyro.sample("z", dist.Categorical(torch.ones(3)))
        pyro.factor("f", (F.one_hot(input=z, **given) * weights).sum())

    if not given:
        with pytest.raises(ControlFlowError, match="one_hot without num_classes"):
            pg.trace_graph(model)
        return
    found = pg.trace_graph(model).log_prob({"z": torch.arange(3)})
    assert_close(found, weights - torch.tensor(3.0).log())


def test_sparse_constants_may_be_joined():
    matrix = torch.tensor([[1.0, 0.0, 2.0], [0.0, -1.0, 0.0]])

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        mean = torch.mv(torch.cat([matrix.to_sparse(), 2 * matrix.to_sparse()]), x)
        with pyro.plate("rows", 4):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=torch.ones(4))

    x = torch.randn(5, 3)
    mean = torch.cat([x @ matrix.T, 2 * x @ matrix.T], 1)
    assert_close(
        pg.trace_graph(model).log_prob({"x": x}), normal(x, 0.0) + normal(torch.ones(4), mean)
    )


@pytest.mark.parametrize("inside", [False, True])
def test_a_table_made_in_inference_mode_is_looked_up_as_it_is_at_the_time(inside):
    """Such a tensor counts no writes: between two look-ups it may have other entries."""
    with torch.inference_mode():
        first = torch.tensor([0.5, -1.0, 2.0])
        second = torch.tensor([3.0, 0.25, -0.5])

    def model():
        z = pyro.sample("z", dist.Categorical(torch.ones(3)))
        with torch.inference_mode():
            table = first.clone()
        total = 2 * table[z]
        with torch.inference_mode():
            table.copy_(second)
        pyro.factor("f", total + 10 * table[z])

    with torch.inference_mode(inside):
        found = pg.trace_graph(model).log_prob({"z": torch.arange(3)})
    assert_close(found, 2 * first + 10 * second - torch.tensor(3.0).log())


def test_a_layer_that_leaves_nothing_out_is_no_random_draw_in_inference_mode():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.factor("f", F.dropout(x, 0.5, training=False).square().sum())

    x = torch.randn(4, 3)
    with torch.inference_mode():
        found = pg.trace_graph(model).log_prob({"x": x})
    assert_close(found, normal(x, 0.0) + x.square().sum(1))
