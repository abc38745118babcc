"""Run a Pyro program once and read its statements as element-wise log densities on the tape.

A :class:`ProgramReader` stands outside all other handlers, so conditioned, intervened and
reparameterised programs are read as Pyro sees them: it puts tracked leaves at the latent sites
(mapped from unconstrained space where asked, with the log Jacobian as a statement of its own)
and takes every statement's un-summed log density after scale and mask.

The program runs twice: once plainly, validated, which yields a point and Pyro's own log density
there for the check of the finished graph; once under the recorder, at another point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask, sum_rightmost
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyrograph.errors import (
    InvalidProgram,
    OptionError,
    PyrographError,
    ShapeMismatch,
    StructureError,
    SubsampleError,
)
from pyrograph.trace.record import Recorder, recording
from pyrograph.trace.sites import (
    Site,
    delta_density,
    draw,
    enumeration,
    is_delta,
    is_latent,
    name_of,
    transform_of,
)
from pyrograph.trace.tape import Tape, merge

#: Draws from the prior that are tried before a program is given up.
PRIOR_DRAWS = 20


@dataclass(frozen=True)
class Statement:
    """The log density of one statement: ids ``[N]`` (0 = constant) and values ``[N]``."""

    name: str
    ids: Tensor
    values: Tensor


@dataclass(frozen=True)
class Reading:
    """A program read once.

    Attributes:
        sites: latent sites in program order.
        fixed: values of the sites held fixed.
        tape: the merged record.
        statements: in program order; Jacobians follow their site.
        leaves: first leaf of every free site.
        constrained: ids of every free site's value in the program's space.
    """

    sites: tuple[Site, ...]
    fixed: dict[str, Tensor]
    tape: Tape
    statements: tuple[Statement, ...]
    leaves: dict[str, int]
    constrained: dict[str, Tensor]


@dataclass(frozen=True)
class Point:
    """A plain run of the program: its latent values and Pyro's log density there."""

    values: dict[str, Tensor]
    log_prob: Tensor
    log_jacobian: Tensor
    unconstrained: dict[str, Tensor]


def _is_subsample(msg: dict) -> bool:
    return type(msg["fn"]).__name__ == "_Subsample"


def _refuse_subsampling(msg: dict) -> None:
    for frame in msg["cond_indep_stack"]:
        if frame.full_size is not None and frame.full_size != frame.size:
            raise SubsampleError(
                f'statement "{msg["name"]}": plate "{frame.name}" is subsampled ({frame.size} of '
                f"{frame.full_size}), so its structure is that of one minibatch. Trace the full "
                f'plate: pyro.plate("{frame.name}", {frame.full_size}) without subsample_size.'
            )


@contextmanager
def _validation_off() -> Iterator[None]:
    """Distributions made meanwhile do not validate, even if the program asks them to."""
    original = torch.distributions.Distribution.__init__

    def without_validation(self, *args, **kwargs):
        original(self, *args[:2], **{**kwargs, "validate_args": False})

    torch.distributions.Distribution.__init__ = without_validation
    try:
        yield
    finally:
        torch.distributions.Distribution.__init__ = original


@contextmanager
def _unvalidated(fn: object) -> Iterator[None]:
    """Validation would read latents in Python; the plain run has validated already."""
    chain, d = [], fn
    while d is not None:
        chain.append((d, d.__dict__.get("_validate_args")))
        d._validate_args = False
        d = getattr(d, "base_dist", None)
    try:
        yield
    finally:
        for d, old in chain:
            if old is None:
                d.__dict__.pop("_validate_args", None)
            else:
                d._validate_args = old


class _Draw(Messenger):
    """Fills latent sites that have no ``sample`` method, and holds the fixed ones."""

    def __init__(self, fixed: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.fixed = fixed
        self.last: str | None = None

    def _pyro_post_sample(self, msg: dict) -> None:
        self.last = msg["name"]

    def _pyro_sample(self, msg: dict) -> None:
        if _is_subsample(msg):
            return
        _refuse_subsampling(msg)
        if not is_latent(msg):
            return
        name = msg["name"]
        if name in self.fixed:
            msg["value"] = _check_fixed(name, self.fixed[name], msg["fn"])
        else:
            msg["value"] = draw(msg["fn"], name)
        msg["done"] = True


def _check_fixed(name: str, value: object, fn: Any) -> Tensor:
    value = torch.as_tensor(value)
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
    model: Callable, args: tuple, kwargs: dict, fixed: Mapping[str, Tensor], unconstrained: bool
) -> Point:
    """A point and Pyro's log density there (plus log Jacobians), by Pyro's own code."""
    drawing = _Draw(fixed)
    return retried(
        lambda: _plain_run(model, args, kwargs, drawing, unconstrained), lambda: drawing.last
    )


def _plain_run(
    model: Callable, args: tuple, kwargs: dict, drawing: _Draw, unconstrained: bool
) -> Point:
    fixed = drawing.fixed
    with torch.no_grad(), drawing:
        trace = poutine.trace(model).get_trace(*args, **kwargs)
        log_prob = torch.as_tensor(trace.log_prob_sum())
        values, log_jacobian, free = {}, torch.zeros(()), {}
        for name, site in trace.nodes.items():
            if site["type"] != "sample" or site["is_observed"] or _is_subsample(site):
                continue
            if is_delta(site["fn"]):
                continue
            values[name] = site["value"]
            if unconstrained and not site["fn"].support.is_discrete and name not in fixed:
                transform = transform_of(site["fn"].support, name, site["fn"])
                free[name] = transform.inv(site["value"])
                jacobian = transform.log_abs_det_jacobian(free[name], transform(free[name]))
                log_jacobian = log_jacobian + jacobian.sum()
        for name in fixed:
            if name not in values:
                raise OptionError(
                    f'fixed names "{name}", which is not a latent site of the program; its latent '
                    f"sites are {', '.join(values) or 'none'}."
                )
    return Point(values, log_prob, log_jacobian, values | free)


class ProgramReader(Messenger):
    """Puts leaves at latent sites and collects the statements' log densities."""

    def __init__(
        self, recorder: Recorder, fixed: Mapping[str, Tensor], unconstrained: bool
    ) -> None:
        super().__init__()
        self.recorder, self.fixed, self.unconstrained = recorder, fixed, unconstrained
        self.sites: list[Site] = []
        self.held: dict[str, Tensor] = {}
        self.statements: list[tuple[str, Tensor]] = []
        self.leaves: dict[str, int] = {}
        self.constrained: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: dict) -> None:
        if _is_subsample(msg):
            return
        _refuse_subsampling(msg)
        if not is_latent(msg):
            return
        name, fn, rec = msg["name"], msg["fn"], self.recorder
        if name in self.fixed:
            value = _check_fixed(name, self.fixed[name], fn)
            self.held[name] = value
            self._add_site(msg, value, tuple(fn.event_shape))
        else:
            rec.paused = True
            try:
                value = draw(fn, name)
            finally:
                rec.paused = False
            self.leaves[name] = rec.num_leaves
            if self.unconstrained and not fn.support.is_discrete:
                value = self._free_leaf(msg, value)
            else:
                value = rec.leaf(name, value)
                self._add_site(msg, value, tuple(fn.event_shape))
            self.constrained[name] = value
        msg["value"] = value
        msg["done"] = True

    def _free_leaf(self, msg: dict, value: Tensor) -> Tensor:
        """A leaf in unconstrained space, its image, and the log Jacobian as a statement."""
        name, fn, rec = msg["name"], msg["fn"], self.recorder
        transform = transform_of(fn.support, name, fn)
        rec.paused = True
        try:
            free = transform.inv(value)
        finally:
            rec.paused = False
        batch = len(fn.batch_shape)
        free = rec.leaf(name, free)
        self._add_site(msg, free, tuple(free.shape[batch:]))
        rec.statement = f"{name}:jacobian"
        value = transform(free)
        jacobian = transform.log_abs_det_jacobian(free, value)
        jacobian = sum_rightmost(jacobian, jacobian.dim() - batch)
        if rec.is_latent(jacobian):
            self.statements.append((rec.statement, jacobian))
        rec.statement = None
        return value

    def _add_site(self, msg: dict, value: Tensor, event_shape: tuple[int, ...]) -> None:
        fn, rec = msg["fn"], self.recorder
        rec.paused = True
        try:
            support = fn.support
            latent_support = any(rec.is_latent(v) for v in vars(_innermost(support)).values())
            self.sites.append(
                Site(
                    name=msg["name"],
                    batch_shape=tuple(fn.batch_shape),
                    event_shape=event_shape,
                    constrained_event_shape=tuple(fn.event_shape),
                    support=None if latent_support else support,
                    is_discrete=bool(support.is_discrete),
                    enumeration=enumeration(fn) if support.is_discrete else None,
                    dtype=value.dtype,
                    device=value.device,
                    plates=tuple(
                        (f.name, f.dim, f.size) for f in msg["cond_indep_stack"] if f.vectorized
                    ),
                    distribution=name_of(fn),
                )
            )
        finally:
            rec.paused = False

    def _pyro_post_sample(self, msg: dict) -> None:
        name, rec = msg["name"], self.recorder
        if _is_subsample(msg) or msg["mask"] is False or msg["infer"].get("_deterministic"):
            return
        rec.statement = name
        log_prob = delta_density(msg)
        if log_prob is None:
            with _unvalidated(msg["fn"]):
                log_prob = msg["fn"].log_prob(msg["value"], *msg["args"], **msg["kwargs"])
        log_prob = scale_and_mask(log_prob, msg["scale"], msg["mask"])
        self.statements.append((name, log_prob))
        rec.statement, rec.last_statement = None, name


def _innermost(support: Any) -> Any:
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support


def read_program(
    model: Callable, args: tuple, kwargs: dict, fixed: Mapping[str, Tensor], unconstrained: bool
) -> Reading:
    """Record the program at a fresh point; see the module's text."""
    last: list[str | None] = [None]
    return retried(
        lambda: _read_program(model, args, kwargs, fixed, unconstrained, last), lambda: last[0]
    )


def _read_program(
    model: Callable,
    args: tuple,
    kwargs: dict,
    fixed: Mapping[str, Tensor],
    unconstrained: bool,
    last: list[str | None],
) -> Reading:
    """One attempt; ``last[0]`` is left at the last statement that was read.

    Raises:
        StructureError: (a subclass) where the structure cannot be read.
    """
    with pyro.validation_enabled(False), _validation_off(), recording() as recorder:
        reader = ProgramReader(recorder, fixed, unconstrained)
        try:
            with reader:
                model(*args, **kwargs)
        finally:
            last[0] = recorder.last_statement
        statements = []
        names = set()
        for name, log_prob in reader.statements:
            if name in names:
                raise StructureError(f'two statements are called "{name}"; names must differ.')
            names.add(name)
            ids = recorder.ids_or_zero(log_prob).reshape(-1).cpu()
            statements.append((name, ids, log_prob.detach().reshape(-1).cpu()))
        constrained = {n: recorder.ids_or_zero(v).cpu() for n, v in reader.constrained.items()}
    tape, renumber = merge(recorder.steps)
    return Reading(
        sites=tuple(reader.sites),
        fixed=reader.held,
        tape=tape,
        statements=tuple(
            Statement(name, renumber(ids), values.clone()) for name, ids, values in statements
        ),
        leaves=reader.leaves,
        constrained={n: renumber(ids) for n, ids in constrained.items()},
    )
