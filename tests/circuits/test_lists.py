"""Python's floats are double: tables given as lists are not rounded to single precision."""

import pytest
import torch

from pyrograph import circuits as C


@pytest.fixture(autouse=True)
def _as_torch_comes():
    """Single is torch's own default, in which it reads lists of floats."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


HALF = C.fully_factorised([torch.tensor([0.5, 0.5], dtype=torch.float64)])
FLIP = [[0.1, 0.9], [0.3, 0.7]]


def kernel_entry() -> float:
    kernel = C.KernelCircuit([{"type": "input", "var": 0, "kernel": [[1.0, 0.1], [0.1, 1.0]]}])
    return kernel.gram(torch.tensor([[0.0]]), torch.tensor([[1.0]]), [2]).item()


def at_time(t: int) -> float:
    return C.hidden_markov_model([0.1, 0.9], FLIP, FLIP, 2).marginals()[t][0].item()


@pytest.mark.parametrize(
    ("found", "truth"),
    [
        (lambda: C.mixture([HALF, HALF], [0.3, 0.9]).log_mass().exp().item(), 1.2),
        (lambda: C.fully_factorised([[0.1, 0.2, 0.7]]).marginals()[0][2].item(), 0.7),
        (lambda: C.naive_bayes([0.1, 0.9], [FLIP]).marginals()[1][0].item(), 0.28),
        (lambda: at_time(0), 0.1 * 0.1 + 0.9 * 0.3),
        # p(z_1 = 0) = 0.28
        (lambda: at_time(1), 0.28 * 0.1 + 0.72 * 0.3),
        (kernel_entry, 0.1),
    ],
    ids=["mixture", "factorised", "naive Bayes", "hidden chain", "transition", "kernel"],
)
def test_lists_of_floats_are_read_in_double_precision(found, truth):
    assert found() == pytest.approx(truth, rel=1e-14)


def test_iterators_of_children_and_numbers_are_gone_through_once():
    nodes = [
        {"type": "input", "var": 0, "probs": (p for p in (0.3, 0.7))},
        {"type": "input", "var": 1, "probs": iter([0.6, 0.4])},
        {"type": "product", "children": map(int, "01")},
        {"type": "product", "children": (i for i in (0, 1))},
        {"type": "sum", "children": iter((2, 3)), "weights": (w for w in (0.25, 0.75))},
    ]
    circuit = C.Circuit.from_nodes(nodes)
    assert float(circuit.log_prob(torch.tensor([1, 0])).exp()) == pytest.approx(0.42)
