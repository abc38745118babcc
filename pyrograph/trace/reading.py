"""What is known of a program that was read once: its sites, its statements, and the record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pyrograph.errors import OptionError
from pyrograph.trace.sites import Site
from pyrograph.trace.tape import Tape


@dataclass(frozen=True)
class Statement:
    """The log density of one statement: ids ``[N]`` (0 = constant) and values ``[N]``."""

    name: str
    ids: Tensor
    values: Tensor


@dataclass(frozen=True)
class Reading:
    """A program read once.

    Attributes:
        sites: latent sites in program order.
        fixed: values of the sites held fixed.
        tape: the merged record.
        statements: in program order; Jacobians follow their site.
        leaves: first leaf of every free site.
        constrained: ids of every free site's value in the program's space.
        random_draws: where the program drew constants outside ``pyro.sample``.
        printed: which latents became text, and where.
        functions: which ``torch.autograd.Function``s of its own latents went through, and where.
        masked: of latent sites that constants mask in part, ``[nodes]``, which are masked out.
    """

    sites: tuple[Site, ...]
    fixed: dict[str, Tensor]
    tape: Tape
    statements: tuple[Statement, ...]
    leaves: dict[str, int]
    constrained: dict[str, Tensor]
    random_draws: tuple[str, ...]
    printed: tuple[str, ...]
    functions: tuple[str, ...]
    masked: dict[str, Tensor]

    def __getstate__(self) -> dict[str, Any]:
        operands = (operand for step in self.tape.steps for operand in step.operands)
        values = [s.values for s in self.statements] + [o.values for o in operands]
        if any(isinstance(v, Tensor) and v.requires_grad and not v.is_leaf for v in values):
            raise OptionError(
                "a graph whose constants are attached to the program's tensors is not pickled or "
                "copied: derivatives would be lost. Fit or trace under torch.no_grad()."
            )
        return vars(self)
