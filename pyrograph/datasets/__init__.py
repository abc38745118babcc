"""Loaders of small data sets, simulated ones embedded, real ones under ``$PYROGRAPH_DATA``."""

from pyrograph.datasets.bayesnets import BayesianNetwork, bayesian_network
from pyrograph.datasets.root import data_root
from pyrograph.datasets.sensors import RangingNetwork, simulated_sensors, uwb_network

__all__ = [
    "BayesianNetwork",
    "RangingNetwork",
    "bayesian_network",
    "data_root",
    "simulated_sensors",
    "uwb_network",
]
