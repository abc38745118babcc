"""Fixed points on graphs with cycles. Truth: the numpy algorithms of ``references``."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.graph.colouring import colour

from .builders import (
    CYCLES,
    TREES,
    Tables,
    boltzmann,
    cycle_with_zeros,
    grid_edges,
    mixed_cycle,
    potts,
    random_messages,
    random_model,
    run,
    tree_with_zeros,
)
from .references import MeanField, fractional_bp, free_energy

CLOSE = {"rtol": 0, "atol": 1e-7}
POSITIVE = [boltzmann, potts, mixed_cycle]
by_name = {"ids": lambda f: getattr(f, "__name__", str(f))}


def numpy_of(beliefs):
    return [b.numpy() for b in beliefs]


@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("make", CYCLES, **by_name)
def test_beliefs_are_those_of_plain_loops(make, alpha):
    model = make(0)
    posterior = run(model, pg.FractionalBP, alpha=alpha)
    assert posterior.converged
    nodes, factors = fractional_bp(model, alpha)
    for ours, theirs in zip(model.beliefs(posterior), nodes):
        assert_close(ours, torch.as_tensor(theirs), **CLOSE)
    ours = model.factor_beliefs(posterior)
    for k, theirs in zip(sorted(ours), factors):
        assert_close(ours[k], torch.as_tensor(theirs), **CLOSE)


@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.0, -1.0, 0.0])
@pytest.mark.parametrize("make", CYCLES + TREES, **by_name)
def test_evidence_is_the_fractional_bethe_free_energy_of_consistent_beliefs(make, alpha):
    model = make(3)
    if alpha <= 0 and "zeros" in make.__name__:
        pytest.skip("alpha <= 0 does not take zeros: see test_zeros")
    if alpha == 0.5 and make is tree_with_zeros:
        alpha = 0.75  # at 0.5 the optimum lies on the boundary: see test_zeros
    posterior = run(model, pg.PowerEP, alpha=alpha, tol=1e-11, damping=0.3, num_steps=3000)
    assert posterior.converged
    nodes, factors = model.beliefs(posterior), model.factor_beliefs(posterior)
    assert len(factors) == sum(len(s) > 1 for s in model.scopes)
    for k, belief in factors.items():
        scope = model.scopes[k]
        assert_close(belief.sum(), torch.tensor(1.0), rtol=0, atol=1e-12)
        for slot, i in enumerate(scope):
            rest = [j for j in range(len(scope)) if j != slot]
            assert_close(belief.sum(rest), nodes[i], rtol=0, atol=1e-8)
    ours = free_energy(model, numpy_of(nodes), {k: b.numpy() for k, b in factors.items()}, alpha)
    assert_close(float(posterior.log_evidence), ours, rtol=0, atol=1e-8)


def test_a_different_alpha_per_statement_gives_the_free_energy_with_those_weights():
    model = mixed_cycle(1)
    wide = [k for k, s in enumerate(model.scopes) if len(s) > 1]
    alpha = dict(zip(wide, (0.5, 1.0, 2.0, 0.0, -1.0)))
    named = {f"f{k}": a for k, a in alpha.items()}
    options = {"tol": 1e-11, "damping": 0.3, "num_steps": 3000}
    one = run(model, pg.FractionalBP, alpha=named, **options)
    other = run(model, pg.PowerEP, alpha=lambda name: named[name], **options)
    assert one.converged
    assert_close(one.log_evidence, other.log_evidence, rtol=0, atol=0)
    nodes, factors = model.beliefs(one), model.factor_beliefs(one)
    ours = free_energy(model, numpy_of(nodes), {k: b.numpy() for k, b in factors.items()}, alpha)
    assert_close(float(one.log_evidence), ours, rtol=0, atol=1e-8)


def test_statements_that_a_mapping_does_not_name_have_alpha_one():
    model = mixed_cycle(1)
    wide = [f"f{k}" for k, s in enumerate(model.scopes) if len(s) > 1]
    named = dict.fromkeys(wide, 1.0) | {wide[0]: 0.5}
    one = run(model, pg.FractionalBP, alpha={wide[0]: 0.5})
    other = run(model, pg.FractionalBP, alpha=named)
    assert_close(one.log_evidence, other.log_evidence, rtol=0, atol=0)


def test_single_cycles_have_the_exact_bethe_answer_by_transfer_matrices():
    """On one cycle of pairs, BP's messages are the leading eigenvectors of the product of the
    pairs and log Z_Bethe the log of its leading eigenvalue (Weiss 2000)."""
    tables = [torch.randn(3, 3) for _ in range(5)]
    scopes = tuple((i, i + 1) for i in range(4)) + ((0, 4),)
    model = Tables((3,) * 5, scopes, (*tables[:4], tables[4]))
    product = torch.eye(3)
    for table in tables[:4]:
        product = product @ table.exp()
    product = product @ tables[4].exp().T
    values, right = torch.linalg.eig(product)
    left = torch.linalg.inv(right)
    top = int(values.abs().argmax())
    posterior = run(model, tol=1e-12)
    assert_close(posterior.log_evidence, values[top].real.log(), rtol=0, atol=1e-10)
    belief = (right[:, top] * left[top]).real
    assert_close(model.beliefs(posterior)[0], belief, rtol=0, atol=1e-9)


# ---------------------------------------------------------------------- mean field
@pytest.mark.parametrize("make", POSITIVE, **by_name)
@pytest.mark.parametrize("seed", range(2))
def test_vmp_is_coordinate_ascent_step_by_step_from_the_same_start(make, seed):
    model = make(seed)
    engine = pg.VMP(model, progress=False).setup()
    pointer, index = engine.graph.neighbors
    order = colour(pointer, index).argsort(stable=True).tolist()
    theirs = MeanField(model)
    for _ in range(6):
        engine.step()
        for i in order:
            theirs.update(i)
        for ours, q in zip(model.beliefs(engine.posterior()), theirs.q):
            assert_close(ours, torch.as_tensor(q), rtol=0, atol=1e-11)
        assert_close(float(engine.log_evidence), theirs.bound, rtol=0, atol=1e-10)


@pytest.mark.parametrize("strength", [0.5, 3.0])
@pytest.mark.parametrize("make", [boltzmann, potts], **by_name)
def test_the_sequential_mean_field_bound_never_falls_and_stays_below_log_z(make, strength):
    small = make(4)
    model = Tables(small.cards, small.scopes, tuple(strength * t for t in small.tables), True)
    engine = pg.VMP(model, progress=False).setup()
    random_messages(engine, 0, 2.0)
    bounds = []
    for _ in range(40):
        engine.step()
        bounds.append(float(engine.log_evidence))
    assert (np.diff(bounds) >= -1e-11).all()
    assert bounds[-1] <= float(model.log_z) + 1e-12
    assert engine.evidence_kind() == "lower bound"


def test_mean_field_beliefs_of_factors_are_products():
    model = potts(0)
    posterior = run(model, pg.VMP)
    nodes = model.beliefs(posterior)
    for k, belief in model.factor_beliefs(posterior).items():
        product = torch.ones(())
        for i in model.scopes[k]:
            product = product.unsqueeze(-1) * nodes[i]
        assert_close(belief, product, rtol=0, atol=1e-12)


# ---------------------------------------------------------------------- one fixed point
@pytest.mark.parametrize("engine", [pg.BP, pg.FractionalBP, pg.VMP])
@pytest.mark.parametrize("make", POSITIVE, **by_name)
def test_schedules_and_damping_change_the_way_not_the_answer(make, engine):
    model = make(2)
    first = run(model, engine)
    for options in (
        {"schedule": "parallel"},
        {"schedule": "sequential"},
        {"schedule": "residual"},
        {"damping": 0.5},
        {"schedule": "sequential", "damping": 0.3},
        {"schedule": "residual", "damping": 0.7},
    ):
        other = run(model, engine, **options)
        assert other.converged, options
        for a, b in zip(model.beliefs(first), model.beliefs(other)):
            assert_close(a, b, rtol=0, atol=1e-6)


def glass(seed: int, strength: float) -> Tables:
    """Couplings of random sign and one size on a 4 x 4 grid, weak fields: frustrated."""
    g = torch.Generator().manual_seed(seed)
    sign = torch.randint(2, (24,), generator=g) * 2.0 - 1
    pair = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    tables = [torch.tensor([0.0, 0.1]) * torch.randn((), generator=g) for _ in range(16)]
    tables += [strength * s * pair for s in sign]
    scopes = [(i,) for i in range(16)] + grid_edges(4)
    return Tables((2,) * 16, tuple(scopes), tuple(tables), plated=True)


def test_automatic_damping_settles_frustrated_models_that_oscillate_without():
    oscillating = 0
    for seed in range(4):
        model = glass(seed, 1.5)
        plain = pg.BP(model, damping=0.0, progress=False, num_steps=300).setup()
        while plain.num_done < 300 and not plain.converged:
            plain.step()
        oscillating += not plain.converged
        assert run(model, num_steps=3000).converged
    assert oscillating


# ---------------------------------------------------------------------- symmetries
@pytest.mark.parametrize("engine", [pg.BP, pg.FractionalBP])
def test_names_of_nodes_and_states_and_the_order_of_statements_do_not_matter(engine):
    model = cycle_with_zeros(1)
    rng = np.random.default_rng(0)
    node = rng.permutation(len(model.cards))  # node i is called node[i]
    states = [torch.as_tensor(rng.permutation(c)) for c in model.cards]
    cards = [0] * len(node)
    for i, c in enumerate(model.cards):
        cards[node[i]] = c
    scopes, tables = [], []
    for k in rng.permutation(len(model.scopes)):
        scope, table = model.scopes[k], model.tables[k]
        for slot, i in enumerate(scope):
            table = table.index_select(slot, states[i])
        order = np.argsort([node[i] for i in scope])
        scopes.append(tuple(int(node[scope[j]]) for j in order))
        tables.append(table.permute(*order.tolist()))
    other = Tables(tuple(cards), tuple(scopes), tuple(tables))
    first, second = run(model, engine, tol=1e-11), run(other, engine, tol=1e-11)
    assert_close(first.log_evidence, second.log_evidence, rtol=0, atol=1e-9)
    a, b = model.beliefs(first), other.beliefs(second)
    for i in range(len(node)):
        assert_close(b[node[i]], a[i][states[i]], rtol=0, atol=1e-9)


def test_a_plate_and_single_sites_are_one_model():
    plated = boltzmann(1)
    loose = Tables(plated.cards, plated.scopes, plated.tables)
    one, other = run(plated), run(loose)
    assert_close(one.log_evidence, other.log_evidence, rtol=0, atol=1e-10)
    for a, b in zip(plated.beliefs(one), loose.beliefs(other)):
        assert_close(a, b, rtol=0, atol=1e-9)


def test_factors_of_one_node_are_exact_whatever_alpha():
    model = random_model((2, 3, 4), [], 3, 2.0)
    for alpha in (-2.0, 0.0, 0.5, 3.0):
        posterior = run(model, pg.PowerEP, alpha=alpha)
        assert_close(posterior.log_evidence, model.log_z, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [boltzmann, potts], **by_name)
@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_single_precision_reaches_the_same_fixed_point(make, alpha):
    model = make(1)
    double = run(model, pg.FractionalBP, alpha=alpha)
    single = run(model, pg.FractionalBP, alpha=alpha, dtype=torch.float32)
    assert single.converged and single.log_evidence.dtype == torch.float32
    for a, b in zip(model.beliefs(double), model.beliefs(single)):
        assert_close(b.double(), a, rtol=0, atol=2e-3)
    cast = Tables(model.cards, model.scopes, tuple(t.float() for t in model.tables), True)
    torch.set_default_dtype(torch.float32)
    own = run(cast, pg.FractionalBP, alpha=alpha)
    assert own.converged
    for a, b in zip(cast.beliefs(own), model.beliefs(single)):
        assert_close(a, b, rtol=0, atol=2e-3)
