"""Random Pyro programs against Pyro's own density, in both spaces."""

from itertools import combinations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrograph import trace_graph

from .case import Case, at, draw_points, pyro_log_prob
from .random_models import random_model
from .test_density import assert_close
from .test_scopes import mixed_differences
from .traced import factor_values

POINTS = 4


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), unconstrained=st.booleans())
def test_a_random_model_has_pyros_density_and_misses_no_dependence(seed, unconstrained):
    torch.manual_seed(seed)
    case = Case(random_model(seed))
    graph = trace_graph(case.model, unconstrained=unconstrained)
    points = draw_points(case, unconstrained, POINTS)
    if not points:
        assert graph.num_nodes == 0
        return
    theirs = torch.stack([pyro_log_prob(case, at(points, k), unconstrained) for k in range(POINTS)])
    assert_close(graph.log_prob(points), theirs, 1e-9)
    total = graph.constant + sum(v.sum(1) for v in factor_values(graph, points).values())
    assert_close(total.expand(POINTS), theirs, 1e-9)

    apart = [
        p for p in combinations(graph.nodes, 2) if p[1] not in graph.blanket(p[0][0], *p[0][1])
    ]
    for _ in range(3 if apart else 0):
        strength = mixed_differences(graph, draw_points(case, unconstrained, 2), apart)
        pair = apart[int(strength.argmax())]
        assert strength.max() < 1e-7, f"{pair} interact but are no neighbours"
