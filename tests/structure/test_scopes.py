"""Scopes and blankets against those derived by hand, and against finite differences."""

from itertools import combinations

import pytest
import torch

from .case import draw_points, largest, singles
from .traced import every_model, statements, traced

pytestmark = pytest.mark.filterwarnings("ignore:Singular sample:UserWarning")

#: Mixed differences below this, relative to the log density, are rounding.
NOISE = 1e-9


def derived_scopes(case, graph):
    scopes = dict(case.scopes)
    if graph.unconstrained:
        shapes = {name: graph.sites[name].batch_shape for name in case.jacobians}
        scopes |= {f"{name}:jacobian": singles(name, *shape) for name, shape in shapes.items()}
        scopes |= case.unconstrained_scopes
    return scopes


@every_model
def test_the_scopes_of_every_statement_are_the_derived_ones(name, unconstrained):
    case, graph = traced(name, unconstrained)
    derived = derived_scopes(case, graph)
    found = {s: [frozenset(scope) for scope in graph.scopes(s)] for s in statements(graph)}
    for statement in {*derived, *found}:
        expected = derived.get(statement)
        if statement not in case.summed:
            assert found.get(statement) == expected, statement
        elif expected is not None:
            assert largest(found[statement]) == largest(expected), statement


@every_model
def test_blankets_are_the_other_nodes_of_a_nodes_factors(name, unconstrained):
    case, graph = traced(name, unconstrained)
    derived = derived_scopes(case, graph)
    whole = all(s in derived for s in case.summed)
    if whole:
        for site, index in graph.nodes:
            label = (site, index)
            around = [s for scopes in derived.values() for s in scopes if label in s]
            expected = frozenset().union(*around) - {label}
            assert graph.blanket(site, *index) == expected, label
    if not unconstrained:
        for (site, index), expected in case.blankets.items():
            assert graph.blanket(site, *index) == expected, (site, index)


def mixed_differences(graph, points, pairs):
    """How much pairs interact between two points, relative to the log density; 0 where infinite."""
    rows = {
        site: value[:1].expand(4 * len(pairs), *value.shape[1:]).clone()
        for site, value in points.items()
    }
    for k, (u, v) in enumerate(pairs):
        for (site, index), where in ((u, (1, 2)), (v, (1, 3))):
            for j in where:
                rows[site][(4 * k + j, *index)] = points[site][(1, *index)]
    both, first, second, none = graph.log_prob(rows).double().view(-1, 4)[:, [1, 2, 3, 0]].unbind(1)
    size = torch.stack([both, none]).abs().amax(0).clamp(min=1)
    return ((both - first - second + none).abs() / size).nan_to_num(0.0, 0.0)


@every_model
def test_nodes_interact_numerically_exactly_where_they_are_neighbours(name, unconstrained):
    """f(u', v') - f(u', v) - f(u, v') + f(u, v) is 0 everywhere iff u, v share no factor."""
    case, graph = traced(name, unconstrained)
    free = [label for label in graph.nodes if label[0] not in (case.fixed or {})]
    pairs = list(combinations(free, 2))
    if not pairs:
        pytest.skip("one node")
    if len(pairs) > 300:  # some neighbours, some others
        near = [p for p in pairs if p[1] in graph.blanket(p[0][0], *p[0][1])]
        pairs = near[:150] + [pairs[i] for i in torch.randperm(len(pairs))[:150].tolist()]
    strength = torch.zeros(len(pairs))
    for _ in range(8 if len(pairs) > 50 else 24):
        points = draw_points(case, unconstrained, 2)
        strength = torch.maximum(strength, mixed_differences(graph, points, pairs))
    noise = 1e-4 if graph.dtype == torch.float32 else NOISE
    for (u, v), s in zip(pairs, strength.tolist(), strict=True):
        neighbours = v in graph.blanket(u[0], *u[1])
        if neighbours and case.pairwise and not case.static:
            assert s > noise, f"{u} and {v} are neighbours but do not interact"
        if not neighbours:
            assert s < noise, f"{u} and {v} interact ({s}) but are no neighbours"
