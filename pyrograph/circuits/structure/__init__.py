"""What a circuit is made of: units, their inputs, and how they break their variables up.

`units.py` and `leaves.py` have the parts, `layers.py` evaluates them, `regions.py`, `properties.py`
and `overlap.py` say which questions a circuit answers.
"""
