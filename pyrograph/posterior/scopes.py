"""Posteriors that keep beliefs over the scopes of factors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.beliefs import Natural
from pyrograph.errors import OptionError
from pyrograph.posterior.posterior import Posterior


@dataclass(frozen=True)
class Scopes:
    """Beliefs over the scopes of like factors.

    Attributes:
        statements: of every factor.
        index: ``[E]`` position of each factor in the graph's order.
        beliefs: computes them: log values ``[E, c_1, ..., c_k]``, or Gaussians of batch ``[E]``.
        nodes: ``[E, k]`` of the scopes, where beliefs are kept that tell how these depend on each
            other; else None.
    """

    statements: tuple[str, ...]
    index: Tensor
    beliefs: Callable[[], Tensor | Natural]
    nodes: Tensor | None = None


class ScopedPosterior(Posterior):
    """A posterior with beliefs of factors.

    Args:
        scopes: these beliefs.
        run: see :class:`Posterior`.
    """

    def __init__(self, graph, scopes: Sequence[Scopes], **run):
        super().__init__(graph, **run)
        self.scopes = list(scopes)

    def factor_marginal(self, statement: str) -> Tensor | tuple[Tensor, Tensor]:
        """Beliefs over the scopes of a statement's factors.

        Returns:
            Probabilities ``[E, c_1, ..., c_k]`` of discrete factors; mean ``[E, R]`` and covariance
            ``[E, R, R]`` of continuous ones, over all R numbers of their nodes in unconstrained
            space, node by node as in ``graph.scopes(statement)``.

        Raises:
            OptionError: no such statement, or its factors' scopes have different shapes, or their
                beliefs are not kept.
        """
        index, means, covariances = [], [], []
        for part in self.scopes:
            mine = [e for e, name in enumerate(part.statements) if name == statement]
            if mine:
                belief = part.beliefs()
                index.append(part.index[mine])
                if isinstance(belief, Natural):
                    means.append(belief.mean[mine])
                    covariances.append(belief.covariance[mine])
                else:
                    means.append(belief.exp()[mine])
        if not index:
            known = sorted({name for part in self.scopes for name in part.statements})
            raise OptionError(
                f'statement "{statement}" has no factor beliefs; those that have: '
                f"{', '.join(known) or 'none'}."
            )
        if any(m.shape[1:] != means[0].shape[1:] for m in means):
            raise OptionError(
                f'the factors of statement "{statement}" have scopes of different shapes: '
                f"{', '.join(str(list(m.shape)) for m in means)}. Write those with fewer nodes as "
                "another statement."
            )
        order, dtype = torch.cat(index).argsort(), self.graph.result_dtype
        found = torch.cat(means)[order].to(dtype)
        return (found, torch.cat(covariances)[order].to(dtype)) if covariances else found
