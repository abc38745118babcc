"""Elements all of whose terms read all that the element reads: they stay whole, and what each term
reads for itself is never listed."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats

import pyrograph as pg
from pyrograph.trace import split


def gaussian_process(x, y):
    v = pyro.sample("v", dist.LogNormal(0.0, 1.0))
    length = pyro.sample("l", dist.LogNormal(0.0, 1.0))
    apart = (x[:, None] - x) / length
    k = v * torch.exp(-0.5 * apart**2) + 0.1 * torch.eye(len(x))
    pyro.sample("y", dist.MultivariateNormal(torch.zeros(len(x)), covariance_matrix=k), obs=y)


def test_a_gaussian_process_is_one_factor_of_its_hyperparameters(monkeypatch):
    listed = []
    scopes = split.scopes

    def counted(tape, ids, *rest):
        listed.append(len(ids))
        return scopes(tape, ids, *rest)

    monkeypatch.setattr(split, "scopes", counted)
    n = 60
    x, y = torch.linspace(0.0, 1.0, n), torch.randn(n)
    graph = pg.trace_graph(gaussian_process, (x, y))
    assert graph.scopes("y") == [(("v", ()), ("l", ()))]
    assert max(listed) <= 4  # not one of n terms
    v, length = 0.7, 0.3
    k = v * np.exp(-0.5 * ((x[:, None] - x).numpy() / length) ** 2) + 0.1 * np.eye(n)
    expected = stats.multivariate_normal(np.zeros(n), k).logpdf(y.numpy())
    expected += sum(stats.lognorm(1.0).logpdf(s) for s in (v, length))
    values = {"v": torch.tensor(v), "l": torch.tensor(length)}
    assert float(graph.log_prob(values)) == pytest.approx(expected, abs=1e-6)


def test_elements_of_narrower_terms_are_still_divided():
    """A sum whose latest term reads all, beside one whose terms read pairs."""

    def model():
        with pyro.plate("n", 6):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("pairs", -(x[1:] - x[:-1]).square().sum())
        pyro.factor("whole", (x[1:] * x[:-1]).sum() - x.logsumexp(0))
        pyro.factor("both", torch.stack([x.prod(), (x[:2].square()).sum()]).sum())

    graph = pg.trace_graph(model)
    assert sorted(map(len, graph.scopes("pairs"))) == [2] * 5
    assert [len(scope) for scope in graph.scopes("whole")] == [6]
    assert sum(len(scope) == 6 for scope in graph.scopes("both")) == 1
    x = torch.randn(6)
    expected = stats.norm.logpdf(x.numpy()).sum() - float((x[1:] - x[:-1]).square().sum())
    expected += float((x[1:] * x[:-1]).sum() - x.exp().sum().log())
    expected += float(x.prod() + x[:2].square().sum())
    assert float(graph.log_prob({"x": x})) == pytest.approx(expected, abs=1e-9)
    assert math.isclose(float(graph.sum_of_factors({"x": x})), expected, abs_tol=1e-9)
