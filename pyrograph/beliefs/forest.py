"""Joint distributions of nodes that hang from each other without cycles.

    q(x) = prod_a q_a(x_children | x_parent)

where a branch a draws some nodes together given one other, or given nothing (the ground, of which
roots are the children). Beliefs of factors whose scopes close no cycle and agree on nodes make one:

    prod_a b_a(x_a) prod_i b_i(x_i)^(1 - d_i)

(:func:`state_branches`, :func:`number_branches`). Given its noise every node is a function of its
parent: a table of states, or x - m = A (x_parent - m_parent) + e. Functions are composed with those
of their parents, these with those of theirs, so that a node knows its ancestors 1, 2, 4, 8, ...
steps up, and all nodes are drawn in O(log depth) rounds. Functions of states take c numbers for
every draw, so that shallow trees, and many draws, go down level by level instead.

Source: pointer jumping, Wyllie (1979).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from pyrograph.beliefs.gaussian import LOG_2PI, Gaussian

#: Numbers of the functions held at once.
CHUNK = 2**22
#: What going down a level costs, in numbers of a function that is composed.
LEVEL_COST = 5_000


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
        """State numbers ``[count, n]``, from one uniform number for every branch and draw."""
        uniform = [
            torch.rand(len(branch.children), count, dtype=torch.float64, device="cpu").to(
                self.parent.device
            )
            for branch in self.branches
        ]
        functions, depth = self.num_nodes * self.num_states, 1 + int(self._depth.max())
        draw, held = self._by_jumping, functions
        if count * functions * math.log2(2 * depth) > LEVEL_COST * depth:
            draw, held = self._by_levels, self._widest
        out, size = self.parent.new_empty(count, self.num_nodes), max(1, CHUNK // held)
        for k in range(0, count, size):
            draw([u[:, k : k + size] for u in uniform], out[k : k + size])
        return out

    def _by_levels(self, uniform: Sequence[Tensor], out: Tensor) -> None:
        """Children after their parents."""
        for level in self._levels:
            for k, rows in level:
                branch, cumulative = self.branches[k], self._cumulative[k]
                above = out.new_zeros(len(out), len(rows))
                if branch.parent is not None:
                    above = out[:, branch.parent[rows]]
                u = uniform[k][rows].t().unsqueeze(2).contiguous()
                given = cumulative[rows, above]  # [S, E, c_1 ... c_m]
                state = torch.searchsorted(given, u, right=True).squeeze(2)
                sizes = branch.log_p.shape[2:]
                out[:, branch.children[rows]] = torch.stack(torch.unravel_index(state, sizes), 2)

    def _by_jumping(self, uniform: Sequence[Tensor], out: Tensor) -> None:
        """Functions of ancestors 1, 2, 4, ... steps up."""
        # the state that a node would have given every state of its parent
        given = out.new_zeros(*out.shape, self.num_states)
        for branch, cumulative, u in zip(self.branches, self._cumulative, uniform, strict=True):
            level = u.unsqueeze(1).expand(-1, cumulative.shape[1], -1).contiguous()
            states = torch.searchsorted(cumulative, level, right=True).permute(2, 0, 1)
            if branch.parent is None:
                states = states.expand(-1, -1, self.num_states)
            parts = torch.unravel_index(states, branch.log_p.shape[2:])
            for child, state in zip(branch.children.unbind(1), parts, strict=True):
                given[:, child, : state.shape[2]] = state
        for above, _ in self._rounds():
            given = given.gather(2, given[:, above])
        out.copy_(given[:, :, 0])

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
        c, like = self.num_states, self.branches[0].log_p
        if self.num_nodes * c**2 <= CHUNK:
            given = like.new_zeros(self.num_nodes, c, c)
            for branch in self.branches:
                for child, own in self._alone(branch, slice(None)):
                    rows = own.shape[1] if branch.parent is not None else c
                    given[child, :rows, : own.shape[2]] = own.expand(-1, rows, -1)
            for above, _ in self._rounds():
                given = given[above] @ given
            return given[:, 0].log()
        p = like.new_zeros(self.num_nodes, c)
        for level in self._levels:
            for k, rows in level:
                branch = self.branches[k]
                above = like.new_ones(len(rows), 1)
                if branch.parent is not None:
                    above = p[branch.parent[rows], : branch.log_p.shape[1]]
                for child, own in self._alone(branch, rows):
                    p[child, : own.shape[2]] = (above.unsqueeze(1) @ own).squeeze(1)
        return p.log()

    @staticmethod
    def _alone(branch: StateBranches, rows: Tensor | slice) -> Iterator[tuple[Tensor, Tensor]]:
        """Children ``[E]`` of some branches, and each one's distributions given the parent,
        ``[E, c_parent, c]``."""
        p = branch.log_p[rows].exp()
        for k, child in enumerate(branch.children[rows].unbind(1)):
            others = [j for j in range(2, p.dim()) if j != 2 + k]
            yield child, p.sum(others) if others else p

    @cached_property
    def _depth(self) -> Tensor:
        """``[n]``: steps up to the root."""
        depth = (~self.is_root).long()
        for above, _ in self._rounds():
            depth = depth + depth[above]
        return depth

    @cached_property
    def _levels(self) -> list[list[tuple[int, Tensor]]]:
        """By the children's depth: branches, and their rows ``[E]``."""
        found: list[list[tuple[int, Tensor]]] = [[] for _ in range(1 + int(self._depth.max()))]
        for k, branch in enumerate(self.branches):
            level = self._depth[branch.children[:, 0]]
            order = level.argsort(stable=True)
            counts = level.bincount().tolist()
            for at, rows in enumerate(order.split(counts)):
                if len(rows):
                    found[at].append((k, rows))
        return found

    @cached_property
    def _widest(self) -> int:
        """Numbers of a draw's distributions over like branches of one level, at most."""
        entries = [cumulative.shape[2] for cumulative in self._cumulative]
        return max(len(rows) * entries[k] for level in self._levels for k, rows in level)


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
            shape = count, *branch.root.shape[:2]
            white = torch.randn(shape, dtype=torch.float64, device="cpu").to(self.mean)
            noise = self._with_children(noise, branch, _applied(branch.root, white))
        for above, is_last in self._rounds():
            noise = noise + _applied(lever, noise[:, above])
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
                own = own - _applied(branch.lever, above)
            columns = own.reshape(-1, *own.shape[-2:]).permute(1, 2, 0)  # [E, R, S]
            white = torch.linalg.solve_triangular(branch.root, columns, upper=False)
            log_det = branch.root.diagonal(dim1=1, dim2=2).log().sum()
            square = white.square().sum((0, 1)).view(own.shape[:-2])
            total = total - 0.5 * square - log_det
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


def _applied(matrix: Tensor, vector: Tensor) -> Tensor:
    """``[*S, n, r]`` of ``[n, r, d]`` and ``[*S, n, d]``, without a matrix for every draw."""
    return torch.einsum("nrd,...nd->...nr", matrix, vector)


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
