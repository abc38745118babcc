"""List Viterbi: scores of the best paths of a hidden chain."""

import itertools

import numpy as np


def best_paths(
    observed: np.ndarray, count: int, start: np.ndarray, move: np.ndarray, emit: np.ndarray
) -> np.ndarray:
    """Log joint densities ``[count]``, falling: of every state the best ways there are kept."""
    states = range(len(start))
    lists = [[np.log(start[s] * emit[s, observed[0]])] for s in states]
    for x in observed[1:]:
        lists = [
            sorted(
                (v + np.log(move[r, s] * emit[s, x]) for r in states for v in lists[r]),
                reverse=True,
            )[:count]
            for s in states
        ]
    return np.array(sorted(itertools.chain(*lists), reverse=True)[:count])
