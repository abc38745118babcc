"""pyrograph: graph-structured inference for Pyro programs.

import pyrograph as pg

graph = pg.trace_graph(model, (data,))                       # element-level factor graph
posterior = pg.fit(model, (data,), infer=pg.GraphicalSVGD)   # inference on it
"""

from pyrograph import datasets, diagnostics, errors, infer, kernels
from pyrograph.graph import FactorGraph, FactorGroup, trace_graph
from pyrograph.infer import GraphicalSVGD, Langevin, fit
from pyrograph.posterior import Posterior

__version__ = "0.1.0"

__all__ = [
    "FactorGraph",
    "FactorGroup",
    "GraphicalSVGD",
    "Langevin",
    "Posterior",
    "datasets",
    "diagnostics",
    "errors",
    "fit",
    "infer",
    "kernels",
    "trace_graph",
]
