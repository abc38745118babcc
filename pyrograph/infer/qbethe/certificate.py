"""What the free energy of a mixture is worth as evidence.

The optimiser exploits errors of a coarse quadrature, in the potentials' expectations and in the
entropies of mixtures. Both are evaluated again by rules that it never saw: that is the evidence. By
a second choice of fine rules one sees whether the first were fine enough.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pyrograph.posterior.posterior import EvidenceKind

#: Differences that are not spoken of, absolute and relative to the evidence.
ABSOLUTE, RELATIVE = 0.01, 1e-3


@dataclass(frozen=True)
class FreeEnergy:
    """sum_a E log f_a and the Bethe entropy, of one mixture."""

    energy: float
    entropy: float

    @property
    def value(self) -> float:
        return self.energy + self.entropy


@dataclass(frozen=True)
class Certificate:
    """The evidence, its kind, and what to say about it."""

    evidence: Tensor | None
    kind: EvidenceKind
    notes: list[str]


def without_mass(factor: str) -> Certificate:
    """Of a mixture that has mass where a factor is zero."""
    note = (
        f"{factor} is zero where the mixture has mass, so its free energy is minus infinity and no "
        "evidence is given. Write the constraint as the site's support."
    )
    return Certificate(None, None, [note])


def certify(
    evidence: Tensor, optimised: FreeEnergy, fine: FreeEnergy, second: FreeEnergy, bounds: bool
) -> Certificate:
    """What three evaluations of the free energy say.

    Args:
        evidence: the value of ``fine``.
        bounds: whether the exact value would be a lower bound.
    """
    slack = ABSOLUTE + RELATIVE * abs(fine.value)
    notes = []
    if optimised.value - fine.value > slack:
        over = {
            "num_quadrature": optimised.energy - fine.energy,
            "num_entropy": optimised.entropy - fine.entropy,
        }
        gained = [name for name, by in over.items() if by > 0.5 * slack]
        notes.append(
            f"The optimiser lived on errors of the quadrature: it reached {optimised.value:.6g}, "
            f"finer rules give {fine.value:.6g}. Raise {' and '.join(gained)}."
        )
    is_sure = abs(fine.value - second.value) <= slack
    if not is_sure:
        rough = abs(fine.energy - second.energy) > 0.5 * slack
        notes.append(
            f"Two fine rules differ, {fine.value:.6g} and {second.value:.6g}: "
            + ("some potential is" if rough else "the components' widths are")
            + " too rough for them, and the evidence is an estimate."
        )
    return Certificate(evidence, "lower bound" if is_sure and bounds else "estimate", notes)
