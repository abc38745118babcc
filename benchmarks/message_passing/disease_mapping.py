"""How near do EP, power EP and VMP come to NUTS on a map of relative risks, and what do they cost?

    python benchmarks/message_passing/disease_mapping.py [--quick] [--threads 1]

Lip cancer in Scotland (``lip_cancer.py``): Poisson counts, an intrinsic autoregression over 56
districts, an independent part, a covariate. The scales sigma and tau are fixed at their posterior
means (``nuts_reference.py``), and NUTS is run for the same program. Two programs of the one
density: the map as one node with a full covariance, where the graph is a star and EP projects the
counts alone; and a node per district, where Gaussian beliefs travel along the cycles of the map.
There the baseline b_0 and the mean of the map trade off along a ridge that only the weak term
ends: no belief of single nodes holds it, b_0 creeps (last columns), and the risks, which do not
depend on it, are right long before. ``counts alone`` is power EP with alpha = 1/2 for the counts
and 1 for the Gaussian factors.

Errors of means are |mean - NUTS| / sd of NUTS, errors of sds |sd / sd of NUTS - 1|, over the 56
log relative risks and the 56 relative risks exp(eta), whose moments are those of a lognormal. The
errors that NUTS itself makes in means are about 0.02 sd.

Second table: latent scales, for which NUTS has a reference of its own. The factors of field, log
risk and both scales depend on four numbers, of which EP integrates the two that they are quadratic
in, given the scales, in closed form. Settings are the presets' defaults; runs end after 1000
sweeps, with latent scales after 400.

Source: Clayton & Kaldor (1987); Besag, York & Mollie (1991); Minka (2001, 2004).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
from criteria import arguments, figure_path, report
from lip_cancer import LipCancer, lip_cancer, node_per_district, one_field
from nuts_reference import Reference, stored, stored_scales

import pyrograph as pg
from pyrograph.errors import ConvergenceWarning

METHODS: dict[str, Callable] = {
    "EP": pg.EP,
    "power EP 1/2": pg.PowerEP,
    "counts alone": lambda model, **options: pg.PowerEP(model, alpha={"observed": 0.5}, **options),
    "VMP": pg.VMP,
}
#: Methods with latent scales.
LATENT = ("EP", "power EP 1/2", "VMP")
PROGRAMS = {"one field": one_field, "node per district": node_per_district}
MEAN_MEDIAN, MEAN_MOST, SD_MEDIAN = 0.1, 0.3, 0.1


@dataclass(frozen=True)
class Fit:
    """Moments of log risks ``[56]``, mean and sd of b_0, means of latent scales, and the run."""

    mean: np.ndarray
    sd: np.ndarray
    baseline: tuple[float, float]
    scales: dict[str, float]
    converged: bool
    num_sweeps: int
    residual: float
    seconds: float

    def risks(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd of exp(eta) for Gaussian eta."""
        mean = np.exp(self.mean + self.sd**2 / 2)
        return mean, mean * np.sqrt(np.expm1(self.sd**2))


def fit(
    method: str,
    program: Callable,
    data: LipCancer,
    scales: tuple[float, float] | None,
    num_steps: int,
) -> Fit:
    begin = time.perf_counter()
    engine = METHODS[method](program, num_steps=num_steps, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        posterior = engine.run(data, scales)
    eta = posterior.marginal("eta")
    seconds = time.perf_counter() - begin
    mean, sd = eta.mean.numpy(), eta.stddev.numpy()
    logs = {} if scales else {name: posterior.marginal(f"log_{name}") for name in ("sigma", "tau")}
    found = {name: float((q.mean + q.variance / 2).exp()) for name, q in logs.items()}
    b = posterior.marginal("field" if program is one_field else "b")
    baseline = float(b.mean[0]), float(b.variance[0].sqrt())
    residual = float(posterior.history["residual"][-1])
    converged = bool(posterior.converged)
    return Fit(mean, sd, baseline, found, converged, engine.num_done, residual, seconds)


def errors(
    mean: np.ndarray, sd: np.ndarray, true_mean: np.ndarray, true_sd: np.ndarray
) -> tuple[float, float, float]:
    """Of means, in posterior sds, the median and the largest; of sds, relative, the median."""
    off = np.abs(mean - true_mean) / true_sd
    return (
        float(np.median(off)),
        float(off.max()),
        float(np.median(np.abs(sd / true_sd - 1))),
    )


def table(fits: dict[str, Fit], truth: Reference) -> dict[str, dict[str, tuple]]:
    """Print errors of log risks and risks, and return them."""
    print(
        f"{'':34}{'log risk: mean':>16} {'sd':>6}   {'risk: mean':>16} {'sd':>6}   "
        "sweeps  seconds       b_0: mean and sd"
    )
    print(f"{'':34}{'median':>9}{'most':>7} {'median':>6}   {'median':>9}{'most':>7} {'median':>6}")
    out = {}
    for name, found in fits.items():
        log = errors(found.mean, found.sd, truth.eta_mean, truth.eta_sd)
        risk = errors(*found.risks(), truth.risk_mean, truth.risk_sd)
        cells = ["{:9.3f}{:7.3f} {:6.1%}".format(*e) for e in (log, risk)]
        star = " " if found.converged else "*"
        cost = f"{found.num_sweeps:5d}{star} {found.seconds:7.1f}"
        b_0 = "{:7.2f} {:6.2f}".format(*found.baseline)
        print(f"  {name:32}{cells[0]}   {cells[1]}   {cost}   {b_0}")
        out[name] = {"log risks": log, "risks": risk}
    print(f"  {'NUTS':32}{'':51} {truth.seconds:14.1f}     (* not converged)", flush=True)
    return out


def draw(found: Fit, truth: Reference, names: Sequence[str], quick: bool) -> None:
    """Relative risks of the districts, EP beside NUTS, and sd against sd."""
    figure, (wide, square) = plt.subplots(
        1, 2, figsize=(12, 4), width_ratios=(3, 1), layout="constrained"
    )
    order = truth.risk_mean.argsort()
    at = np.arange(len(order))
    mean, sd = found.risks()
    wide.errorbar(
        at - 0.15, truth.risk_mean[order], truth.risk_sd[order], fmt="o", label="NUTS", ms=3
    )
    wide.errorbar(at + 0.15, mean[order], sd[order], fmt="s", label="EP", ms=3)
    wide.set_xticks(at, [names[i] for i in order], rotation=90, fontsize=6)
    wide.set(ylabel="relative risk, mean and sd", xlim=(-1, len(at)))
    wide.legend(loc="upper left")
    square.plot(truth.risk_sd, sd, "o", ms=3)
    ends = [0, 1.05 * max(truth.risk_sd.max(), sd.max())]
    square.plot(ends, ends, color="black", linewidth=0.7)
    square.set(xlabel="sd by NUTS", ylabel="sd by EP")
    figure.savefig(figure_path("disease_mapping", quick), dpi=120)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the tables and the criteria, draw the figure; True if all criteria hold."""
    args = arguments(__doc__, argv)
    data, scales = lip_cancer(), stored_scales()
    num_steps, num_latent = (100, 3) if args.quick else (1000, 400)

    print("scales fixed at sigma = {:.3f}, tau = {:.3f}".format(*scales))
    truth = stored("fixed")
    fits = {
        f"{method}, {kind}": fit(method, program, data, scales, num_steps)
        for kind, program in PROGRAMS.items()
        for method in METHODS
    }
    found = table(fits, truth)

    print("latent scales, one field")
    latent = {
        f"{method}, latent scales": fit(method, one_field, data, None, num_latent)
        for method in LATENT
    }
    found |= table(latent, stored("latent"))
    for name, result in latent.items():
        print(f"  {name:32}", *(f" {k} {v:.3f}" for k, v in result.scales.items()))
    print(f"  {'NUTS':32}  sigma {scales[0]:.3f}  tau {scales[1]:.3f}")

    passed = []
    for kind in (*PROGRAMS, "latent scales"):
        name = f"EP, {kind}"
        run = {**fits, **latent}[name]
        passed.append(
            report(
                f"{name}: settles",
                run.converged,
                f"residual {run.residual:.1e} after {run.num_sweeps} sweeps",
            )
        )
        for what, (median, most, sd) in found[name].items():
            passed.append(
                report(
                    f"{name}: means of {what} within {MEAN_MEDIAN} sd (median), {MEAN_MOST} (most)",
                    median <= MEAN_MEDIAN and most <= MEAN_MOST,
                    f"{median:.3f} and {most:.3f}",
                )
            )
            passed.append(
                report(
                    f"{name}: sds of {what} within {SD_MEDIAN:.0%} (median)",
                    sd <= SD_MEDIAN,
                    f"{sd:.1%}",
                )
            )
    draw(fits["EP, one field"], truth, data.names, args.quick)
    return all(passed)


if __name__ == "__main__":
    main()
