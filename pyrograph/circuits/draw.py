"""A picture of a small circuit: the root on top, inputs below, weights at the edges of sums."""

from __future__ import annotations

from collections.abc import Sequence

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.options import check_circuits
from pyrograph.circuits.structure.units import INPUT, PRODUCT, SUM
from pyrograph.errors import OptionError

#: Beyond this many units a picture shows nothing.
MAX_UNITS = 200
#: Up to this many edges of sums show their weights.
MAX_WEIGHTS = 40
#: Where on an edge its weight stands: nearer to the sum than the middle, in which edges cross.
WEIGHT_PLACE = 0.3


def draw_circuit(circuit: Circuit, ax=None, names: Sequence[str] | None = None):
    """Draw on matplotlib axes (made if None) and return them.

    Args:
        circuit: of at most 200 units.
        names: of the variables; ``x0``, ``x1``, ... by default.

    Raises:
        OptionError: the circuit is none, has more than 200 units, or not as many variables as
            names; or ``ax`` is no axes.
    """
    check_circuits(circuit)
    if names is None:
        names = [f"x{i}" for i in range(circuit.num_variables)]
    try:
        names = list(names)
    except TypeError as error:
        raise OptionError(f"names={names!r}: a list, one name of each variable") from error
    if len(names) != circuit.num_variables:
        raise OptionError(
            f"names= has {len(names)} names for the circuit's {circuit.num_variables} variables: "
            "give one each"
        )
    units = circuit.units
    if len(units) > MAX_UNITS:
        raise OptionError(
            f"the circuit has {len(units):,} units; pictures are for up to {MAX_UNITS}. "
            "circuit.save writes it as text"
        )
    import matplotlib.pyplot as plt
    import networkx as nx
    from matplotlib.axes import Axes

    if ax is None:
        _, ax = plt.subplots(figsize=(8, 6), layout="constrained")
    if not isinstance(ax, Axes):
        raise OptionError(f"ax={ax!r} is no matplotlib axes: give plt.gca(), or leave it out")
    net = nx.DiGraph()
    net.add_nodes_from((n, {"layer": int(depth)}) for n, depth in enumerate(units.depth))
    net.add_edges_from(zip(units.parent.tolist(), units.child.tolist(), strict=True))
    layout = nx.multipartite_layout(net, subset_key="layer", align="horizontal")
    nx.draw_networkx_edges(net, layout, ax=ax, edge_color="0.6", arrows=False)
    for kind, color in ((INPUT, "#dbe9f6"), (PRODUCT, "#fde0c5"), (SUM, "#d5efcf")):
        members = list(units.of_kind(kind))
        nx.draw_networkx_nodes(
            net, layout, members, node_color=color, edgecolors="0.3", node_size=500, ax=ax
        )
    labels = dict.fromkeys(units.of_kind(PRODUCT), "×") | dict.fromkeys(units.of_kind(SUM), "+")
    nx.draw_networkx_labels(net, layout, labels | _inputs(circuit, names), font_size=7, ax=ax)
    weights = circuit.log_weights.exp().tolist()
    if len(weights) <= MAX_WEIGHTS:
        edges = zip(
            units.parent[units.edge_is_sum].tolist(),
            units.child[units.edge_is_sum].tolist(),
            strict=True,
        )
        shown = {edge: f"{w:.3g}" for edge, w in zip(edges, weights, strict=True)}
        nx.draw_networkx_edge_labels(net, layout, shown, label_pos=WEIGHT_PLACE, font_size=6, ax=ax)
    ax.set_axis_off()
    return ax


def _inputs(circuit: Circuit, names: Sequence[str]) -> dict[int, str]:
    """What each input says of its variable."""
    labels = {}
    probs, loc, scale = circuit.log_table.exp(), circuit.loc.tolist(), circuit.scale.tolist()
    for k, n in enumerate(circuit.units.of_kind(INPUT)):
        var = int(circuit.units.var[n])
        card = circuit.cards[var]
        if card is None:
            labels[n] = f"{names[var]}\nN({loc[k]:.2g}, {scale[k]:.2g})"
            continue
        row = probs[k, :card].tolist()
        possible = [s for s, p in enumerate(row) if p > 0]
        if len(possible) == 1 and row[possible[0]] == 1:
            labels[n] = f"{names[var]}={possible[0]}"
        else:
            labels[n] = f"{names[var]}\n" + " ".join(f"{p:.2g}" for p in row)
    return labels
