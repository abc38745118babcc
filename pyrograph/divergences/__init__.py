"""Minka's alpha-divergence between unnormalised measures, and projection by it."""

from pyrograph.divergences.alpha import (
    alpha_divergence,
    log_affinity,
    optimal_scale,
    scale_free_divergence,
)
from pyrograph.divergences.alpha_projection import alpha_project, local_minima
from pyrograph.divergences.families import FullyFactorised, Gaussian1D, project
from pyrograph.divergences.measures import Discrete, Factorised, Gaussian, Gridded

__all__ = [
    "Discrete",
    "Factorised",
    "FullyFactorised",
    "Gaussian",
    "Gaussian1D",
    "Gridded",
    "alpha_divergence",
    "alpha_project",
    "local_minima",
    "log_affinity",
    "optimal_scale",
    "project",
    "scale_free_divergence",
]
