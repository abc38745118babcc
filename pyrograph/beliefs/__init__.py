"""What an approximation is made of."""

from pyrograph.beliefs.conjugate import Conjugate, LogGamma, LogitBeta
from pyrograph.beliefs.gaussian import Gaussian
from pyrograph.beliefs.natural import Natural

__all__ = ["Conjugate", "Gaussian", "LogGamma", "LogitBeta", "Natural"]
