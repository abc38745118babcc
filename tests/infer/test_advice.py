"""Refusals name ways on that the program can take, and that lead to its own numbers."""

import math
import re

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.reparam import SymmetricStableReparam
from scipy import integrate, special

import pyrograph as pg
from pyrograph.errors import (
    ControlFlowError,
    UnsupportedFactor,
    UnsupportedSite,
    VerificationError,
)


def engines_named(text):
    return [getattr(pg, name) for name in re.findall(r"pg\.(\w+)", text)]


def takes(infer, model):
    return infer(model, progress=False).setup() is not None


def test_the_plane_in_the_place_of_an_angle_has_the_angles_evidence():
    def angle():
        t = pyro.sample("t", dist.VonMises(0.0, 2.0))
        pyro.sample("y", dist.VonMises(t, 3.0), obs=torch.tensor(0.5))

    def as_told():
        z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        t = torch.atan2(z[..., 1], z[..., 0])
        pyro.factor("t", dist.VonMises(0.0, 2.0).log_prob(t) + math.log(2 * math.pi))
        pyro.sample("y", dist.VonMises(t, 3.0), obs=torch.tensor(0.5))

    with pytest.raises(UnsupportedSite, match=r"add log\(2 pi\) to that factor"):
        pg.fit(angle, infer=pg.EP, progress=False)
    # I_0 of the resultant of both, over (2 pi) I_0(2) I_0(3)
    length = abs(2 + 3 * complex(math.cos(0.5), math.sin(0.5)))
    truth = special.i0(length) / (2 * math.pi * special.i0(2) * special.i0(3))
    graph = pg.trace_graph(as_told)

    def mass(t, r):
        z = torch.tensor([r * math.cos(t), r * math.sin(t)])
        return r * math.exp(float(graph.log_prob({"z": z})))

    found = integrate.dblquad(mass, 0, 8, -math.pi, math.pi, epsabs=1e-6)[0]
    assert abs(found - truth) < 1e-5


def test_auxiliary_sites_in_the_place_of_a_stable_density():
    """Truth: a dense grid over Pyro's integral."""
    y = torch.tensor([1.0, 2.0, 0.5])

    def model(stable=dist.Stable):
        scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 3):
            pyro.sample("y", stable(1.5, 0.0, scale, loc), obs=y)

    for stable in (dist.Stable, dist.StableWithLogProb):
        words = r'"y".*stable density.*config=\{"y": SymmetricStableReparam'
        with pytest.raises(ControlFlowError, match=words):
            pg.fit(model, (stable,), infer=pg.EP, progress=False)
    reparam = pyro.poutine.reparam(model, config={"y": SymmetricStableReparam()})
    q = pg.fit(reparam, infer=pg.EP, progress=False)
    z, step = torch.linspace(-5, 5, 41), 0.25
    scale, loc = (0.5 * z).exp()[:, None, None], z[:, None]
    log_p = dist.StableWithLogProb(1.5, 0.0, scale, loc).log_prob(y).sum(-1)
    log_p = log_p + dist.Normal(0.0, 1.0).log_prob(z) + dist.Normal(0.0, 1.0).log_prob(z)[:, None]
    mean = log_p.flatten().softmax(0).view(41, 41).sum(0) @ z
    assert q.converged
    assert abs(q.log_evidence - (log_p.logsumexp((0, 1)) + 2 * math.log(step))) < 0.05
    assert abs(q.marginal("loc").mean - mean) < 0.1  # measured: .056, a tenth of its sd


def slabs(X, y, is_product):
    """Coefficients that are in the regression or not."""
    with pyro.plate("columns", X.shape[1]):
        z = pyro.sample("z", dist.Bernoulli(0.2))
        scale = torch.tensor(1.0) if is_product else torch.where(z > 0, 1.0, 0.01)
        w = pyro.sample("w", dist.Normal(0.0, scale))
    pyro.sample("y", dist.Normal(X @ (z * w if is_product else w), 1.0).to_event(1), obs=y)


@pytest.mark.parametrize("infer", [pg.EP, pg.VMP, pg.QBethe])
def test_states_too_many_to_integrate_in_are_refused_and_not_begun(infer):
    X = torch.randn(5, 24)
    with pytest.raises(UnsupportedFactor, match=r"16,777,216 joint states.*b ~ Normal"):
        infer(slabs, progress=False).setup(X, X[:, 0], True)
    assert infer(slabs, progress=False).setup(X[:, :4], X[:, 0], False) is not None


def test_labels_that_choose_scales_of_coefficients_are_those_of_the_product():
    """Truth: given the labels of z * w, y is normal; a sum over all labels."""
    X = torch.randn(30, 6)
    y = 2 * X[:, 0] - 0.4 * X[:, 1] + torch.randn(30)
    q = pg.fit(slabs, (X, y, False), infer=pg.EP, progress=False)
    z = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 6)
    covariance = torch.eye(30) + (X * z.unsqueeze(-2)) @ X.T
    log_p = dist.MultivariateNormal(torch.zeros(30), covariance).log_prob(y)
    log_p = log_p + dist.Bernoulli(0.2).log_prob(z).sum(-1)
    assert q.converged
    torch.testing.assert_close(q.log_evidence, log_p.logsumexp(0), rtol=0, atol=0.05)
    of_labels = log_p.softmax(0) @ z
    torch.testing.assert_close(q.marginal("z").probs[:, 1], of_labels, rtol=0, atol=0.03)


def simplex():
    p = pyro.sample("p", dist.Dirichlet(torch.ones(8)))
    z = pyro.sample("z", dist.Categorical(p))
    pyro.sample("y", dist.Normal(1.0 * z, 1.0), obs=torch.tensor(2.0))


def heavy():
    w = pyro.sample("w", dist.MultivariateStudentT(4.0, torch.zeros(7), torch.eye(7)))
    pyro.sample("y", dist.Normal(w, 1.0).to_event(1), obs=torch.ones(7))


@pytest.mark.parametrize(("infer", "model"), [(pg.EP, simplex), (pg.EP, heavy), (pg.VMP, heavy)])
def test_a_node_of_many_coordinates_is_sent_to_engines_that_take_it(infer, model):
    with pytest.raises(UnsupportedFactor, match="7 continuous coordinates") as caught:
        infer(model, progress=False).setup()
    text = str(caught.value)
    assert "Split the statement" not in text and pg.QBethe in engines_named(text)
    assert all(takes(engine, model) for engine in engines_named(text))


def smooth(in_plate):
    at = torch.linspace(0, 1, 8)
    covariance = torch.exp(-((at[:, None] - at) ** 2)) + 0.1 * torch.eye(8)

    def model():
        f = pyro.sample("f", dist.MultivariateNormal(torch.zeros(8), covariance))
        y, seen = dist.Bernoulli(logits=f), torch.ones(8)
        if in_plate:
            with pyro.plate("at", 8):
                pyro.sample("y", y, obs=seen)
        else:
            pyro.sample("y", y.to_event(1), obs=seen)

    return model


def test_likelihoods_of_many_numbers_of_a_node_are_those_in_a_plate():
    whole, apart = (pg.fit(smooth(own), infer=pg.EP, progress=False) for own in (False, True))
    assert whole.converged and apart.converged
    assert float(whole.log_evidence) == pytest.approx(float(apart.log_evidence), abs=1e-4)


def test_products_with_sums_are_to_be_written_as_sums():
    def model(is_sum):
        x = pyro.sample("x", dist.Normal(torch.zeros(7), 1.0).to_event(1))
        rate = torch.exp(x[0])
        size = x.abs()
        pyro.factor("bound", -(rate * size).sum() if is_sum else -rate * size.sum())

    with pytest.raises(UnsupportedFactor, match=r'"bound" is a sum .* inside of the sum'):
        pg.EP(model, progress=False).setup(False)
    assert pg.fit(model, (True,), infer=pg.EP, progress=False).converged


def test_rows_of_probabilities_are_to_be_nodes_of_their_own():
    def model():
        w = pyro.sample("w", dist.Dirichlet(torch.full((2, 8), 2.0)).to_event(1))
        pyro.sample("y", dist.Categorical(w).to_event(1), obs=torch.tensor([0, 1]))

    with pytest.raises(UnsupportedFactor, match=r'rows of "w".*pyro\.plate.*"dirichlet"'):
        pg.EP(model, progress=False).setup()


def schools():
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("J", 4):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("y", dist.Normal(theta, 10.0), obs=torch.tensor([28.0, 8.0, -3.0, 7.0]))


def sums():
    a, b, c = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "abc")
    pyro.sample("y", dist.Normal(a + b + c, 1.0), obs=torch.tensor(1.0))


def triple():
    bits = [pyro.sample(name, dist.Bernoulli(0.5)) for name in "abc"]
    pyro.factor("f", bits[0] * bits[1] * bits[2])


@pytest.mark.parametrize("model", [schools, sums, triple])
def test_trees_send_wide_factors_to_engines_that_take_the_program(model):
    with pytest.raises(UnsupportedFactor, match="spanning trees") as caught:
        pg.TRW(model, progress=False).setup()
    named = engines_named(str(caught.value))
    assert named and all(takes(engine, model) for engine in named)
    assert (pg.BP in named) == (model is not schools)


def test_a_mask_changed_in_place_after_its_use_is_among_the_causes():
    seen = torch.tensor([[True, False, True], [True, True, False]])

    def model():
        with pyro.plate("animals", 2):
            first, z = torch.zeros(2).bool(), torch.ones(2)
            for t in range(3):
                with pyro.poutine.mask(mask=first):
                    z = pyro.sample(f"z{t}", dist.Bernoulli(0.2 + 0.6 * z))
                    pyro.sample(f"y{t}", dist.Bernoulli(0.1 + 0.6 * z), obs=seen[:, t].double())
                first |= seen[:, t]

    with pytest.raises(VerificationError, match=r"in place after a statement used it"):
        pg.trace_graph(model)


@pytest.mark.parametrize("infer", [pg.QBethe, pg.GraphicalSVGD, pg.Langevin])
def test_a_factor_without_a_derivative_is_named_and_the_ways_on_have_its_evidence(infer):
    """A step of height one at 0 under a standard normal: half of the mass is e times as much."""

    def rough(step):
        def model():
            with pyro.plate("nodes", 2):
                x = pyro.sample("x", dist.Normal(0.0, 1.0))
            pyro.factor("fine", -0.0 * x.sum())
            with pyro.plate("steps", 2):
                pyro.factor("step", step(x))

        return model

    heaviside = rough(lambda x: torch.heaviside(x, torch.tensor(0.5)))
    with pytest.raises(
        UnsupportedFactor, match=r'factor "step"\[0\] \(scope x\[0\]\).*heaviside'
    ) as e:
        pg.fit(heaviside, infer=infer, num_steps=3, progress=False)
    truth = torch.tensor(2 * math.log((1 + math.e) / 2))
    for engine in engines_named(str(e.value)):
        found = pg.fit(heaviside, infer=engine, progress=False).log_evidence
        torch.testing.assert_close(found, truth, rtol=0, atol=2e-3)
    by_where = rough(lambda x: torch.where(x > 0, 1.0, 0.0))
    assert takes(infer, by_where)
    found = pg.fit(by_where, infer=pg.EP, progress=False).log_evidence
    torch.testing.assert_close(found, truth, rtol=0, atol=2e-3)


# ---------------------------------------------------------------------- scales
@pytest.mark.parametrize("with_funnel", [True, False])
def test_scales_of_observations_are_not_said_to_scale_latent_sites(with_funnel):
    """`nu` is nearer to 0 than `lean`, and scales what is seen alone."""
    y = 1000 + torch.randn(40)

    def model(y):
        lean = pyro.sample("lean", dist.HalfNormal(1.0)) if with_funnel else torch.tensor(1.0)
        with pyro.plate("s", 8):
            b = pyro.sample("b", dist.Normal(0.0, lean))
            nu = pyro.sample("nu", dist.InverseGamma(30.0, 0.1))
        with pyro.plate("a", 40):
            worker = torch.arange(40) % 8
            pyro.sample("y", dist.Normal(b[worker], nu[worker].sqrt()), obs=y)

    engine = pg.GraphicalSVGD(model, num_particles=10, num_steps=5, progress=False)
    engine.run(y)
    assert "Stein" in engine.status
    assert ('site "lean" scales latent sites' in engine.status) == with_funnel
    assert 'site "nu" scales' not in engine.status


def test_a_change_of_variables_is_named_as_one():
    def model():
        p = pyro.sample("p", dist.Beta(2.0, 3.0))
        pyro.sample("y", dist.Bernoulli(p), obs=torch.tensor(1.0))

    with pytest.raises(UnsupportedFactor, match=r'the change of variables of site "p"|factor "p"'):
        pg.fit(model, infer=pg.BP, progress=False)
    graph = pg.trace_graph(model, unconstrained=True)
    (group,) = (g for g in graph.factors if g.name == "p:jacobian")
    expected = 'factor "p:jacobian"[0] (scope p, the change of variables of site "p")'
    assert graph.factor_name(group, 0) == expected
