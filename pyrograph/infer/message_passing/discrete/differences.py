"""Messages of pairs whose factor depends on the difference of their states alone.

With f(x_0, x_1) = g(x_0 - x_1) for states 0 .. c - 1 the sums of :mod:`.slots` are correlations,

    sum_{x_1} g(x_0 - x_1)^alpha n_1(x_1),    sum_{x_0} g(x_0 - x_1)^alpha n_0(x_0)

of 2c - 1 with c numbers: neither c^2 numbers per factor nor, by fast Fourier transforms, c^2
operations. A transform's error is a share eps of |g| |n|, whatever the size of the sum. Factors
with a sum so small that this shows are done again term by term, which keeps every sum's leading
digits; those where that runs below the smallest number (zeros among them), again in the log
domain.

Source: Felzenszwalb & Huttenlocher (2006), "Efficient belief propagation for early vision",
section 3.1, for the use of convolutions; Minka (2005), eqs (54), (66) and (85).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from scipy.fft import next_fast_len
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pyrograph.errors import OptionError
from pyrograph.graph import FactorGroup
from pyrograph.graph.devices import at_once
from pyrograph.infer.message_passing.discrete.same_derivatives import same_derivatives
from pyrograph.infer.message_passing.discrete.slots import SlotFactors, potts_of
from pyrograph.infer.message_passing.discrete.tables import MAX_ENTRIES
from pyrograph.infer.message_passing.nodes.log_values import (
    exp,
    finite_peak,
    log,
    rows_of,
    states_apart,
)

#: Fewest states of factors for which differences are looked at; of larger tables than
#: :data:`MAX_ENTRIES`, always.
LEAST_STATES = 16
#: How far entries of one diagonal may differ, in units of eps and of the factor's largest value.
ROUNDING = 64.0
#: Numbers evaluated at once.
READ_CHUNK = 4_000_000
#: Fewest states for which transforms are faster than sums term by term.
TRANSFORM_STATES = 24
#: Largest error of a transform's sums in units of eps |g| |n|; 3 was the most seen.
TRANSFORM_ERROR = 8.0
#: Relative error of a sum from which on it is done again.
TOLERANCE = 1e-9
#: Numbers worked on at once: term by term, in the log domain and in a kernel that all share.
TERMS_CHUNK, CHUNK = 2**16, 2**22


class DifferenceFactors(SlotFactors):
    """Factors g(x_0 - x_1) on pairs of nodes of ``c`` states.

    Args:
        log_value: ``[E, 2 c - 1]`` log g at -(c - 1) .. c - 1, minus infinity for a zero.
        alpha: ``[E]``.
        rows: of each slot, ``[E]`` rows of its family.
        families: index of each slot's family.
    """

    def __init__(self, log_value: Tensor, alpha: Tensor, rows: list[Tensor], families: list[int]):
        log_value = states_apart(log_value)
        super().__init__(log_value, alpha, rows, families)
        self.log_value = log_value
        self.num_states = c = (log_value.shape[1] + 1) // 2
        if self.is_mean_field:
            self.kernel, self.peak = log_value, None
        else:
            self.peak = self.scaled.amax(1, keepdim=True)
            self.kernel = (self.scaled - self.peak).exp()
        with torch.no_grad():
            if not self.is_mean_field:
                apart = torch.cat([self.kernel[:, : c - 1], self.kernel[:, c:]], 1)
                self.potts = potts_of(self.kernel[:, c - 1 : c], apart)
            self._norm = self.kernel.double().norm(dim=1)
            self._transform = None
            if self._is_alike and c * c <= CHUNK:
                self.shared = self.kernel[0].unfold(0, c, 1).flip(1)  # [x_0, x_1]
            elif c >= TRANSFORM_STATES and self._is_mild():
                self._length = next_fast_len(2 * c - 1, real=True)
                self._transform = torch.fft.rfft(self.kernel.double(), self._length)

    def part(self, which: Tensor) -> DifferenceFactors:
        rows, value = [own[which] for own in self.rows], rows_of(self.log_value, which)
        return DifferenceFactors(value, self.alpha[which], rows, self.families)

    def _is_mild(self) -> bool:
        """Whether a transform is good enough for expectations: these are never done again."""
        error = TRANSFORM_ERROR * torch.finfo(torch.float64).eps * self._norm
        return not self.is_mean_field or bool((error <= TOLERANCE).all())

    # ------------------------------------------------------------------ correlations
    def _needs_graph(self, other: Tensor) -> bool:
        return torch.is_grad_enabled() and (other.requires_grad or self.scaled.requires_grad)

    def sums(self, cavities: list[Tensor]) -> list[Tensor]:
        return [self._log_sums(n, i)[0] for i, n in enumerate(reversed(cavities))]

    def plain_sums(self, cavities: list[Tensor], i: int) -> Tensor:
        return self._plain_sums(cavities[1 - i], i)

    def exact_sums(self, cavities: list[Tensor]) -> list[Tensor]:
        parts = [self._log_sums(n, i) for i, n in enumerate(reversed(cavities))]
        return [found + scale for found, scale in parts]

    def _log_sums(self, log_weight: Tensor, slot: int) -> tuple[Tensor, Tensor]:
        """Log sums towards a slot, of f^alpha and the other slot's n, as what ``[E, c]`` and
        ``[E, 1]`` add up to."""
        graph = self._needs_graph(log_weight)
        if graph and not self.is_plain:
            found = _towards(slot, _log_terms, self.scaled, log_weight)
            return found, torch.zeros_like(self.peak)
        peak = finite_peak(log_weight)
        weight, scale = exp(log_weight - peak), self.peak + peak
        if graph:
            return log(_towards(slot, _terms, self.kernel, weight)), scale
        total = self._plain_sums(weight, slot)
        tiny = torch.finfo(total.dtype)
        lost = (total.amin(1) < tiny.tiny / tiny.eps).nonzero().squeeze(1)
        out = log(total)
        if len(lost):
            again = _towards(slot, _log_terms, self.scaled[lost], log_weight[lost])
            out[lost] = again - scale[lost]
        return out, scale

    def _by_table(self, weight: Tensor, slot: int) -> Tensor:
        """The sums of a kernel that all share."""
        table = self.shared if slot == 0 else self.shared.t()
        return (table @ weight.t()).t()

    def _plain_sums(self, weight: Tensor, slot: int) -> Tensor:
        """``[E, c]``: sums of f^alpha n to full relative precision, but for underflow."""
        found = self._of_potts(weight)
        if found is not None:
            return found
        if self.shared is not None:
            return self._by_table(weight, slot)
        if self._transform is None:
            return _towards(slot, _terms, self.kernel, weight)
        total = _towards(slot, self._transformed, weight)
        error = TRANSFORM_ERROR * torch.finfo(torch.float64).eps * self._norm
        error = error * weight.double().norm(dim=1)
        rough = (total.amin(1) * TOLERANCE < error).nonzero().squeeze(1)
        total = states_apart(total.to(weight.dtype))
        if len(rough):
            total[rough] = _towards(slot, _terms, self.kernel[rough], weight[rough])
        return total

    def _transformed(self, weight: Tensor) -> Tensor:
        image = torch.fft.rfft(weight.double(), self._length).conj()
        return torch.fft.irfft(self._transform * image, self._length)[:, : self.num_states]

    def _expected(self, probs: list[Tensor], slot: int) -> Tensor:
        prob = probs[1 - slot]
        if self._needs_graph(prob) or (self.shared is None and self._transform is None):
            return _towards(slot, _terms, self.log_value, prob)
        if self.shared is not None:
            return self._by_table(prob, slot)
        return states_apart(_towards(slot, self._transformed, prob).to(prob.dtype))

    def _log_mass(self, cavities: list[Tensor]) -> Tensor:
        found, scale = self._log_sums(cavities[1], 0)
        return (found + cavities[0]).logsumexp(1) + scale.squeeze(1)

    # ------------------------------------------------------------------ tables
    @property
    def fits_tables(self) -> bool:
        """Whether the tables are within :data:`MAX_ENTRIES`."""
        return self.num_factors * self.num_states**2 <= MAX_ENTRIES

    @property
    def log_table(self) -> Tensor:
        """``[E, c, c]``, made anew.

        Raises:
            OptionError: they would have more than :data:`MAX_ENTRIES` entries.
        """
        return self._table(self.log_value)

    def _table(self, value: Tensor) -> Tensor:
        if not self.fits_tables:
            raise OptionError(
                f"beliefs over {self.num_factors:,} pairs of {self.num_states} states each are "
                f"more than {MAX_ENTRIES:,} numbers: ask for the marginals of its nodes"
            )
        return table_of_differences(value)

    def _tilted(self, cavities: list[Tensor]) -> Tensor:
        return self._table(self.scaled) + self._joined(cavities)


def table_of_differences(value: Tensor) -> Tensor:
    """``[E, c, c]`` of g(x_0 - x_1), from ``[E, 2 c - 1]`` g at -(c - 1) .. c - 1."""
    return value.unfold(1, (value.shape[1] + 1) // 2, 1).flip(2)


def _towards(slot: int, correlate: Callable[..., Tensor], *parts: Tensor) -> Tensor:
    """``[E, c]``: sum of g(x_0 - x_1) w over the other slot's states.

    Args:
        correlate: sum_y g[x + y] w[y], of ``parts`` of which the last is w.
    """
    if slot == 0:
        return correlate(*parts[:-1], parts[-1].flip(1))
    return correlate(*parts).flip(1)


def _terms(value: Tensor, weight: Tensor) -> Tensor:
    """``[E, c]``: sum_y value[x + y] weight[y], term by term."""
    c = weight.shape[1]
    parts = []
    size = at_once(TERMS_CHUNK, value.device)
    for v, w in zip(_split(value, size, c), _split(weight, size, c), strict=True):
        total = v[:, :c] * w[:, :1]
        for y in range(1, c):
            total = total.addcmul_(v[:, y : y + c], w[:, y : y + 1])
        parts.append(total)
    return parts[0] if len(parts) == 1 else states_apart(torch.cat(parts))


def _log_terms(log_value: Tensor, log_weight: Tensor) -> Tensor:
    """``[E, c]``: log sum_y exp(log_value[x + y] + log_weight[y]), in bounded memory."""
    c = log_weight.shape[1]
    pieces = zip(_split(log_value, CHUNK, c * c), _split(log_weight, CHUNK, c * c), strict=True)
    if torch.is_grad_enabled() and (log_value.requires_grad or log_weight.requires_grad):
        # on the way back the c^2 numbers of a chunk are made again
        return torch.cat([checkpoint(_log_chunk, v, w, use_reentrant=False) for v, w in pieces])
    return torch.cat([_log_chunk(v, w) for v, w in pieces])


def _log_chunk(log_value: Tensor, log_weight: Tensor) -> Tensor:
    c = log_weight.shape[1]
    windows = log_value.unfold(1, c, 1).split(max(1, CHUNK // (c * len(log_weight))), 1)
    return torch.cat([(v + log_weight.unsqueeze(1)).logsumexp(2) for v in windows], 1)


def _split(value: Tensor, budget: int, per_row: int) -> tuple[Tensor, ...]:
    return value.split(max(1, budget // per_row))


# ---------------------------------------------------------------------- detection
def difference_values(group: FactorGroup) -> Tensor | None:
    """``[E, 2 c - 1]`` log g(x_0 - x_1), if that is all that the factors depend on.

    Every entry of every table is looked at, a chunk of states at a time, and where the factors
    have derivatives these are: a table of free parameters that start out alike is no difference.
    """
    c = group.slots[0].cardinality
    if group.arity != 2 or c != group.slots[1].cardinality:
        return None
    if c < LEAST_STATES and c * c * group.num_factors <= MAX_ENTRIES:
        return None
    state = torch.arange(c, device=group.scope.device)
    zero = torch.zeros_like(state)
    first = torch.cat([zero, state[1:]]), torch.cat([state.flip(0), zero[1:]])
    each = max(1, READ_CHUNK // max(1, group.num_factors))
    values = [
        group.log_prob_of_states(part) for part in zip(*(s.split(each) for s in first), strict=True)
    ]
    value = torch.cat(values).t()
    with torch.no_grad():
        size = torch.where(value.isfinite(), value, 0.0).abs().amax(1)
        slack = ROUNDING * torch.finfo(value.dtype).eps * size
    for flat in torch.arange((c - 1) ** 2, device=state.device).split(each):
        a, b = flat // (c - 1) + 1, flat % (c - 1) + 1
        if not _repeats(group, a, b, value[:, a - b + c - 1].t(), slack):
            return None
    return value


def _repeats(group: FactorGroup, a: Tensor, b: Tensor, expected: Tensor, slack: Tensor) -> bool:
    """Whether the factors' values ``[S, E]`` at these states, and their derivatives, are these."""
    found = group.log_prob_of_states([a, b])
    with torch.no_grad():
        same = (found == expected) | ((found - expected).abs() <= slack)
        if not bool((same | (found.isnan() & expected.isnan())).all()):
            return False
    return same_derivatives(group.attached_constants, found, expected)
