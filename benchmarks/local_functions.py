"""How far are a group's batched local functions from torch code written by hand for them?

    python benchmarks/local_functions.py [--threads 1]

Every factor is evaluated at S private assignments. Ratios above 1: the hand-written code is
faster. A call has a fixed cost of some 4 microseconds, which shows where there is little work.
"""

from __future__ import annotations

import argparse

import programs
import torch
from timing import alternate

import pyrograph as pg


def measure(name: str, program: programs.Program, statement: str, by_hand, samples: int) -> None:
    model, args = program
    graph = pg.trace_graph(model, args)
    group = next(g for g in graph.factors if g.name == statement)
    values = [
        torch.randn(samples, group.num_factors, *s.event_shape, requires_grad=True)
        for s in group.slots
    ]
    frozen = [v.detach() for v in values]
    error = float((group.log_prob(frozen) - by_hand(*frozen)).abs().max())
    ours, hand, ratio = alternate(
        lambda: group.log_prob(frozen), lambda: by_hand(*frozen), runs=51, warmup=20
    )

    def gradient(function):
        return lambda: torch.autograd.grad(function().sum(), values)

    _, _, with_gradient = alternate(
        gradient(lambda: group.log_prob(values)),
        gradient(lambda: by_hand(*values)),
        runs=51,
        warmup=20,
    )
    print(
        f"{name:14s} {group.num_factors:7d} {samples:5d} {ours * 1e3:9.3f} {hand * 1e3:9.3f} "
        f"{ratio:7.2f} {with_gradient:9.2f} {error:9.1e}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    torch.set_default_dtype(torch.float64)
    print(
        f"{'factors':14s} {'E':>7s} {'S':>5s} {'ours ms':>9s} {'hand ms':>9s} {'ratio':>7s} "
        f"{'with grad':>9s} {'error':>9s}"
    )
    grid, sensors, flow = programs.grid(100, 100), programs.sensors(), programs.flow(100, 100)
    small = programs.grid(50, 50)
    ranges, (dx, dy, dt) = sensors[1][2], flow[1][:3]

    def truncated(a, b):
        return -5.0 * (a - b).abs().clamp(max=0.2)

    def normal(a, b):
        law = torch.distributions.Normal((a - b).norm(dim=-1), 0.1, validate_args=False)
        return law.log_prob(ranges)

    def laplace(u, v):
        law = torch.distributions.Laplace(dx * u + dy * v, 1.0, validate_args=False)
        return law.log_prob(-dt)

    for samples in (1, 20, 100):
        measure("grid 50x50", small, "smooth", truncated, samples)
        measure("grid 100x100", grid, "smooth", truncated, samples)
        measure("sensor ranges", sensors, "r", normal, samples)
        measure("flow data", flow, "dt", laplace, samples)
        measure(
            "flow smooth",
            flow,
            "smooth_u",
            lambda a, b: -((a - b) ** 2 + 1e-3).sqrt(),
            samples,
        )
