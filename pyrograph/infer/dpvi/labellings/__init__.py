"""DPVI on labellings: partitions and state sequences whose parameters are summed out.

`labelled_program.py` reads the program, `labelled.py` moves single labels against statistics of
clusters, `labelled_start.py` and `label_search.py` are the way to the best labellings.
"""
