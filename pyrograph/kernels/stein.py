"""The Stein direction and discrepancy of a set of particles, node by node.

    phi_i(x_m) = (1/n) sum_l [ k_i(x_l, x_m) s_i(x_l) + d/dx_{l,i} k_i(x_l, x_m) ]
    D^2        = sum_i E_{x,x'} [ s_i s'_i k_i + s_i d'_i k_i + s'_i d_i k_i + d_i d'_i k_i ]

for kernels k_i on the scopes of the nodes, l = m included in phi. Particles are laid out
``[columns, n]``; a bucket of nodes is gathered in chunks that fit a cache (on a GPU larger ones,
see :func:`.at_once`), so memory is bounded by the chunk and the cost is O(sum_i |C_i| n^2). The
discrepancy is a by-product of the direction: its sums are the same products.

Source: Wang, Zeng & Liu (2018), eq (8) and Theorem 2.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from pyrograph.errors import OptionError
from pyrograph.graph.devices import at_once
from pyrograph.kernels.additive import Own, Summable, terms_of
from pyrograph.kernels.bandwidth import cancels
from pyrograph.kernels.coordinates import Coordinates
from pyrograph.kernels.imq import IMQ
from pyrograph.kernels.linear import Linear
from pyrograph.kernels.locality import Locality, resolve
from pyrograph.kernels.protocol import Block, Kernel, SteinSums
from pyrograph.kernels.rbf import RBF
from pyrograph.kernels.scopes import Bucket, Layout, alone

#: Nodes per chunk; measured flat from here on, on a CPU.
MAX_NODES = 512
#: Elements of a chunk's largest matrix, which keeps many particles or wide scopes in cache.
MAX_ELEMENTS = 2**20


@dataclass(frozen=True)
class Field:
    """Direction and discrepancy of n particles.

    Shapes:
        direction: ``[n, dim]``.
        total, diagonal: ``[]``, the double sum of the Stein kernel over all ordered pairs, and
            over l = m alone; None when not asked for.
        bandwidths: one ``[nodes, q]`` for each set of scopes.
    """

    direction: Tensor
    total: Tensor | None
    diagonal: Tensor | None
    bandwidths: list[Tensor]

    def discrepancy(self, statistic: str = "V") -> Tensor:
        """Squared discrepancy, summed over coordinates: ``"V"`` divides by n^2 and is never
        negative, ``"U"`` drops l = m, divides by n (n - 1) and is unbiased.

        Raises:
            OptionError: another statistic, or ``"U"`` with one particle.
        """
        n = len(self.direction)
        check_statistic(statistic, n)
        if statistic == "V":
            return self.total / n**2
        return (self.total - self.diagonal) / (n * (n - 1))


def takes_double(kernel: Kernel | Summable) -> bool:
    """Whether a kernel computes in the precision of the particles. Others, of the user's own, may
    hold tensors in the program's."""
    parts = (part.kernel if isinstance(part, Own) else part for _, part in terms_of(kernel))
    return all(type(part) in (IMQ, RBF, Linear) for part in parts)


def check_statistic(statistic: str, n: int) -> None:
    """Raise ``OptionError`` unless ``statistic`` exists for ``n`` particles."""
    if statistic not in ("V", "U"):
        raise OptionError(f'statistic={statistic!r} is not "V" or "U"')
    if statistic == "U" and n < 2:
        raise OptionError('statistic="U" needs at least two particles; use "V"')


class SteinOperator:
    """A kernel on the scopes of a graph.

    Args:
        layout: columns and blankets.
        kernel: a kernel or a sum of kernels; None is ``RBF()``.
        locality: see :mod:`.locality`.
        device: where particles live.
        generator: what a random locality draws from.
        compile: evaluate blocks through ``torch.compile``.

    Attributes:
        coordinates: in which kernels look at particles, and the discrepancy is measured; None
            leaves them as they are.
    """

    def __init__(
        self,
        layout: Layout,
        kernel: Kernel | Summable | None = None,
        locality: Locality | str = "blanket",
        device: torch.device | str = "cpu",
        generator: Generator | None = None,
        compile: bool = False,
    ):
        self.layout = layout
        self.kernel = RBF() if kernel is None else kernel
        self.locality = resolve(locality)
        self.device = torch.device(device)
        self.generator = generator
        self.coordinates: Coordinates | None = None
        self._evaluate = torch.compile(_evaluate) if compile else _evaluate
        terms = terms_of(self.kernel)
        self._on_scope = [(w, k) for w, k in terms if not isinstance(k, Own)]
        self._on_own = [(w, k.kernel) for w, k in terms if isinstance(k, Own)]
        self.draw()

    def within(self, coordinates: Coordinates | None) -> "SteinOperator":
        """The same operator, looking at particles in other coordinates."""
        other = copy.copy(self)
        other.coordinates = coordinates
        return other

    def draw(self) -> None:
        """Take the scopes from the locality: once, or before every step if it is random."""
        scopes = self.locality.scopes(self.layout, self.generator) if self._on_scope else []
        self.scopes = [(w, [b.to(self.device) for b in buckets]) for w, buckets in scopes]
        if self._on_own:
            self.scopes.append((1.0, [b.to(self.device) for b in alone(self.layout)]))

    def _terms(self, position: int) -> list[tuple[float, Kernel]]:
        last = self._on_own and position == len(self.scopes) - 1
        return self._on_own if last else self._on_scope

    def __call__(
        self,
        x: Tensor,
        score: Tensor,
        *,
        discrepancy: bool = True,
        bandwidths: list[Tensor] | None = None,
    ) -> Field:
        """Evaluate at particles ``x`` with scores ``score``, both ``[n, dim]``.

        Args:
            discrepancy: whether it is wanted beside the direction.
            bandwidths: those of an earlier field on these scopes; None measures them.
        """
        columns, score = self._seen(x, score)
        direction = torch.zeros_like(score)
        total = diagonal = x.new_zeros((), dtype=torch.float64) if discrepancy else None
        used = []
        for position, (share, buckets) in enumerate(self.scopes):
            terms = self._terms(position)
            known, parts = bandwidths[position] if bandwidths else None, []
            is_safe = known is not None and not _may_cancel(columns, buckets, known)
            for rows, own, block in _blocks(columns, score, buckets):
                h = _measure(terms, block) if known is None else known[rows]
                parts.append(h)
                widths = [kernel.num_bandwidths for _, kernel in terms]
                for (weight, kernel), part in zip(terms, h.split(widths, 1), strict=True):
                    seen = block if is_safe else _exact(block, part)
                    sums = self._evaluate(kernel, seen, part, discrepancy)
                    weight = weight * share
                    moved = sums.direction.flatten(0, 1).to(direction)
                    direction.index_add_(0, own, moved, alpha=weight)
                    if discrepancy:
                        total = total + weight * sums.total.double().sum()
                        diagonal = diagonal + weight * sums.diagonal.double().sum()
            used.append(torch.cat(parts) if known is None else known)
        moved = direction.t()
        if self.coordinates is not None:
            moved = self.coordinates.outward(moved)
        return Field(moved, total, diagonal, used)

    def gram(self, x: Tensor, score: Tensor) -> Tensor:
        """Stein kernel of every pair of particles, summed over the nodes: ``[n, n]``."""
        columns, score = self._seen(x, score)
        gram = x.new_zeros(len(x), len(x))
        for position, (share, buckets) in enumerate(self.scopes):
            for _, _, block in _blocks(columns, score, buckets):
                for weight, kernel in self._terms(position):
                    h = kernel.bandwidths(block)
                    pairs = kernel.pairs(_exact(block, h), h)
                    gram = gram + weight * share * pairs.to(gram)
        return gram

    def _seen(self, x: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
        """Centred columns and scores as kernels see them, ``[dim + 1, n]`` and ``[dim, n]``."""
        columns = _centered(x)
        if self.coordinates is None:
            return columns, score.t().contiguous()
        centred = self.coordinates.inward(columns[:-1].t())
        score = self.coordinates.of_score(score).t().contiguous()
        return torch.cat([centred.t(), columns[-1:]]), score


def _evaluate(kernel: Kernel, block: Block, h: Tensor, discrepancy: bool) -> SteinSums:
    return kernel.stein(block, h, discrepancy=discrepancy)


def _may_cancel(columns: Tensor, buckets: list[Bucket], h: Tensor) -> bool:
    """Whether distances may cancel in some block: one cheap look at all of them."""
    if columns.dtype == torch.float64 or not h.numel():
        return False
    width = max(part.scope.shape[1] for part in buckets)
    return bool(cancels(width * columns.detach().abs().amax().square(), h.amin()))


def _exact(block: Block, h: Tensor) -> Block:
    """The block in double precision, if distances of its particles cancel in single."""
    if block.scope.dtype == torch.float64 or not h.shape[1]:
        return block
    reach = torch.linalg.vector_norm(block.scope.detach(), torch.inf, dim=(1, 2))
    squared = block.size * reach.square()  # at least the largest squared norm of a particle
    if not bool(cancels(squared[:, None], h).any()):
        return block
    return Block(block.scope.double(), block.own.double(), block.score.double(), block.size)


def _measure(terms: list[tuple[float, Kernel]], block: Block) -> Tensor:
    """Bandwidths of all terms, ``[B, q]``."""
    return torch.cat([kernel.bandwidths(block) for _, kernel in terms], 1)


def _centered(x: Tensor) -> Tensor:
    """``[dim + 1, n]``: every column shifted by its mean, and a last row of zeros for padding.

    The first particle is subtracted before the mean so that coincident particles are exactly 0.
    """
    rows = torch.cat([x.t(), x.new_zeros(1, len(x))])
    rows.sub_(rows[:, :1].detach().clone())
    return rows.sub_(rows.mean(1, keepdim=True).detach())


def _blocks(
    columns: Tensor, score: Tensor, buckets: list[Bucket]
) -> Iterator[tuple[slice, Tensor, Block]]:
    """Chunks of the buckets, gathered; with their rows and the columns they move."""
    n, start = columns.shape[1], 0
    for part in buckets:
        widest = max(n * n, part.scope.shape[1] * n)
        chunk = at_once(MAX_ELEMENTS, columns.device) // widest
        chunk = max(1, min(at_once(MAX_NODES, columns.device), chunk))
        for own, scope, size in zip(
            part.own.split(chunk), part.scope.split(chunk), part.size.split(chunk), strict=True
        ):
            rows = slice(start, start + len(own))
            start = rows.stop
            moved = own.flatten()
            block = Block(_rows(columns, scope), _rows(columns, own), _rows(score, own), size)
            yield rows, moved, block


def _rows(table: Tensor, index: Tensor) -> Tensor:
    """``table[index]``, four times as fast."""
    return table.index_select(0, index.flatten()).unflatten(0, index.shape)
