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

from pyrograph.diagnostics import value_and_score
from pyrograph.errors import NonFiniteDensity, OptionError, ShapeMismatch
from pyrograph.infer import initial
from pyrograph.infer.base import Engine
from pyrograph.infer.laplace import laplace
from pyrograph.infer.options import count
from pyrograph.infer.requires import Continuous
from pyrograph.kernels import Layout, SteinOperator
from pyrograph.posterior import ParticlePosterior

DEFAULT_PARTICLES = 50


class ParticleEngine(Engine):
    """Particles in the unconstrained space of a program's latents.

    Args:
        model: a Pyro program whose latent sites are all continuous.
        num_particles: n; default as many as ``init`` holds, else 50.
        init: None (N(0, 1) in unconstrained space), ``"laplace"`` (about the mode, see
            :mod:`pyrograph.infer.laplace`), or see
            :func:`pyrograph.infer.initial.starting_particles`.
        options: see :class:`Engine`; ``tol`` is compared with the graphical KSD (squared,
            V-statistic) of the particles.

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
        return SteinOperator(Layout.of(self.graph), device=self.graph.device)

    # What every particle engine does.

    def normal(self, shape: torch.Size) -> Tensor:
        """N(0, 1) of shape ``[n, dim]``, drawn node by node from the engine's own stream."""
        n, dim = shape
        draw = torch.randn(dim, n, generator=self.generator, dtype=torch.float64)
        return draw.t().to(self.graph.device, self.graph.dtype)

    def allocate(self) -> None:
        self.stein = self.stein_operator()
        if self.init is None:
            x = self.default_start()
        elif isinstance(self.init, str):
            x = laplace(self.num_particles, self.graph, self.generator)
        else:
            args, kwargs = self._arguments
            x = initial.starting_particles(self.init, self.num_particles, self.graph, args, kwargs)
        # numbers of one column lie together, as the density and the kernels read them
        x = x.t().contiguous().t()
        self.memory = self.start_memory(x)
        self._evaluate(x)

    def advance(self) -> dict[str, Tensor]:
        memory, stream = self.memory, self.generator.get_state()
        try:
            with torch.no_grad():
                x = self.move(self.x, self.score)
            return self._evaluate(x)
        except NonFiniteDensity:
            self.memory = memory
            self.generator.set_state(stream)
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

    def remedy(self) -> str:
        return (
            "n particles cannot bring the discrepancy below a floor that falls with n: if the "
            'history["ksd"] is still falling raise num_steps, else raise num_particles or tol.'
        )

    def carried(self) -> dict[str, Any]:
        return {
            "particles": self.x.clone(),
            "memory": {name: value.clone() for name, value in self.memory.items()},
            "generator": self._stream.clone(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        saved, memory = state["particles"], state["memory"]
        if saved.shape != self.x.shape or saved.dtype != self.x.dtype:
            raise ShapeMismatch(
                f"the state holds particles of shape {list(saved.shape)} and {saved.dtype}, this "
                f"engine {list(self.x.shape)} and {self.x.dtype}: give num_particles= and dtype= "
                "as in the saved run"
            )
        if memory.keys() != self.memory.keys():
            raise ShapeMismatch(
                f"the state remembers {sorted(memory) or 'nothing'}, this engine "
                f"{sorted(self.memory) or 'nothing'}: give optim= as in the saved run"
            )
        for name, ours in self.memory.items():
            if memory[name].shape != ours.shape or memory[name].dtype != ours.dtype:
                raise ShapeMismatch(
                    f'the state remembers "{name}" with shape {list(memory[name].shape)} and '
                    f"{memory[name].dtype}, this engine {list(ours.shape)} and {ours.dtype}: give "
                    "optim= as in the saved run"
                )
        self.generator.set_state(state["generator"].cpu())
        self.memory = {name: value.to(self.memory[name].device) for name, value in memory.items()}
        self._evaluate(saved.to(self.graph.device))
