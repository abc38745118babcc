"""Graphical kernelized Stein discrepancy of particles against the density of a graph.

    D^2 = sum_i E_{x,x'} [ s_i s'_i k_i + s_i d_{x'_i} k_i + s'_i d_{x_i} k_i
                           + d_{x_i} d_{x'_i} k_i ],        s = grad log p

with k_i on the closed Markov blanket of i. Zero exactly when every conditional p(x_i | blanket)
is matched, if the kernels are integrally strictly positive definite; it needs no normaliser
and no samples of p. O(n^2 sum_i |C_i|) time, chunked memory.

Source: Wang, Zeng & Liu (2018), Theorem 2 and eq (10).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from pyrograph.diagnostics.score import outside_modes, value_and_score
from pyrograph.diagnostics.support import (
    DRAW_THE_PLANE,
    free_values,
    refuse_complex,
    shared_columns,
)
from pyrograph.errors import OptionError, ShapeMismatch, UnsupportedSite
from pyrograph.graph import FactorGraph
from pyrograph.kernels import Kernel, Layout, Locality, SteinOperator, Summable
from pyrograph.kernels.coordinates import Coordinates
from pyrograph.kernels.stein import check_statistic, takes_double
from pyrograph.posterior.pushforward import is_real
from pyrograph.trace.sites import tensor_of


@outside_modes()
def graphical_ksd(
    graph,
    x,
    kernel: Kernel | Summable | None = None,
    locality: Locality | str = "blanket",
    statistic: str = "V",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Squared discrepancy, summed over coordinates.

    Args:
        graph: a FactorGraph of continuous sites over all of the reals, as of ``engine.graph`` or
            ``trace_graph(..., unconstrained=True)``.
        x: ``[n, dim]`` flat particles in the graph's space, ``{site: [n, *site shape]}`` in
            constrained space, or a posterior with ``particles``. Weights are not used.
        kernel: default ``RBF()``; its bandwidth rule is applied to these particles.
        locality: ``"blanket"``, ``"global"`` or any locality.
        statistic: ``"V"`` (1/n^2, never negative) or ``"U"`` (1/(n(n-1)), unbiased).
        generator: what a random locality draws from; default, torch's global one.

    Shapes:
        output: ``[]``; differentiable in ``x`` if ``x`` is a tensor that requires grad (the
            bandwidth is held constant).

    Raises:
        UnsupportedSite: a site is discrete, or its density is periodic.
        NonFiniteDensity: the score is not finite at a particle.
        ShapeMismatch: ``x`` does not fit the graph.
        OptionError: ``graph`` is none; unknown statistic, kernel or locality; a value is outside
            its site's support, or complex; ``x`` is none of these, as a posterior without
            particles; ``generator`` is none on the CPU; the graph is in constrained space and a
            site's support has an edge, at which Stein's identity fails.
    """
    x = _continuous_particles(graph, x)
    check_statistic(statistic, len(x))
    operator = _operator(graph, kernel, locality, generator)
    differentiable = x.requires_grad and torch.is_grad_enabled()
    _, score = value_and_score(graph, x, differentiable=differentiable)
    with torch.set_grad_enabled(differentiable):
        # a discrepancy is a small difference, of numbers as large as one over the data's scale
        wide = torch.float64 if kernel is None or takes_double(kernel) else x.dtype
        return operator(x.to(wide), score.to(wide)).discrepancy(statistic).to(x.dtype)


@outside_modes()
def stein_gram(
    graph,
    x,
    kernel: Kernel | Summable | None = None,
    locality: Locality | str = "blanket",
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    coordinates: Coordinates | None = None,
) -> Tensor:
    """The Stein kernel of every pair of particles, summed over coordinates.

    Its mean is the V-statistic of :func:`graphical_ksd`.

    Args:
        graph, x, kernel, locality, generator: as in :func:`graphical_ksd`.
        dtype: of the matrix; default the graph's, in which scores are computed always. In single
            precision the matrix of many particles has eigenvalues below 0, in double (of the same
            scores) none beyond rounding.
        coordinates: in which kernels look at particles; default the graph's own.

    Shapes:
        output: ``[n, n]``, positive semi-definite.

    Raises:
        UnsupportedSite, NonFiniteDensity, ShapeMismatch, OptionError: as there.
    """
    x = _continuous_particles(graph, x).detach()
    operator = _operator(graph, kernel, locality, generator).within(coordinates)
    score = value_and_score(graph, x)[1]
    return operator.gram(x.to(dtype), score.to(dtype)) if dtype else operator.gram(x, score)


def _operator(
    graph,
    kernel: Kernel | Summable | None,
    locality: Locality | str,
    generator: torch.Generator | None,
) -> SteinOperator:
    is_usable = isinstance(generator, torch.Generator) and generator.device.type == "cpu"
    if generator is not None and not is_usable:
        raise OptionError(f"generator={generator!r} is not a torch.Generator on the CPU")
    return SteinOperator(Layout.of(graph), kernel, locality, graph.device, generator)


def _continuous_particles(graph, x) -> Tensor:
    if not isinstance(graph, FactorGraph):
        raise OptionError(
            f"{graph!r} is not a factor graph: give engine.graph, or "
            "trace_graph(model, *args, unconstrained=True)"
        )
    for site in graph.free_sites:
        if site.is_discrete:
            raise UnsupportedSite(
                f"{site.describe()} is discrete; the Stein discrepancy needs gradients at "
                "every site. Sum it out in the model, or condition on it."
            )
        if site.is_periodic:
            raise UnsupportedSite(
                f"the density of {site.describe()} is periodic; the Stein discrepancy needs one "
                f"that falls off. {DRAW_THE_PLANE}"
            )
        if not graph.unconstrained and (site.support is None or not is_real(site)):
            raise OptionError(
                f"{site.describe()} does not live on all of the reals, and Stein's identity fails "
                "at the edge of its support. Give the graph in unconstrained space: "
                "trace_graph(..., unconstrained=True)."
            )
    return flat_particles(graph, x)


def flat_particles(graph, x) -> Tensor:
    """``[n, dim]`` in the graph's space from a tensor, a dict of sites or a posterior.

    Raises:
        ShapeMismatch: sites are missing, or the number of columns is wrong.
        OptionError: a value is outside its site's support or complex, or ``x`` is none of these.
        UnsupportedSite: a site's support depends on latents, and ``x`` is neither a tensor nor a
            posterior of this graph.
    """
    if not isinstance(x, Tensor):
        shared = shared_columns(graph, x)
        x = graph.flatten(free_values(graph, _values(graph, x))) if shared is None else shared
    if x.dim() != 2 or x.shape[1] != graph.dim or len(x) == 0:
        raise ShapeMismatch(
            f"particles have shape {tuple(x.shape)}, expected [n, {graph.dim}]: one row per "
            "particle, columns in node order"
        )
    refuse_complex("particles", x)
    return x.to(dtype=graph.dtype, device=graph.device)


def _values(graph, x) -> dict[str, Tensor]:
    """``{site: [n, *site shape]}`` of the free sites, in the program's space."""
    given = x if isinstance(x, Mapping) else getattr(x, "particles", None)
    if not isinstance(given, Mapping):
        raise OptionError(
            f"{type(x).__name__} holds no particles: give samples, posterior.sample(n), or a "
            "[n, dim] tensor"
        )
    values = {}
    for site in graph.free_sites:
        if site.name not in given:
            raise ShapeMismatch(f'no particles given for site "{site.name}"')
        value = given[site.name]
        try:
            value = tensor_of(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise OptionError(
                f'particles of site "{site.name}" are a {type(value).__name__}, of '
                "which no tensor can be made"
            ) from error
        if value.dim() == 0 or tuple(value.shape[1:]) != site.shape:
            raise ShapeMismatch(
                f'particles of site "{site.name}" have shape {list(value.shape)}; expected '
                f"[n, *site shape], where the site has shape {list(site.shape)}"
            )
        values[site.name] = value
    return values
