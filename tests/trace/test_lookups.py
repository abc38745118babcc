"""Look-ups by a latent index: entries from the end, indices beyond the table, single indices."""

import itertools

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import pyrograph as pg
from pyrograph.errors import InvalidProgram
from pyrograph.trace.rules.lookups import replay_pool

TABLE = torch.tensor([[1.5, -0.5], [0.25, 2.0], [-1.0, 0.75]], dtype=torch.float64)


def states_of(table):
    """A model whose single site looks a mean up, and its density by hand."""

    def model(shift):
        z = pyro.sample("z", dist.Categorical(torch.ones(3).double()))
        pyro.sample("y", dist.Normal(table[z + shift], 1.0), obs=torch.zeros(()).double())

    return model


@pytest.mark.parametrize("shift", [-3, -2, -1, 0])
def test_positions_below_zero_count_from_the_end(shift):
    table = TABLE[:, 0]
    graph = pg.trace_graph(states_of(table), (shift,))
    found = graph.log_prob({"z": torch.arange(3)})
    entries = torch.tensor([table.tolist()[k + shift] for k in range(3)]).double()
    expected = dist.Normal(0.0, 1.0).log_prob(entries) - torch.tensor(3.0).double().log()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shift", [0, -3])
@pytest.mark.parametrize("is_latent", [False, True], ids=["constant table", "latent table"])
def test_an_index_beyond_its_table_is_refused(shift, is_latent):
    def model(z):
        table = torch.tensor([0.5, -1.0]).double()
        if is_latent:
            table = table * pyro.sample("scale", dist.Normal(torch.zeros(2).double(), 1.0))
        with pyro.plate("rows", 4):
            z = pyro.sample("z", dist.Categorical(torch.ones(3).double()), obs=z)
            pyro.sample("y", dist.Normal(table[z + shift], 1.0), obs=torch.zeros(4).double())

    inside = torch.ones(4, dtype=torch.int64)
    with pytest.raises(IndexError):
        model(inside + 1 if shift == 0 else inside - 1)
    # only states 0 and 1, or 1 and 2, have an entry; draws of the others fail in Pyro too
    for seed in range(200):
        pyro.set_rng_seed(seed)
        try:
            graph = pg.trace_graph(model, (None,), verify=False)
            break
        except IndexError:
            pass
    outside = {"z": torch.tensor([1, 1, 2 if shift == 0 else 0, 1])}
    within = {"z": torch.tensor([1, 1, 0 if shift == 0 else 2, 1])}
    if is_latent:
        outside["scale"] = within["scale"] = torch.ones(2).double()
    assert graph.log_prob(within).isfinite()
    with pytest.raises(InvalidProgram, match="table of 2 entries"):
        graph.log_prob(outside)


def test_every_state_of_a_site_must_have_an_entry_when_tables_are_made():
    def model():
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.5, 0.499, 0.001]).double()))
        table = torch.tensor([0.5, -1.0]).double()
        pyro.sample("y", dist.Normal(table[z], 1.0), obs=torch.zeros(()).double())

    pyro.set_rng_seed(0)
    with pytest.raises(InvalidProgram, match="value 2 in a table of 2 entries"):
        pg.fit(model, infer=pg.BP, progress=False)


SINGLE = {
    "embedding": lambda table, z: F.embedding(z, table),
    "take": lambda table, z: table.take(z),
    "index_select": lambda table, z: table.index_select(0, z),
    "index_select of columns": lambda table, z: table.t().index_select(-1, z),
    "item": lambda table, z: table[z],
}


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("is_latent", [False, True], ids=["constant table", "latent table"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_single_latent_looks_up_as_in_pytorch(name, is_latent, dtype):
    if name == "take" and dtype is torch.int32:
        pytest.skip("PyTorch takes by int64 only")
    look_up = SINGLE[name]

    def energy(z, a):
        return -torch.cosh(look_up(TABLE * a if is_latent else TABLE + 0.0, z.to(dtype)) + a)

    def model():
        z = pyro.sample("z", dist.Categorical(torch.ones(3).double()))
        a = pyro.sample("a", dist.Normal(torch.zeros(()).double(), 1.0))
        pyro.factor("f", energy(z, a).sum())

    graph = pg.trace_graph(model)
    a = torch.tensor([0.3, -1.2, 0.7]).double()
    found = graph.log_prob({"z": torch.arange(3), "a": a})
    expected = dist.Normal(0.0, 1.0).log_prob(a) - torch.tensor(3.0).double().log()
    expected = expected + torch.stack([energy(torch.tensor(k), a[k]).sum() for k in range(3)])
    torch.testing.assert_close(found, expected)


def test_a_graph_with_look_ups_maps_over_points():
    graph = pg.trace_graph(states_of(TABLE[:, 0]), (0,))
    found = torch.vmap(lambda z: graph.log_prob({"z": z}))(torch.arange(3))
    torch.testing.assert_close(found, graph.log_prob({"z": torch.arange(3)}))


class Reads(TorchDispatchMode):
    """Counts how often the ends of a tensor are found."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.aminmax.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("is_inference", [False, True])
def test_an_index_is_read_once_for_all_its_tables(is_inference):
    def energy(x):
        k = x.detach().floor().long()  # -2 to 1
        return x * (TABLE[:, 0][k] + TABLE[:2, 1][k] + TABLE[1:, 0][k])

    def model():
        x = pyro.sample("x", dist.Uniform(torch.tensor(-2.0).double(), 2.0))
        pyro.factor("f", energy(x))

    graph = pg.trace_graph(model)
    x = torch.tensor([0.25, 1.5, -1.5, -0.75]).double()
    with torch.inference_mode(is_inference), Reads() as reads:
        found = graph.log_prob({"x": x})
    torch.testing.assert_close(found, energy(x) - torch.tensor(4.0).double().log())
    # what is made in inference mode has no version by which a change could be told
    assert reads.count == 1 or is_inference


def test_an_index_that_has_changed_in_place_is_read_again():
    graph = pg.trace_graph(states_of(TABLE[:, 0]), (0,))
    group = next(group for group in graph.factors if group.name == "y")
    z = torch.zeros(1, 1, dtype=torch.int64)
    before = group.log_prob([z])
    z.fill_(2)
    expected = dist.Normal(0.0, 1.0).log_prob(TABLE[2, 0])
    torch.testing.assert_close(group.log_prob([z]).view(()), expected)
    assert not torch.equal(group.log_prob([z]), before)
    z.fill_(3)
    with pytest.raises(InvalidProgram, match="takes the value 3"):
        group.log_prob([z])


# ---------------------------------------------------------------------- written to by a label
WEIGHTS = torch.tensor([[1.0, -0.5, 0.3], [0.2, 0.9, -1.0]])


def one_hot(x):
    return torch.zeros(2, 3).scatter_(-1, x.unsqueeze(-1), 1.0)


def scattered_numbers(x):
    return torch.ones(2, 3).scatter(1, x.unsqueeze(-1), torch.tensor([[2.0], [3.0]]))


def columns(x):
    return torch.zeros(3, 2).scatter(0, x.unsqueeze(0), 1.0).mT


def two_of_a_row(x):
    return torch.zeros(1, 3).scatter(1, x.unsqueeze(0), 1.0).expand(2, -1)


@pytest.mark.parametrize("code", [one_hot, scattered_numbers, columns, two_of_a_row])
def test_places_that_labels_write_to_are_read(code):
    def model():
        with pyro.plate("rows", 2):
            x = pyro.sample("x", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))
        pyro.factor("of codes", (WEIGHTS * code(x)).sum())

    q = pg.fit(model, infer=pg.BP, progress=False)
    logs = []
    for states in itertools.product(range(3), repeat=2):
        given = pyro.condition(model, {"x": torch.tensor(states)})
        logs.append(pyro.poutine.trace(given).get_trace().log_prob_sum())
    torch.testing.assert_close(q.log_evidence, torch.stack(logs).logsumexp(0))


def test_rows_that_a_label_does_not_cover_are_refused():
    def model():
        x = pyro.sample("x", dist.Categorical(torch.ones(3)))
        pyro.factor("f", torch.zeros(2, 3).scatter(1, x.view(1, 1), 1.0).sum())

    with pytest.raises(pg.errors.UnsupportedOperation, match="writes to a position"):
        pg.trace_graph(model)


def test_an_index_that_changes_in_place_is_looked_up_where_it_is_now():
    index = torch.tensor([0, 2])
    assert replay_pool(None, ((3, 1),), [torch.arange(3.0), 0, index]).tolist() == [0, 2]
    index.sub_(1)
    assert replay_pool(None, ((3, 1),), [torch.arange(3.0), 0, index]).tolist() == [2, 1]
    index.add_(2)
    with pytest.raises(InvalidProgram, match="takes the value 3 in a table of 3 entries"):
        replay_pool(None, ((3, 1),), [torch.arange(3.0), 0, index])
