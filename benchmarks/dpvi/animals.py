"""Animals and their features in clusters at once: held-out entries, and a picture of the clusters.

    python benchmarks/dpvi/animals.py [--seeds 20] [--sweeps 1000] [--quick] [--threads 1]

Paper, figures 10 and 11: infinite relational model of 50 animals and 85 features (Osherson et al.
1991), Chinese restaurants with alpha = 1 on both sides, Beta(1, 1) of every cell of clusters; 20 %
of the entries held out at random, one draw a seed. Predicted: mean log probability of a held-out
entry under sum_k w_k (1 + n_1) / (2 + n_1 + n_0), n the observed ones and zeros of its cell.

DPVI: pg.DPVI at K = 1, 10, 20 to convergence. Gibbs: one chain a seed from the prior, 1,000 sweeps,
of which 50 are burn-in, probabilities of all others averaged; "a sweep": log probabilities averaged
in their place, the score of one draw. Frequency: add-1 frequency of the feature. Clusters: those of
animals. Seconds are processor time. The picture is of all entries.

Criteria: DPVI(20) predicts as well as Gibbs less one SE (of Gibbs over the seeds), and better than
DPVI(1) in the mean; the bound never falls; fewer than 30 steps of DPVI(20) in each run; DPVI(20)
converges in under 30 s. It does not predict as well as the mean of 950 draws: its 20 particles are
one mode, and so are those of the highest bound of five runs ("best of 5"), which predict no better:
a higher bound is not what is missing. Reported: against the score of one draw.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import baselines_labels as baselines
import criteria
import matplotlib.pyplot as plt
import numpy as np
import pyro
import torch
from criteria import report
from torch import Tensor

import pyrograph as pg
from pyrograph import distributions as D
from pyrograph.posterior.label_particles import LabelParticles

HELD_OUT, SWEEPS, BURN_IN, COUNTS = 0.2, 1000, 50, (1, 10, 20)
#: Runs of which the one of the highest bound is looked at; between their seeds.
RUNS, RESTART = 5, 1000


def relation(r: Tensor) -> None:
    """Entries ``[n, m]``, NaN where held out, in clusters of rows and of columns."""
    one = torch.tensor(1.0)
    rows = pyro.sample("rows", D.ChineseRestaurant(one, r.shape[0]))
    columns = pyro.sample("columns", D.ChineseRestaurant(one, r.shape[1]))
    pyro.sample("r", D.CollapsedRelation(rows, columns, D.BetaBernoulli(one, one)), obs=r)


def probabilities(rows: Tensor, columns: Tensor, seen: Tensor) -> Tensor:
    """Of a one in every entry ``[P, n, m]``, given labels ``[P, n]`` and ``[P, m]``."""
    a, b = (torch.nn.functional.one_hot(z.long()).to(seen.dtype) for z in (rows, columns))
    ones, zeros = (a.mT @ entries.to(seen.dtype) @ b for entries in (seen == 1, seen == 0))
    return a @ ((1 + ones) / (2 + ones + zeros)) @ b.mT


def log_loss(probs: Tensor, truth: Tensor) -> float:
    """Mean log probability of entries."""
    return float(torch.where(truth == 1, probs, 1 - probs).log().mean())


def gibbs(
    seen: Tensor, sweeps: int, burn_in: int, seed: int, score: Callable[[Tensor], float]
) -> tuple[float, float, float, float]:
    """Score of the mean probabilities, mean score, row clusters and seconds of one chain."""
    pyro.set_rng_seed(seed)
    program = baselines.program_of(relation, seen)
    start = baselines.prior_draws(program, 1)
    chain = baselines.gibbs(program, start, np.random.default_rng(seed))
    begin, total, clusters, scores = time.process_time(), torch.zeros(seen.shape), 0.0, 0.0
    for k in range(sweeps):
        labels = next(chain)
        if k >= burn_in:
            one = probabilities(labels["rows"], labels["columns"], seen)[0]
            total += one
            scores += score(one)
            clusters += len(labels["rows"].unique())
    kept = sweeps - burn_in
    seconds = time.process_time() - begin
    return score(total / kept), scores / kept, clusters / kept, seconds


def fitted(count: int, entries: Tensor, seed: int) -> LabelParticles:
    """DPVI to convergence."""
    pyro.set_rng_seed(seed)
    return pg.DPVI(relation, num_particles=count, progress=False).run(entries)


def evaluate(seed: int, r: Tensor, sweeps: int, burn_in: int, counts: Sequence[int]) -> dict:
    """Per method the held-out score, row clusters, seconds, steps and least gain of the bound."""
    rng = np.random.default_rng(seed)
    hidden = torch.as_tensor(rng.random(tuple(r.shape)) < HELD_OUT)
    seen = r.masked_fill(hidden, torch.nan)
    usual = (1 + (seen == 1).sum(0)) / (2 + (~hidden).sum(0))

    def score(probs: Tensor) -> float:
        return log_loss(probs[hidden], r[hidden])

    def judged(q: LabelParticles, seconds: float) -> tuple[float, float, float, int, float]:
        probs = probabilities(q.particles["rows"], q.particles["columns"], seen)
        clusters = float((q.weights * (q.particles["rows"].amax(1) + 1)).sum())
        bounds = q.history["objective"]
        fall = float(bounds.diff().min()) if len(bounds) > 1 else 0.0
        mean = (q.weights[:, None, None] * probs).sum(0)
        return score(mean), clusters, seconds, len(bounds), fall

    out = {"frequency": (score(usual.expand_as(r)), 0, 0, 0, 0)}
    for count in counts:
        begin = time.process_time()
        q = fitted(count, seen, seed)
        out[f"DPVI({count})"] = judged(q, time.process_time() - begin)
    begin = time.process_time()
    others = [fitted(counts[-1], seen, RESTART * k + seed) for k in range(1, RUNS)]
    best = max([q, *others], key=lambda q: float(q.log_evidence))
    out[f"best of {RUNS}"] = judged(best, time.process_time() - begin)
    of_mean, mean, clusters, seconds = gibbs(seen, sweeps, burn_in, seed, score)
    out["Gibbs"] = of_mean, clusters, seconds, sweeps, 0
    out["a sweep"] = mean, clusters, seconds, 1, 0
    return out


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the table and the criteria, draw the figure; True if all criteria hold."""
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--sweeps", type=int, default=SWEEPS)
    known, rest = own.parse_known_args(argv)
    args = criteria.arguments(__doc__, 20, rest)
    animals = pg.datasets.animals()
    r, counts, sweeps = animals.relation, COUNTS, known.sweeps
    if args.quick:
        r, counts, sweeps = r[:20, :20], (1, 20), 20
    burn_in = min(BURN_IN, sweeps // 2)
    rows = []
    for seed in range(args.seeds):
        rows.append(evaluate(seed, r, sweeps, burn_in, counts))
        line = ", ".join(f"{name} {row[0]:.4f}" for name, row in rows[-1].items())
        print(f"seed {seed}: {line}", flush=True)
    found = {m: np.array([row[m] for row in rows]) for m in rows[0]}
    print(f"{'':10s} {'held out':>9s} {'SE':>7s} {'clusters':>9s} {'seconds':>8s} {'steps':>6s}")
    for name, values in found.items():
        score, clusters, seconds, steps, _ = values.mean(0)
        print(
            f"{name:10s} {score:9.4f} {se(values):7.4f} {clusters:9.1f} {seconds:8.2f} {steps:6.1f}"
        )
    passed = judge(found)
    whole = fitted(20, r, 0)
    plot(r, whole, animals, found, criteria.figure_path("animals", args.quick))
    return all(passed)


def se(values: np.ndarray) -> float:
    """Of the mean held-out score."""
    return values[:, 0].std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan


def judge(found: dict) -> list[bool]:
    """Report all criteria."""
    ours, one, theirs, draw = (found[m] for m in ("DPVI(20)", "DPVI(1)", "Gibbs", "a sweep"))
    best, first, gibbs_score = (v[:, 0].mean() for v in (ours, one, theirs))
    text = f"{best:.4f} against {gibbs_score:.4f}, SE {se(theirs):.4f}"
    paired = ours[:, 0] - theirs[:, 0]
    text += f"; paired difference {paired.mean():+.4f}, SD {paired.std():.4f}"
    fall = min(float(v[:, 4].min()) for v in found.values())
    steps, seconds = ours[:, 3].max(), ours[:, 2].max()
    return [
        report(
            "DPVI(20) predicts as well as Gibbs less one SE", best >= gibbs_score - se(theirs), text
        ),
        report(
            "DPVI(20) predicts as well as a sweep of Gibbs",
            best >= draw[:, 0].mean(),
            f"{best:.4f} against {draw[:, 0].mean():.4f}",
        ),
        report("DPVI(20) better than DPVI(1)", best > first, f"{best:.4f} against {first:.4f}"),
        report("the bound never falls", fall > -1e-8, f"{fall:.1e}"),
        report("fewer than 30 steps of DPVI(20)", steps < 30, f"{steps:.0f} at most"),
        report("DPVI(20) in under 30 s", seconds < 30, f"{seconds:.1f} s at most"),
    ]


def sorted_by(labels: Tensor, relation: Tensor) -> Tensor:
    """Elements in the order of their clusters, large ones first, dense ones first within."""
    sizes = torch.bincount(labels)
    rank = sizes.argsort(descending=True, stable=True).argsort()
    return (rank[labels] - 0.5 * relation.mean(1)).argsort()


def plot(r: Tensor, whole: LabelParticles, animals, found: dict, path) -> None:
    """The relation sorted by the best labelling, and who is with whom."""
    best = int(whole.log_weights.argmax())
    rows, columns = (whole.particles[name][best] for name in ("rows", "columns"))
    down, across = sorted_by(rows, r), sorted_by(columns, r.T)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(15, 7), layout="constrained", width_ratios=(1.5, 1)
    )
    left.imshow(r[down][:, across], cmap="Greys", aspect="auto")
    for line in rows[down].diff().nonzero().flatten().tolist():
        left.axhline(line + 0.5, color="C0", lw=1)
    for line in columns[across].diff().nonzero().flatten().tolist():
        left.axvline(line + 0.5, color="C3", lw=1)
    names = [animals.names[i] for i in down.tolist()]
    left.set_yticks(range(len(names)), names, fontsize=6)
    features = [animals.features[i] for i in across.tolist()]
    left.set_xticks(range(len(features)), features, fontsize=5, rotation=90)
    shape = f"{int(rows.max()) + 1} x {int(columns.max()) + 1} clusters"
    scores = ", ".join(f"{name} {v[:, 0].mean():.3f}" for name, v in found.items())
    left.set_title(f"DPVI(20), best particle: {shape}\nheld out: {scores}", fontsize=8)
    together = whole.together("rows")[down][:, down]
    right.imshow(together, cmap="viridis", vmin=0, vmax=1)
    right.set_yticks(range(len(names)), names, fontsize=6)
    right.set_xticks([])
    right.set_title("probability of being in one cluster", fontsize=8)
    figure.savefig(path, dpi=80)
    plt.close(figure)


if __name__ == "__main__":
    main()
