"""What is the posterior of the relative risks, by NUTS?

    python benchmarks/message_passing/nuts_reference.py [--quick] [--threads 1]

The model of ``lip_cancer.py`` twice: with latent scales, then with the scales fixed at their
posterior means. numpyro's NUTS in double precision, eta = baseline + sigma z + tau e with e
standard normal, a dense mass matrix, 4 chains of 500 steps of warm-up and 2000 draws. Moments of
eta and of exp(eta) go to ``reference/lip_cancer.npz``, from which ``disease_mapping.py`` reads, so
that it needs neither numpyro nor jax (extra "peers"). z = L^-T w with L L' the precision of its
prior, so that NUTS moves in coordinates that the prior makes independent.

Criteria: split R-hat below 1.01; the standard error of every mean below 0.03 posterior sd.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from criteria import arguments, report
from lip_cancer import COEFFICIENTS, FOLDER, SIGMA, TAU, WEAK, LipCancer, lip_cancer

NUM_CHAINS, NUM_WARMUP, NUM_DRAWS = 4, 500, 2000
FILE = FOLDER / "lip_cancer.npz"


@dataclass(frozen=True)
class Reference:
    """Posterior moments of log risks and risks ``[56]``, and the seconds they took."""

    eta_mean: np.ndarray
    eta_sd: np.ndarray
    risk_mean: np.ndarray
    risk_sd: np.ndarray
    seconds: float


def stored(kind: str) -> Reference:
    """The reference for ``"fixed"`` or ``"latent"`` scales."""
    with np.load(FILE) as file:
        fields = Reference.__dataclass_fields__
        return Reference(**{name: file[f"{kind}_{name}"] for name in fields})


def stored_scales() -> tuple[float, float]:
    """Posterior means of sigma and tau, at which the ``"fixed"`` reference was made."""
    with np.load(FILE) as file:
        sigma, tau = file["scales"]
    return float(sigma), float(tau)


def draws(
    data: LipCancer, scales: tuple[float, float] | None, num_warmup: int, num_draws: int
) -> dict[str, np.ndarray]:
    """``eta`` ``[chains, draws, 56]``, and ``sigma`` and ``tau`` where they are latent."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    jax.config.update("jax_enable_x64", True)
    observed, expected, outdoors = (
        jnp.asarray(t.numpy()) for t in (data.observed, data.expected, data.outdoors)
    )
    n = len(observed)
    links = np.zeros((n, n))
    links[tuple(data.pairs.numpy().T)] = 1.0
    links += links.T
    precision = np.diag(links.sum(0) + WEAK) - links
    colour = jnp.asarray(np.linalg.inv(np.linalg.cholesky(precision)).T)

    def model():
        b = numpyro.sample("b", dist.Normal(0.0, COEFFICIENTS).expand([2]))
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([n]))
        z = colour @ w
        if scales is None:
            sigma = numpyro.sample("sigma", dist.LogNormal(math.log(SIGMA[0]), SIGMA[1]))
            tau = numpyro.sample("tau", dist.LogNormal(math.log(TAU[0]), TAU[1]))
        else:
            sigma, tau = scales
        e = numpyro.sample("e", dist.Normal(0.0, 1.0).expand([n]))
        eta = b[0] + b[1] * outdoors / 10 + sigma * z + tau * e
        numpyro.deterministic("eta", eta)
        numpyro.sample("observed", dist.Poisson(expected * jnp.exp(eta)), obs=observed)

    sampler = MCMC(
        NUTS(model, dense_mass=True),
        num_warmup=num_warmup,
        num_samples=num_draws,
        num_chains=NUM_CHAINS,
        chain_method="sequential",
        progress_bar=False,
    )
    sampler.run(jax.random.key(0))
    found = sampler.get_samples(group_by_chain=True)
    return {name: np.asarray(found[name]) for name in ("eta", "sigma", "tau") if name in found}


def is_reliable(kind: str, found: dict[str, np.ndarray]) -> bool:
    """Report R-hat and standard errors of everything that was drawn."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    worst = max(float(np.max(split_gelman_rubin(x))) for x in found.values())
    least = min(float(np.min(effective_sample_size(x))) for x in found.values())
    return all(
        [
            report(f"{kind}: split R-hat below 1.01", worst < 1.01, f"largest {worst:.4f}"),
            report(
                f"{kind}: standard errors below 0.03 sd",
                least**-0.5 < 0.03,
                f"fewest effective draws {least:.0f}, error {least**-0.5:.3f} sd",
            ),
        ]
    )


def main(argv: Sequence[str] | None = None) -> bool:
    """Sample, check and store; True if all criteria hold. A quick run stores nothing."""
    args = arguments(__doc__, argv)
    num_warmup, num_draws = (100, 100) if args.quick else (NUM_WARMUP, NUM_DRAWS)
    data = lip_cancer()
    kept: dict[str, np.ndarray] = {}
    passed, scales = [], None
    for kind in ("latent", "fixed"):
        begin = time.perf_counter()
        found = draws(data, scales, num_warmup, num_draws)
        kept[f"{kind}_seconds"] = np.array(time.perf_counter() - begin)
        passed.append(is_reliable(kind, found))
        if kind == "latent":
            scales = (float(found["sigma"].mean()), float(found["tau"].mean()))
            kept["scales"] = np.array(scales)
            print(f"posterior means: sigma {scales[0]:.4f}, tau {scales[1]:.4f}")
        for name, value in (("eta", found["eta"]), ("risk", np.exp(found["eta"]))):
            kept[f"{kind}_{name}_mean"] = value.mean((0, 1))
            kept[f"{kind}_{name}_sd"] = value.std((0, 1))
        print(f"{kind} scales: {float(kept[f'{kind}_seconds']):.0f} s", flush=True)
    if not args.quick:
        np.savez_compressed(FILE, **kept)
    return all(passed)


if __name__ == "__main__":
    main()
