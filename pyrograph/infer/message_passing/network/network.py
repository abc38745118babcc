"""Families of nodes and blocks of like factors: what sweeps of messages go over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from pyrograph.beliefs import Natural
from pyrograph.graph import FactorGroup
from pyrograph.infer.message_passing.continuous.conjugate_factors import ConjugateFactors
from pyrograph.infer.message_passing.continuous.quadratic import QuadraticFactors
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.discrete.binary import BinaryFactors
from pyrograph.infer.message_passing.discrete.counts import CountFactors
from pyrograph.infer.message_passing.discrete.differences import DifferenceFactors
from pyrograph.infer.message_passing.discrete.noisy_or import NoisyOrFactors
from pyrograph.infer.message_passing.discrete.parity import ParityFactors, rests_on_probes
from pyrograph.infer.message_passing.discrete.tables import TableFactors
from pyrograph.infer.message_passing.network.first_place import moved_to_priors
from pyrograph.infer.message_passing.network.same_scope import Merged
from pyrograph.infer.message_passing.nodes.families import Categorical, Continuous, Odds
from pyrograph.infer.message_passing.nodes.log_values import is_zero

Family = Categorical | Odds | Continuous
Block = (
    BinaryFactors
    | ParityFactors
    | NoisyOrFactors
    | CountFactors
    | TableFactors
    | DifferenceFactors
    | QuadraticFactors
    | ConjugateFactors
    | QuadratureFactors
)


@dataclass
class Network:
    """Families and blocks of a graph.

    Attributes:
        families: nodes by the family of their belief.
        blocks: like factors.
        members: of each block, its group and ``[E]`` the factors of the group.
        merged: factors that are part of others with the same scope, or a larger one.
        absorbed: groups of factors of one node, and which of them, that are part of a base.
        divided: groups of factors, and which of them, whose terms are factors of their own.
        row: ``[num_nodes]`` of each node in its family; family: ``[num_nodes]`` its number.
        constant: ``[]`` log of everything that depends on no latent.
        tried: groups whose form, that of a product or of a noisy or, was seen at some states alone.
    """

    families: list[Family]
    blocks: list[Block]
    members: list[tuple[FactorGroup, Tensor]]
    merged: list[Merged]
    absorbed: list[tuple[FactorGroup, Tensor]]
    divided: list[tuple[FactorGroup, Tensor]]
    row: Tensor
    family: Tensor
    constant: Tensor
    tried: list[FactorGroup]

    @property
    def has_quadrature(self) -> bool:
        """Whether some integral is taken by quadrature."""
        return any(isinstance(block, QuadratureFactors) for block in self.blocks)

    @property
    def has_quadrature_errors(self) -> bool:
        """Whether some of these are not known to be without error."""
        return any(isinstance(b, QuadratureFactors) and not b.is_exact for b in self.blocks)

    @property
    def projects(self) -> bool:
        """Whether beliefs keep some expectations alone of what factors say, so that they are not
        exact on a tree, and sweeps may run away."""
        own = ConjugateFactors, QuadratureFactors
        return any(isinstance(b, own) and not b.is_mean_field for b in self.blocks)

    @property
    def probed(self) -> list[FactorGroup]:
        """Of which not all states were looked at: that they are checks of parity is not proved."""
        pairs = zip(self.members, self.blocks, strict=True)
        checks = [group for (group, _), block in pairs if isinstance(block, ParityFactors)]
        return [group for group in checks if rests_on_probes(group)]

    @property
    def is_mean_field(self) -> bool:
        """Whether alpha is 0 for all factors."""
        return all(block.is_mean_field for block in self.blocks)

    @cached_property
    def has_zeros(self) -> bool:
        """Whether some state of some scope is excluded."""
        excluded = any(
            bool(is_zero(f.base).any()) for f in self.families if isinstance(f, Categorical)
        )
        return excluded or any(block.has_zeros for block in self.blocks)

    @property
    def is_differentiable(self) -> bool:
        """Whether something in it is attached to the program's tensors."""
        parts = [self.constant]
        for family in self.families:
            is_natural = isinstance(family.base, Natural)
            parts += family.base.parameters().values() if is_natural else [family.base]
        attached = any(part.requires_grad for part in parts)
        groups = [group for group, _ in self.members] + [part.group for part in self.merged]
        return attached or any(group.is_differentiable for group in groups)

    def start(self) -> list[list]:
        """Messages to start from, by block and port."""
        first = [block.start(self.families) for block in self.blocks]
        return moved_to_priors(self.families, self.blocks, self.members, first) or first

    def start_about_0(self) -> list[list] | None:
        """The same about 0, where priors say other places; None where they do not."""
        first = [block.start(self.families) for block in self.blocks]
        moved = moved_to_priors(self.families, self.blocks, self.members, first)
        return None if moved is None else first

    def forget_grids(self) -> None:
        """Points are to be laid afresh."""
        for block in self.blocks:
            if isinstance(block, QuadratureFactors):
                block.forget_grid()

    def beliefs_of(self, messages: list[list]) -> list:
        """Beliefs of every family under messages, by block and port."""
        return beliefs_of(self.families, self.blocks, messages)


def beliefs_of(families: Sequence, blocks: Sequence, messages: list[list]) -> list:
    """Beliefs of every family under messages, by block and port."""
    incoming: list[list[tuple]] = [[] for _ in families]
    for block, sent in zip(blocks, messages, strict=True):
        for port, message in enumerate(sent):
            part = (block.rows[port], message)
            if isinstance(message, Natural):
                part = (*part, block.bases[port])
            incoming[block.families[port]].append(part)
    return [family.beliefs(parts) for family, parts in zip(families, incoming, strict=True)]
