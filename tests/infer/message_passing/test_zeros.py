"""Hard constraints. Truth: sums over all states; the closed form of Minka's equality example."""

import itertools

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import OptionError, ZeroMass

from .builders import INF, Tables, random_model, run, tree_with_zeros

EQUAL = torch.tensor([[0.0, -INF], [-INF, 0.0]], dtype=torch.float64)
IMPLIES = torch.tensor([[0.0, 0.0], [-INF, 0.0]], dtype=torch.float64)
EXCLUDES = torch.tensor([[0.0, 0.0], [0.0, -INF]], dtype=torch.float64)
BOTH = torch.tensor([[-INF, -INF], [-INF, 0.3]], dtype=torch.float64)
number = torch.arange(8)
ODD = (number // 4 + number // 2 + number) % 2 == 1
PARITY = torch.zeros(8, dtype=torch.float64).masked_fill(ODD, -INF).view(2, 2, 2)
ONE = torch.tensor([0.0, -INF], dtype=torch.float64)  # only state 0 is left
OTHER = torch.tensor([-INF, 0.0], dtype=torch.float64)


def field(seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(2, generator=g, dtype=torch.float64)


def constrained(tables, pinned=()) -> Tables:
    """Constraints {scope: table} over binary nodes with fields, some nodes pinned."""
    n = 1 + max(i for scope in tables for i in scope)
    scopes = [(i,) for i in range(n)] + [(i,) for i, _ in pinned] + list(tables)
    values = [field(i) for i in range(n)] + [t for _, t in pinned] + list(tables.values())
    return Tables((2,) * n, tuple(scopes), tuple(values))


FORESTS = {
    "equality": constrained({(0, 1): EQUAL, (1, 2): EQUAL, (2, 3): EQUAL}),
    "implication": constrained({(0, 1): IMPLIES, (1, 2): IMPLIES, (1, 3): IMPLIES}),
    "exclusion": constrained({(0, 1): EXCLUDES, (1, 2): EXCLUDES, (2, 3): EXCLUDES}),
    "parity": constrained({(0, 1, 2): PARITY, (2, 3, 4): PARITY, (4, 5): EQUAL}),
    "both": constrained({(0, 1): BOTH, (1, 2): IMPLIES}),
    "pinned parity": constrained({(0, 1, 2): PARITY, (2, 3, 4): PARITY}, [(0, ONE), (1, OTHER)]),
    "pinned chain": constrained({(0, 1): EQUAL, (1, 2): IMPLIES, (2, 3): EQUAL}, [(0, OTHER)]),
}


@pytest.mark.parametrize("schedule", ["parallel", "sequential", "residual"])
@pytest.mark.parametrize("engine", [pg.BP, pg.EP])
@pytest.mark.parametrize("name", FORESTS)
def test_constraints_on_trees_are_exact(name, engine, schedule):
    model = FORESTS[name]
    posterior = run(model, engine, schedule=schedule)
    assert posterior.converged and posterior.evidence_kind == "exact"
    assert_close(posterior.log_evidence, model.log_z, rtol=0, atol=1e-9)
    for i, belief in enumerate(model.beliefs(posterior)):
        assert_close(belief, model.marginal(i), rtol=0, atol=1e-9)
        assert bool((belief[model.marginal(i) == 0] == 0).all())
    for k, belief in model.factor_beliefs(posterior).items():
        assert_close(belief, model.marginal(*model.scopes[k]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_random_zeros_on_trees_are_exact(seed):
    model = tree_with_zeros(seed)
    posterior = run(model)
    assert_close(posterior.log_evidence, model.log_z, rtol=0, atol=1e-9)
    for i, belief in enumerate(model.beliefs(posterior)):
        assert_close(belief, model.marginal(i), rtol=0, atol=1e-9)


@pytest.mark.parametrize("alpha", [0.75, 2.0, 5.0])
@pytest.mark.parametrize("name", FORESTS)
def test_powers_of_constraints_give_no_nan_and_no_mass_where_there_is_none(name, alpha):
    model = FORESTS[name]
    engine = pg.FractionalBP(model, alpha=alpha, progress=False, num_steps=200, tol=1e-300).setup()
    for _ in range(200):
        engine.step()
    posterior = engine.posterior()
    assert posterior.log_evidence.isfinite()
    for i, belief in enumerate(model.beliefs(posterior)):
        assert belief.isfinite().all()
        assert bool((belief[model.marginal(i) == 0] < 1e-12).all())


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([0.75, 1.0, 1.5, 3.0]))
def test_bounds_of_theorem_4_hold_for_models_with_zeros_too(seed, alpha):
    """At the messages of a few sweeps: random ones would have to agree on the zeros."""
    model = random_model((2, 3, 2), [(0, 1, 2)], seed, 1.5, zeros=0.4)
    engine = pg.FractionalBP(model, alpha=alpha, progress=False).setup()
    for _ in range(3):
        engine.step()
    estimate, truth = float(engine.log_evidence), float(model.log_z)
    assert estimate <= truth + 1e-8 or alpha > 1
    assert estimate >= truth - 1e-8 or alpha < 1


def mini_sudoku(givens: dict[int, int]) -> Tables:
    """4 x 4: cells of one row, column or box differ."""
    cells = [(r, c) for r in range(4) for c in range(4)]
    pairs = [
        (i, j)
        for i, (r, c) in enumerate(cells)
        for j, (s, d) in enumerate(cells)
        if i < j and (r == s or c == d or (r // 2, c // 2) == (s // 2, d // 2))
    ]
    differ = torch.zeros(4, 4).masked_fill(torch.eye(4, dtype=torch.bool), -INF)
    unary = []
    for i in range(16):
        left = torch.zeros(4)
        if i in givens:
            left[[k for k in range(4) if k != givens[i]]] = -INF
        unary.append(left)
    scopes = [(i,) for i in range(16)] + pairs
    return Tables((4,) * 16, tuple(scopes), (*unary, *(differ,) * len(pairs)), plated=True)


SOLVED = [0, 1, 2, 3, 2, 3, 0, 1, 1, 0, 3, 2, 3, 2, 1, 0]


@pytest.mark.parametrize("engine, options", [(pg.BP, {}), (pg.FractionalBP, {"alpha": 0.8})])
def test_a_small_sudoku_is_solved_by_its_constraints(engine, options):
    givens = {i: SOLVED[i] for i in (0, 3, 5, 6, 9, 14)}
    posterior = run(mini_sudoku(givens), engine, **options)
    assert posterior.converged
    probs = posterior.marginal("x").probs
    assert_close(probs, torch.nn.functional.one_hot(torch.tensor(SOLVED), 4).double())
    assert_close(posterior.log_evidence, torch.tensor(0.0), rtol=0, atol=1e-8)


def test_an_empty_sudoku_has_uniform_beliefs():
    probs = run(mini_sudoku({}), pg.BP).marginal("x").probs
    assert_close(probs, torch.full((16, 4), 0.25), rtol=0, atol=1e-8)


def test_a_sudoku_with_two_like_givens_in_a_row_has_no_mass():
    with pytest.raises(ZeroMass, match=r'"f2"\['):
        run(mini_sudoku({0: 1, 3: 1}), pg.BP)


# ---------------------------------------------------------------------- no mass at all
CONTRADICTIONS = {
    "pair": constrained({(0, 1): EQUAL}, [(0, ONE), (1, OTHER)]),
    "chain": constrained({(0, 1): EQUAL, (1, 2): EQUAL, (2, 3): EQUAL}, [(0, ONE), (3, OTHER)]),
    "parity": constrained({(0, 1, 2): PARITY}, [(0, ONE), (1, ONE), (2, OTHER)]),
}


@pytest.mark.parametrize("schedule", ["parallel", "sequential", "residual"])
@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_an_error_that_names_a_factor(name, schedule):
    with pytest.raises(ZeroMass, match=r'factor "f\d+"\[0\] \(scope x\d'):
        run(CONTRADICTIONS[name], pg.BP, schedule=schedule)


@pytest.mark.parametrize("alpha", [0.5, 0.75, 1.5])
@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_an_error_for_powers_too(name, alpha):
    with pytest.raises(ZeroMass, match=r'factor "f\d+"\[0\] \(scope x\d'):
        run(CONTRADICTIONS[name], pg.FractionalBP, alpha=alpha)


@pytest.mark.parametrize("alpha", [2.0, 5.0, 20.0])
@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_contradiction_is_an_error_for_powers_of_two_and_more(name, alpha):
    with pytest.raises(ZeroMass):
        run(CONTRADICTIONS[name], pg.FractionalBP, alpha=alpha)


@pytest.mark.parametrize("alpha", [5.0, 20.0])
@pytest.mark.parametrize("name", ["both", "pinned chain"])
def test_states_that_constraints_exclude_have_no_message_at_large_powers(name, alpha):
    model = FORESTS[name]
    posterior = run(model, pg.FractionalBP, alpha=alpha)
    assert len(posterior.history["residual"]) < 60
    for i, belief in enumerate(model.beliefs(posterior)):
        assert bool((belief[model.marginal(i) == 0] == 0).all())


def test_a_node_without_a_state_is_an_error_that_names_it():
    with pytest.raises(ZeroMass, match=r'node "x1"\[\] has no state'):
        run(constrained({(0, 1): EQUAL}, [(1, ONE), (1, OTHER)]))


def test_a_failed_step_leaves_the_state_before_it():
    engine = pg.BP(CONTRADICTIONS["chain"], progress=False).setup()
    before = engine.state_dict()
    for _ in range(10):
        try:
            engine.step()
            before = engine.state_dict()
        except ZeroMass:
            break
    after = engine.state_dict()
    assert before["messages"].keys() == after["messages"].keys()
    for key, message in before["messages"].items():
        assert_close(after["messages"][key], message, rtol=0, atol=0)


def test_a_failed_sequential_step_leaves_the_state_before_it():
    engine = pg.BP(CONTRADICTIONS["chain"], schedule="sequential", progress=False).setup()
    before = engine.state_dict()
    for _ in range(10):
        try:
            engine.step()
            before = engine.state_dict()
        except ZeroMass:
            break
    after = engine.state_dict()
    for key, message in before["messages"].items():
        assert_close(after["messages"][key], message, rtol=0, atol=0)


@pytest.mark.parametrize("offset", [-7e5, -3e6, 7e5])
@pytest.mark.parametrize("where", ["node", "factor", "factor with zeros"])
def test_a_constant_in_a_log_table_shifts_the_evidence_and_nothing_else(where, offset):
    """A node's table far below 0 is what a million observations of one latent add up to."""
    small = random_model((2, 3), [(0, 1)], 0, zeros=0.3 if "zeros" in where else 0.0)
    k = 0 if where == "node" else 2
    tables = tuple(t + offset if j == k else t for j, t in enumerate(small.tables))
    model = Tables(small.cards, small.scopes, tables)
    posterior = run(model)
    assert_close(posterior.log_evidence, small.log_z + offset, rtol=0, atol=1e-8)
    for i, belief in enumerate(model.beliefs(posterior)):
        assert_close(belief, small.marginal(i), rtol=0, atol=1e-8)


MANY = {
    # sums over many observations, each side with its own favourite: state 0 wins by 1e4
    "both sides": ((2,), [[0.0, -7e5], [-7.1e5, 0.0]], [-7.1e5, -7e5]),
    # what the observations favour is excluded by a constraint
    "excluded favourite": ((3,), [[-3e6, -2.5e6, 0.0], [0.0, 0.0, -INF]], [-3e6, -2.5e6, -INF]),
}


@pytest.mark.parametrize("name", MANY)
def test_many_observations_of_one_node_are_no_contradiction(name):
    cards, tables, total = MANY[name]
    model = Tables(cards, ((0,),) * len(tables), tuple(torch.tensor(t) for t in tables))
    posterior = run(model)
    assert_close(posterior.log_evidence, torch.tensor(total).logsumexp(0), rtol=1e-12, atol=0)
    assert_close(model.beliefs(posterior)[0], torch.tensor(total).softmax(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("alpha", [0.0, -1.0, -0.01])
def test_alpha_zero_and_below_refuse_zeros_and_name_the_factor(alpha):
    with pytest.raises(OptionError, match=r'factor "f2".*has zeros, and alpha=.*pg\.BP'):
        run(constrained({(0, 1): EQUAL}), pg.PowerEP, alpha=alpha)


def test_vmp_refuses_zeros_but_takes_those_of_single_nodes():
    with pytest.raises(OptionError, match="has zeros"):
        run(constrained({(0, 1): IMPLIES}), pg.VMP)
    pair = torch.tensor([[0.3, -0.2], [0.5, 0.1]])
    model = constrained({(0, 1): pair, (1, 2): pair}, [(1, ONE)])
    posterior = run(model, pg.VMP)
    assert_close(model.beliefs(posterior)[1], torch.tensor([1.0, 0.0]), rtol=0, atol=0)
    assert_close(posterior.log_evidence, model.log_z, rtol=0, atol=1e-9)


def test_constraints_may_have_their_own_alpha_beside_mean_field():
    soft = torch.tensor([[0.3, -0.2], [0.5, 0.1]])
    model = constrained({(0, 1): EQUAL, (1, 2): soft})
    posterior = run(model, pg.PowerEP, alpha={"f3": 1.0, "f4": 0.0})
    zeros = model.factor_beliefs(posterior)[3][[0, 1], [1, 0]]
    assert_close(zeros, torch.zeros(2), rtol=0, atol=0)


# ---------------------------------------------------------------------- Minka's example
#: alpha: q(x = 0), scale s; section 4 of Minka (2005), p = diag(1/4, 3/4), q factorised.
EQUALITY = {
    0.25: (0.0, 0.75),
    0.4: (0.0, 0.75),
    0.55: (0.00237, 0.75032),
    0.75: (0.16139, 0.84338),
    1.0: (0.25, 1.0),
    1.5: (0.30492, 1.21811),
    2.0: (0.32467, 1.35140),
    5.0: (0.35198, 1.63759),
    20.0: (0.36276, 1.80582),
}
DIAGONAL = EQUAL + torch.tensor([0.25, 0.75], dtype=torch.float64).log()
EXAMPLE = Tables((2, 2), ((0, 1),), (DIAGONAL,))


@pytest.mark.parametrize("engine", [pg.FractionalBP, pg.PowerEP])
@pytest.mark.parametrize("alpha", EQUALITY)
def test_the_equality_example_has_its_closed_form(alpha, engine):
    posterior = run(EXAMPLE, engine, alpha=alpha)
    share, scale = EQUALITY[alpha]
    for belief in EXAMPLE.beliefs(posterior):
        assert_close(float(belief[0]), share, rtol=0, atol=1e-5)
    assert_close(float(posterior.log_evidence.exp()), scale, rtol=0, atol=1e-5)


def test_the_equality_example_at_one_half_has_its_boundary_optimum():
    """Log messages grow by a constant per sweep there; beliefs are settled long before."""
    engine = pg.FractionalBP(EXAMPLE, alpha=0.5, progress=False, num_steps=200).setup()
    posterior = engine.run()
    assert_close(EXAMPLE.beliefs(posterior)[0], torch.tensor([0.0, 1.0]), rtol=0, atol=1e-12)
    assert_close(float(posterior.log_evidence.exp()), 0.75, rtol=0, atol=1e-10)


def test_the_equality_example_at_one_half_converges():
    assert run(EXAMPLE, pg.FractionalBP, alpha=0.5, num_steps=2000).converged


@pytest.mark.parametrize("alpha", [0.1, 0.25, 0.4])
def test_both_local_optima_of_the_boundary_are_reached_from_random_messages(alpha):
    """Below 1/2 there are two: all mass on (1, 1), s = 3/4, or on (0, 0), s = 1/4."""
    start = pg.FractionalBP(EXAMPLE, alpha=alpha, progress=False).setup().state_dict()["messages"]
    found = set()
    for seed in range(8):
        g = torch.Generator().manual_seed(seed)
        init = {
            k: 10 * torch.randn(m.shape, generator=g, dtype=torch.float64) for k, m in start.items()
        }
        posterior = run(EXAMPLE, pg.FractionalBP, alpha=alpha, init=init, schedule="sequential")
        scale, belief = float(posterior.log_evidence.exp()), EXAMPLE.beliefs(posterior)[0]
        found.add(round(scale, 6))
        assert belief.max() == 1.0
    assert found == {0.25, 0.75}


def test_a_contradiction_far_around_a_ring_is_told_when_it_arrives():
    """Equalities from two nodes that are told apart: a quarter of the ring away they meet."""
    n, c = 40, 4
    equal = torch.full((c, c), -torch.inf).fill_diagonal_(0.0)
    own = torch.zeros(n, c)
    own[0, 1:] = -torch.inf
    own[n // 2, 0] = -torch.inf
    i = torch.arange(n)

    def model():
        with pyro.plate("n", n):
            x = pyro.sample("x", dist.Categorical(torch.ones(c)))
            pyro.factor("own", own[i, x])
        with pyro.plate("e", n):
            pyro.factor("equal", equal[x, x.roll(-1)])

    engine = pg.BP(model, progress=False)
    with pytest.raises(ZeroMass, match=r'"x"\[10\]'):
        engine.run()
    assert engine.num_done == 9


@pytest.mark.parametrize("engine", [pg.BP, pg.TRW])
def test_states_that_come_back_from_afar_are_waited_for(engine):
    # 2 nodes away something speaks against state 1, 7 away something takes most of it back: of
    # three such arms no single one makes the state possible again, all together make it certain
    pairs, fields = {}, {0: 300.0}
    for first in (1, 8, 15):
        nodes = [0, *range(first, first + 7)]
        pairs |= dict.fromkeys(itertools.pairwise(nodes), EQUAL)
        fields |= {nodes[2]: -200.0, nodes[7]: 160.0}
    scopes = [(i,) for i in fields] + list(pairs)
    odds = [torch.tensor([0.0, h], dtype=torch.float64) for h in fields.values()]
    model = Tables((2,) * 22, tuple(scopes), (*odds, *pairs.values()))
    posterior = run(model, engine, schedule="residual")
    assert posterior.converged and posterior.evidence_kind == "exact"
    # all nodes are equal: one state of mass 1, one of mass exp(300 - 3 * 200 + 3 * 160)
    assert_close(float(posterior.log_evidence), 180.0, rtol=0, atol=1e-9)
    for belief in model.beliefs(posterior):
        assert_close(belief, torch.tensor([0.0, 1.0], dtype=torch.float64), rtol=0, atol=1e-9)


def test_a_node_without_states_names_observations_of_it_alone():
    stays = EQUAL.clone()
    emits = torch.tensor([[0.0, -INF], [-INF, 0.0]], dtype=torch.float64)

    def model(seen):
        z = pyro.sample("z0", dist.Categorical(logits=torch.zeros(2, dtype=torch.float64)))
        pyro.sample("first", dist.Categorical(logits=emits[z]), obs=seen[0])
        z = pyro.sample("z1", dist.Categorical(logits=stays[z]))
        pyro.sample("second", dist.Categorical(logits=emits[z]), obs=seen[1])

    assert float(run(model, pg.BP, torch.tensor([1, 1])).log_evidence) == pytest.approx(
        torch.tensor(0.5).log().item()
    )
    with pytest.raises(ZeroMass, match=r'factor "(first|second)".*factor "z1".*together'):
        run(model, pg.BP, torch.tensor([0, 1]))
