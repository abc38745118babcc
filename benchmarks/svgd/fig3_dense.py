"""Does a kernel that cuts the blanket still help where the graph is complete?

    python benchmarks/svgd/fig3_dense.py [--seeds 20] [--quick] [--threads 1]

50 fully connected nodes. "random": a node sees itself and 4 others, drawn anew each step;
"combine": half that kernel, half the global one; "SVGD": the global one, which is also the
blanket's here. n = 20 and 50 particles from N(0, 1), 1000 AdaGrad steps.

Source: Wang, Zeng & Liu (2018), section 4.1 and Figure 3: both beat SVGD on the second moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import matplotlib.pyplot as plt
from gaussian_field import METRICS, by_metric, complete_edges, gaussian_field, normal, run
from significance import arguments, figure_path, is_smaller

import pyrograph as pg

DIM = 50
RANDOM = pg.kernels.RandomNeighbors(4)
LOCALITIES = {
    "random": RANDOM,
    "combine": pg.kernels.Mixed(RANDOM, "global", weight=0.5),
    "SVGD": "global",
}
METHODS = (*LOCALITIES, "Monte Carlo")


def trial(seed: int, num_particles: int, num_steps: int) -> dict[str, dict[str, float]]:
    """Errors of every method on one field, all from the same start."""
    field = gaussian_field(complete_edges(DIM), DIM, seed)
    start = normal((num_particles, DIM), seed + 1)
    found = {}
    for name, locality in LOCALITIES.items():
        options = {"kernel": pg.kernels.RBF(), "locality": locality, "num_steps": num_steps}
        found[name] = field.errors(run(field, start, seed=seed, **options))
    found["Monte Carlo"] = field.errors(field.exact(num_particles, seed + 2))
    return found


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the table and the criteria, draw the figure; True if all criteria hold."""
    args = arguments(__doc__, 20, argv)
    sizes = (20,) if args.quick else (10, 20, 50)
    num_steps = 300 if args.quick else 1000
    print(f"complete graph, d = {DIM}, medians over {args.seeds} seeds")
    print("paper: random and combine beat SVGD in second moment and MMD")
    print(f"{'n':>4s} {'method':12s} " + " ".join(f"{m:>15s}" for m in METRICS))
    found = {}
    for n in sizes:
        trials = [trial(seed, n, num_steps) for seed in range(args.seeds)]
        for name in METHODS:
            found[n, name] = by_metric([t[name] for t in trials])
            row = " ".join(f"{median(found[n, name][m]):15.3g}" for m in METRICS)
            print(f"{n:4d} {name:12s} {row}")

    passed = []
    for n in (m for m in sizes if m in (20, 50)):
        second = {name: found[n, name]["second moment"] for name in METHODS}
        for low, high in (("random", "combine"), ("combine", "SVGD")):
            name = f"n = {n} second moment {low} < {high}"
            passed.append(is_smaller(name, second[low], second[high]))

    figure, panels = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
    for axes, metric in zip(panels, ("mean", "second moment", "MMD^2"), strict=True):
        for name in METHODS:
            axes.loglog(sizes, [median(found[n, name][metric]) for n in sizes], "o-", label=name)
        axes.set(xlabel="particles n", title=metric if metric == "MMD^2" else f"MSE of {metric}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.savefig(figure_path("fig3_dense", args.quick), dpi=110)
    plt.close(figure)
    return all(passed)


if __name__ == "__main__":
    main()
