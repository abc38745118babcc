"""DPVI on labellings: partitions and state sequences whose parameters are summed out.

`reading.py` makes a `labelled_program.py` of a program, `labelled.py` moves single labels against
statistics of clusters; `labelled_start.py` and `label_search.py` go to the best labellings, and
`label_filter.py` takes elements in one by one.
"""
