"""Lip cancer in the 56 districts of Scotland 1975 - 1980, and the model of Besag, York & Mollie.

    observed_i ~ Poisson(expected_i exp(eta_i))
    eta_i ~ N(b_0 + b_1 outdoors_i / 10 + sigma z_i, tau^2)
    p(z) ~ exp(-1/2 sum_{i ~ j} (z_i - z_j)^2 - WEAK / 2 sum_i z_i^2)
    b ~ N(0, 2^2),   log sigma ~ N(log 0.5, 0.5^2),   log tau ~ N(log 0.2, 0.5^2)

eta is the log relative risk: an intrinsic autoregression over the map, made proper by a weak
term, and an independent part. ``outdoors`` is the share (per cent) of the work force in
agriculture, fishing and forestry, ``expected`` the cases that age and sex alone explain.

``reference/scotland.csv``: the data are those of the GeoBUGS manual as in the Stan case study
"Spatial models in Stan: intrinsic auto-regressive models" (stan-dev/example-models,
knitr/car-iar-poisson/carlin_data.R). 56 districts, 536 cases; the symmetric version of the
neighbours with 264 entries, 132 pairs, that ties the three island districts to the mainland, so
that the map is connected (the version without island links has 234 entries).

Source: Clayton & Kaldor (1987); Besag, York & Mollie (1991).
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

FOLDER = Path(__file__).parent / "reference"
COEFFICIENTS = 2.0
WEAK = 0.01
#: Prior median and standard deviation of the logarithm, of sigma and tau.
SIGMA, TAU = (0.5, 0.5), (0.2, 0.5)


@dataclass(frozen=True)
class LipCancer:
    """Shapes: ``names`` 56; ``observed``, ``expected``, ``outdoors`` ``[56]``; ``pairs``
    ``[132, 2]``, every pair of neighbours once."""

    names: tuple[str, ...]
    observed: Tensor
    expected: Tensor
    outdoors: Tensor
    pairs: Tensor


def lip_cancer() -> LipCancer:
    """Read ``reference/scotland.csv``."""
    with (FOLDER / "scotland.csv").open() as file:
        rows = list(csv.DictReader(file))
    links = [(i, int(j) - 1) for i, row in enumerate(rows) for j in row["neighbours"].split()]

    def column(name: str) -> Tensor:
        return torch.tensor([float(row[name]) for row in rows])

    return LipCancer(
        tuple(row["district"] for row in rows),
        column("observed"),
        column("expected"),
        column("percent_outdoors"),
        torch.tensor([(i, j) for i, j in links if i < j]),
    )


def one_field(data: LipCancer, scales: tuple[float, float] | None = None) -> None:
    """The model with coefficients and map as one node ``field`` of 58 numbers, whose belief has a
    full covariance; with ``scales`` (sigma, tau) every factor but the counts is Gaussian and the
    graph a star."""
    n = len(data.observed)
    # N(0, 1 / WEAK) on the map's part is the weak term; the coefficients are the first two
    width = torch.cat([torch.full((2,), COEFFICIENTS), torch.full((n,), WEAK**-0.5)])
    field = pyro.sample("field", dist.Normal(torch.zeros(n + 2), width).to_event(1))
    b, z = field[:2], field[2:]
    gap = z[data.pairs[:, 0]] - z[data.pairs[:, 1]]
    pyro.factor("neighbours", -0.5 * gap.square().sum())
    counts(data, b[0] + b[1] * data.outdoors / 10, z, scales)


def node_per_district(data: LipCancer, scales: tuple[float, float] | None = None) -> None:
    """The same density with a node for every district: beliefs forget how districts covary, and
    the map's cycles are those of the graph."""
    b = pyro.sample("b", dist.Normal(0.0, COEFFICIENTS).expand([2]).to_event(1))
    with pyro.plate("districts", len(data.observed)):
        z = pyro.sample("z", dist.Normal(0.0, WEAK**-0.5))
    with pyro.plate("pairs", len(data.pairs)):
        gap = z[data.pairs[:, 0]] - z[data.pairs[:, 1]]
        pyro.factor("neighbours", -0.5 * gap.square())
    counts(data, b[0] + b[1] * data.outdoors / 10, z, scales)


def counts(
    data: LipCancer, baseline: Tensor, z: Tensor, scales: tuple[float, float] | None
) -> None:
    """What both programs share: scales (latent if not given), log risks and counts."""
    if scales is None:
        sigma, tau = (
            pyro.sample(f"log_{name}", dist.Normal(math.log(median), width)).exp()
            for name, (median, width) in (("sigma", SIGMA), ("tau", TAU))
        )
    else:
        sigma, tau = (torch.tensor(value) for value in scales)
    with pyro.plate("risks", len(data.observed)):
        eta = pyro.sample("eta", dist.Normal(baseline + sigma * z, tau))
        pyro.sample("observed", dist.Poisson(data.expected * eta.exp()), obs=data.observed)
