"""Distributions over lists of values. Truth: torch's Categorical and Bernoulli."""

import pytest
import torch
from torch.distributions import Bernoulli, Categorical
from torch.testing import assert_close

from pyrograph.posterior.finite import Finite, States, state_quantile

VALUES = torch.tensor([0.5, -2.0, 3.0], dtype=torch.float64)
ROWS = torch.eye(3, dtype=torch.float64)


def test_shapes_are_those_of_logits_and_values():
    one, rows = Finite(VALUES, torch.randn(4, 2, 3)), Finite(ROWS, torch.randn(4, 3))
    assert (one.batch_shape, one.event_shape) == ((4, 2), ())
    assert (rows.batch_shape, rows.event_shape) == ((4,), (3,))
    assert one.sample((7,)).shape == (7, 4, 2) and rows.sample((7,)).shape == (7, 4, 3)
    assert one.sample().shape == (4, 2)


@pytest.mark.parametrize("batch", [(), (4,), (4, 2)])
def test_log_prob_is_that_of_the_index(batch):
    logits = torch.randn(*batch, 3)
    index = torch.randint(3, (6, *batch))
    truth = Categorical(logits=logits).log_prob(index)
    assert_close(Finite(VALUES, logits).log_prob(VALUES[index]), truth)
    assert_close(Finite(ROWS, logits).log_prob(ROWS[index]), truth)


def test_values_that_are_not_listed_have_no_probability():
    fn = Finite(VALUES, torch.randn(2, 3), validate_args=False)
    assert_close(fn.log_prob(torch.tensor([0.5, 0.4])).exp()[1], torch.tensor(0.0))
    rows = Finite(ROWS, torch.randn(3), validate_args=False)
    assert rows.log_prob(torch.tensor([1.0, 1.0, 0.0])) == -torch.inf


def test_the_support_tells_listed_values_from_others():
    found = Finite(VALUES, torch.zeros(3)).support.check(torch.tensor([0.5, 0.6, 3.0]))
    assert found.tolist() == [True, False, True]
    rows = Finite(ROWS, torch.zeros(3)).support.check(torch.tensor([[0.0, 1, 0], [1.0, 1, 0]]))
    assert rows.tolist() == [True, False]


def test_frequencies_are_the_probabilities():
    probs = torch.tensor([0.2, 0.7, 0.1])
    draws = Finite(VALUES, probs.log()).sample((20000,))
    found = torch.stack([(draws == v).double().mean() for v in VALUES])
    assert_close(found, probs, rtol=0, atol=0.015)


@pytest.mark.parametrize("shape", [(), (1,), (5, 1)])
def test_values_broadcast_against_the_batch_as_in_torch(shape):
    logits = torch.randn(4, 2)
    value = torch.ones(shape)
    truth = Bernoulli(logits=logits[:, 1] - logits[:, 0]).log_prob(value)
    assert_close(Finite(torch.tensor([0.0, 1.0]), logits).log_prob(value), truth)


@pytest.mark.parametrize("expand", [True, False])
@pytest.mark.parametrize("values", [VALUES, ROWS])
def test_enumeration_sums_to_one(values, expand):
    fn = Finite(values, torch.randn(4, 2, 3))
    states = fn.enumerate_support(expand=expand)
    assert states.shape == (3, *((4, 2) if expand else (1, 1)), *values.shape[1:])
    assert_close(fn.log_prob(states).exp().sum(0), torch.ones(4, 2))


def test_expansion_repeats_the_distribution():
    fn = Finite(VALUES, torch.randn(3))
    wide = fn.expand(torch.Size([5, 2]))
    assert wide.batch_shape == (5, 2) and wide.sample().shape == (5, 2)
    value = VALUES[torch.randint(3, (5, 2))]
    assert_close(wide.log_prob(value), torch.stack([fn.log_prob(v) for v in value]))


def test_the_mode_is_the_most_probable_value():
    logits = torch.tensor([[0.0, 1.0, 0.5], [2.0, 1.0, 0.5]])
    assert Finite(VALUES, logits).mode.tolist() == [-2.0, 0.5]
    assert_close(Finite(ROWS, logits).mode, ROWS[[1, 0]])


def test_log_probabilities_differentiate_with_respect_to_logits():
    logits = torch.randn(3, requires_grad=True)
    Finite(VALUES, logits).log_prob(VALUES[1]).backward()
    truth = torch.eye(3)[1] - logits.detach().softmax(0)
    assert_close(logits.grad, truth)


def test_expanded_states_repeat_them():
    probs = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.1, 0.3]])
    values = torch.tensor([2.0, 3.0, 5.0])
    wide = States(values, probs.log()).expand(torch.Size([4, 2]))
    assert wide.batch_shape == (4, 2) and wide.sample((3,)).shape == (3, 4, 2)
    index = torch.randint(3, (4, 2))
    assert_close(
        wide.log_prob(index), probs.log().expand(4, 2, 3).gather(2, index[..., None])[..., 0]
    )
    assert_close(wide.mean, (probs @ values).expand(4, 2))
    vectors = States(torch.eye(3), probs[0].log()).expand((2,))
    assert_close(vectors.mean, probs[:1].expand(2, 3))


def test_states_have_the_moments_of_their_values():
    probs = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    values = torch.tensor([2.0, 3.0, 5.0])
    states = States(values, probs.log())
    mean = probs @ values
    assert_close(states.mean, mean)
    assert_close(states.variance, probs @ values**2 - mean**2)
    assert_close(states.probs, probs)
    one_hot = States(torch.eye(3), probs.log())
    assert_close(one_hot.mean, probs)
    assert_close(one_hot.variance, probs * (1 - probs))


@pytest.mark.parametrize("event", [(), (1,), (2, 1)])
def test_variances_of_large_values_keep_their_digits_in_single_precision(event):
    """Truth: three numbers about 2000, in Python's floats."""
    numbers = torch.tensor([1999.0, 2000.0, 2002.0], dtype=torch.float32)
    values = numbers.reshape(3, *(1,) * len(event)).expand(3, *event)
    weights = [0.25, 0.5, 0.25]
    logits = torch.tensor(weights, dtype=torch.float32).log().expand(4, 3)
    mean = sum(w * x for w, x in zip(weights, numbers.tolist(), strict=True))
    truth = sum(w * (x - mean) ** 2 for w, x in zip(weights, numbers.tolist(), strict=True))
    found = States(values, logits).variance
    assert_close(found, torch.full((4, *event), truth, dtype=torch.float32), rtol=1e-5, atol=0)


def test_the_last_quantile_is_a_state_that_is_reached():
    """Nine states of a ninth each, which add up to less than 1 by rounding, and one of none."""
    ninth = torch.full((9,), 1 / 9).nextafter(torch.zeros(9))
    probs = torch.cat([ninth, torch.zeros(1)])
    assert float(probs.cumsum(0)[-1]) < 1
    assert int(state_quantile(torch.arange(10.0), probs, 1.0)) == 8
