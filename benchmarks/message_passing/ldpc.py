"""Does belief propagation decode a low-density parity-check code as theory says?

    python benchmarks/message_passing/ldpc.py [--quick] [--threads 1]

A regular Gallager code, every bit in 3 checks and every check on 6 bits (rate 1/2), of 6000 bits,
sent over a Gaussian channel: the program is a Bernoulli plate with the channel's log odds and one
``pyro.factor`` per check, whose parity is found (no tables). Decoded by pg.BP, 100 sweeps, bits
cut at 1/2. As the code and the channel are symmetric, the word of zeros stands for all.

Finding to compare with: density evolution (Richardson & Urbanke 2001) puts the threshold of these
codes at sigma = .881, that is 1.10 dB: far below it almost every bit is right, above it (less
signal) errors stay. Uncoded bits err with probability Q(sqrt(2 Eb / N0)).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from criteria import arguments, figure_path, report
from scipy.stats import norm
from torch import Tensor

import pyrograph as pg

RATE = 0.5
BITS, IN_CHECKS, ON_BITS = 6000, 3, 6
#: Eb / N0 in dB; words of each.
LEVELS, WORDS = (0.6, 0.9, 1.1, 1.3, 1.5, 1.8, 2.1), 10
THRESHOLD = 1.10


def regular_code(num_bits: int, generator: np.random.Generator) -> Tensor:
    """``[checks, ON_BITS]`` bits of every check; sockets are paired at random, and swapped until
    no check holds a bit twice."""
    sockets = generator.permutation(np.repeat(np.arange(num_bits), IN_CHECKS))
    checks = sockets.reshape(-1, ON_BITS)
    while True:
        ordered = np.sort(checks, 1)
        twice = (ordered[:, 1:] == ordered[:, :-1]).any(1).nonzero()[0]
        if not len(twice):
            return torch.from_numpy(ordered)
        for row in twice:
            other, column = generator.integers(len(checks)), generator.integers(ON_BITS)
            mine = generator.integers(ON_BITS)
            checks[row, mine], checks[other, column] = checks[other, column], checks[row, mine]


def code(log_odds: Tensor, checks: Tensor) -> None:
    """Bits under the channel's log odds of a one, and checks that want even parity."""
    with pyro.plate("bits", len(log_odds)):
        x = pyro.sample("x", dist.Bernoulli(logits=log_odds))
    with pyro.plate("checks", len(checks)):
        odd = torch.remainder(x[checks].sum(-1), 2) > 0.5
        pyro.factor("parity", torch.where(odd, -torch.inf, 0.0))


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the curve and draw it."""
    args = arguments(__doc__, argv)
    num_bits, words = (600, 2) if args.quick else (BITS, WORDS)
    generator = np.random.default_rng(0)
    checks = regular_code(num_bits, generator)
    print(f"{num_bits} bits, {len(checks)} checks, {words} words a level")
    print(f"{'Eb/N0':>6s}{'uncoded':>10s}{'decoded':>10s}{'words right':>13s}{'sweeps':>8s}")
    curve = []
    for level in LEVELS:
        variance = 1 / (2 * RATE * 10 ** (level / 10))
        errors, right, sweeps = 0, 0, 0
        for _ in range(words):
            received = 1 + variance**0.5 * torch.from_numpy(generator.standard_normal(num_bits))
            log_odds = -2 * received / variance  # of a one, sent as -1
            engine = pg.BP(code, num_steps=100, damping=0.0, tol=1e-3, progress=False)
            engine.setup(log_odds, checks)
            while engine.num_done < engine.num_steps and not engine.converged:
                engine.step()
            wrong = int((engine.posterior().marginal("x").probs[:, 1] > 0.5).sum())
            errors, right, sweeps = errors + wrong, right + (wrong == 0), sweeps + engine.num_done
        rate = errors / (words * num_bits)
        plain = float(norm.sf((2 * 10 ** (level / 10)) ** 0.5))
        curve.append((level, plain, rate))
        print(f"{level:6.1f}{plain:10.4f}{rate:10.5f}{right:7d} of {words}{sweeps / words:8.0f}")
    levels, plain, decoded = np.array(curve).T
    figure, axes = plt.subplots(figsize=(5, 3.6), layout="constrained")
    axes.semilogy(levels, plain, "k--", label="uncoded")
    axes.semilogy(levels, np.maximum(decoded, 0.5 / (words * num_bits)), "o-", label="pg.BP")
    axes.axvline(THRESHOLD, color="grey", linewidth=0.8, label="threshold of infinite codes")
    axes.set(xlabel="Eb / N0, dB", ylabel="share of wrong bits", title="Gallager code (3, 6)")
    axes.legend()
    figure.savefig(figure_path("ldpc", args.quick), dpi=90)
    low, high = decoded[levels < THRESHOLD - 0.15], decoded[levels > THRESHOLD + 0.35]
    return all(
        [
            report("above the noise of the threshold bits stay wrong", low.min() > 0.01, f"{low}"),
            report("well below it hardly any", high.max() < 1e-4, f"{high}"),
            report("the curve falls", bool((np.diff(decoded) <= 1e-3).all()), f"{decoded}"),
        ]
    )


if __name__ == "__main__":
    sys.exit(not main())
