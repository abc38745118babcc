"""What circuits refuse, by errors that say what to give instead."""

from __future__ import annotations

import math

import pytest
import torch

from pyrograph import circuits as C
from pyrograph.errors import DataNotFound, OptionError

PAIR = C.fully_factorised([torch.tensor([0.4, 0.6]), torch.tensor([0.2, 0.8])])


@pytest.mark.parametrize("intercept", [[0.1, 0.2], [], math.nan, math.inf, torch.zeros(2)])
def test_an_intercept_is_one_finite_number(intercept):
    with pytest.raises(OptionError, match="intercept"):
        C.ExpectedSVR([[0, 1]], [1.0], intercept, C.RBF(1.0), PAIR)


@pytest.mark.parametrize("intercept", [0.5, [0.5], torch.tensor(0.5), torch.tensor([0.5])])
def test_an_intercept_is_added(intercept):
    found = C.ExpectedSVR([[0, 1]], [0.0], intercept, C.RBF(1.0), PAIR).predict([[0, math.nan]])
    assert float(found[0]) == 0.5


@pytest.mark.parametrize("names", [["a"], [], ["a", "b", "c"]])
def test_a_picture_takes_a_name_of_every_variable(names):
    with pytest.raises(OptionError, match=f"{len(names)} names for the circuit's 2 variables"):
        PAIR.draw(names=names)


@pytest.mark.parametrize("name", ["none.txt", "."])
def test_a_file_that_is_not_there_is_named(tmp_path, name):
    with pytest.raises(DataNotFound, match="there is no file"):
        C.Circuit.load(tmp_path / name)
