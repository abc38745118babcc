"""Medians of alternating runs, so that a drift of the machine meets both sides alike."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable


def alternate(first: Callable, second: Callable, runs: int = 9, warmup: int = 2):
    """Median seconds of both, measured in turn, and the median of their ratios first/second."""
    pairs = []
    for k in range(warmup + runs):
        times = []
        for run in (first, second):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        if k >= warmup:
            pairs.append(times)
    a, b = zip(*pairs, strict=True)
    ratio = statistics.median(x / y for x, y in pairs)
    return statistics.median(a), statistics.median(b), ratio


def peak_gb() -> float:
    """Largest resident memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
