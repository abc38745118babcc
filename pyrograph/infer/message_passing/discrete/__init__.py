"""Messages of factors of discrete nodes, a block of like factors each.

By tables (`slots.py`, `tables.py`), as odds of binary pairs, by differences of states; and of any
number of nodes without tables: parity, noisy or, counts. `noisy_or_values.py`, `count_values.py`
and what they use prove from a program's steps which factors are of such a form.
"""
