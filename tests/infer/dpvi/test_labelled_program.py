"""What stands in a factor graph's place where labels are fitted."""

import copy
import pickle

import pyro
import pytest
import torch

import pyrograph as pg

DATA = torch.tensor([0, 0, 1, 2])


def symbols(x):
    z = pyro.sample("z", pg.distributions.ChineseRestaurant(torch.tensor(1.5), len(x)))
    component = pg.distributions.DirichletCategorical(1.0, 3)
    pyro.sample("x", pg.distributions.CollapsedMixture(z, component), obs=x)


@pytest.mark.parametrize("infer", [pg.DPVI, pg.SequentialDPVI])
def test_what_only_factor_graphs_have_is_told_of(infer):
    engine = infer(symbols, num_particles=5, progress=False)
    posterior = engine.run(DATA)
    for found in (engine.graph, posterior.graph, copy.deepcopy(engine.graph)):
        assert repr(found) == "LabelledProgram(labels of z: 4)"
        for name in ("factors", "num_factors", "blanket", "scopes", "data", "node_id", "draw"):
            assert not hasattr(found, name)
            with pytest.raises(
                AttributeError, match=rf'"{name}": take pg.trace_graph\(model, \.\.\.\)'
            ):
                getattr(found, name)
            assert hasattr(pg.trace_graph(symbols, (DATA,)), name)
        with pytest.raises(AttributeError, match='has no attribute "nothing"'):
            found.nothing  # noqa: B018
    again = pickle.loads(pickle.dumps(engine.graph))
    assert torch.equal(again.constant, engine.graph.constant)


def test_labellings_of_two_sites_that_are_each_others_are_two():
    def model(x):
        symbols(x)
        w = pyro.sample("w", pg.distributions.ChineseRestaurant(torch.tensor(0.5), len(x)))
        component = pg.distributions.DirichletCategorical(1.0, 3)
        pyro.sample("y", pg.distributions.CollapsedMixture(w, component), obs=x)

    # partitions of four elements: 15, of both sites 225
    posterior = pg.DPVI(model, num_particles=300, progress=False).run(DATA)
    pairs = zip(*(posterior.particles[name].tolist() for name in "zw"), strict=True)
    assert len({(tuple(z), tuple(w)) for z, w in pairs}) == len(posterior.weights) == 225
    assert posterior.evidence_kind == "exact"
