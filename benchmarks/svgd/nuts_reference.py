"""What is the true posterior of the two sensor networks, and how far can NUTS be trusted on it?

    python benchmarks/svgd/nuts_reference.py [--quick] [--threads 1]

Runs numpyro's NUTS with a dense mass matrix and stores moments and thinned draws in
``reference/sensors_small.npz`` and ``reference/sensors_large.npz``, from which the experiments
read, so that they need neither numpyro nor jax (extra "peers").

Small network: 20 chains from U[-1, 1]^2. NUTS hardly crosses between modes, so the shares of its
chains say where chains fall, not what the modes weigh. Therefore every NUTS step is followed by
an exact one for each ambiguous sensor: its mirror image in the line through two neighbours, a map
that keeps areas, is taken with probability p(image) / (p(image) + p(place)). Chains stuck on a
folded map, by their log density, are dropped. As a check that shares nothing with this, parallel
tempering runs from U[-1, 1]^2 too, knows neither truth nor mirror, and weighs both modes and
folded maps.

Large network: 4 chains from the truth plus 0.05 noise, as the paper starts NUTS at the truth.
What they give is the mode around the truth; Stein particles that end elsewhere are off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sensor_network import (
    AMBIGUOUS,
    BOX,
    WALL,
    is_unfolded,
    line,
    mirror,
    model,
    on_true_side,
    small_network,
)
from significance import arguments, report
from torch import Tensor

import pyrograph as pg
from pyrograph.datasets import RangingNetwork

FOLDER = Path(__file__).parent / "reference"
#: A chain whose mean log density is that many nats below the best is stuck on a folded map.
GAP = 5.0
NUM_KEPT = {"small": 2000, "large": 500}


@dataclass(frozen=True)
class Reference:
    """Stored truth: ``mean`` and ``second`` (moments) ``[n, 2]`` of all draws, and a thinned set
    of ``draws`` ``[m, n, 2]``."""

    mean: Tensor
    second: Tensor
    draws: Tensor


def stored(name: str, net: RangingNetwork) -> Reference:
    """The reference of ``"small"`` or ``"large"``.

    Raises:
        ValueError: it was made for other ranges than those of ``net``.
    """
    with np.load(FOLDER / f"sensors_{name}.npz") as file:
        if not np.allclose(file["range"], net.range.numpy(), atol=1e-6):
            raise ValueError(f"the reference of the {name} network is stale: run nuts_reference.py")
        values = {key: torch.from_numpy(file[key]) for key in ("mean", "second", "draws")}
    return Reference(**{key: value.to(net.range) for key, value in values.items()})


def store(name: str, net: RangingNetwork, draws: Tensor) -> None:
    """Write the moments of ``draws`` ``[m, n, 2]`` and every k-th of them."""
    kept = draws[:: max(1, len(draws) // NUM_KEPT[name])][: NUM_KEPT[name]]
    FOLDER.mkdir(exist_ok=True)
    np.savez_compressed(
        FOLDER / f"sensors_{name}.npz",
        range=net.range.numpy(),
        mean=draws.mean(0).numpy(),
        second=draws.square().mean(0).numpy(),
        draws=kept.numpy().astype(np.float32),
    )


def jax_density(net: RangingNetwork) -> tuple[Callable, Callable]:
    """Log likelihood and log prior of positions ``[n, 2]``, written once more for jax."""
    import jax
    import jax.numpy as jnp

    n = net.num_sensors
    a = jnp.asarray(torch.cat([net.src, net.anchor_src]).numpy())
    b = jnp.asarray(torch.cat([net.dst, net.anchor_dst + n]).numpy())
    measured = jnp.asarray(torch.cat([net.range, net.anchor_range]).numpy())
    anchors = jnp.asarray(net.anchors.numpy())

    def likelihood(x):
        points = jnp.concatenate([x, anchors])
        distance = jnp.sqrt(((points[a] - points[b]) ** 2).sum(-1) + 1e-18)
        return -((distance - measured) ** 2).sum() / (2 * net.sigma**2)

    def prior(x):
        sigmoid = jax.nn.log_sigmoid
        return (sigmoid((x + BOX) / WALL) + sigmoid((BOX - x) / WALL)).sum()

    return likelihood, prior


def nuts(
    net: RangingNetwork,
    starts: Tensor,
    *,
    num_warmup: int,
    num_draws: int,
    mirrored: Sequence[int] = (),
) -> Tensor:
    """Draws ``[chains, draws, n, 2]`` of NUTS from the starts ``[chains, n, 2]``.

    After every step the sensors of ``mirrored`` choose between their place and its image.
    """
    import jax
    import jax.numpy as jnp
    from numpyro.infer import MCMC, NUTS

    likelihood, prior = jax_density(net)

    def potential(x):
        return -likelihood(x) - prior(x)

    kernel = NUTS(potential_fn=potential, dense_mass=True)
    sampler = MCMC(kernel, num_warmup=num_warmup, num_samples=1, progress_bar=False)
    lines = [(sensor, *line(net, sensor)) for sensor in mirrored]

    def step(state, _):
        state = kernel.sample(state, (), {})
        for sensor, first, second in lines:
            x, key = state.z, jax.random.fold_in(state.rng_key, sensor)
            image = x.at[sensor].set(mirror(x, sensor, first, second))
            odds = potential(x) - potential(image)
            take = jnp.log(jax.random.uniform(key)) < jax.nn.log_sigmoid(odds)
            z = jnp.where(take, image, x)
            energy, slope = jax.value_and_grad(potential)(z)
            state = state._replace(z=z, potential_energy=energy, z_grad=slope)
        return state, state.z

    draw = jax.jit(lambda state: jax.lax.scan(step, state, None, length=num_draws)[1])
    chains = []
    for k, start in enumerate(starts.numpy()):
        sampler.warmup(jax.random.key(k), init_params=jnp.asarray(start))
        chains.append(np.array(draw(sampler.last_state)))
    return torch.from_numpy(np.stack(chains))


def tempered(
    net: RangingNetwork, *, num_ladders: int, num_sweeps: int, num_levels: int = 22
) -> Tensor:
    """Parallel tempering from U[-1, 1]^2: ``[ladders, sweeps, n, 2]`` at temperature one.

    The likelihood to the power beta = 1e-3 .. 1; a sweep is one trajectory of HMC at every level
    and swaps of neighbouring levels, even and odd pairs in turn.
    """
    import jax
    import jax.numpy as jnp

    likelihood, prior = jax_density(net)
    beta = jnp.geomspace(1.0, 1e-3, num_levels)
    step = 0.5 * jnp.sqrt(net.sigma**2 / beta + 1e-4).clip(max=0.15)

    def density(x, b):
        return b * likelihood(x) + prior(x)

    score = jax.grad(density)

    def trajectory(key, x, b, eps):
        eps = eps * jax.random.uniform(key, minval=0.4, maxval=1.0)
        kick, accept = jax.random.split(key)
        v = jax.random.normal(kick, x.shape)

        def leap(state, _):
            x, v = state
            v = v + 0.5 * eps * score(x, b)
            x = x + eps * v
            return (x, v + 0.5 * eps * score(x, b)), None

        (y, w), _ = jax.lax.scan(leap, (x, v), None, length=8)
        gain = density(y, b) - density(x, b) + 0.5 * ((v**2).sum() - (w**2).sum())
        return jnp.where(jnp.log(jax.random.uniform(accept)) < gain, y, x)

    def sweep(x, inputs):
        key, parity = inputs
        move, swap = jax.random.split(key)
        x = jax.vmap(trajectory)(jax.random.split(move, num_levels), x, beta, step)
        value = jax.vmap(likelihood)(x)
        level = jnp.arange(num_levels)
        partner = jnp.where((level + parity) % 2 == 0, level + 1, level - 1)
        partner = jnp.where((partner < 0) | (partner >= num_levels), level, partner)
        gain = (beta - beta[partner]) * (value[partner] - value)
        # both ends of a pair must see the same number
        draw = jax.random.uniform(swap, (num_levels,))[jnp.minimum(level, partner)]
        x = jnp.where((jnp.log(draw) < gain)[:, None, None], x[partner], x)
        return x, x[0]

    def ladder(key):
        start, run = jax.random.split(key)
        x = jax.random.uniform(start, (num_levels, net.num_sensors, 2), minval=-1.0, maxval=1.0)
        keys = jax.random.split(run, num_sweeps)
        return jax.lax.scan(sweep, x, (keys, jnp.arange(num_sweeps) % 2))[1]

    draws = jax.jit(jax.vmap(ladder))(jax.random.split(jax.random.key(1), num_ladders))
    return torch.from_numpy(np.array(draws))


def mixing(draws: Tensor) -> tuple[float, float]:
    """Largest R-hat and smallest effective sample size over coordinates of ``[chains, m, ...]``."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    values = draws.numpy()
    return float(split_gelman_rubin(values).max()), float(effective_sample_size(values).min())


def small(quick: bool) -> bool:
    """The nine sensors: NUTS with mirror steps, and parallel tempering beside it."""
    net = small_network()
    generator = torch.Generator().manual_seed(0)
    starts = 2 * torch.rand(20, net.num_sensors, 2, generator=generator) - 1
    begin = time.perf_counter()
    plain = nuts(net, starts, num_warmup=1000, num_draws=200)
    chains = nuts(
        net, starts, num_warmup=1000, num_draws=200 if quick else 2000, mirrored=AMBIGUOUS
    )
    graph = pg.trace_graph(model, (net,))
    height = torch.stack([graph.log_prob({"x": chain}).mean() for chain in chains])
    whole = height > height.max() - GAP
    seconds = time.perf_counter() - begin
    print(f"small network, NUTS, {len(chains)} chains from U[-1, 1]^2, {seconds:.0f} s")
    print(f"  unfolded chains {int(whole.sum())}, mean log density {height[whole].mean():.1f}")
    if not whole.all():
        print(f"  folded chains {int((~whole).sum())}, at best {height[~whole].max():.1f}")
    r_hat, ess = mixing(chains[whole])
    print(f"  with mirror steps: R-hat {r_hat:.4f}, smallest ESS {ess:.0f}")
    draws = chains[whole].flatten(0, 1)
    begin = time.perf_counter()
    swept = tempered(net, num_ladders=8, num_sweeps=2000 if quick else 20000)
    swept = swept[:, swept.shape[1] // 4 :]
    print(f"  parallel tempering, 8 ladders, {time.perf_counter() - begin:.0f} s")
    folded = (~is_unfolded(net, swept)).double().mean()
    passed = [
        report("R-hat < 1.01", r_hat < 1.01, f"{r_hat:.4f}"),
        report("folded maps weigh < 1 % by tempering", bool(folded < 0.01), f"{folded:.4f}"),
    ]
    for sensor in AMBIGUOUS:
        by_plain = on_true_side(net, plain, sensor).double().mean()
        by_mirror = float(on_true_side(net, draws, sensor).double().mean())
        by_ladder = on_true_side(net, swept, sensor).double().mean(1)
        share, error = float(by_ladder.mean()), float(by_ladder.std()) / len(by_ladder) ** 0.5
        print(
            f"  sensor {sensor}, share of the true place: plain NUTS {by_plain:.3f}, with mirror "
            f"steps {by_mirror:.3f}, tempering {share:.3f} +- {error:.3f}"
        )
        passed.append(
            report(
                f"sensor {sensor}: both modes > 5 %, tempering agrees",
                0.05 < by_mirror < 0.95 and abs(share - by_mirror) < 3 * error + 0.01,
                f"{by_mirror:.3f} and {share:.3f} +- {error:.3f}",
            )
        )
    swept = swept.flatten(0, 1)
    spread = swept.std(0) / draws.std(0)
    shift = (swept.mean(0) - draws.mean(0)) / draws.std(0)
    print(
        f"  tempering beside NUTS: sd ratios {spread.min():.2f} to {spread.max():.2f}, means "
        f"differ by at most {shift.abs().max():.2f} sd"
    )
    if not quick:
        store("small", net, draws)
    return all(passed)


def large(quick: bool) -> bool:
    """The hundred sensors, from the truth."""
    net = pg.datasets.simulated_sensors()
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(4, net.num_sensors, 2, generator=generator)
    begin = time.perf_counter()
    chains = nuts(
        net, net.positions + 0.05 * noise, num_warmup=1000, num_draws=100 if quick else 1500
    )
    r_hat, ess = mixing(chains)
    draws = chains.flatten(0, 1)
    error = (draws.mean(0) - net.positions).square().sum(-1).mean().sqrt()
    spread = draws.var(0).sum(-1).mean().sqrt()
    seconds = time.perf_counter() - begin
    print(f"large network, NUTS, 4 chains from truth + .05 noise, {seconds:.0f} s")
    print(f"  RMSE of the mean {error:.4f}, posterior sd {spread:.4f}")
    if not quick:
        store("large", net, draws)
    return report("R-hat < 1.02", r_hat < 1.02, f"R-hat {r_hat:.4f}, smallest ESS {ess:.0f}")


def main(argv: Sequence[str] | None = None) -> bool:
    """Make both references; True if the checks hold."""
    import jax

    jax.config.update("jax_enable_x64", True)
    torch.set_default_dtype(torch.float64)
    quick = arguments(__doc__, 1, argv).quick
    return all([small(quick), large(quick)])


if __name__ == "__main__":
    main()
