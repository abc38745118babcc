"""Latent sites: what a node of the graph is, and how a site's numbers lie in memory.

A *node* is one batch element of a latent site; its event dimensions stay inside it. In an
unconstrained graph the event is that of ``biject_to(support).inv``: a K-simplex is K - 1 numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from pyro.distributions import Delta
from torch import Tensor
from torch.distributions import (
    Distribution,
    TransformedDistribution,
    biject_to,
    constraints,
)

from pyrograph.errors import UnsupportedSite
from pyrograph.trace.supports import name_of, support_of

#: Distributions of angles that Pyro takes to live on the real line. Their density there repeats for
#: ever and has no integral, so neither Stein's identity nor a normal approximation makes sense.
PERIODIC = frozenset({"VonMises", "SineBivariateVonMises", "SineSkewed"})

#: How the statements of log Jacobians end, which hold no node in place by themselves.
JACOBIAN = ":jacobian"

#: What ``infer`` of a sample statement calls the nodes that are masked out, where a density is to
#: stand in for what was masked; and how statements end that do so.
STANDS_IN, STAND_IN = "_stands_in", ":stand-in"

#: Other states that are tried for a node that a second draw left where it was.
STATES_TRIED = 8


#: What to do about a discrete site whose states depend on latents.
OVER_MOST_STATES = (
    "write the site over the most states that it may have: a Binomial(n, p) as "
    "dist.Categorical(logits=dist.Binomial(n.unsqueeze(-1), p, validate_args=False)"
    ".log_prob(torch.arange(most + 1.0)))."
)


@dataclass(frozen=True, eq=False)
class Site:
    """A latent sample site.

    Attributes:
        name: of the ``pyro.sample`` statement.
        batch_shape: one node per element.
        event_shape: of a node in the graph's space (unconstrained if the graph is).
        constrained_event_shape: of a node in the program's space.
        support: the site's constraint; None when its bounds depend on latents.
        enumeration: ``[c, *event]``, all values of a finite discrete site, else None.
        plates: ``(name, dim, size)`` of the vectorised plates around the site.
        distribution: the name of the user's distribution.
        is_periodic: whether it is one of angles, see :func:`periodic_part`.
        stands_in: ``[*batch]``, nodes that are masked out of the program, where a density stands in
            for what was masked; else None.
    """

    name: str
    batch_shape: tuple[int, ...]
    event_shape: tuple[int, ...]
    constrained_event_shape: tuple[int, ...]
    support: constraints.Constraint | None
    is_discrete: bool
    enumeration: Tensor | None
    dtype: torch.dtype
    device: torch.device
    plates: tuple[tuple[str, int, int], ...]
    distribution: str
    is_periodic: bool = False
    stands_in: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the site's value in the program."""
        return self.batch_shape + self.constrained_event_shape

    @property
    def num_nodes(self) -> int:
        return math.prod(self.batch_shape)

    @property
    def width(self) -> int:
        """Numbers per node."""
        return math.prod(self.event_shape)

    @property
    def cardinality(self) -> int | None:
        return None if self.enumeration is None else len(self.enumeration)

    @property
    def kind(self) -> tuple:
        """Equal for sites whose nodes can stand in for each other: like events, like states."""
        states = None if self.enumeration is None else tuple(self.enumeration.flatten().tolist())
        return (self.event_shape, self.dtype, self.is_discrete, states)

    def describe(self) -> str:
        kind = f", {self.cardinality} states" if self.cardinality else ""
        return f'site "{self.name}" ({self.distribution}{kind})'


def periodic_part(fn: object) -> object | None:
    """The distribution of angles that a site's is, derives from, wraps or mixes; else None."""
    while PERIODIC.isdisjoint(family.__name__ for family in type(fn).__mro__):
        fn = getattr(fn, "base_dist", None) or getattr(fn, "component_distribution", None)
        if fn is None:
            return None
    return fn


def is_delta(fn: object) -> bool:
    """Whether a site is a point mass, whatever wraps it."""
    return isinstance(_unwrapped(fn), Delta)


def _unwrapped(fn: object) -> object:
    while type(fn).__name__ in ("Independent", "MaskedDistribution"):
        fn = fn.base_dist
    return fn


def is_latent(msg: dict) -> bool:
    """A site the program would draw, and not just pass on."""
    return not msg["is_observed"] and msg["value"] is None and not is_delta(msg["fn"])


def delta_density(msg: dict) -> Tensor | None:
    """Log density of a point mass at its own value, as reparameterisations leave behind.

    The comparison of the value with itself would read latents for nothing. None for other sites.
    """
    fn = msg["fn"]
    if type(fn) is not Delta or msg["value"].data_ptr() != fn.v.data_ptr():
        return None
    return fn.log_density.expand(fn.batch_shape)


def draw(fn: object, name: str) -> Tensor:
    """A point of the support: a draw, or a uniform one where the site cannot be sampled."""
    try:
        return fn.sample().detach()
    except NotImplementedError:
        pass
    try:
        transform = biject_to(support_of(fn, name))
    except NotImplementedError as error:
        raise UnsupportedSite(
            f'site "{name}" ({name_of(fn)}) can neither be sampled nor mapped from the reals; '
            f"condition on it, or give it a distribution with a `sample` method."
        ) from error
    shape = transform.inverse_shape(fn.batch_shape + fn.event_shape)
    # where the program's other numbers are is not written in a distribution without parameters
    place = torch.get_default_device()
    return transform(4 * torch.rand(shape, device=place) - 2).detach()


def draw_apart(fn: object, name: str, other: Tensor | None) -> Tensor:
    """A draw whose discrete nodes are not in the states of ``other``, where others are possible.

    Two draws of a site that is mostly in one state are mostly equal, so that they would not show
    what depends on it.
    """
    value = draw(fn, name)
    if other is None or other.shape != value.shape or not support_of(fn, name).is_discrete:
        return value
    fn = _unwrapped(fn)  # an event of independent numbers moves number by number
    dims = len(fn.event_shape)
    stays = _nodes(value == other, dims)
    for state in _further_states(fn, value, other) if stays.any() else ():
        log_prob = fn.log_prob(state)
        is_possible = log_prob > math.log(2 * torch.finfo(log_prob.dtype).eps)  # logits of 0: eps
        moves = stays & is_possible & ~_nodes(state == other, dims)
        value = torch.where(_spread(moves, dims), state, value)
        stays = stays & ~moves
        if not stays.any():
            break
    return value


def _further_states(fn: object, value: Tensor, other: Tensor) -> Iterator[Tensor]:
    """In their shape: some of a finite event's states, else ``other``'s neighbours if there are."""
    states = enumeration(fn)
    if states is not None:
        for k in torch.randperm(len(states), device="cpu")[:STATES_TRIED].tolist():
            yield states[k].expand(other.shape)
        return
    for state in (other + 1, other - 1):
        inside = _spread(fn.support.check(state), len(fn.event_shape))
        yield torch.where(inside, state, value)


def _nodes(holds: Tensor, dims: int) -> Tensor:
    """Whether it holds for all of a node's numbers, ``[*batch, *event]`` to ``[*batch]``."""
    return holds.flatten(-dims).all(-1) if dims else holds


def _spread(holds: Tensor, dims: int) -> Tensor:
    """``[*batch]`` to ``[*batch, 1, ...]``."""
    return holds.reshape((*holds.shape, *(1,) * dims))


@contextmanager
def left_as_it_is(fn: object) -> Iterator[None]:
    """What a distribution works out about itself inside (a lazy ``logits``) is dropped after.

    Kept, it would be a constant: latents are not followed there.
    """
    before = [(part, set(vars(part))) for part in _parts(fn)]
    try:
        yield
    finally:
        for part, names in before:
            for name in vars(part).keys() - names:
                del vars(part)[name]


def _parts(fn: object) -> Iterator[Distribution]:
    """A distribution and those that it is made of."""
    yield fn
    for value in list(vars(fn).values()):
        for part in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(part, Distribution):
                yield from _parts(part)


def refuse_flow(fn: object, name: str, error: Exception) -> None:
    """Raise for a flow that only remembers where its own draws came from.

    Raises:
        UnsupportedSite: the distribution has a transform, any of which may be without inverse.
    """
    flows = [part for part in _parts(fn) if isinstance(part, TransformedDistribution)]
    if flows:
        transforms = ", ".join(type(t).__name__ for flow in flows for t in flow.transforms)
        raise UnsupportedSite(
            f'site "{name}" ({transforms} of {name_of(flows[0].base_dist)}) has a density at its '
            f"own draws only: a transform has no inverse. Draw from the base distribution and "
            f'transform in the model: {name} = flow(pyro.sample("{name}", base)).'
        ) from error


def enumeration(fn: object) -> Tensor | None:
    """All values of a finite discrete event, ``[c, *event]``."""
    if not fn.has_enumerate_support:
        return None
    try:
        values = fn.enumerate_support(expand=False)
    except NotImplementedError:  # independent discrete coordinates, unequal counts
        return None
    return values.reshape(values.shape[:1] + fn.event_shape).detach().clone()


def tensor_of(value: object) -> Tensor:
    """A user's tensor as it is; numbers and arrays where torch makes new tensors."""
    if isinstance(value, Tensor):
        return value
    return torch.as_tensor(value, device=torch.get_default_device())
