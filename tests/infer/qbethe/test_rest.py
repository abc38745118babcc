"""What counts as a change where the objective does not move. Truth: by hand."""

import math

import pytest

from pyrograph.infer.qbethe.rest import after_adam, after_search
from pyrograph.infer.qbethe.search import PROMISED


@pytest.mark.parametrize(
    ("change", "gain", "expected"),
    [(0.0, 3.0, 3.0), (5.0, 3.0, 5.0), (0.0, PROMISED * 1e-6, 0.0), (1e-7, 1e-6, 1e-7)],
)
def test_a_search_that_is_stuck_has_not_come_to_rest(change, gain, expected):
    assert after_search(change, gain, least=1e-6) == expected


@pytest.mark.parametrize(
    ("change", "gain", "objective", "expected"),
    [
        (0.0, 0.9, 5.0, 0.0),
        (0.0, 1.1, 5.0, 1.1),
        (2.0, 1.1, 5.0, 2.0),
        (0.0, 9.0, -1000.0, 0.0),
        (0.0, 11.0, -1000.0, 11.0),
        (0.0, 4.0, 5.0, 4.0),
    ],
)
def test_gradients_of_adam_may_promise_a_little(change, gain, objective, expected):
    assert after_adam(change, gain, objective, tol=1e-3) == expected
    assert after_adam(change, gain, objective, tol=math.inf) == change
