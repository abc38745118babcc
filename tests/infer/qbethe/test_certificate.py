"""What the evidence of a run is worth: against dense grids."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import special

import pyrograph as pg
from pyrograph.infer.qbethe.certificate import (
    FreeEnergy,
    Scattered,
    certify,
    integrated,
    scattered_energies,
)
from pyrograph.infer.qbethe.components import Components
from pyrograph.infer.qbethe.rules import fine, low_discrepancy, scattered


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def fit(model, **options):
    pyro.set_rng_seed(0)
    return pg.fit(model, infer=pg.QBethe, progress=False, **options)


Z = np.linspace(-8, 8, 2001)
AT_Z = np.exp(-0.5 * Z**2) / np.exp(-0.5 * Z**2).sum()


# ---------------------------------------------------------------------- ridges
def ridged(scale, reach, nodes=4, seen=None):
    """Uniform numbers whose neighbours' differences are cheap up to ``reach``, and rows of data
    that tell nothing about them."""

    def model():
        with pyro.plate("nodes", nodes):
            x = pyro.sample("x", dist.Uniform(0.0, 1.0))
        with pyro.plate("edges", nodes - 1):
            pyro.factor("tie", -(x[1:] - x[:-1]).abs().clamp_max(reach) / scale)
        if seen is not None:
            with pyro.plate("rows", len(seen)):
                pyro.sample("y", dist.Normal(0.0, 1.0), obs=seen)

    return model


def ridged_log_z(scale, reach, nodes=4, cells=3000):
    """By midpoints, from node to node."""
    x = (np.arange(cells) + 0.5) / cells
    step = np.exp(-np.minimum(abs(x[:, None] - x), reach) / scale) / cells
    mass = np.ones(cells)
    for _ in range(nodes - 1):
        mass = step @ mass
    return np.log(mass.mean())


def ridged_free_energy(q, scale, reach):
    """Of the mixture of a run with one component, by trapezoids."""
    nodes = q.mixture.sites["x"]
    m, s = (t[0, :, 0].numpy() for t in (nodes.mean, nodes.factor))
    u = m[:, None] + s[:, None] * Z
    x = special.expit(u)
    jacobian = (special.log_expit(u) + special.log_expit(-u)) @ AT_Z
    ties = [
        AT_Z @ (np.minimum(abs(a[:, None] - b), reach) / scale) @ AT_Z
        for a, b in zip(x[1:], x[:-1], strict=True)
    ]
    entropy = (np.log(s) + 0.5 * np.log(2 * np.pi * np.e)).sum()
    return jacobian.sum() - sum(ties) + entropy


def test_ridges_that_grids_line_up_with_lift_no_bound_above_the_evidence():
    """The diagonals of both grids lie on the ridges, and agree that these are wide."""
    q = fit(ridged(0.003, 0.01), num_components=1, num_steps=300)
    assert q.evidence_kind == "estimate" or float(q.log_evidence) < ridged_log_z(0.003, 0.01)


@pytest.mark.parametrize("scale, reach, atol", [(0.003, 0.01, 0.06), (0.05, 0.15, 0.02)])
def test_the_evidence_of_ridges_is_by_points_that_see_them(scale, reach, atol):
    q = fit(ridged(scale, reach), num_components=1, num_steps=80)
    truth = ridged_free_energy(q, scale, reach)
    assert float(q.log_evidence) == pytest.approx(truth, abs=atol)
    assert "num_quadrature" in q.status  # four points a number see less


def test_steep_smooth_tails_are_left_to_grids():
    """Scattered points miss them: E exp(-2 s) of wide components."""

    def model():
        s = pyro.sample("s", dist.Normal(0.0, 1.0))
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(x, s.exp()), obs=torch.tensor(1.3))

    q = fit(model, num_components=1, num_steps=5, init_scale=2.0)
    (m, r), (n, t) = (
        (float(q.mixture.sites[k].mean), float(q.mixture.sites[k].factor)) for k in ("s", "x")
    )
    prior = -0.5 * (m**2 + r**2 + n**2 + t**2) - np.log(2 * np.pi)
    square = ((1.3 - n) ** 2 + t**2) * np.exp(-2 * m + 2 * r**2)
    likelihood = -0.5 * np.log(2 * np.pi) - m - 0.5 * square
    entropy = np.log(r) + np.log(t) + np.log(2 * np.pi * np.e)
    assert r > 0.8
    assert float(q.log_evidence) == pytest.approx(prior + likelihood + entropy, abs=1e-3)
    assert q.evidence_kind == "lower bound"


# ---------------------------------------------------------------------- what is spoken of
def test_data_that_say_nothing_about_the_latents_change_nothing():
    """10 000 rows move the evidence by 14 000; what rules disagree about stays as it was."""
    y = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    rows = float(dist.Normal(0.0, 1.0).log_prob(y).sum())
    options = {"num_components": 1, "num_steps": 150}
    without, beside = (fit(ridged(0.004, 0.02, seen=seen), **options) for seen in (None, y))
    assert without.evidence_kind == beside.evidence_kind
    assert float(beside.log_evidence) - rows == pytest.approx(float(without.log_evidence))
    assert ("lived on errors" in without.status) == ("lived on errors" in beside.status)


@pytest.mark.parametrize("constant", [0.0, 1e6])
def test_the_size_of_what_is_integrated_is_the_deviation_of_its_potentials(constant):
    """sd of .1 x^4 under N(0, s^2): .1 s^4 sqrt(105 - 9). The prior is a closed form."""

    def model():
        with pyro.plate("two", 2):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
            pyro.factor("f", constant - 0.1 * x**4)

    pyro.set_rng_seed(0)
    run = pg.QBethe(model, num_components=1, num_quadrature=6, num_steps=1, progress=False)
    run.setup()
    with torch.no_grad():
        run.parameters["mean_0"].copy_(-run.network.kinds[0].centre / run.network.kinds[0].unit)
        mixture = Components(run.network.kinds, run.parameters)
        size = integrated(run.network, mixture, run._rules)
    expected = 0.1 * np.sqrt(96) * (mixture.scales[0] ** 4).sum().item()
    assert size == pytest.approx(expected, rel=1e-4)


def test_the_size_of_what_components_add_counts_terms_of_either_sign():
    """Two far components of the same weight add log 2 to the entropy of every node and scope. Of a
    chain of four nodes the inner two count -1 times, and three scopes once."""

    def model():
        with pyro.plate("four", 4):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("three", 3):
            pyro.factor("f", -((x[1:] - x[:-1]) ** 2))

    run = pg.QBethe(model, num_components=2, num_steps=1, progress=False)
    run.setup()
    with torch.no_grad():
        run.parameters["weights"].zero_()
        run.parameters["mean_0"].copy_(torch.tensor([-50.0, 50.0]).view(1, 2, 1, 1))
        mixture = Components(run.network.kinds, run.parameters)
        size = integrated(run.network, mixture, run._rules)
    assert size == pytest.approx(5 * np.log(2), rel=1e-4)


def test_what_scattered_points_may_be_off_by_is_three_standard_errors():
    """Of .1 |x y|, whose sd is .1 a b sqrt(1 - 4 / pi^2) at deviations a and b."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        y = pyro.sample("y", dist.Normal(0.0, 1.0))
        pyro.factor("f", -0.1 * (x * y).abs())

    pyro.set_rng_seed(0)
    run = pg.QBethe(model, num_components=1, num_steps=1, progress=False)
    run.setup()
    like = torch.zeros(())
    with torch.no_grad():
        run.parameters["mean_0"].copy_(-run.network.kinds[0].centre / run.network.kinds[0].unit)
        mixture = Components(run.network.kinds, run.parameters)
        seen = scattered_energies(run.network, mixture, like)
    deviation = 0.1 * mixture.scales[0].prod().item() * np.sqrt(1 - 4 / np.pi**2)
    points = len(scattered(1, like)(2, 1).points)
    assert seen.noise == pytest.approx(3 * deviation / np.sqrt(points), rel=0.05)


# ---------------------------------------------------------------------- rules
@pytest.mark.parametrize("dim", [2, 3, 4])
def test_second_grids_share_no_diagonal_with_the_first_and_have_normal_moments(dim):
    like = torch.zeros(())
    first, second = (fine(like, second=k)(dim, 1) for k in (False, True))
    on = []
    for rule in (first, second):
        off_centre = rule.points.norm(dim=1) > 0.5
        on.append(((rule.points[:, 0] - rule.points[:, 1]).abs() < 1e-6) & off_centre)
    assert bool(on[0].any()) and not bool(on[1].any())
    z = second.points
    for rule_moment, moment in (
        (second.weights @ z**2, [1.0] * dim),
        (second.weights @ z**4, [3.0] * dim),
        (second.weights @ z**6, [15.0] * dim),
        (second.weights @ (z[:, :1] ** 2 * z[:, 1:] ** 2), [1.0] * (dim - 1)),
    ):
        np.testing.assert_allclose(rule_moment, moment, atol=1e-9)


@pytest.mark.parametrize("dim", [3, 20])
def test_scattered_points_have_the_mean_and_the_variances_of_normal_ones(dim):
    rule = low_discrepancy(dim, 256, torch.zeros(0, dtype=torch.float64), seed=3)
    moments = ((rule.weights.unsqueeze(1) * rule.points**k).sum(0) for k in range(4))
    for found, expected in zip(moments, (1.0, 0.0, 1.0, 0.0), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_scattered_points_get_fewer_with_many_integrals():
    like = torch.zeros(())
    sizes = [len(scattered(n, like)(2, n).points) for n in (1, 4000, 10**6)]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] >= 256


# ---------------------------------------------------------------------- correlations within factors
def test_statements_of_one_scope_share_its_correlations_and_draws_have_them():
    """x ~ N(0, 1), y = x + N(0, .01), 1 = x + y + N(0, 1)."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        y = pyro.sample("y", dist.Normal(x, 0.1))
        pyro.sample("o", dist.Normal(x + y, 1.0), obs=torch.tensor(1.0))

    precision = np.array([[102.0, -99.0], [-99.0, 101.0]])
    q = fit(model, num_components=1, covariance="full", optimizer="lbfgs", num_steps=30)
    covariance = q.factor_marginal("y")[1][0]
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), rtol=0.02)
    drawn = q.sample(20_000)
    found = np.cov(torch.stack([drawn["x"], drawn["y"]]).numpy())
    np.testing.assert_allclose(found, np.linalg.inv(precision), rtol=0.04)


# ---------------------------------------------------------------------- the line search
def test_the_history_of_line_searches_ends_with_the_value_they_stay_at():
    def model():
        with pyro.plate("three", 3):
            x = pyro.sample("x", dist.Gamma(2.0, 1.0))
        pyro.sample("o", dist.Normal(x.sum(), 1.0), obs=torch.tensor(4.0))
        pyro.factor("f", -(x[1:] - x[:-1]).abs().sum())

    for seed in range(3):
        pyro.set_rng_seed(seed)
        run = pg.QBethe(
            model, num_components=2, num_steps=2, optimizer="lbfgs", hold_weights=0, progress=False
        )
        q = run.run()
        with torch.no_grad():
            value = float(run.objective(run.parameters, run._rules))
        assert float(q.history["objective"][-1]) == pytest.approx(value, abs=1e-9)


# ---------------------------------------------------------------------- what is said
@pytest.mark.parametrize(
    ("optimised", "second", "kind", "words", "not_said"),
    [
        ((-3.0, 1.0), (-3.0, 1.0), "lower bound", [], []),
        ((-2.0, 1.0), (-3.0, 1.0), "lower bound", ["num_quadrature"], ["num_entropy"]),
        ((-3.0, 2.0), (-3.0, 1.0), "lower bound", ["num_entropy"], ["num_quadrature"]),
        ((-2.0, 2.0), (-3.0, 1.0), "lower bound", ["num_quadrature and num_entropy"], []),
        ((-3.0, 1.0), (-2.0, 1.0), "estimate", ["some potential is"], ["widths"]),
        ((-3.0, 1.0), (-3.0, 2.0), "estimate", ["widths are"], ["potential"]),
        ((-4.0, 1.0), (-3.0, 1.0), "lower bound", [], []),
    ],
)
def test_the_certificate_says_which_integrals_differ(optimised, second, kind, words, not_said):
    found = FreeEnergy(-3.0, 1.0)
    rules = found, FreeEnergy(*second)
    got = certify(torch.zeros(()), FreeEnergy(*optimised), rules, None, 1.0, bounds=True)
    assert (float(got.evidence), got.kind) == (-2.0, kind)
    said = " ".join(got.notes)
    assert len(got.notes) == bool(words)
    assert all(word in said for word in words)
    assert not any(word in said for word in not_said)


def test_what_is_left_of_huge_numbers_is_no_evidence():
    # each of two rules and the scattered points beside it cancel to the last digit
    energies = (FreeEnergy(-2.3e25, 1.47), FreeEnergy(-7.1e13, 1.47))
    seen = Scattered((2.3e25, 7.1e13), 4.5e6)
    got = certify(torch.zeros(()), FreeEnergy(-1.6e17, 1.47), energies, seen, 1e27, bounds=True)
    assert got.kind == "estimate" and float(got.evidence) < -1e13
    assert got.notes


@pytest.mark.parametrize(("more", "evidence"), [((2.0, 1.0), -10), ((2.0, 4.0), -12)])
def test_where_grids_differ_points_are_believed_that_differ_less(more, evidence):
    grids = FreeEnergy(-12.0, 0.0), FreeEnergy(-10.0, 0.0)  # points give -10 and either -9 or -6
    got = certify(torch.zeros(()), grids[0], grids, Scattered(more, 0.0), 1.0, bounds=True)
    assert float(got.evidence) == evidence
    assert got.kind == "estimate"


def test_integrals_that_are_known_to_thousands_of_nats_are_no_bound():
    energies = (FreeEnergy(-3e4, 1.0), FreeEnergy(-3e4, 1.0))
    got = certify(torch.zeros(()), energies[0], energies, None, 1e8, bounds=True)
    assert got.kind == "estimate" and "known to 1e+05 nats" in got.notes[0]
    assert certify(torch.zeros(()), energies[0], energies, None, 1e5, True).kind == "lower bound"


# ---------------------------------------------------------------------- zeros
@pytest.mark.parametrize(("sd", "kind"), [(1.0, None), (0.4, "estimate"), (0.1, "lower bound")])
def test_zeros_that_the_declared_support_does_not_tell_of_leave_no_bound(sd, kind):
    """A uniform number's logit is beyond logit .9 = 2.2 with density zero, and so E log f is minus
    infinity under any Gaussian that does not end before, as the number of sd 0.1 does."""

    def model():
        logit = dist.transforms.SigmoidTransform().inv
        x = pyro.sample("x", dist.TransformedDistribution(dist.Uniform(0.1, 0.9), [logit]))
        pyro.sample("y", dist.Normal(x, sd), obs=torch.tensor(0.0))

    q = fit(model, num_components=1, num_steps=300)
    assert q.evidence_kind == kind
    assert ('factor "x"[0]' in q.status and "support" in q.status) == (kind != "lower bound")
    if kind is not None:
        u = np.linspace(0.1, 0.9, 20_001)
        log_z = np.log(np.trapezoid(np.exp(-0.5 * (special.logit(u) / sd) ** 2), u))
        log_z -= np.log(0.8 * sd * np.sqrt(2 * np.pi))
        assert log_z - 0.02 < q.log_evidence < log_z
