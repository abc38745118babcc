"""Clusters of symbols with unknown probabilities, integrated out.

For concentrations c_s with sum A and a cluster that holds symbol s n_s times,

    p = Gamma(A) / Gamma(A + n) prod_s Gamma(c_s + n_s) / Gamma(c_s),

and the next symbol is s with probability (c_s + n_s) / (A + n).

Source: Gelman et al. (2013), "Bayesian Data Analysis", section 3.4.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from pyrograph.checks import count
from pyrograph.distributions.checks import floats, require_positive, unbatched
from pyrograph.distributions.draws import draw_log_probs
from pyrograph.distributions.mixture_term import MixtureTerm
from pyrograph.distributions.seating import Seating
from pyrograph.errors import OptionError, ShapeMismatch


class DirichletCategorical:
    """Symbols 0, ..., num_symbols - 1 with Dirichlet probabilities.

    Args:
        concentration: above 0; a number for the symmetric prior, or ``[..., num_symbols]``.
        num_symbols: at least 1.

    Raises:
        OptionError: concentration is not above 0, num_symbols is not a count.
        ShapeMismatch: concentration does not have num_symbols entries.
    """

    observation_shape = ()

    def __init__(self, concentration: float | Tensor, num_symbols: int):
        (self.concentration,) = floats(concentration)
        self.num_symbols = count("DirichletCategorical: num_symbols", num_symbols)
        require_positive("DirichletCategorical", concentration=self.concentration)
        shape = self.concentration.shape
        if shape and shape[-1] != self.num_symbols:
            raise ShapeMismatch(
                f"DirichletCategorical: concentration has shape {tuple(shape)}; give a number or "
                f"[..., {self.num_symbols}]"
            )
        self.batch_shape = shape[:-1]

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.concentration,)

    @property
    def dtype(self) -> torch.dtype:
        return self.concentration.dtype

    @property
    def per_symbol(self) -> Tensor:
        """``[..., num_symbols]``."""
        return self.concentration.expand(self.batch_shape + (self.num_symbols,))

    def fit_to(self, data: Tensor, n: int) -> DirichletCategorical:
        """This component on the data's device, the symbols checked.

        Raises:
            OptionError: a symbol is not one of 0, ..., num_symbols - 1.
        """
        if Distribution._validate_args:
            whole = (data >= 0) & (data < self.num_symbols) & (data == data.long())
            if not bool(whole.all()):
                raise OptionError(
                    f"DirichletCategorical: data hold {data[~whole][0].item()!r}; symbols are the "
                    f"integers 0 to {self.num_symbols - 1} (raise num_symbols, or code them so)"
                )
        return DirichletCategorical(self.concentration.to(data.device), self.num_symbols)

    def detached(self) -> DirichletCategorical:
        """The same component, out of reach of gradients."""
        return DirichletCategorical(self.concentration.detach(), self.num_symbols)

    def in_double(self) -> DirichletCategorical:
        """The same component in double precision."""
        return DirichletCategorical(self.concentration.double(), self.num_symbols)

    def centre(self, data: Tensor) -> Tensor:
        return torch.zeros((), dtype=self.dtype, device=data.device)

    def statistics(self, data: Tensor, centre: Tensor) -> Tensor:
        """``[..., n, num_symbols]``: the symbol, one-hot."""
        symbols = torch.arange(self.num_symbols, device=data.device)
        return (data.unsqueeze(-1) == symbols).to(self.dtype)

    def log_marginal(self, count: Tensor, total: Tensor, centre: Tensor) -> Tensor:
        """``[..., C]`` from counts ``[..., C]`` and symbol counts ``[..., C, num_symbols]``."""
        prior = self.per_symbol.unsqueeze(-2)
        mass = prior.sum(-1)
        rises = torch.lgamma(prior + total) - torch.lgamma(prior)
        return torch.lgamma(mass) - torch.lgamma(mass + count) + rises.sum(-1)

    def term(self, data: Tensor) -> DirichletCategoricalTerm:
        """Incremental scores for ``data``."""
        return DirichletCategoricalTerm(self, data)

    def sample(self, labels: Tensor) -> Tensor:
        """Symbols of elements in slots ``labels [..., n]`` below n, each with its own draw."""
        shape = labels.shape + (self.num_symbols,)
        logits = draw_log_probs(self.per_symbol.unsqueeze(-2).expand(shape))
        own = logits.gather(-2, labels.unsqueeze(-1).expand(shape))
        return Categorical(logits=own).sample()


class DirichletCategoricalTerm(MixtureTerm):
    """Predictive probabilities of a symbol, O(1) per cluster; the prior counts among the sums."""

    def __init__(self, component: DirichletCategorical, data: Tensor):
        super().__init__(component, data)
        self.prior = unbatched("DirichletCategorical", self.component.per_symbol, event_dim=1)
        #: By cluster size: log(A + n).
        self.by_size = (self.prior.sum() + self.sizes).log()
        self.symbols = data.long().tolist()

    def scores(self, i: int, seating: Seating) -> Tensor:
        score = self.totals[self.symbols[i]].log() - self.by_size.take(seating.sizes)
        return score.to(self.dtype)

    def moves(self, elements: Tensor, own: Tensor, seating: Seating) -> tuple[Tensor, Tensor]:
        symbols = self.table[elements].argmax(1)
        held = self.totals[symbols]  # [B, limit]
        join = held.log().T - self.by_size[seating.sizes].unsqueeze(1)
        without = held.T[own, torch.arange(len(elements), device=own.device)] - 1
        stay = without.log() - self.by_size[seating.sizes[own] - 1]
        return join.to(self.dtype), stay.to(self.dtype)
