"""Probabilistic circuits and expectations of kernels under them.

Rooms: :mod:`.structure` has a circuit's parts, :mod:`.expectations` kernels, Stein discrepancies
and ratios, :mod:`.compiling` makes circuits of Pyro programs, :mod:`.learning` of data. What one
does with a circuit by itself stands here.
"""

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.collapsed_posterior import CollapsedPosterior
from pyrograph.circuits.compiling.compile import compile_graph
from pyrograph.circuits.draw import draw_circuit
from pyrograph.circuits.expectations.expected import compatible, expected_kernel, squared_mmd
from pyrograph.circuits.expectations.kernels import RBF, Delta, Hamming, Kernel, KernelCircuit
from pyrograph.circuits.expectations.stein import kdsd, stein_gram
from pyrograph.circuits.learning import fit_parameters, learn_chow_liu, learn_strudel
from pyrograph.circuits.models import (
    fully_factorised,
    hidden_markov_model,
    mixture,
    naive_bayes,
    tree_network,
)
from pyrograph.circuits.psdd import read_psdd
from pyrograph.circuits.regression import ExpectedSVR
from pyrograph.circuits.text import read_circuit, write_circuit

__all__ = [
    "RBF",
    "Circuit",
    "CollapsedPosterior",
    "Delta",
    "ExpectedSVR",
    "Hamming",
    "Kernel",
    "KernelCircuit",
    "compatible",
    "compile_graph",
    "draw_circuit",
    "expected_kernel",
    "fit_parameters",
    "fully_factorised",
    "hidden_markov_model",
    "kdsd",
    "learn_chow_liu",
    "learn_strudel",
    "mixture",
    "naive_bayes",
    "read_circuit",
    "read_psdd",
    "squared_mmd",
    "stein_gram",
    "tree_network",
    "write_circuit",
]
