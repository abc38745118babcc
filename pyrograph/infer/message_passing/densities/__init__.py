"""What factors of continuous nodes are as functions, and of which combinations of numbers.

`reduction.py` puts the rest of the room together; `checked.py` evaluates and refuses what is no
number.
"""
