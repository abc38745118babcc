"""The base of every engine: options, tracing, the loop, stopping, history and checkpoints.

An engine says what it asks of a program (``requires``), how to start (``allocate``), what one
iteration is (``advance``), what it carries (``carried``, ``restore``) and what it hands back
(``posterior``). All state lives on the object: two engines on one model share nothing.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from tqdm import tqdm

from pyrograph.checks import count, flag, positive
from pyrograph.diagnostics.score import outside_modes
from pyrograph.errors import ConvergenceWarning, InferenceError, OptionError, ShapeMismatch
from pyrograph.graph import FactorGraph, trace_graph
from pyrograph.graph.arguments import refuse_iterators
from pyrograph.graph.checked import constant_of
from pyrograph.graph.devices import usable_device
from pyrograph.graph.masked_out import masked_out, note_on_masked, standing_in
from pyrograph.infer.arguments import (
    ParametersRead,
    TensorsHeld,
    by_position,
    copied,
    same,
    versions,
)
from pyrograph.infer.options import floating, refuse_unknown
from pyrograph.infer.requires import (
    Requirement,
    check_program,
    refuse_moving_states,
    refuse_no_mass,
)
from pyrograph.infer.saved_states import plain, refuse_foreign, refuse_lacking
from pyrograph.posterior import Posterior

#: Times the tolerance by which what has come to rest may move when a run goes on: it came to rest
#: but for rounding, and grids are laid anew now and then.
REST = 100.0


class Engine(ABC):
    """Inference by iteration on a factor graph.

    Args:
        model: a Pyro program.
        num_steps: iterations in total, also over resumed runs.
        tol: stop when the monitored quantity is at most this; None runs all steps.
        progress: show a bar.
        dtype, device: of the computation; default those of the model. Draws have them too, so a
            model whose constants have others may not take them.

    Raises:
        OptionError: the model cannot be called, or an option is unknown or out of range.
    """

    requires: ClassVar[Requirement]
    unconstrained: ClassVar[bool] = False
    differentiable: ClassVar[bool] = False
    #: Whether nodes that masks leave without any factor have a density that stands in for them.
    stands_in: ClassVar[bool] = True
    #: Whether programs with continuous sites are computed in double precision, whatever that of
    #: results is.
    in_double: bool = False
    monitor: ClassVar[str] = "objective"
    #: Options of the classes above it that a class sets by itself and does not take.
    fixes: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        model: Callable,
        *,
        num_steps: int = 1000,
        tol: float | None = None,
        progress: bool = True,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        **unknown: Any,
    ):
        refuse_unknown(type(self), unknown)
        if not callable(model):
            raise OptionError(
                f"the model is a {type(model).__name__}; give a Pyro program: a function or a "
                "module."
            )
        self.model = model
        self.num_steps = count("num_steps", num_steps, least=0)
        self.tol = None if tol is None else positive("tol", tol)
        self.progress = flag("progress", progress)
        self.dtype = floating("dtype", dtype)
        self.device = None if device is None else usable_device(device)
        self._graph: FactorGraph | None = None
        self._arguments: tuple[tuple, dict] = ((), {})
        self._history: dict[str, list[float]] = {}
        #: Whether the state is of a saved run that had converged, and does not rest here.
        self._moves_on = False
        self._pending: Mapping[str, Any] | None = None

    # What a subclass gives.

    @abstractmethod
    def allocate(self) -> None:
        """Create the starting state; ``graph`` and ``generator`` are ready."""

    @abstractmethod
    def advance(self) -> dict[str, Tensor] | dict[str, float]:
        """One iteration: named scalars, ``"objective"`` among them.

        If it raises, the state must be the one before.
        """

    @abstractmethod
    def carried(self) -> dict[str, Any]:
        """The state as (nested) dicts of tensors and numbers, for ``state_dict``."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`carried` returned; where it raises, the base puts back what was."""

    @abstractmethod
    def posterior(self) -> Posterior:
        """The approximation as it stands."""

    # What every engine does.

    @property
    def graph(self) -> FactorGraph:
        """The factor graph of the program.

        Raises:
            InferenceError: the engine is not set up.
        """
        if self._graph is None:
            raise InferenceError(
                f"{type(self).__name__} is not set up: call setup(), step() or run() with the "
                "model's arguments first"
            )
        return self._graph

    @property
    def num_done(self) -> int:
        """Iterations so far."""
        return len(self._history.get("objective", ()))

    @property
    def history(self) -> dict[str, Tensor]:
        """Every measured quantity, one number per iteration."""
        return {
            k: torch.tensor(v, dtype=torch.float64, device="cpu") for k, v in self._history.items()
        }

    @outside_modes()
    def setup(self, *args, **kwargs) -> "Engine":
        """Check the program, trace it for these arguments, and start afresh.

        Where it raises, the engine stays as it was.

        Raises:
            UnsupportedSite: a site does not fit the engine.
            StructureError: the structure cannot be read.
            NonFiniteDensity, ZeroMass: an observation that reads no latent is impossible.
            OptionError: an argument is an iterator, which one run of the program uses up.
        """
        before = dict(vars(self))
        try:
            self._set_up(args, kwargs)
        except BaseException:  # one that is stopped from the keyboard, too
            vars(self).clear()
            vars(self).update(before)
            raise
        return self

    def _set_up(self, args: tuple, kwargs: dict) -> None:
        refuse_iterators(self.model, args, kwargs)
        with ParametersRead() as parameters:
            self.check(args, kwargs)  # which reads programs of labels
            # the engine's own stream, seeded from the global one: pyro.set_rng_seed governs it
            seed = int(torch.randint(2**62, (), device="cpu"))
            graph = self.read(args, kwargs)
        self._graph, self._parameters = graph, parameters
        self._arguments, self._versions = (args, kwargs), versions((args, kwargs))
        self._given = copied(by_position(self.model, args, kwargs))
        self._history, self._moves_on = {}, False
        self.generator = torch.Generator().manual_seed(seed)
        self.allocate()
        if self._pending is not None:
            self.load_state_dict(self._pending)
            self._pending = None  # it waits on where these arguments were the wrong ones
        # at the end: runs of the model may write to buffers
        self._modules_read = TensorsHeld(self.model, args, kwargs)

    def check(self, args: tuple, kwargs: dict) -> None:
        """Whether the program's sites fit the engine."""
        check_program(self.requires, type(self).__name__, self.model, args, kwargs)

    def read(self, args: tuple, kwargs: dict) -> FactorGraph:
        """The program's structure."""
        how = {
            "unconstrained": self.unconstrained,
            "differentiable": self.differentiable and torch.is_grad_enabled(),
        }
        graph = trace_graph(self.model, args, kwargs, **how)
        if self.stands_in and (masked := masked_out(graph)):
            program = standing_in(self.model, masked)
            graph = trace_graph(program, args, kwargs, verify=False, **how)
        if graph.num_nodes == 0:
            raise InferenceError(
                "the program has no latent site: there is nothing to infer. Its log evidence is "
                "its log density, pg.trace_graph(model, ...).log_prob({})"
            )
        refuse_moving_states(graph.sites.values(), type(self).__name__)
        refuse_no_mass(constant_of(graph))
        graph = graph.to(self.device, self.dtype) if self.device or self.dtype else graph
        is_wide = graph.constant.dtype == torch.float64
        is_discrete = all(site.is_discrete for site in graph.sites.values())
        return graph if is_wide or is_discrete or not self.in_double else graph.in_double()

    def step(self, *args, **kwargs) -> float:
        """One iteration, after setting up on the first call; returns the objective.

        Raises:
            NonFiniteDensity: a number broke down; the state is the one before this step.
            InferenceError: set up for other arguments, pyro.params or parameters of modules.
        """
        self._prepare(args, kwargs, by_value=False)  # steps may take a few microseconds
        with outside_modes():
            return self._iterate()

    def run(self, *args, **kwargs) -> Posterior:
        """Iterate until ``num_steps`` in total are done or the criterion is met.

        Raises:
            NonFiniteDensity: a number broke down; ``posterior()`` still gives the last good state.
            InferenceError: set up for other arguments, pyro.params or parameters of modules.
        """
        self._prepare(args, kwargs)
        remaining = self.num_steps - self.num_done
        bar = tqdm(total=max(0, remaining), disable=not self.progress, leave=True)
        with outside_modes(), bar:
            bar.set_description(type(self).__name__)
            while self.num_done < self.num_steps and not self.converged:
                self._iterate()
                if self.progress:  # steps may take a few microseconds
                    bar.update()
                    bar.set_postfix({k: f"{v[-1]:.4g}" for k, v in self._history.items()}, False)
        if self.tol is not None and not (self.converged and self.is_stable):
            warnings.warn(self.status, ConvergenceWarning, stacklevel=2)
        with outside_modes():
            return self.posterior()

    @property
    def converged(self) -> bool:
        """Whether ``tol`` was given and met."""
        measured = self._history.get(self.monitor)
        is_met = self.tol is not None and bool(measured) and measured[-1] <= self.tol
        return is_met and not self._moves_on

    @property
    def is_stable(self) -> bool:
        """False where a run that has converged stands where it would not stay, or worse than where
        another one does."""
        return True

    @property
    def status(self) -> str:
        """``"converged"``, or what happened and what to do."""
        # a labelled program stands in the graph's place, or nothing does yet
        note = note_on_masked(self._graph) if isinstance(self._graph, FactorGraph) else None
        return with_notes(self._outcome(), [] if note is None else [note])

    def _outcome(self) -> str:
        """How the run went."""
        if self.converged:
            return "converged"
        if self._moves_on:
            is_over = self.num_steps <= self.num_done
            how = f"num_steps above the {self.num_done} that are done" if is_over else "run()"
            return (
                "not converged: the saved state does not rest here, it is of other data, "
                f"parameters or options. Go on with {how}."
            )
        measured = self._history.get(self.monitor)
        value = f", now {measured[-1]:.4g}" if measured else ""
        if self.tol is None:
            return (
                f"ran {self.num_done} steps; without a stopping rule (tol=None) convergence was "
                f'not tested. Look at history["objective"], or give tol= for the {self.monitor}'
                f"{value}."
            )
        return (
            f"not converged: after {self.num_done} steps the {self.monitor} is above "
            f"tol={self.tol:.4g}{value}. {self.remedy()}"
        )

    def is_at_rest(self) -> bool:
        """Whether the state of a saved run that had converged rests here too: on other data it
        does not. True where engines do not look."""
        return True

    def remedy(self) -> str:
        """What to do when ``tol`` was not met."""
        return "Raise num_steps or tol."

    @outside_modes()
    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on, as tensors and numbers in dicts: it can be saved by
        ``torch.save`` and loaded with ``weights_only=True``.

        Raises:
            InferenceError: the engine is not set up.
        """
        sites = self.graph.sites.values()
        return {
            "sites": {
                s.name: torch.tensor(s.batch_shape + s.event_shape, dtype=torch.int64, device="cpu")
                for s in sites
            },
            "history": self.history,
            **self.carried(),
        }

    @outside_modes()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``, at once or, before ``setup``, when the graph is there.

        Raises:
            ShapeMismatch: the state belongs to another graph or to other options, or is none. As
                with every error, the engine stays as it was.
        """
        if not isinstance(state, Mapping):
            raise ShapeMismatch(
                f"the state is a {type(state).__name__}; give what state_dict() of "
                f"{type(self).__name__} returned"
            )
        if self._graph is None:
            self._pending = state
            return
        state = plain(state)
        refuse_lacking(state, {"sites", "history", *self.carried()}, type(self).__name__)
        own = self.state_dict()
        refuse_foreign(state, own)
        history = {k: v.tolist() for k, v in state["history"].items()}
        before, stream = dict(vars(self)), self.generator.get_state()
        try:
            self.restore(state)
            self._history, self._moves_on = history, False
            self._moves_on = self.converged and not self.is_at_rest()
        except Exception as error:  # a state is taken over whole or not at all
            vars(self).clear()
            vars(self).update(before)
            self.generator.set_state(stream)
            if not same(self.state_dict(), own):  # what the attributes hold was changed in place
                self.restore(own)
            if isinstance(error, (AttributeError, KeyError, TypeError)):
                raise ShapeMismatch(
                    f"the state lacks a part, or has another in its place ({error!r}): it is "
                    "damaged, or of another engine"
                ) from error
            raise

    def __getstate__(self) -> dict[str, Any]:
        """What a copy starts from; no versions where the arguments are no longer those of setup."""
        state = dict(vars(self))
        if self._graph is not None and versions(self._arguments) != self._versions:
            state["_versions"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if state.get("_versions") is not None:  # torch counts changes of copied tensors anew
            self._versions = versions(self._arguments)

    def _prepare(self, args: tuple, kwargs: dict, by_value: bool = True) -> None:
        if self._graph is None:
            self.setup(*args, **kwargs)
            return
        changed = self._parameters.changed(by_value) or self._modules_read.changed(by_value)
        if changed is not None:
            raise InferenceError(
                f"{changed} has changed since this {type(self).__name__} was set up, whose graph "
                "holds it as a constant. Call setup(...) again, or make a new engine."
            )
        if not args and not kwargs:  # steps may take less time than looking at a signature
            return
        alike = same(by_position(self.model, args, kwargs), self._given)
        if not (alike and versions(self._arguments) == self._versions):
            raise InferenceError(
                f"this {type(self).__name__} is set up for other model arguments (or for these "
                "before they were changed in place), and its graph holds them as constants. Call "
                "setup(...) with the new ones, or make a new engine."
            )

    def _iterate(self) -> float:
        measured = self.advance()
        self._moves_on = False
        if isinstance(measured["objective"], Tensor):  # all of them to numbers at once
            values = torch.stack([value.double() for value in measured.values()]).tolist()
            measured = dict(zip(measured, values, strict=True))
        for name, value in measured.items():
            self._history.setdefault(name, []).append(value)
        return self._history["objective"][-1]


def with_notes(status: str, notes: list[str]) -> str:
    """A status, and sentences after it."""
    return f"{status.rstrip('.')}. {' '.join(notes)}" if notes else status
