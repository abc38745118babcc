"""Free energies and gradients that are no numbers, refused before they move anything."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from pyrograph.errors import NonFiniteDensity
from pyrograph.infer.qbethe.components import Parameters


def refuse_non_finite(
    measured: list[float], num_done: int, init_scale: float, dtype: torch.dtype
) -> None:
    """Raise ``NonFiniteDensity`` for a free energy of some restart that is not finite."""
    bad = [value for value in measured if not math.isfinite(value)]
    if bad:
        ways = ["look for potentials that are infinite"]
        if num_done:
            ways.insert(0, "lower lr")
        else:  # under a wide component the expectation of an exponential is no number
            ways.append(
                f"start narrower, with init_scale={init_scale / 10:g} (it is {init_scale:g}), or "
                "narrow the priors, whose draws are the start"
            )
        if dtype != torch.float64:
            ways.append(f"give dtype=torch.float64 (it is {dtype}, which may be too narrow)")
        text = ", or ".join(ways)
        raise NonFiniteDensity(
            f"the free energy is {bad[0]:g} after {num_done} steps. {text[0].upper()}{text[1:]}."
        )


def refuse_bad_gradient(
    parameters: Parameters,
    measured: list[float],
    num_done: int,
    init_scale: float,
    culprit: Callable[[], str | None],
) -> None:
    """Raise ``NonFiniteDensity`` for gradients that are not finite where free energies are.

    Args:
        culprit: finds a factor whose own gradient is not.
    """
    found = [v.grad for v in parameters.values() if v.grad is not None]
    if math.isfinite(sum(grad.sum() for grad in found)):
        return
    is_bad = not all(bool(grad.isfinite().all()) for grad in found)  # a sum may overflow
    if is_bad and all(map(math.isfinite, measured)):
        factor = culprit()
        is_narrow = any(grad.dtype != torch.float64 for grad in found)
        wider = " Or give dtype=torch.float64, which reaches further." if is_narrow else ""
        whose = "its gradient" if factor is None else f"the gradient of {factor}"
        raise NonFiniteDensity(
            f"the free energy is {min(measured):.4g} after {num_done} steps but {whose} is not "
            "finite. Where numbers overflow or underflow far out take functions that "
            "stay among logarithms, as torch.special.log_ndtr(x) for ndtr(x).log(), and logits in "
            f"the place of probabilities; or start narrower, with init_scale={init_scale / 10:g} "
            f"(it is {init_scale:g}), or narrow the priors, whose draws are the start. Or "
            "torch.where differentiates a branch not taken: keep its argument inside the domain, "
            f"as in torch.where(x > 0, x.clamp_min(1e-6).sqrt(), 0.0).{wider}"
        )
