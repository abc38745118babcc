"""Mixtures and relations of known labels with the clusters' parameters integrated out.

    CollapsedMixture:   p(x | z) = prod_k  int prod_{i: z_i = k} p(x_i | theta) p(theta) d theta
    CollapsedRelation:  p(X | u, v) = prod_{k, l} B(a + n_1kl, b + n_0kl) / B(a, b)

where u and v may be the same: a network, whose undirected form has one cell for k and l together.

Under a ``ChineseRestaurant`` prior these are the Dirichlet process mixture and the infinite
relational model. Labels may be any integers; only the partition matters. log_prob costs n log n
sums of statistics and n evaluations of the component's integral, of which one per cluster counts:
no shape depends on the labels.

Source: Saeedi et al. (2017), eqs 16-19 and section 6.5; the components' files for the integrals.
"""

from __future__ import annotations

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyrograph.checks import flag
from pyrograph.distributions.beta_bernoulli import BetaBernoulli, Cells, LineTerm, RelationScores
from pyrograph.distributions.checks import (
    require_beside,
    require_broadcast,
    require_expansion,
    require_labels,
    require_tensor,
    require_value_batch,
)
from pyrograph.distributions.dirichlet_categorical import DirichletCategorical
from pyrograph.distributions.incremental import Clusters
from pyrograph.distributions.labels import Runs, by_appearance
from pyrograph.distributions.network_terms import DirectedTerm, UndirectedTerm
from pyrograph.distributions.normal_inverse_gamma import NormalInverseGamma
from pyrograph.distributions.normal_inverse_wishart import NormalInverseWishart
from pyrograph.distributions.seating import Seating
from pyrograph.errors import OptionError, ShapeMismatch

Component = NormalInverseGamma | NormalInverseWishart | DirichletCategorical


class CollapsedMixture(TorchDistribution):
    """Observations of n elements in the clusters ``z``; each cluster has its own parameters.

    Args:
        z: labels ``[..., n]``, any integers.
        component: ``NormalInverseGamma``, ``NormalInverseWishart`` or ``DirichletCategorical``; its
            batch dimensions broadcast with those of z.

    Shapes:
        value: ``[..., n]`` (numbers, symbols) or ``[..., n, d]``; one data set may serve a batch
            of labellings. A ``NormalInverseGamma`` of scalars takes either and samples numbers
            unless ``dim`` is given.

    Raises:
        OptionError: the component or the labels are of a wrong kind.
        ShapeMismatch: the data do not have n observations, or fit both readings, or batches do not
            broadcast.
    """

    arg_constraints = {}  # noqa: RUF012

    def __init__(self, z: Tensor, component: Component, validate_args: bool | None = None):
        if not isinstance(component, Component):
            raise OptionError(
                f"CollapsedMixture: {component!r} is not a component; give NormalInverseGamma, "
                "NormalInverseWishart or DirichletCategorical (for 0/1 data the latter, 2 symbols)"
            )
        self.z = require_labels("CollapsedMixture", "z", z, None, validate_args)
        self.component = component
        batch = require_broadcast(
            "CollapsedMixture", "batches", z=z.shape[:-1], component=component.batch_shape
        )
        event = z.shape[-1:] + torch.Size(component.observation_shape)
        super().__init__(batch, event, validate_args=validate_args)

    @constraints.dependent_property
    def support(self):
        if isinstance(self.component, DirichletCategorical):
            symbols = constraints.integer_interval(0, self.component.num_symbols - 1)
            return constraints.independent(symbols, 1)
        return constraints.independent(constraints.real, len(self.event_shape))

    def expand(self, batch_shape, _instance=None):
        new = self._get_checked_instance(CollapsedMixture, _instance)
        batch = require_expansion("CollapsedMixture", self.batch_shape, batch_shape)
        new.component = self.component
        new.z = _expanded(self.z, batch)
        super(CollapsedMixture, new).__init__(batch, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @torch.no_grad()
    def sample(self, sample_shape=()):
        """``[*sample_shape, *batch_shape, *event_shape]``; parameters are drawn per cluster."""
        shape = torch.Size(sample_shape) + self.batch_shape + self.z.shape[-1:]
        return self.component.sample(by_appearance(self.z).expand(shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """``[...]``: the log marginal likelihood of all clusters, batches broadcast."""
        require_tensor("CollapsedMixture", value)
        require_beside("CollapsedMixture", value, self.z)
        component = self.component.fit_to(value, self.z.shape[-1])
        event = self.z.shape[-1:] + component.observation_shape
        _require_shape("CollapsedMixture", value, event)
        # of components that serve numbers and vectors, the data say what an observation is
        batch = value.shape[: value.ndim - len(event)]
        require_broadcast("CollapsedMixture", "batches", value=batch, distribution=self.batch_shape)
        exact, clusters = component.in_double(), Runs(self.z)
        rows = value if component.observation_shape else value.unsqueeze(-1)
        x = clusters.ordered(rows.to(exact.dtype))
        # each cluster counts from its own first observation: clusters may be far apart
        centre = clusters.firsts(x).detach()
        if not component.observation_shape:
            x, centre = x.squeeze(-1), centre.squeeze(-1)
        total = clusters.sums_in_order(exact.statistics(x, centre))
        terms = exact.log_marginal(clusters.sizes.to(exact.dtype), total, centre)
        return torch.where(clusters.ends, terms, 0).sum(-1).to(component.dtype)

    def incremental(self, labels: Tensor, value: Tensor) -> Clusters:
        """Scores of single reassignments of ``value`` from ``labels [P, t]``, in place of z.

        ``value`` has no batch dimensions; the labels are those of the first t elements.
        """
        require_tensor("CollapsedMixture", value)
        n = self.z.shape[-1]
        component = self.component.fit_to(value, n)
        shape = self.z.shape[-1:] + component.observation_shape
        if value.shape != shape:
            raise ShapeMismatch(
                f"data of shape {tuple(value.shape)}: incremental scores take one data set, "
                f"{tuple(shape)}"
            )
        return Clusters(Seating(labels, n), (component.term(value),))


class CollapsedRelation(TorchDistribution):
    """A binary relation between n elements in clusters ``rows`` and m in clusters ``columns``.

    Elements may be related to each other: ``CollapsedRelation(z, z, ...)``, a network, as a
    stochastic block model of unknown probabilities.

    Args:
        rows: labels ``[..., n]``, any integers.
        columns: labels ``[..., m]``.
        component: ``BetaBernoulli(a, b)``.
        mask: bool ``[..., n, m]``, True where an entry is observed; None: all that are not NaN.
        undirected: for ``rows is columns``: entries (i, j) and (j, i) are one observation, which
            either may hold, or both alike; entries (i, i) do not count.

    Shapes:
        value: ``[..., n, m]`` of 0, 1 and NaN for held-out entries.

    Raises:
        OptionError: the component is another one; labels, entries or mask are of a wrong kind;
            ``undirected`` for labels that differ, or entries (i, j) and (j, i) that do.
        ShapeMismatch: value or mask is not ``[..., n, m]``, or batches do not broadcast.
    """

    arg_constraints = {}  # noqa: RUF012
    support = constraints.independent(constraints.boolean, 2)

    def __init__(
        self,
        rows: Tensor,
        columns: Tensor,
        component: BetaBernoulli,
        mask: Tensor | None = None,
        validate_args: bool | None = None,
        *,
        undirected: bool = False,
    ):
        if not isinstance(component, BetaBernoulli):
            raise OptionError(f"CollapsedRelation: {component!r} is not BetaBernoulli(a, b)")
        self.undirected = flag("undirected", undirected)
        if undirected and rows is not columns:
            raise OptionError(
                "CollapsedRelation: undirected=True is for elements related to each other: give "
                "the same labels as rows and as columns, CollapsedRelation(z, z, ...)"
            )
        self.rows = require_labels("CollapsedRelation", "rows", rows, None, validate_args)
        self.columns = require_labels("CollapsedRelation", "columns", columns, None, validate_args)
        self.component, self.observed = component, mask
        event = rows.shape[-1:] + columns.shape[-1:]
        batches = {
            "rows": rows.shape[:-1],
            "columns": columns.shape[:-1],
            "component": component.batch_shape,
        }
        if mask is not None:
            if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
                kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
                raise OptionError(
                    f"CollapsedRelation: mask is {kind}; give a tensor of bool, True where an "
                    "entry is observed"
                )
            _require_shape("CollapsedRelation: mask", mask, event)
            batches["mask"] = mask.shape[:-2]
        batch = require_broadcast("CollapsedRelation", "batches", **batches)
        super().__init__(batch, event, validate_args=validate_args)

    def expand(self, batch_shape, _instance=None):
        new = self._get_checked_instance(CollapsedRelation, _instance)
        batch = require_expansion("CollapsedRelation", self.batch_shape, batch_shape)
        new.component, new.observed = self.component, self.observed
        new.undirected = self.undirected
        new.rows, new.columns = _expanded(self.rows, batch), _expanded(self.columns, batch)
        super(CollapsedRelation, new).__init__(batch, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @torch.no_grad()
    def sample(self, sample_shape=()):
        """``[*sample_shape, *batch_shape, n, m]``, held-out entries included."""
        batch = torch.Size(sample_shape) + self.batch_shape
        rows, columns = (
            by_appearance(z).expand(batch + z.shape[-1:]) for z in (self.rows, self.columns)
        )
        found = self.component.sample(rows, columns, self.undirected)
        return found.triu(1) + found.triu(1).mT if self.undirected else found

    def log_prob(self, value: Tensor) -> Tensor:
        """``[...]``: the log marginal likelihood of the entries observed."""
        ones, zeros = self._ones_and_zeros(value)
        rows, columns = Runs(self.rows), Runs(self.columns)
        cells = [
            columns.sums(rows.sums(entries.double()).transpose(-1, -2)).transpose(-1, -2)
            for entries in (ones, zeros)
        ]
        if self.undirected:  # from both ends
            own = torch.eye(cells[0].shape[-1], dtype=cells[0].dtype, device=cells[0].device)
            cells = [counts / (1 + own) for counts in cells]
        ends = rows.ends.unsqueeze(-1) & columns.ends.unsqueeze(-2)
        terms = torch.where(ends, self.component.in_double().log_marginal(*cells), 0)
        if self.undirected:
            terms = terms.triu()
        return terms.sum((-1, -2)).to(self.component.dtype)

    def incremental(self, rows: Tensor, columns: Tensor, value: Tensor) -> RelationScores:
        """Scores of single reassignments from ``rows [P, t]`` and ``columns [P, u]``."""
        values = self._one_data_set(value)
        n, m = self.event_shape
        seatings = Seating(rows, n), Seating(columns, m)
        cells = Cells(self.component, values, seatings)
        lines = (LineTerm(cells, axis) for axis in (0, 1))
        return RelationScores(
            *(Clusters(s, by_particle=(line,)) for s, line in zip(seatings, lines, strict=True))
        )

    def incremental_within(self, labels: Tensor, value: Tensor) -> Clusters:
        """The same from ``labels [P, t]`` of elements that are related to each other."""
        n, m = self.event_shape
        if n != m:
            raise ShapeMismatch(
                f"a relation of shape {n} x {m} is not one of elements to each other: its rows and "
                "columns have labels of their own"
            )
        seating = Seating(labels, n)
        cells = Cells(self.component, self._one_data_set(value), (seating, seating))
        term = UndirectedTerm(cells) if self.undirected else DirectedTerm(cells)
        return Clusters(seating, by_particle=(term,))

    def _one_data_set(self, value: Tensor) -> Tensor:
        """``[2, n, m]``: whether each entry is an observed one, an observed zero."""
        values = torch.stack(self._ones_and_zeros(value))
        if values.shape[1:] != self.event_shape:
            raise ShapeMismatch(
                f"a relation of shape {tuple(values.shape[1:])}: incremental scores take one data "
                f"set, {tuple(self.event_shape)}"
            )
        return values

    def _ones_and_zeros(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Whether each entry is an observed one, an observed zero."""
        require_tensor("CollapsedRelation", value)
        require_beside("CollapsedRelation", value, self.rows, self.columns)
        _require_shape("CollapsedRelation", value, self.event_shape)
        require_value_batch(self, value)
        counts = ~value.isnan()
        if self.observed is not None:
            counts = counts & self.observed
        if self._validate_args and bool((counts & (value != 0) & (value != 1)).any()):
            raise OptionError(
                "CollapsedRelation: an observed entry is neither 0 nor 1; give NaN (or "
                "mask=False) for entries that are held out"
            )
        if self.undirected:
            counts, value = self._of_pairs(counts, value)
        return counts & (value == 1), counts & (value == 0)

    def _of_pairs(self, counts: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Observed entries, in both places of a pair and none on the diagonal."""
        if self._validate_args and bool((counts & counts.mT & (value != value.mT)).any()):
            raise OptionError(
                "CollapsedRelation: undirected=True, but some entries (i, j) and (j, i) differ; "
                "give both alike or one of them, NaN (or mask=False) in the other's place"
            )
        apart = ~torch.eye(value.shape[-1], dtype=torch.bool, device=value.device)
        return (counts | counts.mT) & apart, torch.where(counts, value, value.mT)


def _expanded(z: Tensor, batch: torch.Size) -> Tensor:
    """Labels ``[*batch, n]``: the same tensor where it is, by which a site's labels are known."""
    return z if z.shape[:-1] == batch else z.expand(batch + z.shape[-1:])


def _require_shape(owner: str, value: Tensor, shape: tuple[int, ...]) -> None:
    if value.shape[-len(shape) :] != torch.Size(shape):
        wanted = ", ".join(map(str, shape))
        raise ShapeMismatch(f"{owner}: shape {tuple(value.shape)}; give [..., {wanted}]")
