"""Where are the radios? Range-only localisation with graphical SVGD.

A few anchors know where they are. All other sensors know only noisy distances to the radios
near them. The posterior over all positions at once says where each sensor is, and how sure
that is. Run it as it stands:

    python tutorials/sensor_localization.py

The first network is simulated (Wang, Zeng & Liu 2018, figure 5). The second one is real,
eight ultra-wideband radios in a room; it is added when $PYROGRAPH_DATA names the folder of
the real data sets.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import shortest_path
from torch import Tensor

import pyrograph as pg
from pyrograph.datasets import RangingNetwork, simulated_sensors, uwb_network
from pyrograph.errors import DataNotFound


def model(net: RangingNetwork) -> None:
    """The whole problem: a wide prior around the anchors and one noisy distance per link."""
    with pyro.plate("sensors", net.num_sensors):
        prior = dist.Normal(net.anchors.mean(0), 2 * net.anchors.std(0))
        x = pyro.sample("x", prior.to_event(1))
    with pyro.plate("links", len(net.range)):
        distance = (x[net.src] - x[net.dst]).norm(dim=-1)
        pyro.sample("range", dist.Normal(distance, net.sigma), obs=net.range)
    with pyro.plate("anchor_links", len(net.anchor_range)):
        distance = (x[net.anchor_src] - net.anchors[net.anchor_dst]).norm(dim=-1)
        pyro.sample("anchor_range", dist.Normal(distance, net.sigma), obs=net.anchor_range)


def rough_map(net: RangingNetwork) -> Tensor:
    """Positions ``[n, 2]`` from the ranges alone: MDS-MAP (Shang et al. 2003).

    A map that is folded over somewhere is a local optimum that no gradient leaves, so the
    particles should start near an unfolded one. Lengths of shortest paths stand in for the
    distances nobody measured, classical scaling turns them into coordinates, and the anchors
    fix shift, rotation and scale.
    """
    n, m = net.num_sensors, len(net.anchors)
    first, second = torch.triu_indices(m, m, offset=1)
    src = torch.cat([net.src, net.anchor_src, first + n])
    dst = torch.cat([net.dst, net.anchor_dst + n, second + n])
    length = torch.cat([net.range, net.anchor_range, torch.pdist(net.anchors)])
    length = length.clamp(min=1e-3)  # a stored zero would be no link
    links = csr_matrix((length, (src, dst)), shape=(n + m, n + m))
    squared = torch.from_numpy(shortest_path(links, directed=False)).square()
    gram = squared.mean(0) + squared.mean(1, keepdim=True) - squared - squared.mean()
    values, vectors = torch.linalg.eigh(gram / 2)
    free = vectors[:, -2:] * values[-2:].sqrt()

    # The similarity that brings the anchors of the free map closest to where they are.
    source, target = free[n:], net.anchors.to(free)
    shift, center = source.mean(0), target.mean(0)
    u, s, vt = torch.linalg.svd((source - shift).T @ (target - center))
    scale = s.sum() / (source - shift).square().sum()
    return (scale * (free[:n] - shift) @ u @ vt + center).to(net.anchors)


@dataclass
class Result:
    """What one run found: particles ``[num_particles, n, 2]`` and the lines of the table."""

    net: RangingNetwork
    particles: Tensor
    summary: dict[str, str]


def locate(net: RangingNetwork, *, num_steps: int, num_particles: int) -> Result:
    """Fit the posterior of one network and measure it."""
    rough = rough_map(net)
    start = rough + 2 * net.sigma * torch.randn(num_particles, *rough.shape)

    begin = time.perf_counter()
    posterior = pg.fit(
        model,
        (net,),
        infer=pg.GraphicalSVGD,
        num_steps=num_steps,
        num_particles=num_particles,
        init={"x": start},
        # Steps as long as the noise; much longer ones would fold the map again.
        optim=pg.infer.AdaGrad(lr=2 * net.sigma),
    )
    seconds = time.perf_counter() - begin
    x, graph = posterior.particles["x"], posterior.graph

    def ksd(particles: Tensor) -> float:
        return pg.diagnostics.graphical_ksd(graph, {"x": particles}).item()

    def errors(estimate: Tensor) -> Tensor:
        return (estimate - net.positions).norm(dim=-1)[net.positions.isfinite().all(-1)]

    def rms(values: Tensor) -> str:
        return f"{values.square().mean().sqrt():.3f} {net.unit}"

    error = errors(x.mean(0))
    summary = {
        "sensors, anchors": f"{net.num_sensors}, {len(net.anchors)}",
        "graph": f"{graph.num_nodes} nodes, {graph.num_factors} factors",
        "noise of a range (sd)": f"{net.sigma:.3f} {net.unit}",
        "RMSE of the rough map": rms(errors(rough)),
        "RMSE of the posterior mean": rms(error),
        "largest error": f"{error.max():.3f} {net.unit}",
        "posterior sd (both axes)": rms(x.var(0).sum(-1).sqrt()),
        "KSD, start and end": f"{ksd(start):.4g}, {ksd(x):.4g}",
        "seconds": f"{seconds:.1f}",
    }
    return Result(net, x, summary)


def print_table(results: list[Result]) -> None:
    print(f"\n{'':28}" + "".join(f"{result.net.title:>26}" for result in results))
    for row in results[0].summary:
        print(f"{row:28}" + "".join(f"{result.summary[row].strip():>26}" for result in results))


def draw(result: Result, ax: Axes) -> None:
    """One network: its links, a cloud of particles per sensor, and where the radios really are."""
    net, mean = result.net, result.particles.mean(0)
    links = torch.cat(
        [
            torch.stack([mean[net.src], mean[net.dst]], dim=1),
            torch.stack([mean[net.anchor_src], net.anchors[net.anchor_dst]], dim=1),
        ]
    )
    misses = torch.stack([mean, net.positions], dim=1)
    ax.add_collection(LineCollection(links.numpy(), colors="0.87", linewidths=0.5, zorder=1))
    ax.add_collection(LineCollection(misses.numpy(), colors="black", linewidths=0.8, zorder=3))
    for i in range(net.num_sensors):
        x, y = result.particles[:, i].T
        ax.scatter(x, y, s=6, color=f"C{i % 10}", alpha=0.4, linewidths=0, zorder=2)
    ax.scatter(*net.positions.T, s=25, marker="+", color="black", linewidths=0.9, zorder=3)
    ax.scatter(*net.anchors.T, s=50, marker="^", color="black", zorder=3)
    if net.num_sensors <= 10:
        tops = torch.cat([result.particles[..., 1].amax(0), net.anchors[:, 1]])
        places = torch.stack([torch.cat([mean, net.anchors])[:, 0], tops], dim=1)
        for name, place in zip(net.names + net.anchor_names, places.tolist()):
            ax.annotate(name, place, (0, 5), textcoords="offset points", ha="center", zorder=4)
    unit = f" [{net.unit}]" if net.unit else ""
    ax.set(aspect="equal", xlabel=f"x{unit}", ylabel=f"y{unit}")
    ax.set_title(f"{net.title}, RMSE {result.summary['RMSE of the posterior mean']}")
    ax.margins(0.12)


def save_picture(results: list[Result], path: Path) -> None:
    figure, axes = plt.subplots(
        1, len(results), figsize=(5.8 * len(results), 6.2), squeeze=False, layout="constrained"
    )
    for result, ax in zip(results, axes[0]):
        draw(result, ax)
    legend = [
        Line2D([], [], color="0.75", label="measured range"),
        Line2D([], [], color="C0", marker="o", markersize=4, linestyle="", label="particles"),
        Line2D(
            [],
            [],
            color="black",
            marker="+",
            linestyle="",
            label="true position, joined to the posterior mean",
        ),
        Line2D([], [], color="black", marker="^", linestyle="", label="anchor"),
    ]
    figure.legend(handles=legend, loc="outside lower center", ncols=2 * len(results), frameon=False)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> list[Result]:
    parser = argparse.ArgumentParser(description="Range-only localisation with graphical SVGD.")
    parser.add_argument("--steps", type=int, default=1000, help="iterations (default: 1000)")
    parser.add_argument("--particles", type=int, default=50, help="particles (default: 50)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument("--output", type=Path, default=Path("sensor_localization.png"))
    options = parser.parse_args(arguments)

    networks = [simulated_sensors()]
    try:
        networks.append(uwb_network())
    except DataNotFound as error:
        print(f"Only the simulated network: {error}")

    results = []
    for net in networks:
        pyro.set_rng_seed(options.seed)
        results.append(locate(net, num_steps=options.steps, num_particles=options.particles))
    print_table(results)
    save_picture(results, options.output)
    print(f"\nPicture: {options.output}")
    return results


if __name__ == "__main__":
    main()
