"""Nodes that no factor reads, as masks leave them: they are left out, as by Pyro's enumeration."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Importance, Predictive, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.ops.indexing import Vindex

import pyrograph as pg
from pyrograph.errors import InferenceError, ShapeMismatch

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


def fit(model, infer, **options):
    if infer is pg.QBethe:
        options = {"num_steps": 50, "num_components": 1}
    return pg.fit(model, infer=infer, progress=False, **options)


DISCRETE = [pg.BP, pg.EP, pg.TRW, pg.VMP, pg.QBethe, pg.DPVI, pg.SequentialDPVI]


@pytest.mark.parametrize("infer", DISCRETE)
def test_a_masked_discrete_node_is_named_and_adds_nothing_to_the_evidence(infer):
    options = {"num_particles": 243} if infer in (pg.DPVI, pg.SequentialDPVI) else {}
    q = fit(chains, infer, **options)
    assert (
        'No factor reads node "z2"[1] (masked out): the evidence leaves it out, as Pyro\'s '
        "enumeration does, and its belief says nothing."
    ) in q.status
    pyros = -TraceEnum_ELBO(max_plate_nesting=1).loss(
        config_enumerate(chains, "parallel"), lambda: None
    )
    assert abs(pyros - forward()) < 1e-5
    if infer in (pg.VMP, pg.QBethe):
        assert q.evidence_kind == "lower bound" and float(q.log_evidence) < forward()
    else:
        assert q.evidence_kind == "exact" and abs(float(q.log_evidence) - forward()) < 1e-8
    near = 0.02 if infer is pg.QBethe else 1e-6
    assert float((q.marginal("z2").probs[1] - 1 / 3).abs().max()) < near


def obs_mask_of_labels():
    z = pyro.sample("z", dist.Categorical(torch.tensor([0.5, 0.5])))
    with pyro.plate("n", 3):
        seen = torch.tensor([True, False, True])
        probs = torch.tensor(B)[z]
        pyro.sample("y", dist.Categorical(probs), obs=torch.tensor([0, 1, 2]), obs_mask=seen)


@pytest.mark.parametrize("infer", DISCRETE)
def test_several_masked_nodes_are_told_of_once(infer):
    q = fit(obs_mask_of_labels, infer, **({"num_particles": 6} if "DPVI" in infer.__name__ else {}))
    assert (
        'No factor reads 2 nodes (masked out), "y_unobserved"[0] the first: the evidence leaves '
        "them out, as Pyro's enumeration does, and their beliefs say nothing."
    ) in q.status
    truth = math.log(0.5 * (B[:2, 0] * B[:2, 2]).sum())
    slack = 1e-8 if q.evidence_kind == "exact" else 0.3
    assert truth - slack <= float(q.log_evidence) <= truth + 1e-8


def test_particles_that_differ_in_masked_nodes_alone_do_not_crowd_out_others():
    """Six particles are all joint states of what is read; of two masked nodes there are nine."""
    q = fit(obs_mask_of_labels, pg.DPVI, num_particles=6)
    assert q.evidence_kind == "exact" and len(q.weights) == 6


def test_a_filter_takes_in_what_was_masked_out_when_a_longer_program_reads_it():
    lengths = torch.tensor([5, 3, 1])
    seen = torch.randint(3, (3, 6), generator=torch.Generator().manual_seed(0))

    def padded(until):
        z = 0
        with pyro.plate("s", 3, dim=-1):
            for t in pyro.markov(range(6)):
                with poutine.mask(mask=(t < lengths) & (t < until)):
                    z = pyro.sample(f"z{t}", dist.Categorical(Vindex(torch.tensor(A))[z]))
                    emit = dist.Categorical(Vindex(torch.tensor(B))[z])
                    pyro.sample(f"y{t}", emit, obs=seen[:, t])

    def truth(until):
        total = 0.0
        for s in range(3):
            alpha = A[0] * B[:, seen[s, 0]]
            for t in range(1, min(until, int(lengths[s]))):
                alpha = alpha @ A * B[:, seen[s, t]]
            total += math.log(alpha.sum())
        return total

    def engine():
        return pg.SequentialDPVI(padded, num_particles=3**9, progress=False)

    growing, whole = engine(), engine()
    q = growing.run(2)
    assert q.evidence_kind == "exact" and abs(float(q.log_evidence) - truth(2)) < 1e-8
    assert torch.equal(growing.filtered("z4"), torch.full((3, 3), 1 / 3, dtype=torch.float64))
    q, one = growing.extend(6), whole.run(6)
    assert q.status.startswith("converged") and q.evidence_kind == one.evidence_kind == "exact"
    assert abs(float(q.log_evidence) - truth(6)) < 1e-8
    torch.testing.assert_close(growing.filtered("z4"), whole.filtered("z4"))
    again = engine().setup(6)
    again.load_state_dict(growing.state_dict())
    assert torch.equal(again.posterior().log_evidence, q.log_evidence)
    with pytest.raises(ShapeMismatch, match="is masked out there"):
        growing.extend(2)


@pytest.mark.parametrize("infer", [pg.BP, pg.VMP, pg.DPVI])
def test_where_all_nodes_are_read_the_status_has_no_note(infer):
    def model():
        z = pyro.sample("z", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Normal(z, 1.0), obs=torch.tensor(1.0))

    assert "No factor reads" not in fit(model, infer).status


# ---------------------------------------------------------------------- continuous nodes
SEEN = torch.tensor([True, False, True, True, False])
X = torch.tensor([1.0, 0.0, -1.0, 0.5, 0.0])
Y = torch.tensor([1.2, 0.7, -0.8, 0.2, -1.5])


def missing_values():
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    with pyro.plate("n", 5):
        x = pyro.sample("x", dist.Normal(m, 1.0), obs=X, obs_mask=SEEN)
        pyro.sample("y", dist.Normal(x, 0.5), obs=Y)


def missing_values_in_closed_form() -> tuple[float, float, float]:
    """Log evidence, mean and variance of m."""
    log_z = dist.Normal(X[SEEN], 0.5).log_prob(Y[SEEN]).sum()  # y of a seen x says nothing of m
    precision = torch.tensor([1.0, 1.0, 1.0, 0.8, 0.8])  # 1 / (1 + .25) of m where x is missing
    data = torch.cat([X[SEEN], Y[~SEEN]])
    joint = dist.MultivariateNormal(torch.zeros(5), torch.diag(1 / precision) + 1.0)
    variance = 1 / (1 + precision.sum())
    mean = variance * (precision * data).sum()
    return float(log_z + joint.log_prob(data)), float(mean), float(variance)


ONE = {"num_components": 1, "covariance": "full"}


@pytest.mark.parametrize("infer, options", [(pg.BP, {}), (pg.EP, {}), (pg.QBethe, ONE)])
def test_missing_values_have_the_posterior_in_closed_form_and_guides_compose(infer, options):
    pyro.set_rng_seed(0)
    q = pg.fit(missing_values, infer=infer, progress=False, **options)
    log_z, mean, variance = missing_values_in_closed_form()
    assert float(q.log_evidence) == pytest.approx(log_z, abs=1e-5)
    assert float(q.marginal("m").mean) == pytest.approx(mean, abs=1e-5)
    assert float(q.marginal("m").variance) == pytest.approx(variance, abs=1e-5)
    missing = q.marginal("x_unobserved").mean[~SEEN]  # between m and y, 1 and 4 of precision
    torch.testing.assert_close(missing.float(), (mean + 4 * Y[~SEEN]) / 5, atol=1e-4, rtol=0)
    guide = q.guide()
    log_weights = torch.tensor(Importance(missing_values, guide, 200).run().log_weights)
    assert float((log_weights - log_z).abs().max()) < 1e-3  # the guide is the posterior
    copy = type(guide).from_state_dict(guide.state_dict())
    elbo = Trace_ELBO(20, vectorize_particles=True, max_plate_nesting=1)
    assert -elbo.loss(missing_values, copy) == pytest.approx(log_z, abs=1e-3)
    drawn = Predictive(missing_values, guide=guide, num_samples=7)()
    assert bool((drawn["x"][:, SEEN] == X[SEEN]).all())


def test_mean_field_of_missing_values_is_that_of_the_program_without_them():
    def without():
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("seen", 3):
            pyro.sample("x_seen", dist.Normal(m, 1.0), obs=X[SEEN])
            pyro.sample("y_seen", dist.Normal(X[SEEN], 0.5), obs=Y[SEEN])
        with pyro.plate("missing", 2):
            x = pyro.sample("x", dist.Normal(m, 1.0))
            pyro.sample("y", dist.Normal(x, 0.5), obs=Y[~SEEN])

    one, two = (pg.fit(model, infer=pg.VMP, progress=False) for model in (missing_values, without))
    assert float(one.log_evidence) == pytest.approx(float(two.log_evidence), abs=1e-6)
    assert float(one.marginal("m").variance) == pytest.approx(float(two.marginal("m").variance))


#: Sites of three elements of which the last is masked out with all that reads it.
LAST = torch.tensor([True, True, False])
OF_SUPPORTS = {
    "reals": lambda: dist.Normal(0.0, 1.0),
    "half-line": lambda: dist.HalfNormal(1.0),
    "interval": lambda: dist.Beta(2.0, 3.0),
    "simplex": lambda: dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0])),
    "vector": lambda: dist.MultivariateNormal(torch.zeros(2), torch.eye(2)),
}


@pytest.mark.parametrize("support", OF_SUPPORTS)
@pytest.mark.parametrize("infer", [pg.EP, pg.VMP, pg.QBethe])
def test_elements_that_are_masked_out_change_nothing_whatever_their_support(infer, support):
    def model(count, mask):
        with pyro.plate("n", count), poutine.mask(mask=mask):
            x = pyro.sample("x", OF_SUPPORTS[support]())
            level = x if x.dim() == 1 else x[..., 0]
            pyro.sample("y", dist.Normal(level, 1.0), obs=torch.ones(count))

    options = {"num_steps": 400, **ONE} if infer is pg.QBethe else {}
    pyro.set_rng_seed(0)
    masked = pg.fit(model, (3, LAST), infer=infer, progress=False, **options)
    shown = pg.fit(model, (2, LAST[:2]), infer=infer, progress=False, **options)
    assert float(masked.log_evidence) == pytest.approx(float(shown.log_evidence), abs=2e-4)
    mean = masked.marginal("x").mean
    torch.testing.assert_close(mean[:2], shown.marginal("x").mean, atol=2e-3, rtol=0)
    assert 'reads node "x"[2] (masked out)' in masked.status
    assert "masked out" not in shown.status


def test_states_that_are_masked_out_beside_a_gaussian_stop_no_closed_form():
    """One component of full covariance took them for numbers: torch's error about None."""

    def model():
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        pyro.sample("o", dist.Normal(m, 1.0), obs=torch.tensor(0.5))
        with pyro.plate("n", 2), poutine.mask(mask=torch.tensor([False, False])):
            x = pyro.sample("x", dist.Normal(m, 1.0))
            z = pyro.sample("z", dist.Categorical(torch.ones(3)))
            pyro.sample("y", dist.Normal(x + z, 1.0), obs=torch.ones(2))

    q = pg.fit(model, infer=pg.QBethe, progress=False, num_steps=300, **ONE)
    truth = float(dist.Normal(0.0, math.sqrt(2)).log_prob(torch.tensor(0.5)))
    assert q.evidence_kind == "lower bound"
    assert float(q.log_evidence) == pytest.approx(truth, abs=1e-3)
    assert 'reads 4 nodes (masked out), "x"[0] the first' in q.status


def test_a_node_without_prior_that_no_mask_hides_is_still_refused():
    def model():
        with pyro.plate("n", 3):
            x = pyro.sample("x", dist.Normal(0.0, 1.0).mask(False))
        pyro.factor("one", -(x[0] ** 2))

    with pytest.raises(InferenceError, match=r'no factor reads node "x"\[1\]'):
        pg.fit(model, infer=pg.EP, progress=False)


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
