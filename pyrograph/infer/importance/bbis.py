"""Black-box importance sampling: points of any origin, weighted by their Stein discrepancy.

    w = argmin sum_lm w_l w_m k_p(x_l, x_m),    w >= 0,  sum_l w_l = 1

k_p is the Stein kernel of the program: the discrete one (:mod:`.discrete_stein`) where the sites
are discrete, the Langevin one (:func:`pyrograph.diagnostics.stein_gram`) where they are continuous.
Neither the density of the proposal nor the normaliser of p is needed, and for S the least value

    |sum_l w_l f(x_l) - E_p f| <= C_f sqrt(S),

C_f the norm of f - E_p f in the space of k_p. O(n^2) numbers and a quadratic program. C_f is large
where p hardly connects its modes: the discrepancy then says little about their masses, and weights
may serve worse than equal ones. They pay for points of a biased law, not for good draws of p.

Source: Liu & Lee (2017), "Black-box importance sampling"; on discrete programs Li, Zeng, Vergari &
Van den Broeck (2021), section 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from pyrograph.checks import count, real_number
from pyrograph.circuits.expectations.kernels import Kernel as CircuitKernel
from pyrograph.diagnostics import stein_gram
from pyrograph.diagnostics.score import log_densities
from pyrograph.errors import NonFiniteDensity, OptionError, ShapeMismatch, UnsupportedSite
from pyrograph.graph import FactorGraph
from pyrograph.infer import initial
from pyrograph.infer.base import Engine, with_notes
from pyrograph.infer.dpvi.network import Network
from pyrograph.infer.dpvi.particles import refuse_other_scores
from pyrograph.infer.importance.discrete_stein import (
    discrete_stein_gram,
    shift_ratios,
)
from pyrograph.infer.importance.gibbs import Gibbs
from pyrograph.infer.importance.proposals import Proposal, continuous_points, discrete_points
from pyrograph.infer.importance.simplex_qp import SimplexWeights, minimise_on_simplex
from pyrograph.infer.importance.zeros import doubled_eps, refuse_zeros, zero_entries
from pyrograph.infer.requires import FiniteOrContinuous
from pyrograph.kernels.stein import takes_double
from pyrograph.posterior import ParticlePosterior, Posterior
from pyrograph.posterior.discrete_particles import DiscreteParticles

DEFAULT_POINTS = 200
#: Of a discrepancy or its gradient, relative to the size of its terms: the last digits of some.
ROUNDING = 8 * torch.finfo(torch.float64).eps
#: Share of the mass from which on the points' own densities are better weights, and how far from
#: these, in total variation, weights are told of.
MOST_OF_ALL, FAR_APART = 0.5, 0.2
#: Characters of an option that a message shows.
MOST_SHOWN = 80


class BBIS(Engine):
    """Importance weights by a Stein discrepancy.

    Args:
        model: a Pyro program whose latent sites are all finite discrete and positive everywhere, or
            all continuous.
        samples: ``{site: [n, *site shape]}``, the points.
        proposal: or where they come from: a posterior (its particles), a guide, a function, or
            :class:`pyrograph.infer.Gibbs`; default ``Gibbs()``, on discrete programs.
        num_particles: n; default as many as there are samples or particles, else 200.
        kernel: discrete programs: of :mod:`pyrograph.circuits`, default ``Hamming()``; continuous
            ones: as for :func:`pyrograph.diagnostics.graphical_ksd`.
        locality: of the kernel on continuous programs, as there.
        smoothing: added to every weight before they are normalised again (the figures of Li et al.
            use 0.01).
        num_steps: the quadratic program is solved in one; with none, weights are equal.
        options: see :class:`Engine`; ``tol`` is for the gap of the quadratic program, relative to
            the discrepancy of equal weights.

    Attributes:
        weights: ``[n]`` float64, in the order of the points; equal points share equally.

    Raises:
        UnsupportedSite: discrete and continuous sites are mixed, or a site has infinitely many
            states; or a continuous site's support depends on latents, and the points are neither
            flat nor of a posterior of this program.
        UnsupportedFactor: a factor of a discrete program is zero somewhere, or of a probability
            that torch's distributions clamp (within 2 eps of 0 or 1): soften it, or give it as
            logits if it is meant.
        OptionError: an option is unknown or out of range, or a sample is outside its support.
        ShapeMismatch: samples miss a site, name one that is not there, or have another shape; a
            function does not give ``num_particles`` points.
    """

    requires = FiniteOrContinuous()
    unconstrained = True
    monitor = "gap"

    def __init__(
        self,
        model: Callable,
        *,
        samples: Mapping[str, Tensor] | None = None,
        proposal: Proposal | None = None,
        num_particles: int | None = None,
        kernel: Any = None,
        locality: Any = "blanket",
        smoothing: float = 0.0,
        num_steps: int = 1,
        tol: float | None = 1e-9,
        **options: Any,
    ):
        super().__init__(model, num_steps=num_steps, tol=tol, **options)
        if samples is not None and proposal is not None:
            raise OptionError("give samples= or proposal=, not both")
        self.proposal = proposal if samples is None else samples
        held = None if isinstance(self.proposal, Gibbs) else initial.number_of(self.proposal)
        if samples is not None and num_particles not in (None, held):
            raise OptionError(
                f"num_particles={num_particles!r}, but samples= holds {held}: leave it out"
            )
        if held == 0:
            raise OptionError("num_particles=0: no sample is given, there is nothing to weigh")
        if num_particles is None:
            num_particles = DEFAULT_POINTS if held is None else held
        self.num_particles = count("num_particles", num_particles)
        self.kernel, self.locality, self.smoothing = kernel, locality, real_number(smoothing)
        if not 0 <= self.smoothing < math.inf:
            raise OptionError(f"smoothing={smoothing!r} must be finite and at least 0")

    # ------------------------------------------------------------------ points
    def read(self, args: tuple, kwargs: dict) -> FactorGraph:
        random_state = torch.get_rng_state()
        graph = super().read(args, kwargs)
        kinds = {site.is_discrete: site for site in graph.sites.values()}
        if len(kinds) == 2:
            raise UnsupportedSite(
                f"{kinds[True].describe()} is discrete and {kinds[False].describe()} is "
                f"continuous; {type(self).__name__} has a Stein kernel for discrete programs and "
                "one for continuous ones, and none for both. Sum the discrete sites out in the "
                "model, or condition on them."
            )
        self.is_discrete = True in kinds
        if self.is_discrete:
            with torch.random.fork_rng(devices=[]), doubled_eps():
                torch.set_rng_state(random_state)
                self._doubled = super().read(args, kwargs)
        return graph

    def allocate(self) -> None:
        """Draws the points: ``x``, ``[V, n]`` codes or ``[n, dim]`` unconstrained numbers.

        Raises:
            OptionError: the kernel is of the other kind.
        """
        if self.kernel is not None and self.is_discrete != isinstance(self.kernel, CircuitKernel):
            kind = "pg.circuits" if self.is_discrete else "pg.kernels"
            raise OptionError(f"kernel={self.kernel!r}: on this program take one of {kind}")
        if self.is_discrete:
            self.network = Network.of_graph(self.graph)
            self.zeros = zero_entries(self.network, self._doubled)
            del self._doubled
            self.check_density()
        self.x = self.points()
        self._take(None)

    def check_density(self) -> None:
        """Whether the Stein identity holds."""
        refuse_zeros(self.graph, self.zeros)

    def points(self) -> Tensor:
        """``[V, n]`` codes, or ``[n, dim]``."""
        return self.points_of(self.proposal)

    def points_of(self, proposal: Proposal | None) -> Tensor:
        """As :meth:`points`."""
        graph, n = self.graph, self.num_particles
        if self.is_discrete:
            proposal = Gibbs() if proposal is None else proposal
            found = (proposal, n, graph, self.network, self.generator, self._arguments)
            return discrete_points(*found)
        if proposal is None:
            raise OptionError(
                "a continuous program has no default proposal: give samples={site: values}, or as "
                "the proposal a posterior (of pg.Langevin, pg.GraphicalSVGD) or a guide"
            )
        return continuous_points(proposal, n, graph, self._arguments)

    def distinct(self) -> tuple[Tensor, Tensor]:
        """Points among which none is twice, and of every point the number among them."""
        x, which = self.x.unique(dim=1 if self.is_discrete else 0, return_inverse=True)
        return x, which

    def gram(self, x: Tensor) -> Tensor:
        """The Stein kernel of points as :meth:`distinct` gives them, ``[m, m]``.

        Raises:
            NonFiniteDensity: a score, or a ratio of probabilities, is not finite.
        """
        if not self.is_discrete:
            how = self.kernel, self.locality, self.generator
            # in single precision the least of w'Kw would be what rounding makes negative
            takes = self.kernel is None or takes_double(self.kernel)
            dtype = torch.float64 if takes else None
            return stein_gram(self.graph, x, *how, dtype=dtype).double()
        ratios = shift_ratios(self.network, x)
        return discrete_stein_gram(x, ratios, self.network.cards, self.kernel)

    def scores(self, x: Tensor) -> Tensor:
        """Log densities of points, ``[n]``, by which those of other data or parameters are told."""
        return self.network.score(x) if self.is_discrete else log_densities(self.graph, x)

    # ------------------------------------------------------------------ weights
    def advance(self) -> dict[str, Tensor]:
        distinct, which = self.distinct()
        gram = self.gram(distinct)
        if not bool(gram.isfinite().all()):
            raise NonFiniteDensity("the Stein kernel overflows at one of the points")
        solved = minimise_on_simplex(gram, polish=True)
        copies = which.bincount().double().cpu()
        equal = copies / copies.sum()
        # the gap is that of the program; what is added to weights afterwards is the user's wish
        weights = solved.weights + self.smoothing * copies
        weights = weights / weights.sum()
        gram = gram.cpu()
        objective, uniform = ((w @ (gram @ w)).clamp_min(0.0) for w in (weights, equal))
        size = gram.diagonal().clamp_min(0.0).sqrt()
        self._take((weights / copies)[which.cpu()].to(gram.device))
        least = (ROUNDING * (equal @ size) ** 2).clamp_min(1e-300)
        return {
            "objective": objective,
            "gap": torch.tensor(_beyond_rounding(gram, solved), device="cpu")
            / uniform.clamp_min(least),
            "equal_weights": uniform,
        }

    def _take(self, weights: Tensor | None) -> None:
        n = self.x.shape[1 if self.is_discrete else 0]
        self.is_weighted = weights is not None
        equal = torch.full((n,), 1 / n, dtype=torch.float64, device="cpu")
        self.weights = (equal if weights is None else weights).to(self.x.device)

    def posterior(self) -> Posterior:
        """The points as given, with their weights."""
        run = {"converged": self.converged, "status": self.status, "history": self.history}
        if not self.is_discrete:
            weights = self.weights.to(self.graph.dtype, copy=True)
            return ParticlePosterior(self.graph, self.x, weights, **run)
        return DiscreteParticles(self.graph, self.x, self.weights.log(), **run)

    @property
    def status(self) -> str:
        """``"converged"``, or what happened."""
        if self._graph is not None and not self.is_weighted:
            return "no step was made: the points have equal weights. Call run() or step()."
        better = None if self._graph is None else self.better_weights()
        return with_notes(super().status, [better] if better else [])

    def better_weights(self) -> str | None:
        """What to say of points that hold most of the mass of all states, where their weights are
        far from their shares of it."""
        mass = self.network.log_mass if self.is_discrete else None
        if mass is None:
            return None
        x, which = self.distinct()
        score = self.network.score(x).double()
        held = math.exp(min(float(score.logsumexp(0)) - mass, 0.0))
        share = score.softmax(0)
        own = torch.zeros_like(share).index_add(0, which, self.weights)
        apart = 0.5 * float((own - share).abs().sum())
        if held < MOST_OF_ALL or apart < FAR_APART:
            return None
        return (
            f"The {len(share)} distinct points hold {held:.2g} of the mass of all states, and the "
            f"weights are {apart:.2g} (total variation) from their shares of it, which serve "
            "better: take pg.DPVI(init=...) from these points."
        )

    def remedy(self) -> str:
        return (
            "The quadratic program is solved to what rounding leaves: raise tol, or leave out "
            "points at which the density falls off steeply."
        )

    # ------------------------------------------------------------------ checkpoints
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "options": self.options()}

    def options(self) -> dict[str, str]:
        """What weights depend on beside program and points, as texts."""
        options = {"kernel": self.kernel, "smoothing": self.smoothing}
        if not self.is_discrete:
            options["locality"] = self.locality
        return {"engine": type(self).__name__} | {k: told(v) for k, v in options.items()}

    def carried(self) -> dict[str, Any]:
        return {
            "points": self.x.clone(),
            "weights": self.weights.clone(),
            "scores": self.scores(self.x),
            "generator": self.generator.get_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._check_options(state.get("options", {}))  # which older states do not have
        x = state["points"].to(self.x.device)
        if x.shape != self.x.shape:
            raise ShapeMismatch(
                f"the state holds points of shape {list(x.shape)}, this engine "
                f"{list(self.x.shape)}: give num_particles= or samples= as in the saved run"
            )
        if state["weights"].shape != self.weights.shape:
            raise ShapeMismatch(
                f"the state holds weights of shape {list(state['weights'].shape)} for "
                f"{len(self.weights)} points: it is damaged, or of another engine"
            )
        self.check_held(x)
        if self.is_discrete and bool((x >= self.network.cards.unsqueeze(1)).any()):
            raise ShapeMismatch(
                "the state is of other numbers of states: set up with the arguments of the saved "
                "run"
            )
        # weights are right for the program that they were computed for alone
        now = self.scores(x)
        refuse_other_scores(state["scores"].to(now.device), now, "give its points by samples=")
        self.x = x
        self._take(state["weights"])
        self.is_weighted = bool(len(state["history"].get("objective", ())))
        self.generator.set_state(state["generator"].cpu())

    def _check_options(self, saved: Mapping[str, str]) -> None:
        for name, ours in self.options().items():
            theirs = saved.get(name, ours)
            if theirs != ours:
                raise ShapeMismatch(
                    f"the state is of another run: {name} is {shortened(theirs)} there and "
                    f"{shortened(ours)} here, so its weights are not this engine's. Set it up as "
                    "the saved run was, or give the state's points by samples="
                )

    def check_held(self, x: Tensor) -> None:
        """Whether points ``[V, n]`` of a state hold what this engine's do.

        Raises:
            ShapeMismatch: they do not.
        """
        if self.is_discrete and bool((x < 0).any()):
            raise ShapeMismatch(
                "the state's points sum nodes out: it is of pg.CollapsedBBIS, set that up"
            )


def _beyond_rounding(gram: Tensor, solved: SimplexWeights) -> float:
    """The gap of a quadratic program; 0 where rounding accounts for it, as at weights that leave no
    discrepancy."""
    w, size = solved.weights, gram.diagonal().clamp_min(0.0).sqrt()
    of_weights = w @ size  # the terms of a gradient are w_m K_lm, |K_lm| <= size_l size_m
    rounding = ROUNDING * of_weights * (of_weights + size)
    return solved.gap if bool((w @ (gram @ w) - gram @ w > rounding).any()) else 0.0


def told(value: Any) -> str:
    """An option as a text that is the same in another process, with all digits."""
    if isinstance(value, Tensor):
        return str(value.tolist())
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(told, value))}]"
    if is_dataclass(value):
        return f"{type(value).__name__}({told([getattr(value, f.name) for f in fields(value)])})"
    text = repr(value)
    return type(value).__name__ if " at 0x" in text else text


def shortened(text: str) -> str:
    """For a message."""
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
