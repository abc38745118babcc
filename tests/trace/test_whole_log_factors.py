"""Log factors that are whole numbers or truth values, as labels and comparisons give them."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch.testing import assert_close

import pyrograph as pg

FACTORS = {
    "label": lambda z: z,
    "label in an array": lambda z: z.expand(1),
    "sum of labels": lambda z: z + 2 * z,
    "comparison": lambda z: z == 1,
    "comparison of a float": lambda z: z.double() > 0.5,
    "constant": lambda z: torch.tensor(3),
}


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("factor", FACTORS.values(), ids=FACTORS)
def test_a_whole_log_factor_counts_as_it_does_in_pyro(factor, scale):
    def model():
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))
        with poutine.scale(scale=scale):
            pyro.factor("f", factor(z))

    graph = pg.trace_graph(model)
    for z in torch.arange(3):
        held = poutine.condition(model, {"z": z})
        truth = poutine.trace(held).get_trace().log_prob_sum()
        assert_close(graph.log_prob({"z": z}), truth, check_dtype=False)
    weights = torch.stack([graph.log_prob({"z": z}) for z in torch.arange(3)])
    assert_close(pg.fit(model, infer=pg.BP).marginal("z").probs, weights.softmax(0))
