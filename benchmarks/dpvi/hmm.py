"""Binary hidden Markov chain: marginals by distinct particles and by particle filters.

    python benchmarks/dpvi/hmm.py [--seeds 20] [--quick] [--threads 1]

Paper, figures 2 and 3. P(0|0) = .2, P(1|1) = .1, symbols P(0|0) = .3, P(1|1) = .2, start (.5, .5),
T = 200; multinomial resampling below a threshold of the effective sample size, five runs of the
filter per sequence. Error: sum_t sum_s |P - Q|, of smoothing marginals (whole paths) and, second
column, of filter marginals; truth by forward-backward. DPVI is one forward pass; local sweeps after
it are shown. K is not stated in the paper.

Figure 2's arithmetic: a state seen in two of five draws, with marginals .6, .63 and .85; its third
estimator is a particle's weight, of weights that sum to 1.

Criteria: Monte Carlo says .4, the product of marginals .321, and DPVI's weights sum to 1 (1e-12);
filters' evidence is unbiased under each scheme (T = 20, within 4 standard errors); for K = 10 and
100 the error of smoothing is U-shaped in the threshold (least strictly between 0 and K + 1); that
of DPVI is at most 1.2 times the least, and below those at thresholds 0 and K + 1, p < .01 by a sign
test over sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

import criteria
import forward_backward as exact
import matplotlib.pyplot as plt
import numpy as np
import programs
import pyro
import torch
from criteria import report, sign_test
from particle_filter import SCHEMES, particle_filter

import pyrograph as pg

START = np.array([0.5, 0.5])
MOVE = np.array([[0.2, 0.8], [0.9, 0.1]])
EMIT = np.array([[0.3, 0.7], [0.8, 0.2]])
LENGTH, RUNS = 200, 5
THRESHOLDS = {
    10: (0, 1.5, 2, 3, 5, 10, 11),
    100: (0, 1.5, 2, 3, 5, 10, 20, 50, 100, 101),
}


def two_estimators() -> tuple[float, float]:
    """Probability of the state (1, 1, 1): share of the draws, product of the marginals."""
    seen = np.array([[1, 1, 1], [1, 1, 1], [1, 0, 1], [0, 1, 1], [0, 0, 0]])
    return float((seen == 1).all(1).mean()), float(np.prod([0.6, 0.63, 0.85]))


def by_particles(observed: np.ndarray, count: int, smoothing: bool) -> tuple[np.ndarray, ...]:
    """Smoothing and filter marginals ``[T, 2]``, the bound and the sum of the weights."""
    pyro.set_rng_seed(0)
    engine = pg.SequentialDPVI(
        programs.chain, num_particles=count, smoothing=smoothing, progress=False
    )
    numbers = [torch.as_tensor(v) for v in (START, MOVE, EMIT, observed)]
    q = engine.run(*numbers, torch.ones(len(observed)))
    marginals = q.marginal("z").probs.numpy(), engine.filtered("z").numpy()
    return *marginals, float(q.log_evidence), float(q.weights.sum())


def is_unbiased(rng: np.random.Generator, runs: int) -> bool:
    """The filter's estimate of Z over the truth has mean 1."""
    observed = exact.simulate(START, MOVE, EMIT, 20, rng)
    _, log_z = exact.filtered(START, MOVE, EMIT[:, observed].T)
    tiled = np.broadcast_to(EMIT[:, observed].T, (runs, 20, 2))
    holds, text = True, []
    for scheme in SCHEMES:
        found = particle_filter(START, MOVE, tiled, 10, 5, rng, scheme)
        ratio = np.exp(found.log_evidence - log_z)
        error = ratio.std() / np.sqrt(runs)
        holds &= abs(ratio.mean() - 1) < 4 * error
        text.append(f"{scheme} {ratio.mean():.4f} +- {error:.4f}")
    return report("evidence of the filter is unbiased, Z over truth", holds, ", ".join(text))


def errors(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Total error of ``[..., T, S]``, averaged over runs: ``[sequences]``."""
    return np.abs(found - truth).sum((-1, -2)).reshape(len(truth), -1).mean(1)


def compare(count: int, rows: np.ndarray, rng: np.random.Generator) -> tuple[list[bool], dict]:
    """Table and criteria of one K over sequences ``[n, T]``."""
    likelihood = EMIT[:, rows].transpose(1, 2, 0)
    smooth = np.stack([exact.smoothed(START, MOVE, g) for g in likelihood])
    now, log_z = zip(*(exact.filtered(START, MOVE, g) for g in likelihood), strict=True)
    now = np.stack(now)
    columns: dict = {}
    for smoothing in (False, True):
        found = [by_particles(row, count, smoothing) for row in rows]
        path, step = (np.stack([f[k] for f in found]) for k in (0, 1))
        columns["DPVI, swept" if smoothing else "DPVI"] = errors(path, smooth), errors(step, now)
        gap = np.mean([z - f[2] for z, f in zip(log_z, found, strict=True)])
        print(f"K = {count}: log Z - L {gap:.1f} {'after sweeps' if smoothing else 'one pass'}")
    repeated = likelihood.repeat(RUNS, axis=0)
    shape = (len(rows), RUNS, *smooth.shape[1:])
    for scheme in SCHEMES:
        for threshold in THRESHOLDS[count]:
            runs = particle_filter(START, MOVE, repeated, count, threshold, rng, scheme)
            columns[scheme, threshold] = (
                errors(runs.smoothed.reshape(shape), smooth[:, None]),
                errors(runs.filtered.reshape(shape), now[:, None]),
            )
    print(f"{'':12s} {'threshold':>9s} {'smoothing':>10s} {'filter':>7s}")
    for name, (path, step) in columns.items():
        scheme, threshold = name if isinstance(name, tuple) else (name, "")
        print(f"{scheme:12s} {threshold!s:>9s} {path.mean():10.1f} {step.mean():7.1f}")
    dpvi = columns["DPVI"][0]
    curve = [columns["multinomial", t][0] for t in THRESHOLDS[count]]
    means = [float(c.mean()) for c in curve]
    least = int(np.argmin(means))
    inside = 0 < least < len(means) - 1
    text = f"least {means[least]:.1f} at {THRESHOLDS[count][least]}, ends "
    text += f"{means[0]:.1f} and {means[-1]:.1f}"
    ends = [sign_test(curve[least], c) for c in (curve[0], curve[-1])]
    text += f" (p = {ends[0]:.1e}, {ends[1]:.1e})"
    passed = [report(f"K = {count}: U-shape in the threshold", inside, text)]
    text = f"{dpvi.mean():.1f} against {means[least]:.1f}"
    holds = dpvi.mean() <= 1.2 * means[least]
    passed.append(report(f"K = {count}: DPVI at most 1.2 times the best filter", holds, text))
    for at, end in ((0, curve[0]), (THRESHOLDS[count][-1], curve[-1])):
        p = sign_test(dpvi, end)
        holds = dpvi.mean() < end.mean() and p < 0.01
        text = f"{dpvi.mean():.1f} against {end.mean():.1f}, p = {p:.1e}"
        passed.append(report(f"K = {count}: DPVI below the filter at threshold {at}", holds, text))
    return passed, columns


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the tables and the criteria, draw the figure; True if all criteria hold."""
    args = criteria.arguments(__doc__, 20, argv)
    rng = np.random.default_rng(0)
    rows = np.stack([exact.simulate(START, MOVE, EMIT, LENGTH, rng) for _ in range(args.seeds)])
    draws, product = two_estimators()
    total = by_particles(rows[0], 10, smoothing=False)[3]
    holds = draws == 0.4 and round(product, 3) == 0.321 and abs(total - 1) < 1e-12
    text = f"{draws:.3f}, {product:.3f}, {total:.12f}"
    passed = [report("figure 2: draws .4, marginals .321, weights 1", holds, text)]
    passed.append(is_unbiased(rng, 1000 if args.quick else 20000))
    found = {}
    for count in (10,) if args.quick else THRESHOLDS:
        verdicts, found[count] = compare(count, rows, rng)
        passed += verdicts
    plot(found, criteria.figure_path("hmm", args.quick))
    return all(passed)


def plot(found: dict, path) -> None:
    """Errors of smoothing and filter marginals against the threshold."""
    figure, axes = plt.subplots(
        1, len(found), figsize=(4.2 * len(found), 3.2), layout="constrained", squeeze=False
    )
    for axis, (count, columns) in zip(axes[0], found.items(), strict=True):
        at = THRESHOLDS[count]
        for scheme in SCHEMES:
            axis.plot(at, [columns[scheme, t][0].mean() for t in at], "o-", label=scheme)
        filters = [columns["multinomial", t][1].mean() for t in at]
        axis.plot(at, filters, "o:", color="gray", label="multinomial, filter marginals")
        axis.axhline(columns["DPVI"][0].mean(), color="k", label="DPVI")
        axis.axhline(columns["DPVI"][1].mean(), color="k", ls=":", label="DPVI, filter marginals")
        axis.set(xscale="symlog", xlabel="threshold", title=f"K = {count}", ylim=(0, None))
    axes[0, 0].set_ylabel("total error of marginals")
    axes[0, -1].legend(frameon=False, fontsize="x-small")
    figure.savefig(path, dpi=80)
    plt.close(figure)


if __name__ == "__main__":
    main()
