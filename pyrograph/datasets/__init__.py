"""Loaders of small data sets, simulated ones embedded, real ones under ``$PYROGRAPH_DATA``."""

from pyrograph.datasets.bayesnets import BayesianNetwork, bayesian_network
from pyrograph.datasets.prices import CrowdPrices, crowd_prices
from pyrograph.datasets.root import data_root
from pyrograph.datasets.sensors import RangingNetwork, simulated_sensors, uwb_network

__all__ = [
    "BayesianNetwork",
    "CrowdPrices",
    "RangingNetwork",
    "bayesian_network",
    "crowd_prices",
    "data_root",
    "simulated_sensors",
    "uwb_network",
]
