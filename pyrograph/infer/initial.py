"""Where particles start."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro import poutine
from pyro.infer.autoguide import initialization
from torch import Tensor
from torch.nn import Module

from pyrograph.diagnostics.score import log_densities
from pyrograph.diagnostics.support import free_values, refuse_complex, shared_columns
from pyrograph.errors import OptionError, ShapeMismatch
from pyrograph.posterior import Posterior
from pyrograph.posterior.posterior import draw_indices
from pyrograph.trace.sites import tensor_of

#: Share of the spread by which particles that start alike are moved apart.
REPEATED = 0.1
#: Nats per number that a particle may start below 0, the middle of the draws, and times the median
#: particle's loss that its own may be: of a narrow density all lie low.
FAR_BELOW, BEYOND = 100.0, 5.0
#: Share of the way from 0 that is kept by one that would start lower, and how often at most.
SHORTER, MOST_TIMES = 0.7, 60

Init = Mapping[str, Tensor] | Tensor | Posterior | Callable


def starting_particles(
    init: Init, num_particles: int, graph, args: tuple = (), kwargs: dict | None = None
) -> Tensor:
    """Flat particles from whatever the user gave.

    Args:
        init: one of
            a dict ``{site: [n, *site shape]}`` in the program's space, every latent site in it;
            a tensor ``[n, dim]`` of flat particles in the graph's space;
            a posterior: its particles, or draws from it if their number differs or they are
            weighted;
            a Pyro guide, called n times with the model's arguments;
            a function that returns such a dict or tensor: of ``num_particles`` and/or ``graph``
            (by these names; what else it takes must have defaults), of ``n`` alone, the number of
            particles; else of nothing, of the model's arguments, or, where these do not fit, of
            one argument, the number of particles.
        num_particles: n.
        graph: the factor graph.
        args, kwargs: the model's arguments, for guides.

    Shapes:
        output: ``[n, dim]``.

    Raises:
        ShapeMismatch: a site is missing, unknown, or has another shape; the text names it.
        OptionError: a value is complex or outside its site's support, or ``init`` is none of these.
        UnsupportedSite: a site's support depends on latents, and ``init`` is neither a tensor nor
            particles that have the same values on this graph.
    """
    if isinstance(init, Posterior):
        init = of_posterior(init, num_particles, graph)
    elif callable(init) and not isinstance(init, Tensor | Mapping):
        init = called(init, num_particles, graph, args, kwargs or {})
    if isinstance(init, Tensor):
        return _check_flat(init, num_particles, graph)
    if isinstance(init, Mapping):
        return _flatten(init, num_particles, graph)
    raise OptionError(
        f"init={init!r} is not a dict of particles, a [n, dim] tensor, a posterior, a Pyro guide "
        "or a function returning particles"
    )


def of_posterior(
    posterior: Posterior, num_particles: int, graph, whatever_weights: bool = False
) -> Mapping[str, Tensor] | Tensor:
    """A posterior's particles, if there are as many and they are equally weighted, or their weights
    do not matter; draws otherwise. ``[n, dim]`` numbers where the graph can share them, see
    :func:`.support.shared_columns`, else values of sites."""
    enough = number_of(posterior) == num_particles
    as_they_are = enough and (whatever_weights or _equally_weighted(posterior))
    x = shared_columns(graph, posterior)
    if x is None:
        return posterior.particles if as_they_are else posterior.sample(num_particles)
    return x if as_they_are else x[draw_indices(posterior.weights, num_particles)]


def number_of(init: Init | None) -> int | None:
    """How many particles ``init`` holds; None where that shows only when it is called."""
    if isinstance(init, Posterior):
        return number_of(getattr(init, "particles", None))
    if isinstance(init, Mapping):
        init = next((_as_tensor(name, value) for name, value in init.items()), None)
    return len(init) if isinstance(init, Tensor) and init.dim() else None


def normal(num_particles: int, graph, generator: torch.Generator) -> Tensor:
    """N(0, 1) in the graph's space, drawn column by column in node order: ``[n, dim]``."""
    draw = torch.randn(
        graph.dim, num_particles, generator=generator, dtype=torch.float64, device="cpu"
    )
    return draw.to(graph.device, graph.dtype).t()


@torch.no_grad()
def within_reach(graph, x: Tensor) -> Tensor:
    """Draws about 0, ``[n, dim]``, each nearer to 0 where it lies absurdly low.

    A scale drawn near 0 has scores beyond all others' (1e36 is not rare), which kernels hand on to
    every particle: rules that remember squares of gradients, as AdaGrad, hardly move again.
    """
    values = log_densities(graph, x).double()
    highest = log_densities(graph, torch.zeros_like(x[:1])).double()
    if not bool(highest.isfinite()):
        highest = torch.where(values.isfinite(), values, -torch.inf).amax()
    losses = (highest - values).nan_to_num(nan=torch.inf)
    most = max(FAR_BELOW * x.shape[1], BEYOND * float(losses.median()))
    share = x.new_ones(len(x), 1)
    for _ in range(MOST_TIMES):
        is_low = ~(highest - values <= most)  # of NaN too
        if not bool(is_low.any()):
            break
        share = torch.where(is_low[:, None], SHORTER * share, share)
        values = log_densities(graph, share * x).double()
    return share * x


def uniform(num_particles: int, graph, generator: torch.Generator, reach: float) -> Tensor:
    """U(-reach, reach), as :func:`normal`."""
    draw = torch.rand(
        graph.dim, num_particles, generator=generator, dtype=torch.float64, device="cpu"
    )
    return ((2 * draw - 1) * reach).to(graph.device, graph.dtype).t()


def apart(x: Tensor, start: Tensor, normal: Callable[[torch.Size], Tensor]) -> Tensor:
    """Particles ``x`` ``[n, dim]``, moved apart where they started alike: without noise, equal
    particles would feel the same forces and stay equal for ever.

    In each column a particle that started where another did is shifted by a tenth of the
    column's standard deviation at the start, or of 1 where all started alike.
    """
    ordered, order = start.sort(dim=0, stable=True)
    repeated = torch.zeros_like(start, dtype=torch.bool)
    repeated.scatter_(0, order[1:], ordered.diff(dim=0) == 0)
    if not repeated.any():
        return x
    alike = start.amin(0) == start.amax(0)  # a deviation of theirs would be rounding
    width = REPEATED * torch.where(alike, 1, start.std(0, correction=0))
    return torch.where(repeated, x + width * normal(x.shape), x)


def _equally_weighted(posterior: Posterior) -> bool:
    weights = getattr(posterior, "weights", None)
    return weights is None or bool((weights == weights[0]).all())


def called(init: Callable, num_particles: int, graph, args: tuple, kwargs: dict) -> Any:
    """Particles from a function or a guide.

    Raises:
        OptionError: it takes something else, or fails at what a guide takes.
        ShapeMismatch: it is a guide that does not draw all sites.
    """
    if getattr(getattr(init, "func", init), "__module__", "") == initialization.__name__:
        raise OptionError(
            f"init={init!r} gives the value of one site at a time, as Pyro's guides ask for it. "
            "Give a guide that starts by it: init=AutoNormal(model, init_loc_fn=...), of "
            "pyro.infer.autoguide"
        )
    given = {"num_particles": num_particles, "graph": graph}
    parameters = {} if isinstance(init, Module) else inspect.signature(init).parameters
    names = tuple(parameters)
    wanted = {name: given[name] for name in names if name in given}
    if wanted and _takes(init, (), wanted):
        return init(**wanted)
    if names == ("n",):
        returned = _of_number(init, num_particles, graph)
        if returned is not None:
            return returned
    call_args, call_kwargs = (args, kwargs) if names or isinstance(init, Module) else ((), {})
    if names and not _takes(init, call_args, call_kwargs):
        if not _takes(init, (num_particles,), {}):
            raise OptionError(
                f"init={init!r} takes neither the model's arguments, as a guide does, nor "
                "num_particles and/or graph (by these names), nor one argument, the number of "
                "particles"
            )
        return init(num_particles)
    draws = []
    for _ in range(num_particles):
        try:
            sites, returned = _traced(init, call_args, call_kwargs, graph)
        except TypeError as error:
            raise OptionError(
                f"init={init!r} was called with the model's arguments, as a guide is, and failed "
                f"({error}). If it is a function of the number of particles, call its argument n "
                "or num_particles."
            ) from error
        if not sites and isinstance(returned, Tensor | Mapping):
            return returned
        draws.append(sites)
    missing = [name for name in graph.sites if name not in draws[0]]
    if missing:
        raise ShapeMismatch(f'init: the guide does not draw site "{missing[0]}"')
    return {name: torch.stack([draw[name] for draw in draws]) for name in graph.sites}


def _traced(init: Callable, args: tuple, kwargs: dict, graph) -> tuple[dict[str, Tensor], Any]:
    """What a call draws of the graph's sites, and what it returns."""
    with torch.no_grad():
        trace = poutine.trace(init).get_trace(*args, **kwargs)
    sites = {
        name: node["value"]
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and name in graph.sites
    }
    return sites, trace.nodes["_RETURN"]["value"]


def _of_number(init: Callable, num_particles: int, graph) -> Any:
    """What a function of the number of particles returns; None if it is a guide of a model whose
    argument is called n too."""
    try:
        sites, returned = _traced(init, (num_particles,), {}, graph)
    except Exception:  # a guide, called with what it does not expect
        return None
    return None if sites else returned


def _takes(function: Callable, args: tuple, kwargs: dict) -> bool:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _check_flat(x: Tensor, num_particles: int, graph) -> Tensor:
    if x.shape != (num_particles, graph.dim):
        raise ShapeMismatch(
            f"init has shape {list(x.shape)}; expected [num_particles, dim] = "
            f"[{num_particles}, {graph.dim}], in the graph's space"
        )
    refuse_complex("init", x)
    return x.detach().to(graph.device, graph.dtype).clone()


def _flatten(values: Mapping[str, Any], num_particles: int, graph) -> Tensor:
    refuse_unknown_sites("init", values, graph)
    checked = {}
    for site in graph.sites.values():
        if site.name not in values:
            raise ShapeMismatch(f'init misses site "{site.name}"')
        value = _as_tensor(site.name, values[site.name]).detach()
        expected = (num_particles, *site.shape)
        if value.shape != expected:
            raise ShapeMismatch(
                f'init for site "{site.name}" has shape {list(value.shape)}; expected '
                f"[num_particles, *site shape] = {list(expected)}"
            )
        checked[site.name] = value
    return graph.flatten(free_values(graph, checked)).contiguous()


def refuse_unknown_sites(what: str, values: Mapping[str, Any], graph) -> None:
    """Raise ``ShapeMismatch`` for values of what is no latent site."""
    for name in values:
        if name not in graph.sites:
            known = ", ".join(graph.sites)
            raise ShapeMismatch(f'{what} names "{name}", which is not a latent site ({known})')


def _as_tensor(name: str, value: Any) -> Tensor:
    try:
        return tensor_of(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(f'init for site "{name}" is {value!r}, no tensor: {error}') from error
