"""What helps sweeps to a fixed point, and whether they would come back to it.

`settling.py` has it done: damping, acceleration, milder alphas, a start at the mode. The double
loop and Newton's method are for discrete networks, `stability.py` for what was found.
"""
