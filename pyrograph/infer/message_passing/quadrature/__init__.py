"""Masses and moments of tilted distributions f(u)^alpha g(u), on points that follow them.

`tilted.py` is the way in, `conditional.py` where some numbers are integrated in closed form;
`grids.py` and `boxes.py` lay points, `surroundings.py` has what cavities make of u.
"""
