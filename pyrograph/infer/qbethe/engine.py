"""QBethe: a mixture over all nodes, fitted to the Bethe free energy by quadrature and gradients.

    F(b) = sum_a E_{b_a} log f_a + T ( sum_a H(b_a) + sum_i (1 - d_i) H(b_i) )

is climbed over mixtures whose weights all nodes and factors share (:mod:`.components`), so that
their beliefs agree and no messages are needed: it converges where message passing does not. On
trees, and for a single component that makes one distribution (of independent nodes, or correlated
along a forest) on any graph, F is a lower bound of the log evidence; else it may exceed it. T = 1
but for the search of modes, T -> 0.

The optimiser exploits errors of a coarse quadrature. What it reached is evaluated again by rules it
never saw; that value is the evidence, and a difference worth speaking of is spoken of.

Source: Guo, Xiong & Ruozzi (2019), eq (5), maximised, over unconstrained parameters in the place
of projections. Cost of a step: O(L factors) in one dimension, O(L^2) for entropies of L > 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyrograph.checks import count, flag, positive, real_number
from pyrograph.diagnostics.score import outside_modes
from pyrograph.errors import OptionError, PyrographError
from pyrograph.graph.blame import naming_underivable
from pyrograph.infer.base import REST, Engine, with_notes
from pyrograph.infer.message_passing.unheld import refuse_without_integrals
from pyrograph.infer.qbethe.adam import CosineAdam
from pyrograph.infer.qbethe.build import build
from pyrograph.infer.qbethe.certificate import certified, factor_without_gradient
from pyrograph.infer.qbethe.checkpoint import (
    measured_by,
    measures_of,
    refuse_other_parameters,
    refuse_other_rule,
    take,
)
from pyrograph.infer.qbethe.components import Components, Parameters
from pyrograph.infer.qbethe.free_energy import BetheFreeEnergy
from pyrograph.infer.qbethe.gaussian_forest import exact_parameters, is_gaussian
from pyrograph.infer.qbethe.joint import joined
from pyrograph.infer.qbethe.mean_field import mean_field
from pyrograph.infer.qbethe.mode_start import start_at_modes
from pyrograph.infer.qbethe.narrow_start import NarrowStart
from pyrograph.infer.qbethe.natural import natural_gain
from pyrograph.infer.qbethe.refusals import refuse_bad_gradient, refuse_non_finite
from pyrograph.infer.qbethe.rest import Course, after_adam, after_search, remedy_for
from pyrograph.infer.qbethe.results import mixture_of_graph
from pyrograph.infer.qbethe.rules import (
    coarse,
    coarse_entropies,
    entropy_points,
)
from pyrograph.infer.qbethe.search import LineSearch
from pyrograph.infer.qbethe.start import starting_parameters
from pyrograph.infer.requires import FiniteOrContinuous
from pyrograph.posterior.joint_mixture import MixturePosterior

COVARIANCES = ("diagonal", "full")
OPTIMISERS = ("adam", "lbfgs")
#: Share of the steps for which weights are held: trained from the start they let one component
#: take over.
HELD = 0.4


class QBethe(Engine):
    """Mixture beliefs in the Bethe free energy.

    Args:
        model: a Pyro program of continuous and finite discrete sites, without hard constraints.
        num_components: L.
        num_quadrature: Gauss-Hermite points per dimension, K, for the potentials; exact for
            polynomials of degree 2 K - 1. Gaussian factors are closed forms.
        closed_forms: for sums of exponentials times quadratic functions (normal densities with
            latent log scales, Poisson densities of log rates) and for polynomials between kinks
            (absolute values, clamps, minima of one linear combination of numbers) too; by default
            for those with kinks where they are of two nodes and more, whose kinks points miss
            first. With False all are integrated by points, as in the paper.
        num_entropy: the same for entropies of more than one component; default K or 40 (20 in
            more dimensions than one; 20 and 12 on graphs so large that a step would take long),
            whichever is more. With 12 the
            optimiser may gain some 0.2 nats from their errors at a node.
        covariance: ``"diagonal"``, nodes independent in a component, or ``"full"``, correlated
            within the scope of a factor (and the numbers of a node with each other), discrete
            ones independent in either case. Where sets of continuous nodes that factors read make
            a forest these are one Gaussian of a component (:mod:`.joint`), from which the
            posterior draws and conditions. Where they close cycles the evidence knows of them, and
            ``factor_marginal`` of factors without discrete nodes, and ``posterior.sample`` and
            ``posterior.guide`` draw nodes independently.
        num_restarts: runs side by side from different starts, of which the best is kept.
        optimizer: ``"adam"`` or ``"lbfgs"``.
        lr: step of Adam in units of the starting widths, decaying along a cosine.
        hold_weights: steps for which the mixture weights stay uniform; default 40 % of all.
        temperature: T, a number or a function of the step; small for the search of modes.
        init_scale: width of the starting components in units of the prior draws' spread. One
            component of full covariance starts at the posterior itself where this is a Gaussian
            along a forest (:mod:`.gaussian_forest`), at the mode where it nearly is
            (:mod:`.mode_start`); components of sites without a prior start about the mode, others
            about modes, or mean field's beliefs, far narrower than the draws' spread, in units of
            the widths there (:mod:`.narrow_start`); of programs with labels where mean field ends
            (:mod:`.label_start`).
        dtype: of results; one component of full covariance, and L-BFGS, compute in double precision
            whatever it is.
        options: see :class:`Engine`; ``tol`` is for the change of the objective: of Adam over the
            last 20 steps, in whichever restart it is largest (of steps so short that all together
            are less than one of the first, divided by that share); of L-BFGS over the last 10
            steps, or what the gradient promises, whichever is more.

    Raises:
        UnsupportedSite: a discrete site has infinitely many states.
        UnsupportedFactor: a discrete factor has zeros.
        OptionError: an option is unknown or out of range.
        InferenceError: no factor reads a continuous node: it is masked out; or some can move along
            a line without any factor's noticing: the posterior is improper.
    """

    requires = FiniteOrContinuous()
    unconstrained = True
    monitor = "change"

    def __init__(
        self,
        model: Callable,
        *,
        num_components: int = 5,
        num_quadrature: int = 4,
        num_entropy: int | None = None,
        closed_forms: bool | None = None,
        covariance: str = "diagonal",
        num_restarts: int = 1,
        optimizer: str = "adam",
        lr: float = 0.05,
        hold_weights: int | None = None,
        temperature: float | Callable[[int], float] = 1.0,
        init_scale: float = 0.5,
        **options: Any,
    ):
        super().__init__(model, **options)
        self.num_components = count("num_components", num_components)
        self.num_quadrature = count("num_quadrature", num_quadrature, least=2)
        self.num_entropy = None if num_entropy is None else count("num_entropy", num_entropy, 2)
        self.closed_forms = None if closed_forms is None else flag("closed_forms", closed_forms)
        if covariance not in COVARIANCES:
            raise OptionError(f"covariance={covariance!r} is not one of {', '.join(COVARIANCES)}")
        self.covariance = covariance
        self.num_restarts = count("num_restarts", num_restarts)
        if optimizer not in OPTIMISERS:
            raise OptionError(f"optimizer={optimizer!r} is not one of {', '.join(OPTIMISERS)}")
        self.optimizer = optimizer
        self.lr = positive("lr", lr)
        held = round(HELD * self.num_steps)
        self.hold_weights = held if hold_weights is None else count("hold_weights", hold_weights, 0)
        self.temperature = temperature if callable(temperature) else _checked(temperature, "")
        self.init_scale = positive("init_scale", init_scale)
        # in single precision steps leave the exact start, and line searches end in rounding
        is_one = self.covariance == "full" and self.num_components == 1
        self.in_double = is_one or self.optimizer == "lbfgs"

    # ------------------------------------------------------------------ state
    def allocate(self) -> None:
        refuse_without_integrals(self.graph)
        self.network = build(self.graph, self.covariance == "full", self.closed_forms)
        like = self.graph.constant.detach()
        points = entropy_points(self.graph.num_nodes, self.num_components)
        if self.num_entropy is None:
            entropies = coarse_entropies(max(self.num_quadrature, points), like)
        else:
            entropies = coarse(self.num_entropy, like)
        self._rules = coarse(self.num_quadrature, like), entropies
        self.objective = BetheFreeEnergy(self.network, like, self.covariance == "diagonal")
        energy = partial(self.objective, rules=self._rules, temperature=0.0)
        self.parameters = starting_parameters(
            self.network,
            self.graph,
            (self.model, *self._arguments),
            (self.num_restarts, self.num_components),
            self.init_scale,
            self.covariance == "full",
            self.generator,
            energy,
        )
        exact, is_free = None, self.temperature == 1 and self.covariance == "full"
        if self.num_components == 1 and is_free and is_gaussian(self.network):
            exact = exact_parameters(self.graph, self.network)
        for name, value in (exact or {}).items():
            self.parameters[name].copy_(value)  # of all restarts
        self._exact = exact and {name: self.parameters[name].clone() for name in exact}
        self._start_width = self.init_scale
        if self.num_components == 1 and is_free and exact is None:
            self._start_near(energy)
        for value in self.parameters.values():
            value.requires_grad_()
        self._start_optimiser()

    def _start_near(self, energy: Callable[[Parameters], Tensor]) -> None:
        """One component of full covariance at the mode or, without one, where mean field ends."""
        if any(kind.is_discrete for kind in self.network.kinds):
            return
        if start_at_modes(self.graph, self.network, self.parameters, energy):
            self._start_width = 1.0
            return
        field = partial(mean_field, self.graph, (self.model, *self._arguments))
        narrow = NarrowStart(self.graph, self.network, energy, field)
        narrow.move(self.parameters, narrow.places(None), self.init_scale, self.generator)

    def _start_optimiser(self) -> None:
        leaves = list(self.parameters.values())
        if self.optimizer != "adam":
            self._rule = LineSearch(leaves)
            return
        number = {name: n for n, name in enumerate(self.parameters)}
        scales = {
            number[f"mean_{k}"]: number[f"log_scale_{k}"]
            for k, kind in enumerate(self.network.kinds)
            if not kind.is_discrete
        }
        self._rule = CosineAdam(leaves, scales, math.log(self._start_width))

    # ------------------------------------------------------------------ steps
    def _temperature(self, step: int) -> float:
        if not callable(self.temperature):
            return self.temperature
        return _checked(self.temperature(step), f" of step {step}")

    @property
    def converged(self) -> bool:
        """Whether ``tol`` was met, by weights that were free unless they never are."""
        is_fixed = self.num_components == 1 or self.hold_weights >= self.num_steps
        return super().converged and (is_fixed or self.num_done > self.hold_weights + 1)

    def advance(self) -> dict[str, Tensor]:
        temperature = self._temperature(self.num_done)
        if self.num_done == self.hold_weights and self.optimizer == "lbfgs":
            self._start_optimiser()  # curvature without the weights says nothing about them
        evaluate = partial(self._graded, temperature)
        if self.optimizer == "adam":
            if self.num_done == self.hold_weights and self.num_components > 1:
                self._rule.recent.clear()  # it rested with the weights held
            done = self.num_done / max(1, self.num_steps)
            change = self._rule.moved(
                evaluate, lambda: self._measured, self._rests_at_start, self.lr, done
            )
            if self.tol is not None and change <= self.tol:
                change = after_adam(change, self._promised(), max(self._measured), self.tol)
        else:
            change = self._search(evaluate, temperature)
        return {"objective": max(self._measured), "change": change}

    @torch.enable_grad()
    def _graded(self, temperature: float) -> Tensor:
        """What all restarts minimise, and its gradient in the parameters.

        Raises:
            NonFiniteDensity: one of them is no number.
        """
        holds = self.num_done < self.hold_weights or self.num_components == 1
        self.parameters["weights"].requires_grad_(not holds)
        for leaf in self.parameters.values():
            leaf.grad = None
        with naming_underivable(self.graph):
            value = self.objective(self.parameters, self._rules, temperature)
            self._measured = value.tolist()
            # before it moves anything
            refuse_non_finite(self._measured, self.num_done, self.init_scale, self.graph.dtype)
            loss = -value.sum()
            loss.backward()
        found = self.parameters, self._measured, self.num_done, self.init_scale
        refuse_bad_gradient(*found, self._without_gradient)
        return loss

    def _without_gradient(self) -> str | None:
        mixture = Components(self.network.kinds, self.parameters)
        return factor_without_gradient(self.network, mixture, self._rules[0])

    def _gain(self) -> Tensor:
        """What the last gradients promise, ``[B]``."""
        return natural_gain(Components(self.network.kinds, self.parameters))

    def _promised(self) -> float:
        """What the best restart's gradient promises."""
        best = max(range(self.num_restarts), key=self._measured.__getitem__)
        return float(self._gain()[best])

    def _rests_at_start(self) -> bool:
        """Whether it is where it started, at the posterior itself, and gradients are rounding: far
        more than the objective's where correlations are nearly one. Or all but there, as a run that
        goes on elsewhere."""
        if self._exact is None:
            return False
        if all(torch.equal(self.parameters[name], value) for name, value in self._exact.items()):
            return True
        size = max(1.0, *map(abs, self._measured))
        gain = self._gain()
        return bool((gain <= math.sqrt(torch.finfo(gain.dtype).eps) * size).all())

    def _search(self, evaluate: Callable[[], Tensor], temperature: float) -> float:
        """A step of L-BFGS; returns the change of the last ones, or the promised one if that is
        more."""

        def measure() -> Tensor:
            with torch.no_grad():  # it evaluates where it may not stay
                value = self.objective(self.parameters, self._rules, temperature)
            self._measured = value.tolist()
            return value

        course = self._course
        # where it was stuck it is so again, unless by then the weights are free
        tries = not course.is_stuck or self.num_done == self.hold_weights
        change = self._rule.moved(evaluate, measure, course.last, course.least, tries)
        change = max(change, course.unrest(max(self._measured)))
        if self.tol is None or change > self.tol:
            return change
        evaluate()
        return after_search(change, self._promised(), course.least)

    @property
    def _course(self) -> Course:
        objectives, changes = (self._history.get(name, []) for name in ("objective", "change"))
        held = self.hold_weights if self.num_components > 1 else 0
        return Course(objectives, changes, held, self.graph.dtype)

    # ------------------------------------------------------------------ results
    @outside_modes()
    def posterior(self) -> MixturePosterior:
        """The best restart, with its evidence by rules that the optimiser never saw."""
        graph = self.graph
        with torch.no_grad():
            temperature = self._temperature(max(0, self.num_done - 1))
            mixture, found = certified(
                self.objective, self.parameters, self._rules, temperature, self._is_bound
            )
            root, apart = joined(self.network, mixture)
        return mixture_of_graph(
            graph,
            self.network,
            mixture,
            root,
            is_joint=apart is None,
            converged=self.converged,
            status=with_notes(self.status, [*found.notes, *([] if apart is None else [apart])]),
            history=self.history,
            log_evidence=None if found.evidence is None else found.evidence.to(graph.result_dtype),
            evidence_kind=found.kind,
        )

    @property
    def _is_bound(self) -> bool:
        """Whether the exact free energy is a lower bound of the log evidence."""
        is_joint = self.num_components == 1 and self.network.joins  # independent nodes join too
        return self.network.is_forest or is_joint

    def remedy(self) -> str:
        if self._graph is None:
            return super().remedy()
        return remedy_for(self._rule, self._course, self.tol)

    # ------------------------------------------------------------------ checkpoints
    def carried(self) -> dict[str, Any]:
        return {
            "parameters": {n: v.detach().clone() for n, v in self.parameters.items()},
            "measures": measures_of(self.network),
            "optimizer": deepcopy(self._rule.state_dict()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        rule = deepcopy(state["optimizer"])  # torch keeps what it is given
        refuse_other_rule(self._rule, rule, self.optimizer)
        refuse_other_parameters(self.parameters, state["parameters"])
        kinds = measured_by(self.network, state["measures"])
        self._rule.load_state_dict(rule)
        take(self.network, kinds, self.parameters, state["parameters"])

    def is_at_rest(self) -> bool:
        """Whether the objective is what it was, and gradients promise no more than at rest."""
        course, temperature = self._course, self._temperature(self.num_done - 1)
        try:
            self._graded(temperature)
        except (PyrographError, ValueError, torch.linalg.LinAlgError):  # the run will say so
            return False
        slack = REST * max(self.tol, course.least)
        is_same = abs(max(self._measured) - course.last) <= slack
        return is_same and bool((self._gain() <= slack).all())


def _checked(value: Any, where: str) -> float:
    """A temperature as a number."""
    found = real_number(value)
    if not 0 <= found < math.inf:
        raise OptionError(f"temperature={value!r}{where} must be a finite number, not below 0")
    return found
