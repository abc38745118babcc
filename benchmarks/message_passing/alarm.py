"""What does message passing say about a patient under anaesthesia, beside the exact answer?

    PYROGRAPH_DATA=... python benchmarks/message_passing/alarm.py [--quick] [--threads 1]

The ALARM network of 37 variables: 8 diagnoses, and 14 findings of history, monitors and settings.

One patient in detail: low blood pressure with a racing heart, low venous and wedge pressures,
little carbon dioxide breathed out, every other finding normal; probabilities of the diagnoses'
states. Then 30 patients drawn from the network (4 with ``--quick``), all findings observed: mean
|marginal error| over the states of the 23 unobserved variables, error of log p(findings), and how
often the most likely state of a diagnosis is the exact one.

Exact: variable elimination, smallest table first; its derivatives with respect to log tables of
single variables are the marginals. Methods as their presets come. Not all apply: TRW is for tables
of one or two unobserved variables, VMP for tables without zeros.

Source: Beinlich, Suermondt, Chavez & Cooper (1989); Minka (2005), section 6.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import pyro
import torch
from criteria import arguments, figure_path, report
from torch import Tensor

import pyrograph as pg
from pyrograph.datasets import BayesianNetwork, bayesian_network
from pyrograph.errors import ConvergenceWarning, OptionError, UnsupportedFactor

DIAGNOSES = ("HYPOVOLEMIA", "LVFAILURE", "ANAPHYLAXIS", "INSUFFANESTH", "PULMEMBOLUS")
DIAGNOSES += ("INTUBATION", "KINKEDTUBE", "DISCONNECT")
PATIENT = {
    **{"HISTORY": "FALSE", "CVP": "LOW", "PCWP": "LOW", "HRBP": "HIGH", "HREKG": "HIGH"},
    **{"HRSAT": "HIGH", "EXPCO2": "LOW", "MINVOL": "NORMAL", "FIO2": "NORMAL", "SAO2": "NORMAL"},
    **{"PAP": "NORMAL", "PRESS": "NORMAL", "MINVOLSET": "NORMAL", "BP": "LOW"},
}
FINDINGS = tuple(PATIENT)
METHODS: dict[str, Callable] = {
    "BP": pg.BP,
    "EP": pg.EP,
    "alpha 1/2": lambda model, **options: pg.FractionalBP(model, alpha=0.5, **options),
    "alpha 2": lambda model, **options: pg.FractionalBP(model, alpha=2.0, **options),
    "VMP": pg.VMP,
    "TRW": pg.TRW,
}
NUM_BARS = 10
SAME, AGREE = 1e-6, 0.95


@dataclass(frozen=True)
class Answer:
    """Probabilities of the states of every unobserved variable, and log p(findings)."""

    marginals: dict[str, Tensor]
    log_evidence: float
    converged: bool = True


def exact(network: BayesianNetwork, evidence: Mapping[str, str | int]) -> Answer:
    """By variable elimination."""
    observed = network.state_numbers(evidence)
    free = [name for name in network.names if name not in observed]
    weight = {v: torch.zeros(len(network.states[v]), requires_grad=True) for v in free}
    tables = [((v,), weight[v].exp()) for v in free]
    for name in network.names:
        scope = (*network.parents[name], name)
        table = network.tables[name][tuple(observed.get(v, slice(None)) for v in scope)]
        tables.append((tuple(v for v in scope if v not in observed), table))
    left = set(free)
    while left:
        reached = {v: set().union(*(s for s, _ in tables if v in s)) for v in left}
        v = min(sorted(left), key=lambda u: sum(map(len, (network.states[w] for w in reached[u]))))
        scope = sorted(reached[v])
        value = torch.ones(())
        for s, table in tables:
            if v in s:
                value = value * _spread(table, s, scope)
        tables = [(s, t) for s, t in tables if v not in s]
        tables.append((tuple(u for u in scope if u != v), value.sum(scope.index(v))))
        left.remove(v)
    log_z = torch.stack([table for _, table in tables]).log().sum()
    found = torch.autograd.grad(log_z, list(weight.values()))
    return Answer(dict(zip(free, found)), float(log_z.detach()))


def _spread(table: Tensor, scope: Sequence[str], target: Sequence[str]) -> Tensor:
    """A table with its axes in the places of a larger scope."""
    order = sorted(range(len(scope)), key=lambda k: target.index(scope[k]))
    table = table.permute(order)
    shape = iter(table.shape)
    return table.reshape([next(shape) if v in scope else 1 for v in target])


def answer(
    method: str, network: BayesianNetwork, evidence: Mapping[str, str | int]
) -> Answer | str:
    """What a method finds, or why it does not apply."""
    model = network.tabulated(evidence)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            posterior = METHODS[method](model, progress=False).run()
    except UnsupportedFactor:
        return "not pairs"
    except OptionError:
        return "zeros"
    found = zip(network.names, model.marginals(posterior))
    return Answer(
        {name: probs for name, probs in found if name not in evidence},
        float(posterior.log_evidence),
        bool(posterior.converged),
    )


def error(found: Answer, truth: Answer) -> float:
    """Mean |marginal error| over variables and states."""
    gaps = [(found.marginals[v] - p).abs().mean() for v, p in truth.marginals.items()]
    return float(torch.stack(gaps).mean())


def patients(network: BayesianNetwork, count: int) -> list[dict[str, int]]:
    """Findings of draws from the network."""
    pyro.set_rng_seed(0)
    drawn = [network() for _ in range(count)]
    return [{name: int(values[name]) for name in FINDINGS} for values in drawn]


def detail(network: BayesianNetwork, truth: Answer, found: Mapping[str, Answer | str]) -> None:
    """Print the diagnoses of the patient."""
    columns = {"exact": truth, **{m: a for m, a in found.items() if isinstance(a, Answer)}}
    print(f"{'diagnosis':26}" + "".join(f"{name:>11}" for name in columns))
    for v in DIAGNOSES:
        for k, state in enumerate(network.states[v]):
            if len(network.states[v]) == 2 and k == 1:
                continue
            row = "".join(f"{float(a.marginals[v][k]):11.4f}" for a in columns.values())
            print(f"{v:13} {state:12}{row}")
    print(f"{'log p(findings)':26}" + "".join(f"{a.log_evidence:11.4f}" for a in columns.values()))
    errors = "".join(f"{error(a, truth):11.2g}" for a in columns.values())
    print(f"{'mean |marginal error|':26}{errors}")
    refused = [f"{m}: {reason}" for m, reason in found.items() if isinstance(reason, str)]
    print(f"do not apply: {', '.join(refused)}", flush=True)


def draw(
    network: BayesianNetwork, truth: Answer, found: Mapping[str, Answer | str], quick: bool
) -> None:
    """Bars of the variables of largest entropy: the probability of their first state."""
    entropy = {v: float(torch.special.entr(p).sum()) for v, p in truth.marginals.items()}
    chosen = sorted(entropy, key=entropy.get, reverse=True)[:NUM_BARS]
    columns = {"exact": truth, **{m: a for m, a in found.items() if isinstance(a, Answer)}}
    figure, ax = plt.subplots(figsize=(10, 4), layout="constrained")
    width = 0.8 / len(columns)
    for k, (name, a) in enumerate(columns.items()):
        at = [i + width * (k - (len(columns) - 1) / 2) for i in range(len(chosen))]
        heights = [float(a.marginals[v][0]) for v in chosen]
        ax.bar(at, heights, width, label=name, color="black" if name == "exact" else f"C{k - 1}")
    labels = [f"{v}\n{network.states[v][0]}" for v in chosen]
    ax.set_xticks(range(len(chosen)), labels, fontsize=7)
    ax.set_ylabel("probability of the state")
    figure.legend(loc="outside upper center", fontsize=8, ncols=len(columns))
    figure.savefig(figure_path("alarm", quick), dpi=120)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the tables and the criteria, draw the figure; True if all criteria hold."""
    args = arguments(__doc__, argv)
    network = bayesian_network("alarm")
    truth = exact(network, PATIENT)
    one = {method: answer(method, network, PATIENT) for method in METHODS}
    detail(network, truth, one)
    draw(network, truth, one, args.quick)

    cases = patients(network, 4 if args.quick else 30)
    truths = [exact(network, case) for case in cases]
    found: dict[str, list[Answer]] = {}
    print(f"\n{len(cases)} patients        marginal error (mean, most)   |log p| error   diagnoses")
    share = {}
    for method in (m for m, a in one.items() if isinstance(a, Answer)):
        answers = [answer(method, network, case) for case in cases]
        found[method] = [a for a in answers if isinstance(a, Answer)]
        errors = [error(a, t) for a, t in zip(found[method], truths)]
        logs = [abs(a.log_evidence - t.log_evidence) for a, t in zip(found[method], truths)]
        right = [
            int(a.marginals[v].argmax()) == int(t.marginals[v].argmax())
            for a, t in zip(found[method], truths)
            for v in DIAGNOSES
        ]
        share[method] = sum(right) / len(right)
        settled = sum(a.converged for a in found[method])
        print(
            f"{method:16} {statistics.mean(errors):14.3g} {max(errors):9.3g} "
            f"{statistics.mean(logs):17.3g}     {share[method]:10.1%}"
            f"   {settled} of {len(cases)} converged",
            flush=True,
        )

    passed = [
        report(
            "BP converges for every patient",
            all(a.converged for a in found["BP"]),
            f"{sum(a.converged for a in found['BP'])} of {len(cases)}",
        )
    ]
    gap = max(
        float((a.marginals[v] - b.marginals[v]).abs().max())
        for a, b in zip(found["BP"], found["EP"])
        for v in a.marginals
    )
    passed.append(
        report("EP is BP on discrete programs", gap < SAME, f"largest difference {gap:.1e}")
    )
    for other in ("alpha 1/2", "alpha 2"):
        wins = sum(error(a, t) < error(b, t) for a, b, t in zip(found["BP"], found[other], truths))
        passed.append(
            report(
                f"marginals of BP are nearer than those of {other}",
                2 * wins > len(cases),
                f"{wins} of {len(cases)} patients",
            )
        )
    passed.append(
        report(
            f"BP's most likely states of diagnoses are the exact ones in {AGREE:.0%}",
            share["BP"] >= AGREE,
            f"{share['BP']:.1%}",
        )
    )
    return all(passed)


if __name__ == "__main__":
    main()
