"""The base of the engines that move particles along gradients.

A step is *move*, then *evaluate*: log density, score and diagnostics at the new particles. If
one of them is not finite the step is undone, so an engine never stands on a broken state, and
what history and status report belongs to the particles it holds.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pyrograph.checks import count
from pyrograph.diagnostics import value_and_score
from pyrograph.errors import NonFiniteDensity, OptionError, ShapeMismatch
from pyrograph.infer import initial
from pyrograph.infer.laplace import mode_and_width
from pyrograph.infer.laplace_coordinates import (
    coordinates_at,
    drawn_about,
    unit_coordinates,
)
from pyrograph.infer.particle_status import ParticleStatus
from pyrograph.infer.requires import Continuous
from pyrograph.infer.stein_checks import without_density
from pyrograph.kernels import Blanket, Layout, Locality, SteinOperator
from pyrograph.kernels.coordinates import Coordinates
from pyrograph.kernels.locality import Without
from pyrograph.posterior import ParticlePosterior

DEFAULT_PARTICLES = 50
#: What coordinates are saved under, beside what a step rule remembers.
ROOTS, COLUMNS = "laplace_roots", "laplace_columns"


class ParticleEngine(ParticleStatus):
    """Particles in the unconstrained space of a program's latents.

    Args:
        model: a Pyro program whose latent sites are all continuous.
        num_particles: n; default as many as ``init`` holds, else 50.
        init: None (N(0, 1) in unconstrained space, see :func:`.initial.within_reach`),
            ``"laplace"`` (about the mode, see :mod:`pyrograph.infer.laplace`, from where on steps
            and discrepancies are those of :mod:`pyrograph.infer.laplace_coordinates`), or see
            :func:`pyrograph.infer.initial.starting_particles`.
        options: see :class:`Engine`; ``tol`` is compared with the graphical KSD (squared,
            V-statistic) of the particles. It has the units of a squared score, 1 / x^2, summed
            over coordinates: the same ``tol`` asks less of a wide density (after
            ``init="laplace"`` in units of the widths there: it has none, and is no longer the
            :func:`.graphical_ksd` of the particles as they are). So ``converged``
            takes besides that the particles pass :class:`.stein_checks.SteinChecks`, which have
            no units: of no coordinate, beside its neighbours as they are, is the mean off, or the
            variance by more than a factor 2 as far as a Gaussian's score tells. Of independent
            particles they may be off by what is common among so many draws, the variance by a
            quarter, and less on average over a site. A few smooth sums of
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
    #: How often a step that ends where there is no density is halved. Noise may not be.
    halvings = 0
    stands_in = False  # particles stay where they are drawn

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
        """Particles when no ``init`` is given: N(0, 1) from the engine's own stream, nearer to 0
        where that lies absurdly low."""
        drawn = initial.normal(self.num_particles, self.graph, self.generator)
        return initial.within_reach(self.graph, drawn)

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

    def diffused(
        self, x: Tensor, score: Tensor, length: float, longest: float = math.inf
    ) -> Tensor:
        """An unadjusted Langevin step, x + length * score + sqrt(2 length) * N(0, 1) in the
        coordinates of the run; no drift is longer than so many standard deviations of the noise."""
        width = (2 * length) ** 0.5
        drift = length * (score if self.coordinates is None else self.coordinates.of_score(score))
        step = drift.clamp(-longest * width, longest * width) + width * self.normal(x.shape)
        return x + (step if self.coordinates is None else self.coordinates.outward(step))

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
            return self._evaluate_nearby(x)
        except BaseException:  # an interrupt too leaves the step undone, whole
            vars(self).update(before)
            self.generator.set_state(stream)
            self.stein.scopes = scopes
            raise

    def _evaluate_nearby(self, x: Tensor) -> dict[str, Tensor]:
        """The same, on the way to ``x`` where a step reaches so far that there is no density."""
        for _ in range(self.halvings):
            try:
                return self._evaluate(x)
            except NonFiniteDensity:
                x = self.x.lerp(x, 0.5)
        return self._evaluate(x)

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
