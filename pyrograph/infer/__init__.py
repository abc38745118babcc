"""Engines: one algorithm per file."""

from pyrograph.infer.base import Engine
from pyrograph.infer.fit import fit
from pyrograph.infer.langevin import Langevin
from pyrograph.infer.optimizer import AdaGrad, Adam, RMSProp
from pyrograph.infer.particle import ParticleEngine
from pyrograph.infer.requires import Continuous
from pyrograph.infer.svgd import GraphicalSVGD

__all__ = [
    "AdaGrad",
    "Adam",
    "Continuous",
    "Engine",
    "GraphicalSVGD",
    "Langevin",
    "ParticleEngine",
    "RMSProp",
    "fit",
]
