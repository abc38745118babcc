"""Labels that read the same numbers, and each other: one region of them and of all these numbers.

Rows of a mixture with unknown weights w and means mu close a cycle through every two labels, as in
w - z_n - mu - z_m - w; so do the steps of a hidden Markov model whose transitions or emissions are
unknown, and documents of shared topics. Given the numbers G that several labels read, the *core*,
labels are independent or make a tree:

    p(G) prod_n p(z_n | G),          p(G) p(z_1 | G) prod_t p(z_{t+1} | z_t, G)

So every scope of such labels is taken together with all of G, which makes a forest of regions
(:mod:`.regions`), and F a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyrograph.graph.forest import components, is_forest
from pyrograph.infer.qbethe.nodes import Nodes, different

#: Most cores, which are looked at one by one, and most numbers of one, whose covariance is held.
MOST_CORES, MOST_NUMBERS = 256, 512


def with_common_cores(scopes: list[Tensor], by_kind: Nodes) -> list[Tensor]:
    """The same, those of labels that read the same numbers with all of these numbers where labels
    are a forest given them.

    Args:
        scopes: different ones ``[S, arity]`` of two and more nodes, those of like nodes together.
    """
    labels = [nodes[:, by_kind.slots(nodes, is_discrete=True)] for nodes in scopes]
    numbers = [nodes[:, by_kind.slots(nodes, is_discrete=False)] for nodes in scopes]
    labelled = [n for n, own in enumerate(labels) if own.shape[1]]
    shared = _shared([labels[n] for n in labelled], [numbers[n] for n in labelled], by_kind)
    if not bool(shared.any()):
        return scopes
    links = [labels[n] for n in labelled if labels[n].shape[1] > 1]
    for n in labelled:
        for beside in numbers[n].unbind(1):
            is_link = shared[beside]
            links.append(torch.stack([labels[n][:, 0], beside], 1)[is_link])
    part = components(links, len(shared)).to(shared.device)
    united: list[Tensor] = []
    is_united = {n: torch.zeros_like(labels[n][:, 0], dtype=torch.bool) for n in labelled}
    cores = part[shared].unique().tolist()
    for number in cores if len(cores) <= MOST_CORES else []:
        mine = {n: part[labels[n][:, 0]] == number for n in labelled}
        rows = [(labels[n][own], numbers[n][own]) for n, own in mine.items() if bool(own.any())]
        found = _united(rows, shared, by_kind)
        if found:
            united += found
            for n, own in mine.items():
                is_united[n] |= own
    if not united:
        return scopes
    kept = [nodes[~is_united[n]] if n in is_united else nodes for n, nodes in enumerate(scopes)]
    return [*(nodes for nodes in kept if len(nodes)), *_alike(united, by_kind)]


def _shared(labels: Sequence[Tensor], numbers: Sequence[Tensor], by_kind: Nodes) -> Tensor:
    """Whether several labels have a continuous node in their scopes, ``[num_nodes]``."""
    size = len(by_kind.kind)
    pairs = [torch.zeros(0, dtype=torch.int64, device=by_kind.kind.device)]
    for label, number in zip(labels, numbers, strict=True):
        pairs.append((number.unsqueeze(2) * size + label.unsqueeze(1)).flatten())
    readers = torch.cat(pairs).unique() // size
    return torch.bincount(readers, minlength=size) > 1


def _united(
    rows: Sequence[tuple[Tensor, Tensor]], shared: Tensor, by_kind: Nodes
) -> list[Tensor] | None:
    """Sets of labels that are no part of others, each with the core; None unless the scopes have no
    other numbers, and their labels make a forest.

    Args:
        rows: labels and numbers of like scopes.
        shared: whether several labels have a node in their scopes, ``[num_nodes]``.
    """
    if not all(bool(shared[beside].all()) for _, beside in rows):
        return None
    # widest sets first: what is correlated stands together
    wide_first = sorted((beside for _, beside in rows), key=lambda beside: -beside.shape[1])
    ordered = dict.fromkeys(node for beside in wide_first for node in beside.flatten().tolist())
    core = torch.tensor(list(ordered), device=shared.device)
    if sum(by_kind.kinds[k].size for k in by_kind.kind[core].tolist()) > MOST_NUMBERS:
        return None
    by_width: dict[int, list[Tensor]] = {}
    for labels, _ in rows:
        by_width.setdefault(labels.shape[1], []).append(labels.sort(1).values)
    sets = {width: different(own)[0] for width, own in by_width.items()}
    linked = [own for width, own in sets.items() if width > 1]
    if not is_forest(linked, len(shared)):
        return None
    if linked and 1 in sets:
        is_linked = torch.zeros_like(shared)
        for own in linked:
            is_linked[own] = True
        sets[1] = sets[1][~is_linked[sets[1][:, 0]]]
    return [torch.cat([own, core.expand(len(own), -1)], 1) for own in sets.values() if len(own)]


def _alike(scopes: Sequence[Tensor], by_kind: Nodes) -> list[Tensor]:
    """Those of like nodes together."""
    by_width: dict[int, list[Tensor]] = {}
    for nodes in scopes:
        by_width.setdefault(nodes.shape[1], []).append(nodes)
    found = []
    for own in by_width.values():
        every = torch.cat(own)
        found += [every[rows] for rows in by_kind.alike(every)]
    return found
