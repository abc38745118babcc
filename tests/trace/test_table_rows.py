"""Rows of tables that latent indices choose: the same densities, scopes and derivatives as numbers
that are looked up one by one, read as few as a statement needs."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.ops.indexing import Vindex
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import ScopeBudgetError
from pyrograph.trace import operands, record, table_rows

N, K, V = 6, 3, 5


@pytest.fixture
def computed(monkeypatch):
    """The names of what is computed of tables."""
    keep, found = table_rows.TableResults.keep, []

    def counted(self, key, tables, read):
        found.append(key)
        keep(self, key, tables, read)

    monkeypatch.setattr(table_rows.TableResults, "keep", counted)
    return found


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)


def table(*shape):
    return torch.rand(*shape, dtype=torch.float64) + 0.1


def labels(count=N, states=K):
    with pyro.plate("labels", count):
        return pyro.sample("z", dist.Categorical(torch.ones(states)))


WORDS = torch.tensor([0, 4, 2, 2, 1, 3])
ROWS, CUBE, WORKER = table(K, V), table(2, K, V), torch.tensor([0, 1, 1, 0, -1, -2])
SQUARE, WEIGHT = table(K, K), torch.tensor([1.0, 0.0, 2.0, 0.5, 3.0]).double()
POINTS = torch.randn(N, V, dtype=torch.float64)


def words(probs):
    with pyro.plate("words", N):
        pyro.sample("w", dist.Categorical(probs), obs=WORDS)


def by_probs():
    words(ROWS[labels()])


def by_logits():
    z = labels()
    with pyro.plate("words", N):
        pyro.sample("w", dist.Categorical(logits=ROWS[z]), obs=WORDS)


def by_softmax():
    words((ROWS.log()[labels()] / 2).softmax(-1))


def of_workers():
    words(CUBE[WORKER, labels()])


def of_two_labels():
    z = labels()
    words(CUBE[z.remainder(2), z.flip(0)])


def by_vindex():
    words(Vindex(ROWS)[labels(), :])


def from_the_end():
    words(ROWS[labels() - K])


def of_groups():
    with pyro.plate("groups", 2, dim=-2), pyro.plate("items", 3, dim=-1):
        z = pyro.sample("z", dist.Categorical(torch.ones(K)))
        pyro.sample("w", dist.Categorical(ROWS[z]), obs=WORDS.view(2, 3))


def of_pairs():
    z = labels()
    with pyro.plate("steps", N - 1):
        pyro.factor("pairs", dist.Categorical(SQUARE[z[:-1]]).log_prob(z[1:]))


def in_a_loop():
    z = pyro.sample("z_0", dist.Categorical(torch.ones(K)))
    pyro.sample("w_0", dist.Categorical(ROWS[z]), obs=WORDS[0])
    for t in range(1, 12):
        z = pyro.sample(f"z_{t}", dist.Categorical(SQUARE[z]))
        pyro.sample(f"w_{t}", dist.Categorical(ROWS[z]), obs=WORDS[t % N])


def in_a_loop_of_two_tables():
    """Tables of one shape, in turn."""
    z = pyro.sample("z_0", dist.Categorical(torch.ones(K)))
    for t in range(1, 13):
        z = pyro.sample(f"z_{t}", dist.Categorical([SQUARE, SQUARE.T + 0.1][t % 2][z]))


def in_a_loop_of_fresh_tables():
    z = pyro.sample("z_0", dist.Categorical(torch.ones(K)))
    for t in range(1, 12):
        z = pyro.sample(f"z_{t}", dist.Categorical((SQUARE + 0.1 * t)[z]))


def points():
    mean, scale = ROWS[labels()], CUBE[0]
    with pyro.plate("points", N):
        pyro.sample("x", dist.Normal(mean, scale[0]).to_event(1), obs=POINTS)


def reductions():
    rows = ROWS[labels()]
    total = rows.amax(-1) + rows.logsumexp(-1) + rows.prod(-1) + rows.norm(dim=-1)
    pyro.factor("all", (total + (rows * rows).sum(-1) + rows.max(-1).values).sum())


def axes_of_cubes():
    rows = torch.stack([CUBE, CUBE + 0.5], -1)[:, labels()]  # chosen along the second axis
    own = CUBE.transpose(0, 1).contiguous()[labels_again()]  # [N, 2, V]
    both = own.sum(1).log().sum() + own.sum((1, 2)).exp().sum() + own.mean(-1).prod(1).sum()
    pyro.factor("all", rows.sum() + both + own.flatten(1).amax(1).sum())


def labels_again():
    with pyro.plate("more labels", N):
        return pyro.sample("more", dist.Categorical(torch.ones(K)))


def beside_other_constants():
    """Constants of all rows alike, of rows of their own, and zeros, which leave no dependence."""
    rows = ROWS[labels()]
    alike = (rows * (WEIGHT + 1) + WEIGHT[None]).log().sum()
    own = (rows * POINTS).sum() + (POINTS - rows).square().sum()
    pyro.factor("all", alike + own + (rows * WEIGHT)[:, :2].prod(-1).sum())


def rows_and_parts_of_them():
    rows = ROWS[labels()] + 1.0
    part = rows[:, 1:3].log().sum(-1) + rows.t()[0] + rows.view(-1)[::V].exp()
    pyro.factor("all", (part + rows.reshape(N, V, 1).sum((1, 2))).sum())


def between_rows():
    """Sums over the elements are no rows."""
    rows = ROWS[labels()].exp()
    pyro.factor("all", rows.sum(0).log().sum() + rows.cumsum(0)[-1, 2])


def of_rows_and_columns_alike():
    """Axes that fit by accident: as many elements as numbers in a row."""
    with pyro.plate("labels", V):
        z = pyro.sample("z", dist.Categorical(torch.ones(K)))
    rows = ROWS[z]
    pyro.factor("all", (rows / rows.sum(-1)).log().sum() + (rows - rows.sum(0)).square().sum())


def written_to():
    rows = ROWS[labels()].clone()
    rows[:, 0] = 1.0
    rows[2] += 3.0
    pyro.factor("all", (rows / rows.sum(-1, keepdim=True)).log().sum())


def of_a_table_written_to_later():
    own = ROWS.clone()
    rows = own[labels()]
    own.mul_(3.0).add_(1.0)
    pyro.factor("all", rows.log().sum() + (rows / rows.sum(-1, True)).exp().sum() + own[0].sum())


def indices_that_are_of_rows():
    rows = ROWS[labels()]
    best, order = rows.argmax(-1), rows.sort(-1, descending=True).indices
    chosen = (
        CUBE[0].t().contiguous()[best].log().sum() + rows.gather(1, order).cumsum(1).exp().sum()
    )
    pyro.factor("all", chosen + torch.where(rows > 0.5, rows, POINTS).sum())


def expanded():
    rows = ROWS[labels()]
    with pyro.plate("words", N):
        pyro.sample("w", dist.Categorical(rows).expand([N]), obs=WORDS)
        with pyro.plate("times", 2):
            pyro.sample("v", dist.Categorical(rows).expand([2, N]), obs=WORDS.expand(2, N))


def of_a_table_in_another_order():
    rows = CUBE.permute(1, 2, 0)[labels()]  # [N, V, 2]
    pyro.factor("all", (rows * torch.arange(2.0 * V).view(V, 2)).log1p().sum())


def of_a_single_row():
    z = pyro.sample("z", dist.Categorical(torch.ones(K)))
    total = ROWS[z].sum()
    last = total.sum(0) + total.logsumexp(-1) + torch.stack([total, total]).softmax(0)[0]
    pyro.factor("all", last + ROWS[z].unsqueeze(-1).sin().flatten().kthvalue(2).values)


def views_of_rows():
    rows = ROWS[labels()]
    both = rows.view(N, V, 1).exp().squeeze(-1) / rows.sum(-1, True).squeeze(-1).cos().view(N, 1)
    words(both.unsqueeze(1).flatten(1))


def constants_changed_out_of_sight():
    rows, shift, total = ROWS[labels()], torch.zeros(V), 0.0
    for k in range(3):
        shift.data[:] = float(k)
        total = total + (rows - shift).square().sum()
        shift.numpy()[:] = k + 0.5
        total = total + (rows * 2 + shift).log().sum()
    pyro.factor("all", total + (1 / (rows * 0.0 + 1)).sum() + rows.kthvalue(2).values.sum())


def rows_themselves():
    z = labels()
    with pyro.plate("rows", N, dim=-2), pyro.plate("columns", V, dim=-1):
        pyro.factor("all", ROWS.log()[z])


def several_numbers_of_a_row():
    pairs = torch.stack([WORDS, WORDS.flip(0)], 1)
    pyro.factor("all", ROWS[labels()].log().gather(-1, pairs).sum())


#: Programs that autograd does not take with tables that require gradients.
UNDIFFERENTIATED = ("written_to",)
MODELS = {
    model.__name__: model
    for model in (
        by_probs,
        by_logits,
        by_softmax,
        of_workers,
        of_two_labels,
        by_vindex,
        from_the_end,
        of_groups,
        of_pairs,
        in_a_loop,
        in_a_loop_of_two_tables,
        in_a_loop_of_fresh_tables,
        points,
        reductions,
        axes_of_cubes,
        beside_other_constants,
        rows_and_parts_of_them,
        between_rows,
        of_rows_and_columns_alike,
        written_to,
        of_a_table_written_to_later,
        indices_that_are_of_rows,
        expanded,
        of_a_table_in_another_order,
        of_a_single_row,
        views_of_rows,
        constants_changed_out_of_sight,
        rows_themselves,
        several_numbers_of_a_row,
    )
}


def pyro_density(model, values):
    given = poutine.condition(model, values)
    return poutine.trace(given).get_trace().log_prob_sum()


def draws(model, count=20):
    sites = pg.trace_graph(model).sites
    for seed in range(count):
        pyro.set_rng_seed(seed)
        trace = poutine.trace(model).get_trace()
        yield {
            name: node["value"]
            for name, node in trace.nodes.items()
            if node["type"] == "sample" and name in sites
        }


@pytest.mark.parametrize("name", MODELS)
def test_densities_are_those_of_pyro(name):
    graph = pg.trace_graph(MODELS[name])
    for values in draws(MODELS[name]):
        found = graph.log_prob({n: v.unsqueeze(0) for n, v in values.items()})
        assert_close(found[0], pyro_density(MODELS[name], values), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_scopes_are_those_of_numbers_looked_up_one_by_one(name, monkeypatch):
    ours = pg.trace_graph(MODELS[name])
    monkeypatch.setattr(record.Recorder, "rows", lambda self, t: None)
    theirs = pg.trace_graph(MODELS[name])

    def scopes(graph):
        return sorted((g.name, g.scope.tolist()) for g in graph.factors)

    assert scopes(ours) == scopes(theirs)


@pytest.mark.parametrize("name", [n for n in MODELS if n not in UNDIFFERENTIATED])
def test_derivatives_by_the_tables_are_those_of_pyro(name, monkeypatch):
    model = MODELS[name]
    for part in ("ROWS", "CUBE", "SQUARE"):
        monkeypatch.setitem(globals(), part, globals()[part].clone().requires_grad_())
    tables = [globals()[part] for part in ("ROWS", "CUBE", "SQUARE")]
    graph = pg.trace_graph(model, differentiable=True)
    for values in draws(model, 3):
        found = graph.log_prob({n: v.unsqueeze(0) for n, v in values.items()})[0]
        ours = torch.autograd.grad(found, tables, allow_unused=True, retain_graph=True)
        theirs = torch.autograd.grad(pyro_density(model, values), tables, allow_unused=True)
        for own, other in zip(ours, theirs, strict=True):
            assert (own is None) == (other is None)
            if own is not None:
                assert_close(own, other, rtol=1e-11, atol=1e-11)


def test_constants_of_one_memory_keep_derivatives_of_their_own():
    first = (torch.rand(V) + 0.5).requires_grad_()
    second = first.detach().requires_grad_()
    start = (table(K, V)).requires_grad_()

    def model():
        z = labels()
        rows, still = start[z], start.detach()[z]
        alike = (rows / first).sin() + (rows / second).cos() + (rows / first.detach()).exp()
        pyro.factor("all", (alike + still.exp() * rows.exp()).sum())

    graph, leaves = pg.trace_graph(model, differentiable=True), (first, second, start)
    (values,) = draws(model, 1)
    found = graph.log_prob({n: v.unsqueeze(0) for n, v in values.items()})[0]
    ours = torch.autograd.grad(found, leaves)
    theirs = torch.autograd.grad(pyro_density(model, values), leaves)
    for own, other in zip(ours, theirs, strict=True):
        assert_close(own, other, rtol=1e-11, atol=1e-11)


def test_what_a_wide_constant_makes_of_a_table_counts(computed):
    """5,000 rows beside 4,000 points: only the row that is chosen is computed."""
    means, points = torch.randn(5000, 4), torch.linspace(-3, 3, 4000)

    def model():
        z = pyro.sample("z", dist.Categorical(torch.ones(5000)))
        at = means[z].unsqueeze(-1)
        pyro.factor("all", (at - points).square().logsumexp(-1).sum())

    pg.trace_graph(model)
    assert not computed


def corpus(count, vocabulary, states=4):
    probs = table(states, vocabulary)
    seen = torch.randint(vocabulary, (count,))

    def model():
        with pyro.plate("words", count):
            z = pyro.sample("z", dist.Categorical(torch.ones(states)))
            pyro.sample("w", dist.Categorical(probs[z]), obs=seen)

    truth = (probs / probs.sum(1, keepdim=True))[:, seen].mean(0).log().sum()
    return model, truth


def numbers_of(graph):
    """How many numbers the programs of all factors compute."""
    return sum(g.program.num_widest for g in graph.factors)


def test_a_word_reads_one_number_of_its_row():
    few, many = (pg.trace_graph(corpus(200, size)[0]) for size in (10, 1000))
    assert numbers_of(few) == numbers_of(many)
    model, truth = corpus(3000, 2000)  # 6e6 numbers, were all of them read
    posterior = pg.fit(model, infer=pg.BP, progress=False)
    assert_close(posterior.log_evidence, truth, rtol=1e-10, atol=0)


def test_budgets_count_what_is_read(monkeypatch):
    monkeypatch.setattr(operands, "MAX_READS", 2000)
    pg.trace_graph(corpus(400, 50)[0])

    def model():
        rows = table(4, 50)[labels(400, 4)]
        pyro.factor("sums", (rows - torch.rand(400, 50)).square().sum())

    with pytest.raises(ScopeBudgetError, match=r'statement|after statement "z"'):
        pg.trace_graph(model)


def test_a_loop_computes_a_table_once(computed):
    pg.trace_graph(in_a_loop)
    assert len(computed) == len(set(computed)) <= 12  # 22 statements normalise their rows


def test_tables_are_not_computed_ahead_without_bound(computed, monkeypatch):
    """A loop that chooses one row of a fresh table at every turn."""
    model = in_a_loop_of_fresh_tables
    pg.trace_graph(model)
    freely = len(computed)
    monkeypatch.setattr(table_rows, "AHEAD", 2 * K * K)
    computed.clear()
    graph = pg.trace_graph(model)
    assert len(computed) < freely / 2
    for values in draws(model, 5):
        found = graph.log_prob({n: v.unsqueeze(0) for n, v in values.items()})
        assert_close(found[0], pyro_density(model, values), rtol=1e-12, atol=1e-12)


def test_inference_mode_reads_the_same():
    with torch.inference_mode():
        own = table(K, V)

        def model():
            words(own[labels()])

        graph = pg.trace_graph(model)
        for values in draws(model, 3):
            found = graph.log_prob({n: v.unsqueeze(0) for n, v in values.items()})
            assert_close(found[0], pyro_density(model, values), rtol=1e-12, atol=1e-12)


def test_results_of_a_table_are_told_apart_by_all_that_was_given():
    """Tables of one memory; numbers that are equal and do not do the same; bytes that are."""
    square = torch.tensor([[[3.0, -2.0], [1.0, 5.0]], [[0.5, 4.0], [-6.0, 7.0]]])
    pair, whole = torch.tensor([1.0, 2.0]), torch.tensor([1, 2])

    def f(z):
        rows = square[z]
        found = [
            torch.copysign(rows, 0.0),
            -3 * torch.copysign(rows, -0.0),
            rows.sum(-1, False).unsqueeze(-1),
            5 * rows.sum(-1, True),
            rows * pair,
            7 * (rows * pair.view(2, 1)),
            11 * (rows * whole),
            13 * (rows * whole.view(torch.float64)),
            square.sin()[z],
            17 * square.mT[z].sin() * pair,
            19 * square[:, 0][z].sin().unsqueeze(-1),
            23 * square[:, 1][z].sin().unsqueeze(-1),
            1e-20 * (square.view(torch.int64)[z] * 3).double(),
            29 * (rows * 3),
        ]
        return sum(found).sum((-2, -1))

    def model():
        with pyro.plate("n", 3):
            pyro.factor("f", f(pyro.sample("z", dist.Categorical(torch.ones(2)))))

    z = torch.tensor([0, 1, 1])
    graph = pg.trace_graph(model)
    prior = 3 * torch.tensor(0.5).log()
    torch.testing.assert_close(graph.log_prob({"z": z}), prior + f(z).sum())
