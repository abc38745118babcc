"""How do time and memory of GraphicalSVGD grow with the graph?

    python benchmarks/svgd/scale.py [--threads 1] [--quick] [--device cuda]

The grid field of the paper with 10^3 to 10^6 nodes, n = 50 particles, single precision. Each size
runs in a process of its own: seconds to read the graph (checked at a second point), median CPU
seconds per iteration (on a GPU: wall seconds) over the steps from the eleventh on, and the peak of
resident memory, of which the imports alone take a quarter of a gigabyte. The cost is linear if a
tenfold graph takes about ten times as long; small graphs pay a fixed cost.

Finding to compare with: the cost of Wang, Zeng & Liu (2018), Algorithm 1, is O(n^2 sum_i |C_i|).
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from gaussian_field import program
from significance import figure_path, report
from sparse_field import grid_field

import pyrograph as pg

SIDES = (32, 100, 316, 1000)
NUM_PARTICLES = 50
#: Iterations before the clock starts, and timed ones: a whole round of bandwidths.
SETTLED, TIMED = 10, 10
#: Largest growth of the time per node over a tenfold graph, from 10^4 nodes on.
SLACK = 1.5
MEMORY_GB = 0.5


def measure(side: int, kernel: str, device: str) -> dict[str, float]:
    """One size in this process."""
    args = [a.to(device) for a in grid_field(side).arguments]
    args = [a.float() if a.is_floating_point() else a for a in args]
    chosen = pg.kernels.RBF() if kernel == "eq (8)" else None
    begin = time.perf_counter()
    engine = pg.GraphicalSVGD(
        program, kernel=chosen, num_particles=NUM_PARTICLES, progress=False, device=device
    ).setup(*args)
    setup = time.perf_counter() - begin
    clock = time.process_time if device == "cpu" else time.perf_counter
    seconds = []
    for _ in range(SETTLED + TIMED):
        begin = clock()
        engine.step()
        seconds.append(clock() - begin)
    mean = statistics.mean(seconds[SETTLED:])  # one of them measures bandwidths
    return {"nodes": side**2, "setup": setup, "step": mean, "peak": _peak_gb(device)}


def _peak_gb(device: str) -> float:
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 1e9
    with open("/proc/self/status") as status:
        line = next(row for row in status if row.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e9


def draw(rows: dict[str, list[dict[str, float]]], quick: bool) -> None:
    """Time and memory against nodes."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for kernel, found in rows.items():
        nodes = [r["nodes"] for r in found]
        left.loglog(nodes, [r["step"] for r in found], "o-", label=kernel)
        right.loglog(nodes, [r["peak"] for r in found], "o-", label=kernel)
    nodes = np.array(nodes)
    left.loglog(nodes, rows["eq (8)"][-1]["step"] * nodes / nodes[-1], "k:", label="linear")
    left.set(xlabel="nodes", ylabel="seconds per iteration", title="time, n = 50")
    right.set(xlabel="nodes", ylabel="GB", title="peak memory")
    left.legend()
    figure.savefig(figure_path("scale", quick), dpi=90)


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the table and draw it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="the two smallest sizes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--one", nargs=2, metavar=("SIDE", "KERNEL"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    if args.one:
        print(json.dumps(measure(int(args.one[0]), args.one[1], args.device)))
        return True
    rows: dict[str, list[dict[str, float]]] = {"eq (8)": [], "default": []}
    print(
        f"{'kernel':10s}{'nodes':>9s}{'set-up s':>10s}{'s / step':>10s}{'us / node':>11s}", end=""
    )
    print(f"{'peak GB':>9s}")
    for side in SIDES[:2] if args.quick else SIDES:
        for kernel, found in rows.items():
            command = [sys.executable, __file__, "--threads", str(args.threads)]
            command += ["--device", args.device, "--one", str(side), kernel]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            row = json.loads(done.stdout.splitlines()[-1])
            found.append(row)
            print(
                f"{kernel:10s}{row['nodes']:9d}{row['setup']:10.2f}{row['step']:10.4f}"
                f"{row['step'] / row['nodes'] * 1e6:11.2f}{row['peak']:9.2f}"
            )
    holds = []
    for kernel, found in rows.items():
        for a, b in itertools.pairwise(found[1:]):
            growth = (b["step"] / b["nodes"]) / (a["step"] / a["nodes"])
            name = f"linear, {kernel}, {a['nodes']} to {b['nodes']} nodes"
            holds.append(report(name, growth < SLACK, f"time per node grows {growth:.2f} times"))
        for row in found:
            if row["nodes"] == 316**2:
                name = f"memory, {kernel}, {row['nodes']} nodes"
                holds.append(report(name, row["peak"] < MEMORY_GB, f"{row['peak']:.2f} GB"))
    draw(rows, args.quick)
    return all(holds)


if __name__ == "__main__":
    sys.exit(not main())
