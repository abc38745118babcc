"""Marginal likelihoods against predictive products, integrals and enumeration by scipy."""

import itertools
import math

import numpy as np
import pyro
import pytest
import torch
from scipy import integrate, special, stats
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.distributions import (
    BetaBernoulli,
    ChineseRestaurant,
    CollapsedMixture,
    CollapsedRelation,
    DirichletCategorical,
    NormalInverseGamma,
    NormalInverseWishart,
)
from pyrograph.errors import OptionError, ShapeMismatch
from tests.distributions.partitions import all_partitions, relabelled

PSI = torch.tensor([[1.5, 0.4], [0.4, 0.8]], dtype=torch.float64)
LOC = torch.tensor([0.3, -0.5], dtype=torch.float64)
COMPONENTS = {
    "gamma": NormalInverseGamma(0.3, 1.2, 0.7, torch.tensor([0.4, -1.0], dtype=torch.float64)),
    "wishart": NormalInverseWishart(0.3, 3.5, PSI, LOC),
    "symbols": DirichletCategorical(torch.tensor([0.5, 1.0, 2.0, 0.3], dtype=torch.float64), 4),
}


def data_for(name, n):
    return torch.randint(4, (n,)) if name == "symbols" else torch.randn(n, 2) * 2 + 1


def student_product(x, kappa, a, b, loc):
    """log of the product of scipy's predictive densities of one dimension of one cluster."""
    total = 0.0
    for value in x:
        scale = math.sqrt(b * (kappa + 1) / (a * kappa))
        total += stats.t.logpdf(value, 2 * a, loc, scale)
        b += kappa * (value - loc) ** 2 / (2 * (kappa + 1))
        loc = (kappa * loc + value) / (kappa + 1)
        kappa, a = kappa + 1, a + 0.5
    return total


def multivariate_product(x, kappa, nu, psi, loc):
    """log of the product of scipy's multivariate predictive densities of one cluster."""
    total, d = 0.0, len(loc)
    for value in x:
        freedom = nu - d + 1
        shape = psi * (kappa + 1) / (kappa * freedom)
        total += stats.multivariate_t.logpdf(value, loc, shape, freedom)
        psi = psi + kappa / (kappa + 1) * np.outer(value - loc, value - loc)
        loc = (kappa * loc + value) / (kappa + 1)
        kappa, nu = kappa + 1, nu + 1
    return total


def symbol_product(x, concentration):
    counts, total = np.array(concentration), 0.0
    for symbol in x:
        total += math.log(counts[symbol] / counts.sum())
        counts[symbol] += 1
    return total


def cluster_truth(name, x):
    if name == "gamma":
        return sum(student_product(x[:, j], 0.3, 1.2, 0.7, [0.4, -1.0][j]) for j in range(2))
    if name == "wishart":
        return multivariate_product(x, 0.3, 3.5, PSI.numpy(), LOC.numpy())
    return symbol_product(x, COMPONENTS["symbols"].concentration.numpy())


@pytest.mark.parametrize("name", COMPONENTS)
def test_marginal_likelihoods_of_all_partitions_are_products_of_scipys_predictives(name):
    n = 8
    x, z = data_for(name, n), all_partitions(n)
    of_subset = {
        subset: cluster_truth(name, x[list(subset)].numpy())
        for size in range(1, n + 1)
        for subset in itertools.combinations(range(n), size)
    }
    expected = torch.tensor(
        [
            sum(of_subset[tuple(i for i in range(n) if row[i] == k)] for k in range(max(row) + 1))
            for row in z.tolist()
        ]
    )
    log_prob = CollapsedMixture(z, COMPONENTS[name]).log_prob(x)
    assert_close(log_prob, expected, rtol=0, atol=1e-10)


def test_the_inverse_gamma_has_scale_b_and_the_mean_precision_kappa():
    kappa, a, b, loc = 0.4, 2.5, 1.5, 0.3
    x = torch.tensor([0.1, 1.4, -0.6])

    mean, log_variance = np.linspace(-12, 12, 1201), np.linspace(-6, 6, 601)
    variance = np.exp(log_variance)[:, None]
    likelihood = np.prod([stats.norm.pdf(v, mean, np.sqrt(variance)) for v in x.numpy()], axis=0)
    prior = stats.norm.pdf(mean, loc, np.sqrt(variance / kappa))
    prior = prior * stats.invgamma.pdf(variance, a, scale=b) * variance
    truth = integrate.simpson(integrate.simpson(likelihood * prior, x=mean), x=log_variance)
    z = torch.zeros(3, dtype=torch.long)
    found = CollapsedMixture(z, NormalInverseGamma(kappa, a, b, loc)).log_prob(x)
    assert_close(found.exp(), torch.tensor(truth), rtol=1e-5, atol=0)


def test_one_dimensional_wishart_is_the_inverse_gamma():
    x, z = torch.randn(7, 1), torch.randint(3, (7,))
    wishart = NormalInverseWishart(0.2, 3.0, torch.tensor([[1.8]]), torch.tensor([0.5]))
    gamma = NormalInverseGamma(0.2, 1.5, 0.9, torch.tensor([0.5]))
    found = CollapsedMixture(z, wishart).log_prob(x)
    assert_close(found, CollapsedMixture(z, gamma).log_prob(x))


def test_the_evidence_of_8_points_is_the_sum_over_all_partitions_in_any_order():
    x, z = torch.randn(8), all_partitions(8)
    component = NormalInverseGamma(0.04, 1.0, 1.0)
    joint = ChineseRestaurant(0.5, 8).log_prob(z)
    evidence = [
        (joint + CollapsedMixture(z, component).log_prob(x[order])).logsumexp(0)
        for order in (torch.arange(8), torch.randperm(8))
    ]
    assert_close(evidence[0], evidence[1], rtol=0, atol=1e-11)


def test_symbols_of_all_series_sum_to_one():
    x = torch.tensor(list(itertools.product(range(3), repeat=5)))
    z = torch.tensor([0, 1, 0, 2, 0])
    log_prob = CollapsedMixture(z, DirichletCategorical(0.6, 3)).log_prob(x)
    assert_close(log_prob.logsumexp(0), torch.tensor(0.0), rtol=0, atol=1e-12)


def relation_truth(value, rows, columns, a, b):
    total = 0.0
    for r in set(rows):
        for c in set(columns):
            cell = [
                float(value[i, j])
                for i in range(len(rows))
                for j in range(len(columns))
                if rows[i] == r and columns[j] == c and not math.isnan(value[i, j])
            ]
            ones = sum(cell)
            total += special.betaln(a + ones, b + len(cell) - ones) - special.betaln(a, b)
    return total


def test_relations_are_beta_functions_of_the_observed_cells():
    value = torch.bernoulli(torch.full((5, 4), 0.4))
    value[torch.rand(5, 4) < 0.2] = math.nan
    rows, columns = all_partitions(5), all_partitions(4)
    component = BetaBernoulli(0.8, 1.7)
    found = CollapsedRelation(rows[:, None], columns, component).log_prob(value)
    assert found.shape == (52, 15)
    expected = [
        [relation_truth(value, u, v, 0.8, 1.7) for v in columns.tolist()] for u in rows.tolist()
    ]
    assert_close(found, torch.tensor(expected), rtol=0, atol=1e-11)


def test_relations_of_all_tables_sum_to_one_and_a_mask_is_worth_nan():
    tables = torch.tensor(list(itertools.product([0.0, 1.0], repeat=6))).view(-1, 3, 2)
    rows, columns = torch.tensor([3, 1, 3]), torch.tensor([0, 0])
    fn = CollapsedRelation(rows, columns, BetaBernoulli(0.5, 1.5))
    assert_close(fn.log_prob(tables).logsumexp(0), torch.tensor(0.0), rtol=0, atol=1e-12)
    mask = torch.rand(3, 2) < 0.6
    masked = CollapsedRelation(rows, columns, BetaBernoulli(0.5, 1.5), mask=mask)
    holes = torch.where(mask, tables, math.nan)
    assert_close(masked.log_prob(tables), fn.log_prob(holes))
    assert_close(masked.log_prob(tables.bool()), fn.log_prob(holes))


@pytest.mark.parametrize("name", COMPONENTS)
def test_samples_have_the_marginal_likelihoods_expectations(name):
    """E[g(x)] by sampling against the closed predictive moments of the first element."""
    z = torch.tensor([4, 4, 9])
    x = CollapsedMixture(z, COMPONENTS[name]).sample((40_000,))
    if name == "symbols":
        c = COMPONENTS[name].concentration
        alike = (x[:, 0] == x[:, 1]).double().mean()
        apart = (x[:, 0] == x[:, 2]).double().mean()
        together = (c * (c + 1)).sum() / (c.sum() * (c.sum() + 1))
        assert_close(alike, together, rtol=0, atol=0.012)
        assert_close(apart, (c / c.sum()).square().sum(), rtol=0, atol=0.012)
        return
    marginal = {
        "gamma": stats.t(2.4, 0.4, math.sqrt(0.7 * 1.3 / (1.2 * 0.3))),
        "wishart": stats.t(2.5, 0.3, math.sqrt(1.5 * 1.3 / (0.3 * 2.5))),
    }[name]
    for element in (0, 2):
        assert stats.kstest(x[:, element, 0].numpy(), marginal.cdf).pvalue > 1e-3
    assert stats.spearmanr(x[:, 0, 0], x[:, 1, 0]).statistic > 0.4
    assert abs(stats.spearmanr(x[:, 0, 0], x[:, 2, 0]).statistic) < 0.02


def test_wishart_samples_have_the_covariance_of_the_prior_within_clusters():
    component = NormalInverseWishart(0.5, 9.0, PSI, LOC)
    x = CollapsedMixture(torch.zeros(2, dtype=torch.long), component).sample((60_000,))
    gap = (x[:, 0] - x[:, 1]) / math.sqrt(2)
    assert_close(gap.T @ gap / len(gap), PSI / (9.0 - 2 - 1), rtol=0, atol=0.01)


@pytest.mark.parametrize(
    ("rows", "columns"), [([0, 0], [5, 2]), ([3, 1], [2, 2]), ([0, 1], [1, 0]), ([4, 4], [4, 4])]
)
def test_relation_samples_have_the_frequencies_of_log_prob(rows, columns):
    labels = torch.tensor(rows), torch.tensor(columns)
    fn = CollapsedRelation(*labels, BetaBernoulli(0.5, 1.5))
    x = fn.sample((20_000,))
    assert x.shape == (20_000, 2, 2)
    tables = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4))).view(-1, 2, 2)
    found = (x.unsqueeze(1) == tables).all(-1).all(-1).double().sum(0)
    expected = fn.log_prob(tables).exp() * len(x)
    assert stats.chisquare(found, expected).pvalue > 1e-3


@pytest.mark.parametrize("name", COMPONENTS)
def test_names_of_the_labels_do_not_matter(name):
    z, x = torch.randint(4, (6, 9)), data_for(name, 9)
    component = COMPONENTS[name]
    other = relabelled(z, torch.Generator().manual_seed(3))
    found = CollapsedMixture(other, component).log_prob(x)
    assert_close(found, CollapsedMixture(z, component).log_prob(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", COMPONENTS)
def test_batches_of_labels_and_data_equal_their_elements(name):
    n, component = 7, COMPONENTS[name]
    z = torch.randint(3, (4, 1, n))
    x = torch.stack([data_for(name, n) for _ in range(5)])
    fn = CollapsedMixture(z, component)
    found = fn.log_prob(x)
    assert found.shape == (4, 5)
    one_by_one = [[CollapsedMixture(z[p, 0], component).log_prob(y) for y in x] for p in range(4)]
    assert_close(found, torch.tensor(one_by_one), rtol=0, atol=1e-11)
    wide = fn.expand((3, 4, 5))
    assert wide.sample().shape == (3, 4, 5) + fn.event_shape
    assert_close(wide.log_prob(x), found.expand(3, 4, 5))


def test_parameters_may_have_batches():
    z, x = torch.randint(3, (4, 6)), torch.randn(6)
    kappa = torch.tensor([[0.1], [1.0]])
    fn = CollapsedMixture(z, NormalInverseGamma(kappa, 1.0, 1.0, dim=0))
    assert fn.batch_shape == (2, 4)
    assert fn.sample().shape == (2, 4, 6)
    for k in range(2):
        alone = CollapsedMixture(z, NormalInverseGamma(float(kappa[k]), 1.0, 1.0))
        assert_close(fn.log_prob(x)[k], alone.log_prob(x))
    wishart = NormalInverseWishart(kappa[:, 0], 3.0, PSI)
    y = torch.randn(6, 2)
    found = CollapsedMixture(z[0], wishart).log_prob(y)
    alone = CollapsedMixture(z[0], NormalInverseWishart(1.0, 3.0, PSI)).log_prob(y)
    assert_close(found[1], alone)


def test_scalar_parameters_serve_numbers_and_vectors():
    z = torch.randint(3, (6,))
    x = torch.randn(6, 3)
    component = NormalInverseGamma(0.5, 1.0, 2.0)
    by_column = sum(CollapsedMixture(z, component).log_prob(x[:, j]) for j in range(3))
    assert_close(CollapsedMixture(z, component).log_prob(x), by_column)
    with_dim = NormalInverseGamma(0.5, 1.0, 2.0, dim=3)
    assert CollapsedMixture(z, with_dim).event_shape == (6, 3)
    assert_close(CollapsedMixture(z, with_dim).log_prob(x), by_column)


def test_data_far_from_the_origin_keep_their_digits():
    z, x = torch.randint(3, (30,)), torch.randn(30, 2)
    for make in (
        lambda loc: NormalInverseGamma(0.04, 1.0, 1.0, loc),
        lambda loc: NormalInverseWishart(0.04, 3.0, torch.eye(2), loc),
    ):
        near = CollapsedMixture(z, make(torch.zeros(2))).log_prob(x)
        far = CollapsedMixture(z, make(torch.full((2,), 2.0**20))).log_prob(x + 2.0**20)
        assert_close(far, near, rtol=0, atol=1e-8)


def test_gradients_are_finite_differences():
    z = torch.tensor([0, 1, 0, 2, 1, 0])

    def leaf(value):
        return torch.as_tensor(value, dtype=torch.float64).clone().requires_grad_()

    def gamma(kappa, a, b, loc, x):
        return CollapsedMixture(z, NormalInverseGamma(kappa, a, b, loc)).log_prob(x)

    assert torch.autograd.gradcheck(
        gamma, tuple(map(leaf, (0.3, 1.2, 0.7, [0.4, -1.0], torch.randn(6, 2))))
    )

    def wishart(kappa, nu, root, loc, x):
        psi = root @ root.T + torch.eye(2)
        return CollapsedMixture(z, NormalInverseWishart(kappa, nu, psi, loc)).log_prob(x)

    inputs = (0.3, 3.5, torch.randn(2, 2), [0.4, -1.0], torch.randn(6, 2))
    assert torch.autograd.gradcheck(wishart, tuple(map(leaf, inputs)))

    def symbols(concentration):
        x = torch.tensor([0, 2, 1, 1, 0, 0])
        return CollapsedMixture(z, DirichletCategorical(concentration, 3)).log_prob(x)

    assert torch.autograd.gradcheck(symbols, (leaf([0.5, 1.0, 2.0]),))

    def relation(a, b):
        value = torch.tensor([[1.0, 0.0], [math.nan, 1.0]])
        labels = torch.tensor([0, 1])
        return CollapsedRelation(labels, labels, BetaBernoulli(a, b)).log_prob(value)

    assert torch.autograd.gradcheck(relation, (leaf(0.5), leaf(1.5)))


def test_a_pyro_program_scores_the_mixture():
    x = torch.randn(6, 2)

    def model():
        kappa = pyro.sample("kappa", pyro.distributions.Gamma(2.0, 1.0))
        z = pyro.sample("z", ChineseRestaurant(1.0, 6))
        component = NormalInverseGamma(kappa, 1.0, 1.0, dim=2)
        pyro.sample("x", CollapsedMixture(z, component), obs=x)

    trace = pyro.poutine.trace(model).get_trace()
    trace.compute_log_prob()
    assert trace.nodes["x"]["log_prob"].shape == ()


@pytest.mark.parametrize("name", COMPONENTS)
def test_the_tracer_reads_a_mixture_with_latent_labels(name):
    x, alpha = data_for(name, 6), torch.tensor(0.9)

    def model():
        scale = pyro.sample("alpha", pyro.distributions.Gamma(2.0, 1.0))
        z = pyro.sample("z", ChineseRestaurant(scale, 6))
        pyro.sample("x", CollapsedMixture(z, COMPONENTS[name]), obs=x)

    graph = pg.trace_graph(model)
    assert graph.blanket("alpha") == {("z", ())}
    z = torch.randint(3, (6,))
    expected = pyro.poutine.trace(pyro.poutine.condition(model, {"z": z, "alpha": alpha}))
    expected = expected.get_trace().log_prob_sum()
    assert_close(graph.log_prob({"z": z, "alpha": alpha}), expected)


def test_the_tracer_reads_a_relation_with_latent_rows_and_columns():
    value = torch.bernoulli(torch.full((4, 3), 0.5))

    def model():
        rows = pyro.sample("rows", ChineseRestaurant(1.0, 4))
        columns = pyro.sample("columns", ChineseRestaurant(1.0, 3))
        relation = CollapsedRelation(rows, columns, BetaBernoulli(1.0, 2.0))
        pyro.sample("x", relation, obs=value)

    graph = pg.trace_graph(model)
    rows, columns = torch.tensor([0, 1, 0, 2]), torch.tensor([0, 0, 1])
    expected = ChineseRestaurant(1.0, 4).log_prob(rows) + ChineseRestaurant(1.0, 3).log_prob(
        columns
    )
    expected = expected + CollapsedRelation(rows, columns, BetaBernoulli(1.0, 2.0)).log_prob(value)
    assert_close(graph.log_prob({"rows": rows, "columns": columns}), expected)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda z: NormalInverseGamma(0.0, 1.0, 1.0), "kappa"),
        (lambda z: NormalInverseGamma(1.0, 1.0, -1.0), "b="),
        (lambda z: NormalInverseWishart(1.0, 0.5, torch.eye(2)), "nu"),
        (lambda z: NormalInverseWishart(1.0, 3.0, -torch.eye(2)), "positive definite"),
        (lambda z: DirichletCategorical(0.0, 3), "concentration"),
        (lambda z: DirichletCategorical(1.0, 0), "num_symbols"),
        (lambda z: BetaBernoulli(1.0, 0.0), "b="),
        (lambda z: CollapsedMixture(z, BetaBernoulli(1.0, 1.0)), "DirichletCategorical"),
        (lambda z: CollapsedRelation(z, z, DirichletCategorical(1.0, 2)), "BetaBernoulli"),
        (
            lambda z: CollapsedMixture(z, DirichletCategorical(1.0, 2)).log_prob(z + 1),
            "num_symbols",
        ),
        (
            lambda z: CollapsedRelation(z, z, BetaBernoulli(1.0, 1.0)).log_prob(
                torch.ones(3, 3) * 2
            ),
            "NaN",
        ),
        (lambda z: CollapsedMixture(z.tolist(), DirichletCategorical(1.0, 2)), "tensor"),
    ],
)
def test_bad_arguments_are_named(make, text):
    with pytest.raises(OptionError, match=text):
        make(torch.tensor([0, 1, 1]))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda z: CollapsedMixture(z, COMPONENTS["gamma"]).log_prob(torch.ones(3, 4)), "3, 2"),
        (
            lambda z: CollapsedMixture(z, NormalInverseGamma(1.0, 1.0, 1.0)).log_prob(
                torch.ones(4)
            ),
            "3",
        ),
        (
            lambda z: CollapsedMixture(z, NormalInverseGamma(1.0, 1.0, 1.0)).log_prob(
                torch.ones(3, 3)
            ),
            "dim=0",
        ),
        (lambda z: NormalInverseWishart(1.0, 3.0, torch.ones(2)), "d, d"),
        (lambda z: DirichletCategorical(torch.ones(3), 2), "shape"),
        (
            lambda z: CollapsedRelation(z, z, BetaBernoulli(1.0, 1.0)).log_prob(torch.ones(3, 2)),
            "3, 3",
        ),
        (
            lambda z: CollapsedMixture(z, COMPONENTS["symbols"]).incremental(z[None], z[None]),
            "one data set",
        ),
    ],
)
def test_wrong_shapes_are_named(make, text):
    with pytest.raises(ShapeMismatch, match=text):
        make(torch.tensor([0, 1, 1]))


@pytest.mark.parametrize("component", ["gamma", "wishart"])
def test_the_higher_precision_of_data_and_parameters_is_kept(component):
    x, z = torch.randn(7, 2) + 3, torch.tensor([[0, 1, 0, 2, 1, 0, 0]])

    def make(dtype):
        if component == "gamma":
            return NormalInverseGamma(torch.tensor(0.5, dtype=dtype), 1.5, 0.25)
        return NormalInverseWishart(0.5, 3.5, torch.eye(2, dtype=dtype))

    exact = CollapsedMixture(z, make(torch.float64)).log_prob(x)
    mixed = CollapsedMixture(z, make(torch.float32))
    assert_close(mixed.log_prob(x), exact, rtol=0, atol=1e-12)
    assert_close(mixed.incremental(z, x).log_prob(), exact, rtol=0, atol=1e-12)
    single = mixed.log_prob(x.float())
    assert single.dtype == torch.float32
    assert_close(single.double(), exact, rtol=1e-5, atol=1e-5)
    state = mixed.incremental(z[:, :6], x.float())
    assert state.scores(6).dtype == torch.float32
    gained = mixed.incremental(z[:, :6], x).scores(6)
    assert_close(state.scores(6).double(), gained, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", COMPONENTS)
def test_supports_are_where_the_data_may_be(name):
    fn = CollapsedMixture(torch.tensor([0, 1, 0, 2]), COMPONENTS[name])
    x = fn.sample((3,))
    assert bool(fn.support.check(x).all())
    assert fn.support.check(x).shape == (3,)
    x[1] = torch.nan if x.is_floating_point() else 10**6
    assert fn.support.check(x).tolist() == [True, False, True]


@pytest.mark.parametrize(
    "c",
    [
        [1e-310, 3e-310, 6e-310],
        [1e-5, 3e-5, 6e-5],
        [1e-3, 3e-3, 6e-3],
        [0.01, 0.02, 0.02],
        [0.3, 1e-4, 0.7],
        [1e-4, 50.0, 20.0],
        [0.5, 1.0, 2.0],
    ],
    ids=str,
)
def test_symbols_are_drawn_by_the_urn_at_every_concentration(c):
    """The first symbol is s with probability c_s / A, the next in its cluster the same one with
    (c_s + 1) / (A + 1)."""
    n, total = 20_000, math.fsum(c)
    draws = CollapsedMixture(
        torch.tensor([5, 5]), DirichletCategorical(torch.tensor(c, dtype=torch.float64), 3)
    )
    pairs = draws.sample((n,))
    expected = [
        c[s] / total * (c[t] + (s == t)) / (total + 1)
        for s, t in itertools.product(range(3), [0, 1, 2])
    ]
    found = torch.bincount(pairs[:, 0] * 3 + pairs[:, 1], minlength=9).numpy()
    expected = n * np.array(expected)
    some = expected > 5  # the others are one cell, if there is anything in it
    rest = expected[~some].sum()
    assert found[~some].sum() <= rest + 6 * math.sqrt(rest) + 1
    assert (
        stats.chisquare(found[some], expected[some] * found[some].sum() / expected[some].sum())[1]
        > 1e-3
    )


@pytest.mark.parametrize(
    ("a", "b"),
    [(1e-310, 3e-310), (1e-5, 3e-5), (1e-3, 3e-3), (0.01, 0.03), (1e-4, 2.0), (0.5, 1.5)],
)
def test_cells_are_drawn_by_the_urn_at_every_concentration(a, b):
    n = 20_000
    labels = torch.tensor([0]), torch.tensor([3, 3])
    prior = BetaBernoulli(torch.tensor(a, dtype=torch.float64), b)
    x = CollapsedRelation(*labels, prior).sample((n,)).squeeze(-2).long()
    one, zero = a / (a + b), b / (a + b)
    expected = [
        zero * (b + 1) / (a + b + 1),
        zero * a / (a + b + 1),
        one * b / (a + b + 1),
        one * (a + 1) / (a + b + 1),
    ]
    for count, p in zip(torch.bincount(x[:, 0] * 2 + x[:, 1], minlength=4).tolist(), expected):
        assert abs(count - n * p) <= 4.5 * math.sqrt(n * p * (1 - p)) + 2
    assert CollapsedRelation(*labels, prior).sample().dtype == torch.float64


def test_draws_of_small_concentrations_repeat_with_the_seed():
    mixture = CollapsedMixture(torch.zeros(50, dtype=torch.long), DirichletCategorical(1e-3, 40))
    first, second = (torch.manual_seed(3) and mixture.sample((20,)) for _ in range(2))
    assert torch.equal(first, second) and not torch.equal(first, mixture.sample((20,)))
