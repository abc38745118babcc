"""From a factor graph to what sweeps go over: families of nodes and blocks of like factors.

`build.py` reads the graph, by `discrete_factors.py` and `local_factors.py`; `network.py` is what
comes of it, `messages.py` the arithmetic on its messages, `evidence.py` what they say of Z.
"""
