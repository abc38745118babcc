"""Free energies and gradients that are no numbers, refused before they move anything."""

from __future__ import annotations

import math

from pyrograph.errors import NonFiniteDensity
from pyrograph.infer.qbethe.components import Parameters


def refuse_non_finite(measured: list[float], num_done: int) -> None:
    """Raise ``NonFiniteDensity`` for a free energy of some restart that is not finite."""
    bad = [value for value in measured if not math.isfinite(value)]
    if bad:
        raise NonFiniteDensity(
            f"the free energy is {bad[0]:g} after {num_done} steps. "
            "Lower lr, or look for potentials that are infinite."
        )


def refuse_bad_gradient(
    parameters: Parameters, measured: list[float], num_done: int, init_scale: float
) -> None:
    """Raise ``NonFiniteDensity`` for gradients that are not finite where free energies are."""
    found = [v.grad for v in parameters.values() if v.grad is not None]
    if math.isfinite(sum(grad.sum() for grad in found)):
        return
    is_bad = not all(bool(grad.isfinite().all()) for grad in found)  # a sum may overflow
    if is_bad and all(map(math.isfinite, measured)):
        raise NonFiniteDensity(
            f"the free energy is {min(measured):.4g} after {num_done} steps but its "
            "gradient is not finite. Where exponentials overflow far out start narrower, with "
            f"init_scale={init_scale / 10:g} (it is {init_scale:g}), or narrow the "
            "priors, whose draws are the start. Or torch.where differentiates a branch not "
            "taken: keep its argument inside the domain, as in "
            "torch.where(x > 0, x.clamp_min(1e-6).sqrt(), 0.0)."
        )
