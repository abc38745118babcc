"""A refusal that the program catches is still one: what follows is not what Pyro computes."""

import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.errors import ControlFlowError, LatentShapeError, UnsupportedOperation


def by_branch(x):
    try:
        return 1.0 if x[0] > 0 else 2.0
    except Exception:
        return 2.0


def by_list(x):
    try:
        return 1.0 if x.tolist()[0] > 0 else 2.0
    except RuntimeError:
        return 2.0


def by_pickle(x):
    try:
        return 1.0 if pickle.loads(pickle.dumps(x))[0] > 0 else 2.0
    except RuntimeError:
        return 2.0


def by_shape(x):
    try:
        return 1.0 if len(x[x > 0]) == 2 else 2.0
    except RuntimeError:
        return 2.0


def by_position(x):
    buffer = torch.zeros(2)
    try:
        buffer[x[0].long().clamp(0, 1)] = 1.0
        return buffer[1]
    except RuntimeError:
        return 0.0


def into_another_error(x):
    try:
        return 1.0 if x[0] > 0 else 2.0
    except RuntimeError:
        raise ValueError("no sign") from None


CATCHING = {
    by_branch: ControlFlowError,
    by_list: ControlFlowError,
    by_pickle: ControlFlowError,
    by_shape: LatentShapeError,
    by_position: UnsupportedOperation,
    into_another_error: ControlFlowError,
}


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mean", CATCHING, ids=lambda f: f.__name__)
def test_a_refusal_that_the_program_catches_is_raised(mean, seed, verify):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(mean(x), 1.0), obs=torch.tensor(1.0))

    pyro.set_rng_seed(seed)
    with pytest.raises(CATCHING[mean], match='"x"'):
        pg.trace_graph(model, verify=verify)


def test_errors_that_are_no_refusals_may_be_caught():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        try:
            mean = x.reshape(3).sum()
        except RuntimeError:
            mean = x.sum()
        pyro.sample("y", dist.Normal(mean, 1.0), obs=torch.tensor(1.0))

    graph = pg.trace_graph(model)
    normal = dist.Normal(torch.tensor(0.0), 1.0).log_prob
    expected = normal(torch.tensor([0.25, -1.0])).sum() + normal(torch.tensor(1.75))
    torch.testing.assert_close(graph.log_prob({"x": torch.tensor([0.25, -1.0])}), expected)


# ---------------------------------------------------------------------- what a refusal says
@pytest.mark.parametrize("count", [1, 4])
def test_a_refusal_by_a_density_taken_at_the_end_names_its_statement(count):
    """Densities of small statements wait until the program has run; its lines are over then."""

    def model():
        x = pyro.sample("sparse", dist.Poisson(torch.ones(count), is_sparse=True))
        a = pyro.sample("fine", dist.Normal(0.0, 1.0))
        pyro.sample("last", dist.Normal(a + x.sum(), 1.0), obs=torch.tensor(1.0))

    with pytest.raises(LatentShapeError, match=r'^statement "sparse": the shape'):
        pg.trace_graph(model)


def coordinates(x):
    return torch.sparse_coo_tensor(torch.tensor([[0, 0, 1], [1, 2, 2]]), x, (2, 3))


@pytest.mark.parametrize("make", [coordinates, lambda x: x.view(1, 3).to_sparse()])
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_sparse_tensor_of_latents_is_refused_as_such(make):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0))
        pyro.factor("f", torch.sparse.mm(make(x), torch.ones(3, 1)).sum())

    with pytest.raises(UnsupportedOperation, match=r'sparse tensor of latent site "x".*index_add'):
        pg.trace_graph(model)


@pytest.mark.parametrize("lengths", [((4,), (2,)), (torch.tensor([4]), torch.tensor([2]))])
def test_a_loss_over_alignments_is_refused_as_such(lengths):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(4, 1, 3), 1.0))
        loss = torch.nn.functional.ctc_loss(x.log_softmax(-1), torch.tensor([[1, 2]]), *lengths)
        pyro.factor("f", -loss)

    with pytest.raises(UnsupportedOperation, match=r'ctc_loss of latent site "x".*logsumexp'):
        pg.trace_graph(model)
