"""pyrograph: graph-structured inference for Pyro programs.

import pyrograph as pg

graph = pg.trace_graph(model, (data,))                       # element-level factor graph
posterior = pg.fit(model, (data,), infer=pg.GraphicalSVGD)   # inference on it
"""

from pyrograph import (
    circuits,
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
    BBIS,
    BP,
    DPVI,
    EP,
    TRW,
    VMP,
    AutoQBethe,
    CollapsedBBIS,
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
    "BBIS",
    "BP",
    "DPVI",
    "EP",
    "TRW",
    "VMP",
    "AutoQBethe",
    "CollapsedBBIS",
    "FactorGraph",
    "FactorGroup",
    "FractionalBP",
    "GraphicalSVGD",
    "Langevin",
    "Posterior",
    "PowerEP",
    "QBethe",
    "SequentialDPVI",
    "circuits",
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
