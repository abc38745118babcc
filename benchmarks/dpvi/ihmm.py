"""States of infinite hidden Markov models: Hamming errors of one forward pass.

    python benchmarks/dpvi/ihmm.py [--seeds 50] [--quick] [--threads 1]

Paper, figure 6. Chains with 10 states and 5 symbols, T = 500: first state and moves from Dir(.1),
symbols from Dir(10), a prior that makes states nearly alike. Prior of the states: the paper's urn
(counts of moves) with alpha = gamma = 1, symbols Dir(1) integrated out; none of these is stated in
the paper. Error: share of states that differ after the best matching of clusters to states
(Munkres), mean over weighted particles.

DPVI: pg.SequentialDPVI, K = 1, 10, 100. Beam: Van Gael et al. (2008) on the true franchise, 200
sweeps, every fifth of the latter half. PF-M, PF-S: optimal proposal, multinomial or stratified
below K / 2. Best: paths drawn from the posterior at the true parameters; worst: uniform labels; one
state: all in one cluster, which this measure likes where one state is frequent. Log evidence: of
DPVI the bound, of filters their estimate. Seconds: processor time, DPVI's with reading the program.
Gibbs sampling stands apart, on chains of 60: a label rescores all moves, so a sweep is quadratic.

Criterion: DPVI below PF-M and below PF-S at K = 10, p < .05 by sign tests over the chains. Expect
all errors near the worst one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import baselines_labels as baselines
import criteria
import forward_backward as exact
import matplotlib.pyplot as plt
import numpy as np
import pyro
import torch
from beam_sampler import beam
from criteria import report, sign_test
from torch import Tensor

import pyrograph as pg
from pyrograph import distributions as D

STATES, SYMBOLS, LENGTH, DRAWS = 10, 5, 500, 20
#: Of the beam sampler: all, and between those that are averaged.
SWEEPS, THIN = 200, 5
SCHEMES = {"PF-M": "multinomial", "PF-S": "stratified"}


def chain(
    y: Tensor, num_symbols: int, alpha: float = 1.0, gamma: float = 1.0, prior: float = 1.0
) -> None:
    """States behind symbols ``[T]`` by the paper's urn; their emissions are Dir(prior)."""
    urn = D.ChineseRestaurantFranchise(torch.tensor(alpha), gamma, len(y), urn="paper")
    z = pyro.sample("z", urn)
    emission = D.DirichletCategorical(torch.tensor(prior), num_symbols)
    pyro.sample("y", D.CollapsedMixture(z, emission), obs=y)


def evaluate(seed: int, length: int, counts: Sequence[int]) -> tuple[dict, dict]:
    """Hamming errors of all methods on one chain, and their clusters and seconds."""
    rng = np.random.default_rng(seed)
    start, *move = rng.dirichlet(np.full(STATES, 0.1), STATES + 1)
    move, emit = np.array(move), rng.dirichlet(np.full(SYMBOLS, 10.0), STATES)
    truth = exact.simulate(start, move, np.eye(STATES), length, rng)
    y = np.array([rng.choice(SYMBOLS, p=emit[z]) for z in truth])
    paths = exact.draws(start, move, emit[:, y].T, DRAWS, rng)
    noise = rng.integers(0, STATES, paths.shape)
    errors = {
        "best": np.mean([baselines.hamming(truth, z) for z in paths]),
        "worst": np.mean([baselines.hamming(truth, z) for z in noise]),
        "one state": baselines.hamming(truth, np.zeros_like(truth)),
    }
    sizes = {}
    begin, chain_of_paths = time.process_time(), beam(y, SYMBOLS, rng)
    sampled = [next(chain_of_paths) for _ in range(SWEEPS)][SWEEPS // 2 :: THIN]
    errors["beam"] = np.mean([baselines.hamming(truth, z) for z in sampled])
    states = float(np.mean([z.max() + 1 for z in sampled]))
    sizes["beam"] = states, time.process_time() - begin, np.nan
    program = baselines.program_of(chain, torch.as_tensor(y), SYMBOLS)
    for count in counts:
        engine = pg.SequentialDPVI(chain, num_particles=count, progress=False)
        found = {f"DPVI({count})": baselines.fit(engine, torch.as_tensor(y), SYMBOLS)}
        for name, scheme in SCHEMES.items():
            run = baselines.particle_filter(program, count, rng, scheme)
            found[f"{name}({count})"] = run
        for name, run in found.items():
            each = [baselines.hamming(truth, z.numpy()) for z in run.labels["z"]]
            errors[name] = float((run.log_weights.exp() * torch.tensor(each)).sum())
            sizes[name] = run.num_clusters, run.seconds, run.log_evidence
    return errors, sizes


def against_gibbs(seeds: int, length: int, sweeps: int) -> None:
    """Short chains, where a sweep of Gibbs (every label rescores all moves) is affordable."""
    rows = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        start, *move = rng.dirichlet(np.full(STATES, 0.1), STATES + 1)
        truth = exact.simulate(start, np.array(move), np.eye(STATES), length, rng)
        emit = rng.dirichlet(np.full(SYMBOLS, 10.0), STATES)
        y = torch.as_tensor([rng.choice(SYMBOLS, p=emit[z]) for z in truth])
        program = baselines.program_of(chain, y, SYMBOLS)
        begin = time.process_time()
        labels = baselines.gibbs(program, baselines.prior_draws(program, 1), rng)
        drawn = [next(labels)["z"][0].clone() for _ in range(sweeps)][sweeps // 2 :]
        seconds = time.process_time() - begin
        engine = pg.SequentialDPVI(chain, num_particles=10, progress=False)
        ours = baselines.fit(engine, y, SYMBOLS)
        each = torch.tensor([baselines.hamming(truth, z.numpy()) for z in ours.labels["z"]])
        by_gibbs = np.mean([baselines.hamming(truth, z.numpy()) for z in drawn])
        rows.append((by_gibbs, float(ours.log_weights.exp() @ each), seconds))
    gibbs, dpvi, seconds = np.mean(rows, 0)
    print(f"T = {length}: errors of Gibbs {gibbs:.4f} ({seconds:.1f} s), DPVI(10) {dpvi:.4f}")


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the table and the criteria, draw the figure; True if all criteria hold."""
    args = criteria.arguments(__doc__, 50, argv)
    counts, length = ((1, 10), 60) if args.quick else ((1, 10, 100), LENGTH)
    rows = [evaluate(seed, length, counts) for seed in range(args.seeds)]
    found = {m: np.array([errors[m] for errors, _ in rows]) for m in rows[0][0]}
    print(f"{'':10s} {'error':>7s} {'SE':>6s} {'states':>7s} {'seconds':>8s} {'log evidence':>13s}")
    for name, values in found.items():
        line = f"{name:10s} {values.mean():7.4f} {values.std() / np.sqrt(len(values)):6.4f}"
        if name in rows[0][1]:
            states, seconds, evidence = np.mean([sizes[name] for _, sizes in rows], 0)
            line += f" {states:7.1f} {seconds:8.2f} {evidence:13.1f}"
        print(line)
    passed = []
    for name in SCHEMES:
        ours, theirs = found["DPVI(10)"], found[f"{name}(10)"]
        p = sign_test(ours, theirs)
        text = f"{ours.mean():.4f} against {theirs.mean():.4f}, p = {p:.1e}"
        holds = ours.mean() < theirs.mean() and p < 0.05
        passed.append(report(f"DPVI(10) errs less than {name}(10)", holds, text))
    against_gibbs(1 if args.quick else 5, 20 if args.quick else 60, 4 if args.quick else 40)
    plot(found, counts, criteria.figure_path("ihmm", args.quick))
    return all(passed)


def plot(found: dict, counts: Sequence[int], path) -> None:
    """Errors by K."""
    figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
    for name in ("DPVI", *SCHEMES):
        values = [found[f"{name}({count})"] for count in counts]
        mean = [v.mean() for v in values]
        error = [v.std() / np.sqrt(len(v)) for v in values]
        axis.errorbar(counts, mean, error, fmt="o-", capsize=2, label=name)
    for name, style in (("best", ":"), ("beam", (0, (5, 1))), ("one state", "-."), ("worst", "--")):
        axis.axhline(found[name].mean(), color="k", ls=style, lw=1, label=name)
    axis.set(xscale="log", xlabel="K", ylabel="Hamming error (bars: SE)")
    figure.legend(loc="outside right upper", frameon=False, fontsize=7)
    figure.savefig(path, dpi=80)
    plt.close(figure)


if __name__ == "__main__":
    main()
