"""Reads programs of labels: which collapsed data hang on which labels, and that nothing else does.

At other labels, all elements together, all apart, in few clusters and at random, every statement
must have the density that it should by this reading. Engines ask the same of the best labels that
they found.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pyro.poutine as poutine
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyrograph.distributions import CollapsedMixture, CollapsedRelation
from pyrograph.distributions.labels import by_appearance
from pyrograph.errors import (
    NonFiniteDensity,
    OptionError,
    PyrographError,
    ShapeMismatch,
    UnsupportedFactor,
    UnsupportedSite,
)
from pyrograph.infer.dpvi.labellings.labelled_program import LabelledProgram, Prior
from pyrograph.trace.outer_handlers import with_outer_handlers
from pyrograph.trace.plain_run import refuse_empty_plate
from pyrograph.trace.sites import Site

#: Random labels at which the program is compared with what was read: so many in any number of
#: clusters, and one in each number up to FEW, since programs that count clusters mean a few.
CHECKS, FEW = 2, 8
#: Share by which a score may differ from the log density by rounding, in single and in double.
CHANGED = (1e-3, 1e-6)


def read_labelled(model: Callable, args: tuple, kwargs: dict[str, Any]) -> LabelledProgram | None:
    """The labelled program, or None if no site is a labelling.

    Raises:
        UnsupportedSite: there are other latent sites beside labellings, or collapsed data are not
            observed.
        UnsupportedFactor: a statement reads labels in another way than by collapsed data, or is
            scaled or masked.
        ShapeMismatch: a statement of collapsed data is a batch of several.
        NonFiniteDensity: a statement that reads no labels has no density.
    """
    first = _run(model, args, kwargs)
    latent = {
        name: node
        for name, node in first.nodes.items()
        if node["type"] == "sample" and not node["is_observed"] and not site_is_subsample(node)
    }
    priors = {n: _detached(v["fn"]) for n, v in latent.items() if isinstance(v["fn"], Prior)}
    if not priors:
        return None
    _score(first)
    others = [name for name in latent if name not in priors]
    if others and isinstance(latent[others[0]]["fn"], CollapsedMixture | CollapsedRelation):
        raise UnsupportedSite(
            f'"{others[0]}" has no data: collapsed data are observed, pyro.sample(..., obs=data), '
            "and data yet to come are draws of Predictive at the labels that are found."
        )
    if others:
        raise UnsupportedSite(
            f'site "{others[0]}" stands beside the labels of "{next(iter(priors))}". Labels are '
            "moved by statistics of their clusters alone: sum the other sites out (a component of "
            "pg.distributions integrates over its parameters), or fix them."
        )
    by_value = {id(latent[name]["value"]): name for name in priors}
    mixtures, relations = {}, {}
    for name, node in first.nodes.items():
        if node["type"] != "sample" or not node["is_observed"]:
            continue
        fn = node["fn"]
        if isinstance(fn, CollapsedMixture) and id(fn.z) in by_value:
            mixtures[name] = by_value[id(fn.z)], _detached(fn), node["value"].detach()
        elif isinstance(fn, CollapsedRelation) and {id(fn.rows), id(fn.columns)} <= set(by_value):
            rows, columns = by_value[id(fn.rows)], by_value[id(fn.columns)]
            relations[name] = rows, columns, _detached(fn), node["value"].detach()
    for name in (*priors, *mixtures, *relations):
        _refuse_scaled(name, first.nodes[name])
    for name in (*mixtures, *relations):
        _refuse_batched(name, first.nodes[name])
    statements = _statements(first)
    densities = {  # in the program's order, in which they are added up
        name: torch.as_tensor(node["log_prob_sum"], device="cpu")
        for name, node in first.nodes.items()
        if name in statements
    }
    others = {n: v for n, v in densities.items() if n not in {*priors, *mixtures, *relations}}
    dtype = functools.reduce(torch.promote_types, (v.dtype for v in densities.values()))
    device = next(iter(priors.values())).alpha.device
    sites = {name: _site(name, latent[name]) for name in priors}
    constant = torch.as_tensor(sum(others.values()), dtype=dtype, device=device)
    found = LabelledProgram(sites, priors, mixtures, relations, others, constant, device)
    for labels in _chosen_labels(sites):
        checked_log_prob(found, model, args, kwargs, labels)
    _refuse_infinite(others)
    return found


def _run(model: Callable, args: tuple, kwargs: dict[str, Any], labels: Mapping | None = None):
    with torch.no_grad(), with_outer_handlers(model) as program, _Plates():
        if labels is not None:
            program = poutine.condition(program, data=labels)
        return poutine.trace(program).get_trace(*args, **kwargs)


@torch.no_grad()
def _score(trace: poutine.Trace) -> None:
    """Pyro's log densities, in the trace."""
    try:
        with warnings.catch_warnings():  # told once, as an error that names the statement
            warnings.filterwarnings("ignore", "Encountered (NaN|inf)", UserWarning)
            trace.compute_log_prob()
    except ValueError as error:  # Pyro's, whose first line names the statement
        cause = error.__cause__
        if not isinstance(cause, PyrographError):
            raise
        raise type(cause)(f"{str(error).splitlines()[0]} {cause}") from cause


def _detached(thing: Any) -> Any:
    """A distribution, or its component, of plain tensors: nothing differentiates scores, and those
    of ``pyro.param`` hold weak references, which are not pickled."""
    found = copy.copy(thing)
    for name, value in vars(thing).items():
        if isinstance(value, Tensor):
            vars(found)[name] = value.detach()
    if hasattr(thing, "component"):
        found.component = _detached(thing.component)
    return found


class _Plates(Messenger):
    """Refuses empty ones."""

    def _pyro_sample(self, msg: dict) -> None:
        if site_is_subsample(msg):
            refuse_empty_plate(msg)


def _refuse_scaled(name: str, node: Mapping[str, Any]) -> None:
    """Statistics of clusters are of whole statements, each counted once."""
    mask = node["mask"]
    whole = mask is None or mask is True or (torch.is_tensor(mask) and bool(mask.all()))
    if not whole or bool(torch.as_tensor(node["scale"], device="cpu").ne(1).any()):
        raise UnsupportedFactor(
            f'"{name}" is scaled or masked (poutine.scale, poutine.mask, a subsampled plate). '
            "Labels are scored by whole statements: leave that out; of data that are not to count, "
            "leave the elements out, or hold cells of a relation out as NaN."
        )


def _refuse_batched(name: str, node: Mapping[str, Any]) -> None:
    """Statistics are of one data set and one set of parameters."""
    shape = tuple(node["log_prob"].shape)
    if shape:
        raise ShapeMismatch(
            f'"{name}" has batch shape {shape}, of a plate, its component\'s parameters or data. '
            "Labels are scored by one data set under one set of parameters per statement: write "
            "one pyro.sample for each."
        )


def checked_log_prob(
    program: LabelledProgram,
    model: Callable,
    args: tuple,
    kwargs: dict[str, Any],
    labels: Mapping[str, Tensor],
) -> Tensor:
    """Log density ``[1]`` at labels ``{site: [n]}``, where all statements have the densities that
    the reading says.

    Raises:
        UnsupportedFactor: one of them has another, or the program fails.
        ShapeMismatch: it is a batch of several.
        NonFiniteDensity: collapsed data have none.
    """
    try:
        run = _run(model, args, kwargs, labels)
        _score(run)
    except NonFiniteDensity:
        raise
    except (IndexError, RuntimeError, ValueError) as error:
        raise UnsupportedFactor(
            f"the program fails at other labels than those it drew, so that it reads them in "
            f"another way than by CollapsedMixture or CollapsedRelation: {error}"
        ) from error
    by_reading = program.log_probs({name: z.unsqueeze(0) for name, z in labels.items()})
    expected = {**program.others, **by_reading}
    for name in sorted(_statements(run) | expected.keys()):
        node = run.nodes.get(name)
        known = node is not None and name in expected
        if known and _agree(node["log_prob_sum"], expected[name]):
            continue
        if node is not None and isinstance(node["fn"], CollapsedMixture | CollapsedRelation):
            _refuse_batched(name, node)  # plates expand the labels, which are then another tensor
        why = "is no CollapsedMixture or CollapsedRelation of them"
        if name in by_reading:
            why = "not as its clusters alone: its parameters or its data read labels"
        raise UnsupportedFactor(
            f'"{name}" changes with the labels, and {why}. Only collapsed data can be '
            "scored label by label. (Or the program draws random numbers outside "
            "pyro.sample, or changed while the engine ran: pass in what it reads.)"
        )
    return sum(by_reading.values(), start=program.constant)


def refuse_changed(program: LabelledProgram, now: Tensor, score: Tensor) -> None:
    """Whether labels of log density ``now`` still have the score that they have by statistics,
    which are of the data and parameters when the program was read.

    Raises:
        UnsupportedFactor: they have another.
    """
    rtol = CHANGED[now.dtype == torch.float64]
    if not torch.allclose(now.double().cpu(), score.double().cpu(), rtol=rtol, atol=rtol):
        data = ", ".join(f'"{n}"' for n in (*program.mixtures, *program.relations))
        raise UnsupportedFactor(
            f"the labels found have log density {float(now):.6g}, and {float(score):.6g} by the "
            f"data {data} and the parameters that the engine was set up with: these changed while "
            "it ran. Pass in what the program reads, and start a new engine after a change."
        )


def _refuse_infinite(others: Mapping[str, Tensor]) -> None:
    """Whether statements beside the labels have a density at all."""
    for name, value in others.items():
        if not bool(value.isfinite()):
            raise NonFiniteDensity(
                f'"{name}" has log density {float(value)} at all labels that were tried. Either '
                "its data are impossible, or it rules out most labels, which only collapsed data "
                "may do: leave it out."
            )


def _chosen_labels(sites: Mapping[str, Site]) -> list[dict[str, Tensor]]:
    """Labels ``{site: [n]}``: all elements together, all apart, in few clusters, and at random."""
    generator = torch.Generator().manual_seed(0)

    def random(n: int) -> Tensor:
        return by_appearance(torch.randint(max(1, n // 2), (n,), generator=generator, device="cpu"))

    def in_clusters(n: int, k: int) -> Tensor:
        return by_appearance(torch.randperm(n, generator=generator, device="cpu") % k)

    def every(labels_of: Callable[[int], Tensor]) -> dict[str, Tensor]:
        return {
            name: labels_of(site.event_shape[0]).to(site.device, site.dtype)
            for name, site in sites.items()
        }

    together = every(lambda n: torch.zeros(n, dtype=torch.int64, device="cpu"))
    apart = every(lambda n: torch.arange(n, device="cpu"))
    most = min(FEW, max(site.event_shape[0] for site in sites.values()) - 1)
    few = [every(lambda n, k=k: in_clusters(n, k)) for k in range(2, most + 1)]
    return [together, apart, *few, *(every(random) for _ in range(CHECKS))]


def _statements(trace) -> set[str]:
    return {
        name
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and not site_is_subsample(node)
    }


def _agree(ours: Tensor, theirs: Tensor) -> bool:
    """Equal but for rounding; both infinite alike."""
    rtol = 1e-4 if ours.dtype == torch.float32 else 1e-8
    ours, theirs = ours.double().sum(), theirs.double().sum()
    return bool(torch.isclose(ours, theirs, rtol=rtol, atol=rtol, equal_nan=True))


def _site(name: str, node: dict[str, Any]) -> Site:
    value = node["value"]
    if value.dim() != 1:
        raise OptionError(
            f'labels "{name}" have shape {tuple(value.shape)}: one labelling at a time, [n]'
        )
    shape = tuple(value.shape)
    return Site(
        name=name,
        batch_shape=(),
        event_shape=shape,
        constrained_event_shape=shape,
        support=node["fn"].support,
        is_discrete=True,
        enumeration=None,
        dtype=value.dtype,
        device=value.device,
        plates=(),
        distribution=type(node["fn"]).__name__,
    )
