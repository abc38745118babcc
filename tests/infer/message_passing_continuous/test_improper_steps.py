"""Steps that leave the proper beliefs. Truth: dense solutions of Gaussian programs."""

import itertools

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.datasets import crowd_prices
from pyrograph.errors import InferenceError
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.quadrature.surroundings import Surrounded


def frustrated(n, coupling, kind, seed):
    """A proper field on a complete graph, too strongly coupled for message passing."""
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(n, generator=generator, dtype=torch.float64)
    signs = torch.randn(n, n, generator=generator, dtype=torch.float64).sign()
    a, b = torch.triu_indices(n, n, 1)
    weight = coupling * signs[a, b]
    off = torch.zeros(n, n, dtype=torch.float64)
    off[a, b] = weight
    precision = torch.eye(n, dtype=torch.float64) + off + off.T
    least = float(torch.linalg.eigvalsh(precision)[0])
    precision = precision + max(0.0, 0.05 - least) * torch.eye(n, dtype=torch.float64)
    own = precision.diagonal()

    def model():
        with pyro.plate("n", n):
            x = pyro.sample("x", dist.Normal((h / own).to(kind), (own**-0.5).to(kind)))
        with pyro.plate("e", len(a)):
            pyro.factor("f", -weight.to(kind) * x[a] * x[b])

    return model


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "infer, n, coupling, options",
    [
        (pg.BP, 6, 0.8, {}),
        (pg.TRW, 6, 0.8, {}),
        (pg.EP, 6, 0.8, {}),
        (pg.FractionalBP, 6, 0.8, {"alpha": 2.0}),
        (pg.BP, 4, 0.5, {"damping": 0.5}),
    ],
)
def test_steps_that_rounding_swallows_are_no_convergence(infer, n, coupling, options, kind):
    """Single precision had called them so, with means up to 1e7 standard deviations off."""
    for seed in (0, 1):
        with pytest.raises(InferenceError, match=r'no step keeps .* proper.*"sequential"'):
            pg.fit(frustrated(n, coupling, kind, seed), infer=infer, progress=False, **options)


def answers(noise):
    prices = crowd_prices()
    item, worker, answer = prices.item, prices.worker, prices.answer.double()
    count = prices.num_items + prices.num_workers
    zero = torch.zeros((), dtype=torch.float64)

    def model():
        with pyro.plate("items", prices.num_items):
            x = pyro.sample("x", dist.Normal(zero + 4.0, 1.5))
        with pyro.plate("workers", prices.num_workers):
            b = pyro.sample("b", dist.Normal(zero, 0.5))
        with pyro.plate("answers", len(answer)):
            pyro.sample("r", dist.Normal(x[item] + b[worker], noise), obs=answer)

    design = torch.zeros(len(answer), count, dtype=torch.float64)
    rows = torch.arange(len(answer))
    design[rows, item] = 1.0
    design[rows, prices.num_items + worker] = 1.0
    wide = torch.tensor([1.5] * prices.num_items + [0.5] * prices.num_workers).double()
    precision = design.T @ design / noise**2 + torch.diag(wide**-2)
    pull = design.T @ answer / noise**2
    pull[: prices.num_items] += 4.0 / 1.5**2
    return model, torch.linalg.solve(precision, pull), torch.linalg.inv(precision).diagonal().sqrt()


def means_of(posterior):
    return torch.cat([posterior.marginal(name).mean for name in ("x", "b")])


def test_trees_start_again_with_more_damping_where_a_step_leads_nowhere(data_root):
    model, mean, sd = answers(0.5)
    posterior = pg.fit(model, infer=pg.TRW, progress=False)
    assert posterior.converged and posterior.evidence_kind == "upper bound"
    assert_close((means_of(posterior) - mean) / sd, torch.zeros_like(mean), rtol=0, atol=1e-5)


@pytest.mark.parametrize("noise", [0.5, 0.3])
def test_mean_field_of_crossed_effects_settles_in_a_few_sweeps(noise, data_root):
    """Workers shift all items together; plain sweeps took thousands."""
    model, mean, sd = answers(noise)
    engine = pg.VMP(model, progress=False)
    posterior = engine.run()
    assert posterior.converged and engine.num_done < 60
    assert_close((means_of(posterior) - mean) / sd, torch.zeros_like(mean), rtol=0, atol=1e-5)


def test_the_remedy_names_what_the_run_does_not_do_yet(data_root):
    model, _, _ = answers(0.5)
    for infer, options, told, untold in [
        (pg.VMP, {}, ["raise num_steps"], ["sequential", "smaller alpha", "damping"]),
        (pg.VMP, {"schedule": "parallel"}, ['schedule="sequential"'], ["smaller alpha"]),
        (pg.EP, {}, ['schedule="sequential"', "smaller alpha", "damping"], []),
    ]:
        engine = infer(model, num_steps=2, progress=False, **options)
        with pytest.warns(pg.errors.ConvergenceWarning):
            engine.run()
        assert all(text in engine.status for text in told)
        assert not any(text in engine.status for text in untold)


@pytest.mark.parametrize("fails", [0, 1])
def test_a_factor_with_one_slot_without_moments_sends_none_of_its_messages(fails, monkeypatch):
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("n", 3):
            z = pyro.sample("z", dist.Bernoulli(0.4))
            y = torch.tensor([0.7, -0.2, 1.1])
            pyro.sample("y", dist.StudentT(3.0, a * b + z, 0.1), obs=y)

    engine = pg.EP(model, progress=False).setup()
    number, block = next(
        (k, b) for k, b in enumerate(engine.network.blocks) if isinstance(b, QuadratureFactors)
    )
    moments, calls = Surrounded.moments, itertools.count()

    def without_those_of_factor_1(*args):
        mean, covariance = moments(*args)
        if next(calls) == fails:
            covariance = covariance.clone()
            covariance[:, 1] = torch.nan
        return mean, covariance

    monkeypatch.setattr(Surrounded, "moments", without_those_of_factor_1)
    old = engine.messages[number]
    new, skipped = block.update(old, engine.beliefs)
    assert skipped.tolist() == [False, True, False]
    for before, after in zip(old, new, strict=True):
        parts = zip(*(numbers(m) for m in (before, after)), strict=True)
        moved = torch.stack([(p != q).flatten(1).any(1) for p, q in parts]).any(0)
        assert moved.tolist() == [True, False, True]


def numbers(message):
    return [message] if isinstance(message, torch.Tensor) else message.parameters().values()
