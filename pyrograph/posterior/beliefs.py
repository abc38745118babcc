"""A posterior made of one belief per node: the product of its marginals.

    p(latents | data) is approximated by prod_i q_i(x_i)

Discrete nodes have categorical beliefs, continuous ones Gaussians in unconstrained space, pushed
through the map to the site's support. Factors keep beliefs over their scopes besides.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal, Normal, biject_to

from pyrograph.beliefs import Conjugate, Gaussian, Natural
from pyrograph.errors import OptionError
from pyrograph.graph.spaces import unconstrain
from pyrograph.posterior.belief_guide import BeliefGuide
from pyrograph.posterior.conjugate import conjugate_distribution
from pyrograph.posterior.finite import States
from pyrograph.posterior.posterior import number_of_draws
from pyrograph.posterior.pushforward import Pushforward, Reshaped, is_real
from pyrograph.posterior.scopes import ScopedPosterior, Scopes
from pyrograph.trace.sites import support_on


class BeliefPosterior(ScopedPosterior):
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
        super().__init__(graph, scopes, **run)
        self.family, self.row, self.beliefs = family, row, list(beliefs)

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
        shape, values, free = (number_of_draws(num_samples),), {}, {}
        for name, site in self.graph.sites.items():
            if not site.is_discrete and site.support is None:  # known with the others' values alone
                normal = normal_of(self._belief(name), site.batch_shape, site.event_shape)
                free[name] = normal.sample(shape)
                continue
            value = self.marginal(name).sample(shape)
            if site.is_discrete:
                value = site.enumeration.to(value.device)[value]
            values[name] = value
        if not free:
            return self._as_drawn(values)
        fixed = [site for name, site in self.graph.sites.items() if name in values]
        free |= unconstrain(fixed, values, self.graph.device)
        moved = self.graph.constrain(free)
        joint = {name: values.get(name, moved[name]).detach() for name in self.graph.sites}
        return self._as_drawn(joint)

    @torch.inference_mode(False)  # its parameters are to be trained
    def guide(self, sites: Sequence[str] | None = None) -> BeliefGuide:
        """The product of the sites' marginals as a Pyro guide.

        Raises:
            OptionError: no such site, or an empty list.
            UnsupportedSite: a site's support depends on latents.
        """
        chosen = self._chosen(sites)
        beliefs = [self._belief(site.name) for site in chosen]
        return BeliefGuide.from_beliefs(chosen, beliefs).drawing(self.graph)


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
