"""What is taken off the learning signal of a score function. Truth: by hand."""

import pytest
import torch
from torch.testing import assert_close

from pyrograph.posterior.joint_density import RATE, Baseline


def test_particles_of_one_step_have_the_mean_of_the_others_taken_off():
    signal = torch.randn(5, 1)
    others = (signal.sum() - signal) / 4
    assert_close(Baseline()(signal), signal - others)


def test_lone_particles_have_the_mean_of_earlier_steps_taken_off():
    baseline, mean = Baseline(), None
    for signal in torch.randn(6).unbind():
        mean = signal if mean is None else mean
        assert_close(baseline(signal), signal - mean)
        mean = mean + RATE * (signal - mean)
    assert_close(baseline.mean, mean)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_a_step_without_a_finite_signal_does_not_spoil_those_after_it(value):
    baseline = Baseline()
    baseline(torch.tensor(3.0))
    baseline(torch.tensor(value))
    assert_close(baseline(torch.tensor(5.0)), torch.tensor(2.0))


def test_steps_that_are_ignored_are_in_no_mean():
    baseline = Baseline(hold=2)
    for signal in (100.0, -7.0):
        assert_close(baseline(torch.tensor([signal])), torch.zeros(1))
    assert baseline.hold == 0
    baseline(torch.tensor([1.0]))
    assert_close(baseline(torch.tensor([4.0])), torch.tensor([3.0]))


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_saved_one_goes_on_where_it_was(steps):
    first, second = Baseline(hold=1), Baseline()
    for signal in torch.randn(steps).unbind():
        first(signal)
    second.load_state_dict(first.state_dict())
    for signal in torch.randn(3).unbind():
        assert_close(second(signal), first(signal))


def test_states_from_before_it_was_saved_load():
    baseline = Baseline(hold=3)
    baseline.load_state_dict({})
    assert baseline.hold == 3 and baseline.mean is None
