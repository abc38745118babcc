"""Discrete Pyro programs as circuits: an order of elimination, and the circuit that it leaves.

`compile.py` is the way in, `elimination.py` finds the order, `held.py` serves programs that are too
wide for one circuit.
"""
