"""A posterior made of beliefs of nodes and factors.

Discrete nodes have categorical beliefs, continuous ones Gaussians in unconstrained space, pushed
through the map to the site's support, or gamma, beta and Dirichlet ones. Where the scopes of
factors close no cycle, these make a joint distribution (:mod:`.forest`); otherwise

    p(latents | data) is approximated by prod_i q_i(x_i)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal, Normal, biject_to

from pyrograph.beliefs import Conjugate, Gaussian, JointForest, Natural
from pyrograph.checks import count
from pyrograph.graph.spaces import unconstrain
from pyrograph.posterior.belief_guide import BeliefGuide
from pyrograph.posterior.conjugate import conjugate_distribution
from pyrograph.posterior.finite import States
from pyrograph.posterior.forest_guide import ForestGuide
from pyrograph.posterior.joint_beliefs import joint_of_beliefs
from pyrograph.posterior.pushforward import Pushforward, Reshaped, is_real
from pyrograph.posterior.scopes import ScopedPosterior, Scopes
from pyrograph.trace.supports import support_on


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
        """Of a site's nodes."""
        nodes = self.graph.nodes_of(self._site(name).name)
        return self.beliefs[int(self.family[nodes.start])][self.row[nodes]]

    @cached_property
    def joint(self) -> JointForest | None:
        """The joint distribution that beliefs of nodes and factors make (:func:`joint_of_beliefs`),
        over all sites but those with gamma, beta and Dirichlet beliefs; None if there is none."""
        return joint_of_beliefs(self.graph, self.family, self.row, self.beliefs, self.scopes)

    def marginal(self, site: str) -> Distribution:
        """``Categorical`` over the states ``[*batch, c]`` of a discrete site, whose draws are the
        states' numbers and whose moments are those of their values (see :class:`States`); of a
        continuous one a normal distribution, joint over an event, of a constrained one its image,
        or the gamma, beta or Dirichlet distribution it was given.

        Raises:
            OptionError: no such site.
            UnsupportedSite: its support depends on latents.
        """
        return self._marginal(site, self.graph.result_dtype)

    def _marginal(self, name: str, dtype: torch.dtype) -> Distribution:
        """With parameters in a precision."""
        site, belief = self._site(name), self._belief(name)
        if isinstance(belief, Tensor):
            values = site.enumeration.to(belief.device)
            return States(values, belief.reshape(*site.batch_shape, -1).to(dtype))
        if isinstance(belief, Conjugate):
            natural = belief.natural.reshape(*site.batch_shape, -1).to(dtype)
            support = support_on(site.support, natural.device)
            return conjugate_distribution(type(belief), natural, support)
        base = normal_of(belief, site.batch_shape, site.event_shape, dtype)
        if is_real(site):
            return base
        return Pushforward(base, biject_to(support_on(site.support, belief.shift.device)))

    def sample(self, num_samples: int) -> dict[str, Tensor]:
        """Joint draws where the scopes of factors close no cycle, exact ones if the beliefs are;
        else draws from the product of the marginals.

        Discrete and continuous nodes are looked at apart: what they tell about each other is not
        kept, nor what parity checks, very large tables and nodes with gamma, beta and Dirichlet
        beliefs tell.
        :attr:`joint` is None where nothing is.
        """
        num_samples = count("num_samples", num_samples, least=0)
        values, free = {}, {}
        joint: dict[str, Tensor] = {}
        if self.joint is not None:
            joint = self.joint.sample(self.joint.draw_components(num_samples))
        for name, site in self.graph.sites.items():
            shape, belief = (num_samples, *site.batch_shape, *site.event_shape), self._belief(name)
            dtype = self.graph.dtype_of(name)
            if isinstance(belief, Tensor):
                state = joint.get(name)
                if state is None:
                    state = self.marginal(name).sample((num_samples,))
                chosen = site.enumeration.to(state.device)[state]
                values[name] = chosen.reshape(shape)
            elif name not in joint and site.support is not None:
                values[name] = self._marginal(name, dtype).sample((num_samples,))
            else:
                if name in joint:
                    value = joint[name].reshape(shape)
                else:
                    normal = normal_of(belief, site.batch_shape, site.event_shape, dtype)
                    value = normal.sample((num_samples,))
                if site.support is None:  # known with the others' values alone
                    free[name] = value
                else:  # rounded before: after it a value might lie on an edge of its support
                    map_to = biject_to(support_on(site.support, value.device))
                    values[name] = map_to(value.to(dtype))
        if not free:
            return self._as_drawn(values)
        fixed = [site for name, site in self.graph.sites.items() if name in values]
        free |= unconstrain(fixed, values, self.graph.device)
        moved = self.graph.constrain(free)
        joint = {name: values.get(name, moved[name]).detach() for name in self.graph.sites}
        return self._as_drawn(joint)

    @torch.inference_mode(False)  # its parameters are to be trained
    def guide(
        self, sites: Sequence[str] | None = None, *, joint: bool = True
    ) -> BeliefGuide | ForestGuide:
        """The joint distribution of all sites as a Pyro guide where :meth:`sample` draws jointly;
        else, of some of the sites, and with ``joint=False`` the product of their marginals, which
        ``TraceMeanField_ELBO``, ``TraceGraph_ELBO`` and ``poutine.condition`` need.

        Raises:
            OptionError: no such site, or an empty list.
            UnsupportedSite: a site's support depends on latents.
        """
        chosen = self._chosen(sites)
        names = {site.name for site in chosen}
        is_whole = joint and names == set(self.graph.sites)
        if is_whole and self.joint is not None and names == set(self.joint.shapes):
            every = list(self.graph.sites.values())
            guide = ForestGuide.from_forest(every, self.joint, self.graph.result_dtype)
            return guide.drawing(self.graph)
        beliefs = [self._belief(site.name) for site in chosen]
        guide = BeliefGuide.from_beliefs(chosen, beliefs, self.graph.result_dtype)
        return guide.drawing(self.graph)


def normal_of(
    belief: Gaussian, batch: tuple[int, ...], event: tuple[int, ...], dtype: torch.dtype
) -> Distribution:
    """Normal distribution of a site's shape in unconstrained space, joint over an event."""
    mean = belief.mean.to(dtype)
    if not event:
        scale = belief.covariance[..., 0, 0].sqrt().to(dtype)
        return Normal(mean.reshape(batch), scale.reshape(batch))
    d = belief.d
    # a root has half the digits to lose
    root = torch.linalg.cholesky(belief.covariance).to(dtype)
    joint = MultivariateNormal(mean.reshape(*batch, d), scale_tril=root.reshape(*batch, d, d))
    return joint if len(event) == 1 else Reshaped(joint, torch.Size(event))
