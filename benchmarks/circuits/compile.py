"""Which discrete programs fit into a circuit, how large is it, and how exact?

    PYROGRAPH_DATA=... python benchmarks/circuits/compile.py [--quick] [--threads 1] [--edges 25]

The Ising grid of the paper, Bayesian networks without evidence, and the 16 instances of the data
root's folder ``uai`` at their evidence. Those that may take more than 2^22 edges (the default
budget) or 2^EDGES are refused; the table gives the width that was met. ``dense`` is the bound that
is decided by, from the tables' sizes; local structure makes circuits smaller than that.

Table: edges, layers, seconds to build, seconds of the first log Z (which arranges the layers) and
of the next, error of log Z, largest error of a marginal.

Criteria: log Z to 1e-9 (of its own size, where that is above 1) where it is known in double
precision, marginals to the six digits of the references.
"""

from __future__ import annotations

import argparse
import csv
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from criteria import report

import pyrograph as pg
from pyrograph.circuits import Circuit
from pyrograph.circuits.compiling.compile import MAX_EDGES, compile_graph
from pyrograph.datasets import bayesian_network, data_root, read_uai, uai_reference
from pyrograph.errors import UnsupportedFactor

NETWORKS = ("asia", "cancer", "earthquake", "survey", "sachs", "alarm")
INSTANCES = (
    *("Promedus_24", "Promedus_30", "Promedus_22", "CSP_12", "Segmentation_11"),
    *("Segmentation_12", "Segmentation_13", "DBN_11", "Alchemy_11", "ObjectDetection_34"),
    *("Grids_11", "Grids_13", "Pedigree_11", "Grids_15", "ObjectDetection_28", "linkage_16"),
)
QUICK = ("Promedus_24", "Promedus_30", "Promedus_22", "Grids_11")
EXACT, SIX_DIGITS = 1e-9, 2e-6


@dataclass(frozen=True)
class Truth:
    """Of an instance: log Z and marginals by node where they are known."""

    log_z: float | None
    marginals: list[torch.Tensor] | None


def ising() -> tuple[pg.FactorGraph, Truth]:
    folder = data_root() / "ising_4x4"
    rows = list(csv.reader((folder / "marginals.csv").read_text().splitlines()))[1:]
    ones = torch.tensor([float(row[-1]) for row in rows])
    graph = pg.trace_graph(read_uai(folder / "rand_4_4_id0.uai"))
    return graph, Truth(-5.074742719429882, list(torch.stack([1 - ones, ones], 1)))


def instance(name: str) -> tuple[pg.FactorGraph, Truth]:
    model, reference = read_uai(name), uai_reference(name)
    graph = pg.trace_graph(model)
    marginals = [reference.marginals[model.variable(*label)] for label in graph.nodes]
    return graph, Truth(reference.log_evidence if reference.is_exact else None, marginals)


def measure(name: str, graph: pg.FactorGraph, truth: Truth, budget: int) -> tuple[float, float]:
    """Print a row; errors of log Z and marginals, 0 where refused or unknown."""
    begin = time.perf_counter()
    try:
        circuit = compile_graph(graph, max_edges=budget)
    except UnsupportedFactor as refusal:
        dense, width = re.search(r"take ([\d,]+) edges.*width (\d+)", str(refusal)).groups()
        print(f"{name:<20}{graph.num_nodes:>5}   refused: width {width}, {dense} edges", flush=True)
        return 0.0, 0.0
    seconds = [time.perf_counter() - begin]
    for _ in range(2):
        begin = time.perf_counter()
        log_z = float(circuit.log_mass())
        seconds.append(time.perf_counter() - begin)
    log_z_error = 0.0 if truth.log_z is None else abs(log_z - truth.log_z)
    print(
        f"{name:<20}{graph.num_nodes:>5}{circuit.num_edges:>12,}{circuit.units.depth.max():>7}"
        f"{seconds[0]:>9.2f}{seconds[1]:>9.2f}{seconds[2]:>9.3f}{log_z_error:>11.1e}",
        end="",
        flush=True,
    )
    worst = 0.0 if truth.marginals is None else marginal_error(circuit, truth.marginals)
    print(f"{worst:>11.1e}", flush=True)
    return log_z_error / max(1.0, abs(truth.log_z or 0.0)), worst


def marginal_error(circuit: Circuit, expected: Sequence[torch.Tensor]) -> float:
    pairs = zip(circuit.marginals(), expected, strict=True)
    return max(float((found - truth).abs().max()) for found, truth in pairs)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table and check its criteria."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--edges", type=int, default=25, help="log2 of the budget")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.set_default_dtype(torch.float64)
    budget = MAX_EDGES if args.quick else 2**args.edges
    print(
        f"{'':<20}{'nodes':>5}{'edges':>12}{'layers':>7}{'build':>9}{'first':>9}{'next':>9}"
        f"{'log Z':>11}{'marginals':>11}"
    )
    errors = [measure("ising_4x4", *ising(), budget)]
    for name in NETWORKS:
        graph = pg.trace_graph(bayesian_network(name))
        # tables are printed with few digits, so that rows add up to 1 but roughly
        is_exact = name in ("asia", "cancer", "earthquake", "survey")
        errors.append(measure(name, graph, Truth(0.0 if is_exact else None, None), budget))
    for name in QUICK if args.quick else INSTANCES:
        errors.append(measure(name, *instance(name), budget))
    log_z, marginals = (max(column) for column in zip(*errors, strict=True))
    report("log Z", log_z <= EXACT, f"largest relative error {log_z:.1e}")
    report("marginals", marginals <= SIX_DIGITS, f"largest error {marginals:.1e}")


if __name__ == "__main__":
    main()
