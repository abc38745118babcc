"""A joint mixture as one distribution over packed vectors, and how Pyro differentiates it.

    q(z, k) = sum_l w_l prod_i N(z_i; m_il, R_il R_il') prod_j p_jl(k_j)

or, with correlated numbers, one N(z; m_l, R_l R_l') for all of them. Draws are differentiable in m
and R, along z = m_l + R_l eps with the component drawn first. The weights and the probabilities of
states are differentiated by the score function, whose component is summed out,

    grad_{w,p} E_q g  =  E_q[(g(z, k) - b) grad_{w,p} log q(z, k)],    g = log p - log q

with a baseline b: the mean of g over the other particles of a step, or over steps gone by. At the
optimum g is constant, and the gradient has no noise left; the gradients in m and R drop the score
of their own (Roeder, Wu & Duvenaud 2017), with the same effect. Pathwise gradients of weights
(Jankowiak & Karaletsos 2018, ``MixtureOfDiagNormals``) carry mass through the valley between two
modes, with a variance that grows like 1 / q there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from pyro.distributions import TorchDistribution, constraints
from pyro.distributions.score_parts import ScoreParts
from torch import Tensor, nn

from pyrograph.beliefs import JointForest, JointMixture
from pyrograph.shapes import broadcast_shapes

NO_BATCH = torch.Size()
#: Share of the newest value in the mean of the learning signal over steps.
RATE = 0.1


class Baseline(nn.Module):
    """Takes the mean off the learning signal of a score function, as a hook on its gradient.

    A module, so that a guide's state has it: ``hold`` and ``mean``, NaN where there is none yet.

    Args:
        hold: calls, one for each backward pass, for which the signal is ignored.
    """

    def __init__(self, hold: int = 0):
        super().__init__()
        self.hold = hold
        self.mean: Tensor | None = None

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        none = torch.tensor(torch.nan, device="cpu")
        destination[prefix + "hold"] = torch.tensor(self.hold, device="cpu")
        destination[prefix + "mean"] = none if self.mean is None else self.mean

    def _load_from_state_dict(self, state: Mapping[str, Tensor], prefix: str, *_) -> None:
        if prefix + "hold" not in state:  # saved before it was part of the state
            return
        mean = state[prefix + "mean"]
        self.hold = int(state[prefix + "hold"])
        self.mean = None if bool(mean.isnan().all()) else mean

    def forward(self, signal: Tensor) -> Tensor:
        """The signal ``[S, ...]`` less what is known without the particle it belongs to."""
        if self.hold > 0:
            self.hold -= 1
            return torch.zeros_like(signal)
        count = signal.numel()
        if count > 1:
            return (signal - signal.mean()) * (count / (count - 1))
        mean = signal if self.mean is None else self.mean.to(signal).reshape(signal.shape)
        if torch.isfinite(signal).all():
            self.mean = mean + RATE * (signal - mean)
        return signal - mean


class JointDensity(TorchDistribution):
    """The mixture over vectors: numbers of continuous nodes, state numbers of discrete ones, site
    by site and node by node.

    Meant for auxiliary sites of guides: the model has no site of this name, so that ``Trace_ELBO``
    leaves log q out of the learning signal, and :meth:`score_parts` brings it in. Weights are
    trained by ``Trace_ELBO``, ``TraceEnum_ELBO`` and ``ReweightedWakeSleep``; ``TraceGraph_ELBO``
    does not read the score function of what has ``rsample``, and gets their gradient wrong.

    Args:
        mixture: D numbers in all; a forest has a single component.
        baseline: for the score function; one that lives as long as the parameters do.
    """

    arg_constraints: ClassVar = {}
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        mixture: JointMixture | JointForest,
        baseline: Baseline | None = None,
        batch_shape: torch.Size = NO_BATCH,
        validate_args: bool | None = None,
    ):
        self.mixture, self.baseline = mixture, baseline
        width = sum(shape.numel() for shape in mixture.shapes.values())
        super().__init__(batch_shape, torch.Size([width]), validate_args=validate_args)

    def expand(self, batch_shape: torch.Size, _instance=None) -> JointDensity:
        return JointDensity(
            self.mixture, self.baseline, torch.Size(batch_shape), validate_args=False
        )

    def unpack(self, value: Tensor) -> dict[str, Tensor]:
        """Of ``[*S, D]`` by site, ``[*S, n, d]`` numbers or ``[*S, n]`` state numbers."""
        out, start = {}, 0
        for name, shape in self.mixture.shapes.items():
            part = value[..., start : start + shape.numel()].unflatten(-1, shape)
            start += shape.numel()
            out[name] = part if len(shape) == 2 else part.detach().to(torch.int64)
        return out

    def rsample(self, sample_shape: torch.Size = NO_BATCH) -> Tensor:
        shape = self._extended_shape(sample_shape)
        component = self.mixture.draw_components(math.prod(shape[:-1]))
        like = self.mixture.log_weights
        parts = self.mixture.sample(component).values()
        packed = torch.cat([part.to(like).flatten(1) for part in parts], 1).reshape(shape)
        if torch.is_grad_enabled() and not packed.requires_grad:
            packed.requires_grad_()  # states alone: score_parts sees whether the draw was detached
        return packed

    def log_prob(self, value: Tensor) -> Tensor:
        result = self.mixture.log_prob(self.unpack(value))
        return result.expand(broadcast_shapes(result.shape, self.batch_shape))

    def score_parts(self, value: Tensor) -> ScoreParts:
        """See the module's text.

        Detached draws, as of ``ReweightedWakeSleep``, are given points: what is read of them is
        ``log_prob`` alone, with the gradient of all parameters.
        """
        parts = self.unpack(value)
        numbers = self.mixture.detached().log_numbers(parts)
        states = self.mixture.log_states(parts) + self.mixture.log_weights
        log_prob = (numbers + states.detach()).logsumexp(-1)
        score = (numbers.detach() + states).logsumexp(-1)
        is_given = torch.is_grad_enabled() and not value.requires_grad
        total = self.mixture.log_prob(parts) if is_given else log_prob
        if not score.requires_grad:
            return ScoreParts(total, 0.0, log_prob)
        if self.baseline is not None:
            score.register_hook(self.baseline)
        return ScoreParts(total, score, log_prob + log_prob.detach() * score)
