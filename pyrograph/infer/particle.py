"""The base of the engines that move particles along gradients.

A step is *move*, then *evaluate*: log density, score and diagnostics at the new particles. If
one of them is not finite the step is undone, so an engine never stands on a broken state, and
what history and status report belongs to the particles it holds.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from pyrograph.checks import count
from pyrograph.diagnostics import value_and_score
from pyrograph.errors import OptionError, ShapeMismatch
from pyrograph.infer import initial
from pyrograph.infer.base import Engine
from pyrograph.infer.laplace import mode_and_width
from pyrograph.infer.laplace_coordinates import (
    coordinates_at,
    drawn_about,
    unit_coordinates,
)
from pyrograph.infer.requires import Continuous
from pyrograph.infer.stein_checks import (
    ERRORS,
    SteinChecks,
    common_errors,
    common_misfit,
    coordinate_name,
    without_density,
)
from pyrograph.kernels import Blanket, Layout, Locality, SteinOperator
from pyrograph.kernels.coordinates import Coordinates
from pyrograph.kernels.locality import Without
from pyrograph.posterior import ParticlePosterior

DEFAULT_PARTICLES = 50
#: What coordinates are saved under, beside what a step rule remembers.
ROOTS, COLUMNS = "laplace_roots", "laplace_columns"
#: Supports of scales.
LATENT_SCALES = (constraints.positive, constraints.nonnegative)


class ParticleEngine(Engine):
    """Particles in the unconstrained space of a program's latents.

    Args:
        model: a Pyro program whose latent sites are all continuous.
        num_particles: n; default as many as ``init`` holds, else 50.
        init: None (N(0, 1) in unconstrained space), ``"laplace"`` (about the mode, see
            :mod:`pyrograph.infer.laplace`, from where on steps and discrepancies are those of
            :mod:`pyrograph.infer.laplace_coordinates`), or see
            :func:`pyrograph.infer.initial.starting_particles`.
        options: see :class:`Engine`; ``tol`` is compared with the graphical KSD (squared,
            V-statistic) of the particles. It has the units of a squared score, 1 / x^2, summed
            over coordinates: the same ``tol`` asks less of a wide density (after
            ``init="laplace"`` in units of the widths there: it has none, and is no longer the
            :func:`.graphical_ksd` of the particles as they are). So ``converged``
            takes besides that the particles pass :class:`.stein_checks.SteinChecks`, which have
            no units: of no coordinate, beside its neighbours as they are, is the mean off, or the
            variance by more than a factor 2 as far as a Gaussian's score tells. Of independent
            particles they may be off by what is common among so many draws. A few smooth sums of
            all coordinates are looked at too, but not every combination of correlated sites, nor
            tails: where sites are strongly correlated or densities heavy-tailed, lower ``tol`` and
            see that ``history["ksd"]`` has stopped falling.

    Shapes:
        particles: ``[n, dim]``, unconstrained, columns in node order.

    Raises:
        UnsupportedSite: a latent site is discrete.
        OptionError: an option is unknown or out of range.
    """

    requires = Continuous()
    unconstrained = True
    monitor = "ksd"

    def __init__(
        self,
        model: Callable,
        *,
        num_particles: int | None = None,
        init: initial.Init | str | None = None,
        **options: Any,
    ):
        super().__init__(model, **options)
        if num_particles is None:
            num_particles = initial.number_of(init) or DEFAULT_PARTICLES
        self.num_particles = count("num_particles", num_particles)
        if isinstance(init, str) and init != "laplace":
            raise OptionError(f'init={init!r} is not "laplace"; see its documentation for others')
        self.init = init

    # What a subclass gives.

    @abstractmethod
    def move(self, x: Tensor, score: Tensor) -> Tensor:
        """New particles from old ones and their scores. May replace ``self.memory``."""

    def start_memory(self, x: Tensor) -> dict[str, Tensor]:
        """What is carried from step to step beside the particles."""
        return {}

    def default_start(self) -> Tensor:
        """Particles when no ``init`` is given: N(0, 1) from the engine's own stream."""
        return initial.normal(self.num_particles, self.graph, self.generator)

    def observe(self, x: Tensor, score: Tensor) -> dict[str, Tensor]:
        """Diagnostics at ``x``; here the KSD, and only if ``tol`` needs it."""
        if self.tol is None:
            return {}
        return {"ksd": self.stein(x, score).discrepancy()}

    def stein_operator(self) -> SteinOperator:
        """The kernel and locality of the KSD."""
        return SteinOperator(
            Layout.of(self.graph), None, self.of_known(Blanket()), self.graph.device
        )

    def of_known(self, locality: Locality) -> Locality:
        """The locality without the kernels of nodes that have no density: these stay."""
        return Without(locality, self._held.cpu()) if self._bare.any() else locality

    # What every particle engine does.

    def diffused(self, x: Tensor, score: Tensor, length: float) -> Tensor:
        """An unadjusted Langevin step, x + length * score + sqrt(2 length) * N(0, 1) in the
        coordinates of the run."""
        noise = (2 * length) ** 0.5 * self.normal(x.shape)
        if self.coordinates is None:
            return x + length * score + noise
        step = length * self.coordinates.of_score(score) + noise
        return x + self.coordinates.outward(step)

    def normal(self, shape: torch.Size) -> Tensor:
        """N(0, 1) of shape ``[n, dim]``, drawn node by node from the engine's own stream."""
        return initial.normal(shape[0], self.graph, self.generator)

    def allocate(self) -> None:
        self._bare = without_density(self.graph)
        widths = self.graph.columns.cpu().diff()
        self._held = self._bare.repeat_interleave(widths).to(self.graph.device)
        self.stein = self.stein_operator()
        #: those of kernels and steps, where the start measures them
        self.coordinates: Coordinates | None = None
        if self.init is None:
            x = self.default_start()
        elif isinstance(self.init, str):
            mode, width = mode_and_width(self.graph)
            self.coordinates = coordinates_at(self.graph, mode, width)
            noise = initial.normal(self.num_particles, self.graph, self.generator)
            x = drawn_about(self.graph, mode, self.coordinates, noise)
        else:
            args, kwargs = self._arguments
            x = initial.starting_particles(self.init, self.num_particles, self.graph, args, kwargs)
        # numbers of one column lie together, as the density and the kernels read them
        x = x.t().contiguous().t()
        self.stein = self.stein.within(self.coordinates)
        self.memory = self.start_memory(x)
        self._evaluate(x)

    def advance(self) -> dict[str, Tensor]:
        before, stream, scopes = dict(vars(self)), self.generator.get_state(), self.stein.scopes
        try:
            with torch.no_grad():
                x = self.move(self.x, self.score)
                if self._bare.any():
                    x = torch.where(self._held, self.x, x)
            return self._evaluate(x)
        except BaseException:  # an interrupt too leaves the step undone, whole
            vars(self).update(before)
            self.generator.set_state(stream)
            self.stein.scopes = scopes
            raise

    def _evaluate(self, x: Tensor) -> dict[str, Tensor]:
        """Measure at ``x`` and, if all is finite, stand there."""
        stream = self.generator.get_state()
        log_p, score = value_and_score(self.graph, x)
        with torch.no_grad():
            measured = {"objective": log_p.mean(), **self.observe(x, score)}
        # draws of observe() are repeated when a saved state is taken up
        self.x, self.score, self._stream = x, score, stream
        return measured

    def posterior(self) -> ParticlePosterior:
        """The particles as they stand, equally weighted."""
        return self.posterior_of()

    def posterior_of(
        self, x: Tensor | None = None, weights: Tensor | None = None
    ) -> ParticlePosterior:
        """A posterior of these or other particles ``[m, dim]``, with what is known of the run."""
        return ParticlePosterior(
            self.graph,
            self.x if x is None else x,
            weights,
            converged=self.converged,
            status=self.status,
            history=self.history,
        )

    def checks(self, errors: float = ERRORS) -> SteinChecks:
        """What Stein's identity says of the particles as they stand, with so many standard errors
        granted to what of them is chance."""
        return SteinChecks.of(*self.as_seen(), errors * self.chance())

    def as_seen(self) -> tuple[Tensor, Tensor]:
        """Particles and scores in the coordinates of kernels and steps, ``[n, dim]`` each."""
        if self.coordinates is None:
            return self.x, self.score
        return self.coordinates.inward(self.x), self.coordinates.of_score(self.score)

    def name_of(self, column: int) -> str:
        """What a column of these is called."""
        name = coordinate_name(self.graph, column)
        is_mixed = self.coordinates is not None and bool(self.coordinates.is_mixed[column])
        return f"{name} (less what later ones tell of it)" if is_mixed else name

    def chance(self) -> float | Tensor:
        """The standard error of a mean over the particles, by that of independent draws; one
        number or ``[dim]``."""
        return 1.0

    @property
    def converged(self) -> bool:
        """Whether ``tol`` was given and met, by particles that pass the Stein checks; see ``tol``
        for what these do not see."""
        if not super().converged or self.num_particles == 1:
            return super().converged
        return self._unsettled() is None and common_misfit(*self.as_seen()) is None

    def _unsettled(self) -> int | None:
        """A coordinate that speaks against a claim of convergence."""
        return self.checks(common_errors(self.graph.dim)).unsettled()

    @property
    def status(self) -> str:
        """``"converged"``, or what happened and what to do."""
        text = super().status
        if super().converged and not self.converged:
            text = (
                f"not converged: after {self.num_done} steps the {self.monitor} is within "
                f"tol={self.tol:.4g}, which has the units of a squared score, but the particles "
                f"do not satisfy Stein's identity{self._how_nearly()}."
            )
        if self.num_done > 0 and self.num_particles > 1 and not self.converged:
            doubts = self.doubts(self.checks())
            text += doubts + self._of_spikes(doubts)
        if self.converged and self.num_particles > 1:
            text += self._of_the_worst()
        return text + self._of_bare_nodes() if self._graph is not None else text

    def _of_the_worst(self) -> str:
        """The coordinate of a converged run whose spread is furthest off; else empty."""
        checks = self.checks()
        column = checks.worst_told()
        if column is None:
            return ""
        return (
            f". The particles' variance at {self.name_of(column)} is "
            f"{checks.ratio[column]:.2f} of the target's, by Stein's identity: for a nearer one "
            "lower tol, or raise num_particles."
        )

    def _how_nearly(self) -> str:
        """Where the identity fails by what chance may do yet seldom does; else empty."""
        checks, column = self.checks(), self._unsettled()
        misfit = common_misfit(*self.as_seen())
        if column is None and misfit is not None:
            return (
                " along a sum of all coordinates, whose mean score times its standard deviation is "
                f"{misfit[0]:.3g} (0 if they fit), its variance by that of the target "
                f"{misfit[1]:.3g} (1): many correlated sites are off or too narrow together. Raise "
                "num_steps, or lower tol"
            )
        if not checks.passed or column is None:
            return ""
        return (
            f" as nearly as {self.num_particles} independent ones commonly do: at "
            f"{self.name_of(column)} the mean score times the standard deviation is "
            f"{checks.shift[column]:.3g} (0 of draws), the variance by that of the target "
            f"{checks.ratio[column]:.3g} (1). Raise num_steps, or num_particles"
        )

    def doubts(self, checks: SteinChecks) -> str:
        """Sentences on mean scores or variances that are off; empty where none is."""
        if not checks.arrived:
            return self._misfit(checks)
        for column, remedy in ((checks.too_wide(), self.wide), (checks.too_narrow(), self.narrow)):
            if column is not None and checks.ratio[column] <= 0:
                return (
                    " By the Stein identity the particles do not have the target's shape at "
                    f"{self.name_of(column)}, where scores rise with the "
                    f"coordinate: {remedy(column)}"
                )
            if column is not None:
                return (
                    " By the Stein identity the particles' variance is "
                    f"{checks.ratio.median():.2f} of the target's (median over coordinates), at "
                    f"{self.name_of(column)} {checks.ratio[column]:.2f}: "
                    f"{remedy(column)}"
                )
        return ""

    def _misfit(self, checks: SteinChecks) -> str:
        """Sentences on a mean score that is not 0: of a mean that is off, or of a shape."""
        column, far = checks.most_shifted(), checks.misshapen()
        spread = ""
        if far is not None:
            size = "wide" if checks.ratio[far] > 1 else "narrow"
            spread = (
                f" Besides, {self.name_of(far)} is too {size}: the variance there "
                f"is {checks.ratio[far]:.2f} of the target's."
            )
        rounding = ""
        if self.graph.dtype != torch.float64:  # of numbers that are known together only
            rounding = f" Or rounding does it: try dtype=torch.float64 (it is {self.graph.dtype})."
        return (
            " Stein's identity (the mean of the score is 0) fails: the mean score of "
            f"{self.name_of(column)} times its standard deviation is "
            f"{checks.shift[column]:.3g}. The particles have not settled about the target's mean, "
            "or, where that is right, not into the shape of the target at this site or a "
            f"neighbour.{spread} {self.not_arrived()}{rounding}"
        )

    def _of_spikes(self, doubts: str) -> str:
        """What a start at the mode may have to do with doubts: a scale that latent sites read may
        draw the mode into a spike where it is almost 0, which particles do not leave."""
        at_mode = isinstance(self.init, str)
        if not doubts or not (at_mode or 'init="laplace"' in doubts):
            return ""
        names = {
            site.name
            for group in self.graph.factors
            if group.arity > 1 and group.name in self.graph.sites
            for site in group.slots
            if site.support in LATENT_SCALES and site.name != group.name
        }
        if not names:
            return ""
        means = self.graph.constrain(self.graph.unflatten(self.x.detach()))
        name = min(names, key=lambda name: float(means[name].mean(0).min()))
        way = "as deviations from their means (pyro.infer.reparam.LocScaleReparam(0.0))"
        if not at_mode:
            return f' Where the site "{name}" scales latent sites write these {way} first.'
        return (
            " A scale of latent sites may draw the mode into a spike near 0: site "
            f'"{name}" is {float(means[name].mean(0).min()):.2g} on average. If that is far too '
            f"small write what it scales {way}."
        )

    def not_arrived(self) -> str:
        """What to do about mean scores that are not 0."""
        if isinstance(self.init, str):
            return "Raise num_particles, or else num_steps."
        return (
            'Give init="laplace", which starts at the mode, or raise num_particles, or else '
            "num_steps."
        )

    def wide(self, column: int) -> str:
        """Why the variance of a coordinate is too large, and what to do."""
        return "they have not settled, raise num_steps."

    def narrow(self, column: int) -> str:
        """Why the variance of a coordinate is too small, and what to do."""
        return "they have not settled, raise num_steps."

    def _of_bare_nodes(self) -> str:
        number = int(self._bare.sum())
        if number == 0:
            return ""
        site, index = self.graph.nodes[int(self._bare.nonzero()[0])]
        place = f"[{', '.join(map(str, index))}]" if index else ""
        return (
            f" {number} of {self.graph.num_nodes} nodes have no density, as masked ones "
            f'(site "{site}"{place} first): their particles stay where they started.'
        )

    def remedy(self) -> str:
        return (
            "n particles cannot bring the discrepancy below a floor that falls with n: if the "
            'history["ksd"] is still falling raise num_steps, else raise num_particles or tol.'
        )

    def carried(self) -> dict[str, Any]:
        return {
            "particles": self.x.clone(),
            "memory": {name: value.clone() for name, value in self._remembered().items()},
            "generator": self._stream.clone(),
        }

    def _remembered(self) -> dict[str, Tensor]:
        """The memory of the rule, and the coordinates if any."""
        if self.coordinates is None:
            return self.memory
        blocks = {ROOTS: self.coordinates.roots, COLUMNS: self.coordinates.columns}
        return {**self.memory, **blocks}

    def restore(self, state: Mapping[str, Any]) -> None:
        saved, memory = state["particles"], state["memory"]
        if saved.shape != self.x.shape or saved.dtype != self.x.dtype:
            raise ShapeMismatch(
                f"the state holds particles of shape {list(saved.shape)} and {saved.dtype}, this "
                f"engine {list(self.x.shape)} and {self.x.dtype}: give num_particles= and dtype= "
                "as in the saved run"
            )
        # a run goes on in the coordinates it was in, whatever start this engine had
        coordinates, own = None, dict(self.memory)
        if ROOTS in memory:
            coordinates = self.coordinates or unit_coordinates(self.graph)
            own |= {ROOTS: coordinates.roots, COLUMNS: coordinates.columns}
        if memory.keys() != own.keys():
            raise ShapeMismatch(
                f"the state remembers {sorted(memory) or 'nothing'}, this engine "
                f"{sorted(own) or 'nothing'}: give optim= as in the saved run"
            )
        for name, ours in own.items():
            theirs = memory[name]
            # squares were once kept in the particles' own precision
            is_like = theirs.is_floating_point() == ours.is_floating_point()
            if theirs.shape != ours.shape or not is_like:
                raise ShapeMismatch(
                    f'the state remembers "{name}" with shape {list(theirs.shape)} and '
                    f"{theirs.dtype}, this engine {list(ours.shape)} and {ours.dtype}: give "
                    "optim= as in the saved run"
                )
        self.generator.set_state(state["generator"].cpu())
        memory = {name: value.to(own[name]) for name, value in memory.items()}
        if coordinates is not None:
            columns = memory.pop(COLUMNS)
            is_same = torch.equal(columns, coordinates.columns)
            coordinates = coordinates.with_roots(memory.pop(ROOTS))
            if not (is_same and coordinates.are_sound):
                raise ShapeMismatch(
                    "the state's coordinates are of other blankets than this graph's, or damaged: "
                    "set the engine up with the model and arguments of the saved run"
                )
        self.memory, self.coordinates = memory, coordinates
        self.stein = self.stein.within(coordinates)
        self._evaluate(saved.to(self.graph.device))
