import itertools
import math

import numpy as np
import pyro
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.datasets import BayesianNetwork, bayesian_network
from pyrograph.errors import DataFormatError, DataNotFound, OptionError

SPRINKLER = """
// children first, comments, properties, a quoted state, missing commas
network "garden" { property version 1.0 ; }
variable grass { type discrete [ 3 ] { dry, "a bit wet", wet }; property position = (1, 2) ; }
variable rain { type discrete [2] {yes no}; }
variable sprinkler { type discrete [ 2 ] { on, off }; }
probability ( grass | rain, sprinkler ) {
  default 0.8, 0.1, 0.1;        /* no rain,
                                   no sprinkler */
  (yes, on) 0.0, 0.1, 0.9;
  (yes, off) 0.1, 0.2, 0.7;
  (no, on) 0.2, 0.2, 0.6;
}
probability ( sprinkler | rain ) { table 0.01, 0.4, 0.99, 0.6; }
probability ( rain ) { table 0.2 0.8; }
"""

CARDINALITIES = {"asia": 8, "cancer": 5, "earthquake": 5, "survey": 6, "sachs": 11, "alarm": 37}


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "net.bif"
        path.write_text(text)
        return bayesian_network(path)

    return read


def test_rows_tables_and_defaults_land_on_their_axes(read):
    network = read(SPRINKLER)
    assert network.names == ("rain", "sprinkler", "grass")
    assert network.states["grass"] == ("dry", "a bit wet", "wet")
    assert network.parents == {"rain": (), "sprinkler": ("rain",), "grass": ("rain", "sprinkler")}
    assert_close(network.tables["rain"], torch.tensor([0.2, 0.8]))
    assert_close(network.tables["sprinkler"], torch.tensor([[0.01, 0.99], [0.4, 0.6]]))
    grass = [[[0.0, 0.1, 0.9], [0.1, 0.2, 0.7]], [[0.2, 0.2, 0.6], [0.8, 0.1, 0.1]]]
    assert_close(network.tables["grass"], torch.tensor(grass))


def test_comments_may_touch_names_and_numbers(read):
    commented = SPRINKLER.replace("{yes no}", "{yes/* it\ndoes */no/*not*/}").replace(
        "table 0.2 0.8;", "table 0.2/*a fifth*/ 0.8;// the rest\n"
    )
    network, plain = read(commented), read(SPRINKLER)
    assert network.states == plain.states
    assert torch.equal(network.tables["rain"], plain.tables["rain"])


def test_a_path_as_a_string_and_the_default_dtype(tmp_path):
    path = tmp_path / "net.bif"
    path.write_text(SPRINKLER)
    torch.set_default_dtype(torch.float32)
    assert bayesian_network(str(path)).tables["rain"].dtype == torch.float32


FAINT = """
variable a { type discrete [ 2 ] { t, f }; }
variable b { type discrete [ 2 ] { t, f }; }
probability ( a ) { table 1e-46, 1.0; }
probability ( b | a ) { (t) 1.0, 0.0; (f) 0.0, 1.0; }
"""


@pytest.mark.parametrize("small", ["1e-46", "3e-45", "1e-40", "1e-300"])
def test_probabilities_too_small_for_the_default_dtype_stay_what_they_are(read, small):
    """p(b = t) = p(a = t), as b repeats a."""
    torch.set_default_dtype(torch.float32)
    network = read(FAINT.replace("1e-46", small))
    assert {table.dtype for table in network.tables.values()} == {torch.float64}
    posterior = pg.fit(network, ({"b": "t"},), infer=pg.BP, progress=False)
    assert_close(float(posterior.log_evidence), math.log(float(small)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("plain", ["1e-37", "0.0"])
def test_probabilities_that_fit_the_default_dtype_have_it(read, plain):
    torch.set_default_dtype(torch.float32)
    network = read(FAINT.replace("1e-46", plain))
    assert {table.dtype for table in network.tables.values()} == {torch.float32}


def test_a_byte_order_mark_is_passed_over(tmp_path):
    path = tmp_path / "net.bif"
    path.write_text(SPRINKLER.strip().split("\n", 1)[1], encoding="utf-8-sig")
    assert bayesian_network(path).names == ("rain", "sprinkler", "grass")


@pytest.mark.parametrize("source", [None, 3, b"asia"])
def test_a_source_that_is_no_name_and_no_path_is_refused(source):
    with pytest.raises(OptionError, match=r"is no data set; give a name .*'bayesnets'.* \.bif"):
        bayesian_network(source)


def test_rows_of_rounded_digits_are_scaled_to_sum_to_one(read):
    text = SPRINKLER.replace("table 0.2 0.8", "table 0.2001 0.8")
    assert_close(read(text).tables["rain"].sum().item(), 1.0, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("(yes, off) 0.1, 0.2, 0.7;", "(yes, off) 0.1, 0.2;", "2 entries instead of 3"),
        ("(yes, off) 0.1,", "(yes, off) 0.4,", r"rain=yes, sprinkler=off.*no distribution"),
        ("(yes, off) 0.1, 0.2,", "(yes, off) -0.1, 0.4,", "no distribution"),
        ("(yes, off) 0.1,", "(yes, off) 1, 0, 0; (yes, off) 0.1,", r"\(yes, off\) is given twice"),
        ("(yes, off) 0.1,", "(yes, of) 0.1,", '"sprinkler" has no state "of"'),
        ("(yes, off) 0.1,", "(yes) 0.1,", r"\(yes\), but the parents are \(rain, sprinkler\)"),
        ("default 0.8, 0.1, 0.1;", "", r"rain=no, sprinkler=off\) is missing"),
        ("table 0.2 0.8", "table 0.2 x", "not all numbers"),
        ("(yes, off) 0.1, 0.2, 0.7;", "(yes, off) nan, nan, nan;", "not all numbers: nan, nan"),
        ("(yes, off) 0.1,", "(yes, off) nan,", "not all numbers: nan, 0.2"),
        ("default 0.8,", "default nan,", 'default row of "grass" is not all numbers'),
        ("table 0.2 0.8", "table 0_0.2 0.8", "not all numbers: 0_0.2"),
        ("table 0.01,", "(yes) 0.1 0.9; table 0.01,", 'table of "sprinkler" follows rows'),
        ("table 0.2 0.8;", "() 0.1 0.9; table 0.2 0.8;", "rows or a table that it replaces"),
        ("table 0.2 0.8;", "table 0.1 0.9; table 0.2 0.8;", "rows or a table that it replaces"),
        ("table 0.2 0.8;", "table 0.1 0.9; () 0.2 0.8;", "is given twice"),
        ("default 0.8,", "default 1, 0, 0; default 0.8,", 'default row of "grass" is given twice'),
        (
            "( sprinkler | rain )",
            "( sprinkler | rain, rain )",
            r"\(rain, rain\), one of them twice",
        ),
        ("variable sprinkler", "variable _RETURN", 'Pyro keeps the name "_RETURN"'),
        ("variable sprinkler", "variable _INPUT", 'Pyro keeps the name "_INPUT"'),
        ("0.99, 0.6;", "0.99;", 'table of "sprinkler" has 3 entries instead of 4'),
        ("( sprinkler | rain )", "( sprinkler | snow )", '"snow", which is not declared'),
        ("( rain )", "( rain | grass )", "has 2 entries instead of 6"),
        ("{ table 0.2 0.8; }", "{ table 0.2 0.8; } probability ( rain ) { }", "two probability"),
        ("probability ( rain ) { table 0.2 0.8; }", "", "no probability block for rain"),
        ("variable rain", "variable rain { } variable rain", "no .type discrete. line"),
        ("{yes no}", "{yes no maybe}", r"\[ 2 \] states, but yes, no, maybe"),
        ("variable sprinkler", "variable rain", '"rain" is declared twice'),
        ("variable sprinkler", "node sprinkler", 'not "node"'),
        ("[2]", "(2)", r'met "\(" where "\["'),
        ("table 0.2 0.8; }", "table 0.2 0.8;", "ends inside a block"),
        ('"garden"', '"garden', r"net\.bif:3: cannot read"),
        ("( rain ) {", "( ) {", r'met "\)" where a name'),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(read, old, new, message):
    assert SPRINKLER.count(old) == 1
    with pytest.raises(DataFormatError, match=message) as caught:
        read(SPRINKLER.replace(old, new))
    assert str(caught.value).startswith("net.bif:")


def test_a_file_without_variables_is_refused(read):
    with pytest.raises(DataFormatError, match="there is no variable"):
        read("network empty { }")


def test_a_circle_of_arcs_is_refused(read):
    text = SPRINKLER.replace("( rain ) { table 0.2 0.8;", "( rain | sprinkler ) { default 0.2 0.8;")
    with pytest.raises(DataFormatError, match=r"circle: (rain|sprinkler) -> "):
        read(text)


@pytest.mark.parametrize("name", CARDINALITIES)
def test_every_network_is_a_pyro_program(name, data_root):
    network = bayesian_network(name)
    assert len(network.names) == CARDINALITIES[name]
    trace = pyro.poutine.trace(network).get_trace()
    trace.compute_log_prob()
    by_hand = 0.0
    for variable in network.names:
        value = [int(trace.nodes[v]["value"]) for v in (*network.parents[variable], variable)]
        by_hand += network.tables[variable][tuple(value)].log()
    assert_close(trace.log_prob_sum(), by_hand)


@pytest.mark.parametrize("name", CARDINALITIES)
def test_a_variable_is_a_node_and_its_factor_reads_its_family(name, data_root):
    network = bayesian_network(name)
    graph = pg.trace_graph(network)
    assert graph.nodes == tuple((variable, ()) for variable in network.names)
    for variable in network.names:
        family = {(v, ()) for v in (*network.parents[variable], variable)}
        assert [set(scope) for scope in graph.scopes(variable)] == [family]


def joint(network):
    """Probability of every assignment, ``[*cardinalities]`` in the order of the names."""
    operands = []
    for name in network.names:
        axes = [network.names.index(v) for v in (*network.parents[name], name)]
        operands += [network.tables[name], axes]
    return torch.einsum(*operands, list(range(len(network.names))))


EVIDENCE = [
    ("asia", {"xray": "yes", "smoke": "no"}),
    ("asia", {"either": "no", "lung": "no", "dysp": 0}),
    ("cancer", {"Cancer": "True"}),
    ("survey", {"T": "train", "S": 1, "E": "uni"}),
    ("survey", {}),
]


def states_of(network, evidence):
    return {
        name: network.states[name].index(state) if isinstance(state, str) else state
        for name, state in evidence.items()
    }


@pytest.mark.parametrize("name, evidence", EVIDENCE)
def test_both_programs_have_the_joint_density_at_the_evidence(name, evidence, data_root):
    """Zeros too: asia's "either" is a deterministic table."""
    network = bayesian_network(name)
    observed = states_of(network, evidence)
    cut = tuple(observed.get(variable, slice(None)) for variable in network.names)
    truth = joint(network)[cut].flatten().log()
    ranges = [
        [observed[v]] if v in observed else list(range(len(network.states[v])))
        for v in network.names
    ]
    states = torch.tensor(list(itertools.product(*ranges)))
    graph = pg.trace_graph(network, (evidence,))
    values = {v: states[:, k] for k, v in enumerate(network.names) if v not in observed}
    assert_close(graph.log_prob(values), truth, rtol=0, atol=1e-12)
    assert_close(graph.log_prob(values).exp().sum(), truth.exp().sum(), rtol=0, atol=1e-14)
    model = network.tabulated(evidence)
    assert_close(pg.trace_graph(model).log_prob(model.values(states)), truth, rtol=0, atol=1e-12)


@pytest.mark.peers
@pytest.mark.parametrize("name, evidence", EVIDENCE)
def test_traced_networks_answer_queries_as_pgmpy_does(name, evidence, data_root):
    readwrite = pytest.importorskip("pgmpy.readwrite")
    inference = pytest.importorskip("pgmpy.inference")
    network = bayesian_network(name)
    graph = pg.trace_graph(network, (evidence,))
    theirs = readwrite.BIFReader(str(data_root / "bayesnets" / f"{name}.bif")).get_model()
    elimination = inference.VariableElimination(theirs)
    named = {v: network.states[v][k] for v, k in states_of(network, evidence).items()}
    free = [v for v in network.names if v not in named]
    cards = [len(network.states[v]) for v in free]
    states = torch.cartesian_prod(*map(torch.arange, cards))
    weight = graph.log_prob(dict(zip(free, states.unbind(1)))).softmax(0)
    for k, variable in enumerate(free):
        ours = torch.zeros(cards[k]).index_add_(0, states[:, k], weight)
        query = elimination.query([variable], evidence=named, show_progress=False)
        found = [query.get_value(**{variable: state}) for state in network.states[variable]]
        assert_close(ours, torch.tensor(found), rtol=0, atol=1e-10)


def test_a_thousand_like_tables_are_one_statement():
    names = tuple(f"v{k}" for k in range(1000))
    network = BayesianNetwork(
        names,
        states=dict.fromkeys(names, ("a", "b", "c")),
        parents={name: names[max(k - 1, 0) : k] for k, name in enumerate(names)},
        tables={name: torch.rand((3,) * (1 + (k > 0))).softmax(-1) for k, name in enumerate(names)},
    )
    graph = pg.trace_graph(network.tabulated({"v500": "b"}))
    assert [group.num_factors for group in graph.factors] == [3, 997]
    assert graph.num_nodes == 999


@pytest.mark.parametrize(
    "evidence, message",
    [
        ({"snow": "yes"}, '"snow", which is no variable.*rain, sprinkler, grass'),
        ({"grass": "damp"}, r"\"grass\" into state 'damp'; .* dry, a bit wet, wet \(0 \.\. 2\)"),
        ({"grass": 3}, r"\"grass\" into state 3"),
        ({"grass": -1}, r"\"grass\" into state -1"),
        ({"rain": True}, r"\"rain\" into state True; .* yes, no"),
        ({"rain": np.bool_(True)}, r"\"rain\" into state .*True.*; .* yes, no"),
        ({"rain": torch.tensor(True)}, r"\"rain\" into state tensor\(True\)"),
        ({"rain": 1.0}, r"\"rain\" into state 1\.0"),
        ({"rain": torch.tensor([1, 0])}, r"\"rain\" into state tensor"),
        (["rain"], r"no dict; write"),
    ],
)
def test_evidence_that_does_not_fit_is_refused(read, evidence, message):
    network = read(SPRINKLER)
    for program in (network, network.tabulated):
        with pytest.raises(OptionError, match=message):
            program(evidence)


def test_states_are_named_or_numbered_by_whole_numbers_of_any_kind(read):
    network = read(SPRINKLER)
    evidence = {"rain": torch.tensor(1), "sprinkler": np.int64(0), "grass": "wet"}
    assert network.state_numbers(evidence) == {"rain": 1, "sprinkler": 0, "grass": 2}


def test_a_file_that_is_not_there_or_not_utf8_is_said(tmp_path):
    with pytest.raises(DataNotFound, match=r"nosuch\.bif"):
        bayesian_network("nosuch.bif")
    path = tmp_path / "latin.bif"
    path.write_bytes(SPRINKLER.replace("garden", "J\u00e4ger").encode("latin-1"))
    with pytest.raises(DataFormatError, match=r"latin\.bif: byte \d+ is not UTF-8"):
        bayesian_network(path)


def test_asia_has_its_published_marginals(data_root):
    """Lauritzen & Spiegelhalter (1988): p(lung) = 0.055, p(tub) = 0.0104, so p(either) =
    0.055 + 0.0104 - 0.055 * 0.0104 = 0.064828 and p(xray) = 0.98 * 0.064828 + 0.05 * 0.935172."""
    tables = bayesian_network("asia").tables
    tub, lung = tables["asia"] @ tables["tub"], tables["smoke"] @ tables["lung"]
    either = torch.einsum("l,t,lte->e", lung, tub, tables["either"])
    assert_close(either[0].item(), 0.064828, rtol=1e-12, atol=0)
    assert_close((either @ tables["xray"])[0].item(), 0.11029004, rtol=1e-12, atol=0)
