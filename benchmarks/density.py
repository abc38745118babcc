"""Is the graph's density (value and gradient) at least as fast as ``vmap`` of the Pyro program?

    python benchmarks/density.py [--threads 1]

Prints medians of alternating runs, the ratio (above 1: the graph is faster) and the largest
difference of the gradients, in float64.
"""

from __future__ import annotations

import argparse

import programs
import pyro
import torch
from pyro import poutine
from timing import alternate, peak_gb

import pyrograph as pg


def measure(name: str, program: programs.Program, samples: int) -> None:
    model, args = program
    graph = pg.trace_graph(model, args)
    x = torch.randn(samples, graph.dim, requires_grad=True)

    def one(values):
        conditioned = poutine.condition(model, data=values)
        return poutine.trace(conditioned).get_trace(*args).log_prob_sum()

    def ours():
        return torch.autograd.grad(graph.density(x).sum(), x)[0]

    def pyros():
        return torch.autograd.grad(torch.func.vmap(one)(graph.unflatten(x)).sum(), x)[0]

    with pyro.validation_enabled(False):
        error = float((ours() - pyros()).abs().max() / pyros().abs().max())
        pyro_s, graph_s, ratio = alternate(pyros, ours)
    print(
        f"{name:10s} {graph.dim:7d} {samples:5d} {graph_s * 1e3:9.2f} {pyro_s * 1e3:9.2f} "
        f"{ratio:6.2f} {error:9.1e} {peak_gb():6.2f}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    torch.set_default_dtype(torch.float64)
    print(
        f"{'program':10s} {'dim':>7s} {'n':>5s} {'graph ms':>9s} {'vmap ms':>9s} {'ratio':>6s} "
        f"{'error':>9s} {'GB':>6s}"
    )
    for samples in (1, 50):
        measure("grid", programs.grid(), samples)
        measure("sensors", programs.sensors(200, 0.4), samples)
        measure("logistic", programs.logistic(), samples)
        measure("hierarchy", programs.hierarchy(), samples)
        measure("flow", programs.flow(100, 100), samples)
