"""A Pyro guide over a finite list of joint states: which one is drawn is an auxiliary site, so that
the guide's density is that of the joint state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyro
import torch
from pyro.distributions import Categorical, constraints
from pyro.nn import PyroParam
from torch import Tensor

from pyrograph.posterior.site_guide import SiteGuide


def log_sums(log_weights: Tensor, index: Tensor, count: int) -> Tensor:
    """Logs of the sums of the weights of each of ``count`` kinds.

    As weights, small ones would be rounded to zero.

    Shapes:
        log_weights, index: ``[*batch, K]``.
        output: ``[*batch, count]``, minus infinity for kinds that there are none of.
    """
    shape = (*index.shape[:-1], count)
    least = log_weights.new_full(shape, torch.finfo(log_weights.dtype).min)
    top = least.scatter_reduce(-1, index, log_weights, "amax")
    share = (log_weights - top.gather(-1, index)).exp()
    return torch.zeros_like(top).scatter_add(-1, index, share).log() + top


def distinct(codes: Tensor, log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """Rows ``[K, V]`` that differ, with the log weights ``[K]`` of equal ones together."""
    rows, index = codes.unique(dim=0, return_inverse=True)
    return rows, log_sums(log_weights, index, len(rows))


class JointStateGuide(SiteGuide):
    """An ``AutoGuide`` whose arguments are ignored. Its parameter is ``logits [K]``.

    Args:
        sites: plain descriptions.
        codes: ``[K, V]`` distinct rows.
        logits: ``[K]``.
        states: of each site ``[nodes, K, c]`` log probabilities given the rest of the joint state,
            or None where the codes say it all.
    """

    def __init__(
        self,
        sites: Sequence[Mapping[str, Any]],
        codes: Tensor,
        logits: Tensor,
        states: Sequence[Tensor | None] = (),
    ):
        super().__init__(sites)
        self.register_buffer("codes", codes)
        self.logits = PyroParam(logits.detach().clone(), constraints.real)
        for k, value in enumerate(states):
            if value is not None:
                self.register_buffer(f"states_{k}", value.detach().clone())

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> JointStateGuide:
        """Rebuild a guide from what ``guide.state_dict()`` returned, without model or data."""
        logits = torch.zeros_like(state["logits_unconstrained"])
        sites = state["_extra_state"]["sites"]
        states = [state.get(f"states_{k}") for k in range(len(sites))]
        guide = cls(sites, torch.zeros_like(state["codes"]), logits, states)
        guide.load_state_dict(state)
        return guide

    def draw(self) -> Tensor:
        """Number of a joint state, ``[*lead]``: batched in vectorised plates, which stand to the
        left of all plates of the sites."""
        return pyro.sample(
            f"_{self._pyro_name}_state",
            Categorical(logits=self.logits),
            infer={"is_auxiliary": True},
        )
