"""Smaller alphas for factors whose cavities stay improper.

A cavity holds what the other factors say of a node. Where they say less than nothing (observations
of a mixture have sites of negative precision, and another factor is all that holds the node) there
is no tilted distribution, and the factor's message stays as it is for ever. With a smaller alpha
the cavity keeps a part of the factor's own message,

    n = q / m^alpha = (what others say) m^(1 - alpha)

and is proper. Factors that were passed over :data:`PATIENCE` times in a row get the next of
:data:`SHARES` of their alpha, all others keep theirs: still a fixed point of power EP, with another
alpha for a few factors, which is said in the status.

Source: Minka (2004), "Power EP", section 3, on alphas that avoid improper cavities.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pyrograph.infer.message_passing.network import Network
from pyrograph.infer.message_passing.quadrature_factors import QuadratureFactors

#: Undamped sweeps in a row without an update of a factor, after which its alpha is lowered.
PATIENCE = 10
#: Of the alpha that was asked for.
SHARES = (1.0, 0.95, 0.8, 0.5, 0.25)


class MilderAlphas:
    """The alphas of one run's factors that are integrated by quadrature.

    Args:
        network: its blocks' alphas are changed in place.
    """

    def __init__(self, network: Network):
        self._blocks = {
            number: block
            for number, block in enumerate(network.blocks)
            if isinstance(block, QuadratureFactors) and _is_lowered(block.alpha)
        }
        self._asked = {k: block.alpha for k, block in self._blocks.items()}
        self._level = {k: torch.zeros_like(a, dtype=torch.int64) for k, a in self._asked.items()}
        self._waits = {k: torch.zeros_like(a) for k, a in self._asked.items()}

    def observe(self, skipped: list[Tensor | None], eta: float) -> bool:
        """Take note of the updates that a sweep passed over; whether alphas were lowered.

        Args:
            skipped: by block, ``[E]``.
            eta: share of the step that was taken.
        """
        lowered = False
        for k in self._blocks:
            if skipped[k] is None:
                continue
            self._waits[k] = torch.where(skipped[k], self._waits[k] + eta, 0.0)
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
            f"The {whose} lowered, to {least:.3g} of {name}: other factors leave it no proper "
            "cavity."
        )

    # ------------------------------------------------------------------ checkpoints
    def carried(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        levels = {f"{k}.level": level.clone() for k, level in self._level.items()}
        return {**levels, **{f"{k}.waits": waits.clone() for k, waits in self._waits.items()}}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        for k in self._blocks:
            if f"{k}.level" in state:
                self._level[k] = state[f"{k}.level"].to(self._level[k])
                self._waits[k] = state[f"{k}.waits"].to(self._waits[k])
                self._apply(k)


def _is_lowered(alpha: Tensor) -> bool:
    """Whether less of it is the same kind of inference: above 1 it is chosen for a bound."""
    return bool(((alpha > 0) & (alpha <= 1)).all())
