"""The experiment scripts run: a few seconds of each, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "svgd"
QUICK = ("fig1_dimension", "fig2_grid", "fig2d_density", "fig3_dense", "accuracy", "double_well")
QUICK += ("fig4_small_network", "fig5_large_network", "fig6_crowdsourcing")


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_an_experiment_prints_its_criteria(name):
    env = {**os.environ, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    code = f"from {name} import main; main(['--quick'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=SCRIPTS, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "pass  " in done.stdout or "FAIL  " in done.stdout
