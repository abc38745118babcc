"""Every experiment of DPVI on graphs and in time, one after the other.

    python benchmarks/dpvi/all.py [--quick] [--threads 1]

Prints each script's table and criteria, draws its figure, and ends with a line for each.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SCRIPTS = ("hmm", "ising", "user_behaviour", "speed")
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
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", default="1")
    args = parser.parse_args(argv)
    options = ["--threads", args.threads, *(["--quick"] if args.quick else [])]
    verdicts = []
    for name in SCRIPTS:
        print(f"\n===== {name}", flush=True)
        begin = time.perf_counter()
        command = [sys.executable, "-c", CALL.format(name), *options]
        done = subprocess.run(command, check=False, cwd=Path(__file__).parent)
        seconds = time.perf_counter() - begin
        verdicts.append((verdict(done.returncode, args.quick), name, seconds))
    print()
    for word, name, seconds in verdicts:
        print(f"{word}  {name} ({seconds:.0f} s)")
    return all(word in ("pass", "ran") for word, _, _ in verdicts)


if __name__ == "__main__":
    sys.exit(not main())
