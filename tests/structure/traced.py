"""Traced graphs of the catalogue, each made once, and what several tests read off them."""

import re
from functools import cache

import pytest
import torch
from torch import Tensor

from pyrograph import FactorGraph, FactorGroup, trace_graph

from .case import Case, Label
from .models import BUILDERS, build

#: Every model in the program's space and, where it has a map, in unconstrained space.
SPACES = [(name, False) for name in BUILDERS] + [
    (name, True) for name in BUILDERS if build(name).unconstrained
]

every_model = pytest.mark.parametrize(
    ("name", "unconstrained"),
    SPACES,
    ids=[f"{name}-{'reals' if free else 'support'}" for name, free in SPACES],
)


@cache
def traced(name: str, unconstrained: bool) -> tuple[Case, FactorGraph]:
    case = build(name)
    graph = trace_graph(
        case.model, case.args, case.kwargs, unconstrained=unconstrained, fixed=case.fixed
    )
    return case, graph


def statements(graph: FactorGraph) -> list[str]:
    return list(dict.fromkeys(name for group in graph.factors for name in group.statements))


def gather(values: dict[str, Tensor], labels: list[Label]) -> Tensor:
    """The values of some nodes side by side, ``[S, len(labels), *event]``."""
    return torch.stack([values[site][(slice(None), *index)] for site, index in labels], 1)


def slots(graph: FactorGraph, group: FactorGroup, values: dict[str, Tensor]) -> list[Tensor]:
    """Each factor's own rows of the points ``{site: [S, ...]}``."""
    columns = group.scope.t().tolist()
    return [gather(values, [graph.nodes[v] for v in column]) for column in columns]


def factor_values(graph: FactorGraph, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Log values of all factors by statement, ``{statement: [S, number of factors]}``."""
    samples = len(next(iter(values.values()))) if values else 1
    whole = torch.zeros(samples, graph.num_factors, dtype=graph.dtype)
    name = {}
    number = graph.data["factor"].statement
    for group in graph.factors:
        whole[:, group.index] = group.log_prob(slots(graph, group, values)).to(graph.dtype)
        for k in number[group.index].unique().tolist():
            e = int((number[group.index] == k).nonzero()[0])
            name[k] = re.match(r'factor "(.*)"\[', graph.factor_name(group, e)).group(1)
    return {name[k]: whole[:, number == k] for k in sorted(name)}
