"""Forests of a graph's discrete and of its continuous nodes, as one distribution over its sites.

What asks for a :class:`~pyrograph.beliefs.joint_mixture.JointMixture` can be given one of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from pyrograph.beliefs.forest import NumberTree, StateTree
from pyrograph.beliefs.joint_mixture import Categoricals, Normals

#: Numbers drawn at once.
CHUNK = 2**25


class JointForest:
    """Discrete and continuous nodes of sites, each kind a forest of its own, as a mixture of a
    single component: see :class:`JointMixture` for what is shared.

    Args:
        shapes: of sites, ``[n, d]`` of numbers or ``[n]`` of states; sites of a kind stand in this
            order in its tree.
        num_states: of discrete sites.
        states, numbers: the trees; None if there are no such sites.
    """

    num_components = 1

    def __init__(
        self,
        shapes: Mapping[str, torch.Size],
        num_states: Mapping[str, int],
        states: StateTree | None,
        numbers: NumberTree | None,
    ):
        self.shapes, self.num_states = dict(shapes), dict(num_states)
        self.states, self.numbers = states, numbers
        like = states.branches[0].log_p if numbers is None else numbers.mean
        self.log_weights = like.new_zeros(1)

    def _places(self) -> Iterator[tuple[str, torch.Size, slice]]:
        """Sites and where their nodes stand in the tree of their kind."""
        start = {1: 0, 2: 0}
        for name, shape in self.shapes.items():
            first = start[len(shape)]
            start[len(shape)] += shape[0]
            yield name, shape, slice(first, first + shape[0])

    def draw_components(self, count: int) -> Tensor:
        """``[count]`` zeros."""
        return torch.zeros(count, dtype=torch.int64, device=self.log_weights.device)

    def sample(self, component: Tensor) -> dict[str, Tensor]:
        """By site, ``[S, n, d]`` or state numbers ``[S, n]``, for components ``[S]``."""
        count = len(component)
        drawn: dict[str, Tensor] = {}
        if self.states is not None:
            states = self.states.sample(count)
            drawn |= {name: states[:, at] for name, s, at in self._places() if len(s) == 1}
        if self.numbers is not None:
            # in parts: all nodes are as wide as the widest on the way
            size = max(1, CHUNK // self.numbers.mean.numel())
            parts = [self._numbers(min(size, count - k)) for k in range(0, max(1, count), size)]
            drawn |= {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return {name: drawn[name] for name in self.shapes}

    def _numbers(self, count: int) -> dict[str, Tensor]:
        wide = self.numbers.sample(count)
        places = ((name, s, at) for name, s, at in self._places() if len(s) == 2)
        return {name: wide[:, at, : shape[1]].clone() for name, shape, at in places}

    def log_prob(self, values: Mapping[str, Tensor]) -> Tensor:
        """``[*S]`` of values of all sites, as :meth:`JointMixture.log_prob` has them."""
        return (self.log_numbers(values) + self.log_states(values)).squeeze(-1)

    def log_numbers(self, values: Mapping[str, Tensor]) -> Tensor:
        """``[*S, 1]``, of the continuous sites."""
        if self.numbers is None:
            return self.log_weights
        d = self.numbers.mean.shape[1]
        parts = [
            torch.nn.functional.pad(values[name], (0, d - shape[1]))
            for name, shape in self.shapes.items()
            if len(shape) == 2
        ]
        return self.numbers.log_prob(torch.cat(parts, -2)).unsqueeze(-1)

    def log_states(self, values: Mapping[str, Tensor]) -> Tensor:
        """``[*S, 1]``, of the discrete sites."""
        if self.states is None:
            return self.log_weights
        parts = [values[name] for name, shape in self.shapes.items() if len(shape) == 1]
        return self.states.log_prob(torch.cat(parts, -1)).unsqueeze(-1)

    def detached(self) -> JointForest:
        """Without derivatives in its Gaussians."""
        numbers = self.numbers
        if numbers is not None:
            fixed = [
                replace(b, lever=b.lever.detach(), root=b.root.detach()) for b in numbers.branches
            ]
            numbers = NumberTree(numbers.mean.detach(), fixed)
        return JointForest(self.shapes, self.num_states, self.states, numbers)

    @cached_property
    def sites(self) -> dict[str, Normals | Categoricals]:
        """Marginals of the nodes."""
        log_p = None if self.states is None else self.states.log_marginals()
        inner = None if self.numbers is None else self.numbers.covariances()
        out: dict[str, Normals | Categoricals] = {}
        for name, shape, place in self._places():
            if len(shape) == 1:
                out[name] = Categoricals(log_p[place, : self.num_states[name]].unsqueeze(0))
            else:
                own = inner[place, : shape[1], : shape[1]]
                mean = self.numbers.mean[place, : shape[1]]
                out[name] = Normals(mean.unsqueeze(0), torch.linalg.cholesky(own).unsqueeze(0))
        return out
