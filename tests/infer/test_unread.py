"""Nodes that no factor reads, as masks leave them: what they do to the evidence is said."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.ops.indexing import Vindex

import pyrograph as pg
from pyrograph.errors import InferenceError

A = np.array([[0.8, 0.15, 0.05], [0.1, 0.7, 0.2], [0.05, 0.25, 0.7]])
B = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]])
SEQUENCES, LENGTHS = [[0, 1, 2], [1, 1, 0]], [3, 2]


def chains():
    """Hidden Markov chains of different lengths, the steps beyond masked out."""
    z, lengths = 0, torch.tensor(LENGTHS)
    with pyro.plate("s", 2, dim=-1):
        for t in pyro.markov(range(3)):
            with poutine.mask(mask=t < lengths):
                z = pyro.sample(f"z{t}", dist.Categorical(Vindex(torch.tensor(A))[z]))
                seen = torch.tensor(SEQUENCES)[:, t]
                pyro.sample(f"y{t}", dist.Categorical(Vindex(torch.tensor(B))[z]), obs=seen)


def forward():
    """Log evidence of the chains, each of its own length."""
    total = 0.0
    for seen, length in zip(SEQUENCES, LENGTHS):
        alpha = A[0] * B[:, seen[0]]
        for t in range(1, length):
            alpha = alpha @ A * B[:, seen[t]]
        total += math.log(alpha.sum())
    return total


def fit(model, infer):
    options = {"num_steps": 50, "num_components": 1} if infer is pg.QBethe else {}
    return pg.fit(model, infer=infer, progress=False, **options)


@pytest.mark.parametrize(
    "infer", [pg.BP, pg.EP, pg.TRW, pg.VMP, pg.QBethe, pg.DPVI, pg.SequentialDPVI]
)
def test_a_masked_discrete_node_is_named_with_what_it_adds_to_the_evidence(infer):
    q = fit(chains, infer)
    text = 'No factor reads node "z2"[1] (masked out): each of its 3 states counts alike and adds '
    assert f"{text}log 3 to the evidence" in q.status
    assert "Sample the unmasked elements alone." in q.status
    if infer in (pg.BP, pg.EP, pg.TRW):
        assert abs(float(q.log_evidence) - math.log(3) - forward()) < 1e-8


def test_several_masked_nodes_are_told_of_once_with_all_that_they_add():
    def model():
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.5, 0.5])))
        with pyro.plate("n", 3):
            seen = torch.tensor([True, False, True])
            probs = torch.tensor(B)[z]
            pyro.sample("y", dist.Categorical(probs), obs=torch.tensor([0, 1, 2]), obs_mask=seen)

    q = fit(model, pg.BP)
    assert q.status.startswith(
        'converged. No factor reads 2 discrete nodes (masked out), "y_unobserved"[0] the first: '
        f"their states count alike and add {2 * math.log(3):.5g} to the evidence"
    )
    truth = math.log(0.5 * (B[:2, 0] * B[:2, 2]).sum())
    assert abs(float(q.log_evidence) - 2 * math.log(3) - truth) < 1e-8


@pytest.mark.parametrize("infer", [pg.BP, pg.VMP, pg.DPVI])
def test_where_all_nodes_are_read_the_status_has_no_note(infer):
    def model():
        z = pyro.sample("z", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Normal(z, 1.0), obs=torch.tensor(1.0))

    assert "No factor reads" not in fit(model, infer).status


def test_qbethe_refuses_a_continuous_node_that_is_masked_out_before_the_run():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 2.0))
        with pyro.plate("n", 3):
            seen = torch.tensor([True, False, True])
            pyro.sample("y", dist.Normal(x, 1.0), obs=torch.ones(3), obs_mask=seen)

    with pytest.raises(InferenceError, match=r'node "y_unobserved"\[0\].*unmasked elements'):
        pg.QBethe(model, progress=False).setup()


def partly_masked(how):
    """Two coins of .9, of the first of which no prior is to count, and what is seen of each."""

    def model():
        shown = torch.tensor([False, True])
        with pyro.plate("n", 2):
            fn = dist.Bernoulli(torch.tensor(0.9))
            mask = {"poutine": shown, "more axes": shown.expand(1, 2)}.get(how, True)
            with poutine.mask(mask=mask):
                x = pyro.sample("x", fn.mask(shown) if how == "distribution" else fn)
            pyro.sample("y", dist.Bernoulli(0.2 + 0.6 * x), obs=torch.ones(2))

    return model


@pytest.mark.parametrize("how", ["poutine", "distribution", "more axes"])
@pytest.mark.parametrize("infer", [pg.BP, pg.DPVI])
def test_masked_nodes_that_others_read_are_told_of(infer, how):
    q = fit(partly_masked(how), infer)
    expected = math.log(0.2 + 0.8) + math.log(0.1 * 0.2 + 0.9 * 0.8)  # as log_prob_sum() has it
    assert abs(float(q.log_evidence) - expected) < 1e-6
    assert (
        'Discrete nodes that are masked out (1, "x"[0] the first) count without their prior in '
        "what other statements say of them, as in log_prob_sum(), where Pyro's enumeration would "
        "keep the prior. Mask the observations alone."
    ) in q.status


def test_masks_that_leave_all_shown_or_hide_observations_alone_say_nothing():
    def model():
        with pyro.plate("n", 2):
            with poutine.mask(mask=torch.tensor([True, True])):
                x = pyro.sample("x", dist.Bernoulli(torch.tensor(0.9)))
            with poutine.mask(mask=torch.tensor([False, True])):
                pyro.sample("y", dist.Bernoulli(0.2 + 0.6 * x), obs=torch.ones(2))

    assert fit(model, pg.BP).status == "converged"


def test_a_field_of_factors_alone_has_no_priors_to_miss():
    def model():
        with pyro.plate("n", 2):
            x = pyro.sample("x", dist.Bernoulli(torch.tensor(0.5)).mask(False))
        pyro.factor("alike", 0.3 * x.prod())

    assert fit(model, pg.BP).status == "converged"
