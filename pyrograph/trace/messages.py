"""What a recorder says of a program: where it is, which latent sites a tensor came from, and what
to write instead."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.errors import ControlFlowError, LatentShapeError, ScopeBudgetError
from pyrograph.trace.places import program_line
from pyrograph.trace.tape import Step

#: Random draws, or prints, that are told of: the first ones.
TOLD = 3


class Messages:
    """Part of :class:`.record.Recorder`, which has ``ids_or_zero``.

    Attributes:
        statement: whose log density is being computed; last_statement: the one before.
        printed: where latents became text.
        steps, leaf_sites: what was recorded.
    """

    statement: str | None
    last_statement: str | None
    printed: list[str]
    steps: list[Step]
    leaf_sites: list[tuple[str, int, int]]

    def place(self) -> str:
        """Where in the program this is: the statement, and the line that is not a library's."""
        if self.statement is not None:
            where = f'statement "{self.statement}"'
        elif self.last_statement is not None:
            where = f'after statement "{self.last_statement}"'
        else:
            where = "before the first statement"
        line = program_line()
        return where if line is None else f"{where} ({line})"

    def sites_behind(self, t: Tensor) -> str:
        """The latent sites a tensor was computed from, for messages."""
        by_first = [s.first for s in self.steps]
        starts = torch.tensor(by_first, dtype=torch.int64, device="cpu")
        todo, seen, leaves = [self.ids_or_zero(t).reshape(-1).unique().cpu()], set(), set()
        while todo:
            ids = todo.pop()
            leaves.update((-1 - ids[ids < 0]).tolist())
            for k in (torch.searchsorted(starts, ids[ids > 0], right=True) - 1).unique().tolist():
                if k not in seen:
                    seen.add(k)
                    todo += [
                        torch.as_tensor(o.ids, device="cpu").reshape(-1).unique()
                        for o in self.steps[k].operands
                        if o.ids is not None
                    ]
        names = [
            site for site, lo, n in self.leaf_sites if any(lo <= leaf < lo + n for leaf in leaves)
        ]
        label = "latent site" if len(names) == 1 else "latent sites"
        return f"{label} " + ", ".join(f'"{n}"' for n in names)

    def over_budget(self, numbers: int, most: int) -> ScopeBudgetError:
        return ScopeBudgetError(
            f"{self.place()}: one operation reads {numbers:,} latent numbers, over the budget of "
            f"{most:,} (pyrograph.trace.operands.MAX_READS). Write the statement with sparse "
            f"indices instead of dense matrices."
        )

    def control_flow(self, what: str, t: Tensor) -> ControlFlowError:
        return ControlFlowError(
            f"{self.place()}: the value of {self.sites_behind(t)} is read in Python ({what}). The "
            f"graph must not depend on a latent's value: use torch.where for a choice, "
            f"torch.stack for a list of tensors, tensor indexing for a lookup; or hold the site "
            f'with fixed={{"site": value}}, or condition on it.'
        )

    def stable_density(self) -> ControlFlowError:
        return ControlFlowError(
            f"{self.place()}: a stable density is an integral, whose points Pyro chooses "
            f"by the values. Take auxiliary sites, of which it is the marginal: pyro.poutine."
            f'reparam(model, config={{"{self.statement}": SymmetricStableReparam()}}) of '
            f"pyro.infer.reparam where skew is 0, else StableReparam() of observations and "
            f"LatentStableReparam() of a latent site."
        )

    def note_printed(self, t: Tensor) -> None:
        """Text of a latent may go to the screen or choose a branch: the first few are told of."""
        if len(self.printed) < TOLD:
            self.printed.append(f"{self.sites_behind(t)} {self.place()}")

    def latent_shape(self, func: object, t: Tensor) -> LatentShapeError:
        return LatentShapeError(
            f"{self.place()}: the shape of {func}'s result depends on {self.sites_behind(t)}. "
            f"Keep shapes fixed: use torch.where or a mask instead of selecting elements."
        )
