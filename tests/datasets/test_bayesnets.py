import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.ops.indexing import Vindex
from torch.testing import assert_close

from pyrograph.datasets import bayesian_network
from pyrograph.errors import DataFormatError

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


def test_a_path_as_a_string_and_the_default_dtype(tmp_path):
    path = tmp_path / "net.bif"
    path.write_text(SPRINKLER)
    torch.set_default_dtype(torch.float32)
    assert bayesian_network(str(path)).tables["rain"].dtype == torch.float32


def test_rows_of_rounded_digits_are_scaled_to_sum_to_one(read):
    text = SPRINKLER.replace("table 0.2 0.8", "table 0.2001 0.8")
    assert_close(read(text).tables["rain"].sum().item(), 1.0, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("(yes, off) 0.1, 0.2, 0.7;", "(yes, off) 0.1, 0.2;", "2 entries instead of 3"),
        ("(yes, off) 0.1,", "(yes, off) 0.4,", r"rain=yes, sprinkler=off.*no distribution"),
        ("(yes, off) 0.1, 0.2,", "(yes, off) -0.1, 0.4,", "no distribution"),
        ("(yes, off) 0.1,", "(yes, of) 0.1,", '"sprinkler" has no state "of"'),
        ("(yes, off) 0.1,", "(yes) 0.1,", r"\(yes\), but the parents are \(rain, sprinkler\)"),
        ("default 0.8, 0.1, 0.1;", "", r"rain=no, sprinkler=off\) is missing"),
        ("table 0.2 0.8", "table 0.2 x", "not all numbers"),
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


def test_a_circle_of_arcs_is_refused(read):
    text = SPRINKLER.replace("( rain ) { table 0.2 0.8;", "( rain | sprinkler ) { default 0.2 0.8;")
    with pytest.raises(DataFormatError, match=r"circle: (rain|sprinkler) -> "):
        read(text)


def program(network):
    value = {}
    for name in network.names:
        row = Vindex(network.tables[name])[tuple(value[p] for p in network.parents[name])]
        value[name] = pyro.sample(name, dist.Categorical(row))


@pytest.mark.parametrize("name", CARDINALITIES)
def test_every_network_is_a_pyro_program(name, data_root):
    network = bayesian_network(name)
    assert len(network.names) == CARDINALITIES[name]
    trace = pyro.poutine.trace(program).get_trace(network)
    trace.compute_log_prob()
    by_hand = 0.0
    for variable in network.names:
        value = [int(trace.nodes[v]["value"]) for v in (*network.parents[variable], variable)]
        by_hand += network.tables[variable][tuple(value)].log()
    assert_close(trace.log_prob_sum(), by_hand)


def test_asia_has_its_published_marginals(data_root):
    """Lauritzen & Spiegelhalter (1988): p(lung) = 0.055, p(tub) = 0.0104, so p(either) =
    0.055 + 0.0104 - 0.055 * 0.0104 = 0.064828 and p(xray) = 0.98 * 0.064828 + 0.05 * 0.935172."""
    tables = bayesian_network("asia").tables
    tub, lung = tables["asia"] @ tables["tub"], tables["smoke"] @ tables["lung"]
    either = torch.einsum("l,t,lte->e", lung, tub, tables["either"])
    assert_close(either[0].item(), 0.064828, rtol=1e-12, atol=0)
    assert_close((either @ tables["xray"])[0].item(), 0.11029004, rtol=1e-12, atol=0)
