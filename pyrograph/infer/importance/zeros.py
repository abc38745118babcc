"""Where a discrete program is zero, which Stein kernels have to know.

A factor that is minus infinity says so. But torch's distributions write eps of their dtype in the
place of a probability of zero, and 1 - eps in that of one: Bernoulli(0) has the log density log eps
= -15.9 at 1, Binomial(2, 0) has 2 log eps at 2, and several of them in one factor add up. In a
table these are numbers like others; what tells them is that they are torch's. So the program is
read a second time with 2 eps in that place, and

    zero  <=>  log f = -inf,  or  log f gains (log 2, or a multiple) when eps is doubled.

A distribution made outside of the model keeps the logits that torch once computed with eps: where
they are log eps to the last digit, they are doubled by hand.

Exact for zeros and ones; probabilities within 2 eps of them count as such, since torch moves them
too. It costs one more reading. A factor that is eps by the user's own hand is no zero.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Distribution, utils

from pyrograph.circuits.compiling.clamped import GAIN, is_log_eps
from pyrograph.errors import StructureError, UnsupportedFactor
from pyrograph.graph import FactorGraph
from pyrograph.infer.dpvi.network import EXCLUDED, Network


class _KeptLogits(Messenger):
    """Doubles the eps in logits that distributions hold from before; they get them back."""

    def __init__(self) -> None:
        super().__init__()
        self.original: list[tuple[Distribution, Tensor]] = []

    def _pyro_sample(self, msg: dict) -> None:
        for fn in _parts(msg["fn"]):
            logits = vars(fn).get("logits")
            if isinstance(logits, Tensor) and logits.is_floating_point():
                self._double(fn, logits)

    def _double(self, fn: Distribution, logits: Tensor) -> None:
        with torch._C._DisableTorchDispatch():  # a look at numbers, which is not the program's
            at_eps = is_log_eps(logits)
            if not bool(at_eps.any()):
                return
        self.original.append((fn, logits))
        fn.logits = torch.where(at_eps, logits - logits.sign() * math.log(2), logits)

    def restore(self) -> None:
        while self.original:
            fn, logits = self.original.pop()
            fn.logits = logits


def _parts(fn: object) -> Iterator[Distribution]:
    """A distribution and those that it is made of."""
    if isinstance(fn, Distribution):
        yield fn
        for part in vars(fn).values():
            yield from _parts(part)


@contextmanager
def doubled_eps() -> Iterator[None]:
    """Distributions clamp probabilities at 2 eps meanwhile, and nothing is warned of twice."""
    original = utils.clamp_probs

    def clamp_probs(probs: Tensor) -> Tensor:
        eps = 2 * torch.finfo(probs.dtype).eps
        return probs.clamp(min=eps, max=1 - eps)

    utils.clamp_probs, kept = clamp_probs, _KeptLogits()
    try:
        with warnings.catch_warnings(), kept:
            warnings.simplefilter("ignore")
            yield
    finally:
        utils.clamp_probs = original
        kept.restore()


def zero_entries(network: Network, doubled: FactorGraph) -> list[Tensor]:
    """Which entries of the factors' tables are zeros.

    Args:
        network: of the program.
        doubled: its graph, read under :func:`doubled_eps`.

    Shapes:
        output: ``[E, states]`` bool per group of factors.

    Raises:
        StructureError: the program has other factors when it is read again.
    """
    zeros = [tables.values.flatten(1) <= EXCLUDED / 2 for tables in network.tables]
    again = Network.of_graph(doubled).tables
    before = [tables.values.shape for tables in network.tables]
    if before != [tables.values.shape for tables in again]:
        raise StructureError(
            "the program has other factors when it is read again with the same random numbers: it "
            "depends on something that changes from one run to the next. Pass that as an argument."
        )
    return [
        zero | ((then.values - now.values).flatten(1) > GAIN)
        for zero, now, then in zip(zeros, network.tables, again, strict=True)
    ]


def refuse_zeros(graph: FactorGraph, zeros: Sequence[Tensor]) -> None:
    """Raise for a factor that excludes a state.

    Args:
        zeros: of :func:`zero_entries`.

    Raises:
        UnsupportedFactor: naming the factor.
    """
    for group, zero in zip(graph.factors, zeros, strict=True):
        if bool(zero.any()):
            e = int(zero.any(1).nonzero()[0])
            raise UnsupportedFactor(
                f"{graph.factor_name(group, e)} is zero in {int(zero[e].sum())} of its "
                f"{zero.shape[1]} states (a probability within 2 eps of 0 or 1 counts as one, "
                "since torch's distributions clamp it to eps). The discrete Stein kernel divides "
                "by probabilities, and the Stein identity E_p k_p = 0 fails where p is zero. "
                "Soften the zero (1e-3 in its place), or sum a variable of that factor out: in the "
                "model, or by pg.CollapsedBBIS. A probability that is meant to be so small is "
                "given as logits, or by pyro.factor."
            )
