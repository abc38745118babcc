"""What the free energy of a mixture is worth as evidence.

The optimiser exploits errors of a coarse quadrature, in the potentials' expectations and in the
entropies of mixtures. Both are evaluated again by rules that it never saw: that is the evidence. By
a second choice of fine rules one sees whether the first were fine enough. Potentials of two to four
dimensions are integrated on scattered points too: where these tell of more than the first choice of
grids can have seen, ridges as a rule, and agree with each other, the evidence is by them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.infer.qbethe.build import Network
from pyrograph.infer.qbethe.components import Components, Parameters
from pyrograph.infer.qbethe.free_energy import BetheFreeEnergy
from pyrograph.infer.qbethe.mixing import NodeMixing
from pyrograph.infer.qbethe.overlaps import overlaps
from pyrograph.infer.qbethe.potentials import EXCLUDED, IntegratedPotential
from pyrograph.infer.qbethe.rules import Rules, fine, fine_entropies, is_on_grids, scattered
from pyrograph.posterior.posterior import EvidenceKind

#: Differences that are not spoken of: absolute, relative to what was integrated numerically, and
#: rounding errors of sums in units of the dtype's precision.
ABSOLUTE, RELATIVE, ROUNDING = 0.01, 1e-3, 16
#: Share of the evidence, and at least one nat, that such differences may be of a bound.
VAGUE = 0.1
#: Standard errors of independent draws that scattered points, which do better, may be off by.
ERRORS = 3
#: Standard deviations within which a component has mass: a zero there leaves no evidence.
MASS = 4.0


@dataclass(frozen=True)
class FreeEnergy:
    """sum_a E log f_a and the Bethe entropy, of one mixture."""

    energy: float
    entropy: float

    @property
    def value(self) -> float:
        return self.energy + self.entropy

    def plus(self, energy: float) -> FreeEnergy:
        return FreeEnergy(self.energy + energy, self.entropy)


@dataclass(frozen=True)
class Scattered:
    """What two sets of scattered points find more than fine grids do.

    Attributes:
        more: by each set, than by each choice of grids.
        noise: what the first set may be off by.
    """

    more: tuple[float, float]
    noise: float


@dataclass(frozen=True)
class Certificate:
    """The evidence, its kind, and what to say about it."""

    evidence: Tensor | None
    kind: EvidenceKind
    notes: list[str]


def certified(
    free_energy: BetheFreeEnergy,
    parameters: Parameters,
    rules: tuple[Rules, Rules],
    temperature: float,
    bounds: bool,
) -> tuple[Components, Certificate]:
    """The mixture of the best restart, and its evidence by rules that the optimiser never saw.

    Args:
        rules: of the optimiser.
        temperature: that it ended at.
        bounds: whether the exact value would be a lower bound.
    """
    network, like = free_energy.network, free_energy.constant
    held_out = fine(like), fine_entropies(like)
    other = fine(like, second=True), fine_entropies(like, second=True)
    energy, entropy = free_energy.parts(parameters, held_out)
    best = int((energy + temperature * entropy).argmax())
    chosen = {name: value.detach()[best : best + 1].clone() for name, value in parameters.items()}
    mixture = Components(network.kinds, chosen)
    excluded = excluding_factor(network, mixture, fine(like), MASS)
    if excluded is not None:
        return mixture, without_mass(excluded)
    by_rule = (free_energy.parts(chosen, rules) for rules in (rules, other))
    optimised, second = (FreeEnergy(*map(float, parts)) for parts in by_rule)
    sums = FreeEnergy(float(energy[best]), float(entropy[best]))
    size = integrated(network, mixture, rules)
    seen = scattered_energies(network, mixture, like)
    found = certify(like, optimised, (sums, second), seen, size, bounds)
    far = excluding_factor(network, mixture, fine(like), math.inf)
    return mixture, found if far is None else with_far_zeros(found, far)


def without_mass(factor: str) -> Certificate:
    """Of a mixture that has mass where a factor is zero."""
    note = (
        f"{factor} is zero where the mixture has mass, so its free energy is minus infinity and no "
        "evidence is given. Write the constraint as the site's support."
    )
    return Certificate(None, None, [note])


def with_far_zeros(found: Certificate, factor: str) -> Certificate:
    """The same if a factor is zero far out, where :data:`EXCLUDED` stands for minus infinity."""
    note = (
        f"{factor} is zero further out than {MASS:g} standard deviations of a component, where it "
        f"counts as {EXCLUDED:g}: the exact free energy is minus infinity, and the evidence is an "
        "estimate. Write the constraint as the site's support."
    )
    return Certificate(found.evidence, "estimate", [*found.notes, note])


def excluding_factor(
    network: Network, mixture: Components, rules: Rules, reach: float
) -> str | None:
    """A factor that is zero within ``reach`` standard deviations of a component, of one restart."""
    for potential in network.potentials:
        if isinstance(potential, IntegratedPotential) and potential.met_zero:
            name = potential.excludes(mixture, rules, reach)
            if name is not None:
                return name
    return None


def factor_without_gradient(network: Network, mixture: Components, rules: Rules) -> str | None:
    """A factor whose gradient is not finite at some point of the rules."""
    for potential in network.potentials:
        if isinstance(potential, IntegratedPotential):
            e = potential.without_gradient(mixture, rules)
            if e is not None:
                return potential.local.name(e)
    return None


def integrated(network: Network, mixture: Components, rules: tuple[Rules, Rules]) -> float:
    """The size of what is integrated numerically: deviations of potentials, and what components
    add to entropies, in absolute numbers. Constants and closed forms are no part of it.

    Args:
        mixture: of one restart.
        rules: for potentials and for entropies.
    """
    size = sum(
        float((mixture.weights * potential.deviation(mixture, rules[0])).sum())
        for potential in _by_points(network)
    )
    if mixture.num_components == 1:
        return size
    overlap = overlaps(mixture, rules[1])
    for own, counting in zip(overlap, network.counting, strict=True):
        mixing = NodeMixing.apply(mixture.weights, own.ratio, own.weight)
        size += float((mixing * counting).abs().sum())
    return size + sum(abs(float(s.mixing(mixture, overlap, rules[1]))) for s in network.scopes)


def scattered_energies(network: Network, mixture: Components, like: Tensor) -> Scattered | None:
    """Potentials that fine rules integrate on grids, on scattered points; None if there are none.

    Args:
        mixture: of one restart.
    """
    on_grids = [potential for potential in _by_points(network) if is_on_grids(potential.dim)]
    if not on_grids:
        return None
    most = mixture.num_components * max(p.local.num_factors * p.local.num_states for p in on_grids)
    sets = [scattered(most, like, second) for second in (False, True)]

    def energy(rules: Rules) -> float:
        return sum(float((mixture.weights * p.expected(mixture, rules)).sum()) for p in on_grids)

    deviation = sum(
        float((mixture.weights * p.deviation(mixture, sets[1])).sum()) for p in on_grids
    )
    first, second = (
        energy(points) - energy(fine(like, second))
        for points, second in zip(sets, (False, True), strict=True)
    )
    return Scattered((first, second), ERRORS * deviation / len(sets[0](2, most).points) ** 0.5)


def _by_points(network: Network) -> list[IntegratedPotential]:
    return [
        potential
        for potential in network.potentials
        if isinstance(potential, IntegratedPotential) and potential.is_by_points
    ]


def certify(
    like: Tensor,
    optimised: FreeEnergy,
    fine_rules: tuple[FreeEnergy, FreeEnergy],
    seen: Scattered | None,
    size: float,
    bounds: bool,
) -> Certificate:
    """What several evaluations of the free energy say.

    Args:
        like: of the evidence's dtype and device.
        optimised: by the optimiser's rules.
        fine_rules: by both choices of fine rules.
        seen: by scattered points.
        size: of what was integrated numerically.
        bounds: whether the exact value would be a lower bound.
    """
    largest = max(abs(fine_rules[0].value), 0.0 if seen is None else abs(seen.more[0]))
    rounding = ROUNDING * torch.finfo(like.dtype).eps * largest
    slack = ABSOLUTE + RELATIVE * size + rounding
    found, second = _trusted(fine_rules, seen, slack)
    notes = []
    if optimised.value - found.value > slack:
        over = {
            "num_quadrature": optimised.energy - found.energy,
            "num_entropy": optimised.entropy - found.entropy,
        }
        gained = [name for name, by in over.items() if by > 0.5 * slack]
        notes.append(
            f"The optimiser lived on errors of the quadrature: it reached {optimised.value:.6g}, "
            f"finer rules give {found.value:.6g}. Raise {' and '.join(gained)}."
        )
    is_sure = abs(found.value - second.value) <= slack
    if not is_sure:
        rough = abs(found.energy - second.energy) > 0.5 * slack
        notes.append(
            f"Two fine rules differ, {found.value:.6g} and {second.value:.6g}: "
            + ("some potential is" if rough else "the components' widths are")
            + " too rough for them, and the evidence is an estimate."
        )
    elif slack > max(1.0, VAGUE * abs(found.value)):
        notes.append(
            f"Integrals of size {size:.2g} are known to {slack:.2g} nats only, and the evidence is "
            "an estimate: the mixture has mass where potentials are huge."
        )
        is_sure = False
    kind = "lower bound" if is_sure and bounds else "estimate"
    return Certificate(like.new_tensor(found.value), kind, notes)


def _trusted(
    fine_rules: tuple[FreeEnergy, FreeEnergy], seen: Scattered | None, slack: float
) -> tuple[FreeEnergy, FreeEnergy]:
    """The value to give, and the one to compare it with."""
    first, second = fine_rules
    if seen is None or abs(seen.more[0]) <= slack + seen.noise:
        return fine_rules
    one, other = first.plus(seen.more[0]), second.plus(seen.more[1])
    if abs(one.energy) < torch.finfo(torch.float32).eps * abs(first.energy):
        return first, one  # what is left of the two is rounding
    if abs(one.value - other.value) <= max(slack, abs(first.value - second.value)):
        return one, other
    return first, one
