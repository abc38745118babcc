"""Truth: the tables and Pyro's log density of programs whose sums are written out here."""

import math
from types import SimpleNamespace

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.datasets import DiscreteModel, bayesian_network, read_uai, write_uai
from pyrograph.errors import (
    DataFormatError,
    DataNotFound,
    NonFiniteDensity,
    OptionError,
    UnsupportedFactor,
    UnsupportedSite,
)

INF = math.inf


def log_z(model):
    """Sum over all assignments of the product of the tables."""
    states = torch.cartesian_prod(*(torch.arange(c) for c in model.cardinalities))
    states = states.reshape(-1, model.num_variables)
    total = torch.zeros(len(states), dtype=torch.float64)
    for scope, table in zip(model.scopes, model.log_tables):
        total += table[tuple(states[:, v] for v in scope)]
    return total.logsumexp(0).item()


@pytest.fixture
def written(tmp_path):
    """Trace, write and read back."""

    def written(model, *args, **options):
        graph = pg.trace_graph(model, args, **options)
        write_uai(graph, tmp_path / "net.uai")
        return read_uai(tmp_path / "net.uai")

    return written


def random_model(cards, scopes, evidence=None, zeros=0.2):
    tables = [torch.randn([cards[v] for v in scope]) for scope in scopes]
    tables = [t.masked_fill(torch.rand_like(t) < zeros, -INF) for t in tables]
    return DiscreteModel(cards, tuple(scopes), tuple(tables), evidence or {})


SCOPES = [(1, 0), (0, 2, 3), (3,), (2, 4), (4, 2), (1, 3), ()]


@pytest.mark.parametrize("evidence", [{}, {0: 1, 1: 2}])
def test_a_round_trip_keeps_log_z(written, evidence):
    model = random_model((2, 3, 1, 2, 3), SCOPES, evidence)
    masses = [
        torch.tensor([0.0 if k == state else -INF for k in range(model.cardinalities[v])])
        for v, state in evidence.items()
    ]
    clamped = DiscreteModel(
        model.cardinalities,
        (*model.scopes, *((v,) for v in evidence)),
        (*model.log_tables, *masses),
    )
    assert math.isfinite(log_z(clamped))
    assert_close(log_z(written(model)), log_z(clamped), rtol=0, atol=1e-12)


def test_variables_are_numbered_as_the_nodes_are(tmp_path):
    model = random_model((2, 3, 1, 2, 3), SCOPES)
    graph = pg.trace_graph(model)
    write_uai(graph, tmp_path / "net.uai")
    back = read_uai(tmp_path / "net.uai")
    assert back.cardinalities == tuple(model.cardinalities[model.variable(*n)] for n in graph.nodes)
    scopes = {frozenset(graph.nodes[v] for v in scope) for scope in back.scopes}
    assert scopes >= {frozenset(map(model.node, scope)) for scope in SCOPES if scope}


def test_tables_read_back_as_the_same_doubles(tmp_path):
    graph = pg.trace_graph(random_model((3, 3, 3), [(0, 1), (1, 2)]))
    write_uai(graph, tmp_path / "net.uai")
    (group,), back = graph.factors, read_uai(tmp_path / "net.uai")
    assert torch.equal(torch.stack(back.log_tables), group.table().exp().log())


def mixture(data):
    """Three clusters in a chain, with a Bernoulli beside it whose states are 0. and 1."""
    z = torch.zeros((), dtype=torch.int64)
    move = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4]])
    for k, y in enumerate(data):
        z = pyro.sample(f"z{k}", dist.Categorical(move[z]))
        pyro.sample(f"y{k}", dist.Normal(z.to(y.dtype), 0.5), obs=y)
    flip = pyro.sample("flip", dist.Bernoulli(0.3))
    pyro.sample("seen", dist.Normal(flip, 2.0), obs=data[0])
    pyro.sample("apart", dist.Normal(0.0, 0.01), obs=data[0])


def forward(data):
    """log p(data) of :func:`mixture` by the forward algorithm."""
    move = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4]]).log()
    alpha = move[0]
    for k, y in enumerate(data):
        alpha = alpha + dist.Normal(torch.arange(3.0), 0.5).log_prob(y)
        if k + 1 < len(data):
            alpha = (alpha.unsqueeze(1) + move).logsumexp(0)
    flip = torch.tensor([0.7, 0.3]).log() + dist.Normal(torch.arange(2.0), 2.0).log_prob(data[0])
    apart = dist.Normal(0.0, 0.01).log_prob(data[0])
    return (alpha.logsumexp(0) + flip.logsumexp(0) + apart).item()


@pytest.mark.parametrize("first", [0.0, 0.3, 1.5])
def test_log_z_of_the_file_is_the_log_evidence_of_the_program(written, first):
    """The constant is 3.7, -446 and -11246: too far for one double at the last."""
    data = torch.tensor([first, 1.2, 2.1, -0.3])
    model = written(mixture, data)
    assert_close(log_z(model), forward(data), rtol=1e-12, atol=0)
    assert all(scope for scope in model.scopes)


@pytest.mark.parametrize("entries", [[800.0, -100.0, -INF], [-900.0, -950.0, 100.0], [-1e4] * 3])
def test_tables_beyond_double_precision_are_scaled_and_log_z_stays(written, entries):
    table = torch.tensor(entries)
    model = DiscreteModel((3, 2), ((0,), (0, 1)), (table, torch.randn(3, 2)))
    back = written(model)
    assert_close(log_z(back), log_z(model), rtol=1e-12, atol=0)
    assert all((t > -INF).equal(t.exp() > 0) for t in back.log_tables)
    assert torch.equal(back.log_tables[0] == -INF, table == -INF)


def test_a_table_of_zeros_and_an_impossible_constant_give_z_zero(written):
    zeros = DiscreteModel((2, 2), ((0,), (0, 1)), (torch.full((2,), -INF), torch.zeros(2, 2)))
    assert log_z(written(zeros)) == -INF
    impossible = DiscreteModel((2, 2), ((0,), (1,)), (torch.zeros(2), torch.tensor([0.0, -INF])))
    observed = DiscreteModel(
        impossible.cardinalities, impossible.scopes, impossible.log_tables, {1: 1}
    )
    assert log_z(written(observed)) == -INF


def test_a_factor_whose_values_lie_too_far_apart_is_refused(written):
    table = torch.tensor([0.0, -2000.0])
    with pytest.raises(DataFormatError, match=r'factor "f_2"\[1\] \(scope x_2\[1\]\) has .*-2000'):
        written(DiscreteModel((2, 2), ((0,), (1,)), (torch.zeros(2), table)))


@pytest.mark.parametrize("value", [math.nan, INF])
def test_values_that_are_no_densities_are_refused(tmp_path, value):
    def model(table):
        x = pyro.sample("x", dist.Categorical(torch.ones(2)))
        pyro.factor("bad", table[x])

    pyro.enable_validation(False)
    graph = pg.trace_graph(model, (torch.tensor([0.0, value]),), verify=False)
    with pytest.raises(NonFiniteDensity, match='factor "bad"'):
        write_uai(graph, tmp_path / "net.uai")
    graph = pg.trace_graph(model, (torch.zeros(2),))
    graph.constant = torch.tensor(value)
    with pytest.raises(NonFiniteDensity, match=f"constant is {value}"):
        write_uai(graph, tmp_path / "net.uai")


def test_continuous_and_endless_sites_are_refused_by_name(written):
    def model():
        rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
        pyro.sample("count", dist.Poisson(rate))
        pyro.sample("coin", dist.Bernoulli(0.5))

    with pytest.raises(
        UnsupportedSite, match=r'"rate" \(Gamma\), site "count" \(Poisson\)'
    ) as caught:
        written(model)
    assert "coin" not in str(caught.value)


def test_a_graph_without_nodes_is_refused(written):
    with pytest.raises(OptionError, match="no latent nodes"):
        written(DiscreteModel((2,), ((0,),), (torch.zeros(2),), {0: 1}))


def test_tables_too_large_to_be_spelled_out_are_refused_before_they_are_made(tmp_path):
    """The parity of 60 bits has 2^60 entries."""

    def parity():
        with pyro.plate("bits", 60):
            x = pyro.sample("x", dist.Bernoulli(0.4))
        pyro.factor("even", torch.where(x.sum() % 2 == 0, 0.0, -1.0))

    path = tmp_path / "net.uai"
    with pytest.raises(UnsupportedFactor, match=r'factor "even"\[0\] .*1,152,921,504,606,846,976'):
        write_uai(pg.trace_graph(parity), path)
    assert not path.exists()


def test_what_is_no_graph_is_refused(tmp_path):
    model = random_model((2, 3), [(0, 1)])
    for given, kind in ((model, "DiscreteModel"), (None, "NoneType"), (mixture, "function")):
        with pytest.raises(OptionError, match=rf"not {kind}; .*write_uai\(pg\.trace_graph"):
            write_uai(given, tmp_path / "net.uai")


def test_a_path_that_cannot_be_written_is_refused(tmp_path):
    graph = pg.trace_graph(random_model((2, 3), [(0, 1)]))
    with pytest.raises(OptionError, match="path=None is no path"):
        write_uai(graph, None)
    with pytest.raises(OptionError, match="is a folder; name a file in it"):
        write_uai(graph, tmp_path)
    with pytest.raises(DataNotFound, match=r"no folder '.*absent'.*make it first"):
        write_uai(graph, tmp_path / "absent" / "net.uai")


def test_sites_held_fixed_are_point_masses(written):
    def model():
        with pyro.plate("two", 2):
            z = pyro.sample("z", dist.Bernoulli(0.25))
        pyro.sample("x", dist.Categorical(torch.tensor([[0.9, 0.1], [0.4, 0.6]])[z[1].long()]))

    back = written(model, fixed={"z": torch.tensor([0.0, 1.0])})
    assert back.cardinalities == (2, 2, 2)
    assert_close(log_z(back), math.log(0.75 * 0.25), rtol=0, atol=1e-12)
    assert torch.equal(back.log_tables[back.scopes.index((1,))], torch.tensor([-INF, 0.0]))


def test_only_what_is_named_is_asked_of_a_graph(tmp_path):
    """Any object with sites, nodes, constant and factors can be written, if nothing is fixed."""
    site = SimpleNamespace(enumeration=torch.arange(2), cardinality=2, num_nodes=2)
    group = SimpleNamespace(
        scope=torch.tensor([[0, 1]]), table=lambda: torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]).log()
    )
    graph = SimpleNamespace(
        sites={"a": site}, nodes=(("a", (0,)), ("a", (1,))), fixed={}, constant=0.0, factors=[group]
    )
    write_uai(graph, tmp_path / "net.uai")
    words = (tmp_path / "net.uai").read_text().split()
    assert words[:9] == ["MARKOV", "2", "2", "2", "1", "2", "0", "1", "4"]
    assert [round(float(w), 12) for w in words[9:]] == [1.0, 2.0, 3.0, 4.0]


def test_networks_are_written_with_the_log_evidence_of_their_evidence(written, data_root):
    """p(xray = yes) of asia is 0.11029004, see test_bayesnets."""
    network = bayesian_network("asia")
    for program in (network, network.tabulated):
        args = ({"xray": "yes"},)
        back = written(program, *args) if program is network else written(program(*args))
        assert_close(log_z(back), math.log(0.11029004), rtol=1e-12, atol=0)


@pytest.mark.peers
def test_pgmpy_reads_what_is_written(tmp_path):
    """Entries are kept away from exponents, which its reader does not know."""
    readwrite = pytest.importorskip("pgmpy.readwrite")
    inference = pytest.importorskip("pgmpy.inference")
    cards, scopes = (2, 3, 2, 2), [(1, 0), (0, 2, 3), (3,), (2, 1)]
    tables = [torch.rand([cards[v] for v in scope]).add(0.1).log() for scope in scopes]
    model = DiscreteModel(cards, tuple(scopes), tuple(tables))
    graph = pg.trace_graph(model)
    write_uai(graph, tmp_path / "net.uai")
    theirs = readwrite.UAIReader(str(tmp_path / "net.uai")).get_model()
    assert_close(math.log(theirs.get_partition_function()), log_z(model), rtol=1e-10, atol=0)
    states = torch.cartesian_prod(*map(torch.arange, cards))
    log_p = graph.log_prob(model.values(states)) - log_z(model)
    elimination = inference.VariableElimination(theirs)
    for k, label in enumerate(graph.nodes):
        v = model.variable(*label)
        ours = torch.zeros(cards[v]).index_add_(0, states[:, v], log_p.exp())
        found = elimination.query([f"var_{k}"], show_progress=False).values
        assert_close(ours, torch.as_tensor(found / found.sum()), rtol=1e-10, atol=0)
