"""Factors that are sums of terms of few numbers, against plates of scalars and dense quadrature."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import constraints
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import UnsupportedFactor
from tests.infer.message_passing_continuous.runs import fit

N = 7


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def design(rows=2 * N, n=N):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(rows, n, generator=g, dtype=torch.float64)
    return x, x[:, 0] + 0.5 * torch.randn(rows, generator=g, dtype=torch.float64)


X, Y = design()
ENGINES = [pg.EP, pg.VMP, pg.PowerEP]


def flat(n=N):
    return pyro.sample("w", dist.ImproperUniform(constraints.real_vector, (), (n,)))


def assert_same(whole, apart):
    """Of programs with a vector, and with it, or scalars, on a plate."""
    assert whole.converged and apart.converged
    assert whole.evidence_kind == apart.evidence_kind
    assert_close(whole.log_evidence, apart.log_evidence, rtol=0, atol=1e-6)
    own, others = whole.marginal("w"), apart.marginal("w")
    assert_close(own.mean, others.mean, rtol=0, atol=1e-6)
    assert_close(own.variance, others.variance, rtol=0, atol=1e-6)
    if hasattr(own, "covariance_matrix") and hasattr(others, "covariance_matrix"):
        assert_close(own.covariance_matrix, others.covariance_matrix, rtol=0, atol=1e-6)


# ---------------------------------------------------------------------- as on a plate
@pytest.mark.parametrize("infer", ENGINES)
@pytest.mark.parametrize("family, args", [(dist.Laplace, (0, 1)), (dist.StudentT, (3, 0, 1))])
def test_a_prior_of_independent_numbers_is_one_factor_of_each(infer, family, args):
    prior = family(*map(torch.tensor, map(float, args)))

    def whole():
        w = pyro.sample("w", prior.expand([N]).to_event(1))
        pyro.sample("y", dist.Normal(X @ w, 0.5).to_event(1), obs=Y)

    def apart():
        w = flat()
        with pyro.plate("numbers", N):
            pyro.factor("prior", prior.log_prob(w))
        pyro.sample("y", dist.Normal(X @ w, 0.5).to_event(1), obs=Y)

    assert_same(fit(whole, infer=infer), fit(apart, infer=infer))


@pytest.mark.parametrize("infer", ENGINES)
@pytest.mark.parametrize("noise", ["student", "logistic"])
def test_a_likelihood_of_many_observations_is_one_factor_of_each(infer, noise):
    data = Y if noise == "student" else (Y > 0).double()

    def outcome(w):
        if noise == "student":
            return dist.StudentT(4.0, X @ w, 0.5)
        return dist.Bernoulli(logits=X @ w)

    def whole():
        w = pyro.sample("w", dist.Normal(0.0, torch.ones(N)).to_event(1))
        pyro.sample("y", outcome(w).to_event(1), obs=data)

    def apart():
        w = pyro.sample("w", dist.Normal(0.0, torch.ones(N)).to_event(1))
        with pyro.plate("rows", len(data)):
            pyro.sample("y", outcome(w), obs=data)

    assert_same(fit(whole, infer=infer), fit(apart, infer=infer))


@pytest.mark.parametrize("infer", ENGINES)
@pytest.mark.parametrize(
    "family, args",
    [
        (dist.Gamma, (2, 1)),
        (dist.HalfNormal, (1,)),
        (dist.LogNormal, (0, 1)),
        (dist.Cauchy, (0, 1)),
    ],
)
def test_scalars_are_the_numbers_of_a_vector(infer, family, args):
    prior = family(*map(torch.tensor, map(float, args)))
    y = torch.linspace(0.5, 3.0, N)

    def whole():
        w = pyro.sample("w", prior.expand([N]).to_event(1))
        pyro.sample("y", dist.Normal(w, 1.0).to_event(1), obs=y)

    def apart():
        with pyro.plate("numbers", N):
            w = pyro.sample("w", prior)
            pyro.sample("y", dist.Normal(w, 1.0), obs=y)

    assert_same(fit(whole, infer=infer), fit(apart, infer=infer))


@pytest.mark.parametrize("infer", [pg.EP, pg.VMP])
def test_terms_read_the_scale_of_all(infer):
    y = torch.linspace(-1.0, 2.0, N)

    def whole():
        scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
        w = pyro.sample("w", dist.Laplace(0.0, scale * torch.ones(N)).to_event(1))
        pyro.sample("y", dist.Normal(w, 0.5).to_event(1), obs=y)

    def apart():
        scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
        with pyro.plate("numbers", N):
            w = pyro.sample("w", dist.Laplace(0.0, scale))
            pyro.sample("y", dist.Normal(w, 0.5), obs=y)

    one, other = fit(whole, infer=infer), fit(apart, infer=infer)
    assert_same(one, other)
    assert_close(one.marginal("scale").mean, other.marginal("scale").mean, rtol=0, atol=1e-6)


@pytest.mark.parametrize("infer", [pg.EP, pg.VMP])
def test_rows_of_a_plate_and_matrices_are_divided(infer):
    y = torch.linspace(-2.0, 2.0, 3 * N).view(3, N)

    def rows():
        with pyro.plate("rows", 3):
            w = pyro.sample("w", dist.Laplace(0.0, torch.ones(N)).to_event(1))
            pyro.sample("y", dist.Normal(w, 0.5).to_event(1), obs=y)

    def matrix():
        w = pyro.sample("w", dist.Laplace(0.0, torch.ones(3, N)).to_event(2))
        pyro.sample("y", dist.Normal(w, 0.5).to_event(2), obs=y)

    assert_same(fit(rows, infer=infer), fit(matrix, infer=infer))


def test_labels_choose_vectors_with_student_noise():
    """At alpha = 0 the terms are those of every number on a plate of its own."""
    g = torch.Generator().manual_seed(1)
    data = torch.cat([torch.randn(6, N, generator=g) + 2, torch.randn(6, N, generator=g) - 2])
    loc = torch.tensor([[1.0], [-1.0]]).expand(2, N)

    def whole():
        w = pyro.sample("w", dist.Normal(loc, 1.0).to_event(2))
        with pyro.plate("rows", 12):
            z = pyro.sample("z", dist.Categorical(torch.ones(2)))
            pyro.sample("y", dist.StudentT(4.0, w[z], 1.0).to_event(1), obs=data)

    def apart():
        w = pyro.sample("w", dist.Normal(loc, 1.0).to_event(2))
        with pyro.plate("rows", 12, dim=-2):
            z = pyro.sample("z", dist.Categorical(torch.ones(2)))
            with pyro.plate("numbers", N, dim=-1):
                pyro.sample("y", dist.StudentT(4.0, w[z.squeeze(-1)], 1.0), obs=data)

    assert_same(fit(whole, infer=pg.VMP), fit(apart, infer=pg.VMP))
    by_ep = fit(whole)
    assert by_ep.converged
    assert_close(
        by_ep.marginal("w").mean, fit(whole, infer=pg.VMP).marginal("w").mean, atol=0.02, rtol=0
    )


def test_labels_choose_few_means_and_scales():
    """A grid serves three scales of a row, in minutes; on a plate they have one each."""
    g = torch.Generator().manual_seed(0)
    centre = torch.tensor([[-2.0, 1.0, 0.0], [2.0, -1.0, 1.0]])[torch.arange(8) % 2]
    data = centre + torch.tensor([0.5, 1.0, 0.8]) * torch.randn(8, 3, generator=g)
    loc = torch.tensor([[-1.0], [1.0]]).expand(2, 3)

    def whole():
        with pyro.plate("components", 2):
            w = pyro.sample("w", dist.Normal(loc, 2.0).to_event(1))
            scale = pyro.sample("scale", dist.LogNormal(torch.zeros(3), 0.5).to_event(1))
        with pyro.plate("rows", 8):
            z = pyro.sample("z", dist.Categorical(torch.tensor([0.4, 0.6])))
            pyro.sample("y", dist.Normal(w[z], scale[z]).to_event(1), obs=data)

    def apart():
        numbers = pyro.plate("numbers", 3, dim=-1)
        with pyro.plate("components", 2, dim=-2), numbers:
            w = pyro.sample("w", dist.Normal(loc, 2.0))
            scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
        with pyro.plate("rows", 8, dim=-2):
            z = pyro.sample("z", dist.Categorical(torch.tensor([0.4, 0.6])))
            with numbers:
                k = z.squeeze(-1)
                pyro.sample("y", dist.Normal(w[k], scale[k]), obs=data)

    assert_same(fit(whole), fit(apart))


def test_labels_that_choose_together_keep_rows_whole(monkeypatch):
    """Their parity chooses: of each alone nothing is known, so that terms would have to tell both
    by their messages: .31 off, where EP is .1. Truth: a sum over parities of dense integrals."""
    monkeypatch.setattr("pyrograph.infer.message_passing.network.local_factors.LARGE", 2**10)
    centre = torch.tensor([[-2.0, 1.0], [2.0, -1.0]])
    data = centre + torch.tensor([[0.3], [0.5]])

    def model():
        with pyro.plate("components", 2):
            w = pyro.sample("w", dist.Normal(centre / 2, 2.0).to_event(1))
        with pyro.plate("rows", 2):
            z = pyro.sample("z", dist.Bernoulli(0.5)).long()
            other = pyro.sample("other", dist.Bernoulli(0.5)).long()
            chosen = w[torch.tensor([[0, 1], [1, 0]])[z, other]]
            pyro.sample("y", dist.StudentT(4.0, chosen, 0.5).to_event(1), obs=data)

    grid = torch.linspace(-20, 20, 2001)[:, None, None, None]
    prior = dist.Normal(centre / 2, 2.0).log_prob(grid)  # [n, 1, components, numbers]
    each = dist.StudentT(4.0, grid, 0.5).log_prob(data[:, None])  # [n, rows, 1, numbers]
    log_z = []
    for rows in torch.cartesian_prod(torch.arange(2), torch.arange(2)):
        read = (each * torch.eye(2)[rows].unsqueeze(-1)).sum(1, keepdim=True) + prior
        log_z.append((read.exp().sum(0) * 0.02).log().sum() + 2 * math.log(0.5))
    q = fit(model)
    assert q.converged
    assert_close(q.log_evidence, torch.stack(log_z).logsumexp(0), rtol=0, atol=0.15)


# ---------------------------------------------------------------------- the truth
def truth_of_numbers(y, scale):
    """Log evidence, means and variances of w_i ~ Laplace(0, 1), y_i ~ N(w_i, scale)."""
    grid = torch.linspace(-12, 12, 240_001)
    log_p = dist.Laplace(0.0, 1.0).log_prob(grid) + dist.Normal(grid, scale).log_prob(y[:, None])
    log_z = log_p.logsumexp(1)
    p = (log_p - log_z[:, None]).exp()
    mean = p @ grid
    return (log_z + (grid[1] - grid[0]).log()).sum(), mean, p @ grid.square() - mean.square()


@pytest.mark.parametrize("n", [3, 5, 40])
def test_independent_numbers_are_exact(n):
    """A grid over five kinks at once said -8.8616 for -8.8756."""
    y = torch.linspace(-2.0, 2.0, n)

    def model():
        w = pyro.sample("w", dist.Laplace(0.0, torch.ones(n)).to_event(1))
        pyro.sample("y", dist.Normal(w, 0.5).to_event(1), obs=y)

    log_z, mean, variance = truth_of_numbers(y, 0.5)
    found = fit(model)
    assert_close(found.log_evidence, log_z, rtol=0, atol=1e-4 * n)
    assert_close(found.marginal("w").mean, mean, rtol=0, atol=1e-3)
    assert_close(found.marginal("w").variance, variance, rtol=0, atol=1e-3)
    bound = fit(model, infer=pg.VMP)
    assert bound.evidence_kind == "lower bound"
    assert bound.log_evidence <= log_z


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_nothing_but_a_belief_s_rounding_is_left_without_a_term(dtype):
    """What is left of the belief once is 4e-16 wide, once -4e-16: the grid stays where it is."""
    scale = torch.tensor([0.5, 2.0], dtype=dtype)

    def model():
        pyro.sample("w", dist.StudentT(4 * torch.ones_like(scale), 0.0, scale).to_event(1))

    found = fit(model, num_steps=40)
    assert found.converged
    spread = found.marginal("w").covariance_matrix
    assert_close(spread, torch.diag(2 * scale.square()), rtol=1e-4, atol=1e-5)


def test_few_coefficients_under_student_noise_are_projected_as_a_whole():
    x, y = design(8, 2)

    def model():
        w = pyro.sample("w", dist.Normal(0.0, torch.ones(2)).to_event(1))
        pyro.sample("y", dist.StudentT(4.0, x @ w, 0.5).to_event(1), obs=y)

    grid = torch.linspace(-5, 5, 801)
    w = torch.cartesian_prod(grid, grid)
    log_p = dist.Normal(0.0, 1.0).log_prob(w).sum(1)
    log_p = log_p + dist.StudentT(4.0, w @ x.T, 0.5).log_prob(y).sum(1)
    p = log_p.softmax(0)
    found = fit(model)
    step = 2 * (grid[1] - grid[0]).log()
    assert_close(found.log_evidence, log_p.logsumexp(0) + step, rtol=0, atol=1e-5)
    assert_close(found.marginal("w").mean, p @ w, rtol=0, atol=1e-5)


# ---------------------------------------------------------------------- around it
def lasso():
    w = pyro.sample("w", dist.Laplace(0.0, torch.ones(N)).to_event(1))
    pyro.sample("y", dist.StudentT(4.0, X @ w, 0.5).to_event(1), obs=Y)


def test_runs_resume():
    whole = pg.EP(lasso, progress=False)
    expected = whole.run()
    first = pg.EP(lasso, progress=False, num_steps=3, tol=None)
    first.run()
    second = pg.EP(lasso, progress=False)
    second.setup()
    second.load_state_dict(first.state_dict())
    assert_close(second.run().log_evidence, expected.log_evidence)
    assert second.num_done == whole.num_done
    warm = pg.EP(lasso, progress=False, init=whole.state_dict()["messages"])
    assert_close(warm.run().log_evidence, expected.log_evidence)
    assert warm.num_done < whole.num_done


def test_beliefs_of_the_factor_are_those_of_its_node():
    found = fit(lasso)
    node = found.marginal("w")
    for statement in ("w", "y"):
        mean, covariance = found.factor_marginal(statement)
        assert_close(mean, node.mean[None])
        assert_close(covariance, node.covariance_matrix[None])


def test_terms_on_one_scope_close_a_cycle():
    def model():
        a = pyro.sample("a", dist.Normal(torch.zeros(N), 1.0).to_event(1))
        x = pyro.sample("x", dist.StudentT(4.0, a, 0.5).to_event(1))
        pyro.sample("y", dist.Normal(x, 0.5).to_event(1), obs=Y[:N])

    found = fit(model)
    assert found.joint is None
    mean, covariance = found.factor_marginal("x")
    assert mean.shape == (1, 2 * N) and covariance.shape == (1, 2 * N, 2 * N)
    assert_close(mean[0, :N], found.marginal("a").mean)


def test_derivatives_are_those_on_a_plate():
    def value(is_whole):
        b = torch.tensor(0.8, requires_grad=True)

        def model():
            if is_whole:
                w = pyro.sample("w", dist.Laplace(0.0, b * torch.ones(N)).to_event(1))
            else:
                w = flat()
                with pyro.plate("numbers", N):
                    pyro.factor("prior", dist.Laplace(0.0, b).log_prob(w))
            pyro.sample("y", dist.Normal(X @ w, 0.5).to_event(1), obs=Y)

        evidence = fit(model).log_evidence
        (slope,) = torch.autograd.grad(evidence, b)
        return evidence.detach(), slope

    for own, other in zip(value(True), value(False), strict=True):
        assert_close(own, other, rtol=0, atol=1e-6)


def test_what_is_no_sum_is_refused_by_name():
    def model():
        w = pyro.sample("w", dist.MultivariateStudentT(4.0, torch.zeros(N), torch.eye(N)))
        pyro.sample("y", dist.Normal(w, 0.5).to_event(1), obs=Y[:N])

    with pytest.raises(UnsupportedFactor, match=r'factor "w"\[0\] .* on 7 continuous coordinates'):
        fit(model)


def test_terms_that_are_too_wide_are_refused_by_name():
    def model():
        with pyro.plate("rows", 2):
            w = pyro.sample("w", dist.Normal(0.0, torch.ones(6)).to_event(1))
            pyro.factor("far", -w.square().sum(-1).sqrt() - w.abs().sum(-1))

    with pytest.raises(UnsupportedFactor, match=r'factor "far"\[0\] .* on 6 continuous coord'):
        fit(model)
