"""The files of the UAI competition. Truth: its solutions; plain loops; sums over all states."""

import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.datasets import DiscreteModel, read_uai, uai_reference
from pyrograph.errors import ConvergenceWarning

from .builders import Tables, mixed_cycle, run
from .references import fractional_bp

# What loopy belief propagation reaches where it is good: |log Z error|, largest marginal error.
GOOD = {
    "Promedus_24": (0.01, 0.01),
    "Segmentation_12": (0.001, 0.001),
    "ObjectDetection_28": (0.01, 0.001),
    "ObjectDetection_34": (0.02, 0.001),
    "Alchemy_11": (0.05, 0.002),
}
SETTLED = [*GOOD, "CSP_12"]


@pytest.mark.parametrize("name", GOOD)
def test_belief_propagation_is_near_the_solution_where_cycles_are_weak(name, data_root):
    model, solution = read_uai(name), uai_reference(name)
    posterior = run(model)
    evidence, marginal = GOOD[name]
    assert posterior.converged and posterior.evidence_kind == "estimate"
    assert abs(float(posterior.log_evidence) - solution.log_evidence) < evidence
    for ours, theirs in zip(model.marginals(posterior), solution.marginals):
        assert_close(ours, theirs, rtol=0, atol=marginal)


@pytest.mark.parametrize("name", SETTLED)
def test_both_schedules_settle_at_one_fixed_point(name, data_root):
    model = read_uai(name)
    one, other = run(model), run(model, schedule="sequential")
    assert one.converged and other.converged
    for a, b in zip(model.marginals(one), model.marginals(other)):
        assert_close(a, b, rtol=0, atol=1e-4)


def as_tables(model: DiscreteModel) -> Tables:
    """Observed variables cut out of the tables, as in ``Tables``; what is left of tables that are
    observed whole goes into the first of the others."""
    free = [v for v in range(model.num_variables) if v not in model.evidence]
    scopes, tables, constant = [], [], 0.0
    for scope, table in zip(model.scopes, model.log_tables):
        table = table[tuple(model.evidence.get(v, slice(None)) for v in scope)]
        left = [free.index(v) for v in scope if v in free]
        order = sorted(range(len(left)), key=left.__getitem__)
        if left:
            scopes.append(tuple(left[k] for k in order))
            tables.append(table.permute(order))
        else:
            constant += float(table)
    tables[0] = tables[0] + constant
    return Tables(tuple(model.cardinalities[v] for v in free), tuple(scopes), tuple(tables))


@pytest.mark.parametrize("name", ["Segmentation_12"])
def test_beliefs_of_real_files_are_those_of_plain_loops(name, data_root):
    model = read_uai(name)
    nodes, _ = fractional_bp(as_tables(model), 1.0, damping=0.0, sweeps=300)
    found = model.marginals(run(model, tol=1e-10))
    free = [v for v in range(model.num_variables) if v not in model.evidence]
    for v, theirs in zip(free, nodes):
        assert_close(found[v], torch.as_tensor(theirs), rtol=0, atol=1e-6)


def test_scopes_in_any_order_and_observed_variables_are_one_model():
    small = mixed_cycle(0)
    scopes = tuple(tuple(reversed(s)) for s in small.scopes)
    tables = tuple(t.permute(*reversed(range(t.dim()))) for t in small.tables)
    model = DiscreteModel(small.cards, scopes, tables, {1: 2})
    cut = as_tables(model)
    one, other = run(model), run(cut)
    assert_close(one.log_evidence, other.log_evidence, rtol=0, atol=1e-9)
    found = model.marginals(one)
    for v, belief in zip((0, 2, 3, 4), cut.beliefs(other)):
        assert_close(found[v], belief, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["Segmentation_12", "Alchemy_11"])
def test_mean_field_is_below_the_solution(name, data_root):
    model, solution = read_uai(name), uai_reference(name)
    if any(bool((t == -torch.inf).any()) for t in model.log_tables if t.dim() > 1):
        with pytest.raises(pg.errors.OptionError, match="has zeros"):
            run(model, pg.VMP)
        return
    posterior = run(model, pg.VMP)
    assert posterior.evidence_kind == "lower bound"
    assert float(posterior.log_evidence) < solution.log_evidence


@pytest.mark.parametrize("num_steps", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_a_file_of_positive_mass_has_no_zero_mass(num_steps, data_root):
    with pytest.warns(ConvergenceWarning):
        run(read_uai("linkage_16"), num_steps=num_steps)


@pytest.mark.parametrize("name", ["Promedus_30", "CSP_12", "Segmentation_12"])
def test_real_files_run_in_powers_and_single_precision_without_nan(name, data_root):
    model = read_uai(name)
    for alpha, dtype in ((0.8, torch.float64), (1.5, torch.float64), (1.0, torch.float32)):
        engine = pg.FractionalBP(model, alpha=alpha, dtype=dtype, progress=False).setup()
        for _ in range(60):
            engine.step()
        posterior = engine.posterior()
        assert posterior.log_evidence.isfinite()
        assert all(bool(m.isfinite().all()) for m in model.marginals(posterior))
