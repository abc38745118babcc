"""Circuits learnt from data."""

from pyrograph.circuits.learning.chow_liu import learn_chow_liu
from pyrograph.circuits.learning.em import fit_parameters
from pyrograph.circuits.learning.strudel import learn_strudel

__all__ = ["fit_parameters", "learn_chow_liu", "learn_strudel"]
