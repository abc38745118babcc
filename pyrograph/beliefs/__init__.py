"""What an approximation is made of."""

from pyrograph.beliefs.gaussian import Gaussian

__all__ = ["Gaussian"]
