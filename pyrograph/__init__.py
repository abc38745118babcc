"""pyrograph: graph-structured inference for Pyro programs."""

from pyrograph.graph import FactorGraph, FactorGroup, trace_graph

__all__ = ["FactorGraph", "FactorGroup", "trace_graph"]
