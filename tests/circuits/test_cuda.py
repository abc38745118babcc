"""Circuits on a CUDA device give what they give on the CPU."""

import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.circuits import RBF, ExpectedSVR, Hamming, expected_kernel, kdsd, stein_gram
from pyrograph.circuits.compiling.held import HeldCircuit
from tests.circuits.random_circuits import deterministic_circuit, random_circuit, random_pair
from tests.infer.importance.test_collapsed_bbis import chain

pytestmark = pytest.mark.gpu


def test_queries_and_expectations_agree():
    cards, p, q = random_pair(3)
    rows = torch.stack([torch.randint(c, (20,)) for c in cards], 1).double()
    rows[torch.rand(rows.shape) < 0.3] = torch.nan
    there = [c.condition({}).cuda() for c in (p, q)]
    here = [c.condition({}) for c in (p, q)]
    assert_close(there[0].log_prob(rows.cuda()).cpu(), here[0].log_prob(rows))
    for a, b in zip(there[0].marginals(rows.cuda()), here[0].marginals(rows), strict=True):
        assert_close(a.cpu(), b)
    assert_close(
        expected_kernel(*there, Hamming()).cpu(),
        expected_kernel(*here, Hamming()),
        rtol=1e-10,
        atol=0,
    )
    assert there[0].sample(5).device.type == "cuda"
    assert there[0].fill_in(rows.cuda()).device.type == "cuda"


def test_stein_kernels_agree():
    generator = torch.Generator().manual_seed(0)
    p = deterministic_circuit([2, 3, 2], generator)
    q = random_circuit([2, 3, 2], (0, (1, 2)), generator)
    points = p.sample(9)
    points[0, 1] = points[3, 0] = -1
    gram, value = stein_gram(p, points), kdsd(q, p)
    p, q = p.cuda(), q.cuda()
    assert_close(stein_gram(p, points.cuda()).cpu(), gram)
    assert_close(kdsd(q, p).cpu(), value)


def test_expected_predictions_agree():
    cards, p, _ = random_pair(4)
    support = torch.stack([torch.randint(c, (6,)) for c in cards], 1)
    rows = support.double()
    rows[:, 0] = torch.nan
    coef = torch.randn(6)
    here = ExpectedSVR(support, coef, 0.1, RBF(2.0), p).predict(rows)
    assert_close(ExpectedSVR(support, coef, 0.1, RBF(2.0), p.cuda()).predict(rows).cpu(), here)


@pytest.mark.parametrize("collapse", [0.4, "treewidth"])
def test_collapsed_sampling_runs_there(collapse):
    model, _, _ = chain()
    options = {"collapse": collapse, "max_width": 1, "num_particles": 20, "progress": False}
    posterior = pg.fit(model, infer=pg.CollapsedBBIS, device="cuda", **options)
    assert posterior.points.device.type == "cuda"
    assert posterior.marginal("z0").probs.sum().item() == pytest.approx(1)
    assert isinstance(posterior.circuit, HeldCircuit) == (collapse == "treewidth")
