"""How programs of labels are written: statements in sequential plates, and what they say when the
data are wrong."""

import math

import pyro
import pytest
import torch

import pyrograph as pg
from pyrograph.errors import OptionError, ShapeMismatch, UnsupportedSite

D = pg.distributions


def test_collapsed_data_may_stand_in_a_sequential_plate():
    def model():
        z = pyro.sample("z", D.ChineseRestaurant(1.0, 2))
        w = pyro.sample("w", D.ChineseRestaurant(1.0, 1))
        for i in pyro.plate("data", 2):
            component = D.DirichletCategorical(1.0, 2)
            pyro.sample(f"x{i}", D.CollapsedMixture(z, component), obs=torch.tensor([0, i]))
        for _ in pyro.plate("relation", 1):
            relation = D.CollapsedRelation(z, w, D.BetaBernoulli(1.0, 1.0))
            pyro.sample("r", relation, obs=torch.tensor([[1.0], [0.0]]))

    q = pg.fit(model, infer=pg.DPVI, progress=False)
    # together: 1/3 of equal symbols, 1/6 of different ones, 1/6 of a one and a zero; apart: 1/4
    # each; both partitions have probability 1/2
    truth = math.log((1 / 3 * 1 / 6 * 1 / 6 + 1 / 4 * 1 / 4 * 1 / 4) / 2)
    assert q.evidence_kind == "exact"
    assert float(q.log_evidence) == pytest.approx(truth, abs=1e-6)


def mixture(component, data):
    z = pyro.sample("z", D.ChineseRestaurant(1.0, 4))
    pyro.sample("x", D.CollapsedMixture(z, component), obs=data)


def relation(data):
    z = pyro.sample("z", D.ChineseRestaurant(1.0, 2))
    w = pyro.sample("w", D.ChineseRestaurant(1.0, 2))
    pyro.sample("x", D.CollapsedRelation(z, w, D.BetaBernoulli(1.0, 1.0)), obs=data)


NORMAL, SYMBOLS = D.NormalInverseGamma(1.0, 1.0, 1.0), D.DirichletCategorical(1.0, 2)


@pytest.mark.parametrize("infer", [pg.DPVI, pg.SequentialDPVI])
@pytest.mark.parametrize(
    "model, args, error, said",
    [
        (mixture, (NORMAL, torch.zeros(3)), ShapeMismatch, r"\(3,\) for 4 labels"),
        (mixture, (NORMAL, torch.zeros(4, 4)), ShapeMismatch, "dim=0"),
        (mixture, (SYMBOLS, torch.tensor([0, 1, 2, 0])), OptionError, "data hold 2"),
        (mixture, (NORMAL, [0.0] * 4), OptionError, "data are list"),
        (relation, (torch.full((2, 2), 0.5),), OptionError, "neither 0 nor 1"),
        (relation, (torch.full((2, 2), math.inf),), OptionError, "neither 0 nor 1"),
    ],
    ids=["length", "two readings", "symbol", "list", "half", "infinite"],
)
def test_wrong_data_are_named_with_their_statement(infer, model, args, error, said):
    with pytest.raises(error, match=f"(?s)'x'.*{said}") as raised:
        infer(model, progress=False).run(*args)
    assert "Trace Shapes" not in str(raised.value)


@pytest.mark.parametrize("option", ["init", "proposals"])
def test_a_label_without_its_dimensions_is_refused(option):
    label = {"z": torch.tensor(3)}
    given = {option: label if option == "init" else lambda _: label}
    engine = pg.DPVI(mixture, progress=False, **given)
    with pytest.raises(OptionError, match=rf'{option}= of "z" must be labels .*\[M, n\]'):
        engine.run(NORMAL, torch.zeros(4))


def test_collapsed_data_that_are_not_given_are_told_of():
    with pytest.raises(UnsupportedSite, match=r'"x" has no data.*obs=data'):
        pg.DPVI(mixture, progress=False).run(SYMBOLS, None)


@pytest.mark.parametrize("infer", [pg.BP, pg.VMP, pg.QBethe, pg.GraphicalSVGD, pg.BBIS])
@pytest.mark.parametrize(
    "prior", [D.ChineseRestaurant(1.0, 4), D.ChineseRestaurantFranchise(1, 1, 4)]
)
def test_engines_without_moves_of_labels_name_those_that_have_them(infer, prior):
    def labels():
        z = pyro.sample("z", prior)
        pyro.sample("x", D.CollapsedMixture(z, SYMBOLS), obs=torch.tensor([0, 1, 1, 0]))

    with pytest.raises(UnsupportedSite, match=r'"z".* labels of 4 elements, which pg.DPVI and'):
        infer(labels, progress=False).run()
    assert pg.DPVI(labels, num_particles=15, progress=False).run().evidence_kind == "exact"
