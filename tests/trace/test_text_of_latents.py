"""Text of a latent may be printed; where it chooses something, the program is refused."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.errors import ControlFlowError

OBSERVED = torch.tensor(3.0, dtype=torch.float64)


def rare():
    return dist.Bernoulli(torch.tensor(0.1).double())


def looked_up():
    z = pyro.sample("z", rare())
    return {"0": 0.0, "1": 3.0}[f"{z:.0f}"]


def looked_up_or_else():
    z = pyro.sample("z", rare())
    return {"1": 3.0}.get(f"{z:.0f}", 0.0)


def only_one_of_three_states_differs():
    z = pyro.sample("z", dist.Categorical(torch.tensor([0.98, 0.01, 0.01]).double()))
    return {"0": 0.0, "1": 0.0, "2": 3.0}[str(z)[7]]  # tensor(2)


def compared():
    z = pyro.sample("z", rare())
    return 3.0 if repr(z).startswith("tensor(1") else 0.0


def a_count():
    z = pyro.sample("z", dist.Poisson(torch.tensor(0.01).double()))
    return 0.0 if f"{z:.0f}" == "0" else 3.0


def a_parameter():
    z = pyro.sample("z", rare())
    start = torch.tensor(3.0 * len(pyro.get_param_store())).double()
    return pyro.param(f"mean_{z:.0f}", start)


def a_continuous_one():
    z = pyro.sample("z", dist.Normal(torch.tensor(0.0).double(), 0.7))
    return 0.0 if f"{z:.0f}".endswith("0") else 3.0


CHOOSING = (
    looked_up,
    looked_up_or_else,
    only_one_of_three_states_differs,
    compared,
    a_count,
    a_parameter,
    a_continuous_one,
)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("mean", CHOOSING, ids=lambda f: f.__name__)
def test_text_that_chooses_a_mean_is_refused_by_site(mean, seed):
    def model():
        pyro.sample("y", dist.Normal(torch.as_tensor(mean()).double(), 1.0), obs=OBSERVED)

    pyro.set_rng_seed(seed)
    pyro.clear_param_store()
    with pytest.raises(ControlFlowError, match=r'text: latent site "z".*torch\.where'):
        pg.trace_graph(model)
    pyro.clear_param_store()


def test_a_key_that_some_states_do_not_have_is_refused_as_text():
    def model():
        z = pyro.sample("z", dist.Bernoulli(torch.tensor(1e-6).double()))
        pyro.sample("y", dist.Normal({"0": 0.0}[f"{z:.0f}"], 1.0), obs=OBSERVED)

    with pytest.raises(ControlFlowError, match=r'KeyError.*latent site "z"'):
        pg.trace_graph(model)


def test_a_program_that_prints_and_makes_no_sense_in_a_rare_state_is_read():
    def model():
        z = pyro.sample("z", dist.Categorical(torch.tensor([1 - 1e-4, 1e-4]).double()))
        print(z)
        pyro.sample("y", dist.Normal(torch.zeros(1).double()[z], 1.0), obs=OBSERVED)

    assert pg.trace_graph(model).num_nodes == 1


def test_a_count_whose_bound_is_a_latent_may_be_printed():
    def model():
        n = pyro.sample("n", dist.Poisson(torch.tensor(2.0).double()))
        k = pyro.sample("k", dist.Binomial(n, torch.tensor(0.5).double()))
        print(n, k)
        pyro.sample("y", dist.Normal(k, 1.0), obs=OBSERVED)

    for seed in range(5):
        pyro.set_rng_seed(seed)
        assert pg.trace_graph(model).num_nodes == 2


def test_text_that_goes_nowhere_is_left_alone(capsys):
    """Truth: both states and the Gaussian by hand."""

    def model():
        z = pyro.sample("z", rare())
        print(z, f"{z:.2f}", [z])
        label = f"state {z}"
        assert label
        pyro.sample("y", dist.Normal(3 * z, 1.0), obs=OBSERVED)

    graph = pg.trace_graph(model)
    assert capsys.readouterr().out.count("\n") == 2  # of the two runs, not of the check's
    found = graph.log_prob({"z": torch.tensor([0.0, 1.0]).double()})
    normal = -math.log(2 * math.pi) / 2
    expected = [math.log(0.9) + normal - 4.5, math.log(0.1) + normal]
    torch.testing.assert_close(found, torch.tensor(expected).double())
