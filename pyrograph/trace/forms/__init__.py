"""What local functions are as functions, read off their steps.

Degrees as polynomials (`degree.py`), which combinations of their leaves they depend on
(`combinations.py`, `reach.py`, `cancelled.py`), sums of exponentials (`exponentials.py`),
polynomials between kinks (`pieces.py`), and what like functions share (`alike.py`).
"""
