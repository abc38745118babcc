"""Circuits learnt from two binary tables beside the published ones.

    python benchmarks/circuits/learning.py [--sets abalone insurance] [--quick] [--threads 1]

Mean log likelihoods in nats of the circuits that pg.circuits learns from the rows to train on, and
of the published PSDDs. Splits by flow after 100, 300 and 1000 steps and by dependence within 10,000
edges, the best validation of each; a smoother tree (10 pseudo-observations), which gives another
order of the variables; five components on the structure by dependence; and ten components on 30
steps. Then 20 % of the values to train on are removed. Seconds are those of learning.

Criteria: test likelihood of the splits of 300 steps and of the mixture at most .3 nats below the
PSDD's; 300 splits under .1 s each on average, all of it under two minutes on one core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch
from criteria import report

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.learning import learn_chow_liu, learn_strudel
from pyrograph.circuits.psdd import read_psdd
from pyrograph.datasets import binary_regression

SMALL = {"edge": "dependence", "max_edges": 10_000, "num_steps": 1000}
STRUDEL = {
    "splits, 100 steps": {"num_steps": 100},
    "splits, 300 steps": {"num_steps": 300},
    "splits, 1000 steps": {"num_steps": 1000},
    "by dependence, 10k edges": SMALL,
    "the same, smoother tree": SMALL | {"smoothing": 10.0},
    "the same, 5 components": SMALL | {"smoothing": 10.0, "num_components": 5},
    "30 steps, 10 components": {"num_steps": 30, "num_components": 10, "smoothing": 10.0},
}
JUDGED = ("splits, 300 steps", "the same, 5 components")


def row(name: str, circuit: Circuit, x: dict[str, torch.Tensor], seconds: float | None) -> float:
    """Print a line; the test likelihood."""
    found = [float(circuit.log_prob(x[split]).mean()) for split in ("train", "valid", "test")]
    time_taken = "" if seconds is None else f"{seconds:8.1f}"
    print(
        f"{name:26s}"
        + "".join(f"{value:9.3f}" for value in found)
        + f"{circuit.num_edges:9d}{time_taken}",
        flush=True,
    )
    return found[-1]


def run(name: str, quick: bool) -> bool:
    data = binary_regression(name)
    x = dict(data.x)
    print(f"\n{name:26s}{'train':>9s}{'valid':>9s}{'test':>9s}{'edges':>9s}{'seconds':>8s}")
    reference = row("PSDD, published", read_psdd(data.psdd, data.vtree), x, None)
    begin = time.perf_counter()
    tree = learn_chow_liu(x["train"])
    row("Chow-Liu", tree, x, time.perf_counter() - begin)
    tests, seconds = {}, {}
    for label, options in STRUDEL.items():
        if quick:
            options = options | {"num_steps": min(30, options["num_steps"])}
        torch.manual_seed(0)
        begin = time.perf_counter()
        circuit = learn_strudel(x["train"], valid=x["valid"], progress=False, **options)
        seconds[label] = time.perf_counter() - begin
        tests[label] = row(label, circuit, x, seconds[label])
    generator = torch.Generator().manual_seed(0)
    holes = torch.rand(x["train"].shape, generator=generator) < 0.2
    punched = torch.where(holes, -1, x["train"])
    begin = time.perf_counter()
    tree = learn_chow_liu(punched)
    row("20 % missing: Chow-Liu", tree, x, time.perf_counter() - begin)
    begin = time.perf_counter()
    steps = 5 if quick else 100
    circuit = learn_strudel(punched, valid=x["valid"], num_steps=steps, progress=False)
    row(f"20 % missing: {steps} steps", circuit, x, time.perf_counter() - begin)
    begin = time.perf_counter()
    learn_strudel(x["train"], num_steps=5 if quick else 300, progress=False)  # all steps are taken
    per_step = (time.perf_counter() - begin) / (5 if quick else 300)
    held = [
        report(
            f"{name}, {label}",
            tests[label] > reference - 0.3,
            f"test {tests[label]:.3f}, published {reference:.3f}",
        )
        for label in JUDGED
    ]
    held.append(report(f"{name}, seconds per step", per_step < 0.1, f"{per_step:.3f}"))
    slowest = max(seconds.values())
    held.append(report(f"{name}, seconds", slowest < 120, f"at most {slowest:.1f}"))
    return all(held)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", nargs="*", default=["insurance", "abalone"])
    parser.add_argument("--quick", action="store_true", help="a few seconds, criteria only shown")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    held = [run(name, args.quick) for name in args.sets]
    return 0 if all(held) or args.quick else 1


if __name__ == "__main__":
    raise SystemExit(main())
