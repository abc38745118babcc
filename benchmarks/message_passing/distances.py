"""How near does EP come on measured distances, and what does it cost beside NUTS?

    python benchmarks/message_passing/distances.py [--quick] [--threads 1]

Eight ultra-wideband radios in a room, three of which are anchors, by the tutorial's program: a wide
prior and one Gaussian factor for each measured distance, in two effective dimensions a ring of the
noise's width, which a tensor grid of Gauss-Hermite points falls between. Truth: importance sampling
from a heavy-tailed distribution about EP's beliefs, whose effective number of samples is printed.
NUTS is Pyro's.

Errors of means are |mean - truth| / sd, the largest of all coordinates; of sds, sd / truth - 1, the
one farthest from 0.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyro
import torch
from criteria import arguments, report
from pyro.infer import MCMC, NUTS
from torch import Tensor

import pyrograph as pg
from pyrograph.datasets import RangingNetwork, uwb_network

sys.path.append(str(Path(__file__).parents[2] / "tutorials"))
from sensor_localization import model

#: Degrees of freedom and width of the proposal's factors, in units of EP's deviations.
TAILS, WIDTH = 6.0, 1.3
#: Samples of the proposal, and draws of NUTS after as many of warm-up; ``--quick``.
SAMPLES, DRAWS = (400_000, 20_000), (1000, 20)
#: What EP may be off: of means, in sds; of sds; of log evidence.
MEAN, SD, EVIDENCE = 0.05, 0.1, 0.1


def log_density(net: RangingNetwork, x: Tensor) -> Tensor:
    """Of the model, by hand, at positions ``[N, n, 2]``."""

    def normal(value: Tensor, mean: Tensor, sd: Tensor | float) -> Tensor:
        sd = torch.as_tensor(sd).to(value)
        return -0.5 * ((value - mean) / sd) ** 2 - sd.log() - 0.5 * math.log(2 * math.pi)

    anchors = net.anchors.double()
    prior = normal(x, anchors.mean(0), 2 * anchors.std(0)).sum((-1, -2))
    links = (x[:, net.src] - x[:, net.dst]).norm(dim=-1)
    held = (x[:, net.anchor_src] - anchors[net.anchor_dst]).norm(dim=-1)
    seen = normal(net.range.double(), links, net.sigma).sum(-1)
    return prior + seen + normal(net.anchor_range.double(), held, net.sigma).sum(-1)


@dataclass(frozen=True)
class Found:
    """Means and sds of positions ``[n, 2]``, log evidence where it is known, and seconds."""

    mean: Tensor
    sd: Tensor
    log_evidence: float
    seconds: float


def by_engine(net: RangingNetwork, engine: type, **options) -> tuple[Found, pg.Posterior]:
    begin = time.perf_counter()
    posterior = pg.fit(model, (net,), infer=engine, progress=False, **options)
    x = posterior.marginal("x")
    evidence = posterior.log_evidence
    value = math.nan if evidence is None else float(evidence)
    return Found(x.mean, x.variance.sqrt(), value, time.perf_counter() - begin), posterior


def by_sampling(net: RangingNetwork, around: Found, count: int) -> tuple[Found, float]:
    """Importance sampling, and the effective number of samples."""
    begin = time.perf_counter()
    tails = torch.distributions.StudentT(torch.tensor(TAILS))
    z = tails.sample((count, *around.mean.shape))
    width = WIDTH * around.sd
    x = around.mean + width * z
    log_w = log_density(net, x) - (tails.log_prob(z) - width.log()).sum((-1, -2))
    share = log_w.softmax(0)[:, None, None]
    mean = (share * x).sum(0)
    sd = (share * (x - mean) ** 2).sum(0).sqrt()
    evidence = float(log_w.logsumexp(0)) - math.log(count)
    seconds = time.perf_counter() - begin
    return Found(mean, sd, evidence, seconds), 1 / float(share.square().sum())


def by_nuts(net: RangingNetwork, start: Tensor, draws: int) -> Found:
    begin = time.perf_counter()
    mcmc = MCMC(NUTS(model), draws, draws, {"x": start}, disable_progbar=True)
    mcmc.run(net)
    x = mcmc.get_samples()["x"]
    return Found(x.mean(0), x.std(0), math.nan, time.perf_counter() - begin)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(__doc__, argv)
    net = uwb_network()
    pyro.set_rng_seed(0)
    ep, posterior = by_engine(net, pg.EP, dtype=torch.float64)
    truth, effective = by_sampling(net, ep, SAMPLES[args.quick])
    found = {
        "EP": ep,
        "power EP 1/2": by_engine(net, pg.PowerEP, dtype=torch.float64)[0],
        "NUTS": by_nuts(net, ep.mean.float(), DRAWS[args.quick]),
    }
    print(f"{net.title}: {posterior.graph.num_factors} factors, {effective:.0f} effective samples")
    print(f"{'':28}{'mean off':>9}{'sd off':>8}{'log Z':>9}{'seconds':>9}")
    for name, one in found.items():
        mean, sd = off(one, truth)
        print(f"{name:28}{mean:9.3f}{sd:8.1%}{one.log_evidence:9.3f}{one.seconds:9.1f}")
    print(f"{'importance sampling':28}{'':17}{truth.log_evidence:9.3f}{truth.seconds:9.1f}")

    mean, sd = off(ep, truth)
    report("EP converges", posterior.converged, f"{len(posterior.history['residual'])} sweeps")
    report("EP's means", mean < MEAN, f"{mean:.3f} sd off (< {MEAN})")
    report("EP's sds", abs(sd) < SD, f"{sd:.1%} off (< {SD:.0%})")
    gap = ep.log_evidence - truth.log_evidence
    report("EP's evidence", abs(gap) < EVIDENCE, f"{gap:+.3f} off (< {EVIDENCE})")
    ratio = found["NUTS"].seconds / ep.seconds
    print(f"NUTS takes {ratio:.1f} times the time of EP")


def off(found: Found, truth: Found) -> tuple[float, float]:
    """Largest error of means, in sds, and the relative error of sds farthest from 0."""
    mean = ((found.mean - truth.mean) / truth.sd).abs().max()
    sd = (found.sd / truth.sd - 1).flatten()
    return float(mean), float(sd[sd.abs().argmax()])


if __name__ == "__main__":
    main()
