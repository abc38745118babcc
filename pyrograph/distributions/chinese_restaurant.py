"""The Chinese restaurant process: a distribution over partitions of n elements.

    P(z) = alpha^K prod_k (n_k - 1)! Gamma(alpha) / Gamma(alpha + n)

for K clusters of sizes n_k. Exchangeable, and consistent in n: the first t elements follow the
process of t elements. A draw links element i to itself with probability alpha / (alpha + i),
else to a uniformly chosen earlier element; the clusters are the components of these links, which
log2(n) rounds of pointer jumping resolve for a whole batch at once.

Source: Aldous (1985); Blei & Frazier (2011) for the links; Saeedi et al. (2017), eq 14.
"""

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyrograph.checks import count
from pyrograph.distributions.checks import (
    floats,
    require_expansion,
    require_labels,
    require_positive,
    require_value_batch,
    unbatched,
)
from pyrograph.distributions.incremental import Clusters
from pyrograph.distributions.labels import Runs, number_roots
from pyrograph.distributions.seating import Seating


class ChineseRestaurant(TorchDistribution):
    """Label sequences of n elements; any labelling scores as its partition.

    Args:
        alpha: concentration, above 0, ``[...]``; large alpha gives many clusters.
        n: number of elements.

    Shapes:
        value: ``[..., n]`` integers; samples are in order of first appearance.

    Raises:
        OptionError: alpha is not above 0, n is not a count, labels are not whole numbers.
        ShapeMismatch: a value does not have n labels, or its batch does not broadcast.
    """

    arg_constraints = {"alpha": constraints.positive}  # noqa: RUF012
    support = constraints.independent(constraints.nonnegative_integer, 1)

    def __init__(self, alpha: float | Tensor, n: int, validate_args: bool | None = None):
        (self.alpha,) = floats(alpha)
        require_positive("ChineseRestaurant", validate_args, alpha=self.alpha)
        self.n = count("ChineseRestaurant: n", n)
        super().__init__(self.alpha.shape, torch.Size([self.n]), validate_args=validate_args)

    def expand(self, batch_shape, _instance=None):
        new = self._get_checked_instance(ChineseRestaurant, _instance)
        batch = require_expansion("ChineseRestaurant", self.batch_shape, batch_shape)
        new.n = self.n
        new.alpha = self.alpha.expand(batch)
        super(ChineseRestaurant, new).__init__(batch, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @torch.no_grad()
    def sample(self, sample_shape=()):
        """``[*sample_shape, *batch_shape, n]``, in order of first appearance."""
        shape = torch.Size(sample_shape) + self.batch_shape + self.event_shape
        place = torch.arange(self.n, device=self.alpha.device)
        alone, chosen = torch.rand((2,) + shape, dtype=self.alpha.dtype, device=self.alpha.device)
        alpha = self.alpha.unsqueeze(-1)
        # rand may round up to the element itself, which would be a cluster of its own
        earlier = torch.minimum((chosen * place).long(), (place - 1).clamp_min(0))
        link = torch.where(alone * (alpha + place) < alpha, place, earlier)
        for _ in range(self.n.bit_length()):
            link = link.gather(-1, link)
        return number_roots(link)

    def log_prob(self, value: Tensor) -> Tensor:
        """``[...]``: the log probability of the partition."""
        require_labels("ChineseRestaurant", "value", value, self.n, self._validate_args)
        require_value_batch(self, value)
        clusters = Runs(value)
        counts = torch.where(clusters.ends, clusters.sizes, 0)
        return log_partition(counts, self.alpha, self.n)

    def incremental(self, labels: Tensor) -> Clusters:
        """Scores of single reassignments from ``labels [P, t]`` of the first t <= n elements."""
        alpha = unbatched("ChineseRestaurant", self.alpha).to(labels.device)
        return Clusters(Seating(labels, self.n), (SeatingPrior(alpha, self.n),))


def log_partition(counts: Tensor, alpha: Tensor, total: int) -> Tensor:
    """Log probability of a partition of ``total`` elements with cluster sizes ``[..., C]``, zeros
    being no clusters.

    In alpha's dtype, from terms in double precision, which are large and cancel in part.
    """
    used, exact = counts > 0, alpha.double()
    terms = torch.lgamma(torch.where(used, counts, 1).double()).sum(-1)
    if not total:
        return terms.to(alpha.dtype)
    units = (total - 1) * exact.clamp_min(1).log()
    rising = log_shares(exact, total - 1).sum(-1)
    return ((used.sum(-1) - 1) * exact.log() - units + terms - rising).to(alpha.dtype)


def log_shares(x: Tensor, count: int) -> Tensor:
    """log((x + k) / max(x, 1)) for k = 1, ..., count, ``[..., count]`` for x ``[...]``.

    The factors of Gamma(x + count + 1) / Gamma(x + 1), each as a share of x where that is above 1:
    the log Gammas would cancel.
    """
    unit = x.clamp_min(1).unsqueeze(-1)
    further = torch.arange(1, count + 1, dtype=x.dtype, device=x.device)
    return ((x.unsqueeze(-1) - unit + further) / unit).log1p()


class SeatingPrior:
    """log n_c - log(alpha + t) for n_c of the t elements present; alpha for n_c = 0."""

    def __init__(self, alpha: Tensor, n: int):
        self.alpha, self.dtype = alpha, alpha.dtype
        sizes = torch.arange(n + 1, dtype=alpha.dtype, device=alpha.device)
        #: By cluster size, and by number of elements present.
        self.log_weight = torch.where(sizes > 0, sizes, alpha).log()
        self.log_total = (alpha.double() + sizes).log().tolist()

    def scores(self, i: int, seating: Seating) -> Tensor:
        weight = self.log_weight.take(seating.sizes)
        return weight.sub_(self.log_total[seating.num_inside])

    def moves(self, elements: Tensor, own: Tensor, seating: Seating) -> tuple[Tensor, Tensor]:
        sizes = seating.sizes
        join = self.log_weight[sizes].unsqueeze(1).expand(-1, len(elements))
        return join, self.log_weight[sizes[own] - 1]

    def log_prob(self, seating: Seating) -> Tensor:
        return log_partition(seating.counts, self.alpha.double(), seating.num_inside)

    def append(self, i: int, source: Tensor, start: int, sign: int, seating: Seating) -> None:
        """The sizes are all there is."""

    def tidy(self, kept: Tensor, length: int) -> None:
        """The sizes are all there is."""

    def copy(self) -> "SeatingPrior":
        return self

    def rebuild(self, seating: Seating) -> None:
        """The sizes are all there is."""
