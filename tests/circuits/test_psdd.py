import itertools
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from pyrograph.circuits.psdd import read_psdd
from pyrograph.circuits.structure.vtree import read_vtree
from pyrograph.datasets import binary_regression
from pyrograph.errors import DataFormatError

VTREE = """c a vtree of three variables
vtree 5
L 0 1
L 1 3
L 2 2
I 3 1 2
I 4 0 3
"""
#: If variable 1 is true then 3 and 2 are independent, else they are equal; node 12 repeats node 5.
PSDD = """c if x1 then Bernoulli(.9) x Bernoulli(.2) else x3 = x2
psdd 13
L 0 0 1
L 1 0 -1
L 2 1 3
L 3 1 -3
L 4 2 2
L 5 2 -2
L 12 2 -2
T 6 1 3 -0.10536051565782628
T 7 2 2 -1.6094379124341003
D 8 3 1 6 7 0.0
D 9 3 2 2 4 -0.2231435513142097 3 12 -1.6094379124341003
D 10 3 1 6 7 0.0
D 11 4 2 0 8 -1.2039728043259361 1 9 -0.35667494393873245
"""


@pytest.fixture
def read(tmp_path):
    def read(psdd=PSDD, vtree=VTREE):
        (tmp_path / "a.psdd").write_text(psdd)
        (tmp_path / "a.vtree").write_text(vtree)
        return read_psdd(tmp_path / "a.psdd", tmp_path / "a.vtree")

    return read


def test_decisions_are_weighted_products_of_primes_and_subs(read):
    circuit = read()
    assert all(circuit.properties().values())
    for x1, x2, x3 in itertools.product((0, 1), repeat=3):
        if x1:
            expected = 0.3 * (0.2 if x2 else 0.8) * (0.9 if x3 else 0.1)
        else:
            expected = 0.7 * (x2 == x3) * (0.8 if x2 else 0.2)
        found = circuit.log_prob(torch.tensor([x1, x2, x3])).exp()
        assert_close(float(found), expected, rtol=0, atol=1e-12)


def test_equal_nodes_are_one_unit(read):
    circuit = read()
    assert int((circuit.units.kind == 0).sum()) == 8  # not 9: nodes 5 and 12 are one
    assert circuit.units.num_edges == 2 + 2 * 2 + 2 + 2 + 2 * 2


def test_nodes_find_their_place_whatever_numbers_the_vtree_has(read):
    renamed = VTREE.replace("I 4 0 3", "I 99 0 7").replace("I 3 1 2", "I 7 1 2")
    x = torch.tensor([[1.0, 0.0, -1.0], [0.0, 1.0, 1.0]])
    assert_close(read(vtree=renamed).log_prob(x), read().log_prob(x))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("psdd 13", "pdds 13", r"a\.psdd:2: the first line"),
        ("psdd 13", "psdd 14", r"a\.psdd:15: the file ends after 13 nodes of 14"),
        ("psdd 13", "psdd 12", r"a\.psdd:15: more nodes than the 12"),
        ("L 4 2 2", "L 4 2", r":7: a line has a kind"),
        ("L 4 2 2", "L 4 2 2 7", r":7: 5 words where 'L id vtree literal' has 4"),
        ("L 4 2 2", "L 4 2 7", r":7: the vtree has no variable 7"),
        ("L 4 2 2", "L 4 2 0", r":7: the vtree has no variable 0"),
        ("L 4 2 2", "L 0 2 2", r":7: there is a node 0 already"),
        ("L 4 2 2", "Q 4 2 2", r":7: a line begins with L, T or D, not 'Q'"),
        ("L 4 2 2", "L x 2 2", r":7: the id is 'x', which is no integer"),
        ("T 7 2 2 -1.6", "T 7 2 2 1.6", r":11: log\(theta\) is 1\.6.*above 1"),
        ("T 7 2 2 -1.6094379124341003", "T 7 2 2 nan", r":11: log\(theta\) is NaN"),
        ("D 8 3 1 6 7 0.0", "D 8 3 1 6 7", r":12: 6 words where"),
        ("D 8 3 1 6 7 0.0", "D 8 3 1 6 70 0.0", r":12: the node 70 does not come before"),
        ("D 8 3 1 6 7 0.0", "D 8 3 1 7 6 0.0", r":12: the variables of prime 7 and sub 6"),
        ("D 8 3 1 6 7 0.0", "D 8 3 0", r":12: a decision node has at least one"),
        ("D 8 3 1 6 7 0.0", "D 8 3 1 6 7 x", r":12: log\(theta\) is 'x', which is no number"),
    ],
)
def test_malformed_files_are_refused_with_the_line(read, old, new, message):
    assert old in PSDD
    with pytest.raises(DataFormatError, match=message):
        read(PSDD.replace(old, new, 1))


def test_a_root_below_the_vtree_is_refused(read):
    *lines, _ = PSDD.replace("psdd 13", "psdd 12").splitlines()
    with pytest.raises(DataFormatError, match=r":14: the last node does not have all"):
        read("\n".join(lines))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("vtree 5", "tree 5", r"a\.vtree:2: the first line"),
        ("L 1 3", "L 1 1", r":4: the variable 1 .* has a leaf already"),
        ("L 1 3", "L 1 4", r":7: there are 3 leaves for variables up to 4"),
        ("L 1 3", "L 1", r":4: 2 words where 'L id var' has 3"),
        ("L 1 3", "L 0 3", r":4: there is a node 0 already"),
        ("L 1 3", "X 1 3", r":4: a line begins with L or I, not 'X'"),
        ("I 3 1 2", "I 3 1 4", r":6: the child 4 has a parent already, or does not come"),
        ("I 4 0 3", "I 4 0 1", r":7: the child 1 has a parent"),
        ("vtree 5\n", "vtree 4\n", r":7: more nodes than the 4"),
    ],
)
def test_malformed_vtrees_are_refused_with_the_line(read, old, new, message):
    with pytest.raises(DataFormatError, match=message):
        read(vtree=VTREE.replace(old, new, 1))


@pytest.mark.parametrize("name", ["a.psdd", "a.vtree"])
def test_files_that_are_no_text_are_refused_by_name(tmp_path, name):
    (tmp_path / "a.psdd").write_text(PSDD)
    (tmp_path / "a.vtree").write_text(VTREE)
    (tmp_path / name).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataFormatError, match=rf"{name}: no text"):
        read_psdd(tmp_path / "a.psdd", tmp_path / "a.vtree")


def test_comments_may_have_any_letters_whatever_the_locale(tmp_path, monkeypatch):
    monkeypatch.setattr("io.text_encoding", lambda encoding, *_: encoding or "ascii")
    (tmp_path / "a.vtree").write_text("c \u03b8 is a probability\n" + VTREE, encoding="utf-8")
    assert read_vtree(tmp_path / "a.vtree").num_variables == 3


def test_a_vtree_of_two_roots_is_refused(read):
    with pytest.raises(DataFormatError, match=r":6: the nodes \[0, 3\] have no parent"):
        read(vtree=VTREE.replace("I 4 0 3\n", "").replace("vtree 5", "vtree 4"))


def test_a_vtree_knows_its_root_and_variables(tmp_path):
    (tmp_path / "a.vtree").write_text(VTREE)
    tree = read_vtree(tmp_path / "a.vtree")
    assert tree.root == 4 and tree.children == {3: (1, 2), 4: (0, 3)}
    assert tree.variable == {0: 0, 1: 2, 2: 1}


#: Mean log likelihoods of train, valid and test, from the READMEs.
STATED = {
    "abalone": (-9.085133, -9.560896, -9.633511),
    "insurance": (-9.711660, -10.528821, -10.700847),
}


@pytest.mark.parametrize("name", STATED)
def test_published_circuits_have_the_stated_likelihoods(data_root, name):
    data = binary_regression(name)
    circuit = read_psdd(data.psdd, data.vtree)
    assert all(circuit.properties().values())
    for split, expected in zip(("train", "valid", "test"), STATED[name], strict=True):
        assert_close(float(circuit.log_prob(data.x[split]).mean()), expected, rtol=0, atol=1e-6)
    assert_close(float(circuit.log_mass()), 0.0, rtol=0, atol=1e-12)
    state, highest = circuit.most_probable()
    assert float(highest) >= float(circuit.log_prob(data.x["train"]).max())
    assert np.isclose(float(circuit.log_prob(state)), float(highest))


def test_a_certain_terminal_has_one_state(read):
    circuit = read(PSDD.replace("-1.6094379124341003\nD 8", "0.0\nD 8"))
    assert circuit.log_prob(torch.tensor([1, 0, 0])) == -math.inf
