"""pyrograph: graph-structured inference for Pyro programs.

import pyrograph as pg

graph = pg.trace_graph(model, (data,))                       # element-level factor graph
posterior = pg.fit(model, (data,), infer=pg.GraphicalSVGD)   # inference on it
"""

from pyrograph import (
    datasets,
    diagnostics,
    distributions,
    divergences,
    errors,
    infer,
    kernels,
    models,
)
from pyrograph.graph import FactorGraph, FactorGroup, trace_graph
from pyrograph.infer import (
    BP,
    DPVI,
    EP,
    TRW,
    VMP,
    AutoQBethe,
    FractionalBP,
    GraphicalSVGD,
    Langevin,
    PowerEP,
    QBethe,
    SequentialDPVI,
    fit,
)
from pyrograph.posterior import Posterior

__version__ = "0.1.0"

__all__ = [
    "BP",
    "DPVI",
    "EP",
    "TRW",
    "VMP",
    "AutoQBethe",
    "FactorGraph",
    "FactorGroup",
    "FractionalBP",
    "GraphicalSVGD",
    "Langevin",
    "Posterior",
    "PowerEP",
    "QBethe",
    "SequentialDPVI",
    "datasets",
    "diagnostics",
    "distributions",
    "divergences",
    "errors",
    "fit",
    "infer",
    "kernels",
    "models",
    "trace_graph",
]
