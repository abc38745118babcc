"""A zero is no dependence where it stays zero: a constant is, a parameter and a latent are not."""

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F

import pyrograph as pg

MASK = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
ORDER = torch.tensor([0, 2, 1, 1])
NORMAL = dist.Normal(torch.zeros(4, dtype=torch.float64), 1.0)
LOWER = torch.tril_indices(4, 4)


def in_place(x, w):
    y = x.clone()
    return y.mul_(w)


#: Functions of latents x ``[4]`` whose dependence goes through parameters w ``[4]``.
THROUGH = {
    "product": lambda x, w: w * x,
    "product, exchanged": lambda x, w: x * w,
    "product with a number": lambda x, w: w[0] * x,
    "broadcast product": lambda x, w: (w[:, None] * x).sum(0),
    "power": lambda x, w: (x**2 + 1) ** w,
    "power by a number": lambda x, w: (x**2 + 1) ** w[0],
    "look-up": lambda x, w: w[ORDER] * x,
    "embedding": lambda x, w: F.embedding(ORDER, w.reshape(4, 1))[:, 0] * x,
    "padding": lambda x, w: F.pad(w[:3], (1, 0)) * x,
    "choice": lambda x, w: torch.where(MASK > 0, w, 0.0) * x,
    "addcmul": lambda x, w: torch.addcmul(w, x, w, value=2.0),
    "addcdiv": lambda x, w: torch.addcdiv(x, w, 1 + x.square()),
    "lerp": lambda x, w: torch.lerp(x, 2 * x + 1, w),
    "in place": in_place,
    "beside a latent": lambda x, w: torch.stack([w[0], x[0]]) * x[2:],
    "matrix product": lambda x, w: torch.diag(w) @ x,
    "matrix of latents": lambda x, w: w.expand(4, 4) @ x,
    "xlogy": lambda x, w: torch.xlogy(w, x.square() + 1),
    "quotient": lambda x, w: w / (1 + x.square()),
}


@pytest.mark.parametrize("at", [0.0, 0.7], ids=["at zero", "elsewhere"])
@pytest.mark.parametrize("name", THROUGH)
def test_gradients_of_parameters_are_those_of_the_function(name, at):
    f = THROUGH[name]
    w = torch.full((4,), at, dtype=torch.float64, requires_grad=True)

    def model(w):
        x = pyro.sample("x", NORMAL.mask(False))
        pyro.factor("f", torch.sin(f(x, w)).sum() + f(x, w).sum())

    graph = pg.trace_graph(model, (w,), differentiable=True)
    x = torch.tensor([0.4, -1.3, 2.1, 0.9], dtype=torch.float64)
    (expected,) = torch.autograd.grad(torch.sin(f(x, w)).sum() + f(x, w).sum(), w)
    (whole,) = torch.autograd.grad(graph.log_prob({"x": x}), w, retain_graph=True)
    flat = graph.flatten({"x": x[None]})
    terms = (g.log_prob(graph.local_values(g, flat)).sum() for g in graph.factors)
    (local,) = torch.autograd.grad(graph.constant + sum(terms), w)
    torch.testing.assert_close(whole, expected)
    torch.testing.assert_close(local, expected)


def test_the_evidence_of_a_coupling_of_zero_differentiates():
    """Truth: the mean of the pair's statistic over the states, by enumeration."""
    coupling = torch.zeros((), dtype=torch.float64, requires_grad=True)
    logits = torch.tensor([0.3, -0.6, 0.9], dtype=torch.float64)

    def ising(coupling):
        b = pyro.sample("b", dist.Bernoulli(logits=logits))
        pyro.factor("pairs", coupling * (b[1:] * b[:-1]).sum())

    posterior = pg.fit(ising, (coupling,), infer=pg.BP, progress=False)
    (slope,) = torch.autograd.grad(posterior.log_evidence, coupling)
    states = torch.cartesian_prod(*[torch.arange(2.0, dtype=torch.float64)] * 3)
    weights = dist.Bernoulli(logits=logits).log_prob(states).sum(1).exp()
    torch.testing.assert_close(slope, (weights * (states[:, 1:] * states[:, :-1]).sum(1)).sum())


def lagged(x, z, b):
    return z + b * torch.cat([torch.zeros(1), z[:-1]])


def bidiagonal(x, z, b):
    matrix = torch.zeros(4, 4)
    matrix[range(4), range(4)] = x
    matrix[range(1, 4), range(3)] = x[1:]
    return (matrix * z).sum(-1)


def triangle(x, z, b):
    matrix = torch.zeros(4, 4)
    matrix[LOWER[0], LOWER[1]] = x[LOWER[0]]
    return (matrix * z).sum(-1)


def masked(x, z, b):
    return MASK * z * b


def chosen(x, z, b):
    return torch.where(MASK > 0, z, 0.0) * b


def exponents(x, z, b):
    return (b.square() + 1) ** torch.where(MASK > 0, z, 0.0)


#: What each element of the result reads.
READS = {
    lagged: ["z0", "b z0 z1", "b z1 z2", "b z2 z3"],
    bidiagonal: ["x0 z0", "x1 z0 z1", "x2 z1 z2", "x3 z2 z3"],
    triangle: ["x0 z0", "x1 z0 z1", "x2 z0 z1 z2", "x3 z0 z1 z2 z3"],
    masked: ["b z0", "b z2"],
    chosen: ["b z0", "b z2"],
    exponents: ["b z0", "b z2"],
}


@pytest.mark.parametrize("f", READS, ids=lambda f: f.__name__)
def test_a_constant_zero_beside_latents_is_no_dependence(f):
    def model():
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("elements", 4):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(f(x, z, b), 1.0), obs=torch.ones(4))

    graph = pg.trace_graph(model)
    named = [[site + "".join(map(str, index)) for site, index in s] for s in graph.scopes("y")]
    assert [" ".join(scope) for scope in named] == READS[f]
    values = {"b": torch.tensor(0.3), "x": torch.randn(4), "z": torch.randn(4)}
    likelihood = dist.Normal(f(values["x"], values["z"], values["b"]), 1.0)
    prior = sum(dist.Normal(0.0, 1.0).log_prob(v).sum() for v in values.values())
    expected = likelihood.log_prob(torch.ones(4)).sum() + prior
    torch.testing.assert_close(graph.log_prob(values), expected)


def test_a_latent_that_is_zero_now_keeps_its_dependence():
    def model():
        with pyro.plate("elements", 4):
            b = pyro.sample("b", dist.Bernoulli(0.1))
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("f", torch.sin(F.pad(b, (0, 1)) * F.pad(x, (0, 1))))

    graph = pg.trace_graph(model)
    assert graph.scopes("f") == [(("b", (k,)), ("x", (k,))) for k in range(4)]


def test_a_coefficient_of_a_sum_that_is_zero_differentiates():
    """By hand: y x_2."""
    w = torch.zeros((), requires_grad=True)

    def model(w):
        with pyro.plate("n", 3):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
        y = pyro.sample("y", dist.Normal(0.0, 1.0))
        pyro.factor("f", (x[0] + x[1] + w * x[2]) * y)

    graph = pg.trace_graph(model, (w,), differentiable=True)
    values = {"x": torch.tensor([0.1, 0.2, 1.15]), "y": torch.tensor(2.0)}
    (slope,) = torch.autograd.grad(graph.sum_of_factors(values), w)
    torch.testing.assert_close(slope, torch.tensor(2.3))
