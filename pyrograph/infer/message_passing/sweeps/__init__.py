"""Sweeps: new messages from all factors, in the order of a schedule.

`sweeper.py` chooses: `sweep.py` for any network, `turns.py` by colours of nodes, `plain*.py` in
plain numbers where these fit; `tree.py` is exact on forests of pairs.
"""
