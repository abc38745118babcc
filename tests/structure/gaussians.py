"""Gaussian models whose structure hides in matrices: precisions, Cholesky factors, kernels."""

import pyro
import pyro.distributions as dist
import torch

from .case import Case, all_indices, node, nodes, scope, singles


def sparse_precision(n, edges):
    a = 2.0 * torch.eye(n)
    for i, j in edges:
        a[i, j] = a[j, i] = -0.4
    return a


EDGES = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 5), (2, 5)]


def dense_precision():
    # -x'Ax/2 written densely; A couples exactly the pairs of EDGES. Diagonal terms are single
    # nodes, off-diagonal ones pairs.
    def model(a):
        n = len(a)
        with pyro.plate("nodes", n):
            x = pyro.sample("x", dist.Normal(0.0, 10.0))
        pyro.factor("quadratic", -0.5 * x @ a @ x)

    scopes = {
        "x": singles("x", 6),
        "quadratic": [*singles("x", 6), *(nodes("x", e) for e in EDGES)],
    }
    blankets = {
        node("x", 2): nodes("x", [1, 3, 5]),
        node("x", 4): nodes("x", [3]),
    }
    a = sparse_precision(6, EDGES)
    return Case(model, (a,), scopes=scopes, blankets=blankets, summed=("quadratic",))


def dense_precision_of_deviations():
    # (x - m)' A (x - m) with latent mean m of every node: the pair (i, j) reads all four numbers.
    # Products are distributed over sums, so x_i A_ij x_j, x_i A_ij m_j, ... are apart.
    def model(a):
        n = len(a)
        x = pyro.sample("x", dist.Normal(torch.zeros(n), 10.0))
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        d = x - m
        pyro.factor("quadratic", -0.5 * d @ (a @ d))

    blankets = {
        node("x", 4): nodes("x", [3]) | scope(node("m")),
        node("m"): nodes("x", range(6)),
    }
    case = Case(model, (sparse_precision(6, EDGES),), blankets=blankets, summed=("quadratic",))
    case.scopes = {"x": singles("x", 6), "m": [scope(node("m"))]}
    return case


def scaled_precision():
    # tau x'Ax/2: every term is multiplied by the latent precision.
    def model(a):
        n = len(a)
        tau = pyro.sample("tau", dist.Gamma(2.0, 2.0))
        with pyro.plate("nodes", n):
            x = pyro.sample("x", dist.Normal(0.0, 10.0))
        pyro.factor("quadratic", 0.5 * n * tau.log() - 0.5 * tau * (x @ a @ x))

    tau = scope(node("tau"))
    scopes = {
        "tau": [tau],
        "x": singles("x", 6),
        "quadratic": [
            tau,
            *(s | tau for s in singles("x", 6)),
            *(nodes("x", e) | tau for e in EDGES),
        ],
    }
    blankets = {node("x", 2): nodes("x", [1, 3, 5]) | tau}
    return Case(
        model,
        (sparse_precision(6, EDGES),),
        scopes=scopes,
        blankets=blankets,
        summed=("quadratic",),
        jacobians=("tau",),
    )


def precision_row_by_row():
    # x * (A x): element i is the sum of its row's terms (what a pair reads, its terms join).
    def model(a, h):
        x = pyro.sample("x", dist.Normal(torch.zeros(len(h)), 10.0))
        pyro.factor("rows", -0.5 * (x * (a @ x)) + h * x)

    rows = []
    for i in range(6):
        rows.append(nodes("x", [i]))
        rows += [nodes("x", e) for e in EDGES if i in e]
    scopes = {"x": singles("x", 6), "rows": rows}
    args = (sparse_precision(6, EDGES), torch.randn(6))
    return Case(model, args, scopes=scopes, summed=("rows",))


def shared_cholesky():
    # Pyro puts the batch into the columns of one solve: row b still reads only mu_b.
    def model(y, tril):
        with pyro.plate("rows", len(y)):
            mu = pyro.sample("mu", dist.Normal(torch.zeros(3), 1.0).to_event(1))
            pyro.sample("y", dist.MultivariateNormal(mu, scale_tril=tril), obs=y)

    tril = torch.randn(3, 3).tril(-1) + 2 * torch.eye(3)
    scopes = {"mu": singles("mu", 4), "y": singles("mu", 4)}
    return Case(model, (torch.randn(4, 3), tril), scopes=scopes)


def shared_latent_cholesky():
    # Latent correlations and scales, shared by all rows.
    def model(y):
        corr = pyro.sample("corr", dist.LKJCholesky(3, 2.0))
        with pyro.plate("axes", 3):
            s = pyro.sample("s", dist.LogNormal(0.0, 0.3))
        tril = s[:, None] * corr
        with pyro.plate("rows", len(y)):
            mu = pyro.sample("mu", dist.Normal(torch.zeros(3), 1.0).to_event(1))
            pyro.sample("y", dist.MultivariateNormal(mu, scale_tril=tril), obs=y)

    common = scope(node("corr")) | nodes("s", range(3))
    scopes = {
        "corr": [scope(node("corr"))],
        "s": singles("s", 3),
        "mu": singles("mu", 4),
        "y": [common | nodes("mu", [b]) for b in range(4)],
    }
    return Case(model, (torch.randn(4, 3),), scopes=scopes, jacobians=("corr", "s"))


def cholesky_per_row():
    # A scale of its own for every row: y_b reads mu_b and s_b.
    def model(y, tril):
        with pyro.plate("rows", len(y)):
            mu = pyro.sample("mu", dist.Normal(torch.zeros(3), 1.0).to_event(1))
            s = pyro.sample("s", dist.LogNormal(0.0, 0.3))
            pyro.sample("y", dist.MultivariateNormal(mu, scale_tril=s[:, None, None] * tril), obs=y)

    tril = torch.randn(3, 3).tril(-1) + 2 * torch.eye(3)
    scopes = {
        "mu": singles("mu", 4),
        "s": singles("s", 4),
        "y": [nodes("mu", [b]) | nodes("s", [b]) for b in range(4)],
    }
    return Case(model, (torch.randn(4, 3), tril), scopes=scopes, jacobians=("s",))


def multivariate_prior_of_a_vector():
    # x is one node (an event), so a dense covariance makes one unary factor.
    def model(cov, y):
        x = pyro.sample("x", dist.MultivariateNormal(torch.zeros(3), cov))
        with pyro.plate("data", 3):
            pyro.sample("y", dist.Normal(x, 0.3), obs=y)

    half = torch.randn(3, 3)
    scopes = {"x": [scope(node("x"))], "y": [scope(node("x"))] * 3}
    return Case(model, (half @ half.T + torch.eye(3), torch.randn(3)), scopes=scopes)


def observed_by_a_precision_matrix():
    # MVN given by precision_matrix: one element, a Cholesky in the constructor: reads everything
    # (that the means of a sparse precision do not all interact is algebra).
    def model(y, a):
        with pyro.plate("nodes", 4):
            m = pyro.sample("m", dist.Normal(0.0, 1.0))
            d = pyro.sample("d", dist.HalfNormal(1.0))
        precision = a + torch.diag(d)
        pyro.sample("y", dist.MultivariateNormal(m, precision_matrix=precision), obs=y)

    # One node m_k per coordinate of the mean, one d_k per diagonal entry.
    scopes = {
        "m": singles("m", 4),
        "d": singles("d", 4),
        "y": [nodes("m", range(4)) | nodes("d", range(4))],
    }
    a = sparse_precision(4, [(0, 1), (1, 2), (2, 3)])
    return Case(model, (torch.randn(4), a), scopes=scopes, jacobians=("d",), pairwise=False)


def gaussian_process():
    # A latent length scale in a kernel matrix: the one element reads it and the noise.
    def model(x, y):
        length = pyro.sample("length", dist.LogNormal(0.0, 0.5))
        noise = pyro.sample("noise", dist.HalfNormal(1.0))
        k = (-0.5 * ((x[:, None] - x) / length) ** 2).exp()
        k = k + (0.1 + noise) * torch.eye(len(x))
        loc = torch.zeros(len(x))
        tril = torch.linalg.cholesky(k)
        pyro.sample("y", dist.MultivariateNormal(loc, scale_tril=tril), obs=y)

    scopes = {
        "length": [scope(node("length"))],
        "noise": [scope(node("noise"))],
        "y": [scope(node("length"), node("noise"))],
    }
    args = (torch.linspace(0, 1, 4), torch.randn(4))
    return Case(model, args, scopes=scopes, jacobians=("length", "noise"), tolerance=1e-9)


def low_rank_covariance():
    # LowRankMultivariateNormal per row: y_b reads mu_b and the shared diagonal.
    def model(y, w):
        s = pyro.sample("s", dist.LogNormal(0.0, 0.2))
        with pyro.plate("rows", len(y)):
            mu = pyro.sample("mu", dist.Normal(torch.zeros(3), 1.0).to_event(1))
            diag = s * torch.ones(3)
            pyro.sample("y", dist.LowRankMultivariateNormal(mu, w, diag), obs=y)

    scopes = {
        "s": [scope(node("s"))],
        "mu": singles("mu", 2),
        "y": [scope(node("s")) | nodes("mu", [b]) for b in range(2)],
    }
    return Case(model, (torch.randn(2, 3), torch.randn(3, 1)), scopes=scopes, jacobians=("s",))


def matrix_normal():
    # Row covariance U and column covariance V around a matrix of row and column effects, as one
    # dense Gaussian element: it reads every effect.
    def model(y, u, v):
        with pyro.plate("rows", 2, dim=-2):
            r = pyro.sample("r", dist.Normal(0.0, 1.0))
        with pyro.plate("columns", 3, dim=-1):
            c = pyro.sample("c", dist.Normal(0.0, 1.0))
        loc = (r + c).reshape(-1)
        cov = torch.kron(u, v)
        pyro.sample("y", dist.MultivariateNormal(loc, cov), obs=y.reshape(-1))

    everything = nodes("r", [(i, 0) for i in range(2)]) | nodes("c", range(3))
    scopes = {"r": singles("r", 2, 1), "c": singles("c", 3)}
    u = torch.tensor([[1.0, 0.3], [0.3, 1.0]])
    v = torch.tensor([[1.0, 0.2, 0.1], [0.2, 1.0, 0.2], [0.1, 0.2, 1.0]])
    blankets = {label: everything - {label} for label in everything}
    case = Case(model, (torch.randn(2, 3), u, v), scopes=scopes, blankets=blankets)
    case.summed = ("y",)
    return case


def sum_of_products():
    # (a . b) with sparse constant matrices on both sides: x' W z couples W's non-zeros only.
    def model(w):
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0))
        z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0))
        pyro.factor("energy", torch.einsum("i,ij,j->", x, w, z))

    w = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.5, 0.0]])
    scopes = {
        "x": singles("x", 3),
        "z": singles("z", 2),
        "energy": [scope(node("x", i), node("z", j)) for i, j in all_indices(3, 2) if w[i, j] != 0],
    }
    return Case(model, (w,), scopes=scopes, summed=("energy",))


MODELS = [
    dense_precision,
    dense_precision_of_deviations,
    scaled_precision,
    precision_row_by_row,
    shared_cholesky,
    shared_latent_cholesky,
    cholesky_per_row,
    multivariate_prior_of_a_vector,
    observed_by_a_precision_matrix,
    gaussian_process,
    low_rank_covariance,
    matrix_normal,
    sum_of_products,
]
