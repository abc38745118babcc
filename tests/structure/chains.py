"""Models along time: chains, hidden Markov models, autoregressions, change points."""

import pyro
import pyro.distributions as dist
import torch
from pyro.ops.indexing import Vindex

from .case import Case, node, nodes, scope, singles


def linear_chain():
    # x_t reads x_{t-1}; y_t reads x_t. Blanket of x_t: both neighbours.
    def model(y):
        x = 0.0
        for t in pyro.markov(range(len(y))):
            x = pyro.sample(f"x{t}", dist.Normal(x, 1.0))
            pyro.sample(f"y{t}", dist.Normal(x, 0.5), obs=y[t])

    scopes = {"x0": [scope(node("x0"))]}
    for t in range(1, 6):
        scopes[f"x{t}"] = [scope(node(f"x{t - 1}"), node(f"x{t}"))]
    scopes |= {f"y{t}": [scope(node(f"x{t}"))] for t in range(6)}
    blankets = {
        node("x0"): scope(node("x1")),
        node("x3"): scope(node("x2"), node("x4")),
        node("x5"): scope(node("x4")),
    }
    return Case(model, (torch.randn(6),), scopes=scopes, blankets=blankets)


def hidden_markov_model():
    # Constant tables: z_t reads z_{t-1}, y_t reads z_t.
    def model(y, transition, locs):
        z = 0
        for t in pyro.markov(range(len(y))):
            z = pyro.sample(f"z{t}", dist.Categorical(Vindex(transition)[z]))
            pyro.sample(f"y{t}", dist.Normal(Vindex(locs)[z], 1.0), obs=y[t])

    scopes = {"z0": [scope(node("z0"))]}
    for t in range(1, 7):
        scopes[f"z{t}"] = [scope(node(f"z{t - 1}"), node(f"z{t}"))]
    scopes |= {f"y{t}": [scope(node(f"z{t}"))] for t in range(7)}
    args = (torch.randn(7), torch.rand(3, 3).softmax(-1), torch.randn(3))
    blankets = {node("z3"): scope(node("z2"), node("z4"))}
    return Case(model, args, scopes=scopes, blankets=blankets, unconstrained=False)


def hidden_markov_model_with_latent_tables():
    # z_{t-1} chooses a row, so z_t reads it and every row of the transition table; likewise y_t
    # reads z_t and every location. trans[z] is plain indexing by a 0-dim latent.
    def model(y, k):
        with pyro.plate("states", k):
            trans = pyro.sample("trans", dist.Dirichlet(torch.full((k,), 2.0)))
            locs = pyro.sample("locs", dist.Normal(0.0, 2.0))
        z = None
        for t in pyro.markov(range(len(y))):
            probs = torch.arange(1.0, k + 1) if z is None else trans[z]
            z = pyro.sample(f"z{t}", dist.Categorical(probs))
            pyro.sample(f"y{t}", dist.Normal(locs[z], 1.0), obs=y[t])

    k, n = 3, 4
    scopes = {"trans": singles("trans", k), "locs": singles("locs", k), "z0": [scope(node("z0"))]}
    for t in range(1, n):
        pair = scope(node(f"z{t - 1}"), node(f"z{t}"))
        scopes[f"z{t}"] = [pair | nodes("trans", range(k))]
    for t in range(n):
        scopes[f"y{t}"] = [scope(node(f"z{t}")) | nodes("locs", range(k))]
    args = (torch.randn(n), k)
    return Case(model, args, scopes=scopes, jacobians=("trans",), pairwise=False)


def second_order_markov():
    # history=2: z_t reads the two before it.
    def model(y, table):
        before, last = torch.tensor(0), torch.tensor(0)
        for t in pyro.markov(range(len(y)), history=2):
            z = pyro.sample(f"z{t}", dist.Categorical(Vindex(table)[before, last]))
            pyro.sample(f"y{t}", dist.Poisson(1.0 + z), obs=y[t])
            before, last = last, z

    scopes = {}
    for t in range(6):
        scopes[f"z{t}"] = [nodes_of_times("z", range(max(0, t - 2), t + 1))]
        scopes[f"y{t}"] = [scope(node(f"z{t}"))]
    args = (torch.tensor([0.0, 1, 2, 0, 3, 1]), torch.rand(3, 3, 3).softmax(-1))
    return Case(model, args, scopes=scopes, unconstrained=False)


def nodes_of_times(site, times):
    return frozenset(node(f"{site}{t}") for t in times)


def switching_chain():
    # Discrete regimes choose the drift of a continuous chain: x_t reads x_{t-1} and s_t.
    def model(n, table, drift):
        s, x = torch.tensor(0), torch.tensor(0.0)
        for t in pyro.markov(range(n)):
            s = pyro.sample(f"s{t}", dist.Categorical(table[s]))
            x = pyro.sample(f"x{t}", dist.Normal(x + drift[s], 0.5))

    scopes = {"s0": [scope(node("s0"))], "x0": [scope(node("s0"), node("x0"))]}
    for t in range(1, 5):
        scopes[f"s{t}"] = [scope(node(f"s{t - 1}"), node(f"s{t}"))]
        scopes[f"x{t}"] = [scope(node(f"x{t - 1}"), node(f"x{t}"), node(f"s{t}"))]
    return Case(model, (5, torch.rand(2, 2).softmax(-1), torch.randn(2)), scopes=scopes)


def second_order_autoregression():
    # Sequential sites, latent coefficients: x_t reads x_{t-1}, x_{t-2}, both coefficients, scale.
    def model(n):
        a = pyro.sample("a", dist.Normal(0.0, 0.5))
        b = pyro.sample("b", dist.Normal(0.0, 0.5))
        s = pyro.sample("s", dist.LogNormal(0.0, 0.3))
        x = [pyro.sample(f"x{t}", dist.Normal(0.0, 1.0)) for t in range(2)]
        for t in range(2, n):
            x.append(pyro.sample(f"x{t}", dist.Normal(a * x[-1] + b * x[-2], s)))

    hyper = scope(node("a"), node("b"), node("s"))
    scopes = {name: [scope(node(name))] for name in ("a", "b", "s", "x0", "x1")}
    for t in range(2, 7):
        scopes[f"x{t}"] = [hyper | nodes_of_times("x", range(t - 2, t + 1))]
    blankets = {node("x3"): hyper | nodes_of_times("x", [1, 2, 4, 5])}
    return Case(model, (7,), scopes=scopes, jacobians=("s",), blankets=blankets)


def second_order_autoregression_in_a_plate():
    # One vectorised site and fixed coefficients: factor t reads x[t], x[t+1], x[t+2].
    def model(n):
        with pyro.plate("times", n):
            x = pyro.sample("x", dist.Normal(0.0, 3.0))
        residual = x[2:] - 0.6 * x[1:-1] + 0.3 * x[:-2]
        with pyro.plate("steps", n - 2):
            pyro.factor("ar", dist.StudentT(4.0).log_prob(residual))

    n = 9
    scopes = {
        "x": singles("x", n),
        "ar": [nodes("x", range(t, t + 3)) for t in range(n - 2)],
    }
    return Case(model, (n,), scopes=scopes, blankets={node("x", 4): nodes("x", [2, 3, 5, 6])})


def gaussian_autoregression_in_a_plate():
    # The same with a Gaussian: still one factor per step, its quadratic form is not torn apart.
    def model(n):
        x = pyro.sample("x", dist.Normal(torch.zeros(n), 3.0))
        loc = 0.6 * x[1:-1] - 0.3 * x[:-2]
        pyro.sample("ar", dist.Normal(loc - x[2:], 0.5), obs=torch.zeros(n - 2))

    n = 8
    scopes = {
        "x": singles("x", n),
        "ar": [nodes("x", range(t, t + 3)) for t in range(n - 2)],
    }
    return Case(model, (n,), scopes=scopes)


def observed_autoregression():
    # Only the parameters are latent: every step reads all three.
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        s = pyro.sample("s", dist.HalfNormal(1.0))
        with pyro.plate("steps", len(y) - 2):
            pyro.sample("y", dist.Normal(a * y[1:-1] + b * y[:-2], s), obs=y[2:])

    everything = scope(node("a"), node("b"), node("s"))
    scopes = {name: [scope(node(name))] for name in "abs"} | {"y": [everything] * 8}
    return Case(model, (torch.randn(10),), scopes=scopes, jacobians=("s",))


def random_walk_by_cumsum():
    # y_t reads the increments 0..t.
    def model(y):
        with pyro.plate("times", len(y)):
            e = pyro.sample("e", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(e.cumsum(-1), 1.0), obs=y)

    n = 7
    scopes = {"e": singles("e", n), "y": [nodes("e", range(t + 1)) for t in range(n)]}
    return Case(model, (torch.randn(n),), scopes=scopes)


def change_points():
    # The segment of time t is c_0 + ... + c_t; the mean is looked up among all segments.
    def model(y):
        n = len(y)
        with pyro.plate("times", n):
            c = pyro.sample("c", dist.Bernoulli(0.3))
        with pyro.plate("segments", n + 1):
            mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
        with pyro.plate("data", n):
            pyro.sample("y", dist.Normal(mu[c.cumsum(0).long()], 0.3), obs=y)

    # Static scope: the index may name any segment (t + 1 of them are reachable, but that is
    # algebra on values, not structure).
    n = 6
    scopes = {
        "c": singles("c", n),
        "mu": singles("mu", n + 1),
        "y": [nodes("c", range(t + 1)) | nodes("mu", range(n + 1)) for t in range(n)],
    }
    return Case(model, (torch.randn(n),), scopes=scopes, static=("y",), pairwise=False)


def change_points_held():
    # fixed= makes the segments constants: y_t reads the mean of its own segment only.
    case = change_points()
    c = torch.tensor([0.0, 1, 0, 0, 1, 0])
    segment = [0, 1, 1, 1, 2, 2]
    case.fixed = {"c": c}
    case.scopes = {
        "mu": case.scopes["mu"],
        "y": [scope(node("mu", s)) for s in segment],
    }
    case.static, case.pairwise = (), True
    return case


def gaussian_hmm():
    # One statement for the whole series: a single element that reads both latents.
    def model(y):
        a = pyro.sample("a", dist.Normal(0.5, 0.2))
        s = pyro.sample("s", dist.LogNormal(0.0, 0.2))
        eye = torch.eye(1)
        init = dist.MultivariateNormal(torch.zeros(1), eye)
        noise = dist.MultivariateNormal(torch.zeros(1), s * eye)
        hmm = dist.GaussianHMM(init, a * eye, noise, eye, init, duration=len(y))
        pyro.sample("y", hmm, obs=y)

    scopes = {"a": [scope(node("a"))], "s": [scope(node("s"))], "y": [scope(node("a"), node("s"))]}
    return Case(model, (torch.randn(5, 1),), scopes=scopes, jacobians=("s",))


MODELS = [
    linear_chain,
    hidden_markov_model,
    hidden_markov_model_with_latent_tables,
    second_order_markov,
    switching_chain,
    second_order_autoregression,
    second_order_autoregression_in_a_plate,
    gaussian_autoregression_in_a_plate,
    observed_autoregression,
    random_walk_by_cumsum,
    change_points,
    change_points_held,
    gaussian_hmm,
]
