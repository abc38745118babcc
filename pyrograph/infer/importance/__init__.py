"""Importance sampling without the density of the proposal: weights by a Stein discrepancy."""

from pyrograph.infer.importance.bbis import BBIS
from pyrograph.infer.importance.collapsed_bbis import CollapsedBBIS
from pyrograph.infer.importance.gibbs import Gibbs
from pyrograph.infer.importance.simplex_gradient import simplex_weights
from pyrograph.infer.importance.simplex_qp import SimplexWeights, minimise_on_simplex

__all__ = [
    "BBIS",
    "CollapsedBBIS",
    "Gibbs",
    "SimplexWeights",
    "minimise_on_simplex",
    "simplex_weights",
]
