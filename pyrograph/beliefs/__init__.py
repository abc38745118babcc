"""What an approximation is made of."""

from pyrograph.beliefs.conjugate import Conjugate, LogGamma
from pyrograph.beliefs.dirichlet import LogDirichlet, LogitBeta
from pyrograph.beliefs.gaussian import Gaussian
from pyrograph.beliefs.joint_forest import JointForest
from pyrograph.beliefs.joint_mixture import Categoricals, JointMixture, Normals
from pyrograph.beliefs.natural import Natural

__all__ = [
    "Categoricals",
    "Conjugate",
    "Gaussian",
    "JointForest",
    "JointMixture",
    "LogDirichlet",
    "LogGamma",
    "LogitBeta",
    "Natural",
    "Normals",
]
