"""A posterior that is one mixture over all nodes.

    q(x) = sum_l w_l prod_i q_il(x_i)

Marginals of any nodes are mixtures with the same weights, and so are conditionals, whose weights
follow by Bayes' rule,

    w_l | x_G  ~  w_l prod_{i in G} q_il(x_i)

without inference running again. Continuous nodes are Gaussian in unconstrained space within a
component, pushed through the map to the site's support. Where a component correlates them, one
normal of all their numbers is in the place of the product, and they regress on what is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    biject_to,
)
from torch.distributions.constraints import Constraint

from pyrograph.beliefs import Categoricals, JointMixture, Normals
from pyrograph.checks import count
from pyrograph.errors import InferenceError, OptionError, ShapeMismatch, UnsupportedSite
from pyrograph.posterior.finite import States
from pyrograph.posterior.mixture_guide import MixtureGuide
from pyrograph.posterior.partly_given import PartlyGiven
from pyrograph.posterior.pushforward import Pushforward, Reshaped, is_real
from pyrograph.posterior.scopes import ScopedPosterior, Scopes
from pyrograph.posterior.support import on_edge
from pyrograph.trace.sites import Site, tensor_of
from pyrograph.trace.supports import support_on, with_bounds


class MixturePosterior(ScopedPosterior):
    """A joint mixture.

    Args:
        graph: the factor graph, unconstrained.
        mixture: over its sites.
        scopes: beliefs of the factors.
        is_joint: whether the mixture is all there is; else beliefs of factors know of more
            dependence within a component than it does.
        run: ``converged``, ``status``, ``history`` and evidence, see :class:`Posterior`.
    """

    def __init__(
        self, graph, mixture: JointMixture, scopes: Sequence[Scopes], *, is_joint: bool, **run
    ):
        super().__init__(graph, scopes, **run)
        self.mixture, self.is_joint = mixture, is_joint
        #: By site, ``[n]`` which nodes were given; of continuous ones the values, of its shape.
        self.given: dict[str, Tensor] = {}
        self.given_values: dict[str, Tensor] = {}

    def marginal(self, site: str) -> Distribution:
        """``MixtureSameFamily`` over the components, joint over an event, in the program's space;
        ``Categorical`` over the states of a discrete site. Nodes that were given are points: like
        Pyro's ``Delta``, ``log_prob`` is 0 at their value and -inf elsewhere.

        Raises:
            OptionError: no such site.
            UnsupportedSite: its support depends on latents.
        """
        described, nodes = self._site(site), self.mixture.sites[site]
        dtype = self.graph.result_dtype
        batch, event = described.batch_shape, described.event_shape
        if isinstance(nodes, Categoricals):
            log_p = (nodes.log_p + self.mixture.log_weights[:, None, None]).logsumexp(0).to(dtype)
            values = described.enumeration.to(log_p.device)
            return States(values, log_p.reshape(*batch, -1))
        lead = (*batch, self.mixture.num_components)
        is_given = self.given.get(site)
        base = _normal(nodes if is_given is None else nodes.widened(is_given), lead, event, dtype)
        if not is_real(described):
            support = support_on(described.support, nodes.mean.device)
            beside = _beside_components(support, len(described.constrained_event_shape))
            base = Pushforward(base, biject_to(beside))
        log_weights = self.mixture.log_weights.to(dtype).expand(lead)
        weights = Categorical(logits=log_weights, validate_args=False)
        if is_given is None:
            return MixtureSameFamily(weights, base, validate_args=False)
        return PartlyGiven(weights, base, is_given.reshape(batch), self.given_values[site])

    def sample(self, num_samples: int) -> dict[str, Tensor]:
        """Draws from the joint mixture: one component for all nodes of a draw.

        Where ``covariance="full"`` correlated nodes in the beliefs of factors
        (:meth:`factor_marginal`) and no joint mixture has these beliefs, nodes are independent
        within a component, and the status says so.
        """
        num_samples = count("num_samples", num_samples, least=0)
        sites = self.graph.sites
        if not num_samples:
            return {
                name: torch.zeros(0, *site.shape, dtype=site.dtype, device=site.device)
                for name, site in sites.items()
            }
        component, free = self.mixture.draw_components(num_samples), {}
        for name, drawn in self.mixture.sample(component).items():
            site = sites[name]
            values = site.enumeration.to(drawn.device)[drawn] if site.is_discrete else drawn
            free[name] = values.detach().reshape(num_samples, *site.batch_shape, *site.event_shape)
        values = self.graph.constrain(self._as_drawn(free))
        for name, given in self.given_values.items():  # the way through the map rounds
            is_given = self.given[name].reshape(self._whole(sites[name]))
            values[name] = torch.where(is_given, given.to(values[name]), values[name])
        return {name: value.detach() for name, value in values.items()}

    def condition(
        self, values: Mapping[str, Tensor], mask: Mapping[str, Tensor] | None = None
    ) -> MixturePosterior:
        """The posterior given values of some nodes, in closed form.

        Args:
            values: by site, in the program's space, of the site's shape.
            mask: by site, bool of its batch shape, True where the value is given; default all.

        Raises:
            OptionError: no such site, a node given before, a value outside the support, or what
                is no tensor by site; a value so far out that no component reaches it.
            ShapeMismatch: a value or mask has another shape than the site.
            UnsupportedSite: a site's support depends on latents.
            InferenceError: ``covariance="full"`` correlated nodes of factors, and no joint
                mixture has these beliefs.
        """
        values = _by_site("values", values)
        mask = _by_site("mask", {} if mask is None else mask)
        if not self.is_joint:
            raise InferenceError(
                "conditioning needs a joint mixture, and none has the beliefs of the factors (see "
                'posterior.status); run QBethe with covariance="diagonal"'
            )
        known, given, given_values = {}, dict(self.given), dict(self.given_values)
        for name in [*values, *(name for name in mask if name not in values)]:
            site = self._site(name)
            if name not in values:
                raise OptionError(f'mask names site "{name}", of which no value is given')
            which = _checked_mask(site, mask.get(name)).to(self.mixture.log_weights.device)
            if name in given and bool((which & given[name]).any()):
                raise OptionError(f'nodes of site "{name}" are given already')
            known[name] = which, self._states_or_numbers(site, values[name], which)
            given[name] = which | given.get(name, torch.zeros_like(which))
            if not site.is_discrete:
                mean = self.mixture.sites[name].mean
                value = torch.as_tensor(
                    values[name], dtype=self.graph.result_dtype, device=mean.device
                )
                before = given_values.get(name, 0.0)
                given_values[name] = torch.where(which.reshape(self._whole(site)), value, before)
        mixture = self.mixture.condition(known)
        if not bool(mixture.log_weights.exp().isfinite().all()):
            raise OptionError(self._out_of_reach(known))
        result = MixturePosterior(
            self.graph,
            mixture,
            [],
            is_joint=True,
            converged=self.converged,
            status=self.status,
            history=self.history,
        )
        result.given, result.given_values = given, given_values
        return result

    @staticmethod
    def _whole(site: Site) -> tuple[int, ...]:
        """Shape of what is said of a site's nodes, beside their values."""
        return (*site.batch_shape, *(1 for _ in site.constrained_event_shape))

    def _out_of_reach(self, known: Mapping[str, tuple[Tensor, Tensor]]) -> str:
        """What to say of values that leave no component any weight."""
        for name, (mask, value) in known.items():
            log_p = self.mixture.sites[name].log_prob(value)[:, mask].sum(1)  # [L]
            if not bool(log_p.isfinite().any()):
                break
        else:
            name = '", "'.join(known)
        return (
            f'the value of site "{name}" is so far out that the log density of every component '
            "overflows, and their weights given it are 0 / 0. Give a value nearer to the "
            "posterior, or fit the program with the value held: "
            "pyro.poutine.condition(model, data={...})"
        )

    def _states_or_numbers(self, site: Site, value: Tensor, mask: Tensor) -> Tensor:
        """``[n]`` or ``[n, d]``: state numbers or unconstrained numbers of the given nodes."""
        value = _as_tensor("value", site, value).to(self.mixture.log_weights.device)
        if value.shape != site.shape:
            raise ShapeMismatch(
                f'the value of site "{site.name}" has shape {list(value.shape)}, the site has '
                f"shape {list(site.shape)}; values of nodes that are not given may be anything"
            )
        nodes = self.mixture.sites[site.name]
        if isinstance(nodes, Categoricals):
            states = site.enumeration.to(value)
            flat = value.reshape(site.num_nodes, 1, *states.shape[1:])
            same = (flat == states).reshape(site.num_nodes, len(states), -1).all(2)
            if not bool(same.any(1)[mask].all()):
                raise OptionError(f'a value of site "{site.name}" is none of its states')
            return same.to(torch.int64).argmax(1)
        if site.support is None:
            raise UnsupportedSite(
                f'site "{site.name}" has a support that depends on other latents, so its value is '
                "no number of the mixture apart from them. Fit the program with the value held: "
                "pyro.poutine.condition(model, data={...})."
            )
        value = value.to(nodes.mean.device, self.graph.result_dtype)  # as bounds are
        support = support_on(site.support, value.device)
        inside = support.check(value)  # in the site's shape: bounds may vary over its plates
        if not bool(inside.reshape(site.num_nodes, -1).all(1)[mask].all()):
            raise OptionError(f'a value of site "{site.name}" is outside its support')
        free = biject_to(support).inv(value).reshape(site.num_nodes, -1)
        is_number = free.isfinite().all(1)
        is_number &= ~on_edge(support, value).reshape(site.num_nodes, -1).any(1)
        if not bool(is_number[mask].all()):
            raise OptionError(f'a value of site "{site.name}" is infinite or on its boundary')
        return torch.where(mask.unsqueeze(1), free.to(nodes.mean), 0.0)

    @torch.inference_mode(False)  # its parameters are to be trained
    def guide(self, sites: Sequence[str] | None = None) -> MixtureGuide:
        """The joint mixture as a Pyro guide with its exact density; sites left out are integrated
        out. Nodes of a component are as in :meth:`sample`.

        Raises:
            OptionError: no such site, or an empty list.
            UnsupportedSite: a site's support depends on latents.
            InferenceError: some nodes are given, and have no density.
        """
        chosen = self._chosen(sites)
        held = [s.name for s in chosen if s.name in self.given and bool(self.given[s.name].any())]
        if held:
            raise InferenceError(
                f"site {held[0]!r} has nodes that are given and have no density; leave it out: "
                "guide(sites=[...])"
            )
        guide = MixtureGuide.from_mixture(chosen, self.mixture, self.graph.result_dtype)
        return guide.drawing(self.graph)


def _beside_components(support: Constraint, event_dim: int) -> Constraint:
    """The support of ``[*batch, L, *event]``: bounds that vary over the batch, or have its
    dimensions, take one more between batch and event."""

    def beside(bound: Tensor) -> Tensor:
        return bound.unsqueeze(-1 - event_dim) if bound.dim() > event_dim else bound

    return with_bounds(support, beside)


def _normal(
    nodes: Normals, lead: tuple[int, ...], event: tuple[int, ...], dtype: torch.dtype
) -> Distribution:
    """Of the nodes' components, ``lead`` being the batch with the components last."""
    mean = nodes.mean.movedim(0, 1).to(dtype)
    if nodes.is_diagonal:
        scale = nodes.scale.movedim(0, 1).reshape(*lead, *event).to(dtype)
        base = Normal(mean.reshape(*lead, *event), scale, validate_args=False)
        return Independent(base, len(event)) if event else base
    width = mean.shape[-1]
    root = nodes.root.movedim(0, 1).reshape(*lead, width, width).to(dtype)
    joint = MultivariateNormal(mean.reshape(*lead, width), scale_tril=root, validate_args=False)
    return joint if len(event) == 1 else Reshaped(joint, torch.Size(event))


def _by_site(what: str, given: object) -> Mapping:
    if not isinstance(given, Mapping):
        raise OptionError(
            f'condition takes {what} by site, {{"site": tensor}}; it was given {given!r}'
        )
    return given


def _as_tensor(what: str, site: Site, given: object) -> Tensor:
    try:
        value = tensor_of(given)
    except (TypeError, ValueError, RuntimeError) as error:
        shape = list(site.shape if what == "value" else site.batch_shape)
        raise OptionError(
            f'the {what} of site "{site.name}" has to be a tensor of shape {shape}; it was given '
            f"as {given!r}"
        ) from error
    if value.is_complex():
        raise OptionError(
            f'the {what} of site "{site.name}" is complex, the site is real; give its real part'
        )
    return value


def _checked_mask(site: Site, mask: Tensor | None) -> Tensor:
    """``[n]``."""
    if mask is None:
        return torch.ones(site.num_nodes, dtype=torch.bool, device=site.device)
    mask = _as_tensor("mask", site, mask).to(site.device)
    if mask.dtype != torch.bool or mask.shape != torch.Size(site.batch_shape):
        raise ShapeMismatch(
            f'the mask of site "{site.name}" is {mask.dtype} of shape {list(mask.shape)}; it has '
            f"to be bool of the batch shape {list(site.batch_shape)}"
        )
    return mask.reshape(site.num_nodes)
