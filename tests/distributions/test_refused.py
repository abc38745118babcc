"""What components and collapsed data refuse, by errors that say what to give instead."""

import numpy as np
import pytest
import torch

from pyrograph.distributions import (
    BetaBernoulli,
    CollapsedMixture,
    CollapsedRelation,
    DirichletCategorical,
    NormalInverseGamma,
    NormalInverseWishart,
)
from pyrograph.errors import OptionError, ShapeMismatch

Z = torch.tensor([0, 1])


@pytest.mark.parametrize(
    "make, error, said",
    [
        (
            lambda: NormalInverseGamma(torch.ones(3), torch.ones(2), 1.0),
            ShapeMismatch,
            r"\(3,\), \(2,\), \(\), \(\)",
        ),
        (lambda: NormalInverseGamma(None, 1.0, 1.0), OptionError, "numbers or tensors"),
        (
            lambda: NormalInverseWishart(1.0, 3.0, torch.eye(2), torch.ones(3)),
            ShapeMismatch,
            r"loc has shape \(3,\)",
        ),
        (lambda: NormalInverseWishart(1.0, 3.0, torch.zeros(0, 0)), ShapeMismatch, "d above 0"),
    ],
    ids=["shapes", "none", "loc", "no dimensions"],
)
def test_parameters_that_do_not_fit_are_refused(make, error, said):
    with pytest.raises(error, match=said):
        make()


@pytest.mark.parametrize(
    "mask",
    [torch.ones(2, 2), torch.tensor([[2, 1], [1, 1]]), [[True, True], [True, True]], False],
    ids=["floats", "integers", "list", "bool"],
)
def test_masks_are_tensors_of_bool(mask):
    with pytest.raises(OptionError, match="give a tensor of bool"):
        CollapsedRelation(Z, Z, BetaBernoulli(1.0, 1.0), mask=mask)


@pytest.mark.parametrize("data", [[0, 1], np.array([0, 1])], ids=["list", "array"])
def test_data_are_tensors(data):
    with pytest.raises(OptionError, match=r"torch\.as_tensor"):
        CollapsedMixture(Z, DirichletCategorical(1.0, 2)).log_prob(data)
    with pytest.raises(OptionError, match=r"torch\.as_tensor"):
        CollapsedRelation(Z, Z, BetaBernoulli(1.0, 1.0)).log_prob([data, data])
