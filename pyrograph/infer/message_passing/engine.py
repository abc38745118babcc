"""Message passing with an alpha-divergence per factor: one iteration, one engine.

    cavity      n_i   = q_i / m_{a -> i}^alpha
    tilted      p_a   = f_a^alpha prod_i n_i
    projection  q_i'  = proj_i [ p_a ]
    message     m_{a -> i} <- m_{a -> i} (q_i' / q_i)^(eta / alpha)

alpha = 1 is belief propagation and expectation propagation, alpha = 0 (the limit) variational
message passing, alpha = 1 / mu tree-reweighted belief propagation; the presets choose it. Messages
live on the edges between factors and nodes; a step is one sweep over all of them, O(factors); with
``schedule="sequential"`` factors that are integrated on grids are looked at once for every colour
of the Markov graph.

Damping by eta = 1 - damping acts on the exponent eta / alpha, which carries alpha's sign: the
other sign, which Minka's (17) allows, diverges for alpha < 0.

Source: Minka (2005), eqs (17), (54), (83) and (85).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyrograph.checks import count, fraction
from pyrograph.errors import OptionError
from pyrograph.graph import FactorGroup
from pyrograph.graph.forest import is_forest
from pyrograph.infer.base import REST, Engine, with_notes
from pyrograph.infer.message_passing.advice import (
    NO_EVIDENCE,
    note_on_wide_scales,
    notes_on,
    remedy_for,
)
from pyrograph.infer.message_passing.checkpoint import loaded_messages
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.implicit import attached, refuse_second_derivatives
from pyrograph.infer.message_passing.iteration import Iteration
from pyrograph.infer.message_passing.mean_field_start import MeanFieldStart
from pyrograph.infer.message_passing.network.alphas import Alpha, alpha_of_factors, check_alpha
from pyrograph.infer.message_passing.network.build import build
from pyrograph.infer.message_passing.network.evidence import kind_of, log_evidence
from pyrograph.infer.message_passing.network.messages import Messages
from pyrograph.infer.message_passing.network.network import Network
from pyrograph.infer.message_passing.results import beliefs_of_graph
from pyrograph.infer.message_passing.settling.left_alike import alternatives, note_on
from pyrograph.infer.message_passing.settling.settling import Settling, leaps_for
from pyrograph.infer.message_passing.settling.stability import (
    Instability,
    instability,
    may_be_left,
    may_be_unstable,
)
from pyrograph.infer.message_passing.sweeps.sweep import SCHEDULES
from pyrograph.infer.message_passing.sweeps.tree import applies
from pyrograph.infer.message_passing.undone import undone_on_error
from pyrograph.infer.message_passing.unheld import refuse_improper, refuse_without_integrals
from pyrograph.infer.requires import FiniteOrContinuous
from pyrograph.posterior.beliefs import BeliefPosterior
from pyrograph.posterior.posterior import EvidenceKind
from pyrograph.posterior.rounding import is_rounded

#: Steps between evaluations of the evidence, which cost about as much as a sweep.
RECORD = 10
#: How often a run goes on from an unstable fixed point.
LEAVES = 5
#: Of a grid per dimension: two see no curvature.
FEWEST_POINTS = 3


class MessagePassing(Engine):
    """Alpha-divergence message passing on a factor graph.

    Programs with continuous sites are computed in double precision, also where they, or ``dtype``,
    have a narrower one: that is the one of results.

    The objective is the log evidence of the latest sweep at which it was evaluated: of every tenth
    one, and of one that meets ``tol``. In between :meth:`step` and ``history["objective"]`` repeat
    it; :attr:`log_evidence` is that of the messages as they stand.

    Args:
        model: a Pyro program of finite discrete and continuous latent sites. Discrete nodes carry
            categorical beliefs, continuous ones Gaussians with full covariance in a node, in
            unconstrained space.
        alpha: Minka's; a number for every factor, ``{statement: alpha}`` (others 1), or a
            function of the statement's name. Factors of one node that its family represents
            exactly are absorbed exactly, whatever it is. Nearer to 0 than the square root of the
            dtype's rounding it is taken for 0, or beside zeros for that root (:mod:`.alphas`).
        damping: share of the old message kept, 0 for none; ``"auto"`` starts at 0. Where the
            iteration does not settle, Gaussian beliefs start once more, from the mode
            (:mod:`.mode_start`); then, and otherwise, damping is raised; where none helps,
            discrete models with alpha > 0 go over to a convergent double loop
            (:mod:`.double_loop`), whose last steps Newton's method takes (:mod:`.newton`).
            Factors whose cavities stay improper get a smaller alpha (:mod:`.milder`), which the
            status says.
        schedule: ``"parallel"`` sends all messages at once (on a forest of discrete pairs with
            alpha = 1 the exact ones, by contraction, see :mod:`.tree`), ``"sequential"`` those
            into the nodes of one colour of the Markov graph after the other, ``"residual"`` those
            that change most.
        num_steps: most sweeps, default 1000.
        tol: stop when no log message changes by more; default 1e-8, and 1e-4 for discrete programs
            in single precision.
        init: None, or an earlier engine's ``state_dict()["messages"]`` to start from.
        num_points: points of the quadrature, per dimension; default by dimension.
        family: beliefs of some continuous sites, ``{site: "gamma"}`` (sites on a half-line),
            ``{site: "beta"}`` (on an interval) or ``{site: "dirichlet"}`` (on a simplex, of
            factors that are conjugate), in the place of Gaussians in unconstrained space.
        options: see :class:`Engine`.

    Raises:
        UnsupportedSite: a discrete site has infinitely many states.
        OptionError: an option is unknown or out of range, or alpha <= 0 meets a zero.
        ZeroMass: hard constraints leave nothing.
        NonFiniteDensity: a log density is NaN or plus infinity somewhere.
        InferenceError: no factor reads a continuous node: it is masked out; or some can move along
            a line without any factor's noticing: the posterior is improper.
    """

    requires = FiniteOrContinuous()
    unconstrained = True
    differentiable = True
    #: Natural parameters are sums about 0, of which little is left in single precision where
    #: beliefs are narrow and far from it.
    in_double = True
    monitor = "residual"
    #: Whether factors on one scope have the same alpha, and are one factor whatever it is.
    one_alpha: ClassVar[bool] = False

    def __init__(
        self,
        model: Callable,
        *,
        alpha: Alpha = 1.0,
        damping: float | str = "auto",
        schedule: str = "parallel",
        init: Mapping[str, Any] | None = None,
        num_points: int | None = None,
        family: Mapping[str, str] | None = None,
        num_steps: int = 1000,
        tol: float | str | None = "auto",
        **options: Any,
    ):
        chosen = None if tol == "auto" else tol
        super().__init__(model, num_steps=num_steps, tol=chosen, **options)
        self._auto_tol = tol == "auto"
        self.alpha = alpha
        if schedule not in SCHEDULES:
            raise OptionError(f"schedule={schedule!r} is not one of {', '.join(SCHEDULES)}")
        self.schedule = schedule
        if isinstance(damping, str) and damping != "auto":
            raise OptionError(f'damping={damping!r} is not "auto" or a number in [0, 1)')
        self.damping = damping if damping == "auto" else fraction("damping", damping)
        saved = init.values() if isinstance(init, Mapping) else [init]
        if init is not None and not all(isinstance(value, Tensor) for value in saved):
            raise OptionError(
                f"init is a {type(init).__name__} that holds no messages; take an earlier engine's "
                'state_dict()["messages"]'
            )
        self.init = init
        self.num_points = None if num_points is None else count("num_points", num_points)
        if self.num_points is not None and self.num_points < FEWEST_POINTS:
            raise OptionError(
                f"num_points={num_points} sees no curvature; take {FEWEST_POINTS} or more"
            )
        if not isinstance(family, Mapping | None):
            raise OptionError(f'family={family!r} is not a dict such as {{"rate": "gamma"}}')
        self.family = dict(family or {})

    def alpha_of(self, group: FactorGroup) -> Tensor:
        """Alpha of every factor of a group, ``[E]``."""
        return alpha_of_factors(self.alpha, self.graph, group)

    # ------------------------------------------------------------------ state
    def allocate(self) -> None:
        check_alpha(self.alpha, self.graph)
        refuse_without_integrals(self.graph)
        self.network = self.build()
        self._default_tol = 1e-8 if self.graph.constant.dtype == torch.float64 else 1e-4
        if self._auto_tol:
            self.tol = self._default_tol
        scopes = [group.scope[index] for group, index in self.network.members]
        self._forest = is_forest(scopes, self.graph.num_nodes)
        plain = self.schedule == "parallel" and self.init is None and self.damping in ("auto", 0.0)
        is_tree = self._forest and plain and bool(self.network.blocks) and applies(self.network)
        with torch.no_grad():
            messages = self.network.start()
        if self.init is not None:
            messages = loaded_messages(self.network, messages, self.init)
        #: Of the differences by which fixed points are left: runs of other seeds end elsewhere.
        self._seed = int(torch.randint(2**62, (), generator=self.generator, device="cpu"))
        parts = self.graph, self.network, self.num_points, self.family, self._seed
        self._start = MeanFieldStart(*parts, is_wanted=self.init is None)
        parts = self.graph, self.network, self.schedule, self._new_settling()
        self.iteration = Iteration(*parts, messages, is_tree, self._seed)
        self._looked: tuple[Messages, Instability | None] | None = None
        self._num_left = 0

    def _new_settling(self) -> Settling:
        is_bp = all(bool((block.alpha == 1).all()) for block in self.network.blocks)
        settles = self._forest and is_bp and not self.network.has_quadrature
        damping = None if self.damping == "auto" else self.damping
        tol = self.tol if self.schedule != "residual" else None
        return Settling(
            self.graph,
            self.network,
            0.0 if settles and damping is None else damping,
            leaps_for(self.network, tol),
            self.init is None,
            self.network.is_mean_field and self.schedule == "sequential",
            self._start.messages,
        )

    def build(self) -> Network:
        """The graph's factors as they send messages."""
        return build(self.graph, self.alpha_of, self.num_points, self.family, self.one_alpha)

    @property
    def messages(self) -> Messages:
        """As they stand, by block and port."""
        return self.iteration.at.messages

    @messages.setter
    def messages(self, value: Messages) -> None:
        self.iteration.stand_at(value)

    @property
    def beliefs(self) -> list:
        """Under the messages, by family."""
        return self.iteration.at.beliefs

    # ------------------------------------------------------------------ a step
    def advance(self) -> dict[str, Tensor]:
        with undone_on_error([self, *self.iteration.parts]):
            start = self._start.messages() if self.num_done == 0 else None
            if start is not None:
                self.iteration.settle(start)
            return self.iteration.with_new_starts(self._advance, bool(self.num_done))

    @torch.no_grad()
    def _advance(self) -> dict[str, Tensor]:
        run, was_at_rest = self.iteration, self.converged
        if self._moves_on:
            run.goes_on_with(self.network)
        is_first = self.num_done == 0 and self.init is None
        residual, skipped = run.step(is_first, self.tol or self._default_tol)
        met = self.tol is not None and float(residual) <= self.tol
        if met:
            for block in self._unchecked:
                block.tilted.is_due = True
        if met or self.num_done % RECORD == 0 or run.measured is None:
            run.measure(met)
        measured = {"objective": run.measured, "residual": residual, "skipped": skipped}
        if met and not was_at_rest and not self._unchecked and self._leaves():
            measured["residual"] = torch.full_like(residual, math.inf)
        return measured

    @property
    def _may_leave(self) -> bool:
        return may_be_left(self.network) and may_be_unstable(self.network)

    def _leaves(self) -> bool:
        """Go on from elsewhere, where alternatives of a label are alike and trials come higher; or
        from beside the fixed point that was met, where sweeps would leave it."""
        is_last = self.num_done + 1 >= self.num_steps
        if is_last or self._num_left == LEAVES or not self._may_leave:
            return False
        start = self.iteration.told_apart()
        if start is None and self._instability is not None:
            start = (self._instability_by(self._seed) or self._instability).nearby
        if start is not None:
            self._num_left += 1
            self.iteration.leave_for(start)
        return start is not None

    @property
    def _unchecked(self) -> list[QuadratureFactors]:
        blocks = [b for b in self.network.blocks if isinstance(b, QuadratureFactors)]
        return [block for block in blocks if not block.is_checked]

    # ------------------------------------------------------------------ results
    @property
    def converged(self) -> bool:
        """Whether ``tol`` was given and met, on points of quadrature that were checked."""
        return super().converged and not self._unchecked

    @torch.no_grad()
    def is_at_rest(self) -> bool:
        return self.iteration.next_sweep.is_at_rest(self.messages, self.beliefs, REST * self.tol)

    @property
    def log_evidence(self) -> Tensor:
        """Eq (66) at the messages as they stand, ``[]``.

        Raises:
            InferenceError: the engine is not set up.
        """
        dtype = self.graph.result_dtype  # raises where there is none
        return self.iteration.evidence().to(dtype)

    def _differentiable_evidence(self) -> Tensor:
        """:attr:`log_evidence` with the derivative of eq (66), which is stationary in the
        messages."""
        with torch.no_grad():
            worth = self.log_evidence
        if not (self.network.is_differentiable and torch.is_grad_enabled()):
            return worth
        value = log_evidence(self.network, self.messages, self.network.beliefs_of(self.messages))
        if value.requires_grad:
            value.register_hook(refuse_second_derivatives)
        return worth + (value - value.detach())

    def evidence_kind(self) -> EvidenceKind:
        """What :attr:`log_evidence` is worth.

        Raises:
            InferenceError: the engine is not set up.
        """
        evidence = self.log_evidence  # raises where there is none
        return "estimate" if is_rounded(self.graph, evidence) else self._kind_if_exact()

    def _kind_if_exact(self) -> EvidenceKind:
        """The same in exact arithmetic."""
        residuals = self._history.get("residual", [math.inf])
        settled = self.converged and residuals[-1] <= self._default_tol
        return kind_of(self.network, self._forest, settled)

    def posterior(self) -> BeliefPosterior:
        """Beliefs of nodes and factors as they stand.

        Raises:
            InferenceError: a node has no proper belief, or the engine is not set up.
        """
        graph, messages = self.graph, self.messages
        refuse_improper(graph, self.network.families, self.beliefs)
        if self.network.is_differentiable and torch.is_grad_enabled() and self.network.blocks:
            messages = attached(self.network, messages)
        evidence = self._differentiable_evidence().to(graph.result_dtype)
        is_known = not bool(evidence.isnan())
        return beliefs_of_graph(
            graph,
            self.network,
            messages,
            self.network.beliefs_of(messages) if self.network.is_differentiable else self.beliefs,
            converged=self.converged,
            status=self.status if is_known else with_notes(self.status, [NO_EVIDENCE]),
            history=self.history,
            log_evidence=evidence if is_known else None,
            evidence_kind=self._kind_if_exact() if is_known else None,
        )

    @property
    def status(self) -> str:
        if self._graph is None:
            return super().status
        skipped = self._history.get("skipped", [0.0])[-1]
        lowered = self.iteration.settling.milder.note
        wide = note_on_wide_scales(self.graph, self.network, self.beliefs)
        below = self._start.note(self.log_evidence) if self.converged else None
        unstable = self._instability.status if not (self.is_stable or below) else None
        alike = None
        if unstable is None and self.converged:
            found = alternatives(self.network, self.beliefs)
            alike = found and note_on(self.graph, self.network, found)
        notes = [unstable, below, alike, lowered, *notes_on(self.network, skipped), wide]
        return with_notes(super().status, [note for note in notes if note])

    @property
    def _instability(self) -> Instability | None:
        """Whether sweeps would leave the messages as they stand, looked for once."""
        if not may_be_unstable(self.network):
            return None
        if self._looked is None or self._looked[0] is not self.messages:
            self._looked = self.messages, self._instability_by(0)
        return self._looked[1]

    def _instability_by(self, seed: int) -> Instability | None:
        sweep = self.iteration.next_sweep
        return instability(sweep, self.messages, self.beliefs, self.num_done, seed)

    @property
    def is_stable(self) -> bool:
        if self._graph is None or not self.converged:
            return True
        return self._instability is None and self._start.note(self.log_evidence) is None

    def remedy(self) -> str:
        if self._graph is None:
            return super().remedy()
        return remedy_for(self.network, self.schedule)

    # ------------------------------------------------------------------ checkpoints
    def carried(self) -> dict[str, Any]:
        left = {"seed": self._seed, "count": self._num_left, "bound": self._start.bound}
        left = left if self._may_leave else {}
        return {**self.iteration.carried(), "left": left}

    def restore(self, state: Mapping[str, Any]) -> None:
        with undone_on_error([self, *self.iteration.parts]):
            self.iteration.restore(state)
            if self._may_leave and state["left"]:
                self._seed, self._num_left = (int(state["left"][k]) for k in ("seed", "count"))
                self._start.seed = self.iteration.seed = self._seed
                self._start.bound = float(state["left"].get("bound", -math.inf))
