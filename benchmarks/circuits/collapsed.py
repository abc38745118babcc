"""Does weighting collapsed samples help, and against what?

    python benchmarks/circuits/collapsed.py [--seeds 30] [--quick] [--threads 1]

Paper, figure 3: marginals of the 4x4 random Ising grid from few Gibbs states, by plain averages
(VS), averages of exact conditionals where 25 % or 50 % of the variables of each sample are summed
out (CVS), and the same with Stein weights (BBIS, CBBIS). Log of the mean Hellinger distance of the
16 marginals, exponentiated Hamming kernel, N up to 200. Two chains: a long one (2,000 steps of
burn-in, 1,000 between states: nearly independent) and a short, biased one (no burn-in, 16 single
steps). The paper's figure adds 0.01 to all weights before it normalises them again, which it does
not say; here weights are as solved, and the smoothed ones are printed beside them.

The same on the network asia with its zeros softened to 0.001 (single-site chains cannot leave a
component otherwise; a third of the seeds), and on a 6x6 Ising grid (N up to 100, a tenth).

Criteria (short chain, 4x4, N = 100, paired by seed): CBBIS50 < CVS50 < VS, CBBIS25 < CVS25 and
CBBIS50 < CBBIS25 < BBIS by the sign test at 0.05; the weighted discrepancy is never above that of
equal weights. On the long chain CBBIS50 has the lowest mean of all.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence

import criteria
import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from criteria import report, sign_test
from torch import Tensor

import pyrograph as pg
from pyrograph.circuits import compile_graph
from pyrograph.datasets import DiscreteModel, bayesian_network, data_root, read_uai
from pyrograph.infer import Gibbs
from pyrograph.posterior import Posterior

NUMBERS = (20, 50, 100, 200)
CHAINS = {
    "short": Gibbs(burn_in=0, thin=16, num_chains=1, scan="random"),
    "long": Gibbs(burn_in=2000, thin=1000, num_chains=1, scan="random"),
}
METHODS = ("VS", "CVS25", "CVS50", "BBIS", "CBBIS25", "CBBIS50")


def softened(model: DiscreteModel, least: float = 1e-3) -> DiscreteModel:
    """Tables with no entry below ``least``."""
    floor = torch.tensor(least).log()
    tables = tuple(t.clamp_min(floor) for t in model.log_tables)
    return DiscreteModel(model.cardinalities, model.scopes, tables, model.evidence)


def grid6() -> Callable:
    """A 6x6 Ising model with random fields and couplings."""
    generator = torch.Generator().manual_seed(0)
    field = 0.3 * torch.randn(6, 6, generator=generator)
    right, down = (0.5 * torch.randn(*s, generator=generator) for s in ((6, 5), (5, 6)))

    def model() -> None:
        with pyro.plate("i", 6, dim=-2), pyro.plate("j", 6, dim=-1):
            x = pyro.sample("x", dist.Bernoulli(torch.full((6, 6), 0.5)))
        s = 2 * x - 1
        pyro.factor("field", (field * s).sum())
        pyro.factor("right", (right * s[:, :-1] * s[:, 1:]).sum())
        pyro.factor("down", (down * s[:-1] * s[1:]).sum())

    return model


def hellinger(posterior: Posterior, truth: Sequence[Tensor]) -> float:
    """Log of the mean over nodes; ``truth`` in order of nodes."""
    found = []
    for name in posterior.graph.sites:
        found += list(posterior.marginal(name).probs.flatten(0, -2))
    distances = [
        (p.sqrt() - q.sqrt()).square().sum().div(2).sqrt()
        for p, q in zip(found, truth, strict=True)
    ]
    return float(torch.stack(distances).mean().log())


def values(engine: pg.BBIS) -> dict[str, Tensor]:
    """Its points, site by site."""
    out, start = {}, 0
    for name, site in engine.graph.sites.items():
        codes = engine.x[start : start + site.num_nodes].t()
        start += site.num_nodes
        out[name] = site.enumeration[codes].reshape(len(codes), *site.shape)
    return out


def run(model: Callable, samples: dict[str, Tensor], truth: Sequence[Tensor]) -> dict:
    """Per method the log distance; the worst discrepancy over that of equal weights."""
    first = pg.BBIS(model, samples=samples, progress=False).setup()
    out = {"VS": hellinger(first.posterior(), truth)}
    engines = {"BBIS": first}
    for share in (25, 50):
        engine = pg.CollapsedBBIS(model, collapse=share / 100, samples=samples, progress=False)
        engines[f"CBBIS{share}"] = engine.setup()
        out[f"CVS{share}"] = hellinger(engine.posterior(), truth)
    gain = []
    for name, engine in engines.items():
        engine.step()
        out[name] = hellinger(engine.posterior(), truth)
        history = engine.history
        gain.append(float(history["objective"][-1] / history["equal_weights"][-1]))
        smooth = engine.weights + 0.01
        engine.weights = smooth / smooth.sum()
        out[f"{name}+"] = hellinger(engine.posterior(), truth)
    return {"distance": out, "gain": max(gain)}


def study(
    name: str, model: Callable, numbers: Sequence[int], seeds: int
) -> tuple[dict[str, dict[str, Tensor]], float]:
    """Per chain and method ``[seeds, numbers]``, and the worst ratio of discrepancies."""
    truth = compile_graph(pg.trace_graph(model)).marginals()
    tables, worst = {}, 0.0
    for chain_name, chain in CHAINS.items():
        rows: dict[str, list[list[float]]] = {}
        for seed in range(seeds):
            pyro.set_rng_seed(seed)
            drawn = pg.BBIS(model, proposal=chain, num_particles=numbers[-1], progress=False)
            states = values(drawn.setup())
            found = [run(model, {k: v[:n] for k, v in states.items()}, truth) for n in numbers]
            worst = max(worst, *(f["gain"] for f in found))
            for method in found[0]["distance"]:
                rows.setdefault(method, []).append([f["distance"][method] for f in found])
        tables[chain_name] = {m: torch.tensor(v) for m, v in rows.items()}
        print(f"\n{name}, {chain_name} chain: N  " + " ".join(f"{n:7d}" for n in numbers))
        for method, value in tables[chain_name].items():
            error = value.std(0)[-1] / seeds**0.5
            numbers_shown = " ".join(f"{v:7.2f}" for v in value.mean(0).tolist())
            print(f"{method:>28s}  {numbers_shown}   (SE of the last {error:.2f})")
    return tables, worst


def main(argv: Sequence[str] | None = None) -> bool:
    """Whether every criterion holds."""
    args = criteria.arguments(__doc__, 30, argv)
    warnings.simplefilter("ignore", pg.errors.ConvergenceWarning)
    numbers = NUMBERS[:2] if args.quick else NUMBERS
    grid = read_uai(data_root() / "ising_4x4" / "rand_4_4_id0.uai")
    asia = softened(bayesian_network("asia").tabulated())
    models = {"ising 4x4": grid, "asia, softened": asia, "ising 6x6": grid6()}
    figure, axes = plt.subplots(2, 3, figsize=(13, 7), layout="constrained", sharex=True)
    results, worst = {}, 0.0
    for column, (name, model) in enumerate(models.items()):
        # the larger grid takes minutes a seed
        share, upto = {"ising 4x4": (1, numbers), "ising 6x6": (10, numbers[:3])}.get(
            name, (3, numbers)
        )
        seeds = max(2, args.seeds // share)
        results[name], ratio = study(name, model, upto, seeds)
        worst = max(worst, ratio)
        for axis, (chain, table) in zip(axes[:, column], results[name].items(), strict=True):
            for method in METHODS:
                axis.plot(upto, table[method].mean(0), marker=".", label=method)
            axis.set(title=f"{name}, {chain} chain", xlabel="N", ylabel="log mean Hellinger")
    axes[0, 0].legend(fontsize=8)
    path = criteria.figure_path("collapsed", args.quick)
    figure.savefig(path, dpi=120)
    print(f"figure: {path.name}\n")
    at = numbers.index(50 if args.quick else 100)
    short = {m: v[:, at].tolist() for m, v in results["ising 4x4"]["short"].items()}
    long = {m: v[:, at].mean() for m, v in results["ising 4x4"]["long"].items()}
    pairs = ("CBBIS50", "CVS50"), ("CVS50", "VS"), ("CBBIS25", "CVS25")
    pairs += ("CBBIS50", "CBBIS25"), ("CBBIS25", "BBIS")
    holds = True
    for low, high in pairs:
        p = sign_test(short[low], short[high])
        holds &= report(f"short chain: {low} below {high}", p < 0.05, f"p = {p:.3f}")
    best = min(METHODS, key=lambda m: long[m])
    holds &= report("long chain: CBBIS50 lowest", best == "CBBIS50", f"lowest is {best}")
    holds &= report("discrepancy never above equal weights", worst <= 1, f"at most {worst:.2f}")
    return holds


if __name__ == "__main__":
    sys.exit(not main())
