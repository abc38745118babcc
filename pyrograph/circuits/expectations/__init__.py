"""Expectations under circuits: of kernels under two of them, and of ratios.

`kernels.py` has the kernels, `expected.py` the recursion over pairs of units and `evidence.py` many
pieces of evidence at once; `scaling.py` and `sides.py` keep values within the range of numbers.
`stein.py` and `ratio.py` are what they are for.
"""
