"""Values in a program's space, taken to the graph's; those outside a support are refused.

The inverse of ``biject_to(support)`` does not look at what it is given: it takes 1.5 on the unit
interval to the edge, and three ones on a simplex to a corner. Rounding may carry honest numbers
over an edge too (a half-open end, a long simplex in float32), so a value counts as inside where
its support says so, or where it comes back from the reals as it went, up to ``ROUNDING``.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints

from pyrograph.errors import OptionError
from pyrograph.posterior import ParticlePosterior
from pyrograph.trace.supports import support_on

#: What to write for a latent angle.
DRAW_THE_PLANE = (
    "Draw a point of the plane, z = pyro.sample(..., Normal(0, 1).expand([2]).to_event(1)), whose "
    "angle t = torch.atan2(z[..., 1], z[..., 0]) is uniform, and bring the density in by "
    "pyro.factor(..., fn.log_prob(t))."
)
#: Relative error that numbers may have that were in single precision once.
ROUNDING = 1e-5
#: What the same map leaves of a value's last digits in another place, in units of the precision.
DIGITS = 16.0


def free_values(graph, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values of every site in the graph's space, with its dtype and on its device.

    Args:
        graph: a FactorGraph of continuous sites.
        values: of every site, ``[n, *site shape]``, in the program's space.

    Shapes:
        output: ``[n, *batch_shape, *event_shape]`` of each site.

    Raises:
        OptionError: a value is complex, outside its site's support, or on an edge that lies at
            infinity.
        UnsupportedSite: a site's support depends on latents.
    """
    for name, value in values.items():
        refuse_complex(f'values of site "{name}"', value)
    # at the finer of the two precisions, where fewer numbers fall on an edge
    values = {
        name: value.to(graph.device, torch.promote_types(value.dtype, graph.dtype))
        for name, value in values.items()
    }
    free = graph.unconstrain(values)
    for site in graph.free_sites:
        good = _all(free[site.name].isfinite())
        if site.support is not None:
            good &= _all(inside(support_on(site.support, graph.device), values[site.name]))
        if not good.all():
            raise OptionError(
                f'value of site "{site.name}" is outside its support or on its edge at particle '
                f"{int((~good).nonzero()[0])} (support: {site.support})"
            )
    return {name: value.to(graph.dtype) for name, value in free.items()}


def shared_columns(graph, posterior: object) -> Tensor | None:
    """A posterior's flat particles ``[n, dim]``: the way back from their values loses digits near
    the edge of a support, and there is none where a support depends on latents.

    None where ``posterior`` has none, or where they have other values on this graph.
    """
    if not isinstance(posterior, ParticlePosterior) or _columns(posterior.graph) != _columns(graph):
        return None
    x = posterior.x
    if posterior.graph is graph:
        return x
    image = graph.constrain(graph.unflatten(x.to(graph.device)))
    # relative alone: small values are no smaller differences of supports
    rounding = DIGITS * max(torch.finfo(dtype).eps for dtype in (x.dtype, graph.dtype))
    alike = all(
        torch.allclose(image[name].to(value), value, rtol=rounding, atol=0.0)
        for name, value in posterior.particles.items()
    )
    return x if alike else None


def _columns(graph) -> tuple:
    """Equal for graphs whose flat particles have the same sites in the same columns."""
    sites = [(site.name, site.shape, site.event_shape) for site in graph.free_sites]
    return graph.unconstrained, sites


def refuse_complex(what: str, value: Tensor) -> None:
    """Raise ``OptionError`` for complex numbers: torch would drop their imaginary parts."""
    if value.is_complex():
        raise OptionError(f"{what} must be real numbers; got {value.dtype}")


def inside(support: constraints.Constraint, value: Tensor) -> Tensor:
    """Whether values lie in a support, ``[n, *batch]``, up to rounding."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    held = support.check(value)
    if held.all():
        return held
    transform = biject_to(support)
    back = transform(transform.inv(value))
    error = (back - value).abs().reshape(*held.shape, -1).sum(-1)
    size = back.abs().reshape(*held.shape, -1).sum(-1)
    return held | (error <= ROUNDING * size.amax(0))


def _all(flags: Tensor) -> Tensor:
    """``[n]``: whether all of a particle's are true."""
    return flags.unsqueeze(-1).flatten(1).all(1)
