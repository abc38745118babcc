"""A posterior made of joint states of discrete sites, with weights.

p(x | data) is approximated by sum_k w_k [x = x_k]. Equal states count together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from pyro.distributions import Categorical, Delta, TorchDistribution
from torch import Tensor

from pyrograph.errors import OptionError
from pyrograph.graph import FactorGraph
from pyrograph.posterior.finite import Finite, States, state_quantile
from pyrograph.posterior.joint_states import JointStateGuide, distinct, log_sums
from pyrograph.posterior.posterior import Posterior, draw_indices
from pyrograph.posterior.site_guide import levels, with_states
from pyrograph.shapes import broadcast_shapes


def log_shares(codes: Tensor, log_weights: Tensor, num_states: int, log_p: Tensor | None) -> Tensor:
    """Logs of the marginals of nodes, ``[n, c]``.

    Args:
        codes: states of the particles, ``[K, n]``; log_weights: ``[K]``.
        log_p: of nodes that are summed out, given the particle, ``[n, K, c]``.
    """
    if log_p is not None:
        return (log_p + log_weights.unsqueeze(1)).logsumexp(1)
    return log_sums(log_weights.expand(codes.shape[1], -1), codes.t(), num_states)


def values_of(graph: FactorGraph, x: Tensor) -> dict[str, Tensor]:
    """Numbers of states ``[V, K]`` of all nodes as values ``{site: [K, *site shape]}``."""
    out = {}
    for name, site in graph.sites.items():
        codes = x[graph.nodes_of(name)].t()
        out[name] = site.enumeration.to(codes.device)[codes].reshape(len(codes), *site.shape)
    return out


class DiscreteParticles(Posterior):
    """Joint states and their weights.

    Args:
        graph: the factor graph.
        x: ``[V, K]`` numbers of the nodes' states; distinct columns where nodes are summed out.
        log_weights: ``[K]``, of weights that add up to 1.
        summed_out: nodes ``[n]`` that are no part of the particles and their conditional log
            probabilities ``[n, K, c]`` given them.
        run: ``converged``, ``status``, ``history`` and evidence, see :class:`Posterior`.
    """

    def __init__(
        self,
        graph,
        x: Tensor,
        log_weights: Tensor,
        summed_out: Sequence[tuple[Tensor, Tensor]] = (),
        **run,
    ):
        super().__init__(graph, **run)
        self.x = x.clone()
        self.summed_out = [(nodes, p.to(graph.dtype)) for nodes, p in summed_out]
        for nodes, log_p in self.summed_out:
            self.x[nodes] = log_p.argmax(2)
        self.log_weights = log_weights.to(graph.dtype).log_softmax(0)

    @property
    def weights(self) -> Tensor:
        """``[K]``."""
        return self.log_weights.exp()

    def _codes(self, name: str) -> Tensor:
        """``[K, number of nodes]`` of a site."""
        return self.x[self.graph.nodes_of(name)].t()

    @cached_property
    def particles(self) -> Mapping[str, Tensor]:
        """``{site: [K, *site shape]}``; nodes that are summed out in their most probable state."""
        return values_of(self.graph, self.x)

    def _log_probs(self, name: str) -> Tensor | None:
        """``[nodes, K, c]`` of a site with nodes that are summed out."""
        site, place = self._site(name), self.graph.nodes_of(name)
        found = None
        for nodes, log_p in self.summed_out:
            mine = (nodes >= place.start) & (nodes < place.stop)
            if not bool(mine.any()):
                continue
            if found is None:
                codes = self.x[place]
                found = log_p.new_full((*codes.shape, site.cardinality), -torch.inf)
                found.scatter_(2, codes.unsqueeze(2), 0.0)
            found[nodes[mine] - place.start] = log_p[mine]
        return found

    def marginal(self, site: str) -> States:
        """``Categorical`` over the states ``[*batch, c]`` of a site, see :class:`States`.

        Raises:
            OptionError: no such site.
        """
        described, codes, log_p = self._site(site), self._codes(site), self._log_probs(site)
        logits = log_shares(codes, self.log_weights, described.cardinality, log_p)
        logits = logits.reshape(*described.batch_shape, described.cardinality)
        return States(described.enumeration.to(logits.device), logits)

    def sample(self, num_samples: int) -> dict[str, Tensor]:
        """Joint draws by systematic resampling, in random order."""
        index = draw_indices(self.weights, num_samples)
        x = self.x[:, index]
        for nodes, log_p in self.summed_out if num_samples else ():
            x[nodes] = Categorical(logits=log_p[:, index]).sample()
        return values_of(self.graph, x)

    @torch.inference_mode(False)  # its parameters are to be trained
    def guide(self, sites: Sequence[str] | None = None) -> DiscreteParticleGuide:
        """Draws a joint state; its density is that of the particles' marginal over the sites.

        Raises:
            OptionError: no such site, an empty list, or some only where nodes are summed out.
        """
        chosen = self._chosen(sites)
        if self.summed_out and len(chosen) < len(self.graph.sites):
            raise OptionError(
                "particles whose nodes are partly summed out have a density over all sites only: "
                "guide()"
            )
        codes = torch.cat([self._codes(site.name) for site in chosen], 1)
        log_weights = self.log_weights
        if not self.summed_out:
            codes, log_weights = distinct(codes, log_weights)
        states = [self._log_probs(site.name) for site in chosen]
        described = [with_states(site) for site in chosen]
        return DiscreteParticleGuide(described, codes, log_weights, states)


class DiscreteParticleGuide(JointStateGuide):
    """Joint states of discrete sites by the numbers of the nodes' states; nodes that are summed out
    are drawn given the others."""

    def forward(self, *args, **kwargs) -> dict[str, Tensor]:
        """Draw a joint state; returns ``{site: value}``."""
        which = self.draw()
        plates = self._create_plates(*args, **kwargs)
        result, start = {}, 0
        for k, (name, site) in enumerate(self.sites.items()):
            size = torch.Size(site["batch_shape"]).numel()
            codes = self.codes[which][..., start : start + size]
            start += size
            # lead dimensions are of size 1 where the site's own plates stand
            batch = broadcast_shapes(torch.Size(site["batch_shape"]), which.shape)
            value = site["values"].to(codes.device)[codes].reshape((*batch, *site["event_shape"]))
            fn: TorchDistribution = Delta(value, event_dim=len(site["event_shape"]))
            if hasattr(self, f"states_{k}"):
                logits = getattr(self, f"states_{k}")[:, which]
                logits = logits.movedim(0, -2).reshape((*batch, logits.shape[-1]))
                fn = Finite(site["values"].to(logits.device), logits)
            result[name] = self._sample(plates, name, fn)
        return result

    @torch.no_grad()
    def median(self, *args, **kwargs) -> dict[str, Tensor]:
        """The joint state of the highest weight."""
        which, start, out = int(self.logits.argmax()), 0, {}
        for name, site in self.sites.items():
            size = torch.Size(site["batch_shape"]).numel()
            codes = self.codes[which, start : start + size]
            start += size
            shape = (*site["batch_shape"], *site["event_shape"])
            out[name] = site["values"].to(codes.device)[codes].reshape(shape)
        return out

    @torch.no_grad()
    def quantiles(self, quantiles: Sequence[float], *args, **kwargs) -> dict[str, Tensor]:
        """``{site: [len(quantiles), *shape]}``: of every node the least value that is reached with
        the probability asked for. States that are vectors have no order: their sites are left out.

        Raises:
            OptionError: they are no sequence of numbers from 0 to 1, or there are none.
        """
        wanted, start, out = levels(quantiles), 0, {}
        log_weights = self.logits.double().log_softmax(0)
        for k, (name, site) in enumerate(self.sites.items()):
            size = torch.Size(site["batch_shape"]).numel()
            codes = self.codes[:, start : start + size]
            start += size
            values = site["values"].to(codes.device)
            if values.dim() > 1:
                continue
            log_p = getattr(self, f"states_{k}", None)
            log_p = None if log_p is None else log_p.double()
            shares = log_shares(codes, log_weights, len(values), log_p).exp()
            found = [values[state_quantile(values, shares, q)] for q in wanted]
            out[name] = torch.stack(found).reshape(len(wanted), *site["batch_shape"])
        return out
