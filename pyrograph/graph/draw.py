"""A picture of a factor graph: variables as circles coloured by site, factors as squares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyrograph.errors import OptionError

if TYPE_CHECKING:
    from pyrograph.graph.structure import Structure

#: Beyond this many nodes labels would cover each other.
MAX_LABELS = 40


def draw(graph: Structure, ax=None, positions: Mapping | None = None):
    """Draw on matplotlib axes (made if None) and return them. Unary factors are left out.

    Args:
        positions: ``{node label: (x, y)}``; factors then sit at the mean of their scope. Without
            it a spring layout is computed.

    Raises:
        OptionError: a node has no position, or one that is no pair of numbers.
    """
    import matplotlib.pyplot as plt
    import networkx as nx

    if ax is None:
        _, ax = plt.subplots(figsize=(7, 6), layout="constrained")
    net = graph.to_networkx()
    variables = list(graph.nodes)
    factors = [f for f, kind in net.nodes(data="kind") if kind == "factor" and net.degree(f) > 1]
    net = net.subgraph(variables + factors)
    if positions is None:
        layout = nx.kamada_kawai_layout(net) if len(net) <= 300 else nx.spring_layout(net, seed=0)
    else:
        layout = {v: _position(positions, v) for v in variables}
        for f in factors:
            around = [layout[v] for v in net[f]]
            layout[f] = tuple(sum(c) / len(around) for c in zip(*around, strict=True))
    nx.draw_networkx_edges(
        net, layout, edgelist=[(f, v) for f in factors for v in net[f]], ax=ax, edge_color="0.6"
    )
    nx.draw_networkx_nodes(
        net,
        layout,
        nodelist=factors,
        node_shape="s",
        node_size=25 if len(factors) <= 100 else max(2, 2500 // len(factors)),
        node_color="0.25",
        ax=ax,
        label="factors",
    )
    colors = plt.get_cmap("tab10")
    size = 300 if len(variables) <= MAX_LABELS else max(15, 6000 // len(variables))
    for k, site in enumerate(graph.sites):
        members = [v for v in variables if v[0] == site]
        nx.draw_networkx_nodes(
            net,
            layout,
            nodelist=members,
            node_size=size,
            node_color=[colors(k % 10)],
            ax=ax,
            label=site,
            edgecolors="white",
        )
    if len(variables) <= MAX_LABELS:
        labels = {v: v[0] + ("" if not v[1] else str(list(v[1]))) for v in variables}
        nx.draw_networkx_labels(net, layout, labels, font_size=7, ax=ax)
    if variables:
        ax.legend(loc="best", fontsize=8, frameon=False)
    ax.set_axis_off()
    if positions is not None:
        ax.set_aspect("equal")
    return ax


def _position(positions: Mapping, label: tuple) -> tuple[float, float]:
    try:
        x, y = positions[label]
        return float(x), float(y)
    except (KeyError, TypeError, ValueError) as error:
        raise OptionError(
            f"positions have no (x, y) for node {label!r}; give {{label: (x, y)}} for every label "
            f"of graph.nodes."
        ) from error
