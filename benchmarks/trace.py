"""How long does it take to read a program's factor graph, beside one plain Pyro trace of it?

    python benchmarks/trace.py [--threads 1]

One process per program (peak memory is the process's). "cold" is the first call, "warm" the
median of three more, both with the check at a second point.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

import programs
import torch
from pyro import poutine
from timing import peak_gb

import pyrograph as pg

CASES = ("grid", "hmm", "sensors", "hierarchy", "logistic", "flow")


def measure(case: str) -> None:
    model, args = getattr(programs, case)()
    plain = []
    for _ in range(4):
        start = time.perf_counter()
        poutine.trace(model).get_trace(*args).log_prob_sum()
        plain.append(time.perf_counter() - start)
    times = []
    graph = None
    for _ in range(4):
        del graph  # one graph at a time, for the peak memory
        start = time.perf_counter()
        graph = pg.trace_graph(model, args)
        times.append(time.perf_counter() - start)
    warm, base = statistics.median(times[1:]), statistics.median(plain[1:])
    print(
        f"{case:10s} {graph.num_nodes:8d} {graph.num_factors:8d} {len(graph.factors):6d} "
        f"{times[0]:8.2f} {warm:8.2f} {base:8.3f} {warm / base:7.1f} {peak_gb():6.2f}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--case", choices=CASES)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.case:
        measure(options.case)
    else:
        print(
            f"{'program':10s} {'nodes':>8s} {'factors':>8s} {'groups':>6s} {'cold s':>8s} "
            f"{'warm s':>8s} {'pyro s':>8s} {'ratio':>7s} {'GB':>6s}",
            flush=True,
        )
        for case in CASES:
            command = [sys.executable, __file__, "--case", case]
            subprocess.run([*command, "--threads", str(options.threads)], check=True)
