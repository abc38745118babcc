"""A circuit written as a list of dicts, children first, root last. Nodes that the root is not made
of are left out.

{"type": "input", "var": 0, "probs": [0.2, 0.8]}
{"type": "input", "var": 1, "loc": 0.0, "scale": 1.0}
{"type": "product", "children": [0, 1]}
{"type": "sum", "children": [2, 3], "weights": [0.4, 0.6]}

Numbers beyond the range of floating point are written as logs, under "log_probs" and "log_weights".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from pyrograph.checks import real_number
from pyrograph.circuits.structure.units import INPUT, KINDS, PRODUCT, SUM, Units
from pyrograph.errors import InvalidCircuit

#: Numbers have their digits between exp(-700) and exp(700).
MOST_LOG = 700.0


def read_nodes(nodes: Sequence[Mapping[str, Any]]) -> tuple[Units, list[float], list[int]]:
    """The structure, the log weights of the edges of sums in order of edges, and which node every
    unit is.

    Raises:
        InvalidCircuit: a node is not of the form above; the text names it.
    """
    if not isinstance(nodes, Sequence) or isinstance(nodes, str):
        raise InvalidCircuit(f"{nodes!r} is no list of nodes")
    kind, var, children, weights = [], [], [], []
    for n, node in enumerate(nodes):
        if not isinstance(node, Mapping) or node.get("type") not in KINDS:
            found = node.get("type") if isinstance(node, Mapping) else node
            raise InvalidCircuit(f"node {n} has the type {found!r}; types are {', '.join(KINDS)}")
        kind.append(KINDS.index(node["type"]))
        is_input = kind[-1] == INPUT
        below = [] if is_input else _numbers(node, n, "children", int)
        variable = _variable(node, n) if is_input else -1
        if is_input and variable < 0:
            raise InvalidCircuit(f"node {n} has the variable {variable}")
        if kind[-1] == PRODUCT and len(below) == 1:
            kind[-1] = SUM  # of one child, with the weight 1: products split their scope
            weights.append(0.0)
        elif kind[-1] == SUM:
            own = read_logs(node, n, "weights")
            if len(own) != len(below):
                raise InvalidCircuit(f"node {n} has {len(below)} children and {len(own)} weights")
            weights += own
        var.append(variable)
        children.append(below)
    every = Units.of_lists(kind, [min(v, len(nodes)) for v in var], children)
    units, used, edges = every.below_root()
    kept = np.flatnonzero(used).tolist()
    # scopes have a bit for each variable: a number far above their count would fill the memory
    last = max(kept, key=var.__getitem__)
    if var[last] >= len(kept):
        absent = min(set(range(len(kept))) - {var[n] for n in kept})
        raise InvalidCircuit(
            f"variable {absent} has no input, and node {last} has the variable {var[last]}: number "
            "the variables 0, 1, ..."
        )
    return units, list(itertools.compress(weights, edges[every.edge_is_sum])), kept


def read_logs(node: Mapping[str, Any], n: int, key: str) -> list[float]:
    """Logs of the numbers under "probs" or "weights", which may be there as logs.

    Raises:
        InvalidCircuit: there are none, or one is negative, NaN or infinite.
    """
    if f"log_{key}" in node:
        logs = _numbers(node, n, f"log_{key}", float)
        if not all(value < math.inf for value in logs):
            raise InvalidCircuit(f"node {n} has {logs} as log_{key}: below infinity, or -inf")
        return logs
    values = _numbers(node, n, key, float)
    if not all(0 <= value < math.inf for value in values):
        what = f": {values} are no probabilities"
        if key == "weights":
            what = " has a weight that is negative or not finite"
        raise InvalidCircuit(f"node {n}{what}")
    return [math.log(value) if value else -math.inf for value in values]


def _numbers(node: Mapping[str, Any], n: int, key: str, kind: type) -> list:
    values = _get(node, n, key)
    if isinstance(values, Iterable) and not isinstance(values, Tensor | str):
        values = list(values)  # an iterator is gone through once
    refuse_gradient(values, n, key)
    try:
        found = [kind(value) for value in values]
        if kind is int and any(number != value for number, value in zip(found, values)):
            raise ValueError("a fraction")
    except (TypeError, ValueError, OverflowError) as error:
        what = "whole numbers" if kind is int else "numbers"
        raise InvalidCircuit(
            f'node {n} ({node["type"]}) has "{key}": {values!r}, which is no list of {what}'
        ) from error
    return found


def refuse_gradient(values: Any, n: int, key: str) -> None:
    """Raise for numbers whose derivatives would be lost, since a circuit copies its numbers.

    Raises:
        InvalidCircuit: naming the node.
    """
    parts = [values] if isinstance(values, Tensor) or not isinstance(values, Iterable) else values
    if any(isinstance(value, Tensor) and value.requires_grad for value in parts):
        raise InvalidCircuit(
            f'node {n} has "{key}" that require grad, and a circuit copies its numbers: give them '
            "detached. circuit.requires_grad_() makes its own numbers parameters to learn"
        )


def _variable(node: Mapping[str, Any], n: int) -> int:
    value = _get(node, n, "var")
    if not real_number(value).is_integer():
        raise InvalidCircuit(f"node {n} (input) has the variable {value!r}; variables are numbers")
    return int(value)


def _get(node: Mapping[str, Any], n: int, key: str) -> Any:
    if key not in node:
        raise InvalidCircuit(f'node {n} ({node["type"]}) has no "{key}"')
    return node[key]


def write_nodes(
    units: Units,
    cards: Sequence[int | None],
    log_weights: Tensor,
    log_table: Tensor,
    loc: Tensor,
    scale: Tensor,
) -> list[dict[str, Any]]:
    """The nodes that are read as this circuit."""
    nodes: list[dict[str, Any]] = []
    means, deviations = loc.tolist(), scale.tolist()
    # by Python's floats: those of float32 are as exact in float64
    weights, table = log_weights.tolist(), log_table.tolist()
    inputs = edges = 0
    for n, (kind, var) in enumerate(zip(units.kind.tolist(), units.var.tolist(), strict=True)):
        node: dict[str, Any] = {"type": KINDS[kind]}
        if kind == INPUT:
            node["var"] = var
            if cards[var] is None:
                node |= {"loc": means[inputs], "scale": deviations[inputs]}
            else:
                node |= _linear("probs", table[inputs][: cards[var]])
            inputs += 1
        else:
            node["children"] = units.children(n).tolist()
        if kind == SUM:
            node |= _linear("weights", weights[edges : edges + len(node["children"])])
            edges += len(node["children"])
        nodes.append(node)
    return nodes


def _linear(key: str, logs: list[float]) -> dict[str, list[float]]:
    if all(value == -math.inf or abs(value) < MOST_LOG for value in logs):
        return {key: [math.exp(value) for value in logs]}
    return {f"log_{key}": logs}
