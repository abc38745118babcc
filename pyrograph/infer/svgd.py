"""Graphical Stein variational gradient descent: each node sees only its Markov blanket.

    phi_i(x) = (1/n) sum_l [ k_i(x_l, x) d_i log p(x_l) + d_{x_l,i} k_i(x_l, x) ]
    k_i(x, x') = exp(-||x_Ci - x'_Ci||^2 / h_i),      C_i = {i} and the Markov blanket of i
    x_i <- x_i + step * phi_i(x)

One kernel per node on a low-dimensional scope instead of one kernel on everything, whose
repulsion vanishes as the dimension grows. O(n^2 sum_i |C_i|) a step, memory bounded by a chunk
of nodes. The discrepancy that phi decreases is recorded at the price of a few more products.

The default kernel adds to that of eq (8) a linear one on the same blanket: with few particles the
first understates variances, and the second holds them up at next to no cost.

Source: Wang, Zeng & Liu (2018), Algorithm 1 and eq (8).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pyrograph.checks import count, flag, positive, real_number
from pyrograph.diagnostics import (
    stein_gram,
    stein_thinning,
    stein_weights,
    value_and_score,
)
from pyrograph.errors import OptionError, ShapeMismatch
from pyrograph.infer import initial
from pyrograph.infer.optimizer import AdaGrad, Optimizer, RMSProp, started, stepped
from pyrograph.infer.particle import ParticleEngine
from pyrograph.kernels import (
    RBF,
    Global,
    Kernel,
    Layout,
    Linear,
    Locality,
    SteinOperator,
    Sum,
    Summable,
)
from pyrograph.kernels.additive import terms_of
from pyrograph.kernels.locality import resolve
from pyrograph.posterior import ParticlePosterior

#: Of the code that was released with the paper: steps, and r of the start U(-r, r).
PAPER_STEPS = 5000
PAPER_REACH = 5.0
#: Steps between measurements of the bandwidths.
REFRESH = 10
#: Share of the missing variance that particles still gain along their direction (in the units of
#: variance ratios) above which they spread yet. Settled runs stay below 0.01.
SPREADING = 0.05
#: How often a step that ends where there is no density is halved.
HALVINGS = 20


def default_kernel() -> Sum:
    """``0.7 * RBF() + 0.3 * Linear()``: of the sums tried (``benchmarks/svgd``) the one that gains
    much on Gaussian targets, keeps the modes of a sensor network and does no harm where particles
    are few beside stiff blankets. A term ``Own(RBF())`` gains more in some places and fails in
    these two."""
    return 0.7 * RBF() + 0.3 * Linear()


class GraphicalSVGD(ParticleEngine):
    """Stein variational gradient descent with kernels on Markov blankets.

    Args:
        model: a Pyro program whose latent sites are all continuous.
        kernel: a kernel or a sum of them; default :func:`default_kernel`, with
            ``locality="global"`` ``RBF()``, the textbook's. ``RBF()`` is eq (8).
        paper: the paper's kernel and released schedule: RBF with the median rule at every step,
            start U(-5, 5), RMSProp with lr 5e-3, 5000 steps.
        num_steps: default 1000.
        tol: stop when the graphical KSD (squared, V-statistic, of the engine's own kernel and
            locality) is at most this.
        locality: ``"blanket"``, ``"global"`` (textbook SVGD), ``RandomNeighbors(k)``,
            ``Mixed(a, b, weight)``.
        optim: a step rule, default ``AdaGrad(lr=1.0)``.
        decay: ``"cosine"`` lets steps shrink to nothing over ``num_steps``, which removes the
            jitter of rules that do not settle, Adam and RMSProp; None leaves them.
        refresh: bandwidths are measured at each of the first ``refresh`` steps, then at every
            ``refresh``-th: they change slowly, and the median costs more than all the rest.
        anneal: steps over which the density is tempered, p^(t / anneal) at step t: particles
            spread over the modes before they settle. Fewer than ``num_steps``.
        noise: length of an unadjusted Langevin step made beside every Stein step; both leave
            the target, tempered as ``anneal`` says, as it is.
        compile: evaluate kernels through ``torch.compile``: seconds to start, then some 20 %
            faster on a CPU. Needs a C++ compiler there.
        num_particles: n, default 50 or as many as ``init`` holds; with one particle this is
            gradient ascent.
        init: default N(0, 1) in unconstrained space; see :class:`ParticleEngine`. Particles that
            start alike are moved apart by a little at the first step (without ``noise``), see
            :func:`pyrograph.infer.initial.apart`; after ``"laplace"`` kernels look and ``optim``
            steps in coordinates in which the density is round there, see
            :mod:`pyrograph.infer.laplace_coordinates`.
        thin: keep this many particles, chosen by Stein thinning, in the posterior.
        reweight: weight the posterior's particles to the least Stein discrepancy.
        options: see :class:`ParticleEngine` and :class:`Engine`.

    Shapes:
        particles: ``[n, dim]``, unconstrained, columns in node order.

    Raises:
        UnsupportedSite: a latent site is discrete.
        OptionError: an option is unknown, out of range, or contradicts ``paper=True``.
    """

    def __init__(
        self,
        model: Callable,
        *,
        kernel: Kernel | Summable | None = None,
        paper: bool = False,
        num_steps: int | None = None,
        locality: Locality | str = "blanket",
        optim: Optimizer | None = None,
        decay: str | None = None,
        refresh: int | None = None,
        anneal: int = 0,
        noise: float = 0.0,
        compile: bool = False,
        thin: int | None = None,
        reweight: bool = False,
        **options: Any,
    ):
        if num_steps is None:
            num_steps = PAPER_STEPS if paper else 1000
        super().__init__(model, num_steps=num_steps, **options)
        if paper and not (kernel is None and optim is None and refresh is None):
            raise OptionError("paper=True chooses kernel, optim and refresh; leave them out")
        self.paper = paper
        self.locality = resolve(locality)
        if kernel is None:
            textbook = paper or isinstance(self.locality, Global)
            kernel = RBF() if textbook else default_kernel()
        terms_of(kernel)  # raises if it is none
        self.kernel = kernel
        self.optim = optim or (RMSProp() if paper else AdaGrad())
        known = hasattr(self.optim, "start") and hasattr(self.optim, "step")
        if isinstance(self.optim, type) or not known:
            raise OptionError(f"optim={optim!r} is not a step rule such as pg.infer.AdaGrad()")
        if decay not in (None, "cosine"):
            raise OptionError(f'decay={decay!r} is not "cosine" or None')
        self.decay = decay
        if refresh is None:
            refresh = 1 if paper else REFRESH
        self.refresh = count("refresh", refresh)
        self.anneal = count("anneal", anneal, least=0)
        nothing = noise is None or real_number(noise) == 0
        self.noise = 0.0 if nothing else positive("noise", noise)
        self.compile = compile
        self.thin = None if thin is None else count("thin", thin)
        self.reweight = flag("reweight", reweight)

    def stein_operator(self) -> SteinOperator:
        return SteinOperator(
            Layout.of(self.graph),
            self.kernel,
            self.of_known(self.locality),
            self.graph.device,
            self.generator,
            self.compile,
        )

    @property
    def halvings(self) -> int:
        return 0 if self.noise else HALVINGS

    def default_start(self) -> Tensor:
        if not self.paper:
            return super().default_start()
        return initial.uniform(self.num_particles, self.graph, self.generator, PAPER_REACH)

    def start_memory(self, x: Tensor) -> dict[str, Tensor]:
        return started(self.optim, x, self.coordinates)

    def allocate(self) -> None:
        self._bandwidths: list[Tensor] | None = None
        self._restoring = False
        super().allocate()

    def observe(self, x: Tensor, score: Tensor) -> dict[str, Tensor]:
        if self.locality.redraws:
            self.stein.draw()
        fresh = self.locality.redraws or self._due()
        field = self.stein(x, score, bandwidths=None if fresh else self._bandwidths)
        self._direction, self._bandwidths = field.direction, field.bandwidths
        return {"ksd": field.discrepancy()}

    def _due(self) -> bool:
        """Whether bandwidths are to be measured; not when a saved state is taken up."""
        early = self.num_done < self.refresh
        return not self._restoring and (early or self.num_done % self.refresh == 0)

    def move(self, x: Tensor, score: Tensor) -> Tensor:
        direction, length = self._direction, 1.0
        if self.num_done + 1 < self.anneal:
            score = (self.num_done + 1) / self.anneal * score  # of Langevin's step too
            field = self.stein(x, score, discrepancy=False, bandwidths=self._bandwidths)
            direction = field.direction
        if self.decay is not None:
            over = self.num_done >= self.num_steps
            share = 1.0 if over else self.num_done / self.num_steps
            length = 0.5 * (1 + math.cos(math.pi * share))
        there, self.memory = stepped(self.optim, x, direction, self.memory, self.coordinates)
        x = there if length == 1 else x.lerp(there, length)
        if self.noise:
            step = length * self.noise
            x = self.diffused(x, score, step)
        elif self.num_done == 0:  # whatever made the start: a saved one does not tell
            x = initial.apart(x, self.x, self.normal)
        return x

    def posterior(self) -> ParticlePosterior:
        """The particles as they stand: equally weighted, thinned or reweighted as asked for."""
        if self.thin is None and not self.reweight:
            return super().posterior()
        # random scopes are those that the engine would draw next, whenever it is asked
        stream = torch.Generator()
        stream.set_state(self._stream)
        gram = stein_gram(
            self.graph, self.x, self.kernel, self.stein.locality, stream, None, self.coordinates
        )
        x, weights = self.x, None
        if self.thin is not None:
            chosen = stein_thinning(gram, self.thin)
            x, gram = x[chosen], gram[chosen][:, chosen]
        if self.reweight:
            weights = stein_weights(gram)
        return self.posterior_of(x, weights)

    def chance(self) -> float | Tensor:
        """0: particles that arrange themselves miss no identity by chance, but for the noise."""
        if not self.noise:
            return 0.0
        # what noise has put into the scores so far (as if none of it were forgotten), by their
        # spread: H^2 v with v the sum of the steps' variances, by H, where H is the precision
        precision = self.as_seen()[1].var(0, correction=0)
        return (2 * self.noise * self.num_done * precision).clamp_max(1).sqrt()

    @property
    def status(self) -> str:
        """``"converged"``, or what happened and what to do."""
        text = super().status
        if 0 < self.num_done < self.anneal:
            text += (
                f" The density was tempered up to the last step, as anneal={self.anneal} is more "
                f"than the {self.num_done} steps done: the particles are too wide. Raise num_steps "
                "or lower anneal."
            )
        return text

    def wide(self, column: int) -> str:
        other = "" if isinstance(self.init, str) else ' or give init="laplace"'
        return f"they have not settled, raise num_steps{other}."

    def narrow(self, column: int) -> str:
        x, direction = self.as_seen()[0][:, column], self._direction
        if self.coordinates is not None:
            direction = self.coordinates.inward(direction)
        gain = float((direction[:, column] * (x - x.mean())).mean())
        missing = 1 - float(self.checks().ratio[column])
        if gain > SPREADING * missing:
            other = "" if isinstance(self.init, str) else ', or give init="laplace"'
            return f"they are still spreading. Raise num_steps, or the lr of optim={other}."
        widest = max(int(b.size.max()) for _, buckets in self.stein.scopes for b in buckets)
        additive = any(isinstance(kernel, Linear) for _, kernel in terms_of(self.kernel))
        other = "" if additive else ", or leave out kernel=: the default holds variances up better"
        return (
            f"{self.num_particles} particles are too few for kernels on up to {widest} numbers. "
            f"Raise num_particles{other}."
        )

    def carried(self) -> dict[str, Any]:
        kept = {str(k): h.clone() for k, h in enumerate(self._bandwidths)}
        return {**super().carried(), "bandwidths": kept}

    def restore(self, state: Mapping[str, Any]) -> None:
        saved = [h.to(self.graph.device) for h in state["bandwidths"].values()]
        theirs, ours = ([list(h.shape) for h in held] for held in (saved, self._bandwidths))
        # random scopes have other shapes at each draw, and are measured anew
        if theirs != ours and not self.locality.redraws:
            raise ShapeMismatch(
                f"the state holds bandwidths of shapes {theirs}, this engine {ours}: give kernel= "
                "and locality= as in the saved run"
            )
        self._bandwidths, self._restoring = saved, True
        try:
            super().restore(state)
        finally:
            self._restoring = False

    def direction(self, x: Tensor) -> Tensor:
        """phi at any particles, ``[n, dim] -> [n, dim]``, unconstrained, columns in node order.

        A random locality uses the scopes of its last draw.

        Raises:
            ShapeMismatch: there are no particles, or the columns do not fit the graph.
            NonFiniteDensity: the score is not finite.
        """
        if not isinstance(x, Tensor):
            raise ShapeMismatch(
                f"particles are a {type(x).__name__}; expected a tensor [n, {self.graph.dim}]"
            )
        if x.dim() != 2 or x.shape[1] != self.graph.dim or len(x) == 0:
            raise ShapeMismatch(
                f"particles have shape {list(x.shape)}; expected [n, {self.graph.dim}]"
            )
        x = x.to(self.graph.device, self.graph.dtype)
        _, score = value_and_score(self.graph, x)
        with torch.no_grad():
            return self.stein(x, score, discrepancy=False).direction
