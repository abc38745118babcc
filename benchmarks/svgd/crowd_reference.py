"""Exact draws from the posterior of the crowdsourcing model, and NUTS beside them.

    python benchmarks/svgd/crowd_reference.py [--seeds 20] [--quick]

Given nu, all x and b are jointly Gaussian; given these, every nu_j is inverse gamma: the block
Gibbs sampler alternates between the two with no step size and no bias. The experiments measure
against its draws (seconds a dataset, any seed). This script asks whether they can be trusted: it
runs numpyro's NUTS on the same datasets, an independent implementation of the same program,
stores means and variances in ``reference/crowdsourcing.npz`` and prints how far the two samplers
are apart, in units of the Monte Carlo error. Needs the extra "peers".
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from crowdsourcing import PRIOR_SD, SCALE, SHAPE, Crowd, flat, simulated_crowd
from significance import arguments, report
from torch import Tensor

FILE = Path(__file__).parent / "reference" / "crowdsourcing.npz"
NUM_CHAINS, NUM_DRAWS = 40, 50


def exact_draws(
    crowd: Crowd, *, num_chains: int = NUM_CHAINS, num_draws: int = NUM_DRAWS, seed: int = 0
) -> dict[str, Tensor]:
    """Draws of the block Gibbs sampler, ``{site: [num_chains * num_draws, ...]}``, draw by draw.

    The chains start with nu from its prior, keep one sweep in ten and drop the first hundred.
    """
    generator = torch.Generator().manual_seed(seed)
    n, workers, answers = crowd.num_items, crowd.num_workers, len(crowd.answer)
    # answer = design @ (x, b) + offset + noise, with the control items in the offset
    design = torch.zeros(answers, n + len(crowd.control) + workers, dtype=torch.float64)
    row = torch.arange(answers)
    design[row, crowd.item] = 1.0
    design[row, n + len(crowd.control) + crowd.worker] = 1.0
    offset = design[:, n : n + len(crowd.control)] @ crowd.control
    design = torch.cat([design[:, :n], design[:, n + len(crowd.control) :]], 1)
    of_worker = torch.zeros(answers, workers, dtype=torch.float64)
    of_worker[row, crowd.worker] = 1.0
    # x and b meet in precision matrices linear in 1 / nu: one per worker, summed
    grams = torch.stack([design.t() @ (design * w[:, None]) for w in of_worker.t()])
    pulls = torch.stack([design.t() @ (w * (crowd.answer - offset)) for w in of_worker.t()])
    prior = torch.eye(n + workers, dtype=torch.float64) / PRIOR_SD**2
    shape = (SHAPE + of_worker.sum(0) / 2).expand(num_chains, -1)

    nu = SCALE / torch._standard_gamma(shape.new_full(shape.shape, SHAPE), generator)
    kept: list[Tensor] = []
    for sweep in range(10 * (10 + num_draws)):
        root = torch.linalg.cholesky(prior + torch.einsum("cj,jab->cab", 1 / nu, grams))
        mean = torch.cholesky_solve((1 / nu @ pulls)[..., None], root)
        noise = torch.randn(mean.shape, generator=generator, dtype=torch.float64)
        z = (mean + torch.linalg.solve_triangular(root.mT, noise, upper=True))[..., 0]
        residual = crowd.answer - offset - z @ design.t()
        scale = SCALE + residual.square() @ of_worker / 2
        nu = scale / torch._standard_gamma(shape, generator)
        if sweep >= 100 and sweep % 10 == 0:
            kept.append(torch.cat([z, nu], 1))
    draws = torch.cat(kept)
    return {"x": draws[:, :n], "b": draws[:, n:-workers], "nu": draws[:, -workers:]}


def nuts_draws(
    crowds: Sequence[Crowd], *, num_warmup: int, num_draws: int, num_chains: int
) -> list[dict[str, np.ndarray]]:
    """Draws ``{site: [num_chains, num_draws, ...]}`` of numpyro's NUTS for every crowd.

    Answers are padded to one length, so that crowds of one size share one compiled sampler.
    """
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    jax.config.update("jax_enable_x64", True)
    length = max(len(crowd.answer) for crowd in crowds)
    n, workers = crowds[0].num_items, crowds[0].num_workers

    def program(worker, item, answer, present, control):
        with numpyro.plate("items", n):
            x = numpyro.sample("x", dist.Normal(0.0, PRIOR_SD))
        with numpyro.plate("workers", workers):
            b = numpyro.sample("b", dist.Normal(0.0, PRIOR_SD))
            nu = numpyro.sample("nu", dist.InverseGamma(SHAPE, SCALE))
        value = jnp.concatenate([x, control])[item]
        with numpyro.plate("answers", length), numpyro.handlers.mask(mask=present):
            noisy = dist.Normal(value + b[worker], jnp.sqrt(nu[worker]))
            numpyro.sample("answer", noisy, obs=answer)

    sampler = MCMC(
        NUTS(program),
        num_warmup=num_warmup,
        num_samples=num_draws,
        num_chains=num_chains,
        chain_method="sequential",
        progress_bar=False,
        jit_model_args=True,
    )
    found = []
    for seed, crowd in enumerate(crowds):
        pad = (0, length - len(crowd.answer))
        padded = [np.pad(t.numpy(), pad) for t in (crowd.worker, crowd.item, crowd.answer)]
        present = np.arange(length) < len(crowd.answer)
        sampler.run(jax.random.key(seed), *padded, present, crowd.control.numpy())
        draws = sampler.get_samples(group_by_chain=True)
        found.append({site: np.asarray(draws[site]) for site in ("x", "b", "nu")})
    return found


def stored_nuts(seed: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of theta under NUTS for ``simulated_crowd(seed)``.

    Raises:
        IndexError: they are not stored; this script stores as many as it has ``--seeds``.
    """
    with np.load(FILE) as stored:
        if seed >= len(stored["mean"]):
            raise IndexError(f"{FILE.name} ends before seed {seed}: run crowd_reference.py --seeds")
        return tuple(torch.as_tensor(stored[name][seed]).double() for name in ("mean", "variance"))


def _theta(draws: Mapping[str, np.ndarray]) -> np.ndarray:
    """``[chains, draws, dim]``."""
    return np.concatenate([draws["x"], draws["b"], np.log(draws["nu"])], 2)


def main(argv: Sequence[str] | None = None) -> bool:
    from numpyro.diagnostics import effective_sample_size

    args = arguments(__doc__, 20, argv)
    crowds = [simulated_crowd(seed) for seed in range(args.seeds)]
    num_draws = 200 if args.quick else 1000
    begin = time.perf_counter()
    runs = nuts_draws(crowds, num_warmup=num_draws // 2, num_draws=num_draws, num_chains=2)
    seconds = {"NUTS": time.perf_counter() - begin, "Gibbs": 0.0}
    size = {"NUTS": [], "Gibbs": []}
    stored: dict[str, list[np.ndarray]] = {"mean": [], "variance": []}
    scores, ratios = [], []
    for crowd, run in zip(crowds, runs):
        begin = time.perf_counter()
        gibbs = flat(exact_draws(crowd)).numpy()
        seconds["Gibbs"] += time.perf_counter() - begin
        gibbs = gibbs.reshape(-1, NUM_CHAINS, gibbs.shape[1]).swapaxes(0, 1)
        samples = {"NUTS": _theta(run), "Gibbs": gibbs}
        mean = {name: sample.mean((0, 1)) for name, sample in samples.items()}
        variance = {name: sample.var((0, 1)) for name, sample in samples.items()}
        for name, sample in samples.items():
            size[name].append(effective_sample_size(sample))
        error = sum(variance[name] / size[name][-1] for name in samples)
        scores.append((mean["NUTS"] - mean["Gibbs"]) / np.sqrt(error))
        ratios.append(np.sqrt(variance["NUTS"] / variance["Gibbs"]))
        stored["mean"].append(mean["NUTS"])
        stored["variance"].append(variance["NUTS"])
    if not args.quick:
        FILE.parent.mkdir(exist_ok=True)
        np.savez_compressed(FILE, **{k: np.stack(v, dtype=np.float32) for k, v in stored.items()})

    print(f"{'':8s}{'draws':>8s}{'effective, least':>18s}{'median':>8s}{'s a dataset':>14s}")
    for name, count in (("NUTS", 2 * num_draws), ("Gibbs", NUM_CHAINS * NUM_DRAWS)):
        least, median = np.min(size[name]), np.median(size[name])
        each = seconds[name] / args.seeds
        print(f"{name:8s}{count:8d}{least:18.0f}{median:8.0f}{each:14.1f}")
    rms = float(np.sqrt(np.mean(np.square(scores))))
    center, spread = float(np.median(ratios)), float(np.std(np.log(ratios)))
    holds = report(
        "both samplers have the same means",
        rms < 1.25,
        f"difference / Monte Carlo error: rms {rms:.2f} < 1.25 (1 if nothing else is between "
        f"them), largest {np.abs(scores).max():.1f} of {np.size(scores)}",
    )
    holds &= report(
        "and the same spreads",
        abs(center - 1) < 0.02,
        f"ratio of standard deviations: median {center:.3f} within .02 of 1, spread {spread:.3f}",
    )
    return holds


if __name__ == "__main__":
    sys.exit(not main())
