"""What ``pg.fit`` refuses before anything runs."""

import pytest

import pyrograph as pg
from pyrograph.errors import OptionError


@pytest.mark.parametrize("infer", [None, "svgd", 3])
def test_an_engine_that_cannot_be_called_is_refused(infer):
    with pytest.raises(OptionError, match=r"is no engine: .*pg\.GraphicalSVGD"):
        pg.fit(lambda: None, infer=infer)


@pytest.mark.parametrize("model", [None, "model", 3])
def test_a_model_that_cannot_be_called_is_refused(model):
    with pytest.raises(OptionError, match=r"the model is a .*; give a Pyro program"):
        pg.fit(model, infer=pg.BP)


ENGINES = [
    *(pg.GraphicalSVGD, pg.Langevin, pg.QBethe, pg.DPVI, pg.SequentialDPVI),
    *(pg.BP, pg.FractionalBP, pg.TRW, pg.EP, pg.PowerEP, pg.VMP, pg.BBIS, pg.CollapsedBBIS),
]


@pytest.mark.parametrize("infer", ENGINES)
def test_an_engine_refuses_a_model_that_cannot_be_called_when_it_is_made(infer):
    with pytest.raises(OptionError, match=r"the model is a NoneType; give a Pyro program"):
        infer(None)


def test_a_guide_is_no_engine():
    with pytest.raises(OptionError, match=r"AutoQBethe is no engine: .*pyro\.infer\.SVI"):
        pg.fit(lambda: None, infer=pg.AutoQBethe, progress=False)


@pytest.mark.parametrize("infer", ENGINES)
def test_a_bar_is_shown_or_not(infer):
    with pytest.raises(OptionError, match=r"progress='x' must be True or False"):
        infer(lambda: None, progress="x")


def test_particles_are_reweighted_or_not():
    with pytest.raises(OptionError, match=r"reweight='x' must be True or False"):
        pg.GraphicalSVGD(lambda: None, reweight="x")
