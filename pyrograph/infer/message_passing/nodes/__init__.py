"""Nodes by the family of their belief, and messages added to it.

`families.py` has the beliefs, `basis.py` what factors read of a node, `log_values.py` the
arithmetic of log values of states.
"""
