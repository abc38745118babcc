import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrograph.circuits import Circuit
from pyrograph.circuits.draw import draw_circuit
from pyrograph.circuits.models import fully_factorised, tree_network
from pyrograph.circuits.text import read_circuit, write_circuit
from pyrograph.errors import DataFormatError, OptionError
from tests.circuits.reference import random_nodes

TEXT = """circuit 1 float64
variables 2 real  # a comment

input 0 log_probs -inf 0.0
input 0 log_probs 0.0 -inf
input 1 loc 0.5 scale 2.0
product 0 2
product 1 2
sum 3 4 log_weights -0.5 -1.0
"""


@pytest.fixture
def read(tmp_path):
    def read(text=TEXT):
        (tmp_path / "c.txt").write_text(text)
        return read_circuit(tmp_path / "c.txt")

    return read


def same(first, second):
    for name in ("kind", "var", "start", "child"):
        assert (getattr(first.units, name) == getattr(second.units, name)).all()
    assert first.cards == second.cards
    for name, parameter in first.named_parameters():
        other = getattr(second, name)
        assert other.dtype == parameter.dtype
        assert torch.equal(other.nan_to_num(7.0), parameter.nan_to_num(7.0))


@settings(max_examples=40)
@given(
    st.integers(0, 10_000),
    st.lists(st.sampled_from([2, 3, None]), min_size=1, max_size=4).map(tuple),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_a_circuit_is_read_back_bit_by_bit(tmp_path_factory, seed, cards, dtype):
    path = tmp_path_factory.mktemp("text") / "circuit.txt"
    nodes = random_nodes(np.random.default_rng(seed), cards, zeros=0.3)
    circuit = Circuit.from_nodes(nodes).to(dtype)
    write_circuit(circuit, path)
    same(circuit, read_circuit(path))


def test_weights_far_from_one_are_kept(tmp_path):
    circuit = fully_factorised([torch.tensor([0.5, 0.5])])
    circuit.log_table.data -= 5000.0
    write_circuit(circuit, tmp_path / "c")
    same(circuit, read_circuit(tmp_path / "c"))


def test_a_file_written_by_hand_is_read(read):
    circuit = read()
    assert circuit.cards == (2, None)
    expected = -0.5 + torch.distributions.Normal(0.5, 2.0).log_prob(torch.tensor(1.5))
    assert math.isclose(float(circuit.log_prob(torch.tensor([1.0, 1.5]))), float(expected))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("circuit 1 float64", "circuit 1", ':1: the first line is "circuit 2 float64"'),
        ("circuit 1", "circuit 3", ":1: the format is number 3"),
        ("variables 2 real", "variable 2", ':2: the second line is "variables"'),
        ("variables 2", "variables 0", ":2: '0' is no integer of at least 1"),
        ("input 0 log_probs -inf 0.0", "input 2 log_probs 0.0", r":4: .*out of 0 \.\. 1"),
        ("input 0 log_probs -inf 0.0", "input 0 log_probs 0.0", ":4: the variable 0 has 2"),
        ("-inf 0.0", "nan 0.0", ":4: a number is NaN"),
        ("-inf 0.0", "x 0.0", ":4: could not convert"),
        ("scale 2.0", "scale 0.0", ":6: a Gaussian has"),
        ("loc 0.5 scale 2.0", "log_probs 0.5", ":6: the variable 1 is real"),
        ("product 0 2", "product 0 9", ":7: unit 3 has no children, or one"),
        ("product 0 2", "product", ":7: unit 3 has no children, or one"),
        ("product 0 2", "times 0 2", ":7: a line begins with input, product or sum"),
        ("-0.5 -1.0", "-0.5", ":9: 2 children and 1 weights"),
        (" log_weights -0.5 -1.0", "", ":9: a sum is written"),
        ("input 1 loc 0.5 scale 2.0", "input 0 log_probs 0.0 0.0", "variable 1 has no input"),
    ],
)
def test_malformed_text_is_refused_with_the_line(read, old, new, message):
    assert old in TEXT
    with pytest.raises(DataFormatError, match=rf"^c\.txt:.*{message}|^c\.txt{message}"):
        read(TEXT.replace(old, new, 1))


@pytest.mark.parametrize("text", ["", "circuit 1 float64", "circuit 1 float64\nvariables 2"])
def test_a_file_that_ends_early_is_refused(read, text):
    with pytest.raises(DataFormatError):
        read(text)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.data())
def test_a_saved_file_that_has_lost_its_end_is_refused(tmp_path_factory, seed, data):
    path = tmp_path_factory.mktemp("text") / "c.txt"
    write_circuit(Circuit.from_nodes(random_nodes(np.random.default_rng(seed), (2, None))), path)
    whole = path.read_text()
    path.write_text(whole[: data.draw(st.integers(0, len(whole) - 2))])
    with pytest.raises(DataFormatError, match=r"^c\.txt:"):
        read_circuit(path)


def test_a_saved_file_that_has_lost_a_line_or_has_one_too_many_is_refused(tmp_path):
    path = tmp_path / "c.txt"
    write_circuit(fully_factorised([torch.tensor([0.5, 0.5])] * 3), path)
    lines = path.read_text().splitlines()
    for k in range(len(lines)):
        path.write_text("\n".join(lines[:k] + lines[k + 1 :]))
        with pytest.raises(DataFormatError, match=r"^c\.txt:"):
            read_circuit(path)
    path.write_text("\n".join([*lines, "product 0 1"]))
    with pytest.raises(DataFormatError, match=r':8: lines follow "end"'):
        read_circuit(path)


def test_files_of_the_format_without_an_end_are_read(read):
    saved = TEXT.replace("circuit 1", "circuit 2") + "end 6\n"
    same(read(), read(saved))


def test_units_that_the_root_is_not_made_of_are_left_out(read):
    text = TEXT.replace("product 1 2", "product 0 2", 1)  # unit 1, x_0 = 0, is unused then
    circuit = read(text)
    assert len(circuit.units) == len(read().units) - 1
    normal = torch.distributions.Normal(0.5, 2.0).log_prob(torch.tensor(1.5))
    expected = math.log(math.exp(-0.5) + math.exp(-1.0)) + float(normal)
    assert math.isclose(float(circuit.log_prob(torch.tensor([1.0, 1.5]))), expected)
    assert float(circuit.log_prob(torch.tensor([0.0, 1.5]))) == -math.inf


def test_a_picture_shows_every_unit_and_weight(read):
    ax = draw_circuit(read(), names=["rain", "height"])
    shown = [text.get_text() for text in ax.texts]
    assert "rain=1" in shown and "height\nN(0.5, 2)" in shown
    assert shown.count("×") == 2 and shown.count("+") == 1
    assert "0.607" in shown
    plt.close(ax.figure)


def test_a_picture_of_a_large_circuit_is_refused():
    tables = [torch.full((2,), 0.5), *[torch.rand(2, 2) for _ in range(60)]]
    with pytest.raises(OptionError, match="pictures are for up to 200"):
        draw_circuit(tree_network([None, *range(60)], tables))


def test_a_count_of_more_digits_than_numbers_have_is_refused(read):
    with pytest.raises(DataFormatError, match=r"c\.txt:2: '9+' is no integer"):
        read("circuit 1 float64\nvariables " + "9" * 5000 + "\n")
