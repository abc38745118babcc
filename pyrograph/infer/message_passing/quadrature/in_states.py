"""Moments of tilted distributions of factors that are Gaussian in every state of their labels.

    log f(d, o + w) = c_d + h_d' w - w' P_d w / 2

so that f^alpha g is Gaussian in every state, and needs no points:

    P = alpha P_d + G,    m = P^-1 (alpha h_d + g),
    log int f^alpha g dw = alpha log f(d, o + m) + log g(m) - log det P / 2 + r log(2 pi) / 2

Rows of mixtures of normal densities are such factors, outliers, switching linear systems, and
priors of components, of numbers of any dimension. f is evaluated at m, not its coefficients: where
it is narrow c_d is a difference of large numbers.
"""

from __future__ import annotations

from torch import Tensor

from pyrograph.beliefs import Gaussian
from pyrograph.errors import InferenceError
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.quadrature.conditional import ConditionalMoments
from pyrograph.infer.message_passing.quadrature.grids import Grid
from pyrograph.infer.message_passing.quadrature.sums import Tilted
from pyrograph.infer.message_passing.quadrature.tilted import TiltedMoments


class MomentsInStates(TiltedMoments):
    """Moments for a set of like factors, in closed form.

    Args:
        local: their density in effective coordinates, whose ``quadratic_in_states`` is known.
        alpha: ``[E]``, positive.
    """

    #: There is nothing to check.
    has_checks = True

    def __init__(self, local: LocalDensity, alpha: Tensor):
        super().__init__(local, alpha, num_points=1, dim=0)
        self.function: Gaussian = local.quadratic_in_states

    def forget(self) -> None:
        super().forget()
        self.is_checked = True

    def __call__(self, g: Gaussian, origin: Tensor, start: Grid | None, first: Grid) -> Tilted:
        alpha = self.alpha.expand(self.local.num_states, -1)
        tilted = alpha * self.function.about(origin) + g
        self._refuse_improper(tilted)
        u = origin + tilted.mean
        value = self.density(u[None])[0]
        log_mass = self.alpha * value + g.log_value(tilted.mean) + tilted.log_mass_over_peak
        nowhere = Grid(u[..., :0], tilted.covariance[..., :0, :0])
        return Tilted(log_mass, u, tilted.covariance, u, nowhere, nowhere, False, None)

    def _refuse_improper(self, tilted: Gaussian) -> None:
        bad = ~tilted.is_proper
        if bool(bad.any()):
            raise InferenceError(
                f"{self.local.name(int(bad.any(0).nonzero()[0]))} and the cavities of its nodes "
                "leave no distribution in some state of its labels: their product cannot be "
                "normalised. Use a larger damping (0.5, 0.9), or priors that hold the nodes."
            )


def moments_for(
    local: LocalDensity, alpha: Tensor, inner: list[int], num_points: int | None
) -> TiltedMoments:
    """On points, of numbers of u but for ``inner``, which are integrated in closed form."""
    if not inner:
        return TiltedMoments(local, alpha, num_points)
    if len(inner) == local.dim:
        return MomentsInStates(local, alpha)
    return ConditionalMoments(local, alpha, inner, num_points)
