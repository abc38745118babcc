"""Messages of factors with continuous nodes, a block of like factors each.

`quadratic.py` for Gaussian functions, `conjugate_factors.py` for conjugate ones, and for all others
`quadrature_factors.py`, at alpha = 0 by the forms that `expected_logs.py` chooses from.
"""
