"""Messages between binary nodes as log odds, against sums in the log domain."""

import pytest
import torch

from pyrograph.infer.message_passing.discrete.binary import RANGE, BinaryFactors


def reference(log_table: torch.Tensor, alpha: torch.Tensor, cavity: torch.Tensor) -> torch.Tensor:
    """Log odds of both messages, from the table raised to alpha and the cavities ``[2 E]``."""
    t, (i, j) = alpha.view(-1, 1, 1) * log_table, cavity.view(2, -1)
    to_i = torch.logaddexp(t[:, 1, 0], t[:, 1, 1] + j) - torch.logaddexp(t[:, 0, 0], t[:, 0, 1] + j)
    to_j = torch.logaddexp(t[:, 0, 1], t[:, 1, 1] + i) - torch.logaddexp(t[:, 0, 0], t[:, 1, 0] + i)
    return torch.cat([to_i, to_j]) / alpha.repeat(2)


def block_and_cavity(count: int, alpha: float, spread: float, dtype: torch.dtype):
    torch.manual_seed(0)
    table = (RANGE - 0.1) / max(1.0, abs(alpha)) * torch.rand(count, 2, 2, dtype=torch.float64)
    rows = list(torch.arange(2 * count).view(2, -1))
    powers = torch.full((count,), alpha, dtype=dtype)
    cavity = spread * torch.randn(2 * count, dtype=torch.float64)
    return BinaryFactors(table.to(dtype), powers, rows, 0), cavity.to(dtype)


@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.0, -1.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 2e-13)])
def test_updates_for_tables_and_cavities_of_any_allowed_size(alpha, dtype, tolerance):
    block, cavity = block_and_cavity(20_000, alpha, 100.0, dtype)
    (new,), _ = block.update([torch.zeros_like(cavity)], [cavity])
    expected = reference(block.log_table.double(), block.alpha.double(), cavity.double())
    torch.testing.assert_close(new.double(), expected, atol=tolerance, rtol=1e-6)


def test_updates_have_the_derivatives_of_the_sums():
    block, cavity = block_and_cavity(5, 0.5, 3.0, torch.float64)
    sent = torch.randn(10, dtype=torch.float64)

    def update(cavity, sent):
        return block.update([sent], [cavity])[0][0]

    def summed(cavity, sent):
        return reference(block.log_table, block.alpha, cavity - block.alpha.repeat(2) * sent)

    found = torch.autograd.functional.jacobian(update, (cavity, sent))
    expected = torch.autograd.functional.jacobian(summed, (cavity, sent))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
