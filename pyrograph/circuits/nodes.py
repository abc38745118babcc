"""A circuit written as a list of dicts, children first, root last.

{"type": "input", "var": 0, "probs": [0.2, 0.8]}
{"type": "input", "var": 1, "loc": 0.0, "scale": 1.0}
{"type": "product", "children": [0, 1]}
{"type": "sum", "children": [2, 3], "weights": [0.4, 0.6]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyrograph.circuits.units import KINDS, PRODUCT, SUM, Units
from pyrograph.errors import InvalidCircuit


def read_nodes(nodes: Sequence[Mapping[str, Any]]) -> tuple[Units, list[float]]:
    """The structure, and the weights of the edges of sums in order of edges.

    Raises:
        InvalidCircuit: a node is not of the form above; the text names it.
    """
    kind, var, children, weights = [], [], [], []
    for n, node in enumerate(nodes):
        if node.get("type") not in KINDS:
            raise InvalidCircuit(
                f"node {n} has the type {node.get('type')!r}; types are {', '.join(KINDS)}"
            )
        kind.append(KINDS.index(node["type"]))
        is_input = node["type"] == "input"
        below = [] if is_input else [int(c) for c in _get(node, n, "children")]
        variable = int(_get(node, n, "var")) if is_input else -1
        if is_input and variable < 0:
            raise InvalidCircuit(f"node {n} has the variable {variable}")
        if kind[-1] == PRODUCT and len(below) == 1:
            kind[-1] = SUM  # of one child, with the weight 1: products split their scope
            weights.append(1.0)
        elif kind[-1] == SUM:
            own = [float(w) for w in _get(node, n, "weights")]
            if len(own) != len(below):
                raise InvalidCircuit(f"node {n} has {len(below)} children and {len(own)} weights")
            if not all(0 <= w < float("inf") for w in own):
                raise InvalidCircuit(f"node {n} has a weight that is negative or not finite")
            weights += own
        var.append(variable)
        children.append(below)
    return Units.of_lists(kind, var, children), weights


def _get(node: Mapping[str, Any], n: int, key: str) -> Any:
    if key not in node:
        raise InvalidCircuit(f'node {n} ({node["type"]}) has no "{key}"')
    return node[key]
