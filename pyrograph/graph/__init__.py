"""The element-level factor graph of a Pyro program and its views."""

from pyrograph.graph.factor_graph import FactorGraph
from pyrograph.graph.factor_group import FactorGroup
from pyrograph.graph.tracing import trace_graph

__all__ = ["FactorGraph", "FactorGroup", "trace_graph"]
