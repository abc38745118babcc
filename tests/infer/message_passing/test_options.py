"""Options, checkpoints and what a run says about itself."""

import io
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import (
    ConvergenceWarning,
    InferenceError,
    NonFiniteDensity,
    OptionError,
    ShapeMismatch,
)

from .builders import INF, Tables, boltzmann, chain, mixed_cycle, potts, random_model, run
from .references import MeanField

PAIR = random_model((2, 3), [(0, 1)], 0)


# ---------------------------------------------------------------------- options
@pytest.mark.parametrize(
    "engine, options, message",
    [
        (pg.BP, {"shedule": "parallel"}, "no option 'shedule'. Did you mean 'schedule'"),
        (pg.BP, {"schedule": "random"}, "schedule='random' is not one of parallel, sequential"),
        (pg.BP, {"damping": 1.0}, "damping=1.0 must lie in"),
        (pg.BP, {"damping": -0.1}, "damping=-0.1 must lie in"),
        (pg.BP, {"damping": "some"}, "damping='some'"),
        (pg.BP, {"tol": 0.0}, "tol=0.0"),
        (pg.BP, {"num_steps": 1.5}, "num_steps=1.5"),
        (pg.BP, {"alpha": 1.0}, "BP fixes alpha; pg.PowerEP"),
        (pg.EP, {"alpha": 0.5}, "EP fixes alpha"),
        (pg.VMP, {"alpha": 0.0}, "VMP fixes alpha"),
        (pg.FractionalBP, {"alpha": {"g": 0.5}}, "alpha names g; .* are f0, f1, f2"),
        (pg.FractionalBP, {"alpha": {1: 0.5}}, "alpha names 1; .* are f0, f1, f2"),
        (pg.FractionalBP, {"alpha": {"f2": "x"}}, "alpha of statement \"f2\" is 'x'"),
        (pg.FractionalBP, {"alpha": lambda name: None}, 'alpha of statement "f\\d" is None'),
    ],
)
def test_an_option_that_does_not_fit_is_refused_in_words(engine, options, message):
    with pytest.raises(OptionError, match=message):
        run(PAIR, engine, **options)


@pytest.mark.parametrize(
    "alpha",
    [
        torch.tensor(2.0),
        torch.tensor(2),
        np.float32(2.0),
        np.array(2.0),
        {"f0": torch.tensor(2.0)},
        lambda name: np.float64(2.0),
    ],
    ids=["tensor", "whole", "float32", "array", "dict", "function"],
)
def test_an_alpha_without_dimensions_is_a_number(alpha):
    """Of two nodes under one factor f beliefs are messages, and m_1^2 = sum_2 f^2 m_2 / m_2^2."""
    f = torch.tensor([[0.9, 0.2], [0.3, 0.7]], dtype=torch.float64)
    first = second = torch.full((2,), 0.5, dtype=torch.float64)
    for _ in range(500):
        first = (first * (f**2 @ (1 / second)).sqrt()).sqrt()  # halfway, in logs
        second = (second * (f.T**2 @ (1 / first)).sqrt()).sqrt()
    posterior = run(Tables((2, 2), ((0, 1),), (f.log(),)), pg.FractionalBP, alpha=alpha)
    assert_close(posterior.marginal("x0").probs, first / first.sum(), rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    "alpha",
    [torch.ones(2), np.ones(1), torch.tensor(True), torch.tensor(INF)],
    ids=["tensor", "array", "truth", "infinite"],
)
def test_an_alpha_with_dimensions_is_refused_in_words(alpha):
    with pytest.raises(OptionError, match="alpha"):
        run(PAIR, pg.FractionalBP, alpha=alpha)


@pytest.mark.parametrize("alpha", [float("nan"), INF, "0.5", None, True, {"f2": INF}, 10**400])
def test_an_alpha_that_is_no_finite_number_is_refused_in_words(alpha):
    with pytest.raises(OptionError, match="alpha"):
        run(PAIR, pg.FractionalBP, alpha=alpha)


def test_an_alpha_function_that_takes_no_statement_is_refused_in_words():
    with pytest.raises(OptionError, match="given a statement's name, and failed"):
        run(PAIR, pg.FractionalBP, alpha=lambda: 0.5)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(
    "size, dtype", [(1e-4, torch.float32), (1e-9, torch.float32), (1e-9, torch.float64)]
)
@pytest.mark.parametrize("model", [boltzmann(3, 0.3), mixed_cycle(1)], ids=["pairs", "tables"])
def test_an_alpha_next_to_0_is_no_worse_than_mean_field(sign, size, dtype, model):
    """Rounding would be divided by alpha: log Z 90 off in single precision at 1e-9."""
    theirs = MeanField(model)
    for _ in range(300):
        for i in range(len(model.cards)):
            theirs.update(i)
    found = run(model, pg.PowerEP, alpha=sign * size, dtype=dtype)
    tolerance = 1e-3 if dtype == torch.float32 else 1e-7
    assert found.converged and found.evidence_kind == "lower bound"
    assert float(found.log_evidence) == pytest.approx(theirs.bound, abs=tolerance)
    assert float(found.log_evidence) <= float(model.log_z) + tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [1e-4, 1e-9, 1e-15])
def test_a_small_alpha_serves_beside_zeros_too(alpha, dtype):
    """Without the two excluded states all are alike, so any alpha > 0 has the same uniform end."""
    table = torch.zeros(2, 2)
    table[0, 1] = table[1, 0] = -INF
    model = Tables((2, 2, 2), ((0, 1), (1, 2)), (table, table))
    found = run(model, pg.FractionalBP, alpha=alpha, dtype=dtype)
    assert found.converged and bool(found.log_evidence.isfinite())
    for name in ("x0", "x1", "x2"):
        assert_close(
            found.marginal(name).probs.double(), torch.full((2,), 0.5).double(), atol=1e-3, rtol=0
        )


@pytest.mark.parametrize("value", [float("nan"), INF])
def test_tables_that_are_not_numbers_name_their_factor(value):
    table = torch.zeros(2, 3)
    table[1, 2] = value
    model = Tables((2, 3), ((0, 1),), (table,))
    with pytest.raises(NonFiniteDensity, match=r'factor "f0"\[0\] \(scope x0, x1\)'):
        run(model)


@pytest.mark.parametrize("engine", [pg.BP, pg.VMP])
def test_no_factor_between_nodes_and_one_state_are_no_special_cases(engine):
    model = random_model((1, 2, 1), [(0, 1), (1, 2), (0, 2)], 0)
    posterior = run(model, engine)
    assert_close(posterior.log_evidence, model.log_z, rtol=0, atol=1e-9)
    assert_close(model.beliefs(posterior)[1], model.marginal(1), rtol=0, atol=1e-9)


# ---------------------------------------------------------------------- steep tables
@pytest.mark.parametrize("alpha", [1.0, 5.0, 18.0, 20.0, 40.0, -20.0])
def test_steep_binary_pairs_survive_large_powers(alpha):
    """Rows that differ by a constant: the messages are exact, and so is any power."""
    model = Tables((2, 2), ((0, 1),), (torch.tensor([[0.0, 0.0], [-39.0, -39.0]]),))
    posterior = run(model, pg.PowerEP, alpha=alpha)
    assert_close(posterior.log_evidence, model.log_z, rtol=0, atol=1e-9)
    assert_close(model.beliefs(posterior)[0], model.marginal(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("alpha", [1.0, 2.0, 3.0, -3.0])
def test_steep_binary_pairs_survive_powers_in_single_precision(alpha):
    model = Tables((2, 2), ((0, 1),), (torch.tensor([[0.0, 0.0], [-39.0, -39.0]]),))
    posterior = run(model, pg.PowerEP, alpha=alpha, dtype=torch.float32)
    assert_close(posterior.log_evidence.double(), model.log_z, rtol=0, atol=1e-4)


# ---------------------------------------------------------------------- convergence
def test_a_run_that_stops_early_says_so_everywhere():
    engine = pg.BP(boltzmann(0), num_steps=2, progress=False)
    with pytest.warns(ConvergenceWarning, match="after 2 steps the residual is above tol=1e-08"):
        posterior = engine.run()
    assert not posterior.converged and posterior.evidence_kind == "estimate"
    assert "schedule=" in posterior.status and "smaller alpha" in posterior.status
    assert len(posterior.history["residual"]) == 2


def test_a_run_that_converged_says_so_and_stops():
    posterior = run(boltzmann(0))
    assert posterior.converged and posterior.status == "converged"
    residual = posterior.history["residual"]
    assert residual[-1] <= 1e-8 < residual[-2]
    assert_close(posterior.history["objective"][-1], posterior.log_evidence, rtol=0, atol=1e-7)


def test_without_a_tolerance_all_steps_are_run_and_nothing_is_claimed():
    posterior = run(PAIR, tol=None, num_steps=7)
    assert len(posterior.history["objective"]) == 7 and not posterior.converged
    assert "tol=None" in posterior.status


def test_looser_tolerance_stops_earlier():
    steps = [len(run(potts(0), tol=tol).history["residual"]) for tol in (1e-2, 1e-5, 1e-10)]
    assert steps[0] < steps[1] < steps[2]


@pytest.mark.parametrize("make", [potts, boltzmann], ids=lambda f: f.__name__)
@pytest.mark.parametrize("schedule", ["parallel", "sequential", "residual"])
def test_a_fixed_point_is_one_for_another_sweep(make, schedule):
    model = make(0)
    engine = pg.BP(model, schedule=schedule, tol=1e-12, progress=False)
    before = model.beliefs(engine.run())
    engine.step()
    for a, b in zip(before, model.beliefs(engine.posterior())):
        assert_close(a, b, rtol=0, atol=1e-11)


# ---------------------------------------------------------------------- state
OPTIONS = [
    (pg.BP, {}),
    (pg.BP, {"schedule": "residual"}),
    (pg.FractionalBP, {"damping": 0.4, "schedule": "sequential"}),
    (pg.VMP, {}),
]


def same(a, b):
    """Nested dicts, bit for bit."""
    assert a.keys() == b.keys()
    for key in a:
        if isinstance(a[key], dict):
            same(a[key], b[key])
        elif isinstance(a[key], torch.Tensor):
            assert torch.equal(a[key], b[key]), key
        else:
            assert a[key] == b[key], key


@pytest.mark.parametrize("engine, options", OPTIONS)
def test_a_saved_run_goes_on_bit_for_bit(engine, options):
    model = mixed_cycle(0)
    whole = engine(model, progress=False, tol=None, num_steps=45, **options)
    whole.run()
    part = engine(model, progress=False, tol=None, num_steps=23, **options)
    part.run()
    file = io.BytesIO()
    torch.save(part.state_dict(), file)
    file.seek(0)
    resumed = engine(model, progress=False, tol=None, num_steps=45, **options)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    resumed.run()
    same(whole.state_dict(), resumed.state_dict())
    a, b = whole.posterior(), resumed.posterior()
    assert torch.equal(a.log_evidence, b.log_evidence)
    for p, q in zip(model.beliefs(a), model.beliefs(b)):
        assert torch.equal(p, q)


def frustrated():
    """Four nodes of which every two want to differ."""
    sign = torch.tensor([[1.5, -1.5], [-1.5, 1.5]])
    scopes = [(0, 1), (1, 2), (0, 2), (0, 3), (1, 3), (2, 3)]
    model = Tables((2,) * 4, tuple(scopes), (-sign,) * 6, plated=True)
    return Tables((2,) * 4, ((0,), *scopes), (torch.tensor([0.0, 0.3]), *model.tables))


def test_raised_damping_is_part_of_the_state():
    tilt = frustrated()
    engines = [pg.BP(tilt, progress=False, tol=None, num_steps=n) for n in (140, 70, 140)]
    engines[0].run(), engines[1].run()
    engines[2].load_state_dict(engines[1].state_dict())
    engines[2].run()
    same(engines[0].state_dict(), engines[2].state_dict())


def test_a_state_of_fixed_damping_goes_on_alike_in_a_new_engine_and_in_a_used_one():
    tilt = frustrated()
    fixed = pg.BP(tilt, progress=False, tol=None, damping=0.5, num_steps=3)
    fixed.run()
    new, used = (pg.BP(tilt, progress=False, tol=None).setup() for _ in range(2))
    for _ in range(140):  # damping is raised
        used.step()
    for engine in (new, used):
        engine.load_state_dict(fixed.state_dict())
        for _ in range(5):
            engine.step()
    same(new.state_dict(), used.state_dict())


def test_a_state_before_the_first_step_can_be_gone_back_to():
    engine = pg.BP(PAIR, progress=False).setup()
    start = engine.state_dict()
    engine.step()
    engine.load_state_dict(start)
    assert engine.num_done == 0
    assert_close(engine.run().log_evidence, PAIR.log_z, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "engine, options",
    [(pg.BP, {}), (pg.BP, {"schedule": "sequential"}), (pg.BP, {"damping": 0.3}), (pg.TRW, {})],
)
def test_a_run_that_had_converged_on_other_data_goes_on(engine, options):
    first, model = engine(chain(0), progress=False, **options), chain(1)
    first.run()
    second = engine(model, progress=False, **options).setup()
    second.load_state_dict(first.state_dict())
    assert not second.converged and "other data" in second.status
    assert second.evidence_kind() != "exact"
    posterior = second.run()
    assert posterior.converged and posterior.evidence_kind == "exact"
    assert_close(posterior.log_evidence, model.log_z, rtol=0, atol=1e-8)
    for i, belief in enumerate(model.beliefs(posterior)):
        assert_close(belief, model.marginal(i), rtol=0, atol=1e-7)


def test_a_run_on_other_data_measures_them_at_once_and_says_how_to_go_on():
    first = pg.BP(chain(0), progress=False)
    first.run()
    other = pg.BP(chain(1), progress=False, num_steps=first.num_done).setup()
    other.load_state_dict(first.state_dict())
    with pytest.warns(ConvergenceWarning, match=f"num_steps above the {first.num_done} that are"):
        other.run()
    assert other.num_done == first.num_done
    assert_close(other.step(), float(other.log_evidence), rtol=0, atol=1e-12)


def test_a_state_whose_rest_cannot_be_looked_at_is_not_taken(monkeypatch):
    first, other = pg.BP(chain(0), progress=False), pg.BP(chain(1), progress=False).setup()
    first.run(), other.step()
    before = other.state_dict()
    with monkeypatch.context() as patch:
        patch.setattr(pg.BP, "is_at_rest", lambda engine: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            other.load_state_dict(first.state_dict())
    same(other.state_dict(), before)


@pytest.mark.parametrize("engine", [pg.BP, pg.TRW, pg.VMP])
def test_a_run_that_had_converged_on_the_same_data_has_still(engine):
    first, second = (engine(chain(0), progress=False).setup() for _ in range(2))
    first.run()
    second.load_state_dict(first.state_dict())
    assert second.converged
    second.run()
    assert second.num_done == first.num_done
    same(first.state_dict(), second.state_dict())


def test_saved_state_is_a_copy():
    engine = pg.BP(potts(0), progress=False).setup()
    engine.step()
    state = engine.state_dict()
    kept = {k: m.clone() for k, m in state["messages"].items()}
    engine.run()
    for key, message in state["messages"].items():
        assert torch.equal(message, kept[key])


@pytest.mark.parametrize("other", [random_model((3, 2), [(0, 1)], 0), potts(0)])
def test_the_state_of_another_model_is_refused(other):
    engine = pg.BP(other, progress=False).setup()
    with pytest.raises(ShapeMismatch):
        pg.BP(PAIR, progress=False, init=engine.state_dict()["messages"]).setup()
    fresh = pg.BP(PAIR, progress=False).setup()
    with pytest.raises(ShapeMismatch):
        fresh.load_state_dict(engine.state_dict())
    assert_close(fresh.run().log_evidence, PAIR.log_z, rtol=0, atol=1e-10)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_messages_that_are_no_numbers_are_refused(bad):
    messages = pg.BP(PAIR, progress=False).setup().state_dict()["messages"]
    spoilt = {key: torch.full_like(value, bad) for key, value in messages.items()}
    with pytest.raises(OptionError, match=r"saved messages .*NaN"):
        pg.BP(PAIR, progress=False, init=spoilt).setup()


def test_starting_at_the_fixed_point_takes_one_sweep():
    engine = pg.BP(potts(0), progress=False, tol=1e-12)
    engine.run()
    again = run(potts(0), init=engine.state_dict()["messages"])
    assert again.converged and len(again.history["residual"]) == 1


@pytest.mark.parametrize("engine, options", OPTIONS)
def test_runs_repeat_themselves_and_share_nothing(engine, options):
    one = engine(potts(0), progress=False, **options)
    other = engine(boltzmann(0), progress=False, **options)
    third = engine(potts(0), progress=False, **options)
    for e in (one, other, third):
        e.setup()
    for _ in range(5):
        one.step(), other.step()
    for _ in range(5):
        third.step()
    same(one.state_dict(), third.state_dict())
    before = third.state_dict()
    one.run()
    same(before, third.state_dict())


def test_the_global_random_stream_does_not_matter():
    one = run(mixed_cycle(0))
    torch.manual_seed(17)
    other = run(mixed_cycle(0))
    assert torch.equal(one.log_evidence, other.log_evidence)


def test_a_posterior_before_the_setup_is_refused_in_words():
    with pytest.raises(InferenceError, match="not set up"):
        pg.BP(PAIR, progress=False).posterior()


def test_a_step_and_then_a_posterior():
    engine = pg.BP(PAIR, progress=False)
    for _ in range(3):
        assert isinstance(engine.step(), float)
    posterior = engine.posterior()
    assert_close(posterior.log_evidence, PAIR.log_z, rtol=0, atol=1e-10)
    assert posterior.evidence_kind == "exact"


def test_a_posterior_does_not_change_when_its_engine_goes_on():
    model = potts(0)
    engine = pg.BP(model, progress=False)
    engine.step()
    posterior = engine.posterior()
    nodes, factors = model.beliefs(posterior), model.factor_beliefs(posterior)
    evidence = posterior.log_evidence.clone()
    engine.run()
    assert torch.equal(posterior.log_evidence, evidence)
    for a, b in zip(nodes, model.beliefs(posterior)):
        assert torch.equal(a, b)
    for k, belief in model.factor_beliefs(posterior).items():
        assert torch.equal(belief, factors[k])
