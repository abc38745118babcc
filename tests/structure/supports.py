"""Sites on simplices, intervals, spheres of matrices; supports that depend on latents; float32."""

import pyro
import pyro.distributions as dist
import torch
from torch.distributions import constraints

from .case import Case, node, nodes, scope, singles


def constrained_sites():
    # One site of every common support, each with data of its own; no site reads another.
    def model(y):
        p = pyro.sample("p", dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0])))
        s = pyro.sample("s", dist.Gamma(2.0, 1.0))
        u = pyro.sample("u", dist.Uniform(-1.0, 2.0))
        c = pyro.sample("c", dist.LKJCholesky(3, 1.5))
        t = pyro.sample("t", dist.Pareto(1.0, 3.0))
        with pyro.plate("data", 3):
            pyro.sample("yp", dist.Normal(p.log(), 1.0), obs=y)
            pyro.sample("ys", dist.Normal(0.0, s), obs=y)
            pyro.sample("yu", dist.Normal(u, 1.0), obs=y)
            pyro.sample("yt", dist.Normal(t, 1.0), obs=y)
        pyro.sample("yc", dist.MultivariateNormal(torch.zeros(3), scale_tril=c), obs=y)

    scopes = {name: [scope(node(name))] for name in "psuct"}
    scopes |= {f"y{name}": [scope(node(name))] * 3 for name in "psut"}
    scopes["yc"] = [scope(node("c"))]
    args = (torch.randn(3),)
    # The density of the uniform prior is constant, its factor is listed all the same.
    return Case(model, args, scopes=scopes, jacobians=tuple("psuct"), static=("u",))


def simplices_in_a_plate():
    # A simplex of 4 is one node of 3 numbers; row i's count reads row i.
    def model(y):
        with pyro.plate("rows", 2):
            p = pyro.sample("p", dist.Dirichlet(torch.full((4,), 0.8)))
            pyro.sample("y", dist.Categorical(p), obs=y)

    scopes = {"p": singles("p", 2), "y": singles("p", 2)}
    return Case(model, (torch.tensor([0, 3]),), scopes=scopes, jacobians=("p",))


def ordered_cut_points():
    # OrderedLogistic with ordered cut points, one node; the predictor's slope is another.
    def model(x, y):
        base = dist.Normal(torch.zeros(3), 1.0).to_event(1)
        ordered = dist.transforms.OrderedTransform()
        cuts = pyro.sample("cuts", dist.TransformedDistribution(base, ordered))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.OrderedLogistic(b * x, cuts), obs=y)

    # P(y = k) is a difference of sigmoids of neighbouring cut points, all in one node.
    scopes = {
        "cuts": [scope(node("cuts"))],
        "b": [scope(node("b"))],
        "y": [scope(node("cuts"), node("b"))] * 4,
    }
    args = (torch.randn(4), torch.tensor([0, 1, 3, 2]))
    return Case(model, args, scopes=scopes, jacobians=("cuts",))


def bound_by_a_latent():
    # Uniform(0, theta): the density 1/theta and the support read theta; in unconstrained space
    # x = theta sigmoid(u), so whatever reads x reads theta too. log dx/du = log theta + log
    # sigmoid'(u): a sum of single terms.
    def model(y):
        theta = pyro.sample("theta", dist.Gamma(4.0, 1.0))
        with pyro.plate("data", len(y)):
            x = pyro.sample("x", dist.Uniform(0.0, theta))
            pyro.sample("y", dist.Normal(x, 1.0), obs=y)

    pair = [scope(node("theta"), node("x", i)) for i in range(3)]
    return Case(
        model,
        (torch.randn(3),),
        scopes={"theta": [scope(node("theta"))], "x": pair, "y": singles("x", 3)},
        unconstrained_scopes={
            "x": pair,
            "y": pair,
            "x:jacobian": [scope(node("theta")), *singles("x", 3)],
        },
        jacobians=("theta",),
        static=("x",),
        summed=("x:jacobian",),
    )


def truncated_from_below():
    # Pareto(m, 2) with a latent minimum in a chain: each support starts at the last value. (Its
    # log density 2 log m - 3 log x would be a sum, were it not read as a transformed exponential.)
    def model():
        x = pyro.sample("x0", dist.Exponential(1.0))
        for t in range(1, 4):
            x = pyro.sample(f"x{t}", dist.Pareto(x, 2.0))

    chain = {f"x{t}": [scope(node(f"x{t - 1}"), node(f"x{t}"))] for t in range(1, 4)}
    # x_t = x_{t-1} + e^{u_t} accumulates: x_t reads u_0 .. u_t.
    prefix = {f"x{t}": [scope(*(node(f"x{j}") for j in range(t + 1)))] for t in range(1, 4)}
    # d x_t / d u_t = e^{u_t}: the Jacobian reads u_t alone (the shift cancels by affine algebra,
    # torch writes it as a composition whose log slope is read off u_t).
    jacobians = {f"x{t}:jacobian": [scope(node(f"x{t}"))] for t in range(1, 4)}
    return Case(
        model,
        scopes={"x0": [scope(node("x0"))]} | chain,
        unconstrained_scopes=prefix | jacobians,
        jacobians=("x0",),
        pairwise=False,
    )


def angles():
    # VonMises on the circle, a pair per link.
    def model(source, target):
        with pyro.plate("n", 4):
            a = pyro.sample("a", dist.VonMises(0.0, 2.0))
        with pyro.plate("links", len(source)):
            concentration = torch.full((len(source),), 3.0)
            pyro.sample(
                "d", dist.VonMises(a[source] - a[target], concentration), obs=torch.zeros(3)
            )

    source, target = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3])
    scopes = {"a": singles("a", 4), "d": [nodes("a", [i, i + 1]) for i in range(3)]}
    return Case(model, (source, target), scopes=scopes, unconstrained=False)


def latent_concentration():
    # VonMises with a latent concentration (a Bessel function of it).
    def model(y):
        k = pyro.sample("k", dist.Gamma(2.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.VonMises(0.1, k), obs=y)

    scopes = {"k": [scope(node("k"))], "y": [scope(node("k"))] * 3}
    return Case(model, (torch.randn(3),), scopes=scopes, jacobians=("k",))


def covariance_matrices():
    # A positive definite matrix is one node (torch has no map from the reals to them).
    def model(y):
        w = pyro.sample("w", dist.Wishart(torch.tensor(5.0), torch.eye(3)))
        with pyro.plate("data", len(y)):
            mvn = dist.MultivariateNormal(torch.zeros(3), covariance_matrix=w)
            pyro.sample("y", mvn, obs=y)

    scopes = {"w": [scope(node("w"))], "y": [scope(node("w"))] * 2}
    return Case(model, (torch.randn(2, 3),), scopes=scopes, unconstrained=False)


def transformed():
    # An affine and an exponential map over a latent base; log-normal data.
    def model(y):
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        affine = dist.transforms.AffineTransform(m, 2.0)
        exp = dist.transforms.ExpTransform()
        x = pyro.sample("x", dist.TransformedDistribution(dist.Normal(0.0, 1.0), [affine, exp]))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.LogNormal(x, 1.0), obs=y)

    pair = scope(node("m"), node("x"))
    scopes = {"m": [scope(node("m"))], "x": [pair], "y": [scope(node("x"))] * 2}
    return Case(model, (torch.rand(2) + 0.1,), scopes=scopes, jacobians=("x",))


def improper_prior():
    # ImproperUniform cannot be sampled; its density is 0, so it adds no factor at all.
    def model(y):
        x = pyro.sample("x", dist.ImproperUniform(constraints.positive, (2,), ()))
        z = pyro.sample("z", dist.ImproperUniform(constraints.real, (), (2,)))
        pyro.sample("y", dist.Normal(z.sum(), x), obs=y)

    scopes = {"y": [nodes("x", [i]) | scope(node("z")) for i in range(2)]}
    draws = {"x": lambda: torch.rand(2) + 0.5, "z": lambda: torch.randn(2)}
    return Case(model, (torch.randn(2),), scopes=scopes, draws=draws, jacobians=("x",))


def single_precision():
    # float32 data make a float32 program; the tolerance is that of the type.
    def model(y, group):
        mu = pyro.sample("mu", dist.Normal(y.new_zeros(()), y.new_ones(())))
        s = pyro.sample("s", dist.HalfNormal(y.new_ones(())))
        with pyro.plate("groups", 3):
            a = pyro.sample("a", dist.Normal(mu, s))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.StudentT(y.new_tensor(4.0), a[group], s), obs=y)

    group = torch.tensor([0, 0, 1, 2])
    hyper = scope(node("mu"), node("s"))
    scopes = {
        "mu": [scope(node("mu"))],
        "s": [scope(node("s"))],
        "a": [hyper | nodes("a", [g]) for g in range(3)],
        "y": [scope(node("s"), node("a", g)) for g in group.tolist()],
    }
    args = (torch.randn(4, dtype=torch.float32), group)
    return Case(model, args, scopes=scopes, jacobians=("s",), tolerance=1e-4)


MODELS = [
    constrained_sites,
    simplices_in_a_plate,
    ordered_cut_points,
    bound_by_a_latent,
    truncated_from_below,
    angles,
    latent_concentration,
    covariance_matrices,
    transformed,
    improper_prior,
    single_precision,
]
