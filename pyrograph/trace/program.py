"""Run a Pyro program once and read its statements as element-wise log densities on the tape.

A :class:`ProgramReader` stands outside all other handlers, so conditioned, intervened and
reparameterised programs are read as Pyro sees them: it puts tracked leaves at the latent sites
(mapped from unconstrained space where asked, with the log Jacobian as a statement of its own)
and takes every statement's un-summed log density after scale and mask.

It runs once plainly before, at another point (``plain_run.py``): the check of the finished graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from pyro.distributions.util import scale_and_mask, sum_rightmost
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyrograph.errors import (
    ControlFlowError,
    PyrographError,
    StructureError,
    UnsupportedOperation,
)
from pyrograph.trace.loops import LoopStatements, log_probs
from pyrograph.trace.own_backward import functions_watched
from pyrograph.trace.plain_run import check_fixed, refuse_unscored, retried
from pyrograph.trace.reading import Reading, Statement
from pyrograph.trace.record import Recorder, recording
from pyrograph.trace.sites import (
    JACOBIAN,
    STAND_IN,
    STANDS_IN,
    Site,
    delta_density,
    draw_apart,
    enumeration,
    is_latent,
    left_as_it_is,
    periodic_part,
)
from pyrograph.trace.supports import bounds_of, name_of, support_of, transform_of
from pyrograph.trace.tape import merge

LOG_2PI = math.log(2 * math.pi)


class ProgramReader(Messenger):
    """Puts leaves at latent sites and collects the statements' log densities."""

    def __init__(
        self,
        recorder: Recorder,
        fixed: Mapping[str, Tensor],
        unconstrained: bool,
        apart_from: Mapping[str, Tensor],
    ) -> None:
        super().__init__()
        self.recorder, self.fixed, self.unconstrained = recorder, fixed, unconstrained
        self.apart_from = apart_from
        self.sites: list[Site] = []
        self.held: dict[str, Tensor] = {}
        self.statements: list[tuple[str, Tensor | None]] = []  # None: among the loops
        self.loops = LoopStatements()
        self.leaves: dict[str, int] = {}
        self.constrained: dict[str, Tensor] = {}
        self.masked: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: dict) -> None:
        if site_is_subsample(msg):
            return
        refuse_unscored(msg)
        if not is_latent(msg):
            return
        name, fn, rec = msg["name"], msg["fn"], self.recorder
        if name in self.fixed:
            value = check_fixed(name, self.fixed[name], fn)
            self.held[name] = value
            self._add_site(msg, value, tuple(fn.event_shape))
        else:
            with self._looking_at(fn):
                value = draw_apart(fn, name, self.apart_from.get(name))
                is_discrete = support_of(fn, name).is_discrete
            self.leaves[name] = rec.num_leaves
            if self.unconstrained and not is_discrete:
                value = self._free_leaf(msg, value)
            else:
                value = rec.leaf(name, value)
                self._add_site(msg, value, tuple(fn.event_shape))
            self.constrained[name] = value
        msg["value"] = value
        msg["done"] = True

    @contextmanager
    def _looking_at(self, fn: object) -> Iterator[None]:
        """The library's own look at a distribution: nothing of it is recorded, nothing stays."""
        self.recorder.paused = True
        try:
            with left_as_it_is(fn), torch._C._DisableTorchDispatch():  # dispatch takes most of it
                yield
        finally:
            self.recorder.paused = False

    def _free_leaf(self, msg: dict, value: Tensor) -> Tensor:
        """A leaf in unconstrained space, its image, and the log Jacobian as a statement."""
        name, fn, rec = msg["name"], msg["fn"], self.recorder
        transform = transform_of(support_of(fn, name), name, fn)
        rec.paused = True
        try:
            free = transform.inv(value)
        finally:
            rec.paused = False
        batch = len(fn.batch_shape)
        free = rec.leaf(name, free)
        self._add_site(msg, free, tuple(free.shape[batch:]))
        rec.statement = name + JACOBIAN
        value = transform(free)
        jacobian = transform.log_abs_det_jacobian(free, value)
        jacobian = sum_rightmost(jacobian, jacobian.dim() - batch)
        if STANDS_IN in msg["infer"]:  # a density of these numbers, which needs no Jacobian
            is_out = msg["infer"][STANDS_IN].to(free.device)
            normal = sum_rightmost(-0.5 * (free**2 + LOG_2PI), free.dim() - batch)
            jacobian = torch.where(is_out, 0.0, jacobian)
            self.statements.append((name + STAND_IN, torch.where(is_out, normal, 0.0)))
        if rec.is_latent(jacobian):
            self.statements.append((rec.statement, jacobian))
        rec.statement = None
        return value

    def _add_site(self, msg: dict, value: Tensor, event_shape: tuple[int, ...]) -> None:
        fn, rec = msg["fn"], self.recorder
        with self._looking_at(fn):
            support = support_of(fn, msg["name"])
            latent_support = any(rec.is_latent(bound) for bound in bounds_of(support))
            # the states of this draw may not be those of another
            is_listed = bool(support.is_discrete) and not latent_support
            self.sites.append(
                Site(
                    name=msg["name"],
                    batch_shape=tuple(fn.batch_shape),
                    event_shape=event_shape,
                    constrained_event_shape=tuple(fn.event_shape),
                    support=None if latent_support else support,
                    is_discrete=bool(support.is_discrete),
                    enumeration=enumeration(fn) if is_listed else None,
                    dtype=value.dtype,
                    device=value.device,
                    plates=tuple(
                        (f.name, f.dim, f.size) for f in msg["cond_indep_stack"] if f.vectorized
                    ),
                    distribution=name_of(fn),
                    is_periodic=periodic_part(fn) is not None,
                    stands_in=msg["infer"].get(STANDS_IN),
                )
            )

    def _pyro_post_sample(self, msg: dict) -> None:
        name, rec = msg["name"], self.recorder
        if site_is_subsample(msg) or msg["infer"].get("_deterministic"):
            return
        if name in self.leaves:
            self._note_mask(name, msg["fn"], msg["mask"])
        if msg["mask"] is False:
            return
        rec.statement = name
        if self.loops.take(rec, len(self.statements), msg):
            log_prob = None
        else:
            log_prob = delta_density(msg)
            if log_prob is None:
                log_prob = self._log_prob(msg)
            log_prob = scale_and_mask(_floating(log_prob), msg["scale"], msg["mask"])
        self.statements.append((name, log_prob))
        rec.statement, rec.last_statement = None, name

    def _log_prob(self, msg: dict) -> Tensor:
        try:
            return msg["fn"].log_prob(msg["value"], *msg["args"], **msg["kwargs"])
        except ControlFlowError:
            if name_of(msg["fn"]) in ("Stable", "StableWithLogProb"):  # Pyro itself reads values
                self.recorder.refused = self.recorder.stable_density()
                raise self.recorder.refused from None
            raise

    def _note_mask(self, name: str, fn: object, mask: object) -> None:
        """Which nodes a mask leaves without their prior, where it does not depend on latents; none
        of a site that is ``mask(False)`` as a whole, as in fields of factors alone."""
        masks = [m for m in (mask, getattr(fn, "_mask", None)) if m is not None]
        if not masks or any(m is False or self.recorder.is_latent(m) for m in masks):
            return
        with self._looking_at(fn):
            shown = torch.ones(fn.batch_shape, dtype=torch.bool, device="cpu")
            for one in masks:
                shown = shown & torch.as_tensor(one, device="cpu").bool()
            for _ in range(shown.dim() - len(fn.batch_shape)):
                shown = shown.any(0)
            if shown.shape == fn.batch_shape and not bool(shown.all()):
                self.masked[name] = ~shown.flatten()

    def finish(self) -> None:
        """Fill in the log densities that waited for their likes, and of states that are masked out
        the one that stands in for theirs."""
        for group in self.loops.groups():
            names = [self.statements[waiting.place][0] for waiting in group]
            self.recorder.statement = names[0]  # a refusal names it
            for waiting, name, log_prob in zip(group, names, log_probs(group), strict=True):
                self.statements[waiting.place] = (name, log_prob)
        self.recorder.statement = None
        scores = dict(self.statements)
        for site in self.sites:
            if site.stands_in is not None and site.is_discrete:
                like = scores[site.name]
                uniform = -math.log(site.cardinality) * int(site.stands_in.sum())
                uniform = torch.tensor(uniform, dtype=like.dtype, device=like.device)
                self.statements.append((site.name + STAND_IN, uniform))


def _of_text(recorder: Recorder, error: Exception) -> ControlFlowError | None:
    """A look-up of what is not there, after latents were printed: of their text, very likely."""
    if not recorder.printed or not isinstance(error, (KeyError, AttributeError)):
        return None
    return text_decides(f"fails ({type(error).__name__}: {error})", tuple(recorder.printed))


def text_decides(what: str, printed: tuple[str, ...]) -> ControlFlowError:
    """The refusal of a program that does something else when a latent's text is another one."""
    return ControlFlowError(
        f"the program {what}, and turns latents into text: {'; '.join(printed)}. Text may be "
        f"printed, but not looked up or compared: the graph must not depend on a latent's value. "
        f"Use torch.where for a choice and tensor indexing for a lookup."
    )


def read_program(
    model: Callable,
    args: tuple,
    kwargs: dict,
    fixed: Mapping[str, Tensor],
    unconstrained: bool,
    differentiable: bool = False,
    apart_from: Mapping[str, Tensor] | None = None,
) -> Reading:
    """Record the program at a fresh point; see the module's text.

    Args:
        differentiable: constants stay attached to the tensors they were computed from.
        apart_from: values whose discrete nodes are to be in other states here, if the program
            makes sense there.

    Raises:
        StructureError: (a subclass) where the structure cannot be read.
    """
    last: list[str | None] = [None]

    def read(apart_from: Mapping[str, Tensor]) -> Reading:
        return _read_program(
            model, args, kwargs, fixed, unconstrained, differentiable, apart_from, last
        )

    try:
        if apart_from:
            try:
                return read(apart_from)
            except (PyrographError, torch.OutOfMemoryError):
                raise
            except (LookupError, RuntimeError, ValueError):  # no sense in these states, perhaps
                pass
        return retried(lambda: read({}), lambda: last[0])
    except (PyrographError, torch.linalg.LinAlgError, torch.OutOfMemoryError):
        raise
    except RuntimeError as error:  # of a program that has run without being read
        where = "before its first statement" if last[0] is None else f'after statement "{last[0]}"'
        raise UnsupportedOperation(
            f"the program fails {where} while its structure is read, not in a plain run: "
            f"{error} Something there cannot be followed, as operations that take functions "
            "(torch.cond) cannot: write what it computes in plain operations, torch.func.hessian "
            "as torch.func.jacrev twice."
        ) from error


@contextmanager
def _validation_off() -> Iterator[None]:
    """Nothing validates meanwhile: it would read latents in Python, and the plain run has done so.

    Neither distributions made now, even if the program asks them to, nor those made before, whose
    ``expand`` may have pinned it.
    """
    base = torch.distributions.Distribution
    init, validate = base.__init__, base._validate_sample

    def without_validation(self, *args, **kwargs):
        init(self, *args[:2], **{**kwargs, "validate_args": False})

    base.__init__, base._validate_sample = without_validation, lambda self, value: None
    try:
        yield
    finally:
        base.__init__, base._validate_sample = init, validate


def _read_program(
    model: Callable,
    args: tuple,
    kwargs: dict,
    fixed: Mapping[str, Tensor],
    unconstrained: bool,
    differentiable: bool,
    apart_from: Mapping[str, Tensor],
    last: list[str | None],
) -> Reading:
    """One attempt; ``last[0]`` is left at the last statement that was read."""
    with (
        pyro.validation_enabled(False),
        _validation_off(),
        recording(differentiable) as recorder,
        functions_watched(recorder) as functions,
    ):
        reader = ProgramReader(recorder, fixed, unconstrained, apart_from)
        try:
            with reader:
                model(*args, **kwargs)
            reader.finish()
        except Exception as error:
            cause = recorder.refused or _of_text(recorder, error)
            if cause is None or cause is error:
                raise
            raise cause from error
        finally:
            last[0] = recorder.last_statement
        if recorder.refused is not None:  # the program caught it, and went another way than Pyro
            raise recorder.refused
        recorder.has_run = True
        statements = _statements(recorder, reader, differentiable)
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
        random_draws=tuple(recorder.random_draws),
        printed=tuple(recorder.printed),
        functions=tuple(f"{name} {place}" for name, place in functions.items()),
        masked=reader.masked,
    )


def _statements(
    recorder: Recorder, reader: ProgramReader, differentiable: bool
) -> list[tuple[str, Tensor, Tensor]]:
    """Names, ids and log densities of what was read.

    Raises:
        StructureError: two have one name.
    """
    found: dict[str, tuple[str, Tensor, Tensor]] = {}
    for name, log_prob in reader.statements:
        if name in found:
            raise StructureError(f'two statements are called "{name}"; names must differ.')
        ids = recorder.ids_or_zero(log_prob).reshape(-1).cpu()
        kept = log_prob if differentiable else log_prob.detach()
        found[name] = name, ids, kept.reshape(-1).cpu()
    return list(found.values())


def _floating(log_prob: Any) -> Any:
    """Whole numbers and truth values as floats: of a lone one Pyro reads whether it is zero."""
    is_whole = isinstance(log_prob, Tensor) and not (
        log_prob.is_floating_point() or log_prob.is_complex()
    )
    return log_prob.to(torch.get_default_dtype()) if is_whole else log_prob
