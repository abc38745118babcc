"""Random circuits along random vtrees, and what they are worth at every state."""

import itertools

import torch

from pyrograph.circuits import Circuit


def states(cards):
    """Every state ``[prod c, D]``, the last variable fastest."""
    return torch.tensor(list(itertools.product(*map(range, cards))))


def random_vtree(variables, generator, most_parts=3):
    """Nested tuples of variables."""
    if len(variables) == 1:
        return variables[0]
    order = [variables[i] for i in torch.randperm(len(variables), generator=generator).tolist()]
    count = min(len(order), 2 + int(torch.randint(most_parts - 1, (), generator=generator)))
    cuts = sorted((1 + torch.randperm(len(order) - 1, generator=generator)[: count - 1]).tolist())
    parts = [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True)]
    return tuple(random_vtree(part, generator, most_parts) for part in parts)


def random_circuit(cards, vtree, generator, width=3, sparse=0.0):
    """``width`` sums of ``width`` products in every region; a share of all weights is zero."""
    nodes = []

    def add(node):
        nodes.append(node)
        return len(nodes) - 1

    def rand(count):
        values = torch.rand(count, generator=generator) + 0.05
        zero = torch.rand(count, generator=generator) < sparse
        zero[torch.randint(count, (), generator=generator)] = False
        return torch.where(zero, 0.0, values).tolist()

    def build(tree, count):
        if isinstance(tree, int):
            inputs = [
                add({"type": "input", "var": tree, "probs": rand(cards[tree])})
                for _ in range(max(count, width))
            ]
            return inputs
        below = [build(part, width) for part in tree]
        products = [
            add(
                {
                    "type": "product",
                    "children": [
                        units[int(torch.randint(len(units), (), generator=generator))]
                        for units in below
                    ],
                }
            )
            for _ in range(width)
        ]
        return [
            add({"type": "sum", "children": products, "weights": rand(width)}) for _ in range(count)
        ]

    build(vtree, 1)
    return Circuit.from_nodes(reachable(nodes))


def reachable(nodes):
    """The nodes below the last one."""
    used = {len(nodes) - 1}
    for n in reversed(range(len(nodes))):
        if n in used:
            used |= set(nodes[n].get("children", ()))
    number = {n: k for k, n in enumerate(sorted(used))}
    kept = []
    for n in sorted(used):
        node = dict(nodes[n])
        if "children" in node:
            node["children"] = [number[c] for c in node["children"]]
        kept.append(node)
    return kept


def random_pair(seed, most_variables=5, most_states=3):
    """Two compatible circuits and their cards."""
    generator = torch.Generator().manual_seed(seed)
    count = 2 + int(torch.randint(most_variables - 1, (), generator=generator))
    cards = (2 + torch.randint(most_states - 1, (count,), generator=generator)).tolist()
    vtree = random_vtree(list(range(count)), generator)
    p, q = (random_circuit(cards, vtree, generator, sparse=s) for s in (0.0, 0.3))
    return cards, p, q


def deterministic_circuit(cards, generator):
    """A chain x_0 -> x_1 -> ...: right-linear, deterministic, positive."""
    nodes = []

    def add(node):
        nodes.append(node)
        return len(nodes) - 1

    def indicator(v, s):
        probs = [float(s == t) for t in range(cards[v])]
        return add({"type": "input", "var": v, "probs": probs})

    below = [None] * cards[-1]
    for v in reversed(range(len(cards))):
        products = []
        for s in range(cards[v]):
            leaf = indicator(v, s)
            rest = below[s] if v + 1 < len(cards) else None
            children = [leaf] if rest is None else [leaf, rest]
            products.append(
                leaf if rest is None else add({"type": "product", "children": children})
            )
        count = cards[v - 1] if v else 1
        below = [
            add(
                {
                    "type": "sum",
                    "children": products,
                    "weights": (torch.rand(cards[v], generator=generator) + 0.1).tolist(),
                }
            )
            for _ in range(count)
        ]
    return Circuit.from_nodes(nodes)
