"""Programs whose latents are labellings: partitions and state sequences with collapsed data.

    z = pyro.sample("z", ChineseRestaurant(alpha, n))
    pyro.sample("x", CollapsedMixture(z, component), obs=x)

Such a site is one event of n labels without a finite list of states, and its data depend on all of
them at once: no factor graph of small scopes. What makes it tractable are sufficient statistics of
clusters, by which one label is scored against all others (:mod:`pyrograph.distributions`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
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
from pyrograph.distributions.seating import Seating
from pyrograph.graph import FactorGraph
from pyrograph.trace.sites import Site

Prior = ChineseRestaurant | ChineseRestaurantFranchise
#: What factor graphs have beyond their methods and properties.
ATTRIBUTES = {"columns", "dim", "factors", "fixed", "free_sites", "masked", "num_factors"}


@dataclass(frozen=True, repr=False)
class LabelledProgram:
    """What a labelled program is made of. Stands where other programs have a factor graph.

    Attributes:
        sites: of the labels, one node each.
        priors: of the sites.
        mixtures: per statement its site, distribution and data.
        relations: per statement the sites of rows and columns, distribution and data.
        others: log densities of all other statements.
        constant: their sum.
    """

    sites: Mapping[str, Site]
    priors: Mapping[str, Prior]
    mixtures: Mapping[str, tuple[str, CollapsedMixture, Tensor]]
    relations: Mapping[str, tuple[str, str, CollapsedRelation, Tensor]]
    others: Mapping[str, Tensor]
    constant: Tensor
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {site.event_shape[0]}" for name, site in self.sites.items())
        return f"LabelledProgram(labels of {sizes})"

    def __getattr__(self, name: str) -> Any:
        # copying and pickling ask for names with underscores
        if not name.startswith("_") and (name in ATTRIBUTES or hasattr(FactorGraph, name)):
            raise AttributeError(
                f'here a program of labels has no factor graph, which would have the "{name}": '
                f"take pg.trace_graph(model, ...).{name}"
            )
        raise AttributeError(f'"{type(self).__name__}" object has no attribute "{name}"')

    @property
    def nodes(self) -> tuple:
        return tuple((name, ()) for name in self.sites)

    @property
    def num_nodes(self) -> int:
        return len(self.sites)

    @property
    def dtype(self) -> torch.dtype:
        return self.constant.dtype

    @functools.cached_property
    def elements(self) -> tuple[tuple[str, int], ...]:
        """All elements of all sites, sites in step with each other."""
        sizes = {name: site.event_shape[0] for name, site in self.sites.items()}
        order = sorted(((i + 0.5) / n, name, i) for name, n in sizes.items() for i in range(n))
        return tuple((name, i) for _, name, i in order)

    @property
    def is_exchangeable(self) -> bool:
        """Whether elements may come in in any order."""
        return all(isinstance(prior, ChineseRestaurant) for prior in self.priors.values())

    def log_prob(self, labels: Mapping[str, Tensor]) -> Tensor:
        """``[P]`` of labels ``{site: [P, n]}``, constant included."""
        return sum(self.log_probs(labels).values(), start=self.constant)

    def log_probs(self, labels: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of every statement that reads labels, ``[P]`` of ``{site: [P, n]}``."""
        found = {name: prior.log_prob(labels[name]) for name, prior in self.priors.items()}
        for name, (site, fn, data) in self.mixtures.items():
            found[name] = CollapsedMixture(labels[site], fn.component).log_prob(data)
        for name, (rows, columns, fn, data) in self.relations.items():
            relation = CollapsedRelation(
                labels[rows],
                labels[columns],
                fn.component,
                fn.observed,
                undirected=fn.undirected,
            )
            found[name] = relation.log_prob(data)
        return found

    def score(self, clusters: Mapping[str, Clusters]) -> Tensor:
        """The same ``[P]``, in double precision, from the statistics of complete labellings."""
        total = self.constant.double() + sum(own.exact_log_prob() for own in clusters.values())
        for own in clusters.values():
            # rows (axis 0) and columns (axis 1) both hold a relation's likelihood
            total = total - sum(
                term.log_prob(own.seating)
                for term in own.by_particle
                if isinstance(term, LineTerm) and term.axis == 1
            )
        return total

    def clusters(self, labels: Mapping[str, Tensor]) -> dict[str, Clusters]:
        """States that score single reassignments, from labels ``{site: [P, t]}``."""
        memo: dict = {}  # rows and columns of a relation share their cells
        first = torch.zeros(1, dtype=torch.int64, device=self.device)
        found = {}
        for name, nobody in self._with_nobody.items():
            terms = nobody.select(first, memo)
            seating = Seating(labels[name], self.sites[name].event_shape[0])
            found[name] = Clusters(seating, terms.by_cluster, terms.by_particle)
        return found

    @functools.cached_property
    def _with_nobody(self) -> dict[str, Clusters]:
        """The same with nobody in: what terms know of data and parameters is computed once."""
        nobody = torch.zeros(1, 0, dtype=torch.int64, device=self.device)
        parts: dict[str, list[Clusters]] = {name: [] for name in self.sites}
        for rows, columns, fn, data in self.relations.values():
            if rows == columns:
                parts[rows].append(fn.incremental_within(nobody, data))
                continue
            found = fn.incremental(nobody, nobody, data)
            parts[rows].append(found.rows)
            parts[columns].append(found.columns)
        for name, prior in self.priors.items():
            parts[name].append(prior.incremental(nobody))
        for site, fn, data in self.mixtures.values():
            parts[site].append(fn.incremental(nobody, data))
        return {name: join(*found) for name, found in parts.items()}
