"""The element-level factor graph of a Pyro program and its views."""

from pyrograph.graph.factor_graph import FactorGraph, trace_graph
from pyrograph.graph.factor_group import FactorGroup

__all__ = ["FactorGraph", "FactorGroup", "trace_graph"]
