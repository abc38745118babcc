"""What particles say of how they fit, by Stein's identity, and what to do about it.

Engines that move particles say it in ``status``, and claim convergence by it
(:mod:`.stein_checks`). What only an engine knows, as how its step rule does, it puts in.
"""

import torch
from torch import Tensor

from pyrograph.infer.base import Engine
from pyrograph.infer.laplace import SCALES
from pyrograph.infer.stein_checks import (
    ERRORS,
    SteinChecks,
    common_errors,
    common_misfit,
    coordinate_name,
)


class ParticleStatus(Engine):
    """An engine with particles ``x`` ``[n, dim]``, their scores, coordinates, and ``_bare`` nodes,
    which have no density."""

    def checks(self, errors: float = ERRORS) -> SteinChecks:
        """What Stein's identity says of the particles as they stand, with so many standard errors
        granted to what of them is chance."""
        return SteinChecks.of(*self.as_seen(), errors * self.chance())

    def as_seen(self) -> tuple[Tensor, Tensor]:
        """Particles and scores in the coordinates of kernels and steps, ``[n, dim]`` each."""
        if self.coordinates is None:
            return self.x, self.score
        return self.coordinates.inward(self.x), self.coordinates.of_score(self.score)

    def name_of(self, column: int) -> str:
        """What a column of these is called."""
        name = coordinate_name(self.graph, column)
        is_mixed = self.coordinates is not None and bool(self.coordinates.is_mixed[column])
        return f"{name} (less what later ones tell of it)" if is_mixed else name

    def chance(self) -> float | Tensor:
        """The standard error of a mean over the particles, by that of independent draws; one
        number or ``[dim]``."""
        return 1.0

    @property
    def converged(self) -> bool:
        """Whether ``tol`` was given and met, by particles that pass the Stein checks; see ``tol``
        for what these do not see."""
        if not super().converged or self.num_particles == 1:
            return super().converged
        return self._unsettled() is None and common_misfit(*self.as_seen()) is None

    def _unsettled(self) -> int | None:
        """A coordinate that speaks against a claim of convergence."""
        return self.checks(common_errors(self.graph.dim)).unsettled()

    @property
    def status(self) -> str:
        """``"converged"``, or what happened and what to do."""
        text = super().status
        if super().converged and not self.converged:
            text = (
                f"not converged: after {self.num_done} steps the {self.monitor} is within "
                f"tol={self.tol:.4g}, which has the units of a squared score, but the particles "
                f"do not satisfy Stein's identity{self._how_nearly()}."
            )
        if self.num_done > 0 and self.num_particles > 1 and not self.converged:
            doubts = self.doubts(self.checks())
            if not doubts and not super().converged:  # else it is said already
                misfit = common_misfit(*self.as_seen())
                doubts = "" if misfit is None else f" Stein's identity fails{_together(*misfit)}."
            text += doubts + self._of_spikes(doubts)
        if self.converged and self.num_particles > 1:
            text += self._of_the_worst()
        return text + self._of_bare_nodes() if self._graph is not None else text

    def _of_the_worst(self) -> str:
        """The coordinate of a converged run whose spread is furthest off; else empty."""
        checks = self.checks()
        column = checks.worst_told()
        if column is None:
            return ""
        return (
            f". The particles' variance at {self.name_of(column)} is "
            f"{checks.ratio[column]:.2f} of the target's, by Stein's identity: for a nearer one "
            "lower tol, or raise num_particles."
        )

    def _how_nearly(self) -> str:
        """Where the identity fails by what chance may do yet seldom does; else empty."""
        checks, column = self.checks(), self._unsettled()
        misfit = common_misfit(*self.as_seen())
        if column is None and misfit is not None:
            return f"{_together(*misfit)}, or lower tol"
        if not checks.passed or column is None:
            return ""
        return (
            f" as nearly as {self.num_particles} independent ones commonly do: at "
            f"{self.name_of(column)} the mean score times the standard deviation is "
            f"{checks.shift[column]:.3g} (0 of draws), the variance by that of the target "
            f"{checks.ratio[column]:.3g} (1). {self.nearer(column)}"
        )

    def doubts(self, checks: SteinChecks) -> str:
        """Sentences on mean scores or variances that are off; empty where none is."""
        if not checks.arrived:
            return self._misfit(checks)
        for column, remedy in ((checks.too_wide(), self.wide), (checks.too_narrow(), self.narrow)):
            if column is not None and checks.ratio[column] <= 0:
                return (
                    " By the Stein identity the particles do not have the target's shape at "
                    f"{self.name_of(column)}, where scores rise with the "
                    f"coordinate: {remedy(column)}"
                )
            if column is not None:
                return (
                    " By the Stein identity the particles' variance is "
                    f"{checks.ratio.median():.2f} of the target's (median over coordinates), at "
                    f"{self.name_of(column)} {checks.ratio[column]:.2f}: "
                    f"{remedy(column)}"
                )
        return ""

    def _misfit(self, checks: SteinChecks) -> str:
        """Sentences on a mean score that is not 0: of a mean that is off, or of a shape."""
        column, far = checks.most_shifted(), checks.misshapen()
        spread = ""
        if far is not None:
            size = "wide" if checks.ratio[far] > 1 else "narrow"
            spread = (
                f" Besides, {self.name_of(far)} is too {size}: the variance there "
                f"is {checks.ratio[far]:.2f} of the target's."
            )
        rounding = ""
        if self.graph.dtype != torch.float64:  # of numbers that are known together only
            rounding = f" Or rounding does it: try dtype=torch.float64 (it is {self.graph.dtype})."
        return (
            " Stein's identity (the mean of the score is 0) fails: the mean score of "
            f"{self.name_of(column)} times its standard deviation is "
            f"{checks.shift[column]:.3g}. The particles have not settled about the target's mean, "
            "or, where that is right, not into the shape of the target at this site or a "
            f"neighbour.{spread} {self.not_arrived()}{rounding}"
        )

    def _of_spikes(self, doubts: str) -> str:
        """What a start at the mode may have to do with doubts: a scale that latent sites read may
        draw the mode into a spike where it is almost 0, which particles do not leave."""
        at_mode = isinstance(self.init, str)
        if not doubts or not (at_mode or 'init="laplace"' in doubts):
            return ""
        names = {
            site.name
            for group in self.graph.factors
            if group.arity > 1 and group.name in self.graph.sites
            for site in group.slots
            if site.support in SCALES and site.name != group.name
        }
        if not names:
            return ""
        means = self.graph.constrain(self.graph.unflatten(self.x.detach()))
        name = min(names, key=lambda name: float(means[name].mean(0).min()))
        way = "as deviations from their means (pyro.infer.reparam.LocScaleReparam(0.0))"
        if not at_mode:
            return f' Where the site "{name}" scales latent sites write these {way} first.'
        return (
            " A scale of latent sites may draw the mode into a spike near 0: site "
            f'"{name}" is {float(means[name].mean(0).min()):.2g} on average. If that is far too '
            f"small write what it scales {way}."
        )

    def not_arrived(self) -> str:
        """What to do about mean scores that are not 0."""
        if isinstance(self.init, str):
            return "Raise num_particles, or else num_steps."
        return (
            'Give init="laplace", which starts at the mode, or raise num_particles, or else '
            "num_steps."
        )

    def wide(self, column: int) -> str:
        """Why the variance of a coordinate is too large, and what to do."""
        return "they have not settled, raise num_steps."

    def narrow(self, column: int) -> str:
        """Why the variance of a coordinate is too small, and what to do."""
        return "they have not settled, raise num_steps."

    def nearer(self, column: int) -> str:
        """What to do where a coordinate is off by what chance may do."""
        return "Raise num_steps, or num_particles"

    def _of_bare_nodes(self) -> str:
        number = int(self._bare.sum())
        if number == 0:
            return ""
        site, index = self.graph.nodes[int(self._bare.nonzero()[0])]
        place = f"[{', '.join(map(str, index))}]" if index else ""
        return (
            f" {number} of {self.graph.num_nodes} nodes have no density, as masked ones "
            f'(site "{site}"{place} first): their particles stay where they started.'
        )

    def remedy(self) -> str:
        return (
            "n particles cannot bring the discrepancy below a floor that falls with n: if the "
            'history["ksd"] is still falling raise num_steps, else raise num_particles or tol.'
        )


def _together(shift: float, ratio: float) -> str:
    """Of a misfit that coordinates share, see :func:`.common_misfit`."""
    return (
        " along a sum of all coordinates, whose mean score times its standard deviation is "
        f"{shift:.3g} (0 if they fit), its variance by that of the target {ratio:.3g} (1): many "
        "correlated sites are off or too narrow together. Raise num_steps"
    )
