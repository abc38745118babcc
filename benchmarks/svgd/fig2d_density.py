"""How much of the gain is left as the graph becomes dense?

    python benchmarks/svgd/fig2d_density.py [--seeds 20] [--quick] [--threads 1]

100 points of a 10 x 10 integer lattice, connected up to distance r: r = 1 is the grid, r = 14
the complete graph, where both kernels see everything and the two methods are one. A and b are
drawn anew for every r and seed, n = 20 particles, 1000 AdaGrad steps from N(0, 1).

Source: Wang, Zeng & Liu (2018), Figure 2 (d): the advantage shrinks as r grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import matplotlib.pyplot as plt
import torch
from gaussian_field import gaussian_field, lattice_edges, normal, run
from significance import arguments, figure_path, report, trend
from torch import Tensor

import pyrograph as pg

SIDE = 10
NUM_PARTICLES = 20


def pair(radius: int, seed: int, num_steps: int) -> tuple[float, float, Tensor, Tensor]:
    """Second-moment errors of SVGD and graphical SVGD, and their particles."""
    field = gaussian_field(lattice_edges(SIDE, radius), SIDE**2, seed)
    start = normal((NUM_PARTICLES, SIDE**2), seed + 1)
    svgd, graphical = (
        run(field, start, kernel=pg.kernels.RBF(), locality=locality, num_steps=num_steps)
        for locality in ("global", "blanket")
    )
    errors = [field.errors(x, discrepancy=False)["second moment"] for x in (svgd, graphical)]
    return errors[0], errors[1], svgd, graphical


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the table and the criteria, draw the figure; True if all criteria hold."""
    args = arguments(__doc__, 20, argv)
    radii = (1, 14) if args.quick else (1, 2, 3, 5, 8, 11, 14)
    num_steps = 200 if args.quick else 1000
    print(f"n = {NUM_PARTICLES}, MSE of second moment, medians over {args.seeds} seeds")
    print("paper: the advantage of the graphical kernel shrinks with r and is gone at r = 14")
    print(f"{'r':>3s} {'edges':>6s} {'SVGD':>10s} {'graphical':>10s} {'ratio':>10s}")
    ratios, apart = {}, 0.0
    for r in radii:
        trials = [pair(r, seed, num_steps) for seed in range(args.seeds)]
        ratios[r] = [svgd / graphical for svgd, graphical, _, _ in trials]
        columns = (median(t[0] for t in trials), median(t[1] for t in trials), median(ratios[r]))
        row = " ".join(f"{value:10.3g}" for value in columns)
        print(f"{r:3d} {len(lattice_edges(SIDE, r)):6d} {row}")
        if r == max(radii):
            apart = max(float((a - b).abs().max() / a.abs().max()) for _, _, a, b in trials)

    middle = [median(ratios[r]) for r in radii]
    correlation = trend(radii, middle)
    last = ratios[max(radii)]
    passed = [
        report("ratio falls with r", correlation < -0.8, f"Spearman {correlation:.2f} < -.8"),
        report("ratio above 5 on the grid", middle[0] > 5, f"{middle[0]:.1f}"),
        report(
            "ratio in [.8, 1.25] on the complete graph, every seed",
            min(last) >= 0.8 and max(last) <= 1.25,
            f"{min(last):.6f} to {max(last):.6f}",
        ),
        report(
            "both methods move the same particles on the complete graph",
            apart < 1e-6,
            f"largest relative difference {apart:.1e} < 1e-6",
        ),
    ]

    figure, axes = plt.subplots(figsize=(4.5, 3.2), layout="constrained")
    low, high = (torch.tensor([ratios[r] for r in radii]).quantile(q, 1) for q in (0.1, 0.9))
    axes.fill_between(radii, low, high, alpha=0.3, label="10 % to 90 % of the seeds")
    axes.plot(radii, middle, "o-", label="median")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(
        xlabel="connection radius r",
        ylabel="second-moment MSE,\nSVGD / graphical",
        yscale="log",
    )
    axes.legend(fontsize=8)
    figure.savefig(figure_path("fig2d_density", args.quick), dpi=120)
    plt.close(figure)
    return all(passed)


if __name__ == "__main__":
    main()
