"""What factors cost on grids: numbers that their programs compute at all points."""

from __future__ import annotations

from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.quadrature.tilted import POINTS


def numbers_in_states(local: LocalDensity, gridded: int) -> int:
    """Of factors in all states of their labels, on grids over ``gridded`` numbers; 0 where no grid
    serves so many."""
    return POINTS.get(gridded, 0) ** gridded * local.num_states * local.program.num_numbers


def numbers_read(local: LocalDensity) -> int:
    """Of factors in one state, on grids over all that is read."""
    count = int(local.num_read.max())
    return POINTS.get(count, POINTS[max(POINTS)]) ** count * local.program.num_numbers
