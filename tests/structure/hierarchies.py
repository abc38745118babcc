"""Hierarchical models: plates of every shape, effects, regressions, and Pyro's handlers."""

from itertools import combinations

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer.reparam import LocScaleReparam, TransformReparam

from .case import Case, all_indices, node, nodes, scope, singles


def nested_plates():
    # Schools in districts: theta[i, j] reads its district's mean and the common scale.
    def model(y):
        tau = pyro.sample("tau", dist.HalfNormal(1.0))
        with pyro.plate("districts", 3, dim=-2):
            mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
            with pyro.plate("schools", 2, dim=-1):
                theta = pyro.sample("theta", dist.Normal(mu, tau))
                pyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    scopes = {
        "tau": [scope(node("tau"))],
        "mu": singles("mu", 3, 1),
        "theta": [
            scope(node("tau"), node("mu", i, 0), node("theta", i, j)) for i, j in all_indices(3, 2)
        ],
        "y": singles("theta", 3, 2),
    }
    blankets = {
        node("mu", 1, 0): scope(node("tau"), node("theta", 1, 0), node("theta", 1, 1)),
        node("theta", 2, 1): scope(node("tau"), node("mu", 2, 0)),
    }
    return Case(model, (torch.randn(3, 2),), scopes=scopes, blankets=blankets, jacobians=("tau",))


def three_nested_plates():
    # The innermost observation reads one node of each of three levels.
    def model(y):
        with pyro.plate("a", 2, dim=-3):
            a = pyro.sample("x_a", dist.Normal(0.0, 1.0))
            with pyro.plate("b", 3, dim=-2):
                b = pyro.sample("x_b", dist.Normal(a, 1.0))
                with pyro.plate("c", 2, dim=-1):
                    pyro.sample("y", dist.Normal(a * b, 1.0), obs=y)

    scopes = {
        "x_a": singles("x_a", 2, 1, 1),
        "x_b": [scope(node("x_a", i, 0, 0), node("x_b", i, j, 0)) for i, j in all_indices(2, 3)],
        "y": [
            scope(node("x_a", i, 0, 0), node("x_b", i, j, 0)) for i, j, _ in all_indices(2, 3, 2)
        ],
    }
    return Case(model, (torch.randn(2, 3, 2),), scopes=scopes)


def group_indices():
    # Groups by an index vector; two coefficients per group.
    def model(x, y, group):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        s = pyro.sample("s", dist.HalfCauchy(1.0))
        with pyro.plate("groups", 3):
            a = pyro.sample("a", dist.Normal(mu, 1.0))
            b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(a[group] + b[group] * x, s), obs=y)

    group = torch.tensor([0, 0, 1, 2, 2, 1])
    scopes = {
        "mu": [scope(node("mu"))],
        "s": [scope(node("s"))],
        "a": [scope(node("mu"), node("a", g)) for g in range(3)],
        "b": singles("b", 3),
        "y": [scope(node("a", g), node("b", g), node("s")) for g in group.tolist()],
    }
    args = (torch.randn(6), torch.randn(6), group)
    return Case(model, args, scopes=scopes, jacobians=("s",))


def crossed_plates():
    # Row effect + column effect + noise: cell (i, j) reads row i and column j.
    def model(y):
        rows = pyro.plate("rows", 3, dim=-2)
        columns = pyro.plate("columns", 4, dim=-1)
        with rows:
            r = pyro.sample("r", dist.Normal(0.0, 1.0))
        with columns:
            c = pyro.sample("c", dist.Normal(0.0, 1.0))
        with rows, columns:
            pyro.sample("y", dist.Normal(r + c, 0.5), obs=y)

    scopes = {
        "r": singles("r", 3, 1),
        "c": singles("c", 4),
        "y": [scope(node("r", i, 0), node("c", j)) for i, j in all_indices(3, 4)],
    }
    blankets = {node("c", 2): nodes("r", [(i, 0) for i in range(3)])}
    return Case(model, (torch.randn(3, 4),), scopes=scopes, blankets=blankets)


def matrix_factorisation():
    # Event nodes of width 2 on crossed plates: u_i . v_j.
    def model(y):
        with pyro.plate("rows", 3, dim=-2):
            u = pyro.sample("u", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("columns", 2, dim=-1):
            v = pyro.sample("v", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("rows2", 3, dim=-2), pyro.plate("columns2", 2, dim=-1):
            pyro.sample("y", dist.Normal((u * v).sum(-1), 0.5), obs=y)

    scopes = {
        "u": singles("u", 3, 1),
        "v": singles("v", 2),
        "y": [scope(node("u", i, 0), node("v", j)) for i, j in all_indices(3, 2)],
    }
    return Case(model, (torch.randn(3, 2),), scopes=scopes)


def sequential_plates():
    # A Python loop over a plate; one lap reads only its own latent and the shared ones.
    def model(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        for i in pyro.plate("groups", 3):
            a = pyro.sample(f"a{i}", dist.Normal(mu, 1.0))
            with pyro.plate(f"data{i}", 2):
                pyro.sample(f"y{i}", dist.Normal(a, 1.0), obs=y[i])

    scopes = {"mu": [scope(node("mu"))]}
    for i in range(3):
        scopes[f"a{i}"] = [scope(node("mu"), node(f"a{i}"))]
        scopes[f"y{i}"] = [scope(node(f"a{i}"))] * 2
    return Case(model, (torch.randn(3, 2),), scopes=scopes)


def regression_with_a_vector_node():
    # The weights are one node of width 3.
    def model(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    y = torch.tensor([1.0, 0, 1, 1, 0])
    scopes = {"w": [scope(node("w"))], "y": [scope(node("w"))] * 5}
    return Case(model, (torch.randn(5, 3), y), scopes=scopes, blankets={node("w"): frozenset()})


def regression_with_a_plate_of_weights():
    # Every weight is a node; a zero in the design matrix is no dependence.
    def model(x, y):
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("weights", x.shape[1]):
            w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Bernoulli(logits=b + x @ w), obs=y)

    x = torch.tensor([[1.0, 2, 0, 0], [0, 1.5, 0, -1], [0, 0, 0, 0], [1, 1, 1, 1]])
    used = [[0, 1], [1, 3], [], [0, 1, 2, 3]]
    scopes = {
        "b": [scope(node("b"))],
        "w": singles("w", 4),
        "y": [scope(node("b")) | nodes("w", u) for u in used],
    }
    return Case(model, (x, torch.tensor([1.0, 0, 1, 1])), scopes=scopes)


def masked_likelihood():
    # Masked data are constants: only rows 0, 2, 3 have factors.
    def model(y, mask):
        with pyro.plate("data", len(y)):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
            with poutine.mask(mask=mask):
                pyro.sample("y", dist.Normal(x, 1.0), obs=y)

    mask = torch.tensor([True, False, True, True, False])
    scopes = {"x": singles("x", 5), "y": [nodes("x", [i]) for i in (0, 2, 3)]}
    return Case(model, (torch.randn(5), mask), scopes=scopes)


def masked_distribution():
    # The same with Distribution.mask on a likelihood with a hub.
    def model(y, mask):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            x = pyro.sample("x", dist.Normal(a, 1.0))
            pyro.sample("y", dist.Normal(x * a, 1.0).mask(mask), obs=y)

    mask = torch.tensor([False, True, True, False])
    scopes = {
        "a": [scope(node("a"))],
        "x": [scope(node("a"), node("x", i)) for i in range(4)],
        "y": [scope(node("a"), node("x", i)) for i in (1, 2)],
    }
    return Case(model, (torch.randn(4), mask), scopes=scopes)


def missing_data():
    # obs_mask splits the statement: x_observed counts where the mask is True, x_unobserved is a
    # latent site of the whole plate that counts, and is read, where it is False.
    def model(y, mask):
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            x = pyro.sample("x", dist.Normal(m, 1.0), obs=y, obs_mask=mask)
            pyro.sample("z", dist.Normal(x, 1.0), obs=torch.zeros(len(y)))

    mask = torch.tensor([True, False, True, False])
    scopes = {
        "m": [scope(node("m"))],
        "x_observed": [scope(node("m"))] * 2,
        "x_unobserved": [scope(node("m"), node("x_unobserved", i)) for i in (1, 3)],
        "z": [nodes("x_unobserved", [i]) for i in (1, 3)],
    }
    return Case(model, (torch.randn(4), mask), scopes=scopes)


def scaled():
    # A scale multiplies the density and leaves the scopes alone.
    def model(y):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with poutine.scale(scale=2.5), pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Normal(x, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    scopes = {
        "x": [scope(node("x"))],
        "z": [scope(node("x"), node("z", i)) for i in range(3)],
        "y": singles("z", 3),
    }
    return Case(model, (torch.randn(3),), scopes=scopes)


def scaled_by_a_tensor():
    # Weights per observation.
    def model(y, weight):
        with pyro.plate("data", len(y)):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
            with poutine.scale(scale=weight):
                pyro.sample("y", dist.Normal(x, 1.0), obs=y)

    weight = torch.tensor([1.0, 0.5, 3.0])
    scopes = {"x": singles("x", 3), "y": singles("x", 3)}
    return Case(model, (torch.randn(3), weight), scopes=scopes)


def plain_chain(n):
    x = pyro.sample("x0", dist.Normal(0.0, 1.0))
    for t in range(1, n):
        x = pyro.sample(f"x{t}", dist.Normal(x.sin(), 1.0))


def conditioned():
    # Conditioning cuts the chain: x1 and x3 lose their common neighbour x2.
    model = poutine.condition(plain_chain, data={"x2": torch.tensor(0.7)})
    scopes = {
        "x0": [scope(node("x0"))],
        "x1": [scope(node("x0"), node("x1"))],
        "x2": [scope(node("x1"))],
        "x3": [scope(node("x3"))],
        "x4": [scope(node("x3"), node("x4"))],
    }
    return Case(model, (5,), scopes=scopes, blankets={node("x1"): scope(node("x0"))})


def intervened():
    # do() splits x2: the site stays where it was, but its descendants read the set value.
    model = poutine.do(plain_chain, data={"x2": torch.tensor(0.7)})
    scopes = {
        "x0": [scope(node("x0"))],
        "x1": [scope(node("x0"), node("x1"))],
        "x2": [scope(node("x1"), node("x2"))],
        "x3": [scope(node("x3"))],
        "x4": [scope(node("x3"), node("x4"))],
    }
    return Case(model, (5,), scopes=scopes)


def non_centred():
    # LocScaleReparam(0): z has a unit prior of its own; theta = mu + tau z is deterministic.
    def model(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        tau = pyro.sample("tau", dist.LogNormal(0.0, 1.0))
        with pyro.plate("schools", len(y)):
            theta = pyro.sample("theta", dist.Normal(mu, tau))
            pyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    model = poutine.reparam(model, config={"theta": LocScaleReparam(0.0)})
    hyper = scope(node("mu"), node("tau"))
    scopes = {
        "mu": [scope(node("mu"))],
        "tau": [scope(node("tau"))],
        "theta_decentered": singles("theta_decentered", 4),
        "y": [hyper | nodes("theta_decentered", [i]) for i in range(4)],
    }
    return Case(model, (torch.randn(4),), scopes=scopes, jacobians=("tau",))


def transform_reparameterised():
    # TransformReparam: the base normal is the site, the log-normal its deterministic image.
    def model(y):
        s = pyro.sample("s", dist.LogNormal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(0.0, s), obs=y)

    model = poutine.reparam(model, config={"s": TransformReparam()})
    scopes = {"s_base": [scope(node("s_base"))], "y": [scope(node("s_base"))] * 3}
    return Case(model, (torch.randn(3),), scopes=scopes)


def parameters_and_deterministics():
    # pyro.param is a constant; pyro.deterministic is neither node nor factor.
    def model(y):
        a = pyro.param("a", torch.tensor(0.5))
        s = pyro.param("s", torch.tensor(2.0), constraint=dist.constraints.positive)
        with pyro.plate("data", len(y)):
            x = pyro.sample("x", dist.Normal(a, s))
            z = pyro.deterministic("z", x.exp())
            pyro.sample("y", dist.Exponential(z), obs=y)

    scopes = {"x": singles("x", 3), "y": singles("x", 3)}
    return Case(model, (torch.rand(3),), scopes=scopes)


def scalar_factor_in_a_plate():
    # pyro.factor of a scalar in a plate of 4 counts four times.
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 4):
            pyro.factor("f", -((x - z).abs()))

    scopes = {
        "x": [scope(node("x"))],
        "z": [scope(node("z"))],
        "f": [scope(node("x"), node("z"))] * 4,
    }
    return Case(model, (), scopes=scopes)


def event_observation():
    # to_event(1) on the likelihood: one element per row, split back into its single terms.
    def model(y):
        with pyro.plate("rows", 2, dim=-1):
            a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("columns", 3, dim=-1):
            b = pyro.sample("b", dist.Normal(0.0, 1.0))
        loc = a[:, None] * b
        with pyro.plate("data", 2, dim=-1):
            pyro.sample("y", dist.Normal(loc, 1.0).to_event(1), obs=y)

    scopes = {
        "a": singles("a", 2),
        "b": singles("b", 3),
        "y": [scope(node("a", i), node("b", j)) for i, j in all_indices(2, 3)],
    }
    return Case(model, (torch.randn(2, 3),), scopes=scopes, summed=("y",))


def scalar_node_of_one_plate_used_in_another():
    # Plates on different axes broadcast: theta reads one a and one b. Its log density
    # a log b + (a - 1) log theta - b theta - lgamma(a) joins them in pairs only.
    def model():
        with pyro.plate("b", 2, dim=-2):
            b = pyro.sample("x_b", dist.Exponential(1.0))
        with pyro.plate("a", 3, dim=-1):
            a = pyro.sample("x_a", dist.Exponential(1.0))
        with pyro.plate("b2", 2, dim=-2), pyro.plate("a2", 3, dim=-1):
            pyro.sample("theta", dist.Gamma(a, b))

    scopes = {
        "x_b": singles("x_b", 2, 1),
        "x_a": singles("x_a", 3),
        "theta": [
            scope(*pair)
            for i, j in all_indices(2, 3)
            for pair in combinations((node("x_b", i, 0), node("x_a", j), node("theta", i, j)), 2)
        ],
    }
    jacobians = ("x_a", "x_b", "theta")
    return Case(model, (), scopes=scopes, jacobians=jacobians, summed=("theta",))


MODELS = [
    nested_plates,
    three_nested_plates,
    group_indices,
    crossed_plates,
    matrix_factorisation,
    sequential_plates,
    regression_with_a_vector_node,
    regression_with_a_plate_of_weights,
    masked_likelihood,
    masked_distribution,
    missing_data,
    scaled,
    scaled_by_a_tensor,
    conditioned,
    intervened,
    non_centred,
    transform_reparameterised,
    parameters_and_deterministics,
    scalar_factor_in_a_plate,
    event_observation,
    scalar_node_of_one_plate_used_in_another,
]
