"""Engines: one algorithm per file."""

from pyrograph.infer.base import Engine
from pyrograph.infer.dpvi import DPVI, SequentialDPVI
from pyrograph.infer.fit import fit
from pyrograph.infer.importance import BBIS, CollapsedBBIS, Gibbs
from pyrograph.infer.langevin import Langevin
from pyrograph.infer.message_passing import (
    BP,
    EP,
    TRW,
    VMP,
    FractionalBP,
    MessagePassing,
    PowerEP,
)
from pyrograph.infer.optimizer import AdaGrad, Adam, RMSProp
from pyrograph.infer.particle import ParticleEngine
from pyrograph.infer.qbethe import AutoQBethe, QBethe
from pyrograph.infer.requires import Continuous, FiniteDiscrete, FiniteOrContinuous
from pyrograph.infer.svgd import GraphicalSVGD

__all__ = [
    "BBIS",
    "BP",
    "DPVI",
    "EP",
    "TRW",
    "VMP",
    "AdaGrad",
    "Adam",
    "AutoQBethe",
    "CollapsedBBIS",
    "Continuous",
    "Engine",
    "FiniteDiscrete",
    "FiniteOrContinuous",
    "FractionalBP",
    "Gibbs",
    "GraphicalSVGD",
    "Langevin",
    "MessagePassing",
    "ParticleEngine",
    "PowerEP",
    "QBethe",
    "RMSProp",
    "SequentialDPVI",
    "fit",
]
