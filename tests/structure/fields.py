"""Models on graphs: grids, stars, sensor networks, spatial effects, parity checks, blocks."""

import pyro
import pyro.distributions as dist
import torch

from .case import Case, all_indices, node, nodes, scope, singles


def grid_edges(height, width):
    i = torch.arange(height * width).view(height, width)
    source = torch.cat([i[:, :-1].reshape(-1), i[:-1].reshape(-1)])
    target = torch.cat([i[:, 1:].reshape(-1), i[1:].reshape(-1)])
    return source, target


def pairs(site, source, target):
    return [nodes(site, p) for p in zip(source.tolist(), target.tolist(), strict=True)]


def grid():
    # 10 x 10 pixels, one factor per pixel and one per edge; pixel (4, 4) = 44 has 4 neighbours.
    def model(y, source, target):
        with pyro.plate("pixels", len(y)):
            x = pyro.sample("x", dist.Normal(y, 0.2))
        with pyro.plate("edges", len(source)):
            pyro.factor("smooth", -5 * (x[source] - x[target]).abs().clamp(max=1.0))

    source, target = grid_edges(10, 10)
    scopes = {"x": singles("x", 100), "smooth": pairs("x", source, target)}
    blankets = {
        node("x", 0): nodes("x", [1, 10]),
        node("x", 44): nodes("x", [34, 43, 45, 54]),
        node("x", 99): nodes("x", [89, 98]),
    }
    return Case(model, (0.05 * torch.randn(100), source, target), scopes=scopes, blankets=blankets)


def grid_of_rows_and_columns():
    # A 2-D batch, differences by slicing: horizontal and vertical pairs, in row-major order.
    def model(height, width):
        with pyro.plate("rows", height, dim=-2), pyro.plate("columns", width, dim=-1):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("right", -((x[:, 1:] - x[:, :-1]).exp()))
        pyro.factor("down", -((x[1:] - x[:-1]) ** 4))

    h, w = 4, 5
    scopes = {
        "x": singles("x", h, w),
        "right": [nodes("x", [(i, j), (i, j + 1)]) for i, j in all_indices(h, w - 1)],
        "down": [nodes("x", [(i, j), (i + 1, j)]) for i, j in all_indices(h - 1, w)],
    }
    blankets = {node("x", 1, 2): nodes("x", [(0, 2), (2, 2), (1, 1), (1, 3)])}
    return Case(model, (h, w), scopes=scopes, blankets=blankets)


def ising():
    # Discrete grid: pairwise interaction as one summed scalar; the sum splits into its edges.
    def model(source, target, n):
        with pyro.plate("spins", n):
            s = pyro.sample("s", dist.Bernoulli(0.4))
        t = 2 * s - 1
        pyro.factor("energy", 0.7 * (t[source] * t[target]).sum())

    # (2a - 1)(2b - 1): distributing gives the pair and singles; what interacts is the pair.
    source, target = grid_edges(3, 3)
    scopes = {"s": singles("s", 9), "energy": pairs("s", source, target)}
    blankets = {node("s", 4): nodes("s", [1, 3, 5, 7])}
    return Case(
        model,
        (source, target, 9),
        scopes=scopes,
        blankets=blankets,
        unconstrained=False,
        summed=("energy",),
    )


def star():
    # Leaves read the hub, never each other.
    def model(n):
        hub = pyro.sample("hub", dist.Normal(0.0, 1.0))
        with pyro.plate("leaves", n):
            pyro.sample("leaf", dist.Normal(hub, 1.0))

    scopes = {
        "hub": [scope(node("hub"))],
        "leaf": [scope(node("hub"), node("leaf", i)) for i in range(8)],
    }
    blankets = {
        node("hub"): nodes("leaf", range(8)),
        node("leaf", 3): scope(node("hub")),
    }
    return Case(model, (8,), scopes=scopes, blankets=blankets)


def sensors():
    # A 2-D position is one node, though a distance reads both coordinates.
    def model(source, target, r, anchor, place, reach):
        with pyro.plate("sensors", 8):
            x = pyro.sample("x", dist.Normal(torch.zeros(2), 5.0).to_event(1))
        with pyro.plate("links", len(source)):
            pyro.sample("r", dist.Normal((x[source] - x[target]).norm(dim=-1), 0.1), obs=r)
        with pyro.plate("anchors", len(anchor)):
            distance = (x[anchor] - place).norm(dim=-1)
            pyro.sample("reach", dist.StudentT(3.0, distance, 0.1), obs=reach)

    source, target = torch.tensor([0, 0, 1, 2, 3, 5]), torch.tensor([1, 2, 3, 3, 4, 6])
    anchor = torch.tensor([0, 4, 7, 7])
    args = (source, target, torch.rand(6), anchor, torch.randn(4, 2), torch.rand(4))
    scopes = {
        "x": singles("x", 8),
        "r": pairs("x", source, target),
        "reach": [nodes("x", [a]) for a in anchor.tolist()],
    }
    blankets = {
        node("x", 3): nodes("x", [1, 2, 4]),
        node("x", 7): frozenset(),
    }
    return Case(model, args, scopes=scopes, blankets=blankets)


def besag_york_mollie():
    # ICAR pairs share the precision; the data read both effects; the soft sum-to-zero is one
    # square of a mean, which joins all of u.
    def model(source, target, y, exposure):
        tau = pyro.sample("tau", dist.Gamma(2.0, 1.0))
        n = len(y)
        with pyro.plate("areas", n):
            u = pyro.sample("u", dist.Normal(0.0, 10.0))
            v = pyro.sample("v", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Poisson((exposure + 0.1 * u + 0.3 * v).exp()), obs=y)
        with pyro.plate("borders", len(source)):
            pyro.factor("icar", 0.5 * tau.log() - 0.5 * tau * (u[source] - u[target]) ** 2)
        pyro.factor("centre", -0.5 * (u.mean() / 0.1) ** 2)

    source, target = torch.tensor([0, 1, 2, 0]), torch.tensor([1, 2, 3, 4])
    scopes = {
        "tau": [scope(node("tau"))],
        "u": singles("u", 5),
        "v": singles("v", 5),
        "y": [scope(node("u", i), node("v", i)) for i in range(5)],
        "icar": [p | scope(node("tau")) for p in pairs("u", source, target)],
        "centre": [nodes("u", range(5))],
    }
    args = (source, target, torch.tensor([1.0, 0, 2, 4, 1]), torch.zeros(5))
    return Case(model, args, scopes=scopes, jacobians=("tau",))


def intrinsic_autoregression():
    # The same prior without the soft constraint, as one summed statement: it splits into the
    # borders, whose squares stay whole.
    def model(source, target, n):
        with pyro.plate("areas", n):
            u = pyro.sample("u", dist.Normal(0.0, 10.0))
        pyro.factor("icar", -0.5 * ((u[source] - u[target]) ** 2).sum())

    source, target = torch.tensor([0, 1, 2, 0, 3]), torch.tensor([1, 2, 3, 4, 4])
    scopes = {"u": singles("u", 5), "icar": pairs("u", source, target)}
    blankets = {node("u", 1): nodes("u", [0, 2])}
    return Case(model, (source, target, 5), scopes=scopes, blankets=blankets, summed=("icar",))


def parity_checks():
    # LDPC: a check reads exactly its bits.
    def model(checks, llr):
        with pyro.plate("bits", len(llr)):
            x = pyro.sample("x", dist.Bernoulli(logits=llr))
        with pyro.plate("checks", len(checks)):
            odd = x[checks].sum(-1) % 2
            pyro.factor("parity", torch.where(odd == 0, 0.0, -50.0))

    checks = torch.tensor([[0, 1, 2], [2, 3, 4], [0, 4, 5], [1, 3, 5]])
    scopes = {"x": singles("x", 6), "parity": [nodes("x", c) for c in checks.tolist()]}
    blankets = {node("x", 0): nodes("x", [1, 2, 4, 5])}
    return Case(
        model, (checks, torch.randn(6)), scopes=scopes, blankets=blankets, unconstrained=False
    )


def stochastic_block_model():
    # eta[z[a], z[b]]: a cell reads both labels and the whole table.
    def model(r, k):
        with pyro.plate("to", k, dim=-1), pyro.plate("from", k, dim=-2):
            eta = pyro.sample("eta", dist.Beta(1.0, 2.0))
        n = len(r)
        with pyro.plate("items", n):
            z = pyro.sample("z", dist.Categorical(torch.arange(1.0, k + 1)))
        a, b = torch.ones(n, n).nonzero(as_tuple=True)
        with pyro.plate("cells", n * n):
            pyro.sample("r", dist.Bernoulli(eta[z[a], z[b]]), obs=r.reshape(-1))

    k, n = 2, 4
    table = nodes("eta", all_indices(k, k))
    scopes = {
        "eta": singles("eta", k, k),
        "z": singles("z", n),
        "r": [nodes("z", {a, b}) | table for a, b in all_indices(n, n)],
    }
    # A cell (a, a) can only reach the diagonal of eta: static dependence.
    r = (torch.rand(n, n) < 0.5).double()
    return Case(model, (r, k), scopes=scopes, static=("r",), pairwise=False, jacobians=("eta",))


def stochastic_block_model_held():
    # Labels held: each cell reads the one entry of its two labels.
    case = stochastic_block_model()
    z = torch.tensor([0, 1, 1, 0])
    case.fixed = {"z": z}
    case.scopes = {
        "eta": case.scopes["eta"],
        "r": [nodes("eta", [(int(z[a]), int(z[b]))]) for a, b in all_indices(4, 4)],
    }
    case.static = ()
    return case


MODELS = [
    grid,
    grid_of_rows_and_columns,
    ising,
    star,
    sensors,
    besag_york_mollie,
    intrinsic_autoregression,
    parity_checks,
    stochastic_block_model,
    stochastic_block_model_held,
]
