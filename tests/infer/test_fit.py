"""What ``pg.fit`` refuses before anything runs."""

import pytest

import pyrograph as pg
from pyrograph.errors import OptionError


@pytest.mark.parametrize("infer", [None, "svgd", 3])
def test_an_engine_that_cannot_be_called_is_refused(infer):
    with pytest.raises(OptionError, match=r"is no engine: .*pg\.GraphicalSVGD"):
        pg.fit(lambda: None, infer=infer)


def test_a_guide_is_no_engine():
    with pytest.raises(OptionError, match=r"AutoQBethe is no engine: .*pyro\.infer\.SVI"):
        pg.fit(lambda: None, infer=pg.AutoQBethe, progress=False)
