"""Mixtures and discrete models: static and held assignments, sticks, topic models, networks."""

import pyro
import pyro.distributions as dist
import torch
from pyro.ops.indexing import Vindex

from .case import Case, all_indices, node, nodes, scope, singles


def mixture():
    # mu[z_n] may name any component: static scope {z_n, every mu}.
    def model(y, k):
        with pyro.plate("components", k):
            mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Categorical(torch.arange(1.0, k + 1)))
            pyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)

    k, n = 3, 5
    scopes = {
        "mu": singles("mu", k),
        "z": singles("z", n),
        "y": [nodes("z", [i]) | nodes("mu", range(k)) for i in range(n)],
    }
    blankets = {
        node("z", 1): nodes("mu", range(k)),
        node("mu", 0): nodes("mu", [1, 2]) | nodes("z", range(n)),
    }
    args = (torch.randn(n), k)
    return Case(model, args, scopes=scopes, blankets=blankets, pairwise=False)


def mixture_held():
    # For one z the scope is sharp: the datum reads its own component.
    case = mixture()
    z = torch.tensor([0, 2, 2, 1, 0])
    case.fixed = {"z": z}
    case.scopes = {"mu": case.scopes["mu"], "y": [nodes("mu", [k]) for k in z.tolist()]}
    case.blankets = {node("mu", 0): frozenset(), node("z", 1): frozenset()}
    return case


def mixture_with_latent_weights():
    # z_n reads the simplex, which is one node.
    def model(y, k):
        w = pyro.sample("w", dist.Dirichlet(torch.full((k,), 2.0)))
        with pyro.plate("components", k):
            mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
            s = pyro.sample("s", dist.LogNormal(0.0, 0.5))
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Categorical(w))
            pyro.sample("y", dist.Normal(Vindex(mu)[z], Vindex(s)[z]), obs=y)

    k, n = 2, 4
    components = nodes("mu", range(k)) | nodes("s", range(k))
    scopes = {
        "w": [scope(node("w"))],
        "mu": singles("mu", k),
        "s": singles("s", k),
        "z": [scope(node("w"), node("z", i)) for i in range(n)],
        "y": [components | nodes("z", [i]) for i in range(n)],
    }
    args = (torch.randn(n), k)
    return Case(model, args, scopes=scopes, jacobians=("w", "s"), pairwise=False)


def stick_breaking():
    # w_k = beta_k prod_{j<k} (1 - beta_j): Categorical(w) normalises, so z reads every stick.
    def model(y, k):
        with pyro.plate("sticks", k - 1):
            beta = pyro.sample("beta", dist.Beta(1.0, 2.0))
        with pyro.plate("components", k):
            mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
        rest = torch.nn.functional.pad((1 - beta).cumprod(-1), (1, 0), value=1.0)
        w = torch.nn.functional.pad(beta, (0, 1), value=1.0) * rest
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Categorical(w))
            pyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)

    k, n = 4, 3
    scopes = {
        "beta": singles("beta", k - 1),
        "mu": singles("mu", k),
        "z": [nodes("z", [i]) | nodes("beta", range(k - 1)) for i in range(n)],
        "y": [nodes("z", [i]) | nodes("mu", range(k)) for i in range(n)],
    }
    args = (torch.randn(n), k)
    return Case(model, args, scopes=scopes, jacobians=("beta",), pairwise=False)


def sticks_as_weights():
    # The weights themselves: w_k reads beta_0 .. beta_k, and the last one all of them.
    def model(target):
        k = len(target)
        with pyro.plate("sticks", k - 1):
            beta = pyro.sample("beta", dist.Beta(2.0, 2.0))
        rest = torch.cat([torch.ones(1), (1 - beta).cumprod(-1)])
        w = torch.cat([beta, torch.ones(1)]) * rest
        pyro.sample("y", dist.Normal(w.log(), 0.3), obs=target)

    scopes = {
        "beta": singles("beta", 3),
        "y": [nodes("beta", range(min(j + 1, 3))) for j in range(4)],
    }
    return Case(model, (torch.randn(4),), scopes=scopes, jacobians=("beta",))


def one_hot_assignments():
    # z is an event of width k: a product z @ mu reads z and every mu.
    def model(y, k):
        with pyro.plate("components", k):
            mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.OneHotCategorical(torch.arange(1.0, k + 1)))
            pyro.sample("y", dist.Normal(z @ mu, 1.0), obs=y)

    k, n = 3, 4
    scopes = {
        "mu": singles("mu", k),
        "z": singles("z", n),
        "y": [nodes("z", [i]) | nodes("mu", range(k)) for i in range(n)],
    }
    return Case(model, (torch.randn(n), k), scopes=scopes, pairwise=False)


def marginal_mixture():
    # MixtureSameFamily sums the assignment out: a datum reads weights and all components.
    def model(y, k):
        w = pyro.sample("w", dist.Dirichlet(torch.full((k,), 2.0)))
        with pyro.plate("components", k):
            mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
        with pyro.plate("data", len(y)):
            components = dist.Normal(mu, 1.0)
            pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(w), components), obs=y)

    k, n = 3, 4
    scopes = {
        "w": [scope(node("w"))],
        "mu": singles("mu", k),
        "y": [scope(node("w")) | nodes("mu", range(k))] * n,
    }
    return Case(model, (torch.randn(n), k), scopes=scopes, jacobians=("w",))


def dirichlet_multinomial():
    # Counts of a row read the row's simplex; DirichletMultinomial reads the concentration.
    def model(counts):
        alpha = pyro.sample("alpha", dist.Gamma(2.0, 1.0))
        with pyro.plate("rows", len(counts)):
            p = pyro.sample("p", dist.Dirichlet(alpha * torch.ones(3)))
            pyro.sample("n", dist.Multinomial(10, p), obs=counts)
            total = dist.DirichletMultinomial(alpha * torch.ones(3), 10)
            pyro.sample("m", total, obs=counts)

    counts = torch.tensor([[3.0, 5, 2], [10, 0, 0]])
    scopes = {
        "alpha": [scope(node("alpha"))],
        "p": [scope(node("alpha"), node("p", i)) for i in range(2)],
        "n": singles("p", 2),
        "m": [scope(node("alpha"))] * 2,
    }
    return Case(model, (counts,), scopes=scopes, jacobians=("alpha", "p"))


def zero_inflated():
    # The gate is shared, the rate belongs to the group. At zero the density is
    # log(gate + (1 - gate) e^-rate); elsewhere log(1 - gate) + log Poisson, two terms.
    def model(y, group):
        gate = pyro.sample("gate", dist.Beta(2.0, 2.0))
        with pyro.plate("groups", 2):
            rate = pyro.sample("rate", dist.Gamma(3.0, 1.0))
        with pyro.plate("data", len(y)):
            base = dist.Poisson(rate[group])
            pyro.sample("y", dist.ZeroInflatedDistribution(base, gate=gate), obs=y)

    group = torch.tensor([0, 1, 1, 0])
    scopes = {
        "gate": [scope(node("gate"))],
        "rate": singles("rate", 2),
        "y": [scope(node("gate"), node("rate", g)) for g in group.tolist()],
    }
    args = (torch.tensor([0.0, 2, 0, 3]), group)
    return Case(model, args, scopes=scopes, jacobians=("gate", "rate"), summed=("y",))


def topics():
    # Latent Dirichlet allocation: word (d, w) reads its topic and all topics' distributions.
    def model(words, k, v):
        with pyro.plate("topics", k):
            phi = pyro.sample("phi", dist.Dirichlet(torch.full((v,), 2.0)))
        with pyro.plate("documents", words.shape[1]):
            theta = pyro.sample("theta", dist.Dirichlet(torch.full((k,), 2.0)))
            with pyro.plate("words", words.shape[0], dim=-2):
                z = pyro.sample("z", dist.Categorical(theta))
                pyro.sample("w", dist.Categorical(phi[z]), obs=words)

    k, v, words = 2, 3, torch.tensor([[0, 1], [2, 2], [1, 0]])
    scopes = {
        "phi": singles("phi", k),
        "theta": singles("theta", 2),
        "z": [scope(node("theta", d), node("z", w, d)) for w, d in all_indices(3, 2)],
        "w": [nodes("z", [(w, d)]) | nodes("phi", range(k)) for w, d in all_indices(3, 2)],
    }
    args = (words, k, v)
    return Case(model, args, scopes=scopes, jacobians=("phi", "theta"), pairwise=False)


#: Smoke, bronchitis, cancer and friends: parents and P(child = k | parents), child axis last.
LUNG = {
    "smoke": ((), torch.tensor([0.4, 0.6])),
    "cancer": (("smoke",), torch.tensor([[0.9, 0.1], [0.99, 0.01]])),
    "tub": ((), torch.tensor([0.3, 0.7])),
    "either": (
        ("cancer", "tub"),
        torch.tensor([[[0.9, 0.1], [0.8, 0.2]], [[0.7, 0.3], [0.01, 0.99]]]),
    ),
    "bronc": (("smoke",), torch.tensor([[0.6, 0.3, 0.1], [0.3, 0.3, 0.4]])),
    "dysp": (
        ("bronc", "either"),
        torch.tensor(
            [[[0.9, 0.1], [0.8, 0.2]], [[0.7, 0.3], [0.1, 0.9]], [[0.6, 0.4], [0.2, 0.8]]]
        ),
    ),
    "xray": (("either",), torch.tensor([[0.98, 0.02], [0.05, 0.95]])),
}


def network_model(tables):
    value = {}
    for name, (parents, table) in tables.items():
        row = Vindex(table)[tuple(value[p] for p in parents)] if parents else table
        value[name] = pyro.sample(name, dist.Categorical(row))


def network_case(tables):
    """A family (child and parents) is a factor; the blanket is parents, children, co-parents."""
    scopes = {
        name: [frozenset(node(v) for v in (name, *parents))]
        for name, (parents, _) in tables.items()
    }
    return Case(network_model, (tables,), scopes=scopes, unconstrained=False)


def bayesian_network():
    case = network_case({n: (p, t.double()) for n, (p, t) in LUNG.items()})
    case.blankets = {
        node("smoke"): scope(node("cancer"), node("bronc")),
        node("cancer"): scope(node("smoke"), node("either"), node("tub")),
        node("either"): scope(
            node("cancer"), node("tub"), node("xray"), node("dysp"), node("bronc")
        ),
    }
    return case


def discrete_rows():
    # Three discrete sites in one plate with tables looked up by one and by two latents.
    def model(y, table, cube):
        with pyro.plate("rows", len(y)):
            a = pyro.sample("a", dist.Categorical(torch.tensor([0.3, 0.7])))
            b = pyro.sample("b", dist.Categorical(Vindex(table)[a]))
            c = pyro.sample("c", dist.Bernoulli(Vindex(cube)[a, b]))
            pyro.sample("y", dist.Normal(c + b, 1.0), obs=y)

    n = 3
    scopes = {
        "a": singles("a", n),
        "b": [scope(node("a", i), node("b", i)) for i in range(n)],
        "c": [scope(node("a", i), node("b", i), node("c", i)) for i in range(n)],
        "y": [scope(node("b", i), node("c", i)) for i in range(n)],
    }
    args = (torch.randn(n), torch.rand(2, 3).softmax(-1), torch.rand(2, 3))
    return Case(model, args, scopes=scopes, unconstrained=False)


MODELS = [
    mixture,
    mixture_held,
    mixture_with_latent_weights,
    stick_breaking,
    sticks_as_weights,
    one_hot_assignments,
    marginal_mixture,
    dirichlet_multinomial,
    zero_inflated,
    topics,
    bayesian_network,
    discrete_rows,
]
