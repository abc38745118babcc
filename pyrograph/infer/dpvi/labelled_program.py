"""Programs whose latents are labellings: partitions and state sequences with collapsed data.

    z = pyro.sample("z", ChineseRestaurant(alpha, n))
    pyro.sample("x", CollapsedMixture(z, component), obs=x)

Such a site is one event of n labels without a finite list of states, and its data depend on all of
them at once: no factor graph of small scopes. What makes it tractable are sufficient statistics of
clusters, by which one label is scored against all others (:mod:`pyrograph.distributions`). This
module reads which collapsed data hang on which labels, and checks that nothing else does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyro.poutine as poutine
import torch
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyrograph.distributions import (
    ChineseRestaurant,
    ChineseRestaurantFranchise,
    Clusters,
    CollapsedMixture,
    CollapsedRelation,
    join,
)
from pyrograph.distributions.beta_bernoulli import LineTerm
from pyrograph.errors import OptionError, UnsupportedFactor, UnsupportedSite
from pyrograph.trace.sites import Site

Prior = ChineseRestaurant | ChineseRestaurantFranchise
#: Draws of the labels at which all other statements must keep their density.
CHECKS = 3


@dataclass(frozen=True)
class LabelledProgram:
    """What a labelled program is made of. Stands where other programs have a factor graph.

    Attributes:
        sites: of the labels, one node each.
        priors: of the sites.
        mixtures: per statement its site, distribution and data.
        relations: per statement the sites of rows and columns, distribution and data.
        constant: log density of everything else.
    """

    sites: Mapping[str, Site]
    priors: Mapping[str, Prior]
    mixtures: Mapping[str, tuple[str, CollapsedMixture, Tensor]]
    relations: Mapping[str, tuple[str, str, CollapsedRelation, Tensor]]
    constant: Tensor
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def nodes(self) -> tuple:
        return tuple((name, ()) for name in self.sites)

    @property
    def num_nodes(self) -> int:
        return len(self.sites)

    @property
    def dtype(self) -> torch.dtype:
        return self.constant.dtype

    @property
    def is_exchangeable(self) -> bool:
        """Whether elements may come in in any order."""
        return all(isinstance(prior, ChineseRestaurant) for prior in self.priors.values())

    def log_prob(self, labels: Mapping[str, Tensor]) -> Tensor:
        """``[P]`` of labels ``{site: [P, n]}``, constant included."""
        total = self.constant
        for name, prior in self.priors.items():
            total = total + prior.log_prob(labels[name])
        for site, fn, data in self.mixtures.values():
            total = total + CollapsedMixture(labels[site], fn.component).log_prob(data)
        for rows, columns, fn, data in self.relations.values():
            relation = CollapsedRelation(labels[rows], labels[columns], fn.component, fn.observed)
            total = total + relation.log_prob(data)
        return total

    def score(self, clusters: Mapping[str, Clusters]) -> Tensor:
        """The same ``[P]`` from the statistics of complete labellings."""
        total = self.constant + sum(own.log_prob() for own in clusters.values())
        for _, columns, _, _ in self.relations.values():
            # rows and columns both hold the relation's likelihood
            own = clusters[columns]
            total = total - sum(
                term.log_prob(own.seating) for term in own.terms if isinstance(term, LineTerm)
            )
        return total

    def clusters(self, labels: Mapping[str, Tensor]) -> dict[str, Clusters]:
        """States that score single reassignments, from labels ``{site: [P, t]}``."""
        parts: dict[str, list[Clusters]] = {name: [] for name in self.sites}
        for rows, columns, fn, data in self.relations.values():
            found = fn.incremental(labels[rows], labels[columns], data)
            parts[rows].append(found.rows)
            parts[columns].append(found.columns)
        for name, prior in self.priors.items():
            parts[name].append(prior.incremental(labels[name]))
        for site, fn, data in self.mixtures.values():
            parts[site].append(fn.incremental(labels[site], data))
        return {name: join(*found) for name, found in parts.items()}


def read_labelled(model: Callable, args: tuple, kwargs: dict[str, Any]) -> LabelledProgram | None:
    """The labelled program, or None if no site is a labelling.

    Raises:
        UnsupportedSite: there are other latent sites beside labellings.
        UnsupportedFactor: a statement reads labels in another way than by collapsed data.
    """
    first = _run(model, args, kwargs)
    latent = {
        name: node
        for name, node in first.nodes.items()
        if node["type"] == "sample" and not node["is_observed"] and not site_is_subsample(node)
    }
    priors = {n: node["fn"] for n, node in latent.items() if isinstance(node["fn"], Prior)}
    if not priors:
        return None
    others = [name for name in latent if name not in priors]
    if others:
        raise UnsupportedSite(
            f'site "{others[0]}" stands beside the labels of "{next(iter(priors))}". Labels are '
            "moved by statistics of their clusters alone: sum the other sites out (a component of "
            "pg.distributions integrates over its parameters), or fix them."
        )
    by_value = {id(latent[name]["value"]): name for name in priors}
    mixtures, relations = {}, {}
    for name, node in first.nodes.items():
        if node["type"] != "sample" or not node["is_observed"]:
            continue
        fn = node["fn"]
        if isinstance(fn, CollapsedMixture) and id(fn.z) in by_value:
            mixtures[name] = (by_value[id(fn.z)], fn, node["value"])
        elif isinstance(fn, CollapsedRelation) and {id(fn.rows), id(fn.columns)} <= set(by_value):
            rows, columns = by_value[id(fn.rows)], by_value[id(fn.columns)]
            relations[name] = (rows, columns, fn, node["value"])
    _refuse_shared_relations(relations)
    _refuse_other_readers(model, args, kwargs, first, {*priors, *mixtures, *relations})
    constant = _rest(first, {*priors, *mixtures, *relations})
    like = next(iter(priors.values())).alpha
    sites = {name: _site(name, latent[name]) for name in priors}
    constant = torch.as_tensor(constant, dtype=like.dtype, device=like.device)
    return LabelledProgram(sites, priors, mixtures, relations, constant, like.device)


def _run(model: Callable, args: tuple, kwargs: dict[str, Any]):
    with torch.no_grad():
        trace = poutine.trace(model).get_trace(*args, **kwargs)
        trace.compute_log_prob()
    return trace


def _rest(trace, known: set[str]) -> Tensor:
    """Log density of all other statements."""
    terms = [
        node["log_prob_sum"]
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and name not in known
    ]
    return sum(terms, start=torch.zeros(()))


def _refuse_shared_relations(relations: Mapping[str, tuple]) -> None:
    """Cell counts follow moves of their own relation only."""
    seen: dict[str, str] = {}
    for statement, (rows, columns, _, _) in relations.items():
        for site in (rows, columns):
            if site in seen:
                raise UnsupportedFactor(
                    f'"{seen[site]}" and "{statement}" both read the labels "{site}" as a relation.'
                    " One relation per site of labels can be scored; put both into one."
                )
            seen[site] = statement


def _refuse_other_readers(
    model: Callable, args: tuple, kwargs: dict[str, Any], first, known: set[str]
) -> None:
    """Whether the other statements keep their densities at other labels."""
    for _ in range(CHECKS):
        again = _run(model, args, kwargs)
        for name, node in first.nodes.items():
            if node["type"] != "sample" or name in known or site_is_subsample(node):
                continue
            other = again.nodes.get(name)
            if other is None or not torch.equal(other["log_prob_sum"], node["log_prob_sum"]):
                raise UnsupportedFactor(
                    f'"{name}" changes with the labels, and is no CollapsedMixture or '
                    "CollapsedRelation of them. Only collapsed data can be scored label by label."
                )


def _site(name: str, node: dict[str, Any]) -> Site:
    value = node["value"]
    if value.dim() != 1:
        raise OptionError(
            f'labels "{name}" have shape {tuple(value.shape)}: one labelling at a time, [n]'
        )
    shape = tuple(value.shape)
    return Site(
        name=name,
        batch_shape=(),
        event_shape=shape,
        constrained_event_shape=shape,
        support=node["fn"].support,
        is_discrete=True,
        enumeration=None,
        dtype=value.dtype,
        device=value.device,
        plates=(),
        distribution=type(node["fn"]).__name__,
    )
