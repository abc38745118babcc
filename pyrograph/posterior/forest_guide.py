"""Beliefs on a forest as a Pyro guide with the exact density of their joint distribution.

    q(x) = prod_a q_a(x_children | x_parent)

(:mod:`pyrograph.beliefs.forest`, :mod:`.joint_guide`). The guide knows its sites and branches by
plain descriptions: a saved ``state_dict`` is enough to build it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pyro.distributions import constraints
from pyro.nn import PyroParam
from torch import Tensor

from pyrograph.beliefs import JointForest
from pyrograph.beliefs.forest import (
    NumberBranches,
    NumberTree,
    StateBranches,
    StateTree,
)
from pyrograph.errors import OptionError
from pyrograph.posterior.belief_guide import describe
from pyrograph.posterior.joint_guide import JointGuide
from pyrograph.posterior.site_guide import finite

CONSTRAINTS = {
    "logits": constraints.real,
    "lever": constraints.real,
    "root": constraints.lower_cholesky,
}


class ForestGuide(JointGuide):
    """Nodes given their parents, as an ``AutoGuide``; arguments of calls are ignored.

    Its parameters are ``logits_b [E, c_parent, c_children]`` of the states of the children of
    branch b, all of them together; or ``lever_b`` and ``root_b`` of their numbers given the
    parent's, and ``loc [n, d]``, the means of all continuous nodes. All are trained by ``SVI`` with
    ``Trace_ELBO``, ``TraceEnum_ELBO`` and ``ReweightedWakeSleep``. The guide of
    ``posterior.guide(joint=False)``, whose sites are ordinary distributions, is for
    ``TraceMeanField_ELBO`` and ``TraceGraph_ELBO``, which get sites drawn together wrong, and for
    ``poutine.condition``: here the density of a site is that of what was drawn.

    Args:
        sites: plain descriptions, see :func:`pyrograph.posterior.belief_guide.describe`.
        branches: plain descriptions, see :func:`describe_branch`.
        tensors: of each branch, its parameters by name, without the number.
        loc: ``[n, d]``, or None without continuous nodes.
    """

    def __init__(
        self,
        sites: Sequence[Mapping[str, Any]],
        branches: Sequence[Mapping[str, Any]],
        tensors: Sequence[Mapping[str, Tensor]],
        loc: Tensor | None,
    ):
        super().__init__(sites)
        self.branches = [dict(branch) for branch in branches]
        if loc is not None:
            self.loc = PyroParam(loc.detach().clone(), constraints.real)
        self._add_parameters(tensors, CONSTRAINTS)

    @classmethod
    def from_forest(cls, sites: Sequence, forest: JointForest, dtype: torch.dtype) -> ForestGuide:
        """From all sites of the graph, and the forest over them.

        Args:
            dtype: of the parameters.
        """
        branches, loc = [], None
        tensors: list[dict[str, Tensor]] = []
        if forest.states is not None:
            for branch in forest.states.branches:
                branches.append(describe_branch(branch))
                tensors.append({"logits": finite(branch.log_p.flatten(2).to(dtype))})
        if forest.numbers is not None:
            loc = forest.numbers.mean.to(dtype)
            for branch in forest.numbers.branches:
                branches.append(describe_branch(branch))
                tensors.append({"lever": branch.lever.to(dtype), "root": branch.root.to(dtype)})
        return cls([describe(site) for site in sites], branches, tensors, loc)

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> ForestGuide:
        """Rebuild a guide from what ``guide.state_dict()`` returned, without model or data.

        Raises:
            OptionError: it is the state of a guide of another class.
        """
        described = state["_extra_state"]
        if "branches" not in described:
            raise OptionError(
                "the state is of a guide of independent sites: BeliefGuide.from_state_dict(state) "
                "rebuilds it, and posterior.guide(joint=False) makes one to load it"
            )
        tensors = []
        for b, branch in enumerate(described["branches"]):
            if branch["states"] is not None:
                tensors.append({"logits": torch.zeros_like(state[f"logits_{b}_unconstrained"])})
                continue
            root = state[f"root_{b}_unconstrained"]
            unit = torch.eye(root.shape[-1], device="cpu").to(root).expand_as(root)
            tensors.append({"lever": state[f"lever_{b}_unconstrained"], "root": unit})
        loc = state.get("loc_unconstrained")
        guide = cls(described["sites"], described["branches"], tensors, loc)
        guide.load_state_dict(state)
        return guide

    def get_extra_state(self) -> dict[str, Any]:
        return {**super().get_extra_state(), "branches": self.branches}

    def mixture(self) -> JointForest:
        """Over the guide's sites, at the present parameters."""
        of_states, of_numbers = [], []
        for b, branch in enumerate(self.branches):
            if branch["states"] is not None:
                logits = getattr(self, f"logits_{b}")
                parent, children = _on(logits.device, branch)
                log_p = logits.log_softmax(2).unflatten(2, branch["states"])
                of_states.append(StateBranches(parent, children, log_p))
            else:
                lever, root = getattr(self, f"lever_{b}"), getattr(self, f"root_{b}")
                parent, children = _on(root.device, branch)
                widths = tuple(branch["widths"])
                of_numbers.append(NumberBranches(parent, children, widths, lever, root))
        shapes, num_states, nodes = {}, {}, 0
        for name, site in self.sites.items():
            n = torch.Size(site["batch_shape"]).numel()
            if site["values"] is None:
                shapes[name] = torch.Size([n, torch.Size(site["event_shape"]).numel()])
            else:
                shapes[name], num_states[name] = torch.Size([n]), len(site["values"])
                nodes += n
        states = StateTree(of_states, nodes) if of_states else None
        numbers = NumberTree(self.loc, of_numbers) if of_numbers else None
        return JointForest(shapes, num_states, states, numbers)


def describe_branch(branch: StateBranches | NumberBranches) -> dict[str, Any]:
    """As plain data: nodes in their tree, numbers of the children's states or widths."""
    is_discrete = isinstance(branch, StateBranches)
    return {
        "parent": None if branch.parent is None else branch.parent.cpu().clone(),
        "children": branch.children.cpu().clone(),
        "states": list(branch.log_p.shape[2:]) if is_discrete else None,
        "widths": None if is_discrete else list(branch.widths),
    }


def _on(device: torch.device, branch: Mapping[str, Any]) -> tuple[Tensor | None, Tensor]:
    parent = branch["parent"]
    return None if parent is None else parent.to(device), branch["children"].to(device)
