"""How near do message passing's evidence and marginals come on models that are not toys?

    PYROGRAPH_DATA=... python benchmarks/message_passing/uai.py [--quick] [--threads 1]

The 16 instances of the data root's folder ``uai``: grids, image segmentation, medical diagnosis,
pedigrees, constraints, Markov logic, object detection; 40 to 440 variables. Methods as their
presets come, in double precision, at most 1000 sweeps:

    BP, fractional BP with alpha = 1/2 and 2,
    TRW with the appearances of a uniform spanning tree, where all tables are of one or two
        unobserved variables ("not pairs" elsewhere),
    VMP where no table has a zero ("zeros" elsewhere).

Table: log Z found minus the reference, mean |marginal - reference| over the states of unobserved
variables, sweeps and seconds; ``*`` marks runs that did not converge. The references were computed
by the competition; 13 of the log Z are known in double precision, the others to six digits, which
the criteria of the bounds allow for.

Source: V. Gogate, "UAI 2014 inference competition"; Minka (2005), sections 6 and 7.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
from criteria import arguments, figure_path, report

import pyrograph as pg
from pyrograph.datasets import DiscreteModel, UAIReference, read_uai, uai_reference
from pyrograph.errors import ConvergenceWarning, ZeroMass

NAMES = (
    *("Grids_11", "Grids_13", "Grids_15"),
    *("Segmentation_11", "Segmentation_12", "Segmentation_13"),
    *("Promedus_24", "Promedus_30", "Promedus_22", "Pedigree_11", "CSP_12", "DBN_11"),
    *("ObjectDetection_28", "ObjectDetection_34", "linkage_16", "Alchemy_11"),
)
QUICK = ("Promedus_24", "ObjectDetection_34", "DBN_11")
METHODS: dict[str, Callable] = {
    "BP": pg.BP,
    "TRW": pg.TRW,
    "alpha 1/2": lambda model, **options: pg.FractionalBP(model, alpha=0.5, **options),
    "alpha 2": lambda model, **options: pg.FractionalBP(model, alpha=2.0, **options),
    "VMP": pg.VMP,
}
#: Relative error of a log Z that is given with six digits, and of one in double precision.
ROUNDED, EXACT = 5e-6, 1e-9


@dataclass(frozen=True)
class Run:
    """One method on one instance; errors are against the reference."""

    log_evidence_error: float
    marginal_error: float
    converged: bool
    num_sweeps: int
    seconds: float


def unserved(method: str, model: DiscreteModel) -> str | None:
    """Why a method is not for a model, in a word or two."""
    free = [[v for v in scope if v not in model.evidence] for scope in model.scopes]
    if method == "TRW" and max(map(len, free)) > 2:
        return "not pairs"
    if method == "VMP" and any(bool(table.isinf().any()) for table in model.log_tables):
        return "zeros"
    return None


def run(method: str, model: DiscreteModel, truth: UAIReference, num_steps: int) -> Run | str:
    """Errors and cost, or why there are none."""
    reason = unserved(method, model)
    if reason is not None:
        return reason
    begin = time.perf_counter()
    engine = METHODS[method](model, num_steps=num_steps, progress=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            posterior = engine.run()
    except ZeroMass:
        return "ZeroMass"
    seconds = time.perf_counter() - begin
    found = model.marginals(posterior)
    free = [v for v in range(model.num_variables) if v not in model.evidence]
    errors = [(found[v] - truth.marginals[v]).abs().mean() for v in free]
    return Run(
        float(posterior.log_evidence) - truth.log_evidence,
        float(sum(errors)) / len(errors),
        bool(posterior.converged),
        engine.num_done,
        seconds,
    )


def cell(found: Run | str) -> str:
    if isinstance(found, str):
        return f"{found:>29}"
    star = " " if found.converged else "*"
    return (
        f"{found.log_evidence_error:+9.3g} {found.marginal_error:8.2g} {found.num_sweeps:4d}{star}"
        f"{found.seconds:4.1f}s"
    )


def bound_holds(
    name: str, side: int, found: dict[str, Run | str], truth: dict[str, UAIReference]
) -> bool:
    """Report whether ``side * (log Z found - log Z)`` is nowhere below 0 but for rounding."""
    broken, served = [], 0
    for instance, result in found.items():
        if isinstance(result, str):
            continue
        served += 1
        given = truth[instance]
        slack = (EXACT if given.is_exact else ROUNDED) * abs(given.log_evidence)
        if side * result.log_evidence_error < -slack:
            broken.append(f"{instance} {result.log_evidence_error:+.2g}")
    detail = f"{served - len(broken)} of {served} instances" + "".join(f"; {b}" for b in broken)
    return report(name, not broken, detail)


def draw(found: dict[str, dict[str, Run | str]], quick: bool) -> None:
    """Marginal errors of every method on every instance; hollow where it did not converge."""
    figure, ax = plt.subplots(figsize=(9, 4), layout="constrained")
    for k, method in enumerate(METHODS):
        runs = [(i, r) for i, r in enumerate(found[method].values()) if isinstance(r, Run)]
        for settled in (True, False):
            part = [(i, r) for i, r in runs if r.converged == settled]
            ax.semilogy(
                [i + 0.12 * (k - 2) for i, _ in part],
                [r.marginal_error for _, r in part],
                "o",
                color=f"C{k}",
                markerfacecolor=f"C{k}" if settled else "none",
                label=method if settled else None,
            )
    names = list(found["BP"])
    ax.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8)
    ax.set_ylabel("mean |marginal - reference|; hollow: not converged")
    ax.grid(axis="x", linewidth=0.3)
    figure.legend(loc="outside upper center", fontsize=8, ncols=len(METHODS))
    figure.savefig(figure_path("uai", quick), dpi=120)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the table and the criteria, draw the figure; True if all criteria hold."""
    args = arguments(__doc__, argv)
    names, num_steps = (QUICK, 200) if args.quick else (NAMES, 1000)
    found: dict[str, dict[str, Run | str]] = {method: {} for method in METHODS}
    truth = {name: uai_reference(name) for name in names}
    print(f"{'error of log Z, of marginals,':19} " + "".join(f"{m:>29} |" for m in METHODS))
    print("sweeps (* not converged), seconds")
    for name in names:
        model = read_uai(name)
        for method in METHODS:
            found[method][name] = run(method, model, truth[name], num_steps)
        print(f"{name:19} " + " |".join(cell(found[m][name]) for m in METHODS) + " |", flush=True)

    passed = [
        bound_holds("TRW bounds log Z from above", 1, found["TRW"], truth),
        bound_holds("VMP bounds log Z from below", -1, found["VMP"], truth),
    ]
    both = [
        (bp.marginal_error, vmp.marginal_error)
        for bp, vmp in zip(found["BP"].values(), found["VMP"].values())
        if isinstance(bp, Run) and isinstance(vmp, Run) and bp.converged
    ]
    wins = sum(bp < vmp for bp, vmp in both)
    passed.append(
        report(
            "marginals of BP, where it converged, are nearer than those of VMP",
            2 * wins > len(both),
            f"{wins} of {len(both)} instances that both serve",
        )
    )
    empty = [f"{m} on {n}" for m, runs in found.items() for n, r in runs.items() if r == "ZeroMass"]
    passed.append(
        report("no method reports zero mass", not empty, "; ".join(empty) or "every Z is positive")
    )
    draw(found, args.quick)
    return all(passed)


if __name__ == "__main__":
    main()
