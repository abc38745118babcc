"""Quadratic functions about where they are flat. Truth: by hand."""

import pytest
import torch

from pyrograph.infer.qbethe.quadratic import Expanded


class Local:
    """A function of one number for each of two factors: a parabola, and a line that is written as a
    difference of parabolas, whose curvature is rounding."""

    @staticmethod
    def at_scalars(values):
        x = values[0]
        line = (x[:, 1] + 1e6) ** 2 - x[:, 1] ** 2
        return torch.stack([-3.0 * (x[:, 0] - 2.0) ** 2, line], 1)


def test_a_curvature_that_is_rounding_sends_no_centre_away():
    centre = torch.tensor([0.3, 0.7], dtype=torch.float64)
    found = Expanded.of(Local, centre, torch.ones_like(centre))
    torch.testing.assert_close(found.centre[0], torch.tensor(2.0, dtype=torch.float64))
    mean = torch.tensor([0.5, -2.0], dtype=torch.float64).view(1, 1, 1, 2)
    value, by_mean, _ = found(mean, torch.full_like(mean, 0.25))
    expected = -3.0 * (1.5**2 + 0.25) + 2e6 * -2.0 + 1e12
    assert float(value) == pytest.approx(expected, rel=1e-14)
    assert by_mean.flatten().tolist() == pytest.approx([9.0, 2e6], rel=1e-9)
