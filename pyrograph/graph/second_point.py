"""Whether a graph is its program: both are evaluated at a second point, by statement."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout

import torch
from torch import Tensor

from pyrograph.errors import (
    InvalidProgram,
    PyrographWarning,
    RandomDrawError,
    VerificationError,
)
from pyrograph.graph.blame import statement_sums
from pyrograph.graph.factor_graph import FactorGraph
from pyrograph.trace.plain_run import Point
from pyrograph.trace.program import text_decides
from pyrograph.trace.reading import Reading
from pyrograph.trace.rules.fallback import replay_dense

#: Runs of a program that draws random numbers outside ``pyro.sample``, or prints latents: do they
#: matter?
REPEATS = 16
#: Statements that a message names.
LISTED = 5
#: Rounding of a log density that changes nothing.
HARMLESS = 1e-3
#: Multiples of a log density that are differentiated: a backward that clips is not linear.
SCALES = (1.0, 2.0**20)
#: Pyro rounds otherwise than the graph, by up to so many times what the graph loses to rounding.
ROUNDED_ALIKE = 8.0
#: Gradients are this much less precise than densities.
GRADIENT_SLACK = 100.0


@torch.no_grad()
def refuse_other_densities(graph: FactorGraph, point: Point, reading: Reading) -> None:
    """A wrong rule, or Python state that followed a latent's value, shows at another point."""
    values = {s.name: point.free[s.name] for s in graph.free_sites}
    theirs = float(point.log_prob)
    ours = {"the traced graph gives log density": float(graph.log_prob(values))}
    if graph.is_split:
        total = float(graph.sum_of_factors(values))
        graph._programs.pop("terms", None)  # large, and kept for those who ask again
        if not _is_rounding(graph, values, total - theirs):
            ours["the graph's factors sum up to"] = total
    # beside one statement of great size the total does not tell of others
    blamed = _differing_statements(graph, values, point)
    for what, value in ours.items():
        if blamed or not _agree(_slack(graph), value, theirs):
            where = f" They differ in statement {_listed(blamed)}." if blamed else ""
            message = f"{what} {value:.10g} at a second point, Pyro gives {theirs:.10g}.{where} "
            cancelling = _cancelling(graph, values)
            if cancelling:
                raise VerificationError(
                    f"{message}In float64 the factors add up to the density: terms of statement "
                    f"{_listed(cancelling)}, far larger than their sum, cancel in "
                    f"{graph.lowest_factor_precision}. Use float64 (data and parameters of it, or "
                    "torch.set_default_dtype), or sample deviations and add the location."
                )
            if reading.random_draws:
                raise RandomDrawError(message + _advice(reading.random_draws))
            if reading.printed:
                raise text_decides(
                    f"is no fixed function of its latents ({message[:-1]})", reading.printed
                )
            raise VerificationError(
                f"{message}The program is not a fixed function of its latents: it draws random "
                f"numbers outside pyro.sample, keeps state between runs, changes a tensor in place "
                f"after a statement used it (write mask = mask | new in the place of mask |= new), "
                f"or reads a latent's value in a way that was not caught. Please remove that (or "
                f"report it)."
            )
    _verify_together(graph, values, reading)


def _differing_statements(graph: FactorGraph, values: dict[str, Tensor], point: Point) -> list[str]:
    """Statements of another density than Pyro's, beyond what rounding makes of their terms."""
    names = [s.name for s in graph._reading.statements]
    zero = torch.zeros((), dtype=torch.float64, device="cpu")
    theirs = [point.log_probs.get(name, zero) for name in names]
    ours = statement_sums(graph, values)
    slack = _slack(graph)

    def differ(k: int, rounding: float = 0.0) -> bool:
        mine = float(ours[k].to(theirs[k].dtype))  # numbers of 16 bits are infinite early
        return not _agree(slack, mine, float(theirs[k]), rounding)

    found = [k for k in range(len(names)) if differ(k)]
    if not found:
        return []
    sizes = statement_sums(graph, values, of_sizes=True).nan_to_num(0.0, 0.0)
    fine = graph.to(dtype=torch.float64)
    exact = {n: v.double() if v.is_floating_point() else v for n, v in values.items()}
    lost = (ours - statement_sums(fine, exact)).abs()  # by terms that cancel in an element
    lost = ROUNDED_ALIKE * lost.nan_to_num(0.0, 0.0) / slack
    return [f'"{names[k]}"' for k in found if differ(k, max(float(sizes[k]), float(lost[k])))]


def _verify_together(graph: FactorGraph, values: dict[str, Tensor], reading: Reading) -> None:
    """Operations without a rule are called for many particles at once: each must get its own."""
    steps = (step.rule for step in reading.tape.steps)
    without_rule = sorted({str(rule.func) for rule in steps if rule.replay is replay_dense})
    if not without_rule:
        return
    alone = float(graph.log_prob(values))
    twice = {name: value.expand(2, *value.shape) for name, value in values.items()}
    for together in graph.log_prob(twice).tolist():
        if not _agree(_slack(graph), together, alone):
            raise VerificationError(
                f"the traced graph gives log density {alone:.10g} at a second point, "
                f"{together:.10g} there where two particles are evaluated together. An operation "
                f"without a rule mixes them up under torch.func.vmap: {', '.join(without_rule)}. "
                f"Write what it computes in plain operations (or report it)."
            )


def _is_rounding(graph: FactorGraph, values: dict[str, Tensor], difference: float) -> bool:
    """Whether it is what double precision leaves of terms far larger than their sum, and small."""
    if not abs(difference) <= HARMLESS or graph.lowest_factor_precision is not torch.float64:
        return False
    x = graph.flatten({name: value[None] for name, value in values.items()})
    terms = (group.log_prob(graph.local_values(group, x)) for group in graph.factors)
    size = sum(float(term.abs().sum()) for term in terms)
    return abs(difference) <= torch.finfo(torch.float64).eps * size


def _cancelling(graph: FactorGraph, values: dict[str, Tensor]) -> list[str]:
    """Statements whose factors are off by rounding alone: in double precision all is right."""
    if not graph.is_split or graph.lowest_factor_precision is torch.float64:
        return []
    fine = graph.to(dtype=torch.float64)
    exact = {n: v.double() if v.is_floating_point() else v for n, v in values.items()}
    if not _agree(_slack(fine), float(fine.sum_of_factors(exact)), float(fine.log_prob(exact))):
        return []
    slack = _slack(graph)
    sums: dict[str, list[float]] = {}
    for k, (own, point) in enumerate(((graph, values), (fine, exact))):
        x = own.flatten({name: value[None] for name, value in point.items()})
        for group in own.factors:
            total = float(group.log_prob(own.local_values(group, x)).sum())
            sums.setdefault(group.name, [0.0, 0.0])[k] += total
    return [f'"{name}"' for name, both in sums.items() if not _agree(slack, *both)]


def _agree(slack: float, ours: float, theirs: float, size: float = 0.0) -> bool:
    """Equal but for rounding; both infinite or NaN alike.

    Args:
        slack: see :func:`_slack`.
        size: of the terms, where it is known.
    """
    if not (math.isfinite(ours) and math.isfinite(theirs)):
        return ours == theirs or (math.isnan(ours) and math.isnan(theirs))
    size = max(abs(theirs), size if math.isfinite(size) else 0.0)
    return abs(ours - theirs) <= slack * (1.0 + size)


def _slack(graph: FactorGraph) -> float:
    """Relative difference that rounding may make, which grows with the number of terms."""
    return _precision(graph.lowest_precision) * max(1.0, graph.num_factors**0.5 / 100)


def _precision(dtype: torch.dtype) -> float:
    """Relative difference that rounding may make; of 16 bits a few of the last one."""
    if dtype is torch.float64:
        return 1e-8
    return max(1e-4, 8 * torch.finfo(dtype).eps)


def warn_of_functions(
    graph: FactorGraph, reading: Reading, run: Callable[..., dict[str, Tensor]], point: Point
) -> None:
    """Tells of Functions where the program's gradient is not that of its log density.

    Args:
        run: the program's log densities by statement, at values of its latent sites.
    """
    free = {s.name: point.free[s.name].detach().clone() for s in graph.free_sites}
    moved = [free[s.name].requires_grad_() for s in graph.free_sites if not s.is_discrete]

    def gradients(total: Tensor, scale: float) -> Tensor:
        grads = torch.autograd.grad(total * scale, moved, materialize_grads=True)
        return torch.cat([g.reshape(-1).double() for g in grads]) / scale

    theirs, ours = [], []
    largest = min(torch.finfo(t.dtype).max for t in moved) ** 0.25
    with torch.enable_grad():
        for scale in SCALES:
            scale = min(scale, largest)
            # anew each time: a backward may let go of what it has used
            rows = graph.constrain({name: value[None] for name, value in free.items()})
            log_probs = run(point.values | {name: value[0] for name, value in rows.items()})
            sums = zip(reading.statements, statement_sums(graph, free), strict=True)
            total = sum(total for s, total in sums if s.name in log_probs)
            try:
                theirs.append(gradients(sum(log_probs.values()), scale))
            except Exception:  # the user's own code: a backward that fails is no other gradient
                return
            ours.append(gradients(total, scale))
    theirs, ours = torch.cat(theirs), torch.cat(ours)
    finite = theirs.isfinite()
    limit = GRADIENT_SLACK * _precision(graph.lowest_precision) * (1.0 + theirs[finite].norm())
    if not bool((ours - theirs)[finite].norm() <= limit):
        warnings.warn(
            f"the program's gradient at a second point is not that of its log density, which is "
            f"the graph's: a torch.autograd.Function seems to have a backward of its own "
            f"({'; '.join(reading.functions)}), or something is detached, and graphs "
            f"differentiate what is computed. Densities are right. For an engine that uses "
            f"gradients write, in plain operations, a function that has the gradient you mean.",
            PyrographWarning,
            stacklevel=3,
        )


@torch.no_grad()
def refuse_random(run: Callable[[], dict[str, Tensor]], random_draws: tuple[str, ...]) -> None:
    """Whether the program has one density at one point, run again and again."""
    first = run()
    for _ in range(REPEATS):
        again = run()
        differ = [
            f'"{name}"'
            for name in first.keys() | again.keys()
            if name not in first or name not in again or not _same(first[name], again[name])
        ]
        if differ:
            raise RandomDrawError(
                f"statement {_listed(sorted(differ))} has other densities in other runs at the "
                f"same latents. {_advice(random_draws)}"
            )


def refuse_text(
    graph: FactorGraph, run: Callable[[Point], Point], point: Point, reading: Reading
) -> None:
    """Whether the text of a latent chooses anything: the graph is compared at several points."""
    for _ in range(REPEATS):
        try:
            with redirect_stdout(io.StringIO()):  # the program's prints have been seen
                point = run(point)
        except (IndexError, InvalidProgram):  # no sense in these states
            continue
        except (KeyError, AttributeError) as error:
            what = f"fails at some draws of its prior ({type(error).__name__}: {error})"
            raise text_decides(what, reading.printed) from error
        refuse_other_densities(graph, point, reading)


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal but for an order of summation that may vary."""
    precision = 1e-10 if a.dtype == torch.float64 else 1e-5
    return bool(torch.isclose(a, b.to(a), rtol=precision, atol=precision, equal_nan=True))


def _listed(names: list[str]) -> str:
    """``"a", "b"``; of a loop's thousand statements the first few."""
    shown = ", ".join(names[:LISTED])
    return shown if len(names) <= LISTED else f"{shown} and {len(names) - LISTED} others"


def _advice(random_draws: tuple[str, ...]) -> str:
    return (
        f"The program draws random numbers outside pyro.sample: {'; '.join(random_draws)}. Draw "
        "them with pyro.sample, or pass them in."
    )
