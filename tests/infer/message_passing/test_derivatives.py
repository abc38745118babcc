"""Evidence and beliefs differentiate with respect to the program's tensors. Truth: finite
differences of whole runs, and enumeration on a tree."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

import pyrograph as pg

RUN = {"progress": False, "tol": 1e-13, "num_steps": 3000}
EDGES = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2]])


def ising(theta, w):
    with pyro.plate("nodes", len(theta)):
        x = pyro.sample("x", dist.Bernoulli(logits=theta))
    spin = 2 * x - 1
    with pyro.plate("edges", len(EDGES)):
        pyro.factor("pair", w * spin[EDGES[:, 0]] * spin[EDGES[:, 1]])


ENGINES = [
    (pg.BP, {}),
    (pg.EP, {}),
    (pg.FractionalBP, {"alpha": 0.5}),
    (pg.TRW, {}),
    (pg.VMP, {}),
    (pg.PowerEP, {"alpha": {"pair": 0.7}}),
]


@pytest.fixture
def point():
    torch.manual_seed(0)
    return torch.randn(4, requires_grad=True), torch.randn(5).mul(0.5).requires_grad_()


@pytest.mark.parametrize("engine, options", ENGINES, ids=lambda e: getattr(e, "__name__", ""))
def test_derivatives_are_those_of_finite_differences(engine, options, point):
    def value(theta, w):
        posterior = pg.fit(ising, (theta, w), infer=engine, **RUN, **options)
        # in one tensor: gradcheck passes over outputs that have no derivatives
        parts = posterior.marginal("x").probs[:, 1], posterior.factor_marginal("pair").flatten()
        return torch.cat([posterior.log_evidence.reshape(1), *parts])

    assert gradcheck(value, point, eps=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine, options", ENGINES, ids=lambda e: getattr(e, "__name__", ""))
@pytest.mark.parametrize("what", ["evidence", "marginal"])
def test_second_derivatives_are_refused_not_wrong(engine, options, what, point):
    posterior = pg.fit(ising, point, infer=engine, **RUN, **options)
    value = posterior.log_evidence if what == "evidence" else posterior.marginal("x").probs[0, 1]
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        torch.autograd.grad(value, point, create_graph=True)


def test_on_a_tree_the_derivative_of_the_evidence_is_the_expected_statistic():
    w = torch.tensor(0.4, requires_grad=True)

    def chain(w):
        with pyro.plate("nodes", 4):
            x = pyro.sample("x", dist.Bernoulli(logits=torch.tensor([0.3, -0.2, 0.1, 0.5])))
        with pyro.plate("edges", 3):
            pyro.factor("pair", w * x[:-1] * x[1:])

    posterior = pg.fit(chain, (w,), infer=pg.BP, **RUN)
    (slope,) = torch.autograd.grad(posterior.log_evidence, w)
    assert_close(slope, posterior.factor_marginal("pair")[:, 1, 1].sum().detach())


def test_parameters_of_the_store_are_learnt():
    """Couplings that generated the pair frequencies are found back by climbing the likelihood."""
    pyro.clear_param_store()

    def model():
        w = pyro.param("w", lambda: torch.tensor(0.0))
        with pyro.plate("nodes", 3):
            x = pyro.sample("x", dist.Bernoulli(logits=torch.zeros(3)))
        with pyro.plate("edges", 2):
            pyro.factor("pair", w * (2 * x[:-1] - 1) * (2 * x[1:] - 1))

    # E s_i s_j = tanh w on a tree: the mean field of the data is tanh .8
    target = 2 * torch.tensor(0.8).tanh()
    for _ in range(30):  # each leaves less than half of what is missing
        posterior = pg.fit(model, infer=pg.BP, progress=False)
        w = pyro.get_param_store()._params["w"]
        likelihood = target * w - posterior.log_evidence
        (slope,) = torch.autograd.grad(likelihood, w)
        with torch.no_grad():
            w += 0.5 * slope
    assert float(w.detach()) == pytest.approx(0.8, abs=1e-4)


def gaussian(mu, s, r):
    with pyro.plate("nodes", 3):
        x = pyro.sample("x", dist.Normal(mu, s.exp()))
    pyro.factor("smooth", -r * (x[0] - x[1]) ** 2 - r * (x[1] - x[2]) ** 2 - 0.3 * x[0] * x[2])
    with pyro.plate("data", 3):
        pyro.sample("y", dist.Normal(x * s, 1.0), obs=torch.ones(3))


def robust(mu, s, r):
    with pyro.plate("nodes", 3):
        x = pyro.sample("x", dist.Normal(mu, s.exp()))
    with pyro.plate("data", 3):
        pyro.sample("y", dist.StudentT(3.0, x * r, s.exp()), obs=torch.tensor([0.0, 1.0, 2.0]))
    pyro.factor("order", -r * torch.nn.functional.softplus(x[0] - x[1]))


@pytest.mark.parametrize(
    "program, engine",
    [
        (gaussian, pg.BP),
        (gaussian, pg.VMP),
        (robust, pg.EP),
        (robust, pg.PowerEP),
        (robust, pg.VMP),
    ],
    ids=lambda f: f.__name__,
)
def test_continuous_models_differentiate_too(program, engine):
    torch.manual_seed(1)
    at = [torch.randn(3), torch.tensor(0.2), torch.tensor(0.4)]

    def value(*args):
        posterior = pg.fit(program, args, infer=engine, **RUN)
        marginal = posterior.marginal("x")
        parts = posterior.log_evidence.reshape(1), marginal.mean, marginal.variance
        return torch.cat(parts)  # gradcheck passes over outputs that have no derivatives

    assert gradcheck(value, [t.requires_grad_() for t in at], eps=1e-5, atol=1e-5)


def test_without_gradients_nothing_is_attached(point):
    posterior = pg.fit(ising, tuple(t.detach() for t in point), infer=pg.BP, progress=False)
    assert not posterior.log_evidence.requires_grad
    with torch.no_grad():
        posterior = pg.fit(ising, point, infer=pg.BP, progress=False)
    assert not posterior.marginal("x").probs.requires_grad


def test_tables_and_constants_of_a_differentiable_graph_are_attached(point):
    graph = pg.trace_graph(ising, point, differentiable=True)

    def value(theta, w):
        graph = pg.trace_graph(ising, (theta, w), differentiable=True)
        weigh = torch.linspace(0, 1, 4).view(2, 2)
        return graph.constant + sum(
            (g.table() * (weigh if g.arity == 2 else weigh[0])).sum() for g in graph.factors
        )

    assert any(g.is_differentiable for g in graph.factors)
    assert gradcheck(value, point)
    assert not any(g.is_differentiable for g in pg.trace_graph(ising, point).factors)
