"""Nodes by the family of their belief: what factors send to them, and what comes of it.

A belief is the product of what the node's factors send: log values of the states add, natural
parameters add. ``base`` holds the factors that a family represents exactly (those of one node),
which are absorbed once and for all and never approximated.

    log q_i(x_i) = base_i(x_i) + sum_{a: i in a} log m_{a -> i}(x_i)

Source: Minka (2005), eqs (17) and (53).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from pyrograph.beliefs import Gaussian, Natural
from pyrograph.errors import OptionError
from pyrograph.infer.message_passing.nodes.basis import Basis
from pyrograph.infer.message_passing.nodes.log_values import add_rows, log_1p_exp, rows_of


def zeros_refused(factor: str, alpha: float) -> OptionError:
    """What is wrong with a factor that has zeros where alpha <= 0."""
    return OptionError(
        f"{factor} has zeros, and alpha={alpha:g} divides by them: the divergence is infinite "
        "unless the approximation is zero wherever the factor is. Give this statement an alpha "
        "above 0 (pg.BP, pg.FractionalBP; pg.EP for continuous nodes), or replace the zeros by "
        "small numbers."
    )


def mixtures_refused(statement: str) -> OptionError:
    """What is wrong with asking for beliefs of factors that have nodes of both kinds."""
    return OptionError(
        f'factors of "{statement}" join discrete and continuous nodes; their joint beliefs are '
        "mixtures and not kept. Ask for the marginals of the sites."
    )


@dataclass(frozen=True)
class Categorical:
    """Nodes of ``c`` states.

    Shapes:
        nodes: ``[V]`` node ids.
        base: ``[V, c]`` log values.
    """

    nodes: Tensor
    base: Tensor

    @property
    def size(self) -> int:
        """States, c."""
        return self.base.shape[1]

    def flat(self, count: int) -> Tensor:
        """Messages that say nothing: ``[count, c]``."""
        return self.base.new_zeros(self.size, count).t()

    def absorb(self, rows: Tensor, log_value: Tensor) -> Categorical:
        """With factors ``[E, c]`` of the nodes in ``rows`` multiplied into the base."""
        return replace(self, base=add_rows(self.base, rows, log_value))

    def beliefs(self, incoming: list[tuple[Tensor, Tensor]], only: Tensor | None = None) -> Tensor:
        """``[V, c]`` log values from (rows, messages ``[E, c]``).

        Args:
            only: rows of the nodes that are asked for, among which those of messages count.
        """
        total = self.base.clone() if only is None else rows_of(self.base, only)
        for rows, message in incoming:
            total = add_rows(total, rows, message)
        return total

    def log_mass(self, belief: Tensor) -> Tensor:
        """``[V]``: log of the sum over the states."""
        return belief.logsumexp(1)


@dataclass(frozen=True)
class Odds:
    """Binary nodes none of whose states is excluded: the log odds of state 1 say everything.

    Shapes:
        nodes: ``[V]`` node ids.
        base: ``[V]`` log odds.
        scale: ``[V]`` log value of state 0.
    """

    nodes: Tensor
    base: Tensor
    scale: Tensor

    def flat(self, count: int) -> Tensor:
        return self.base.new_zeros(count)

    def beliefs(self, incoming: list[tuple[Tensor, Tensor]], only: Tensor | None = None) -> Tensor:
        total = self.base.clone() if only is None else self.base[only]
        for rows, message in incoming:
            total = total.index_add(0, rows, message)
        return total

    def log_mass(self, belief: Tensor) -> Tensor:
        return log_1p_exp(belief) + self.scale


@dataclass(frozen=True)
class Continuous:
    """Continuous nodes of ``d`` unconstrained numbers each.

    Shapes:
        nodes: ``[V]`` node ids.
        base: a :class:`Gaussian` of batch ``[V]`` and dimension d; or, of nodes whose beliefs are
            gamma, beta or Dirichlet distributions, a :class:`Conjugate` of batch ``[V]``.
        absorbed: rows, and log densities ``[E]`` of values ``[E, d]``, of the factors in the base.
    """

    nodes: Tensor
    base: Natural
    absorbed: tuple[tuple[Tensor, Callable[[Tensor], Tensor]], ...] = ()

    @property
    def size(self) -> int:
        """Numbers of a node, d."""
        return self.base.d

    def absorb(
        self,
        rows: Tensor,
        site: Natural,
        log_density: Callable[[Tensor], Tensor],
        basis: Basis = None,
    ) -> Continuous:
        """With factors ``[E]`` of the nodes in ``rows`` multiplied into the base."""
        return replace(
            self,
            base=add_sites(self.base, rows, site, basis),
            absorbed=(*self.absorbed, (rows, log_density)),
        )

    def beliefs(
        self, incoming: list[tuple[Tensor, Natural, Basis]], only: Tensor | None = None
    ) -> Natural:
        """From (rows, sites, bases): see :func:`add_sites`."""
        # apart from the base, whose moments may be kept without a graph
        total = replace(self.base) if only is None else self.base[only]
        for rows, site, basis in incoming:
            total = add_sites(total, rows, site, basis)
        return total

    def log_mass(self, belief: Natural) -> Tensor:
        """``[V]``: log integral of the base times the messages, Gaussian ones scaled to 1 at the
        belief's mean, as :meth:`log_ratio` of the blocks has them too.

        The base is evaluated at a point, not put together from coefficients: of data far from 0
        these are large numbers that cancel.
        """
        if isinstance(belief, Gaussian):
            point = belief.mean.detach()
            mass = belief.about(point).log_mass
        else:
            point = belief.at_mean.detach()
            mass = belief.log_mass - self.base.log_value(point)
        for rows, log_density in self.absorbed:
            mass = mass.index_add(0, rows, log_density(point[rows]))
        return mass


def add_sites(total: Natural, rows: Tensor, site: Natural, basis: Basis) -> Natural:
    """Multiply functions of v = B x into those of their nodes.

    Shapes:
        total: batch ``[V]``, dimension d.
        rows: ``[E]``; site: batch ``[E]``, dimension r; basis: of ``[E]``, None for B = I.
    """
    if basis is not None:
        return basis.added(total, rows, site)
    both = zip(total.parameters().values(), site.parameters().values(), strict=True)
    return type(total)(*(a.index_add(0, rows, b) for a, b in both))
