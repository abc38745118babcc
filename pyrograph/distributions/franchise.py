"""The Chinese restaurant franchise over state sequences: the infinite hidden Markov model's prior.

Each state j is a restaurant whose customers are the moves out of j; a start restaurant serves the
first state. n_jk counts the moves from j to k.

``urn="franchise"`` (Teh et al. 2006) seats each customer at a table; a table's dish, a state, is
drawn from a Chinese restaurant process of all tables with concentration gamma. Tables are summed
out exactly. With |s(n, m)| the unsigned Stirling numbers of the first kind, K states and T tables,

    P(z) = prod_j Gamma(alpha) / Gamma(alpha + n_j.) gamma^K
           sum_m Gamma(gamma)/Gamma(gamma + T) prod_jk alpha^m_jk |s(n_jk, m_jk)| prod_k Gamma(m_.k)
         = prod_j Gamma(alpha) / Gamma(alpha + n_j.) gamma^K
           sum_T F(T) alpha^T Gamma(gamma) / Gamma(gamma + T).

F depends on the counts alone: sum_m |s(n, m)| x^m = x (x + 1) ... (x + n - 1), so dish k has the
coefficients c_k(m) of prod_t (x + r_t) over the visits t of k, r_t being the number of earlier
moves along the same pair, and F is the convolution over k of c_k(m) Gamma(m). All terms are
positive and are added in the log domain. The probability depends on the n_jk alone.

``urn="paper"`` (Saeedi et al. 2017) uses counts of moves where the franchise uses tables, and its
oracle does not return to states that j has visited:

    P(c | j) = n_jc / (n_j. + alpha)                            c visited from j,
    P(c | j) = alpha / (n_j. + alpha) n_.c / (U_j + gamma)      c not visited from j,
    P(new | j) = alpha / (n_j. + alpha) gamma / (U_j + gamma),

with U_j the sum of n_.c over the states not visited from j:

a normalised prior that depends on the order of the moves: a change in mid-sequence changes the
probability of everything after it.

Cost of log_prob: "paper" O(n) batched steps; "franchise" O(n K) batched steps of width n. Exact for
both.
"""

from __future__ import annotations

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from pyrograph.checks import count
from pyrograph.distributions.checks import (
    floats,
    require_broadcast,
    require_expansion,
    require_labels,
    require_positive,
    require_value_batch,
    unbatched,
)
from pyrograph.distributions.franchise_terms import SequenceTerm, log_sequence
from pyrograph.distributions.incremental import Clusters
from pyrograph.distributions.labels import by_appearance
from pyrograph.distributions.seating import Seating
from pyrograph.distributions.urn import Moves
from pyrograph.errors import OptionError

#: States that a sample's tables start with.
FEW = 8


class ChineseRestaurantFranchise(TorchDistribution):
    """State sequences of length n; any labelling of the states scores as its partition.

    Args:
        alpha: concentration of each state's moves, above 0, ``[...]``.
        gamma: concentration of the states, above 0, ``[...]``.
        n: length of the sequence.
        urn: "franchise" (tables, summed out) or "paper" (counts of moves).

    Shapes:
        value: ``[..., n]`` integers; samples are in order of first appearance.

    Raises:
        OptionError: alpha or gamma is not above 0, n is not a count, or there is no such urn.
        ShapeMismatch: a value does not have n labels, or batches do not broadcast.
    """

    arg_constraints = {"alpha": constraints.positive, "gamma": constraints.positive}  # noqa: RUF012
    support = constraints.independent(constraints.nonnegative_integer, 1)

    def __init__(
        self,
        alpha: float | Tensor,
        gamma: float | Tensor,
        n: int,
        urn: str = "franchise",
        validate_args: bool | None = None,
    ):
        owner = "ChineseRestaurantFranchise"
        alpha, gamma = floats(alpha, gamma)
        batch = require_broadcast(owner, alpha=alpha.shape, gamma=gamma.shape)
        self.alpha, self.gamma = alpha.expand(batch), gamma.expand(batch)
        require_positive(owner, validate_args, alpha=self.alpha, gamma=self.gamma)
        self.n = count(f"{owner}: n", n)
        if urn not in ("franchise", "paper"):
            raise OptionError(
                f'{owner}: urn={urn!r} is not "franchise" (tables, Teh et al. 2006) or "paper" '
                "(counts of moves, Saeedi et al. 2017)"
            )
        self.urn = urn
        super().__init__(self.alpha.shape, torch.Size([self.n]), validate_args=validate_args)

    def expand(self, batch_shape, _instance=None):
        new = self._get_checked_instance(ChineseRestaurantFranchise, _instance)
        batch = require_expansion("ChineseRestaurantFranchise", self.batch_shape, batch_shape)
        new.n, new.urn = self.n, self.urn
        new.alpha, new.gamma = self.alpha.expand(batch), self.gamma.expand(batch)
        super(ChineseRestaurantFranchise, new).__init__(
            batch, self.event_shape, validate_args=False
        )
        new._validate_args = self._validate_args
        return new

    @torch.no_grad()
    def sample(self, sample_shape=()):
        """``[*sample_shape, *batch_shape, n]``, in order of first appearance; n batched steps."""
        shape = torch.Size(sample_shape) + self.batch_shape
        alpha, gamma = (p.expand(shape).reshape(-1) for p in (self.alpha, self.gamma))
        moves = Moves.empty(len(alpha), FEW, alpha.dtype, alpha.device)
        draw = self._next_of_tables if self.urn == "franchise" else self._next_of_counts
        states = torch.empty(alpha.shape + self.event_shape, dtype=torch.long, device=alpha.device)
        for t in range(self.n):
            states[:, t] = draw(moves, alpha, gamma)
            if bool((states[:, t] == moves.capacity - 1).any()):
                moves.grow(2 * moves.capacity)
        return states.reshape(shape + self.event_shape)

    @staticmethod
    def _next_of_counts(moves: Moves, alpha: Tensor, gamma: Tensor) -> Tensor:
        state = torch.multinomial(moves.paper_scores(alpha, gamma).exp(), 1).squeeze(-1)
        moves.append(state)
        return state

    @staticmethod
    def _next_of_tables(moves: Moves, alpha: Tensor, gamma: Tensor) -> Tensor:
        """An old table of the restaurant, or a new one with a dish from the oracle."""
        oracle = moves.tables + gamma.unsqueeze(-1) * moves.first_new()
        oracle = alpha.unsqueeze(-1) * oracle / oracle.sum(-1, keepdim=True)
        seats = torch.cat([moves.row(), oracle], dim=-1)
        chosen = torch.multinomial(seats, 1).squeeze(-1)
        state = chosen % moves.capacity
        moves.append(state, new_table=chosen >= moves.capacity)
        return state

    def log_prob(self, value: Tensor) -> Tensor:
        """``[...]``: the exact log probability of the sequence's partition."""
        require_labels("ChineseRestaurantFranchise", "value", value, self.n, self._validate_args)
        require_value_batch(self, value)
        return log_sequence(by_appearance(value), self.alpha, self.gamma, self.urn)

    def incremental(self, labels: Tensor) -> Clusters:
        """Scores of single reassignments from ``labels [P, t]`` of the first t <= n states.

        Appending a state under ``urn="paper"`` is O(C); any other score is a full rescoring.
        """
        alpha, gamma = (
            unbatched("ChineseRestaurantFranchise", p).to(labels.device)
            for p in (self.alpha, self.gamma)
        )
        term = SequenceTerm(alpha, gamma, self.urn)
        return Clusters(Seating(labels, self.n), by_particle=(term,))
