"""Ising lattices: DPVI against mean field, both modes of a strong coupling, the gap to the best.

    python benchmarks/dpvi/ising.py [--seeds 20] [--quick] [--threads 1]

Paper, figure 12: L_DPVI - L_MF over beta and K. The lattice's size is not stated: 3 x 3 against
enumeration, 10 x 10 shown. A single particle is a point mass, which mean field holds too, so the
best L_MF is at least L_DPVI(1), and the paper's "better than mean field even with one particle, at
low coupling" cannot be; mean field held at its symmetric saddle point, where it stays at any
coupling from a symmetric start, is shown beside the best of both starts, which is L_MF here.

Figure 13: marginals by Swendsen-Wang, DPVI with K = 2, mean field, loopy belief propagation. Which
modes K = 2 ends with is counted over starts: a random x with its opposite, the default start, and
the latter with the opposites of all particles proposed after every sweep.

Last: distance of the bound to the best K states, fields drawn from N(0, 1), by enumeration.

Criteria (as settled beforehand): 3 x 3: L(K) <= log Z for all K, equal to it at K = 2^9 (1e-10
relative); beta = 100: L(2) - L_MF = log 2 within 1e-6, and at most 1e-6 more for K > 3; beta = .01:
L_MF > L(K) for K < 2^9. Beta = 1 and 100: DPVI with K = 2 ends in all-up and all-down from every
antithetic start (x, -x), on 3 x 3 and on 10 x 10; the other starts are reported. 10 x 10, beta =
.01 and 100: marginals of mean field and belief propagation within .02 of symmetric or fully broken.
Swendsen-Wang's mean energy on 3 x 3 within 4 standard errors of enumeration. With fields the bound
is at most the best (reported: the gap).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import partial

import criteria
import matplotlib.pyplot as plt
import numpy as np
import programs
import pyro
import torch
from criteria import report
from scipy.special import logsumexp
from swendsen_wang import swendsen_wang

import pyrograph as pg
from pyrograph.errors import ConvergenceWarning

BETAS = (0.01, 0.1, 0.3, 1.0, 10.0, 100.0)
COUNTS = {3: (1, 2, 3, 4, 5, 10, 50, 512), 10: (1, 2, 3, 4, 5, 10, 50)}
#: Field that breaks the symmetry of mean field's start; it is taken away afterwards.
PUSH = 0.5


def states(side: int) -> np.ndarray:
    """``[2^V, V]`` of -1 and 1."""
    bits = np.arange(2 ** (side * side))[:, None] >> np.arange(side * side)
    return 2 * (bits & 1) - 1


def pair_energy(x: np.ndarray, side: int) -> np.ndarray:
    """sum over edges of x_i x_j, ``[n]`` of ``[n, V]``."""
    a, b = programs.lattice_edges(side).numpy().T
    return (x[:, a] * x[:, b]).sum(1)


def particles(
    side: int, beta: float, count: int, field: torch.Tensor | None = None, seed: int = 0, **options
) -> pg.Posterior:
    """The posterior of DPVI, default moves."""
    pyro.set_rng_seed(seed)
    field = torch.zeros(side * side) if field is None else field
    model = partial(programs.ising, side, beta)
    return pg.DPVI(model, num_particles=count, progress=False, **options).run(field)


def opposites(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"x": 1 - values["x"]}


def mean_field(side: int, beta: float) -> tuple[pg.Posterior, float]:
    """The better one of a symmetric start and of a broken one; the bound of the former."""
    model, none = partial(programs.ising, side, beta), torch.zeros(side * side)
    symmetric = pg.VMP(model, progress=False).run(none)
    pushed = pg.VMP(model, progress=False)
    pushed.run(none + PUSH)
    broken = pg.VMP(model, init=pushed.state_dict()["messages"], progress=False).run(none)
    best = max((symmetric, broken), key=lambda q: float(q.log_evidence))
    return best, float(symmetric.log_evidence)


def against_mean_field(quick: bool) -> tuple[list[bool], dict]:
    """Table and criteria of figure 12."""
    found: dict = {}
    for side in (3,) if quick else (3, 10):
        print(f"{side} x {side}: L - L_MF by K")
        head = " ".join(f"{k:8d}" for k in COUNTS[side])
        print(f"{'beta':>6s} {'log Z':>9s} {'MF':>9s} {'saddle':>7s} {head}")
        for beta in (0.01, 1.0, 100.0) if quick else BETAS:
            exact = math.nan
            if side == 3:
                exact = float(logsumexp(beta * pair_energy(states(3), 3)))
            best, saddle = mean_field(side, beta)
            field = float(best.log_evidence)
            bounds = {k: float(particles(side, beta, k).log_evidence) for k in COUNTS[side]}
            found[side, beta] = exact, field, bounds
            row = " ".join(f"{v - field:8.3f}" for v in bounds.values())
            print(f"{beta:6g} {exact:9.3f} {field:9.3f} {saddle:7.2f} {row}", flush=True)
    small = {beta: values for (side, beta), values in found.items() if side == 3}
    over = max(max(b.values()) - z for z, _, b in small.values())
    full = max(abs(b[512] - z) / max(1, abs(z)) for z, _, b in small.values())
    _, field, strong = small[100.0]
    gain = strong[2] - field
    more = max(v for k, v in strong.items() if k > 3) - strong[2]
    _, weak_field, weak = small[0.01]
    least = min(weak_field - v for k, v in weak.items() if k < 512)
    text = f"{weak[1]:.3f} against {weak_field:.3f}"
    return [
        report("bound at most log Z", over < 1e-9, f"largest excess {over:.1e}"),
        report("all 512 states: log Z", full < 1e-10, f"off by {full:.1e}"),
        report(
            "beta = 100: K = 2 gains log 2 over mean field",
            abs(gain - math.log(2)) < 1e-6,
            f"{gain:.9f}",
        ),
        report("beta = 100: nothing more for K > 3", more <= 1e-6, f"{more:.1e}"),
        report("beta = .01: mean field above all K < 512", least > 0, f"by {least:.3f} at least"),
        report("discrepancy: at low coupling K = 1 is not above", weak[1] < weak_field, text),
    ], found


def modes_held(seeds: int) -> list[bool]:
    """Table and criterion of the starts: in how many runs two particles end all-up and all-down."""
    passed = []
    print(f"{'side':>4s} {'beta':>5s} {'x and -x':>9s} {'default':>8s} {'opposites proposed':>19s}")
    for side in (3, 10):
        for beta in (1.0, 100.0):
            held = {"x and -x": 0, "default": 0, "proposed": 0}
            for seed in range(seeds):
                x = torch.as_tensor(np.random.default_rng(seed).integers(0, 2, (1, side * side)))
                options = {
                    "x and -x": {"init": {"x": torch.cat([x, 1 - x])}},
                    "default": {},
                    "proposed": {"proposals": opposites},
                }
                for name, chosen in options.items():
                    q = particles(side, beta, 2, seed=seed, **chosen)
                    held[name] += sorted(q.particles["x"].sum(1).tolist()) == [0, side * side]
            row = f"{held['x and -x']:9d} {held['default']:8d} {held['proposed']:19d}"
            print(f"{side:4d} {beta:5g} {row} of {seeds}", flush=True)
            text = f"{held['x and -x']} of {seeds}"
            name = f"{side} x {side}, beta = {beta:g}: both modes from every antithetic start"
            passed.append(report(name, held["x and -x"] == seeds, text))
    return passed


def sampler_check(sweeps: int, rng: np.random.Generator) -> bool:
    """Swendsen-Wang's mean energy against enumeration."""
    draws = swendsen_wang(programs.lattice_edges(3).numpy(), 0.3, sweeps, 100, rng)
    score = pair_energy(states(3), 3)
    truth = (np.exp(0.3 * score - logsumexp(0.3 * score)) * score).sum()
    energy = pair_energy(draws, 3)
    error = energy.reshape(50, -1).mean(1).std() / math.sqrt(50)
    text = f"off by {energy.mean() - truth:+.4f}, standard error {error:.4f}"
    return report("Swendsen-Wang's energy on 3 x 3", abs(energy.mean() - truth) < 4 * error, text)


def marginals(rng: np.random.Generator) -> tuple[list[bool], dict]:
    """Criteria and pictures of figure 13, 10 x 10."""
    passed, found = [], {}
    edges, none = programs.lattice_edges(10).numpy(), torch.zeros(100)
    for beta in (0.01, 1.0, 100.0):
        draws = swendsen_wang(edges, beta, 500, 100, rng)
        chains = pg.infer.Gibbs(burn_in=100 * 100)
        single = pg.BBIS(
            partial(programs.ising, 10, beta), proposal=chains, num_particles=100, progress=False
        )
        by_gibbs = 2 * single.setup(none).x.t().double().numpy() - 1
        two = particles(10, beta, 2, proposals=opposites)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            loopy = pg.BP(partial(programs.ising, 10, beta), progress=False).run(none)
        ups = {
            "mean field": mean_field(10, beta)[0].marginal("x").mean.numpy(),
            "belief propagation": loopy.marginal("x").mean.numpy(),
        }
        found[beta] = draws, two.particles["x"].numpy(), ups
        off = {name: _off_ideal(up) for name, up in ups.items()}
        text = ", ".join(f"{name} {value:.4f}" for name, value in off.items())
        print(
            f"10 x 10, beta {beta:g}: Swendsen-Wang P(up) {(draws > 0).mean():.3f}, |m| "
            f"{np.abs(draws.mean(1)).mean():.3f}, Gibbs {(by_gibbs > 0).mean():.3f}, "
            f"{np.abs(by_gibbs.mean(1)).mean():.3f}; off symmetric or broken: {text}"
        )
        if beta != 1:
            name = f"beta = {beta:g}: mean field and BP symmetric or broken within .02"
            passed.append(report(name, max(off.values()) <= 0.02, text))
    return passed, found


def _off_ideal(up: np.ndarray) -> float:
    """Largest distance of P(up) from 1/2 everywhere, or from one of the modes."""
    return float(min(np.abs(up - ideal).max() for ideal in (0.0, 0.5, 1.0)))


def gap_to_best(seeds: int, quick: bool) -> list[bool]:
    """Table of the distance to the best bound, random fields."""
    print(f"{'side':>4s} {'beta':>5s} {'K':>3s} {'mean gap':>9s} {'largest':>8s} {'reached':>8s}")
    over, rng = 0.0, np.random.default_rng(1)
    for side in (3,) if quick else (3, 4):
        every = states(side)
        pairs = pair_energy(every, side)
        fields = rng.standard_normal((seeds, side * side))
        for beta in (0.1, 0.5, 1.0):
            gaps: dict[int, list[float]] = {1: [], 2: [], 4: [], 8: [], 16: []}
            for field in fields:
                score = every @ field + beta * pairs
                top = np.sort(np.partition(score, -16)[-16:])[::-1]
                for count, gap in gaps.items():
                    q = particles(side, beta, count, torch.as_tensor(field))
                    gap.append(logsumexp(top[:count]) - float(q.log_evidence))
            for count, gap in gaps.items():
                reached = np.mean(np.array(gap) < 1e-9)
                row = f"{side:4d} {beta:5.1f} {count:3d} {np.mean(gap):9.2e} {max(gap):8.1e}"
                print(f"{row} {reached:8.0%}", flush=True)
                over = min(over, *gap)
    return [report("with fields: bound at most the best", over > -1e-9, f"{-over:.1e} above")]


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the tables and the criteria, draw the figures; True if all criteria hold."""
    args = criteria.arguments(__doc__, 20, argv)
    passed, bounds = against_mean_field(args.quick)
    plot_bounds(bounds, criteria.figure_path("ising_bounds", args.quick))
    rng = np.random.default_rng(0)
    passed.append(sampler_check(1000 if args.quick else 20000, rng))
    verdicts, pictures = marginals(rng)
    plot_modes(pictures, criteria.figure_path("ising_modes", args.quick))
    return all([*passed, *verdicts, *modes_held(args.seeds), *gap_to_best(args.seeds, args.quick)])


def plot_bounds(found: dict, path) -> None:
    """Figure 12."""
    sides = sorted({side for side, _ in found})
    figure, axes = plt.subplots(
        1, len(sides), figsize=(4.2 * len(sides), 3.2), layout="constrained", squeeze=False
    )
    for axis, side in zip(axes[0], sides, strict=True):
        for (of, beta), (_, field, bounds) in found.items():
            if of != side:
                continue
            axis.plot(list(bounds), [b - field for b in bounds.values()], "o-", label=f"{beta:g}")
        axis.axhline(math.log(2), color="k", ls=":")
        axis.set(xscale="log", yscale="symlog", xlabel="particles", title=f"{side} x {side}")
    axes[0, 0].set_ylabel("bound less mean field's")
    axes[0, -1].legend(frameon=False, fontsize="x-small", title="beta")
    figure.savefig(path, dpi=80)
    plt.close(figure)


def plot_modes(found: dict, path) -> None:
    """Figure 13: two draws, two particles, marginals."""
    figure, axes = plt.subplots(len(found), 6, figsize=(9, 1.7 * len(found)), layout="constrained")
    for row, (beta, (draws, two, ups)) in zip(axes, found.items(), strict=True):
        pictures = {"Swendsen-Wang": draws[0] > 0, "another": draws[-1] > 0}
        pictures |= {f"DPVI {k + 1}": x for k, x in enumerate(two)}
        for axis, (name, picture) in zip(row, (pictures | ups).items(), strict=True):
            axis.imshow(picture.reshape(10, 10), vmin=0, vmax=1, cmap="gray")
            axis.set(xticks=[], yticks=[])
            axis.set_title(name, fontsize="small")
        row[0].set_ylabel(f"beta {beta:g}")
    figure.savefig(path, dpi=80)
    plt.close(figure)


if __name__ == "__main__":
    main()
