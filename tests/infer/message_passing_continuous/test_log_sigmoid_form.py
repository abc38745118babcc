"""Mean field where log densities are sums of log sigmoids of single numbers, as those of logits and
of simplexes in unconstrained space are. Truth: the functions written out here, with a dense
trapezium rule on each number or a grid in all; enumeration of labels given conjugate weights."""

import itertools
import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import special
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.beliefs import Gaussian
from pyrograph.infer.message_passing.continuous import twins
from pyrograph.infer.message_passing.continuous.log_sigmoid_form import LogSigmoidForm
from tests.infer.message_passing_continuous.runs import fit

PRIOR = torch.tensor([1.5, 1.0, 2.0, 0.7, 1.2, 3.0, 1.5, 0.9], dtype=torch.float64)
COUNTS = torch.tensor([3.0, 0.0, 7.0, 1.0, 2.0, 5.0, 0.0, 9.0], dtype=torch.float64)


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def weights():
    p = pyro.sample("p", dist.Dirichlet(PRIOR))
    pyro.sample("y", dist.Multinomial(int(COUNTS.sum()), p), obs=COUNTS)


def forms(engine):
    """By statement."""
    pairs = zip(engine.network.blocks, engine.network.members, strict=True)
    blocks = {group.name: block for block, (group, _) in pairs}
    return {k: b.expected.closed for k, b in blocks.items() if getattr(b, "expected", None)}


def expected_stick(mean, sd):
    """E log s_k and E log(1 - s_k) of every break of a stick, ``[r]``."""
    z = torch.linspace(-12, 12, 4001)
    density = (-z * z / 2).exp() / math.sqrt(2 * math.pi)
    r = len(mean)
    u = mean[:, None] + sd[:, None] * z - torch.arange(r, 0, -1.0).log()[:, None]
    log_sigmoid = torch.nn.functional.logsigmoid
    return (torch.trapezoid(log_sigmoid(own) * density, z) for own in (u, -u))


def bound_by_hand(mean, sd):
    """E log joint + entropy of independent normals on the breaks."""
    taken, left = expected_stick(mean, sd)
    log_p = torch.cat([taken, taken.new_zeros(1)])
    log_p = log_p + torch.cat([left.new_zeros(1), left.cumsum(0)])
    # |dp / du| = prod p_k (1 - s_k) of all breaks
    log_jacobian = log_p[:-1].sum() + left.sum()
    log_prior = torch.lgamma(PRIOR.sum()) - torch.lgamma(PRIOR).sum() + ((PRIOR - 1) * log_p).sum()
    log_counts = torch.lgamma(COUNTS.sum() + 1) - torch.lgamma(COUNTS + 1).sum()
    log_joint = log_prior + log_counts + (COUNTS * log_p).sum() + log_jacobian
    return log_joint + 0.5 * (2 * math.pi * math.e * sd.square()).log().sum()


def test_beliefs_of_wide_weights_climb_to_the_top_of_the_bound():
    """No grid serves seven numbers; the bound by hand has the same top."""
    posterior = fit(weights, (), pg.VMP)
    mean = torch.zeros(7, requires_grad=True)
    log_sd = torch.full((7,), -1.0).requires_grad_()
    climb = torch.optim.LBFGS([mean, log_sd], max_iter=200, line_search_fn="strong_wolfe")

    def loss():
        climb.zero_grad()
        value = -bound_by_hand(mean, log_sd.exp())
        value.backward()
        return value

    climb.step(loss)
    top = bound_by_hand(mean, log_sd.exp())
    assert_close(posterior.log_evidence, top.detach(), atol=1e-7, rtol=0)
    assert posterior.evidence_kind == "lower bound"
    truth = torch.lgamma(COUNTS.sum() + 1) - torch.lgamma(COUNTS + 1).sum()
    truth = truth + torch.lgamma(PRIOR.sum()) - torch.lgamma(PRIOR).sum()
    truth = truth + torch.lgamma(PRIOR + COUNTS).sum() - torch.lgamma((PRIOR + COUNTS).sum())
    assert truth - 0.3 < posterior.log_evidence < truth


@pytest.mark.parametrize("count", [0, 3, 40])
def test_shares_are_sticks_broken_once(count):
    """Truth: a beta belief's evidence, above a bound that another width or mean would lower."""

    def model():
        s = pyro.sample("s", dist.Beta(0.7, 1.4))
        pyro.sample("y", dist.Binomial(40, s), obs=torch.tensor(float(count)))

    engine = pg.VMP(model, progress=False)
    posterior = engine.run()
    assert all(isinstance(form, LogSigmoidForm) for form in forms(engine).values())
    a, b = 0.7 + count, 1.4 + 40 - count
    z = torch.linspace(-12, 12, 4001)

    def bound(mean, log_sd):
        sd = log_sd.exp()
        log_s, log_rest = (torch.nn.functional.logsigmoid(own * (mean + sd * z)) for own in (1, -1))
        average = torch.trapezoid((a * log_s + b * log_rest) * (-0.5 * z * z).exp(), z)
        return average / math.sqrt(2 * math.pi) + 0.5 * math.log(2 * math.pi * math.e) + log_sd

    at = torch.tensor([math.log(a / b), math.log(1 / a + 1 / b) / 2], requires_grad=True)
    climb = torch.optim.LBFGS([at], max_iter=100, line_search_fn="strong_wolfe")

    def loss():
        climb.zero_grad()
        value = -bound(*at)
        value.backward()
        return value

    climb.step(loss)
    constant = special.gammaln(2.1) - special.gammaln(0.7) - special.gammaln(1.4)
    constant += np.log(special.comb(40, count))
    top = float(bound(*at.detach())) + constant
    assert float(posterior.log_evidence) == pytest.approx(top, abs=1e-7)
    assert top < constant + special.betaln(a, b) < top + 0.2
    assert posterior.evidence_kind == "lower bound"


@pytest.mark.parametrize("is_event", [False, True])
def test_bounds_may_differ_by_element(is_event):
    """Truth: shares of what is between them, which are beta sites."""
    low, high = torch.tensor([0.0, -1.0, 2.0]), torch.tensor([1.0, 3.0, 2.5])

    def model(of_share):
        site = dist.Beta(torch.ones(3), 1.0) if of_share else dist.Uniform(low, high)
        if is_event:
            x = pyro.sample("x", site.to_event(1))
        else:
            with pyro.plate("elements", 3):
                x = pyro.sample("x", site)
        s = x if of_share else (x - low) / (high - low)
        pyro.factor("f", 2 * s[0].log() + 3 * (1 - s[1]).log() + s[2].log())

    found, truth = (fit(model, (of_share,), pg.VMP) for of_share in (False, True))
    assert_close(found.log_evidence, truth.log_evidence, atol=1e-9, rtol=0)
    assert found.evidence_kind == "lower bound"


def test_single_precision_knows_the_stick_too():
    def model():
        p = pyro.sample("p", dist.Dirichlet(PRIOR.float()))
        pyro.sample("y", dist.Multinomial(int(COUNTS.sum()), p), obs=COUNTS.float())

    fine = fit(weights, (), pg.VMP).log_evidence
    torch.set_default_dtype(torch.float32)
    found = fit(model, (), pg.VMP).log_evidence
    assert found.dtype == torch.float32
    assert_close(found.double(), fine, atol=1e-4, rtol=0)


def test_expectations_are_those_of_a_grid_whatever_the_covariance():
    def model():
        p = pyro.sample("p", dist.Dirichlet(PRIOR[:3]))
        pyro.sample("y", dist.Multinomial(9, p), obs=torch.tensor([2.0, 4.0, 3.0]))

    form = forms(pg.VMP(model, progress=False).setup())["y"]
    assert isinstance(form, LogSigmoidForm)
    mean, root = torch.tensor([0.3, -0.8]), torch.tensor([[0.7, 0.0], [0.6, 0.5]])
    found = form((mean[None, None], (root @ root.T)[None, None]), [])

    def average(u):
        axis, weight = (torch.as_tensor(a) for a in np.polynomial.hermite_e.hermegauss(80))
        z, w = torch.cartesian_prod(axis, axis), torch.cartesian_prod(weight, weight).prod(1)
        at = u + z @ root.T - torch.tensor([2.0, 1.0]).log()
        taken, left = (torch.nn.functional.logsigmoid(own) for own in (at, -at))
        log_f = 2 * taken[:, 0] + 4 * (left[:, 0] + taken[:, 1]) + 3 * left.sum(1)
        return (w * log_f).sum() / w.sum()

    log_ways = math.lgamma(10) - math.lgamma(3) - math.lgamma(5) - math.lgamma(4)
    assert_close(found.average[0, 0], average(mean) + log_ways, atol=1e-9, rtol=0)
    slope = torch.autograd.functional.jacobian(average, mean)
    bend = torch.autograd.functional.hessian(average, mean)
    assert_close(found.slope[0, 0], slope, atol=1e-8, rtol=0)
    assert_close(found.bend[0, 0], bend, atol=1e-7, rtol=0)


@pytest.mark.parametrize(
    "log_f",
    [
        lambda p: -(p[1] - p[0] * p[2]).square(),
        lambda p: (p[0] + p[2]).log(),
        lambda p: p[0].log() + 1e-6 * p[1] * p[2],
        lambda p: 3 * p[0].log() + p[0],
    ],
)
def test_other_functions_of_a_simplex_are_no_sums(log_f):
    def model():
        p = pyro.sample("p", dist.Dirichlet(PRIOR[:3]))
        pyro.factor("f", log_f(p))

    found = forms(pg.VMP(model, progress=False).setup())
    assert isinstance(found["p"], LogSigmoidForm)
    assert not isinstance(found["f"], LogSigmoidForm)


@pytest.mark.parametrize("log_f", [lambda p: p[1].log(), lambda p: (1 - p[0]).log()])
def test_what_reads_some_pieces_alone_has_the_same_bound_as_on_a_grid(log_f):
    """Truth: the same density in single pieces, which are beta sites."""

    def whole():
        p = pyro.sample("p", dist.Dirichlet(PRIOR[:4]))
        pyro.factor("f", 5 * log_f(p))

    def broken():
        rest = PRIOR[:4].flip(0).cumsum(0).flip(0)
        s = [pyro.sample(f"s{k}", dist.Beta(PRIOR[k], rest[k + 1])) for k in range(3)]
        left = torch.stack([1 - own for own in s]).cumprod(0)
        p = torch.stack([s[0], s[1] * left[0], s[2] * left[1], left[2]])
        pyro.factor("f", 5 * log_f(p))

    found, truth = (fit(model, (), pg.VMP).log_evidence for model in (whole, broken))
    assert_close(found, truth, atol=1e-5, rtol=0)


GIVEN = torch.tensor([[0, 1, 4, 0], [0, 1, 4, 2], [0, 3, 4, 0]])  # by annotator, of four items
SKILL = 2.0 + 6 * torch.eye(5, dtype=torch.float64)


def annotators():
    with pyro.plate("annotators", 3, dim=-2), pyro.plate("labels", 5, dim=-1):
        row = pyro.sample("row", dist.Dirichlet(SKILL))
    with pyro.plate("items", 4, dim=-1):
        z = pyro.sample("z", dist.Categorical(torch.ones(5)))
        with pyro.plate("by", 3, dim=-2):
            pyro.sample("y", dist.Categorical(row[torch.arange(3)[:, None], z]), obs=GIVEN)


def enumerated():
    """Evidence and marginals of the labels, rows integrated by their conjugate prior."""
    states = torch.tensor(list(itertools.product(range(5), repeat=4)))
    log_joint = torch.full((len(states),), -4 * math.log(5))
    for given in GIVEN:
        counts = torch.zeros(len(states), 5, 5)
        for n, label in enumerate(given):
            counts[torch.arange(len(states)), states[:, n], label] += 1
        after = SKILL + counts
        log_joint += (torch.lgamma(after) - torch.lgamma(SKILL)).sum((1, 2))
        log_joint -= (torch.lgamma(after.sum(2)) - torch.lgamma(SKILL.sum(1))).sum(1)
    share = torch.nn.functional.one_hot(states, 5) * log_joint.softmax(0)[:, None, None]
    return log_joint.logsumexp(0), share.sum(0)


def test_annotators_with_five_labels_need_no_grid():
    """Five labels were grids of four numbers in every state, and six were refused."""
    truth, marginals = enumerated()
    posterior = fit(annotators, (), pg.VMP)
    assert truth - 1.5 < posterior.log_evidence < truth
    found = posterior.marginal("z").probs
    assert bool((found.argmax(1) == marginals.argmax(1)).all())
    assert_close(found, marginals, atol=0.15, rtol=0)


def test_items_that_were_given_the_same_label_are_looked_at_once(monkeypatch):
    def block():
        engine = pg.VMP(annotators, progress=False).setup()
        pairs = zip(engine.network.blocks, engine.network.members, strict=True)
        (found,) = [own for own, (group, _) in pairs if group.name == "y"]
        return found

    each = block()
    monkeypatch.setattr(twins, "TIMES", 1.1)
    once = block()
    slots = once.local.continuous
    first, _ = twins.one_of_each(once.local, [once.rows[k] for k in slots])
    assert len(first) == 3 + 4 + 3 < len(GIVEN.flatten())  # labels that annotators gave
    mean, root = torch.randn(15, 4), torch.randn(15, 4, 4)
    nodes = Gaussian.from_moments(mean, root @ root.mT + 0.1 * torch.eye(4))
    few, every = (own.expected([nodes[own.rows[k]] for k in slots]) for own in (once, each))
    assert_close(few.average, every.average, atol=1e-12, rtol=1e-12)
    assert_close(few.slope, every.slope, atol=1e-12, rtol=1e-12)
    assert_close(few.bend, every.bend, atol=1e-12, rtol=1e-12)


X = torch.linspace(-2, 3, 30, dtype=torch.float64)
FAILURES = (X < 0.4).double()
TOTAL = torch.arange(30.0, dtype=torch.float64) + 1


@pytest.mark.parametrize(
    ("name", "observed", "trials", "successes"),
    [
        ("Bernoulli", FAILURES, torch.ones_like(X), FAILURES),
        ("Binomial", (TOTAL / 3).floor(), TOTAL, (TOTAL / 3).floor()),
        ("NegativeBinomial", (TOTAL / 2).floor(), TOTAL + (TOTAL / 2).floor(), (TOTAL / 2).floor()),
    ],
)
def test_logits_have_the_bound_by_hand(name, observed, trials, successes):
    """Rows far from their threshold, and of large slopes, among others."""
    offset = 0.3 - 40.0 * (X > 2.5)

    def model():
        w = pyro.sample("w", dist.Normal(0.0, 3.0))
        own = (TOTAL,) if name != "Bernoulli" else ()
        with pyro.plate("rows", 30):
            y = getattr(dist, name)(*own, logits=w * X + offset)
            pyro.sample("y", y, obs=observed)

    engine = pg.VMP(model, progress=False)
    posterior = engine.run()
    assert isinstance(forms(engine)["y"], LogSigmoidForm)
    z = torch.linspace(-12, 12, 4001)
    weight = (-0.5 * z * z).exp() / math.sqrt(2 * math.pi)
    half = {"logits": torch.zeros(30)}
    is_negative = name == "NegativeBinomial"
    y = dist.NegativeBinomial(TOTAL, **half) if is_negative else dist.Binomial(trials, **half)
    at_zero = y.log_prob(observed).sum() + trials.sum() * math.log(2)

    def bound(mean, log_sd):
        w = mean + log_sd.exp() * z
        x = w[:, None] * X + offset
        log_f = successes * torch.nn.functional.logsigmoid(x)
        log_f = (log_f + (trials - successes) * torch.nn.functional.logsigmoid(-x)).sum(1)
        log_f = log_f + dist.Normal(0.0, 3.0).log_prob(w) + at_zero
        return torch.trapezoid(log_f * weight, z) + 0.5 * math.log(2 * math.pi * math.e) + log_sd

    belief = posterior.marginal("w")
    mean, log_sd = belief.mean.detach(), belief.stddev.log().detach()
    assert_close(posterior.log_evidence, bound(mean, log_sd), atol=1e-8, rtol=0)
    slope = torch.autograd.functional.jacobian(bound, (mean, log_sd))
    assert max(map(abs, slope)) < 1e-4
    assert posterior.evidence_kind == "lower bound"


def test_a_probit_is_no_logit():
    def model():
        w = pyro.sample("w", dist.Normal(0.0, 3.0))
        pyro.factor("y", torch.special.log_ndtr(w * 2.0 - 1.0))

    engine = pg.VMP(model, progress=False).setup()
    assert not any(isinstance(form, LogSigmoidForm) for form in forms(engine).values())
