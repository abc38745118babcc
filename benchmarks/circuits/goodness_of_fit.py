"""Does the discrete Stein discrepancy tell a wrong model from the right one, and by how much?

    python benchmarks/circuits/goodness_of_fit.py [--seeds 20] [--quick] [--threads 1]

A 2x5 Potts model of three states with random fields is compiled, as the target p. Data are drawn
from p, and from the same model with its couplings multiplied by 1 + e. Tested by the
V-statistic of the Stein kernel of n = 100 draws against a bootstrap (1,000 multinomial draws of
weights) at level 0.05, and beside it by the statistic with each state's second half of the nodes
summed out (Rao-Blackwell: the draws differ, the law of the first half is tested). The exact
discrepancy of the altered model, kdsd(q, p), is printed: no samples.

Criteria: under e = 0 no more rejections than the binomial 99 % bound of a level of 0.05 allows;
under e = 1 at least nine in ten are rejected; the exact discrepancy grows with |e| and is 0 at
e = 0; the mean U-statistic of the draws is within four standard errors of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import criteria
import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from criteria import report
from scipy.stats import binom
from torch import Tensor

import pyrograph as pg
from pyrograph.circuits import Circuit, compile_graph, kdsd, stein_gram
from pyrograph.infer.importance.discrete_stein import discrete_stein_gram

STRENGTHS = (0.0, 0.25, 0.5, 1.0)
NUMBER, BOOTSTRAPS, LEVEL, ROWS, COLUMNS, STATES = 100, 1000, 0.05, 2, 5, 3


def potts(strength: float) -> Callable:
    """The program."""
    generator = torch.Generator().manual_seed(0)
    field = 0.5 * torch.randn(ROWS, COLUMNS, STATES, generator=generator)
    same = 0.5 * (1 + strength)

    def model() -> None:
        with pyro.plate("i", ROWS, dim=-2), pyro.plate("j", COLUMNS, dim=-1):
            x = pyro.sample("x", dist.Categorical(logits=field))
        pyro.factor("right", (same * (x[:, :-1] == x[:, 1:]).to(field)).sum())
        pyro.factor("down", (same * (x[:-1] == x[1:]).to(field)).sum())

    return model


def test_statistic(gram: Tensor, generator: torch.Generator) -> tuple[bool, float]:
    """Whether equality is rejected, and the U-statistic."""
    n = len(gram)
    counts = torch.multinomial(torch.ones(BOOTSTRAPS, n), n, replacement=True, generator=generator)
    weights = torch.zeros(BOOTSTRAPS, n).scatter_add(1, counts, torch.ones(BOOTSTRAPS, n)) / n
    weights -= 1 / n
    null = torch.einsum("bi,ij,bj->b", weights, gram, weights)
    rejects = bool(gram.mean() > null.quantile(1 - LEVEL))
    return rejects, float((gram.sum() - gram.trace()) / (n * (n - 1)))


def of_states(p: Circuit, x: Tensor) -> Tensor:
    """The Stein kernel where nothing is summed out, from the ratios of probabilities."""
    cards = torch.tensor(p.cards)
    following = x.unsqueeze(1).expand(-1, len(cards), -1).clone()
    every = torch.arange(len(cards))
    following[:, every, every] = (x + 1) % cards
    moved = p.log_prob(following.flatten(0, 1)).view(len(x), -1)
    ratios = (moved - p.log_prob(x).unsqueeze(1)).exp()
    return discrete_stein_gram(x.t(), ratios.t(), cards)


def study(p: Circuit, q: Circuit, seeds: int) -> dict[str, list]:
    """Rejections and U-statistics over draws of q."""
    out: dict[str, list] = {"all": [], "half": [], "u": []}
    for seed in range(seeds):
        pyro.set_rng_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        x = q.sample(NUMBER)
        rejects, u = test_statistic(of_states(p, x), generator)
        out["all"].append(rejects)
        out["u"].append(u)
        half = x.clone()
        half[:, p.num_variables // 2 :] = -1
        out["half"].append(test_statistic(stein_gram(p, half), generator)[0])
    return out


def main(argv: Sequence[str] | None = None) -> bool:
    """Whether every criterion holds."""
    args = criteria.arguments(__doc__, 20, argv)
    p, *others = (compile_graph(pg.trace_graph(potts(e))) for e in STRENGTHS)
    circuits = (p, *others)
    exact = [float(kdsd(q, p)) for q in circuits]
    results = [study(p, q, args.seeds) for q in circuits]
    print("couplings x   exact KDSD^2   mean U-statistic   rejected: all nodes, half")
    for e, truth, found in zip(STRENGTHS, exact, results, strict=True):
        u = torch.tensor(found["u"])
        error = u.std() / len(u) ** 0.5
        shares = [sum(found[k]) / args.seeds for k in ("all", "half")]
        print(
            f"{1 + e:11.2f} {truth:14.6f} {u.mean():12.6f} +- {error:.6f} "
            f"{shares[0]:14.2f} {shares[1]:.2f}"
        )
    most = binom.ppf(0.99, args.seeds, LEVEL)
    false = sum(results[0]["all"])
    holds = report(
        "the right model is kept", false <= most, f"{false} rejections, at most {most:.0f}"
    )
    power = sum(results[-1]["all"])
    detail = f"{power} of {args.seeds}"
    holds &= report("doubled couplings are found", power >= 0.9 * args.seeds, detail)
    grows = exact[0] < 1e-12 and exact == sorted(exact)
    holds &= report(
        "the exact discrepancy grows from 0", grows, f"{exact[0]:.1e} to {exact[-1]:.3f}"
    )
    worst = 0.0
    for truth, found in zip(exact, results, strict=True):
        u = torch.tensor(found["u"])
        worst = max(worst, float((u.mean() - truth).abs() / (u.std() / len(u) ** 0.5)))
    holds &= report("draws agree with the exact value", worst < 4, f"{worst:.2f} standard errors")
    figure, axis = plt.subplots(figsize=(5, 3.5), layout="constrained")
    couplings = [1 + e for e in STRENGTHS]
    axis.plot(couplings, exact, "k", label="exact")
    for k in range(args.seeds):
        axis.plot(couplings, [r["u"][k] for r in results], ".", color="tab:blue", alpha=0.5)
    axis.set(xlabel="couplings, multiplied by", ylabel="squared KDSD")
    axis.legend()
    path = criteria.figure_path("goodness_of_fit", args.quick)
    figure.savefig(path, dpi=120)
    print(f"figure: {path.name}")
    return holds


if __name__ == "__main__":
    sys.exit(not main())
