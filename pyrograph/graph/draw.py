"""A picture of a factor graph: variables as circles coloured by site, factors as squares."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyrograph.errors import OptionError

if TYPE_CHECKING:
    import networkx as nx

    from pyrograph.graph.structure import Structure

#: Beyond this many nodes labels would cover each other.
MAX_LABELS = 40
#: Springs take time of the square of what they hold: a minute at this many circles and squares.
MAX_SPRINGS = 3000
#: Up to this many all distances are taken into account, which looks better and costs their square.
MAX_EXACT = 300
#: So many colours can be told apart, and as many lines leave room beside a legend.
MAX_COLORS = 10


def draw(graph: Structure, ax=None, positions: Mapping | None = None):
    """Draw on matplotlib axes (made if None) and return them. Unary factors are left out.

    Where there are more sites than colours, those whose names differ in numbers alone, as those of
    a loop do, share one.

    Args:
        positions: ``{node label: (x, y)}``; factors then sit at the mean of their scope. Without
            it a spring layout is computed.

    Raises:
        OptionError: a node has no position, or one that is no pair of numbers; there are no
            positions, and the graph is too large to look for them.
    """
    import matplotlib.pyplot as plt
    import networkx as nx

    net = graph.to_networkx()
    variables = list(graph.nodes)
    factors = [f for f, kind in net.nodes(data="kind") if kind == "factor" and net.degree(f) > 1]
    net = net.subgraph(variables + factors)
    layout = _layout(net, variables, factors, positions)
    if ax is None:
        _, ax = plt.subplots(figsize=(7, 6), layout="constrained")
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
    size = 300 if len(variables) <= MAX_LABELS else max(15, 6000 // len(variables))
    colors = plt.get_cmap("tab10")
    for k, (text, nodes) in enumerate(_by_color(graph).items()):
        nx.draw_networkx_nodes(
            net,
            layout,
            nodelist=nodes,
            node_size=size,
            node_color=[colors(k) if k < MAX_COLORS else "0.7"],
            ax=ax,
            label=text,
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


def _layout(
    net: nx.Graph, variables: list[tuple], factors: list, positions: Mapping | None
) -> Mapping:
    """Where everything is drawn: as given, factors at the mean of their scope, or by springs."""
    import networkx as nx

    if positions is not None:
        layout = {v: _position(positions, v) for v in variables}
        for f in factors:
            around = [layout[v] for v in net[f]]
            layout[f] = tuple(sum(c) / len(around) for c in zip(*around, strict=True))
        return layout
    if len(net) > MAX_SPRINGS:
        raise OptionError(
            f"places of {len(net):,} variables and factors would take minutes to find, and show "
            f"little; they are looked for up to {MAX_SPRINGS:,}. Give positions={{label: (x, y)}} "
            "for every label of graph.nodes, or draw a part of graph.to_networkx() by networkx."
        )
    if len(net) <= MAX_EXACT:
        return nx.kamada_kawai_layout(net)
    return nx.spring_layout(net, seed=0)


def _by_color(graph: Structure) -> dict[str, list[tuple]]:
    """Nodes by what the legend calls their colour."""
    series = _series(graph.sites)
    members: dict[str, list[tuple]] = {text: [] for text in series.values()}
    for v in graph.nodes:
        members[series[v[0]]].append(v)
    return members


def _series(names: Iterable[str]) -> dict[str, str]:
    """What each site is called in the legend, with all sites of its colour: its name or, of more
    sites than colours, the series ``z0 ... z99``. Those beyond the last colour are counted."""
    names = list(names)
    if len(names) <= MAX_COLORS:
        return {name: name for name in names}
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(re.sub(r"\d+", "#", name), []).append(name)
    groups = list(alike.values())
    rest = [name for group in groups[MAX_COLORS:] for name in group]
    found = dict.fromkeys(rest, f"{len(rest)} more site{'s' if len(rest) > 1 else ''}")
    for group in reversed(groups[:MAX_COLORS]):
        text = group[0] if len(group) == 1 else f"{group[0]} ... {group[-1]}"
        found = dict.fromkeys(group, text) | found
    return found


def _position(positions: Mapping, label: tuple) -> tuple[float, float]:
    try:
        x, y = positions[label]
        return float(x), float(y)
    except (KeyError, TypeError, ValueError) as error:
        raise OptionError(
            f"positions have no (x, y) for node {label!r}; give {{label: (x, y)}} for every label "
            f"of graph.nodes."
        ) from error
