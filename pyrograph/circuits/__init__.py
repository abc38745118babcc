"""Probabilistic circuits and expectations of kernels under them."""

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.collapsed_posterior import CollapsedPosterior
from pyrograph.circuits.compile import compile_graph
from pyrograph.circuits.expected import compatible, expected_kernel, squared_mmd
from pyrograph.circuits.kernels import RBF, Delta, Hamming, Kernel, KernelCircuit
from pyrograph.circuits.regression import ExpectedSVR
from pyrograph.circuits.stein import kdsd, stein_gram

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
    "expected_kernel",
    "kdsd",
    "squared_mmd",
    "stein_gram",
]
