import itertools

import networkx as nx
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro import poutine
from scipy import stats
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.datasets import tabular
from pyrograph.errors import OptionError, ShapeMismatch
from pyrograph.models import ChowLiuTree
from pyrograph.models.chow_liu import gaussian_mutual_information

REPARAMETRISATIONS = ["edge-only", "marginal", "edge", "directed"]


def gaussian_tree(num_variables, num_rows, seed):
    """Rows of a Gaussian Markov tree, and its edges: correlations of 0.5 to 0.8 along them."""
    tree = nx.random_labeled_tree(num_variables, seed=seed)
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, num_variables))
    for parent, child in nx.bfs_edges(tree, 0):
        r = rng.choice([-1, 1]) * rng.uniform(0.5, 0.8)
        x[:, child] = r * x[:, parent] + np.sqrt(1 - r**2) * x[:, child]
    return torch.from_numpy(x), {frozenset(e) for e in tree.edges}


def bimodal_rows(num_rows=40, num_variables=5):
    x, _ = gaussian_tree(num_variables, num_rows, seed=1)
    return x + 3.0 * (torch.rand(num_rows, 1) < 0.4)


def edge_set(tree):
    return {frozenset(e) for e in tree.edges.tolist()}


def windows(data, width):
    """Log densities of single variables and of pairs as functions, by their definition."""
    x, h = data.numpy(), width.numpy()

    def single(i, at):
        return np.log(stats.norm.pdf(at[:, None], x[:, i], h[i]).mean(1))

    def pair(i, j, a, b):
        kernels = stats.norm.pdf(a[:, None], x[:, i], h[i])
        return np.log((kernels * stats.norm.pdf(b[:, None], x[:, j], h[j])).mean(1))

    return single, pair


def log_density(data, width, edges, at):
    """log p of a tree at ``[S, D]``, in the form of Chow & Liu."""
    single, pair = windows(data, width)
    ones = [single(i, at[:, i]) for i in range(at.shape[1])]
    total = np.sum(ones, 0)
    for i, j in edges:
        total = total + pair(i, j, at[:, i], at[:, j]) - ones[i] - ones[j]
    return total


# ---------------------------------------------------------------------- structure
@pytest.mark.parametrize("seed", range(5))
def test_the_tree_of_gaussian_data_is_found_by_correlations(seed):
    data, truth = gaussian_tree(12, 3000, seed)
    assert edge_set(ChowLiuTree.fit(data, mutual_information="gaussian")) == truth


@pytest.mark.parametrize("seed", range(3))
def test_the_tree_of_gaussian_data_is_found_by_parzen_windows(seed):
    data, truth = gaussian_tree(6, 1000, seed)
    assert edge_set(ChowLiuTree.fit(data)) == truth


def test_dependence_without_correlation_is_found_by_parzen_windows_alone():
    x = torch.randn(400, 3)
    x[:, 2] = x[:, 0].square() + 0.1 * x[:, 2]
    tree = ChowLiuTree.fit(x)
    assert frozenset((0, 2)) in edge_set(tree)
    assert tree.mutual_information[0, 2] > 3 * tree.mutual_information[0, 1]
    assert gaussian_mutual_information(x)[0, 2] < 0.1


def test_no_spanning_tree_has_a_greater_density_at_the_data():
    data = bimodal_rows(num_variables=4)
    width = torch.tensor([0.3, 0.5, 0.4, 0.6])
    tree = ChowLiuTree.fit(data, bandwidth=width)
    best = tree.log_prob(data).mean().item()
    others = [nx.from_prufer_sequence(list(s)) for s in itertools.product(range(4), repeat=2)]
    scores = [log_density(data, width, t.edges, data.numpy()).mean() for t in others]
    assert len(scores) == 16
    assert_close(best, float(max(scores)))


@pytest.mark.parametrize("decimals", [9, 0], ids=["rows", "values"])
def test_mutual_information_is_that_of_its_definition(decimals):
    data = bimodal_rows(200).round(decimals=decimals)
    few = max(len(set(c)) for c in data.t().tolist()) ** 2
    assert (few < len(data)) == (decimals == 0)
    tree = ChowLiuTree.fit(data, bandwidth=0.5)
    single, pair = windows(data, torch.full((5,), 0.5))
    x = data.numpy()
    for i, j in itertools.permutations(range(5), 2):
        a, b = x[:, i], x[:, j]
        expected = (pair(i, j, a, b) - single(i, a) - single(j, b)).mean()
        assert_close(tree.mutual_information[i, j].item(), float(expected))
    assert bool((tree.mutual_information.diagonal() == 0).all())


def test_gaussian_mutual_information_is_that_of_the_correlation():
    data = bimodal_rows()
    found = ChowLiuTree.fit(data, mutual_information="gaussian").mutual_information
    r = np.corrcoef(data.numpy().T)
    expected = -0.5 * np.log(1 - r**2 + np.eye(5))
    np.fill_diagonal(expected, 0.0)
    assert_close(found, torch.from_numpy(expected))


@pytest.mark.parametrize("root", range(5))
def test_edges_lead_away_from_the_root(root):
    data = bimodal_rows()
    tree = ChowLiuTree.fit(data, root=root)
    reached = {root}
    for parent, child in tree.edges.tolist():
        assert parent in reached and child not in reached
        reached.add(child)
    assert reached == set(range(5))
    assert edge_set(tree) == edge_set(ChowLiuTree.fit(data))


# ---------------------------------------------------------------------- the program
@pytest.mark.parametrize("how", REPARAMETRISATIONS)
def test_every_reparametrisation_is_the_density_by_its_closed_form(how):
    data = bimodal_rows()
    width = torch.linspace(0.3, 0.7, 5)
    tree = ChowLiuTree.fit(data, bandwidth=width, root=3)
    at = 3 * torch.randn(7, 5)
    expected = torch.from_numpy(log_density(data, width, tree.edges.tolist(), at.numpy()))
    assert_close(tree.log_prob(at), expected)
    assert_close(pg.trace_graph(tree, (how,)).log_prob({"x": at}), expected)
    for x, value in zip(at, expected):
        program = poutine.condition(tree, {"x": x})
        assert_close(poutine.trace(program).get_trace(how).log_prob_sum(), value)


@pytest.mark.parametrize("how", REPARAMETRISATIONS)
def test_blankets_are_the_neighbours_in_the_tree(how):
    tree = ChowLiuTree.fit(bimodal_rows())
    graph = pg.trace_graph(tree, (how,))
    neighbours = nx.Graph(tree.edges.tolist())
    for i in range(5):
        assert graph.blanket("x", i) == {("x", (j,)) for j in neighbours[i]}
    assert [set(s) for s in graph.scopes("pair")] == [
        {("x", (i,)), ("x", (j,))} for i, j in tree.edges.tolist()
    ]


@pytest.mark.parametrize(
    ("how", "holders"), [("edge-only", []), ("marginal", [0, 1, 2, 3]), ("directed", [2])]
)
def test_unary_factors_are_where_they_are_said_to_be(how, holders):
    chain = torch.tensor([[0, 1], [1, 2], [2, 3]])
    tree = ChowLiuTree.fit(chain_rows(), root=2)
    assert edge_set(tree) == {frozenset(e) for e in chain.tolist()}
    scopes = [] if not holders else pg.trace_graph(tree, (how,)).scopes("unary")
    assert scopes == [(("x", (i,)),) for i in holders]
    if how == "edge-only":
        assert {g.name for g in pg.trace_graph(tree, (how,)).factors} == {"pair"}


def chain_rows():
    x = torch.randn(300, 4)
    for i in range(1, 4):
        x[:, i] += 1.5 * x[:, i - 1]
    return x


@pytest.mark.parametrize("how", REPARAMETRISATIONS)
def test_sums_over_a_grid_give_mass_one_and_the_windows_as_marginals(how):
    """Sum-product on a fine grid; the trapezoid rule is exact for kernels to many digits."""
    tree = ChowLiuTree.fit(bimodal_rows(25, 4), bandwidth=0.4)
    grid = torch.linspace(-8, 11, 191)
    step = (grid[1] - grid[0]).item()
    graph = pg.trace_graph(tree, (how,))
    node = {i: graph.node_id("x", i) for i in range(4)}
    unary = {i: torch.zeros(len(grid)) for i in node.values()}
    pairs = {}
    for group in graph.factors:
        if group.arity == 1:
            values = group.log_prob([grid.unsqueeze(1).expand(-1, group.num_factors)])
            for scope, value in zip(group.scope.flatten().tolist(), values.unbind(1)):
                unary[scope] = unary[scope] + value
        else:
            both = [
                v.reshape(-1, 1).expand(-1, group.num_factors)
                for v in torch.meshgrid(grid, grid, indexing="ij")
            ]
            values = group.log_prob(both).reshape(len(grid), len(grid), -1)
            for scope, value in zip(group.scope.tolist(), values.unbind(-1)):
                pairs[tuple(scope)] = value
    for i, v in node.items():
        log_p = collected(v, None, unary, pairs, np.log(step))
        assert_close(log_p.logsumexp(0) + np.log(step), torch.tensor(0.0), rtol=0, atol=1e-9)
        exact = tree.marginals().log_prob(grid.unsqueeze(1).expand(-1, 4))[:, i]
        assert_close(log_p.exp(), exact.exp(), rtol=0, atol=1e-9)


def collected(v, source, unary, pairs, log_step):
    """Log belief of node v without what comes from ``source``."""
    total = unary[v]
    for (a, b), table in pairs.items():
        if v not in (a, b) or source in (a, b):
            continue
        other, table = (b, table) if v == a else (a, table.t())
        message = collected(other, v, unary, pairs, log_step)
        total = total + (table + message).logsumexp(1) + log_step
    return total


def test_the_program_takes_a_batch_of_particles():
    tree = ChowLiuTree.fit(bimodal_rows())
    at = torch.randn(6, 5)

    def batch(how):
        with pyro.plate("particles", 6, dim=-2):
            tree(how)

    for how in REPARAMETRISATIONS:
        trace = poutine.trace(poutine.condition(batch, {"x": at})).get_trace(how)
        assert_close(trace.log_prob_sum(), tree.log_prob(at).sum())


def test_an_engine_finds_mass_one_and_the_moments_of_nearly_gaussian_data():
    data, _ = gaussian_tree(4, 2000, seed=0)
    tree = ChowLiuTree.fit(data, bandwidth=0.5, max_centres=200)
    posterior = pg.fit(tree, infer=pg.EP, progress=False)
    assert posterior.converged
    assert_close(posterior.log_evidence, torch.tensor(0.0), rtol=0, atol=0.02)
    marginal, exact = posterior.marginal("x"), tree.marginals()
    assert_close(marginal.mean, exact.mean, rtol=0, atol=0.05)
    assert_close(marginal.variance, exact.variance, rtol=0.1, atol=0)


# ---------------------------------------------------------------------- draws and options
def test_draws_have_the_marginals_and_the_covariances_of_the_edges():
    data = bimodal_rows()
    tree = ChowLiuTree.fit(data, bandwidth=0.4)
    x = tree.sample(20_000)
    for i in range(5):

        def cdf(v, i=i):
            return stats.norm.cdf(v[:, None], data[:, i].numpy(), 0.4).mean(1)

        assert stats.kstest(x[:2000, i].numpy(), cdf).pvalue > 0.005
    exact = torch.cov(data.t(), correction=0)
    found = torch.cov(x.t())
    for i, j in tree.edges.tolist():
        assert_close(found[i, j], exact[i, j], rtol=0.05, atol=0.05)


@given(scale=st.tuples(*[st.floats(0.01, 100)] * 3), shift=st.tuples(*[st.floats(-100, 100)] * 3))
def test_units_change_neither_the_tree_nor_the_information(scale, shift):
    torch.manual_seed(0)
    data = bimodal_rows(30, 3)
    units = torch.tensor(scale, dtype=torch.float64)
    there = units * data + torch.tensor(shift, dtype=torch.float64)
    a, b = ChowLiuTree.fit(data), ChowLiuTree.fit(there)
    assert_close(a.edges, b.edges)
    assert_close(a.mutual_information, b.mutual_information, rtol=0, atol=1e-8)
    assert_close(a.log_prob(data), b.log_prob(there) + units.log().sum())


def test_thinning_takes_rows_of_the_data_and_repeats_with_its_seed():
    data = bimodal_rows(200)
    a, b, c = (ChowLiuTree.fit(data, max_centres=50, seed=s) for s in (0, 0, 1))
    assert a.pair.centres.shape[1] == a.unary.centres.shape[1] == 50
    assert_close(a.pair.centres, b.pair.centres)
    assert not torch.equal(a.pair.centres, c.pair.centres)
    assert set(a.unary.centres[0].flatten().tolist()) <= set(data[:, 0].tolist())
    whole = ChowLiuTree.fit(data)
    assert_close(ChowLiuTree.fit(data, max_centres=200).pair.centres, whole.pair.centres)


def test_a_single_variable_is_its_own_density():
    tree = ChowLiuTree.fit(torch.randn(30, 1), bandwidth=0.5)
    at = torch.randn(4, 1)
    assert tree.edges.shape == (0, 2)
    for how in REPARAMETRISATIONS:
        assert_close(
            pg.trace_graph(tree, (how,)).log_prob({"x": at}), tree.marginals().log_prob(at).sum(-1)
        )
    assert tree.sample(3).shape == (3, 1)


def test_equal_and_constant_columns_leave_everything_finite():
    data = torch.randn(50, 4)
    data[:, 1], data[:, 2] = data[:, 0], 1.0
    for information in ("kde", "gaussian"):
        tree = ChowLiuTree.fit(data, bandwidth=0.3, mutual_information=information)
        assert bool(tree.mutual_information.isfinite().all())
        assert frozenset((0, 1)) in edge_set(tree)
        assert bool(tree.log_prob(data).isfinite().all())
        assert bool(pg.trace_graph(tree).log_prob({"x": data}).isfinite().all())


def test_single_precision_stays_single():
    torch.set_default_dtype(torch.float32)
    data = bimodal_rows().float()
    tree = ChowLiuTree.fit(data)
    graph = pg.trace_graph(tree, ("marginal",))
    assert graph.log_prob({"x": data}).dtype == torch.float32
    assert_close(graph.log_prob({"x": data}), tree.log_prob(data), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bandwidth": "scott"}, '"silverman", a number, or a tensor'),
        ({"bandwidth": 0.0}, "finite and above 0"),
        ({"bandwidth": torch.tensor([1.0, float("nan"), 1.0])}, "finite and above 0"),
        ({"mutual_information": "knn"}, '"kde" or "gaussian"'),
        ({"root": 3}, r"variable; they are 0 \.\. 2"),
        ({"max_centres": 1}, "at least 2"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        ChowLiuTree.fit(torch.randn(10, 3), **options)


def test_data_and_widths_of_another_shape_are_refused():
    for data in (torch.randn(10), torch.randn(1, 3), torch.randn(10, 0)):
        with pytest.raises(ShapeMismatch, match="two rows or more"):
            ChowLiuTree.fit(data)
    with pytest.raises(ShapeMismatch, match=r"\(2,\); the data have 3 columns"):
        ChowLiuTree.fit(torch.randn(10, 3), bandwidth=torch.ones(2))
    with pytest.raises(ShapeMismatch, match=r"expected \[\*, 3\]"):
        ChowLiuTree.fit(torch.randn(10, 3)).log_prob(torch.randn(4, 2))


def test_data_without_a_density_are_refused():
    with pytest.raises(OptionError, match=r"int64.*double"):
        ChowLiuTree.fit(torch.ones(10, 3, dtype=torch.int64))
    data = torch.randn(10, 3)
    data[4, 1] = float("nan")
    with pytest.raises(OptionError, match="row 4 of the data is not finite"):
        ChowLiuTree.fit(data)


def test_an_unknown_reparametrisation_is_answered_with_the_known_ones():
    tree = ChowLiuTree.fit(torch.randn(10, 3))
    with pytest.raises(OptionError, match=r"'nodes'.*edge-only.*directed"):
        tree("nodes")


# ---------------------------------------------------------------------- real data
REAL = ["iris", "banknote", "istanbul", "seeds", "yeast", "wdbc", "letter", "poker", "climate"]


@pytest.mark.parametrize("name", REAL)
def test_programs_of_real_tables_have_the_density_of_their_tree(data_root, name):
    data = tabular(name)
    tree = ChowLiuTree.fit(data, max_centres=300)
    graph = pg.trace_graph(tree)
    at = dist.Normal(0.0, 1.0).sample((5, data.shape[1]))
    assert_close(graph.log_prob({"x": at}), tree.log_prob(at))
    assert nx.is_tree(nx.Graph(tree.edges.tolist()))


def test_the_index_in_liras_hangs_on_the_index_in_dollars(data_root):
    assert frozenset((0, 1)) in edge_set(ChowLiuTree.fit(tabular("istanbul")))


def test_integers_share_centres(data_root):
    assert ChowLiuTree.fit(tabular("poker")).pair.centres.shape[1] <= 13 * 13


@pytest.mark.parametrize(
    "options, text",
    [
        ({"root": 1.5}, r"root=1\.5 must be a whole number"),
        ({"root": "a"}, "root='a' must be a whole number"),
        ({"root": None}, "root=None must be a whole number"),
        ({"root": True}, "root=True must be a whole number"),
        ({"max_centres": 2.5}, r"max_centres=2\.5 must be a whole number"),
        ({"max_centres": "a"}, "max_centres='a' must be a whole number"),
        ({"bandwidth": None}, "bandwidth=None must be"),
        ({"bandwidth": ["a"]}, r"bandwidth=\['a'\] must be"),
        ({"seed": None}, "seed=None must be a whole number"),
        ({"seed": 1.5, "max_centres": 10}, r"seed=1\.5 must be a whole number"),
    ],
)
def test_options_of_another_kind_are_refused(options, text):
    with pytest.raises(OptionError, match=text):
        ChowLiuTree.fit(bimodal_rows(), **options)


@pytest.mark.parametrize(
    "data, text",
    [
        ([[0.0, 1.0], [1.0, 3.0]], "data are list"),
        (np.array([["a", "b"], ["c", "d"]]), "array of <U1"),
    ],
)
def test_data_that_are_no_array_of_numbers_are_refused(data, text):
    with pytest.raises(OptionError, match=text):
        ChowLiuTree.fit(data)


def test_rows_may_come_as_an_array():
    rows = bimodal_rows()
    one, other = ChowLiuTree.fit(rows.numpy(), root=np.int64(2)), ChowLiuTree.fit(rows, root=2)
    assert torch.equal(one.edges, other.edges)
    assert_close(one.log_prob(rows), other.log_prob(rows), rtol=0, atol=0)


@pytest.mark.parametrize("n", [-1, 1.5, None, True])
def test_numbers_of_draws_that_are_none_are_refused(n):
    with pytest.raises(OptionError, match=f"n={n} must be"):
        ChowLiuTree.fit(bimodal_rows()).sample(n)


def test_no_draws_are_none():
    assert ChowLiuTree.fit(bimodal_rows()).sample(0).shape == (0, 5)


def test_arrays_have_the_log_density_of_their_tensors_and_lists_are_refused():
    data = bimodal_rows()
    tree = ChowLiuTree.fit(data, bandwidth=0.5)
    expected = log_density(data, torch.full((5,), 0.5).double(), tree.edges.tolist(), data.numpy())
    assert_close(tree.log_prob(data.numpy()), torch.from_numpy(expected))
    with pytest.raises(OptionError, match=r"x is list.*\[\*, D\]"):
        tree.log_prob(data.tolist())
    with pytest.raises(OptionError, match=r"x is an array of <U"):
        tree.log_prob(data.numpy().astype(str))


@pytest.mark.parametrize("num_variables", [1, 2, 5])
def test_the_density_of_infinite_and_very_large_numbers_is_zero(num_variables):
    tree = ChowLiuTree.fit(bimodal_rows(num_variables=num_variables), bandwidth=0.5)
    ordinary = torch.randn(num_variables, dtype=torch.float64)
    for far in (torch.inf, -torch.inf, 1e200):
        for i in range(num_variables):
            x = ordinary.clone()
            x[i] = far
            both = tree.log_prob(torch.stack([x, ordinary]))
            assert both[0] == -torch.inf and bool(both[1].isfinite())
    unknown = ordinary.clone()
    unknown[0] = torch.nan
    assert bool(tree.log_prob(unknown).isnan())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_has_silvermans_width(dtype):
    data = bimodal_rows().to(dtype)
    x = data.double().numpy()
    low, high = np.percentile(x, [25, 75], axis=0)
    expected = 0.9 * np.minimum(x.std(0, ddof=1), (high - low) / 1.34) * len(x) ** -0.2
    found = ChowLiuTree.fit(data).unary.bandwidth.flatten()
    assert found.dtype == dtype
    np.testing.assert_allclose(found.double(), expected, rtol=torch.finfo(dtype).eps)


def test_masked_numbers_are_not_read():
    rows = bimodal_rows().numpy()
    hidden = rows.copy()
    hidden[:3, 0] = 1e6
    masked = np.ma.masked_array(hidden, hidden > 1e5)
    text = "masked array, 3 of whose numbers are masked; leave out or fill"
    with pytest.raises(OptionError, match=f"data are a {text}"):
        ChowLiuTree.fit(masked)
    tree = ChowLiuTree.fit(rows)
    with pytest.raises(OptionError, match=f"x is a {text}"):
        tree.log_prob(masked)
    kept = ChowLiuTree.fit(np.ma.compress_rows(masked))
    assert edge_set(kept) == edge_set(ChowLiuTree.fit(rows[3:]))
    assert_close(tree.log_prob(np.ma.masked_array(rows)), tree.log_prob(rows))


@pytest.mark.parametrize("how", ["kde", "gaussian"])
def test_a_tree_of_data_with_gradients_has_none(how):
    rows = bimodal_rows()
    width = torch.full((5,), 0.4)
    for bandwidth in ("silverman", width):
        expected = ChowLiuTree.fit(rows, bandwidth=bandwidth, mutual_information=how)
        if bandwidth is width:
            bandwidth = width.clone().requires_grad_()
        tree = ChowLiuTree.fit(
            rows.clone().requires_grad_(), bandwidth=bandwidth, mutual_information=how
        )
        assert tree.edges.tolist() == expected.edges.tolist()
        assert not tree.mutual_information.requires_grad
        assert_close(tree.log_prob(rows), expected.log_prob(rows))


def test_the_log_density_has_a_gradient_in_its_point():
    tree = ChowLiuTree.fit(bimodal_rows())
    assert torch.autograd.gradcheck(tree.log_prob, torch.randn(3, 5, requires_grad=True))


@pytest.mark.parametrize("turn", [lambda a: a[::-1], np.flipud, lambda a: a[::-2]])
def test_reversed_arrays_are_read(turn):
    rows = bimodal_rows().numpy()
    tree, expected = ChowLiuTree.fit(turn(rows)), ChowLiuTree.fit(turn(rows).copy())
    assert tree.edges.tolist() == expected.edges.tolist()
    assert_close(tree.log_prob(turn(rows)), expected.log_prob(turn(rows).copy()))


def test_widths_of_a_tree_come_as_a_list():
    rows, widths = bimodal_rows(), [0.3, 0.4, 0.5, 0.6, 0.7]
    tree, expected = (ChowLiuTree.fit(rows, bandwidth=w) for w in (widths, torch.tensor(widths)))
    assert_close(tree.log_prob(rows), expected.log_prob(rows))
    with pytest.raises(ShapeMismatch, match=r"\(4,\); the data have 5 columns"):
        ChowLiuTree.fit(rows, bandwidth=widths[1:])


@pytest.mark.parametrize("decimals", [3, 0], ids=["rows", "values"])
def test_single_precision_trees_keep_their_digits_far_from_zero(decimals):
    x = bimodal_rows(300)
    x = ((x * (8 if decimals else 1)).round() / (8 if decimals else 1)).float()
    exact = ChowLiuTree.fit(x.double(), bandwidth=0.3)
    tree = ChowLiuTree.fit(x + 2.0**17, bandwidth=0.3)
    assert edge_set(tree) == edge_set(exact)
    information = tree.mutual_information.double()
    assert_close(information, exact.mutual_information, rtol=1e-4, atol=1e-5)
    found = tree.log_prob(x[:40] + 2.0**17).double()
    assert_close(found, exact.log_prob(x[:40].double()), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_gaussian_mutual_information_does_not_depend_on_the_scale(scale):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 3, generator=generator).cumsum(1)
    x = (x * scale + 100 * scale).float()
    truth = np.corrcoef(x.double().numpy().T)
    found = gaussian_mutual_information(x)
    assert found.dtype == torch.float32
    for i, j in ((0, 1), (0, 2), (1, 2)):
        expected = -0.5 * np.log1p(-(truth[i, j] ** 2))
        assert float(found[i, j]) == pytest.approx(expected, rel=1e-5)
