"""Chow-Liu trees over continuous variables, with Parzen windows for their densities.

    p(x) = prod_i p_i(x_i) prod_(ij) p_ij(x_i, x_j) / (p_i(x_i) p_j(x_j))

The edges are a maximum spanning tree under mutual information. Densities of pairs and of single
variables are Parzen windows of one bandwidth per variable, so they agree on their marginals, and
then p is a normalised density whose marginals they are: log Z = 0 and the true p_i are known,
which makes these trees a test bed. With mutual information measured by the same windows, no tree
has a greater mean log density over the data fitted to.

Source: Chow & Liu (1968); with Parzen windows as in Guo, Xiong & Ruozzi (2019), section 5.
Cost of the fit: O(N^2 D^2), or O(M^2 D^2) where pairs of columns have few distinct rows, M;
O(N D^2) with Gaussian mutual information. Cost of an evaluation: O(M D).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree
from torch import Tensor
from torch.distributions import Distribution

from pyrograph.checks import count, seeded
from pyrograph.errors import OptionError, ShapeMismatch
from pyrograph.models import parzen
from pyrograph.models.parzen import (
    Parzen,
    as_numbers,
    checked_bandwidth,
    checked_data,
    silverman_bandwidth,
)

REPARAMETRISATIONS = ("edge-only", "marginal", "edge", "directed")


@dataclass(frozen=True, eq=False)
class ChowLiuTree:
    """A tree of continuous variables; called, the Pyro program of its density.

    The program has one site ``x`` with an element per variable, and the statements ``unary`` and
    ``pair``, one factor per variable and per edge. ``x`` is drawn from Gaussians with the moments
    of the marginals; they are masked, and so are no factors. The argument of the program says how
    the density is spread over the factors, d_i being the number of neighbours::

        "edge-only"   none                  p_ij / (p_i^(1 - 1/d_i) p_j^(1 - 1/d_j))
        "marginal"    p_i                   p_ij / (p_i p_j)
        "edge"        p_i^(1 - d_i)         p_ij
        "directed"    p_root                p_ij / p_i,  i the parent: p(x_j | x_i)

    (1 - 1/d is the exponent for which the factors multiply to p; the paper prints another). The
    density is the same and so is a Bethe objective, but message passing sees factors one by one:
    a negative power of p_i grows as the square of x_i, and "edge" is beyond it. For example::

        tree = ChowLiuTree.fit(data)
        posterior = pg.fit(tree, infer=pg.EP)    # the log evidence should be 0

    A tree of one variable has its unary factor alone, whatever the argument.

    Shapes, for D variables:
        edges: ``[D - 1, 2]`` parent and child, every parent's own edge before its children's.
        root: the variable without a parent.
        mutual_information: ``[D, D]`` in nats, zero on the diagonal.
        unary: densities of the D variables.
        pair: densities of the D - 1 edges; None for one variable.
    """

    edges: Tensor
    root: int
    mutual_information: Tensor
    unary: Parzen
    pair: Parzen | None

    @classmethod
    def fit(
        cls,
        data: Tensor | np.ndarray,
        *,
        bandwidth: str | float | Sequence[float] | Tensor = "silverman",
        mutual_information: str = "kde",
        root: int = 0,
        max_centres: int | None = None,
        seed: int = 0,
    ) -> "ChowLiuTree":
        """Structure and densities from rows of data.

        Args:
            data: ``[N, D]``, floating, a tensor or an array; the tree has its dtype and device,
                and no gradients.
            bandwidth: standard deviation of the kernels: ``"silverman"`` (see
                :func:`~pyrograph.models.silverman_bandwidth`), a number for all variables, or
                ``[D]``.
            mutual_information: ``"kde"``, the mean over the rows of
                log p_ij / (p_i p_j), or ``"gaussian"``, -log(1 - correlation^2) / 2.
            root: the variable that "directed" starts at.
            max_centres: the most rows to use. More are thinned to this number, at random without
                replacement, before anything else; None uses all. Equal rows of a pair of columns
                share a centre, so data of few values need no thinning.
            seed: of the thinning.

        Raises:
            ShapeMismatch: ``data`` or ``bandwidth`` has another shape.
            OptionError: ``data`` is not floating and finite, or an option is not one of the above.
        """
        data = checked_data(data).detach()
        root, generator = count("root", root, least=0), seeded(seed)
        if root >= data.shape[1]:
            raise OptionError(f"root={root} is no variable; they are 0 .. {data.shape[1] - 1}")
        most = len(data) if max_centres is None else count("max_centres", max_centres, least=2)
        if most < len(data):
            rows = torch.randperm(len(data), generator=generator, device="cpu")[:most]
            data = data[rows.sort().values.to(data.device)]
        width = _bandwidth(data, bandwidth)
        if mutual_information == "kde":
            information = kde_mutual_information(data, width)
        elif mutual_information == "gaussian":
            information = gaussian_mutual_information(data)
        else:
            raise OptionError(
                f'mutual_information={mutual_information!r} must be "kde" or "gaussian"'
            )
        edges = maximum_spanning_tree(information, root)
        return cls(
            edges,
            root,
            information,
            unary=Parzen.fit(data, [[i] for i in range(data.shape[1])], width),
            pair=Parzen.fit(data, edges.tolist(), width) if len(edges) else None,
        )

    # ------------------------------------------------------------------ the program
    def __call__(self, reparametrisation: str = "edge-only") -> Tensor:
        """The Pyro program; returns ``x``.

        Raises:
            OptionError: there is no such reparametrisation.
        """
        on_unary, on_pair = self.exponents(reparametrisation)
        start = dist.Normal(self.marginals().mean, self.marginals().stddev)
        with pyro.plate("variables", self.num_variables):
            x = pyro.sample("x", start.mask(False))
        (kept,) = on_unary.nonzero(as_tuple=True)
        if len(kept):
            with pyro.plate("unaries", len(kept)):
                log_p = self.unary[kept].log_prob(x[..., kept])
                pyro.factor("unary", on_unary[kept] * log_p)
        if self.pair is not None:
            ends = [x[..., end] for end in self.edges.unbind(1)]
            with pyro.plate("edges", len(self.edges)):
                log_p = self.pair.log_prob(*ends)
                for end, value, exponent in zip(self.edges.unbind(1), ends, on_pair.unbind(1)):
                    if exponent.any():
                        log_p = log_p + exponent * self.unary[end].log_prob(value)
                pyro.factor("pair", log_p)
        return x

    def exponents(self, reparametrisation: str) -> tuple[Tensor, Tensor]:
        """Exponents of p_i in the unary factors, ``[D]``, and in the pair factors, ``[D - 1, 2]``.

        Whatever the edges take, the unary factor of i makes up to 1 - d_i in all.

        Raises:
            OptionError: there is no such reparametrisation.
        """
        degree = self.degree.to(self._like.dtype)
        on_pair = torch.zeros_like(degree[self.edges])
        if reparametrisation == "marginal":
            on_pair -= 1
        elif reparametrisation == "edge-only":
            on_pair = 1 / degree[self.edges] - 1
        elif reparametrisation == "directed":
            on_pair[:, 0] = -1
        elif reparametrisation != "edge":
            raise OptionError(
                f"reparametrisation={reparametrisation!r} must be one of {REPARAMETRISATIONS}"
            )
        taken = torch.zeros_like(degree).index_add(0, self.edges.flatten(), on_pair.flatten())
        return (1 - degree - taken).round(), on_pair  # whole numbers, all of them

    # ------------------------------------------------------------------ what is known of it
    @property
    def num_variables(self) -> int:
        return len(self.mutual_information)

    @property
    def _like(self) -> Tensor:
        return self.mutual_information

    @property
    def degree(self) -> Tensor:
        """Number of neighbours of every variable, ``[D]``."""
        return torch.bincount(self.edges.flatten(), minlength=self.num_variables)

    def log_prob(self, x: Tensor | np.ndarray) -> Tensor:
        """Log density at ``[*, D]``; ``[*]``. Memory is bounded however many rows there are.

        Raises:
            OptionError: ``x`` is no tensor or array of numbers.
            ShapeMismatch: the last dimension is not the number of variables.
        """
        x = as_numbers(x, "[*, D]", "x is").to(self._like.device)
        if x.dim() == 0 or x.shape[-1] != self.num_variables:
            raise ShapeMismatch(f"x has shape {tuple(x.shape)}; expected [*, {self.num_variables}]")
        rows = x.reshape(-1, self.num_variables)
        single = self.unary.log_prob_of_many(rows)
        log_p = ((1 - self.degree) * single).sum(-1)
        if self.pair is not None:
            ends = (rows[:, end] for end in self.edges.unbind(1))
            log_p = log_p + self.pair.log_prob_of_many(*ends).sum(-1)
        # so far out a p_i is 0, and quotients of p_ij by it are 0 / 0, which tends to 0
        is_far = single.isneginf().any(-1) & ~rows.isnan().any(-1)
        return torch.where(is_far, -torch.inf, log_p).reshape(x.shape[:-1])

    def marginals(self) -> Distribution:
        """The exact marginals p_i, batch shape ``[D]``."""
        return self.unary.distribution()

    def sample(self, n: int) -> Tensor:
        """Exact draws ``[n, D]``, parents before children.

        Raises:
            OptionError: ``n`` is no whole number, at least 0.
        """
        n = count("n", n, least=0)
        x = self._like.new_empty(n, self.num_variables)
        if n == 0:
            return x
        x[:, [self.root]] = self.unary[[self.root]].draw(x.new_empty(n, 1, 0))
        for e, (parent, child) in enumerate(self.edges.tolist()):
            x[:, [child]] = self.pair[[e]].draw(x[:, [parent]].unsqueeze(-1))
        return x


# ---------------------------------------------------------------------- structure
def kde_mutual_information(data: Tensor, bandwidth: Tensor) -> Tensor:
    """Mean over the rows of log p_ij / (p_i p_j), Parzen windows of ``bandwidth`` ``[D]``.

    Memory is bounded: ``parzen.CHUNK`` kernels, or one row of them, at once.

    Shapes:
        data: ``[N, D]``.
        output: ``[D, D]`` in nats, zero on the diagonal.
    """
    most = max(len(column.unique()) for column in data.unbind(1))
    by = _information_of_values if most**2 < len(data) else _information_of_rows
    return by(data, bandwidth).fill_diagonal_(0.0)


def _information_of_rows(data: Tensor, bandwidth: Tensor) -> Tensor:
    """Every row's kernels of single variables; products of two of them are the pairs'.

    Cost: N^2 D kernels, N^2 D^2 multiplications.
    """
    n, d = data.shape
    total = data.new_zeros(d, d)
    for rows in data.split(max(1, parzen.CHUNK // (n * d))):
        gap = (rows.unsqueeze(1) - data).div_(bandwidth)  # [rows, N, D]
        kernel = gap.square_().mul_(-0.5).exp_()
        pair = kernel.mT @ kernel / n
        single = kernel.mean(1)
        total += (pair / (single.unsqueeze(2) * single.unsqueeze(1))).log().sum(0)
    return total / n


def _information_of_values(data: Tensor, bandwidth: Tensor) -> Tensor:
    """As entropies, H_i + H_j - H_ij, of pairs whose rows come many times each.

    Cost: M^2 D^2 / 2 kernels of M distinct rows.
    """
    d = data.shape[1]
    single = Parzen.fit(data, [[i] for i in range(d)], bandwidth).entropy()
    information = data.new_zeros(d, d)
    for i, j in combinations(range(d), 2):
        both = Parzen.fit(data, [[i, j]], bandwidth).entropy()
        information[i, j] = information[j, i] = single[i] + single[j] - both[0]
    return information


def gaussian_mutual_information(data: Tensor) -> Tensor:
    """-log(1 - r^2) / 2 for the correlations r, ``[D, D]``; a constant column has r = 0."""
    # squares of large or small data leave single precision
    correlation = torch.corrcoef(data.double().t()).reshape(data.shape[1], -1).nan_to_num(0.0)
    # r = 1 up to rounding: large, and finite
    square = correlation.square().clamp(max=1 - torch.finfo(data.dtype).eps)
    return (-0.5 * torch.log1p(-square)).fill_diagonal_(0.0).to(data)


def maximum_spanning_tree(weight: Tensor, root: int) -> Tensor:
    """Edges ``[D - 1, 2]``, parent and child, of a tree of largest total weight.

    Shapes:
        weight: ``[D, D]``, symmetric.
    """
    # scipy minimises, and takes a zero for no edge
    cost = (weight.max() - weight + 1).fill_diagonal_(0.0)
    tree = minimum_spanning_tree(cost.double().cpu().numpy())
    order, parent = breadth_first_order(tree, root, directed=False)
    edges = [(int(parent[child]), int(child)) for child in order[1:]]
    return torch.tensor(edges, dtype=torch.long, device=weight.device).reshape(-1, 2)


# ---------------------------------------------------------------------- checks
def _bandwidth(data: Tensor, bandwidth: str | float | Sequence[float] | Tensor) -> Tensor:
    if isinstance(bandwidth, str) and bandwidth == "silverman":
        return silverman_bandwidth(data)
    return checked_bandwidth(data, bandwidth, words='"silverman", ').detach()
