"""Where the points that are weighted come from.

Points may have any law: the weights need no density of them. What is taken: values, draws of a
posterior or of a guide, and on discrete programs Gibbs chains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pyrograph.errors import OptionError, ShapeMismatch
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
        num_points: n.
        graph, network: of the program.
        generator: of the chains.
        arguments: the model's, for guides.

    Raises:
        ShapeMismatch: a site is missing, unknown or has another shape, or there are not n values.
        OptionError: a value is none of its site's states, or the proposal is none of these.
    """
    if isinstance(proposal, Gibbs):
        return proposal.draw(graph, network, num_points, generator)
    values = proposal
    if isinstance(proposal, Posterior):
        values = initial.of_posterior(proposal, num_points, graph, whatever_weights=True)
    elif callable(proposal) and not isinstance(proposal, Mapping):
        values = initial.called(proposal, num_points, graph, *arguments)
    if not isinstance(values, Mapping):
        raise OptionError(
            f"proposal={proposal!r} is not a dict of values, a posterior, pg.infer.Gibbs, a Pyro "
            "guide, or a function returning a dict of values"
        )
    initial.refuse_unknown_sites("samples= or proposal=", values, graph)
    codes = codes_of(graph, values)
    if codes.shape[1] != num_points:
        raise ShapeMismatch(
            f"the proposal gives {codes.shape[1]} points where num_particles={num_points}: give "
            "that many, or leave num_particles out beside values"
        )
    return codes


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
        OptionError: Gibbs chains were asked for, or a value is outside its support or complex.
        ShapeMismatch: a site is missing, unknown or has another shape.
        UnsupportedSite: a site's support depends on latents, and the proposal is neither flat
            points nor a posterior whose particles have the same values on this graph.
    """
    if isinstance(proposal, Gibbs):
        raise OptionError(
            "Gibbs chains are for discrete sites; give samples={site: values}, a posterior of "
            "another engine (pg.Langevin, pg.GraphicalSVGD), or a guide, as the proposal"
        )
    if isinstance(proposal, Posterior):
        proposal = initial.of_posterior(proposal, num_points, graph, whatever_weights=True)
    return initial.starting_particles(proposal, num_points, graph, *arguments)
