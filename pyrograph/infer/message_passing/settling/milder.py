"""Smaller alphas for factors whose cavities stay improper.

A cavity holds what the other factors say of a node. Where they say less than nothing (observations
of a mixture have sites of negative precision, and another factor is all that holds the node) there
is no tilted distribution, and the factor's message stays as it is for ever. With a smaller alpha
the cavity keeps a part of the factor's own message,

    n = q / m^alpha = (what others say) m^(1 - alpha)

and is proper. Factors that are passed over :data:`PATIENCE` times in a row, while all else is at
rest, get the next of :data:`SHARES` of their alpha, all others keep theirs: still a fixed point of
power EP, with another alpha for a few factors, which is said in the status.

Source: Minka (2004), "Power EP", section 3, on alphas that avoid improper cavities.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pyrograph.infer.message_passing.continuous.conjugate_factors import ConjugateFactors
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.network.network import Network
from pyrograph.infer.message_passing.sweeps.sweep import Swept

Projecting = ConjugateFactors | QuadratureFactors

#: Undamped sweeps in a row without an update of a factor, after which its alpha is lowered. Where
#: something else moves by more than REST, what others say may yet change: a sweep counts for less.
PATIENCE, REST, UNREST = 10, 0.01, 0.1
#: Of the alpha that was asked for.
SHARES = (1.0, 0.95, 0.8, 0.5, 0.25)


class MilderAlphas:
    """The alphas of one run's factors that are projected on families of continuous nodes.

    Args:
        network: its blocks' alphas are changed in place.
        is_fixed: whether alphas stay, but for those of a saved run.
    """

    def __init__(self, network: Network, is_fixed: bool):
        self._is_fixed = is_fixed
        self._blocks = {
            number: block
            for number, block in enumerate(network.blocks)
            if isinstance(block, Projecting) and _is_lowered(block.alpha)
        }
        self._asked = {k: block.alpha for k, block in self._blocks.items()}
        self.forget()

    def forget(self) -> None:
        """All alphas as they were asked for."""
        self._level = {k: torch.zeros_like(a, dtype=torch.int64) for k, a in self._asked.items()}
        self._waits = {k: torch.zeros_like(a) for k, a in self._asked.items()}
        for k in self._blocks:
            self._apply(k)

    def observe(self, sweep: Swept, eta: float) -> bool:
        """Take note of the updates that a sweep passed over; whether alphas were lowered.

        Args:
            eta: share of the step that was taken.
        """
        if self._is_fixed:
            return False
        self._waits, self._level = dict(self._waits), dict(self._level)  # a step may be undone
        lowered, wait = False, eta if float(sweep.moved) < REST else UNREST * eta
        for k in self._blocks:
            skipped = sweep.skipped[k]
            if skipped is None:
                continue
            self._waits[k] = torch.where(skipped, self._waits[k] + wait, 0.0)
            late = (self._waits[k] >= PATIENCE) & (self._level[k] < len(SHARES) - 1)
            if bool(late.any()):
                self._waits[k] = torch.where(late, 0.0, self._waits[k])
                self._level[k] = self._level[k] + late
                self._apply(k)
                lowered = True
        return lowered

    def _apply(self, k: int) -> None:
        shares = self._asked[k].new_tensor(SHARES)
        self._blocks[k].use_alpha(shares[self._level[k]] * self._asked[k])

    @property
    def note(self) -> str:
        """What is to be said of them; empty where all alphas are those asked for."""
        count = sum(int((level > 0).sum()) for level in self._level.values())
        if not count:
            return ""
        name, least = "", torch.inf
        for k, block in self._blocks.items():
            found = torch.where(self._level[k] > 0, block.alpha, torch.inf)
            if len(found) and float(found.amin()) < least:
                name, least = block.local.name(int(found.argmin())), float(found.amin())
        whose = "alpha of one factor was" if count == 1 else f"alphas of {count} factors were"
        return (
            f"The {whose} lowered, to {least:.3g} of {name}: other factors left it no proper "
            "cavity when all else was at rest."
        )

    # ------------------------------------------------------------------ checkpoints
    def carried(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        parts = {"asked": self._asked, "level": self._level, "waits": self._waits}
        return {f"{k}.{part}": v.clone() for part, of in parts.items() for k, v in of.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Alphas of a saved run that was asked for the same ones; else as asked for here."""
        self.forget()
        for k, asked in self._asked.items():
            saved = [state.get(f"{k}.{part}") for part in ("asked", "level", "waits")]
            if all(v is not None for v in saved) and torch.equal(saved[0].to(asked), asked):
                self._level[k], self._waits[k] = saved[1].to(self._level[k]), saved[2].to(asked)
                self._apply(k)


def _is_lowered(alpha: Tensor) -> bool:
    """Whether less of it is the same kind of inference: above 1 it is chosen for a bound."""
    return bool(((alpha > 0) & (alpha <= 1)).all())
