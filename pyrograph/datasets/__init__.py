"""Loaders of small data sets and models, simulated ones embedded, real ones under
``$PYROGRAPH_DATA``, and a writer of discrete factor graphs."""

from pyrograph.datasets.bayesnets import BayesianNetwork, bayesian_network
from pyrograph.datasets.clustering import Animals, Spikes, Text, alice, animals, spikes
from pyrograph.datasets.discrete_model import DiscreteModel
from pyrograph.datasets.flow import OpticalFlow, optical_flow
from pyrograph.datasets.images import NoisyImage, denoise
from pyrograph.datasets.prices import CrowdPrices, crowd_prices
from pyrograph.datasets.regression import BinaryRegression, SupportVectors, binary_regression
from pyrograph.datasets.root import data_root
from pyrograph.datasets.sensors import RangingNetwork, simulated_sensors, uwb_network
from pyrograph.datasets.tabular import tabular
from pyrograph.datasets.uai import UAIReference, read_uai, uai_reference
from pyrograph.datasets.uai_writer import write_uai

__all__ = [
    "Animals",
    "BayesianNetwork",
    "BinaryRegression",
    "CrowdPrices",
    "DiscreteModel",
    "NoisyImage",
    "OpticalFlow",
    "RangingNetwork",
    "Spikes",
    "SupportVectors",
    "Text",
    "UAIReference",
    "alice",
    "animals",
    "bayesian_network",
    "binary_regression",
    "crowd_prices",
    "data_root",
    "denoise",
    "optical_flow",
    "read_uai",
    "simulated_sensors",
    "spikes",
    "tabular",
    "uai_reference",
    "uwb_network",
    "write_uai",
]
