"""Where the points that are weighted come from.

Points may have any law: the weights need no density of them. What is taken: values, draws of a
posterior or of a guide, and on discrete programs Gibbs chains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pyrograph.errors import OptionError
from pyrograph.graph import FactorGraph
from pyrograph.infer import initial
from pyrograph.infer.dpvi.network import Network
from pyrograph.infer.dpvi.start import codes_of
from pyrograph.infer.importance.gibbs import Gibbs
from pyrograph.posterior import Posterior

Proposal = Mapping[str, Tensor] | Posterior | Gibbs | Callable


def discrete_points(
    proposal: Proposal,
    num_points: int,
    graph: FactorGraph,
    network: Network,
    generator: torch.Generator,
    arguments: tuple[tuple, dict],
) -> Tensor:
    """Codes ``[V, n]`` of states.

    Args:
        proposal: ``{site: [n, *site shape]}``; a posterior, its particles if there are as many and
            draws otherwise; :class:`Gibbs`; or a guide or function, see
            :func:`pyrograph.infer.initial.starting_particles`.
        num_points: n, of all but values.
        graph, network: of the program.
        generator: of the chains.
        arguments: the model's, for guides.

    Raises:
        ShapeMismatch: a site is missing or has another shape.
        OptionError: a value is none of its site's states, or the proposal is none of these.
    """
    if isinstance(proposal, Gibbs):
        return proposal.draw(graph, network, num_points, generator)
    values = _values(proposal, num_points, graph, arguments)
    if not isinstance(values, Mapping):
        raise OptionError(
            f"proposal={proposal!r} is not a dict of values, a posterior, pg.infer.Gibbs, a Pyro "
            "guide, or a function returning a dict of values"
        )
    return codes_of(graph, values)


def continuous_points(
    proposal: Proposal,
    num_points: int,
    graph: FactorGraph,
    arguments: tuple[tuple, dict],
) -> Tensor:
    """Flat points ``[n, dim]`` in the graph's space, see
    :func:`pyrograph.infer.initial.starting_particles`; of a posterior of as many particles these,
    whatever weights they have there.

    Raises:
        OptionError: Gibbs chains were asked for, or a value is outside its support.
        ShapeMismatch: a site is missing or has another shape.
    """
    if isinstance(proposal, Gibbs):
        raise OptionError(
            "Gibbs chains are for discrete sites; give samples={site: values}, a posterior of "
            "another engine (pg.Langevin, pg.GraphicalSVGD), or a guide, as the proposal"
        )
    if isinstance(proposal, Posterior):
        proposal = _values(proposal, num_points, graph, arguments)
    return initial.starting_particles(proposal, num_points, graph, *arguments)


def _values(
    proposal: Proposal, num_points: int, graph: FactorGraph, arguments: tuple[tuple, dict]
) -> Proposal:
    """What a posterior, a guide or a function gives; anything else as it is."""
    if isinstance(proposal, Posterior):
        if initial.number_of(proposal) == num_points:
            return proposal.particles
        return proposal.sample(num_points)
    if callable(proposal) and not isinstance(proposal, Mapping):
        return initial.called(proposal, num_points, graph, *arguments)
    return proposal
