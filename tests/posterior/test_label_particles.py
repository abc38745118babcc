"""What can be asked of labels, and what cannot."""

from __future__ import annotations

import math

import pyro
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import InferenceError
from pyrograph.posterior.label_particles import LabelParticles
from tests.distributions.partitions import all_partitions, restaurant_urn

D = pg.distributions


def labels(n: int):
    """Data of one symbol, which say nothing about their clusters."""
    z = pyro.sample("z", D.ChineseRestaurant(0.7, n))
    component = D.DirichletCategorical(1.0, 1)
    pyro.sample("x", D.CollapsedMixture(z, component), obs=torch.zeros(n, dtype=torch.int64))


@pytest.mark.parametrize("moment", ["mean", "variance", "stddev"])
def test_labels_have_no_moments_and_say_what_they_have(moment):
    q = pg.DPVI(labels, num_particles=20, progress=False).run(4)
    with pytest.raises(InferenceError) as told:
        getattr(q.marginal("z"), moment)
    for words in ('"z"', "together", "num_clusters"):
        assert words in str(told.value)


def test_marginals_of_labels_have_the_probabilities_of_the_urn():
    q = pg.DPVI(labels, num_particles=20, progress=False).run(4)
    every = all_partitions(4)
    truth = {tuple(z): restaurant_urn(z, 0.7) for z in every.tolist()}
    marginal = q.marginal("z")
    assert isinstance(marginal, pyro.distributions.Empirical) and marginal.event_shape == (4,)
    for z in every:
        p = truth[tuple(z.tolist())]
        assert float(marginal.log_prob(z)) == pytest.approx(math.log(p), abs=1e-12)
    first = sum(p for z, p in truth.items() if z[0] == z[1])
    assert float(q.together("z")[0, 1]) == pytest.approx(first, abs=1e-12)
    alone = sum(p for z, p in truth.items() if max(z) == 0)
    assert float(q.num_clusters("z").probs[1]) == pytest.approx(alone, abs=1e-12)
    assert tuple(marginal.sample().tolist()) in truth


def test_numbers_of_clusters_keep_the_smallest_weights():
    q = pg.DPVI(labels, num_particles=20, progress=False).run(4)
    z = torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 2, 3]])
    logs = torch.tensor([0.0, -90.0, -900.0, -1000.0])
    run = {"converged": True, "status": "", "history": {}}
    count = LabelParticles(q.graph, {"z": z}, logs, **run).num_clusters("z")
    expected = torch.tensor([0.0, -90.0, -math.inf, -1000.0])  # of 1 .. 4 clusters
    finite = expected > -math.inf
    found = count.log_prob(torch.arange(1, 5))
    assert_close(found[finite], expected[finite], rtol=0, atol=1e-9)
    assert float(count.probs[0]) == float(count.probs[3]) == 0


def test_equal_labellings_are_merged_with_their_smallest_weights():
    q = pg.DPVI(labels, num_particles=20, progress=False).run(4)
    z = torch.tensor([[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3], [0, 1, 0, 1]])
    logs = torch.tensor([0.0, -900.0, -math.inf, -901.0])
    run = {"converged": True, "status": "", "history": {}}
    guide = LabelParticles(q.graph, {"z": z}, logs, **run).guide()
    assert guide.codes.tolist() == [[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3]]
    together = -900.0 + math.log1p(math.exp(-1.0))
    assert guide.logits.tolist() == pytest.approx([0.0, together, -math.inf])
