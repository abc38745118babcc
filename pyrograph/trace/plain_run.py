"""A plain run of the program: Pyro's own log density at a point, to check the graph against.

The point is drawn from the prior; where the program makes no sense at a draw (a log of a negative
difference, a matrix that is not positive definite) another one is tried.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyrograph.errors import (
    InvalidProgram,
    NonFiniteDensity,
    OptionError,
    PyrographError,
    RandomDrawError,
    ShapeMismatch,
    SubsampleError,
    UnsupportedOperation,
)
from pyrograph.trace.sites import JACOBIAN, draw_apart, is_latent, refuse_flow, tensor_of
from pyrograph.trace.supports import support_of, transform_of

#: Draws from the prior that are tried before a program is given up.
PRIOR_DRAWS = 20


@dataclass(frozen=True)
class Point:
    """A plain run of the program, in the program's and in the graph's space.

    Attributes:
        values: of the latent sites, in the program's space.
        free: the same in the graph's space.
        log_probs: Pyro's log density of every statement (after scale and mask), and under
            ``"<site>:jacobian"`` the log Jacobians.
    """

    values: dict[str, Tensor]
    free: dict[str, Tensor]
    log_probs: dict[str, Tensor]

    @property
    def log_prob(self) -> Tensor:
        return sum(self.log_probs.values(), torch.zeros((), dtype=torch.float64, device="cpu"))


def refuse_unscored(msg: dict) -> None:
    """Sites whose draw is only a part of the density, or none of it."""
    if msg["infer"] and msg["infer"].get("_do_not_trace"):
        raise RandomDrawError(
            f'site "{msg["name"]}" is drawn but has no density in the program (as under '
            f"ConjugateReparam), so the program is not a fixed function of its latents. Leave that "
            f"reparameterisation out."
        )
    if msg["infer"] and msg["infer"].get("_enumerate_dim") is not None:
        raise UnsupportedOperation(
            f'site "{msg["name"]}" has all its states at once under poutine.enum. Give the program '
            f"without that handler: a discrete site is a node of the graph."
        )
    for frame in msg["cond_indep_stack"]:
        if frame.full_size is not None and frame.full_size != frame.size:
            raise SubsampleError(
                f'statement "{msg["name"]}": plate "{frame.name}" is subsampled ({frame.size} of '
                f"{frame.full_size}), so its structure is that of one minibatch. Trace the full "
                f'plate: pyro.plate("{frame.name}", {frame.full_size}) without subsample_size.'
            )


def refuse_empty_plate(msg: dict) -> None:
    """Raise for a plate of no elements, which Pyro divides by.

    Args:
        msg: of the statement by which a plate picks its elements.

    Raises:
        InvalidProgram: it has none.
    """
    if msg["fn"].size == 0:
        name = msg["name"]
        raise InvalidProgram(
            f'plate "{name}" has size 0, for which Pyro has no scale. Leave the plate and what is '
            f"in it out where there are no elements: if size > 0, then with pyro.plate("
            f'"{name}", size).'
        )


class _Draw(Messenger):
    """Draws the latent sites, holds the fixed ones, and remembers what it did.

    Under ``unconstrained`` a draw is mapped to the reals and back, so that rounding at the edge of
    a support (a sparse Dirichlet's zeros) is the same for Pyro and for the graph.
    """

    def __init__(
        self, fixed: Mapping[str, Tensor], unconstrained: bool, apart_from: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self.fixed, self.unconstrained, self.apart_from = fixed, unconstrained, apart_from
        self.last: str | None = None
        self.free: dict[str, Tensor] = {}
        self.log_jacobians: dict[str, Tensor] = {}
        self.trace = poutine.Trace()

    def _pyro_post_sample(self, msg: dict) -> None:
        self.last = msg["name"]

    def _pyro_sample(self, msg: dict) -> None:
        if site_is_subsample(msg):
            return refuse_empty_plate(msg)
        refuse_unscored(msg)
        if not is_latent(msg):
            return
        name, fn = msg["name"], msg["fn"]
        if name in self.fixed:
            value = self.free[name] = check_fixed(name, self.fixed[name], fn)
        else:
            value = self.free[name] = draw_apart(fn, name, self.apart_from.get(name))
            if self.unconstrained and not support_of(fn, name).is_discrete:
                transform = transform_of(support_of(fn, name), name, fn)
                free = self.free[name] = transform.inv(value)
                value = transform(free)
                log_jacobian = transform.log_abs_det_jacobian(free, value)
                self.log_jacobians[name + JACOBIAN] = log_jacobian.sum()
        msg["value"] = value
        msg["done"] = True


def check_fixed(name: str, value: object, fn: Any) -> Tensor:
    value = tensor_of(value)
    shape = fn.batch_shape + fn.event_shape
    if value.shape != shape:
        raise ShapeMismatch(
            f'fixed["{name}"] has shape {tuple(value.shape)}; the site has shape {tuple(shape)}.'
        )
    return value


def retried(run: Callable[[], Any], last_statement: Callable[[], str | None]) -> Any:
    """``run`` at the first draw from the prior where the program makes sense.

    A log of a difference, a matrix that is not always positive definite: programs may fail at
    some draws and be sound where the posterior lies.

    Raises:
        InvalidProgram: it fails at all of them.
    """
    for _ in range(PRIOR_DRAWS):
        try:
            return run()
        except (ValueError, torch.linalg.LinAlgError) as error:
            if isinstance(error, PyrographError):
                raise
            failure = error
    after = last_statement()
    where = "before its first statement" if after is None else f'after statement "{after}"'
    raise InvalidProgram(
        f"the program fails {where} at each of {PRIOR_DRAWS} draws from its prior: {failure} "
        f"Mend the statement that follows, or give the prior less room where it makes no sense."
    ) from failure


def plain_run(
    model: Callable,
    args: tuple,
    kwargs: dict,
    fixed: Mapping[str, Tensor],
    unconstrained: bool,
    apart_from: Mapping[str, Tensor] | None = None,
) -> Point:
    """A point and Pyro's log densities there, by Pyro's own code; finite ones if they are found.

    Args:
        apart_from: values whose discrete nodes are to be in other states here.

    Raises:
        InvalidProgram: the program fails at every draw.
        OptionError: ``fixed`` names a site that is not there.
    """
    drawing = _Draw(fixed, unconstrained, apart_from or {})
    for _ in range(PRIOR_DRAWS):
        point = retried(lambda: _run_once(model, args, kwargs, drawing), lambda: drawing.last)
        if bool(point.log_prob.isfinite()):
            break
    else:
        _refuse_endless_data(drawing.trace)
    for name in fixed:
        if name not in point.values:
            raise OptionError(
                f'fixed names "{name}", which is not a latent site of the program; its latent '
                f"sites are {', '.join(point.values) or 'none'}."
            )
    return point


def _run_once(model: Callable, args: tuple, kwargs: dict, drawing: _Draw) -> Point:
    drawing.free, drawing.log_jacobians = {}, {}
    try:
        with torch.no_grad(), drawing:
            trace = poutine.trace(model).get_trace(*args, **kwargs)
            _score(trace)
            _refuse_spread(trace)
            drawing.trace = trace
    except RuntimeError as error:
        if "does not require grad" not in str(error):
            raise
        raise UnsupportedOperation(
            f'the program takes derivatives after statement "{drawing.last}", which cannot be '
            "followed: write what they compute in plain operations."
        ) from error
    values = {name: trace.nodes[name]["value"] for name in drawing.free}
    return Point(values, drawing.free, _log_probs(trace) | drawing.log_jacobians)


def _score(trace: poutine.Trace) -> None:
    """Pyro's log densities, in the trace. Those that are no numbers lead to another draw, or to an
    error: Pyro's warning of each says nothing to the user.

    Raises:
        UnsupportedSite: a latent site has one only where it was drawn.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Encountered (NaN|inf)", UserWarning)
            trace.compute_log_prob()
    except (KeyError, NotImplementedError) as error:
        for name, site in trace.nodes.items():  # scored in this order
            if site["type"] == "sample" and "log_prob" not in site:
                if not site["is_observed"]:
                    refuse_flow(site["fn"], name, error)
                break
        raise


def _refuse_spread(trace: poutine.Trace) -> None:
    """Statements with more terms than they have distributions or values: data ``[3, 1]`` of three
    sites would be compared with each of them. And observed ones with terms that their plates do not
    have, in dimensions that distribution and values do not share.

    Raises:
        ShapeMismatch: naming the first one.
    """
    for name, site in trace.nodes.items():
        if site["type"] != "sample" or site_is_subsample(site):
            continue
        if site["infer"] and site["infer"].get("_deterministic"):  # of any shape, and no density
            continue
        terms = torch.Size(getattr(site["log_prob"], "shape", ()))  # masked whole it is a number
        batch = torch.Size(site["fn"].batch_shape)  # of some a plain tuple
        value, event = torch.Size(getattr(site["value"], "shape", ())), site["fn"].event_shape
        value = torch.Size() if 0 in event else value[: len(value) - len(event)]  # of a factor
        plates = {f.dim: f for f in site["cond_indep_stack"] if f.vectorized}
        is_spread = terms.numel() > max(batch.numel(), value.numel())
        if not is_spread and not (plates and site["is_observed"]):
            continue
        # what no plate has is meant where distribution and values both have it
        sizes = {dim: plate.size for dim, plate in plates.items()}
        outside = [d for d in range(-len(terms), 0) if terms[d] > sizes.get(d, 1)]
        is_odd = any(-d > len(own) or own[d] == 1 for d in outside for own in (batch, value))
        if not (is_spread or is_odd):
            continue
        within = f" within {', '.join(plate.name for plate in plates.values())}" if plates else ""
        text = f'statement "{name}" has log densities of shape {list(terms)}{within}, '
        if is_spread:
            text += (
                f"from a distribution of batch shape {list(batch)} and values {list(value)}, "
                "beside their events: they are spread over each other. Give data and masks the "
                "shape of the distribution."
            )
        else:
            text += (
                "which these do not have. Give data the shape of the plates, further dimensions a "
                "plate or .to_event(), and sum a pyro.factor over them."
            )
        raise ShapeMismatch(text)


def _refuse_endless_data(trace: poutine.Trace) -> None:
    """Observations that are infinite or NaN where their own log densities are, too.

    Raises:
        NonFiniteDensity: naming the first one.
    """
    for name in trace.observation_nodes:
        site, value = trace.nodes[name], trace.nodes[name]["value"]
        if not isinstance(value, Tensor) or not value.numel():
            continue
        log_prob = torch.as_tensor(site["log_prob"], device=value.device)  # masked: 0
        events = (1,) * len(site["fn"].event_shape)
        bad = ~value.isfinite() & ~log_prob.reshape(log_prob.shape + events).isfinite()
        if bool(bad.any()):
            index = bad.nonzero()[0].tolist()
            others = f" (of {bad.numel()} numbers {int(bad.sum())} are infinite or NaN)"
            where = f" at {index}{others}" if index else ""
            found = float(value.expand(bad.shape)[tuple(index)])
            raise NonFiniteDensity(
                f'site "{name}" is observed to be {found}{where}; its log density is then '
                f"{float(log_prob.sum())}. Leave such elements out of the data, or mask them and "
                "put numbers in their place."
            )


def log_probs_at(
    model: Callable, args: tuple, kwargs: dict, values: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Pyro's log densities of all statements at values of the latent sites."""
    held = poutine.condition(model, data=dict(values))
    trace = poutine.trace(held).get_trace(*args, **kwargs)
    trace.compute_log_prob()
    return _log_probs(trace)


def _log_probs(trace: poutine.Trace) -> dict[str, Tensor]:
    return {
        name: torch.as_tensor(site["log_prob_sum"], device="cpu")
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and not site_is_subsample(site)
    }
