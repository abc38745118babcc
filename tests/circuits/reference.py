"""Random circuits, and what they are worth by plain recursion over their nodes."""

import itertools
import math

import numpy as np


def all_states(cards):
    return list(itertools.product(*map(range, cards)))


def value(nodes, x):
    """Of the last node at a complete point."""
    values = []
    for node in nodes:
        if node["type"] == "input" and "probs" in node:
            values.append(node["probs"][int(x[node["var"]])])
        elif node["type"] == "input":
            z = (x[node["var"]] - node["loc"]) / node["scale"]
            values.append(math.exp(-0.5 * z * z) / (node["scale"] * math.sqrt(2 * math.pi)))
        elif node["type"] == "product":
            values.append(math.prod(values[c] for c in node["children"]))
        else:
            pairs = zip(node["weights"], node["children"], strict=True)
            values.append(sum(w * values[c] for w, c in pairs))
    return values[-1]


def joint(nodes, cards):
    """Values at all states, ``[*cards]``."""
    return np.array([value(nodes, x) for x in all_states(cards)]).reshape(cards)


def random_nodes(rng, cards, *, is_structured=False, zeros=0.0):
    """Of a smooth, decomposable circuit; inputs without states are Gaussians.

    Args:
        is_structured: break a set of variables apart in one way.
        zeros: share of weights and probabilities that are zero.
    """
    nodes, known, splits = [], {}, {}

    def positive(count):
        numbers = rng.uniform(0.1, 1.0, count)
        keep = rng.uniform(size=count) >= zeros
        keep[rng.integers(count)] = True
        return (numbers * keep).tolist()

    def add(scope, node):
        nodes.append(node)
        known.setdefault(scope, []).append(len(nodes) - 1)
        return len(nodes) - 1

    def unit(scope):
        if scope in known and rng.uniform() < 0.4:
            return int(rng.choice(known[scope]))
        if len(scope) == 1:
            card = cards[scope[0]]
            numbers = (
                {"loc": rng.normal(), "scale": rng.uniform(0.5, 2.0)}
                if card is None
                else {"probs": positive(card)}
            )
            return add(scope, {"type": "input", "var": scope[0], **numbers})
        children = []
        for _ in range(rng.integers(1, 4)):
            cut = rng.permutation(len(scope)), rng.integers(1, len(scope))
            order, at = splits.setdefault(scope, cut) if is_structured else cut
            parts = [tuple(sorted(scope[k] for k in side)) for side in (order[:at], order[at:])]
            below = [unit(part) for part in parts]
            children.append(add(scope, {"type": "product", "children": below}))
        weights = positive(len(children))
        return add(scope, {"type": "sum", "children": children, "weights": weights})

    root = unit(tuple(range(len(cards))))
    return needed(nodes, root)


def needed(nodes, root):
    """What is below a node, renumbered, the root last."""
    used = {root}
    for n in range(root, -1, -1):
        if n in used:
            used.update(nodes[n].get("children", []))
    number = {n: k for k, n in enumerate(sorted(used))}
    return [
        nodes[n]
        | (
            {"children": [number[c] for c in nodes[n]["children"]]}
            if "children" in nodes[n]
            else {}
        )
        for n in sorted(used)
    ]
