"""Joint distributions of nodes that hang from each other without cycles.

    q(x) = prod_a q_a(x_children | x_parent)

where a branch a draws some nodes together given one other, or given nothing (the ground, of which
roots are the children). Beliefs of factors whose scopes close no cycle and agree on nodes make one:

    prod_a b_a(x_a) prod_i b_i(x_i)^(1 - d_i)

(:func:`state_branches`, :func:`number_branches`). Given its noise every node is a function of its
parent: a table of states, or x - m = A (x_parent - m_parent) + e. Functions are composed with those
of their parents, these with those of theirs, so that a node knows its ancestors 1, 2, 4, 8, ...
steps up, and all nodes are drawn in O(log depth) rounds.

Source: pointer jumping, Wyllie (1979).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pyrograph.beliefs.gaussian import LOG_2PI, Gaussian, apply
from pyrograph.beliefs.joint_mixture import Categoricals, Normals

#: Numbers of the functions held at once.
CHUNK = 2**22


@dataclass(frozen=True)
class StateBranches:
    """Like branches of discrete nodes.

    Shapes:
        parent: ``[E]`` nodes, or None for the ground, which has a single state.
        children: ``[E, m]``.
        log_p: ``[E, c_parent, c_1, ..., c_m]``, normalised over the children.
    """

    parent: Tensor | None
    children: Tensor
    log_p: Tensor


@dataclass(frozen=True)
class NumberBranches:
    """Like branches of continuous nodes.

    Shapes:
        parent: ``[E]`` nodes, or None for the ground, which has no numbers.
        children: ``[E, m]`` of ``widths`` numbers each, R in all.
        lever: ``[E, R, d_parent]``, A.
        root: ``[E, R, R]`` lower triangular, of the covariance of e.
    """

    parent: Tensor | None
    children: Tensor
    widths: tuple[int, ...]
    lever: Tensor
    root: Tensor


class _Tree:
    """Nodes 0 .. n - 1 and their parents."""

    def __init__(self, branches: Sequence[StateBranches | NumberBranches], num_nodes: int):
        self.branches, self.num_nodes = list(branches), num_nodes
        self.parent = torch.arange(num_nodes, device=self.branches[0].children.device)
        self.is_root = torch.ones_like(self.parent, dtype=torch.bool)
        for branch in self.branches:
            if branch.parent is not None:
                above = branch.parent.unsqueeze(1).expand_as(branch.children)
                self.parent[branch.children] = above
                self.is_root[branch.children] = False

    def _rounds(self) -> Iterator[tuple[Tensor, bool]]:
        """Ancestors ``[n]`` 1, 2, 4, ... steps up, and whether all of them are roots."""
        above = self.parent
        while True:
            is_last = bool(self.is_root[above].all())
            yield above, is_last
            if is_last:
                return
            above = above[above]


class StateTree(_Tree):
    """Of discrete nodes.

    Args:
        branches: every node is a child of one of them.
        num_nodes: n.
    """

    @cached_property
    def num_states(self) -> int:
        """Of the node with most."""
        return max(max(branch.log_p.shape[2:]) for branch in self.branches)

    def sample(self, count: int) -> Tensor:
        """State numbers ``[count, n]``."""
        size = max(1, CHUNK // (self.num_nodes * self.num_states))
        starts = range(0, max(1, count), size)
        return torch.cat([self._sample(min(size, count - start)) for start in starts])

    @torch.no_grad()
    def _sample(self, count: int) -> Tensor:
        # the state that a node would have given every state of its parent
        given = self.parent.new_zeros(count, self.num_nodes, self.num_states)
        for branch, cumulative in zip(self.branches, self._cumulative, strict=True):
            uniform = torch.rand(len(cumulative), count, dtype=torch.float64).to(cumulative)
            level = uniform.unsqueeze(1).expand(-1, cumulative.shape[1], -1).contiguous()
            states = torch.searchsorted(cumulative, level, right=True).permute(2, 0, 1)
            if branch.parent is None:
                states = states.expand(-1, -1, self.num_states)
            parts = torch.unravel_index(states, branch.log_p.shape[2:])
            for child, state in zip(branch.children.unbind(1), parts, strict=True):
                given[:, child, : state.shape[2]] = state
        for above, _ in self._rounds():
            given = given.gather(2, given[:, above])
        return given[:, :, 0]

    @cached_property
    def _cumulative(self) -> list[Tensor]:
        """Distribution functions ``[E, c_parent, c_1 ... c_m]`` of the branches, which end at 1."""
        sums = [b.log_p.detach().double().flatten(2).exp().cumsum(2) for b in self.branches]
        return [(s / s[:, :, -1:]).nan_to_num(1.0) for s in sums]

    def log_prob(self, state: Tensor) -> Tensor:
        """``[*S]`` of state numbers ``[*S, n]``."""
        total = 0.0
        for branch in self.branches:
            sizes = branch.log_p.shape[1:]
            place = torch.zeros_like(state[..., :1])
            if branch.parent is not None:
                place = state[..., branch.parent]
            for child, size in zip(branch.children.unbind(1), sizes[1:], strict=True):
                place = place * size + state[..., child]
            first = torch.arange(len(branch.log_p), device=state.device) * math.prod(sizes)
            total = total + branch.log_p.flatten()[first + place].sum(-1)
        return total

    def log_marginals(self) -> Tensor:
        """``[n, c]``; minus infinity for states that a node has not."""
        c = self.num_states
        given = torch.zeros(self.num_nodes, c, c).to(self.branches[0].log_p)
        for branch in self.branches:
            p = branch.log_p.exp()
            for k, child in enumerate(branch.children.unbind(1)):
                others = [j for j in range(2, p.dim()) if j != 2 + k]
                own = p.sum(others) if others else p  # [E, c_parent, c_k]
                rows = own.shape[1] if branch.parent is not None else c
                given[child, :rows, : own.shape[2]] = own.expand(-1, rows, -1)
        for above, _ in self._rounds():
            given = given[above] @ given
        return given[:, 0].log()


class NumberTree(_Tree):
    """Of continuous nodes.

    Args:
        mean: ``[n, d]``, those of nodes with fewer numbers than d padded.
        branches: every node is a child of one of them.
    """

    def __init__(self, mean: Tensor, branches: Sequence[NumberBranches]):
        super().__init__(branches, len(mean))
        self.mean = mean

    def sample(self, count: int) -> Tensor:
        """``[count, n, d]``, differentiable in means, levers and roots."""
        lever, noise = self._lever(), self.mean.new_zeros(count, *self.mean.shape)
        for branch in self.branches:
            white = torch.randn(count, *branch.root.shape[:2]).to(self.mean)
            noise = self._with_children(noise, branch, apply(branch.root, white))
        for above, is_last in self._rounds():
            noise = noise + apply(lever, noise[:, above])
            lever = lever if is_last else lever @ lever[above]
        return self.mean + noise

    def log_prob(self, x: Tensor) -> Tensor:
        """``[*S]`` of ``x [*S, n, d]``."""
        off, total = x - self.mean, 0.0
        for branch in self.branches:
            parts = zip(branch.children.unbind(1), branch.widths, strict=True)
            own = torch.cat([off[..., child, :width] for child, width in parts], -1)
            if branch.parent is not None:
                above = off[..., branch.parent, : branch.lever.shape[2]]
                own = own - apply(branch.lever, above)
            white = torch.linalg.solve_triangular(branch.root, own.unsqueeze(-1), upper=False)
            log_det = branch.root.diagonal(dim1=1, dim2=2).log().sum()
            total = total - 0.5 * white.square().sum((-1, -2, -3)) - log_det
        numbers = sum(branch.root[..., 0].numel() for branch in self.branches)
        return total - 0.5 * numbers * LOG_2PI

    def covariances(self) -> Tensor:
        """``[n, d, d]`` of the nodes, zeros for numbers that a node has not."""
        lever, total = self._lever(), torch.diag_embed(torch.zeros_like(self.mean))
        for branch in self.branches:
            inner, start = branch.root @ branch.root.mT, 0
            for child, width in zip(branch.children.unbind(1), branch.widths, strict=True):
                part = slice(start, start + width)
                total[child, :width, :width] = inner[:, part, part]
                start += width
        for above, is_last in self._rounds():
            total = total + lever @ total[above] @ lever.mT
            lever = lever if is_last else lever @ lever[above]
        return total

    def _lever(self) -> Tensor:
        """A ``[n, d, d]``, zeros of roots."""
        n, d = self.mean.shape
        out = self.mean.new_zeros(1, n, d, d)
        for branch in self.branches:
            if branch.parent is not None:
                wide = torch.nn.functional.pad(branch.lever, (0, d - branch.lever.shape[2]))
                out = self._with_children(out, branch, wide.unsqueeze(0))
        return out[0]

    @staticmethod
    def _with_children(value: Tensor, branch: NumberBranches, rows: Tensor) -> Tensor:
        """``value [S, n, d, *rest]`` with the rows ``[S, E, R, *rest]`` of a branch's children."""
        d = value.shape[2]
        for child, part in zip(
            branch.children.unbind(1), rows.split(branch.widths, 2), strict=True
        ):
            rest = (0, 0) * (part.dim() - 3)
            wide = torch.nn.functional.pad(part, (*rest, 0, d - part.shape[2]))
            value = value.index_copy(1, child, wide)
        return value


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
        states = None if self.states is None else self.states.sample(count)
        numbers = None if self.numbers is None else self.numbers.sample(count)
        return {
            name: states[:, place] if len(shape) == 1 else numbers[:, place, : shape[1]]
            for name, shape, place in self._places()
        }

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


def state_branches(scope: Tensor, log_p: Tensor, slot: Tensor) -> list[StateBranches]:
    """Of beliefs ``[E, c_1, ..., c_k]`` over scopes ``[E, k]`` that hang from a slot each."""
    found = []
    for k in slot.unique().tolist():
        rows = (slot == k).nonzero().squeeze(1)
        order = [k, *(j for j in range(scope.shape[1]) if j != k)]
        nodes, joint = scope[rows][:, order], log_p[rows].movedim(1 + k, 1)
        total = joint.flatten(2).logsumexp(2).clamp_min(torch.finfo(joint.dtype).min)
        given = joint - total.view(*total.shape, *(1,) * (joint.dim() - 2))
        found.append(StateBranches(nodes[:, 0], nodes[:, 1:], given))
    return found


def number_branches(
    scope: Tensor, belief: Gaussian, slot: Tensor, widths: Sequence[int]
) -> list[NumberBranches]:
    """Of Gaussian beliefs over scopes ``[E, k]`` of ``widths`` numbers that hang from a slot each.

    With the precision P over parent and children, A = - P_cc^-1 P_cp and e ~ N(0, P_cc^-1).
    """
    found, starts = [], [sum(widths[:j]) for j in range(len(widths))]
    for k in slot.unique().tolist():
        rows = (slot == k).nonzero().squeeze(1)
        others = [j for j in range(scope.shape[1]) if j != k]
        own = list(range(starts[k], starts[k] + widths[k]))
        rest = [c for j in others for c in range(starts[j], starts[j] + widths[j])]
        precision = belief.precision[rows].double()
        inner = torch.linalg.cholesky(precision[:, rest][:, :, rest])
        lever = -torch.cholesky_solve(precision[:, rest][:, :, own], inner)
        root = torch.linalg.cholesky(torch.cholesky_inverse(inner))
        nodes = scope[rows]
        kept = tuple(widths[j] for j in others)
        lever, root = lever.to(belief.shift), root.to(belief.shift)
        found.append(NumberBranches(nodes[:, k], nodes[:, others], kept, lever, root))
    return found


def renumbered(branch: StateBranches | NumberBranches, place: Tensor):
    """With nodes by their ``place [num_nodes]`` in a tree."""
    parent = None if branch.parent is None else place[branch.parent]
    return replace(branch, parent=parent, children=place[branch.children])
