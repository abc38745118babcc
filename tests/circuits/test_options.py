"""Values that are no numbers, counts or circuits are refused by name, not rounded or passed on."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.circuits import (
    RBF,
    Circuit,
    ExpectedSVR,
    KernelCircuit,
    compatible,
    compile_graph,
    fit_parameters,
    fully_factorised,
    hidden_markov_model,
    kdsd,
    learn_chow_liu,
    mixture,
    squared_mmd,
    stein_gram,
    tree_network,
)
from pyrograph.circuits.expectations.kernels import Hamming
from pyrograph.errors import InvalidCircuit, OptionError

PRIOR = torch.tensor([0.2, 0.8], dtype=torch.float64)
TABLE = torch.tensor([[0.3, 0.7], [0.6, 0.4]], dtype=torch.float64)


def coin():
    pyro.sample("x", dist.Bernoulli(0.3))


def svr(dual_coef, circuit):
    return ExpectedSVR(torch.zeros(2, 2), dual_coef, 0.0, RBF(1.0), circuit)


def rows():
    return torch.tensor([[0, 1], [1, 0], [1, 1]])


def one():
    return fully_factorised([PRIOR, PRIOR])


REFUSED = {
    "cards": (lambda: learn_chow_liu(rows(), cards=[2, 2.5]), r"cards\[1\]=2.5"),
    "cards of text": (lambda: learn_chow_liu(rows(), cards="ab"), r"cards\[0\]='a'"),
    "smoothing": (lambda: learn_chow_liu(rows(), smoothing="a"), "smoothing='a'"),
    "smoothing of EM": (lambda: fit_parameters(one(), rows(), smoothing="a"), "smoothing='a'"),
    "tol": (lambda: fit_parameters(one(), rows(), tol=math.nan), "tol=nan"),
    "num_steps": (lambda: fit_parameters(one(), rows(), num_steps=1.5), "num_steps=1.5"),
    "steps of text": (lambda: fit_parameters(one(), rows(), num_steps="a"), "num_steps='a'"),
    "prior": (lambda: fit_parameters(one(), rows(), prior=3), "3 is no circuit"),
    "half a parent": (lambda: tree_network([None, 0.5], [PRIOR, TABLE]), r"parents\[1\]=0.5"),
    "named parent": (lambda: tree_network(["a"], [PRIOR]), r"parents\[0\]='a'"),
    "length": (lambda: hidden_markov_model(PRIOR, TABLE, TABLE, 1.5), "length=1.5"),
    "table": (lambda: fully_factorised("ab"), r"probs\[0\] is 'a'"),
    "part": (lambda: mixture([one(), 3], [1.0, 1.0]), "3 is no circuit"),
    "compatible": (lambda: compatible(one(), 3), "3 is no circuit"),
    "cards of a number": (lambda: learn_chow_liu(rows(), cards=3), "cards=3"),
    "code": (lambda: learn_chow_liu(torch.tensor([[1e30, 0.0]])), r"value 1e\+30 of variable 0"),
    "code and cards": (lambda: learn_chow_liu(1e18 * rows(), cards=[2, 2]), "value 1e\\+18"),
    "coefficient": (lambda: svr(torch.tensor([math.nan, 1.0]), one()), "dual_coef"),
    "circuit of a regression": (lambda: svr(PRIOR, None), "None is no circuit"),
    "Stein target": (lambda: stein_gram(coin, rows()), "is no circuit"),
    "kdsd": (lambda: kdsd(3, one()), "3 is no circuit"),
    "kdsd target": (lambda: kdsd(one(), 3), "3 is no circuit"),
    "mmd": (lambda: squared_mmd(one(), None, Hamming()), "None is no circuit"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused_by_name(name):
    make, text = REFUSED[name]
    with pytest.raises(OptionError, match=text):
        make()


@pytest.mark.parametrize("budget", [math.nan, "a", None])
def test_a_budget_that_is_no_number_is_refused(budget):
    with pytest.raises(OptionError, match="max_edges"):
        compile_graph(pg.trace_graph(coin), max_edges=budget)


def test_whole_numbers_of_other_types_are_taken():
    x = torch.tensor([[0, 1], [1, -1]])
    truth = PRIOR[0] * TABLE[0, 1]
    for parents in ([None, 0], torch.tensor([-1, 0]), [-1, 0.0]):
        p = tree_network(parents, [PRIOR, TABLE])
        assert_close(p.log_prob(x).exp(), torch.stack([truth, PRIOR[1]]))
    assert learn_chow_liu(rows(), cards=torch.tensor([2, 3])).cards == (2, 3)
    compile_graph(pg.trace_graph(coin), max_edges=math.inf)


def pair():
    x = pyro.sample("x", dist.Bernoulli(0.3))
    pyro.sample("y", dist.Bernoulli(0.2 + 0.5 * x))


def test_an_order_may_be_any_iterable_of_labels():
    graph = pg.trace_graph(pair)
    for order in (iter(graph.nodes), dict.fromkeys(graph.nodes), tuple(graph.nodes)):
        circuit = compile_graph(graph, order=order)
        # p(y = 1) = 0.7 0.2 + 0.3 0.7
        assert float(circuit.marginals()[1][1]) == pytest.approx(0.35)


def test_labels_that_are_lists_are_refused():
    with pytest.raises(OptionError, match="node labels are tuples"):
        compile_graph(pg.trace_graph(pair), order=[["x", ()], ["y", ()]])


def test_whole_floats_number_the_nodes_of_a_kernel_circuit():
    """k = 0.25 exp(-[x_0 != y_0]) exp(-[x_1 != y_1]) + 0.75 exp(-2 [x_0 != y_0])."""
    flat = torch.ones(2, 2)
    nodes = [
        {"type": "input", "var": 0.0, "kernel": Hamming(1.0)},
        {"type": "input", "var": 1.0, "kernel": Hamming(1.0)},
        {"type": "input", "var": 0.0, "kernel": Hamming(2.0)},
        {"type": "input", "var": 1.0, "kernel": flat},
        {"type": "product", "children": [0.0, 1.0]},
        {"type": "product", "children": [2.0, 3.0]},
        {"type": "sum", "children": [4.0, 5.0], "weights": [0.25, 0.75]},
    ]
    x = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    differ = (x[:, None] != x[None]).double()
    truth = 0.25 * (-differ.sum(2)).exp() + 0.75 * (-2 * differ[..., 0]).exp()
    assert torch.allclose(KernelCircuit(nodes).gram(x, x, [2, 2]), truth)


@pytest.mark.parametrize("nodes", [None, 3, "ab"])
def test_what_is_no_list_of_nodes_is_refused(nodes):
    with pytest.raises(InvalidCircuit, match="node"):
        Circuit.from_nodes(nodes)
    with pytest.raises(InvalidCircuit, match="no list of nodes"):
        KernelCircuit(nodes).gram(torch.zeros(1, 2), torch.zeros(1, 2), [2, 2])


class Scale:
    """Another library's, that knows kernels."""

    def __mul__(self, other):
        return "mine"

    __rmul__ = __mul__


@pytest.mark.parametrize("kernel", [Hamming(), RBF(1.0), Hamming() + RBF(1.0)])
def test_what_is_neither_kernel_nor_number_decides_itself_what_it_is_times_a_kernel(kernel):
    assert kernel * Scale() == Scale() * kernel == "mine"
    for other in (None, {}, object()):
        for product in (lambda o=other: kernel * o, lambda o=other: o * kernel):
            with pytest.raises(TypeError):
                product()
    for weight in (-1.0, math.inf, True, 1j, torch.ones(2), "2", [1.0]):
        with pytest.raises(OptionError, match="times a kernel"):
            kernel * weight
