"""A posterior made of one belief per node: the product of its marginals.

    p(latents | data) is approximated by prod_i q_i(x_i)

Discrete nodes have categorical beliefs, continuous ones Gaussians in unconstrained space, pushed
through the map to the site's support. Factors keep beliefs over their scopes besides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal, Normal, biject_to

from pyrograph.beliefs import Conjugate, Gaussian, Natural
from pyrograph.errors import OptionError
from pyrograph.posterior.belief_guide import BeliefGuide
from pyrograph.posterior.conjugate import conjugate_distribution
from pyrograph.posterior.finite import States
from pyrograph.posterior.posterior import Posterior
from pyrograph.posterior.pushforward import Pushforward, Reshaped, is_real
from pyrograph.trace.sites import support_on


@dataclass(frozen=True)
class Scopes:
    """Beliefs over the scopes of like factors.

    Attributes:
        statements: of every factor.
        index: ``[E]`` position of each factor in the graph's order.
        beliefs: computes them: log values ``[E, c_1, ..., c_k]``, or Gaussians of batch ``[E]``.
    """

    statements: tuple[str, ...]
    index: Tensor
    beliefs: Callable[[], Tensor | Natural]


class BeliefPosterior(Posterior):
    """Beliefs of nodes and factors.

    Args:
        graph: the factor graph, unconstrained.
        family: ``[num_nodes]`` which of ``beliefs`` holds a node; row: ``[num_nodes]`` where.
        beliefs: normalised log values ``[V, c]``, or natural parameters of batch ``[V]``.
        scopes: beliefs of the factors.
        run: ``converged``, ``status``, ``history`` and evidence, see :class:`Posterior`.
    """

    def __init__(
        self,
        graph,
        family: Tensor,
        row: Tensor,
        beliefs: Sequence[Tensor | Natural],
        scopes: Sequence[Scopes],
        **run,
    ):
        super().__init__(graph, **run)
        self.family, self.row, self.beliefs = family, row, list(beliefs)
        self.scopes = list(scopes)

    def _belief(self, name: str) -> Tensor | Natural:
        """Of a site's nodes, in row-major order."""
        site = self._site(name)
        first = self.graph.node_id(name, *(0,) * len(site.batch_shape)) if site.num_nodes else 0
        nodes = torch.arange(first, first + site.num_nodes, device=self.row.device)
        if not len(nodes):
            raise OptionError(f'site "{name}" has no elements')
        return self.beliefs[int(self.family[first])][self.row[nodes]]

    def marginal(self, site: str) -> Distribution:
        """``Categorical`` over the states ``[*batch, c]`` of a discrete site, whose draws are the
        states' numbers and whose moments are those of their values (see :class:`States`); of a
        continuous one a normal distribution, joint over an event, of a constrained one its image,
        or the gamma or beta distribution it was given.

        Raises:
            OptionError: no such site.
            UnsupportedSite: its support depends on latents.
        """
        described, belief = self._site(site), self._belief(site)
        if isinstance(belief, Tensor):
            values = described.enumeration.to(belief.device)
            return States(values, belief.reshape(*described.batch_shape, -1))
        if isinstance(belief, Conjugate):
            parameters = [p.reshape(described.batch_shape) for p in (belief.first, belief.second)]
            support = support_on(described.support, belief.first.device)
            return conjugate_distribution(type(belief), *parameters, support)
        base = normal_of(belief, described.batch_shape, described.event_shape)
        if is_real(described.support):
            return base
        return Pushforward(base, biject_to(support_on(described.support, belief.shift.device)))

    def sample(self, num_samples: int) -> dict[str, Tensor]:
        """Draws from the product of the marginals; dependence between nodes is not kept."""
        out = {}
        for name, site in self.graph.sites.items():
            marginal = self.marginal(name)
            value = marginal.sample((num_samples,))
            if site.is_discrete:
                value = site.enumeration.to(value.device)[value]
            out[name] = value
        return out

    def factor_marginal(self, statement: str) -> Tensor | tuple[Tensor, Tensor]:
        """Beliefs over the scopes of a statement's factors.

        Returns:
            Probabilities ``[E, c_1, ..., c_k]`` of discrete factors; mean ``[E, R]`` and covariance
            ``[E, R, R]`` of continuous ones, over the numbers in unconstrained
            space that they depend on, node by node.

        Raises:
            OptionError: no such statement, or its factors' scopes have different shapes, or their
                beliefs are not kept.
        """
        index, means, covariances = [], [], []
        for part in self.scopes:
            mine = [e for e, name in enumerate(part.statements) if name == statement]
            if mine:
                belief = part.beliefs()
                index.append(part.index[mine])
                if isinstance(belief, Natural):
                    means.append(belief.mean[mine])
                    covariances.append(belief.covariance[mine])
                else:
                    means.append(belief.exp()[mine])
        if not index:
            known = sorted({name for part in self.scopes for name in part.statements})
            raise OptionError(
                f'statement "{statement}" has no factor beliefs; those that have: '
                f"{', '.join(known) or 'none'}."
            )
        if any(m.shape[1:] != means[0].shape[1:] for m in means):
            raise OptionError(
                f'the factors of statement "{statement}" have scopes of different shapes: '
                f"{', '.join(str(list(m.shape)) for m in means)}"
            )
        order = torch.cat(index).argsort()
        if covariances:
            return torch.cat(means)[order], torch.cat(covariances)[order]
        return torch.cat(means)[order]

    def guide(self, sites: Sequence[str] | None = None) -> BeliefGuide:
        """The product of the sites' marginals as a Pyro guide.

        Raises:
            OptionError: no such site, or an empty list.
            UnsupportedSite: a site's support depends on latents.
        """
        names = list(self.graph.sites if sites is None else sites)
        if not names:
            raise OptionError("guide(sites=[]) has no site to draw")
        return BeliefGuide.from_beliefs(
            [self._site(name) for name in names], [self._belief(name) for name in names]
        )


def normal_of(belief: Gaussian, batch: tuple[int, ...], event: tuple[int, ...]) -> Distribution:
    """Normal distribution of a site's shape in unconstrained space, joint over an event."""
    if not event:
        scale = belief.covariance[..., 0, 0].sqrt()
        return Normal(belief.mean.reshape(batch), scale.reshape(batch))
    d = belief.d
    joint = MultivariateNormal(
        belief.mean.reshape(*batch, d), belief.covariance.reshape(*batch, d, d)
    )
    return joint if len(event) == 1 else Reshaped(joint, torch.Size(event))
