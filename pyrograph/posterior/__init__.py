"""What engines hand back."""

from pyrograph.posterior.guide import ParticleGuide
from pyrograph.posterior.particles import ParticlePosterior
from pyrograph.posterior.posterior import Posterior

__all__ = ["ParticleGuide", "ParticlePosterior", "Posterior"]
