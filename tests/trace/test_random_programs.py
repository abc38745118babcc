"""Random programs: the split density is the density, and interacting nodes share a factor."""

import random
from itertools import combinations

import pyro
import pyro.distributions as dist
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrograph import trace_graph

from .random_programs import SIZE, random_function, sparse

POINTS = 4


def graph_of(f):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(SIZE), 1.0))
        pyro.factor("f", f(x))

    return trace_graph(model)


def neighbours(graph):
    pairs = set()
    for group in graph.factors:
        for row in group.scope.tolist():
            pairs |= set(combinations(row, 2))
    return pairs


def interactions(f, rounds):
    """Pairs with a non-zero mixed difference somewhere."""
    found = set()
    for _ in range(rounds):
        here, there = torch.randn(SIZE), torch.randn(SIZE)

        def total(*moved, here=here, there=there):
            x = here.clone()
            x[list(moved)] = there[list(moved)]
            return f(x).sum()

        base = total()
        single = [total(k) for k in range(SIZE)]
        for i, j in combinations(range(SIZE), 2):
            mixed = total(i, j) - single[i] - single[j] + base
            if mixed.abs() > 1e-6 * (1 + base.abs()):
                found.add((i, j))
    return found


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_a_random_program_splits_without_losing_a_dependence(seed):
    torch.manual_seed(seed)
    f = random_function(seed)
    graph = graph_of(f)
    assert interactions(f, 4) <= neighbours(graph)

    x = torch.randn(POINTS, SIZE)
    prior = dist.Normal(0.0, 1.0).log_prob(x).sum(1)
    expected = torch.stack([f(row.clone()).sum() for row in x]) + prior
    torch.testing.assert_close(graph.density(x), expected, rtol=1e-8, atol=1e-8)

    total = graph.constant.expand(POINTS)
    for group in graph.factors:
        values = [x[:, group.scope[:, k]] for k in range(group.arity)]
        log_prob = group.log_prob(values)
        total = total + log_prob.sum(1)
        row = (torch.arange(POINTS)[:, None] + torch.arange(group.num_factors)) % POINTS
        factor = torch.arange(group.num_factors).expand_as(row)
        private = group.log_prob([v[row, factor] for v in values])
        torch.testing.assert_close(private, log_prob[row, factor], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(total, expected, rtol=1e-8, atol=1e-8)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), scaled=st.booleans(), centred=st.booleans())
def test_a_random_sparse_quadratic_form_has_its_non_zeros_as_pairs(seed, scaled, centred):
    """-x'Ax/2 joins i and j iff A_ij + A_ji is not forced to zero by A's zeros."""
    torch.manual_seed(seed)
    mask = (torch.rand(SIZE, SIZE) < 0.25) | torch.eye(SIZE, dtype=torch.bool)
    a = torch.randn(SIZE, SIZE) * mask
    mean = torch.randn(SIZE) if centred else torch.zeros(SIZE)

    def model():
        tau = pyro.sample("tau", dist.Gamma(2.0, 2.0)) if scaled else 1.0
        x = pyro.sample("x", dist.Normal(torch.zeros(SIZE), 1.0))
        d = x - mean
        pyro.factor("f", -0.5 * tau * (d @ a @ d))

    graph = trace_graph(model)
    for i in range(SIZE):
        joined = {j for j in range(SIZE) if j != i and (mask[i, j] or mask[j, i])}
        expected = {("x", (j,)) for j in joined} | ({("tau", ())} if scaled else set())
        assert graph.blanket("x", i) == expected


@settings(max_examples=30)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    seed=st.integers(0, 10**6),
    dims=st.permutations([0, 1]),
)
def test_random_index_patterns_join_exactly_the_indexed_nodes(shape, seed, dims):
    generator = torch.Generator().manual_seed(seed)
    edges = 7
    first = [torch.randint(0, n, (edges,), generator=generator) for n in shape]
    second = [torch.randint(0, n, (edges,), generator=generator) for n in shape]

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(shape), 1.0))
        y = x.permute(*dims)
        a = y[tuple(first[d] for d in dims)]
        b = y[tuple(second[d] for d in dims)]
        with pyro.plate("edges", edges):
            pyro.factor("f", torch.tanh(a + 2 * b))

    expected = [
        {("x", tuple(int(i[e]) for i in ends)) for ends in (first, second)} for e in range(edges)
    ]
    assert [set(scope) for scope in trace_graph(model).scopes("f")] == expected


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), length=st.integers(2, 8), rows=st.integers(1, 3))
def test_sparse_matrices_in_a_likelihood_join_the_columns_of_their_rows(seed, length, rows):
    a = sparse(random.Random(seed), rows, length)

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(length), 1.0))
        pyro.sample("y", dist.StudentT(3.0, a @ x, 1.0), obs=torch.ones(rows))

    expected = [{("x", (j,)) for j in range(length) if a[i, j] != 0} for i in range(rows)]
    scopes = [set(scope) for scope in trace_graph(model).scopes("y")]
    assert scopes == [s for s in expected if s]
