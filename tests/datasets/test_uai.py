"""Truth: numpy over an own, shorter parser of well-formed files; the competition's solutions."""

import copy
import csv
import itertools
import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.datasets import DiscreteModel, read_uai, uai_reference
from pyrograph.errors import (
    DataFormatError,
    DataNotFound,
    InferenceError,
    OptionError,
    ShapeMismatch,
)

INSTANCES = [
    *("Alchemy_11", "CSP_12", "DBN_11", "Grids_11", "Grids_13", "Grids_15", "Pedigree_11"),
    *("ObjectDetection_28", "ObjectDetection_34", "Promedus_22", "Promedus_24", "Promedus_30"),
    *("Segmentation_11", "Segmentation_12", "Segmentation_13", "linkage_16"),
]

# Unequal numbers of states, one of them 1; a table without variables; a zero.
SMALL = """MARKOV
4
2 3 1 2
4
2 1 0
3 0 2 3
1 3
0

6
 0.5 1e-1 2
 0 1.5 4

4
 1 2 3 4

2 0.25 8.0
1
0.5
"""


def parse(text):
    """Cardinalities, scopes and numpy tables of a file that is well formed."""
    words = iter(text.split()[1:])
    cards = [int(next(words)) for _ in range(int(next(words)))]
    number_of_tables = int(next(words))
    scopes = [[int(next(words)) for _ in range(int(next(words)))] for _ in range(number_of_tables)]
    tables = [np.array([float(next(words)) for _ in range(int(next(words)))]) for _ in scopes]
    return cards, scopes, [t.reshape([cards[v] for v in s]) for s, t in zip(scopes, tables)]


def log_product(scopes, tables, states):
    """Of every row of ``states`` the log of the product of all tables."""
    with np.errstate(divide="ignore"):
        return sum(np.log(t[tuple(states[:, v] for v in s)]) for s, t in zip(scopes, tables))


def all_states(cards, evidence=()):
    evidence = dict(evidence)
    ranges = [[evidence[v]] if v in evidence else range(c) for v, c in enumerate(cards)]
    return np.array(list(itertools.product(*ranges)))


def log_z_by_elimination(graph):
    """Sum out the nodes of a graph one after the other, always one with the smallest table."""
    factors = [
        (tuple(scope), table.numpy())
        for group in graph.factors
        for scope, table in zip(group.scope.tolist(), group.table())
    ]
    total, left = float(graph.constant), set(range(graph.num_nodes))
    while left:
        reach = {v: {v} for v in left}
        for scope, _ in factors:
            for v in scope:
                reach[v].update(scope)
        v = min(left, key=lambda v: len(reach[v]))
        left.remove(v)
        axes = [v, *sorted(reach[v] - {v})]
        joint = np.zeros((1,) * len(axes))
        for scope, table in [f for f in factors if v in f[0]]:
            order = sorted(range(len(scope)), key=lambda k: axes.index(scope[k]))
            shape = [1] * len(axes)
            for u, c in zip(scope, table.shape):
                shape[axes.index(u)] = c
            joint = joint + table.transpose(order).reshape(shape)
        factors = [f for f in factors if v not in f[0]]
        summed = np.logaddexp.reduce(joint, axis=0)
        if len(axes) == 1:
            total += float(summed)
        else:
            factors.append((tuple(axes[1:]), summed))
    return total


@st.composite
def files(draw):
    """The text of a random small model, and evidence on some of its variables."""
    cards = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    variables = st.sampled_from(range(len(cards)))
    scopes = draw(st.lists(st.lists(variables, unique=True, max_size=3), max_size=6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lines = [draw(st.sampled_from(["MARKOV", "BAYES"])), len(cards), *cards, len(scopes)]
    for scope in scopes:
        lines += [len(scope), *scope]
    for scope in scopes:
        count = math.prod(cards[v] for v in scope)
        table = rng.gamma(0.5, size=count) * (rng.random(count) > 0.1)
        lines += [count, *map(repr, table.tolist())]
    observed = draw(st.lists(variables, unique=True, max_size=len(cards) - 1))
    evidence = {v: draw(st.integers(0, cards[v] - 1)) for v in observed}
    return "\n".join(map(str, lines)), evidence


@pytest.fixture
def write(tmp_path):
    def write(text, name="net.uai"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@settings(max_examples=40)
@given(files())
def test_the_program_has_the_density_of_the_file(tmp_path_factory, file):
    text, evidence = file
    path = tmp_path_factory.mktemp("uai") / "net.uai"
    path.write_text(text)
    model = read_uai(path, evidence)
    graph = pg.trace_graph(model)
    cards, scopes, tables = parse(text)
    states = all_states(cards, evidence)
    expected = log_product(scopes, tables, states) + np.zeros(len(states))
    values = model.values(torch.tensor(states))
    assert_close(graph.log_prob(values), torch.tensor(expected), rtol=1e-12, atol=1e-12)
    assert_close(graph.sum_of_factors(values), torch.tensor(expected), rtol=1e-12, atol=1e-12)
    assert torch.equal(model.states(values), torch.tensor(states))


def test_zeros_scopes_in_any_order_and_tables_without_variables(write):
    graph = pg.trace_graph(model := read_uai(write(SMALL)))
    assert model.cardinalities == (2, 3, 1, 2)
    assert model.scopes == ((1, 0), (0, 2, 3), (3,), ())
    assert_close(graph.constant.item(), math.log(0.5))
    for state, product in [(0, 0.1 * 3 * 0.25 * 0.5), (1, 0.0), (2, 4 * 3 * 0.25 * 0.5)]:
        # variables 0 and 3 have two states, variable 1 has three
        point = {"x_1": [0], "x_2": [1, 0], "x_3": [state]}
        found = graph.log_prob({site: torch.tensor(value) for site, value in point.items()})
        assert_close(found.exp().item(), product)


def test_variables_are_nodes_and_nodes_variables(write):
    model = read_uai(write(SMALL), {0: 1})
    graph = pg.trace_graph(model)
    assert [model.node(v) for v in (1, 2, 3)] == [("x_3", (0,)), ("x_1", (0,)), ("x_2", (0,))]
    assert sorted(model.variable(*label) for label in graph.nodes) == [1, 2, 3]
    assert all(model.node(model.variable(*label)) == label for label in graph.nodes)
    with pytest.raises(OptionError, match="variable 0 is observed in state 1"):
        model.node(0)
    with pytest.raises(OptionError, match=r"no variable 4; variables are 0 \.\. 3"):
        model.node(4)
    for label in [("x_2", (1,)), ("x_2", ()), ("x_4", (0,))]:
        with pytest.raises(OptionError, match=r"x_1\[1\], x_2\[1\], x_3\[1\]"):
            model.variable(*label)
    with pytest.raises(ShapeMismatch, match=r"\[\*, 4\]"):
        model.values(torch.zeros(3, dtype=torch.int64))


def test_marginals_come_in_the_order_of_the_file_with_point_masses(write):
    evidence = {1: 0}
    model = read_uai(write(SMALL), evidence)
    cards, scopes, tables = parse(SMALL)
    states = all_states(cards, evidence)
    weight = np.exp(log_product(scopes, tables, states))
    exact = [
        torch.tensor([weight[states[:, v] == k].sum() / weight.sum() for k in range(c)])
        for v, c in enumerate(cards)
    ]

    def marginal(site):
        return SimpleNamespace(probs=torch.stack([exact[v] for v in model.sites[site].tolist()]))

    found = model.marginals(SimpleNamespace(marginal=marginal))
    assert_close(found, exact)
    assert_close(found[1], torch.tensor([1.0, 0.0, 0.0]))


def test_a_thousand_tables_of_a_shape_are_one_statement_and_like_tables_one_group():
    edges = [(k, k + 1) for k in range(1000)]
    tables = torch.rand(1000, 2, 2)
    graph = pg.trace_graph(DiscreteModel((2,) * 1001, tuple(edges), tuple(tables)))
    (group,) = graph.factors
    assert group.statements == ("f_2_2",)
    assert group.scope.tolist() == [list(edge) for edge in edges]
    assert torch.equal(group.table(), tables)
    assert (graph.num_nodes, float(graph.constant)) == (1001, 0.0)


def test_a_table_of_sixteen_variables_is_one_factor():
    table = torch.randn((2,) * 16)
    graph = pg.trace_graph(DiscreteModel((2,) * 16, (tuple(range(15, -1, -1)),), (table,)))
    assert torch.equal(graph.factors[0].table()[0], table.permute(*range(15, -1, -1)))


def test_tables_are_float64_under_a_float32_default(write):
    torch.set_default_dtype(torch.float32)
    graph = pg.trace_graph(read_uai(write(SMALL)))
    assert {group.table().dtype for group in graph.factors} == {torch.float64}
    assert graph.constant.dtype == torch.float64


def test_everything_observed_leaves_a_constant(write):
    graph = pg.trace_graph(read_uai(write(SMALL), {0: 1, 1: 2, 2: 0, 3: 1}))
    assert graph.num_nodes == 0
    assert_close(graph.constant.item(), math.log(4 * 4 * 8 * 0.5))


def test_where_everything_is_observed_engines_say_what_the_evidence_is(write):
    model = read_uai(write(SMALL), {0: 1, 1: 2, 2: 0, 3: 1})
    with pytest.raises(InferenceError, match=r"trace_graph\(model, ...\).log_prob\({}\)"):
        pg.fit(model, infer=pg.BP, progress=False)
    log_z = pg.trace_graph(model).log_prob({})
    assert_close(float(log_z), math.log(4 * 4 * 8 * 0.5))


def test_a_model_without_tables_counts_its_assignments(write):
    graph = pg.trace_graph(read_uai(write("MARKOV 2 2 3 0")))
    assert (graph.num_nodes, graph.num_factors, float(graph.constant)) == (2, 0, 0.0)


@pytest.mark.parametrize("text", ["2 1 2 3 0", "1\n2 1 2 3 0", "2 3 0 1 2"])
def test_evidence_beside_the_model_is_taken_unless_other_is_given(write, text):
    path = write(SMALL)
    write(text, "net.uai.evid")
    assert read_uai(path).evidence == {1: 2, 3: 0}
    assert read_uai(str(path)).evidence == {1: 2, 3: 0}
    assert read_uai(path, {}).evidence == {}
    assert read_uai(path, {0: 1}).evidence == {0: 1}
    assert read_uai(path, write("1 0 1", "other")).evidence == {0: 1}


def test_comments_of_other_tools_are_passed_over(write):
    commented = SMALL.replace("MARKOV", "# of a tool\nMARKOV # a field")
    assert read_uai(write(commented)).scopes == read_uai(write(SMALL)).scopes


@pytest.mark.parametrize(
    "old, new, line, message",
    [
        ("MARKOV", "MARKOFF", 1, '"MARKOFF" instead of MARKOV or BAYES'),
        ("2 3 1 2\n4", "2 3 0 2\n4", 3, 'states of variable 2 is "0"'),
        ("2 3 1 2\n4", "2 3 x 2\n4", 3, 'states of variable 2 is "x"'),
        ("2 3 1 2\n4", "2 3 " + "9" * 5000 + " 2\n4", 3, 'states of variable 2 is "9+", no whole'),
        ("2 1 0\n", "2 4 0\n", 5, r"scope 0 has variable 4 of 0 \.\. 3"),
        ("2 1 0\n", "2 1 1\n", 5, "scope 0 has variable 1 twice"),
        ("2 1 0\n", "2 1 -1\n", 5, 'a variable of scope 0 is "-1"'),
        ("\n6\n", "\n5\n", 10, r"table 0 has 5 entries, but its variables have 3 \* 2 states"),
        ("1e-1", "1e--1", 11, '"1e--1" in table 0 is no number'),
        ("1e-1", "1_0", 11, '"1_0" is no number and no word of the format'),
        ("1.5 4", "1.5 -4", 12, "table 0 has the entry -4"),
        ("1.5 4", "1.5 nan", 12, "table 0 has the entry nan"),
        ("1.5 4", "1.5 inf", 12, "table 0 has the entry inf"),
        ("1\n0.5\n", "1\n0.5\n\n7 8\n", 21, "should end here, but 2 more words follow"),
        ("1\n0.5\n", "1\n", 18, "ends after 0 of the 1 entries of table 3"),
        ("1\n0.5\n", "\n", 17, "ends where the number of entries of table 3 should"),
        (SMALL, "", 1, "ends where the word MARKOV or BAYES should"),
    ],
)
def test_what_is_wrong_with_a_model_is_said_with_its_line(write, old, new, line, message):
    assert SMALL.count(old) == 1
    with pytest.raises(DataFormatError, match=message) as caught:
        read_uai(write(SMALL.replace(old, new)))
    assert str(caught.value).startswith(f"net.uai:{line}: ")


@pytest.mark.parametrize(
    "text, line, message",
    [
        ("", 1, "ends where the number of observed variables"),
        ("1\n4 0", 2, "variable 4 is not in the model"),
        ("2 1 0\n1 2", 2, "variable 1 is observed twice"),
        ("9" * 5000, 1, 'the number of observed variables is "9+", no whole number'),
        ("1 1 3", 1, "variable 1 is observed in state 3, but has 3 states"),
        ("2 1 0", 1, "ends where an observed variable"),
        ("0\n1", 2, "should end here"),
        ("2\n1 1 0\n1 1 1", 3, "should end here, but 2 more words follow"),
    ],
)
def test_what_is_wrong_with_evidence_is_said_with_its_line(write, text, line, message):
    write(text, "net.uai.evid")
    with pytest.raises(DataFormatError, match=message) as caught:
        read_uai(write(SMALL))
    assert str(caught.value).startswith(f"net.uai.evid:{line}: ")


def test_tables_and_evidence_handed_in_are_checked():
    table = torch.zeros(2, 3)
    with pytest.raises(OptionError, match=r"into state 3; its states are 0 \.\. 2"):
        DiscreteModel((2, 3), ((0, 1),), (table,), {1: 3})
    with pytest.raises(OptionError, match=r"about variable 2; variables are 0 \.\. 1"):
        DiscreteModel((2, 3), ((0, 1),), (table,), {2: 0})
    with pytest.raises(OptionError, match=r"table 0 has scope \(0, 2\)"):
        DiscreteModel((2, 3), ((0, 2),), (table,))
    with pytest.raises(OptionError, match=r"table 0 has scope \(0, 0\)"):
        DiscreteModel((2, 3), ((0, 0),), (table,))
    with pytest.raises(ShapeMismatch, match=r"shape \(2, 3\).*\(1, 0\) have \(3, 2\) states"):
        DiscreteModel((2, 3), ((1, 0),), (table,))
    with pytest.raises(ShapeMismatch, match="2 scopes and 1 tables"):
        DiscreteModel((2, 3), ((0, 1), (0,)), (table,))


@pytest.mark.parametrize(
    "cardinalities, scopes, tables, evidence, message",
    [
        ((0,), (), (), {}, "variable 0 has cardinality 0;"),
        ((2, -1), (), (), {}, "variable 1 has cardinality -1;"),
        (("2",), (), (), {}, "variable 0 has cardinality '2';"),
        ((2.0,), (), (), {}, r"variable 0 has cardinality 2\.0;"),
        ((True,), (), (), {}, "variable 0 has cardinality True;"),
        (3, (), (), {}, "cardinalities=3 is no sequence"),
        ((2, 2), ((0.5, 1),), (torch.zeros(2, 2),), {}, r"table 0 has scope \(0\.5, 1\)"),
        ((2, 2), (("0", 1),), (torch.zeros(2, 2),), {}, r"table 0 has scope \('0', 1\)"),
        ((2, 2), ((False, 1),), (torch.zeros(2, 2),), {}, r"table 0 has scope \(False, 1\)"),
        ((2, 2), (0,), (torch.zeros(2),), {}, "the scope of table 0=0 is no sequence"),
        ((2, 2), 0, (torch.zeros(2),), {}, "scopes=0 is no sequence"),
        ((2, 2), ((0,),), 1.5, {}, r"log_tables=1\.5 is no sequence"),
        ((2, 2), ((0,),), (torch.zeros(2),), [0], "evidence is list"),
    ],
)
def test_numbers_of_variables_and_states_are_checked(
    cardinalities, scopes, tables, evidence, message
):
    with pytest.raises(OptionError, match=message):
        DiscreteModel(cardinalities, scopes, tables, evidence)


def test_cardinalities_and_scopes_come_as_tensors_and_arrays_too():
    table = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    model = DiscreteModel(torch.tensor([2, 3]), (np.array([0, 1]),), (table,))
    assert model.cardinalities == (2, 3) and model.scopes == ((0, 1),)
    assert_close(
        float(pg.fit(model, infer=pg.BP, progress=False).log_evidence),
        math.log(sum(map(math.exp, table.flatten().tolist()))),
        rtol=0,
        atol=1e-6,
    )


# A tree with unary, pairwise and empty scopes; evidence cuts some tables, and one down to a number.
TREE_CARDS, TREE_SCOPES = (2, 3, 2), ((0,), (1, 0), (1, 2), (2,), ())
TREE_EVIDENCE = [{}, {1: 2}, {2: 0}, {0: 1, 1: 0}]


def enumerated_log_z(tables, evidence):
    """log sum over the states that agree with the evidence, as a function torch can derive."""
    terms = []
    for x in itertools.product(*map(range, TREE_CARDS)):
        if all(x[v] == state for v, state in evidence.items()):
            cells = [t[tuple(x[v] for v in s)] for s, t in zip(TREE_SCOPES, tables)]
            terms.append(torch.stack(cells).sum())
    return torch.stack(terms).logsumexp(0)


def tree_tables(requires_grad=False):
    torch.manual_seed(5)
    shapes = [[TREE_CARDS[v] for v in scope] for scope in TREE_SCOPES]
    return tuple(torch.randn(s, dtype=torch.float64, requires_grad=requires_grad) for s in shapes)


@pytest.mark.parametrize("evidence", TREE_EVIDENCE)
def test_tables_that_are_changed_in_place_change_the_model(evidence):
    tables = tree_tables()
    model = DiscreteModel(TREE_CARDS, TREE_SCOPES, tables, evidence)
    for shift in (0.0, 1.0, torch.tensor([[0.5, -1.0], [2.0, 0.0], [-0.3, 1.7]])):
        tables[2].add_(shift)
        found = pg.fit(model, infer=pg.BP, progress=False).log_evidence
        assert_close(found, enumerated_log_z(tables, evidence), rtol=0, atol=1e-12)


@pytest.mark.parametrize("evidence", TREE_EVIDENCE)
def test_the_log_evidence_has_gradients_in_the_tables(evidence):
    tables = tree_tables(requires_grad=True)
    model = DiscreteModel(TREE_CARDS, TREE_SCOPES, tables, evidence)
    found = pg.fit(model, infer=pg.BP, progress=False).log_evidence
    for got, truth in zip(
        torch.autograd.grad(found, tables),
        torch.autograd.grad(enumerated_log_z(tables, evidence), tables),
    ):
        assert_close(got, truth, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "evidence, message",
    [
        ({0: True}, r"variable 0 into state True; its states are 0 \.\. 1"),
        ({0: False}, "variable 0 into state False"),
        ({0: torch.tensor(True)}, r"variable 0 into state tensor\(True\)"),
        ({0: 1.0}, r"variable 0 into state 1\.0"),
        ({True: 0}, "about variable True"),
        ({"a": 0}, "about variable 'a'"),
    ],
)
def test_evidence_is_whole_numbers_and_truth_values_are_none(evidence, message):
    with pytest.raises(OptionError, match=message):
        DiscreteModel((2, 3), ((0, 1),), (torch.zeros(2, 3),), evidence)


def test_arrays_are_tables_and_their_whole_numbers_evidence():
    table = np.log(np.arange(1.0, 7.0).reshape(2, 3))
    model = DiscreteModel((2, 3), ((0, 1),), (table,), {torch.tensor(0): np.int64(1)})
    posterior = pg.fit(model, infer=pg.BP, progress=False)
    assert_close(float(posterior.log_evidence), math.log(4 + 5 + 6), rtol=0, atol=1e-12)
    with pytest.raises(OptionError, match="table 0 is str, no array"):
        DiscreteModel((2,), ((0,),), ("table",))


@pytest.mark.parametrize(
    "table", [[True, False], np.array([True, False]), torch.tensor([1 + 1j, 2])], ids=str
)
def test_tables_of_truth_values_and_complex_numbers_are_refused(table):
    with pytest.raises(OptionError, match=r"table 0 holds torch\.(bool|complex\d+); give the real"):
        DiscreteModel((2,), ((0,),), (table,))


def wide(num_variables):
    """A factor (1, 2) on the last variable, written with all others, which have one state."""
    cards, scope = ["1"] * (num_variables - 1) + ["2"], map(str, range(num_variables))
    lines = ["MARKOV", str(num_variables), " ".join(cards), "1"]
    return "\n".join([*lines, f"{num_variables} {' '.join(scope)}", "2 1 2"])


def test_scopes_of_more_variables_than_tensors_have_axes_are_refused(write):
    posterior = pg.fit(read_uai(write(wide(63))), infer=pg.BP, progress=False)
    assert_close(float(posterior.log_evidence), math.log(3), rtol=0, atol=1e-12)
    with pytest.raises(DataFormatError, match=r"net\.uai:5: scope 0 has 64 variables"):
        read_uai(write(wide(64)))


def test_files_that_are_not_there_or_not_utf8_are_said(write, tmp_path):
    with pytest.raises(DataNotFound, match=r"nosuch\.uai"):
        read_uai("nosuch.uai")
    with pytest.raises(DataNotFound, match=r"nosuch\.evid"):
        read_uai(write(SMALL), "nosuch.evid")
    with pytest.raises(OptionError, match=r"evidence=\[1, 0\]"):
        read_uai(write(SMALL), [1, 0])
    path = tmp_path / "latin.uai"
    path.write_bytes(b"# J\xe4ger\n" + SMALL.encode())
    with pytest.raises(DataFormatError, match=r"latin\.uai: byte 3 is not UTF-8"):
        read_uai(path)


def test_a_byte_order_mark_is_passed_over(tmp_path):
    (tmp_path / "net.uai").write_text(SMALL, encoding="utf-8-sig")
    (tmp_path / "net.uai.evid").write_text("1 0 1", encoding="utf-8-sig")
    model = read_uai(tmp_path / "net.uai")
    assert (model.cardinalities, model.evidence) == ((2, 3, 1, 2), {0: 1})


def test_evidence_does_not_change_behind_the_program():
    table, evidence = torch.randn(3, 2), {0: 1}
    model = DiscreteModel((3, 2), ((0, 1),), (table,), evidence)
    with pytest.raises(TypeError):
        model.evidence[0] = 2
    evidence[0] = 2  # the caller's own
    for same in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert same.evidence == {0: 1}
        assert_close(log_z_by_elimination(pg.trace_graph(same)), table[1].logsumexp(0).item())


@pytest.mark.parametrize("source", [None, 3, b"Grids_11"])
def test_a_source_that_is_no_name_and_no_path_is_refused(source):
    with pytest.raises(OptionError, match=r"is no data set; give a name .*'uai'.* \.uai"):
        read_uai(source)


def test_a_name_that_is_not_there_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))
    with pytest.raises(DataNotFound, match=r"Grids_99\.uai"):
        read_uai("Grids_99")


# ------------------------------------------------------------------ the competition's instances
@pytest.mark.parametrize("name", INSTANCES)
def test_instances_have_their_density_at_random_assignments(name, data_root):
    cards, scopes, tables = parse((data_root / "uai" / f"{name}.uai").read_text())
    pairs = [int(w) for w in (data_root / "uai" / f"{name}.uai.evid").read_text().split()[1:]]
    evidence = dict(zip(pairs[::2], pairs[1::2]))
    model = read_uai(name)
    assert model.evidence == evidence
    graph = pg.trace_graph(model)
    assert graph.num_nodes == len(cards) - len(evidence)
    rng = np.random.default_rng(0)
    states = rng.integers(0, cards, size=(20, len(cards)))
    states[:, list(evidence)] = list(evidence.values())
    # Zeros kill nearly every assignment; compare with them replaced, and as they are.
    expected = torch.tensor(log_product(scopes, tables, states))
    assert_close(graph.log_prob(model.values(torch.tensor(states))), expected, rtol=1e-12, atol=0)
    lifted = DiscreteModel(
        model.cardinalities,
        model.scopes,
        tuple(t.clamp(min=-50.0) for t in model.log_tables),
        evidence,
    )
    tables = [np.maximum(t, np.exp(-50.0)) for t in tables]
    expected = torch.tensor(log_product(scopes, tables, states))
    found = pg.trace_graph(lifted).log_prob(lifted.values(torch.tensor(states)))
    assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "name", ["Alchemy_11", "CSP_12", "Promedus_22", "Promedus_24", "Promedus_30", "Segmentation_11"]
)
def test_the_traced_graph_has_the_log_z_of_the_competition(name, data_root):
    reference = uai_reference(name)
    assert reference.is_exact
    graph = pg.trace_graph(read_uai(name))
    assert_close(log_z_by_elimination(graph), reference.log_evidence, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", INSTANCES)
def test_references_fit_their_models(name, data_root):
    model, reference = read_uai(name), uai_reference(name)
    printed = float((data_root / "uai" / f"{name}.uai.PR").read_text().split()[1])
    assert abs(reference.log_evidence / math.log(10) - printed) < 4e-4
    assert tuple(map(len, reference.marginals)) == model.cardinalities
    for v, marginal in enumerate(reference.marginals):
        assert marginal.dtype == torch.float64
        assert_close(marginal.sum().item(), 1.0, rtol=0, atol=1e-5)
        if v in model.evidence:
            assert marginal[model.evidence[v]] == 1


def test_values_without_an_exact_answer_are_marked(data_root):
    assert not uai_reference("Grids_15").is_exact
    assert_close(uai_reference("Grids_15").log_evidence, 291.733 * math.log(10))


def test_the_ising_grid_has_its_exact_marginals(data_root):
    folder = data_root / "ising_4x4"
    model = read_uai(folder / "rand_4_4_id0.uai")
    graph = pg.trace_graph(model)
    states = torch.cartesian_prod(*[torch.arange(2)] * 16)
    log_prob = graph.log_prob(model.values(states))
    log_z = log_prob.logsumexp(0)
    assert_close(log_z.item(), -5.074742719429882, rtol=1e-12, atol=0)
    with open(folder / "marginals.csv") as file:
        exact = torch.tensor([float(row["p1"]) for row in csv.DictReader(file)])
    assert_close((log_prob - log_z).exp() @ states.double(), exact, rtol=0, atol=1e-12)


def test_states_and_labels_of_another_kind_are_refused():
    model = DiscreteModel((2, 2), (), ())
    with pytest.raises(ShapeMismatch, match="values miss x_2"):
        model.states({})
    with pytest.raises(ShapeMismatch, match="expected a tensor"):
        model.values([0, 1])
    with pytest.raises(OptionError, match="no node"):
        model.variable("x_2", 0)
