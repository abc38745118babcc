"""Discrete particle variational inference.

`engine.py` starts a search and hands its particles over: `state_search.py` of joint states of a
graph's nodes, or `label_search.py` of labellings. `sequential.py` lets nodes or labels come in one
by one before, through `node_filter.py` or `label_filter.py`.
"""

from pyrograph.infer.dpvi.engine import DPVI
from pyrograph.infer.dpvi.sequential import SequentialDPVI

__all__ = ["DPVI", "SequentialDPVI"]
