"""The experiment scripts run: a few seconds of each, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SVGD = ("fig1_dimension", "fig2_grid", "fig2d_density", "fig3_dense", "accuracy", "double_well")
SVGD += ("fig4_small_network", "fig5_large_network", "fig6_crowdsourcing")
MESSAGES = ("minka_equality", "minka_fig1_mixture", "minka_fig6_local_alpha")
MESSAGES += (
    "minka_fig7_predictive_error",
    "speed",
    "ldpc",
    "particle_baselines",
    "disease_mapping",
)
QBETHE = ("denoising", "hand_written", "chow_liu", "optical_flow", "speed")
REAL = [("message_passing", name) for name in ("uai", "alarm", "distances")]
REAL += [("qbethe", name) for name in QBETHE]
REAL += [("dpvi", name) for name in ("spikes", "alice", "animals")]
CIRCUITS = ("compile", "learning", "missing_features", "collapsed")
REAL += [("circuits", name) for name in CIRCUITS]
QUICK = [("svgd", name) for name in SVGD] + [("message_passing", name) for name in MESSAGES]
QUICK += [("qbethe", "three_cycle")]
QUICK += [("dpvi", name) for name in ("hmm", "ising", "user_behaviour", "speed")]
QUICK += [("dpvi", name) for name in ("dpmm", "ihmm")]
QUICK += [("circuits", name) for name in ("goodness_of_fit", "simplex_qp", "speed")]


def run(folder, name, *flags):
    env = {**os.environ, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    code = f"from {name} import main; main({['--quick', *flags]})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        cwd=BENCHMARKS / folder,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "pass  " in done.stdout or "FAIL  " in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("folder, name", QUICK)
def test_an_experiment_prints_its_criteria(folder, name):
    run(folder, name)


@pytest.mark.slow
@pytest.mark.parametrize("folder, name", REAL)
def test_an_experiment_on_real_data_prints_its_criteria(data_root, folder, name):
    run(folder, name)


@pytest.mark.slow
def test_a_device_is_compared_with_itself():
    run(".", "gpu", "--device", "cpu")


@pytest.mark.slow
def test_posteriors_are_compared_with_references():
    if not os.environ.get("POSTERIORDB"):
        pytest.skip("POSTERIORDB names no checkout of posteriordb")
    run(".", "reference_posteriors")


@pytest.mark.slow
def test_references_that_are_missing_are_no_failure():
    env = {**os.environ, "POSTERIORDB": "", "OMP_NUM_THREADS": "1"}
    script = [sys.executable, BENCHMARKS / "reference_posteriors.py"]
    done = subprocess.run(script, check=True, env=env, capture_output=True, text=True)
    assert "git clone" in done.stdout
