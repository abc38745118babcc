"""Every experiment of one paper, one after the other.

    python benchmarks/all.py svgd|message_passing|qbethe|dpvi|circuits [--quick] [--threads 1]

Prints each script's table and criteria, draws its figure, and ends with a line for each. ``svgd``
takes about an hour and a half on one core, ``qbethe`` and ``dpvi`` some hours; ``--quick`` a few
minutes, with few seeds and no verdict.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SCRIPTS = {
    "svgd": (
        "fig1_dimension",
        "fig2_grid",
        "fig2d_density",
        "fig3_dense",
        "fig4_small_network",
        "fig5_large_network",
        "fig6_crowdsourcing",
        "fig6_prices",
        "accuracy",
        "double_well",
        "kernel_weights",
        "scale",
        "speed",
    ),
    "message_passing": (
        "minka_equality",
        "minka_fig1_mixture",
        "minka_fig6_local_alpha",
        "minka_fig7_predictive_error",
        "uai",
        "alarm",
        "disease_mapping",
        "ldpc",
        "speed",
    ),
    "qbethe": ("hand_written", "three_cycle", "denoising", "chow_liu", "optical_flow", "speed"),
    "dpvi": (
        "hmm",
        "ising",
        "user_behaviour",
        "dpmm",
        "spikes",
        "ihmm",
        "alice",
        "animals",
        "speed",
    ),
    "circuits": (
        "compile",
        "learning",
        "missing_features",
        "collapsed",
        "goodness_of_fit",
        "simplex_qp",
        "speed",
    ),
}
FAILED = 3
#: A process of its own for each script; a crash and a criterion that fails end differently.
CALL = "import sys; from {} import main; sys.exit(0 if main(sys.argv[1:]) else " + f"{FAILED})"


def verdict(code: int, quick: bool) -> str:
    """What the exit code of a script says."""
    if code not in (0, FAILED):
        return "CRASH"
    return "ran" if quick else "FAIL" if code else "pass"


def main(argv: Sequence[str] | None = None) -> bool:
    """Whether every criterion of every script holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", choices=list(SCRIPTS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", default="1")
    args = parser.parse_args(argv)
    options = ["--threads", args.threads, *(["--quick"] if args.quick else [])]
    verdicts = []
    for name in SCRIPTS[args.folder]:
        print(f"\n===== {name}", flush=True)
        begin = time.perf_counter()
        command = [sys.executable, "-c", CALL.format(name), *options]
        done = subprocess.run(command, check=False, cwd=Path(__file__).parent / args.folder)
        seconds = time.perf_counter() - begin
        verdicts.append((verdict(done.returncode, args.quick), name, seconds))
    print()
    for word, name, seconds in verdicts:
        print(f"{word}  {name} ({seconds:.0f} s)")
    return all(word in ("pass", "ran") for word, _, _ in verdicts)


if __name__ == "__main__":
    sys.exit(not main())
