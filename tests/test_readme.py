"""The README's Python runs as it stands."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.filterwarnings("ignore::pyrograph.errors.ConvergenceWarning")
def test_the_code_blocks_of_the_readme_run_in_order(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    namespace = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), namespace)
    plt.close("all")
    assert len(blocks) == 6
    assert namespace["posterior"].marginal("x").mean.shape == (100, 2)
    assert "100 nodes" in capsys.readouterr().out
