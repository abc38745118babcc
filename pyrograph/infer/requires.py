"""What an engine asks of a program, checked on one plain run before anything is traced."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Independent, biject_to

from pyrograph.diagnostics.support import DRAW_THE_PLANE
from pyrograph.distributions import ChineseRestaurant, ChineseRestaurantFranchise
from pyrograph.errors import UnsupportedSite, ZeroMass
from pyrograph.trace.outer_handlers import with_outer_handlers
from pyrograph.trace.plain_run import refuse_empty_plate, retried
from pyrograph.trace.sites import (
    OVER_MOST_STATES,
    Site,
    draw,
    enumeration,
    is_latent,
    periodic_part,
)
from pyrograph.trace.supports import bounds_of, name_of, support_of


class Requirement(Protocol):
    """Declared by an engine as ``requires``."""

    def check(self, msg: dict, engine: str) -> None:
        """Raise ``UnsupportedSite`` if ``engine`` cannot handle the latent site ``msg``."""
        ...


def refuse_periodic(msg: dict, engine: str) -> None:
    """Raise for a site whose density has no integral over the reals, which is an engine's space.

    Raises:
        UnsupportedSite: it is periodic.
    """
    fn = periodic_part(msg["fn"])
    if fn is None:
        return
    raise UnsupportedSite(
        f'site "{msg["name"]}" ({type(fn).__name__}): its density is periodic, and {engine} needs '
        f"one with an integral over the reals. {DRAW_THE_PLANE} The uniform angle has a density "
        "too, 1 / (2 pi): for the evidence of this program add log(2 pi) to that factor, for every "
        "angle."
    )


def refuse_labels(msg: dict, engine: str) -> None:
    """Raise for a site of labels, which only engines of their own move.

    Raises:
        UnsupportedSite: it is a partition, or a sequence of states of unknown number.
    """
    name, fn = msg["name"], msg["fn"]
    if isinstance(fn, ChineseRestaurant | ChineseRestaurantFranchise):
        raise UnsupportedSite(
            f'site "{name}" ({name_of(fn)}) holds the labels of {fn.n} elements, which pg.DPVI and '
            f"pg.SequentialDPVI move one by one and {engine} does not. Take one of these, or give "
            "the labels: pyro.sample(..., obs=labels)."
        )


def refuse_empty(msg: dict) -> None:
    """Raise for a site of no elements.

    Raises:
        UnsupportedSite: its batch shape has a 0.
    """
    name, fn = msg["name"], msg["fn"]
    if 0 in getattr(fn, "batch_shape", ()):  # where it has none its support is asked for next
        raise UnsupportedSite(
            f'site "{name}" ({name_of(fn)}, batch shape {tuple(fn.batch_shape)}) has no elements, '
            f"so there is nothing to infer about it. Leave it out where there are none: if its "
            f"size > 0, then pyro.sample."
        )


def refuse_constant(msg: dict, engine: str) -> None:
    """Raise for a site whose values have no numbers to vary, such as a simplex of one corner.

    Raises:
        UnsupportedSite: its unconstrained event has no numbers.
    """
    name, fn = msg["name"], msg["fn"]
    if not fn.event_shape:
        return
    try:
        free = biject_to(support_of(fn)).inverse_shape(fn.event_shape)
    except NotImplementedError:
        return  # no map from the reals, which is for engines to say that need one
    if math.prod(free) == 0:
        raise UnsupportedSite(
            f'site "{name}" ({name_of(fn)}, event shape {tuple(fn.event_shape)}) has one value '
            f"only, so {engine} has nothing to infer about it. Write the constant in its place, or "
            f"observe it: pyro.sample(..., obs=value)."
        )


def check_continuous(msg: dict, engine: str) -> None:
    """Raise for a continuous site that no engine can handle.

    Raises:
        UnsupportedSite: it is periodic, or constant.
    """
    refuse_periodic(msg, engine)
    refuse_constant(msg, engine)


@dataclass(frozen=True)
class Continuous:
    """Every latent site is continuous, and none an angle or constant."""

    def check(self, msg: dict, engine: str) -> None:
        name, fn = msg["name"], msg["fn"]
        if not support_of(fn, name).is_discrete:
            return check_continuous(msg, engine)
        values = enumeration(fn)
        states = "" if values is None else f", {len(values)} states"
        raise UnsupportedSite(
            f'site "{name}" ({name_of(fn)}{states}) is discrete; {engine} moves particles along '
            "gradients and needs continuous sites. Use an engine for discrete and mixed programs "
            f'(pg.BP, pg.EP, pg.VMP), or sum "{name}" out in the model.'
        )


#: Most numbers of an event whose covariance is kept: .8 GB each.
MOST_NUMBERS = 10_000


def refuse_long(msg: dict, engine: str) -> None:
    """Raise for an event of so many numbers that their covariance does not fit.

    Raises:
        UnsupportedSite: there are more than :data:`MOST_NUMBERS`.
    """
    name, fn = msg["name"], msg["fn"]
    count = math.prod(fn.event_shape)
    if count > MOST_NUMBERS:
        raise UnsupportedSite(
            f'site "{name}" ({name_of(fn)}) is one event of {count:,} numbers, and {engine} keeps '
            f"the covariance of an event's numbers, {count**2:.0e} of them; it takes events of up "
            f"to {MOST_NUMBERS:,}. Make every number a node of its own, where they have separate "
            "priors: a pyro.plate in the place of .to_event. pg.GraphicalSVGD keeps no covariance."
        )


def refuse_moving_states(sites: Iterable[Site], engine: str) -> None:
    """Raise for discrete sites whose states, as a binomial's of a latent count, are others at every
    draw.

    Raises:
        UnsupportedSite: there is one.
    """
    for site in sites:
        if site.is_discrete and site.enumeration is None:
            raise UnsupportedSite(
                f"{site.describe()} has states that depend on other latents, and {engine} sums "
                f"over one list of states. Instead, {OVER_MOST_STATES}"
            )


@dataclass(frozen=True)
class FiniteOrContinuous:
    """Every latent site is continuous, no angle, not constant and no event of too many numbers, or
    discrete with finitely many states."""

    def check(self, msg: dict, engine: str) -> None:
        name, fn = msg["name"], msg["fn"]
        if not support_of(fn, name).is_discrete:
            check_continuous(msg, engine)
            return refuse_long(msg, engine)
        if enumeration(fn) is not None:
            return
        if isinstance(fn, Independent) and fn.base_dist.has_enumerate_support:
            raise UnsupportedSite(
                f'site "{name}" ({name_of(fn)}) is one event of {fn.event_shape.numel()} discrete '
                f"numbers, and {engine} does not list their joint states. Make every number a node "
                f"of its own: a pyro.plate in the place of .to_event"
                f"({fn.reinterpreted_batch_ndims})."
            )
        if any(bool((b != b.flatten()[0]).any()) for b in bounds_of(support_of(fn, name))):
            raise UnsupportedSite(
                f'site "{name}" ({name_of(fn)}) has nodes of unequal numbers of states, and '
                f"{engine} sums over one list of states for all. Where these are constants, write "
                "one pyro.sample statement for every number of states; where they depend on other "
                f"latents, {OVER_MOST_STATES}"
            )
        raise UnsupportedSite(
            f'site "{name}" ({name_of(fn)}) has no finite list of states; {engine} sums over '
            "the states of discrete sites. Truncate it (a Categorical over the values that "
            f'matter), or sum "{name}" out in the model.'
        )


#: A continuous prior of these families, over observations of those, can be summed out.
CONJUGATE = {
    "Beta": "if it is the probability of Bernoulli or binomial observations, write BetaBinomial",
    "Dirichlet": "if it is the probabilities of categorical observations, write "
    "DirichletMultinomial, or pg.distributions.CollapsedMixture with DirichletCategorical",
    "Gamma": "if it is the rate of Poisson observations, write GammaPoisson",
    "Normal": "if it is the mean of normal observations in a cluster, write "
    "pg.distributions.CollapsedMixture with NormalInverseGamma",
    "InverseGamma": "if it is the variance of normal observations, write "
    "pg.distributions.CollapsedMixture with NormalInverseGamma",
    "MultivariateNormal": "if it is the mean of normal observations in a cluster, write "
    "pg.distributions.CollapsedMixture with NormalInverseWishart",
}


@dataclass(frozen=True)
class FiniteDiscrete:
    """Every latent site is discrete with finitely many states."""

    def check(self, msg: dict, engine: str) -> None:
        name, fn = msg["name"], msg["fn"]
        if support_of(fn, name).is_discrete:
            return FiniteOrContinuous().check(msg, engine)
        advice = CONJUGATE.get(name_of(fn))
        collapse = f" It may be summed out in the model: {advice}." if advice else ""
        raise UnsupportedSite(
            f'site "{name}" ({name_of(fn)}) is continuous; {engine} lists states of discrete '
            f"sites.{collapse} Engines for mixed programs are pg.EP, pg.VMP and pg.QBethe."
        )


class _Inspector(Messenger):
    """Shows every latent site to a requirement; the first one refused ends the run."""

    def __init__(self, requirement: Requirement, engine: str):
        super().__init__()
        self.requirement, self.engine = requirement, engine
        self.last: str | None = None

    def _pyro_post_sample(self, msg: dict) -> None:
        self.last = msg["name"]

    def _pyro_sample(self, msg: dict) -> None:
        if site_is_subsample(msg):
            return refuse_empty_plate(msg)
        if not is_latent(msg):
            return
        if not isinstance(self.requirement, FiniteDiscrete):  # which has states of no node too
            refuse_empty(msg)
        refuse_labels(msg, self.engine)
        self.requirement.check(msg, self.engine)
        msg["value"], msg["done"] = draw(msg["fn"], msg["name"]), True


def check_program(
    requirement: Requirement, engine: str, model: Callable, args: tuple, kwargs: dict
) -> None:
    """Run the program once, showing its latent sites to the requirement.

    Raises:
        UnsupportedSite: a site does not fit the engine.
        InvalidProgram: the program fails at every draw, or has an empty plate.
    """
    inspector = _Inspector(requirement, engine)

    def run() -> None:
        with torch.no_grad(), with_outer_handlers(model) as program, inspector:
            program(*args, **kwargs)

    retried(run, lambda: inspector.last)


def refuse_no_mass(constant: Tensor) -> None:
    """Whether what the program says without any latent leaves something to infer.

    Args:
        constant: log density of those statements, ``[]``.

    Raises:
        ZeroMass: it is minus infinity.
    """
    if bool(constant == -torch.inf):
        raise ZeroMass(
            "an observation that reads no latent has density zero, so no state of the latents has "
            "mass. Look for values outside of their distribution's support."
        )
