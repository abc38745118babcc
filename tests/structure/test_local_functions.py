"""A factor's local function is the program's density restricted to the factor."""

import pytest
import torch

from .case import draw_points
from .test_density import assert_close
from .traced import every_model, factor_values, slots, traced

pytestmark = pytest.mark.filterwarnings("ignore:Singular sample:UserWarning")

POINTS = 6


@every_model
def test_the_factors_and_the_constant_add_up_to_the_log_density(name, unconstrained):
    case, graph = traced(name, unconstrained)
    points = draw_points(case, unconstrained, POINTS)
    total = sum(v.sum(1) for v in factor_values(graph, points).values()) + graph.constant
    assert_close(total.expand(POINTS), graph.log_prob(points), case.tolerance)


@every_model
def test_a_factor_reads_its_own_row_only(name, unconstrained):
    """Factor e at point (s + e) mod S gives what it gives there when all share one point."""
    case, graph = traced(name, unconstrained)
    points = draw_points(case, unconstrained, POINTS)
    for group in graph.factors:
        shared = slots(graph, group, points)
        row = (torch.arange(POINTS)[:, None] + torch.arange(group.num_factors)) % POINTS
        factor = torch.arange(group.num_factors).expand_as(row)
        private = [v[row, factor] for v in shared]
        assert_close(group.log_prob(private), group.log_prob(shared)[row, factor], case.tolerance)


@every_model
def test_every_node_of_a_scope_moves_its_factor(name, unconstrained):
    case, graph = traced(name, unconstrained)
    points = draw_points(case, unconstrained, 24)
    for group in graph.factors:
        if set(group.statements) & set(case.static):
            continue
        values = slots(graph, group, points)
        base = group.log_prob(values)
        for k in range(group.arity):
            moved = [v.roll(1, 0) if j == k else v for j, v in enumerate(values)]
            change = (group.log_prob(moved) - base).abs() > 1e-12
            still = (~change.any(0)).nonzero().squeeze(1).tolist()
            assert not still, f"slot {k} of {graph.factor_name(group, still[0])} changes nothing"


@every_model
def test_gradients_of_the_factors_add_up_to_the_gradient(name, unconstrained):
    """The rows of a factor are its own, so their gradients scatter back to the nodes."""
    case, graph = traced(name, unconstrained)
    points = draw_points(case, unconstrained, 2)
    x = graph.flatten(points).requires_grad_()
    if not any(not s.is_discrete for s in graph.sites.values()):
        pytest.skip("every site is discrete")
    (whole,) = torch.autograd.grad(graph.density(x).sum(), x)
    total = torch.zeros_like(x)
    for group in graph.factors:
        values = [v.detach().clone() for v in slots(graph, group, points)]
        wanted = {
            k: v.requires_grad_()
            for k, v in enumerate(values)
            if not group.slots[k].is_discrete and group.slots[k].name not in (case.fixed or {})
        }
        log_prob = group.log_prob(values)
        if not wanted or not log_prob.requires_grad:
            continue
        found = torch.autograd.grad(log_prob.sum(), list(wanted.values()), allow_unused=True)
        for k, g in zip(wanted, found, strict=True):
            if g is None:
                continue
            width = group.slots[k].width
            column = graph.columns[group.scope[:, k]].unsqueeze(1) + torch.arange(width)
            total.index_add_(1, column.reshape(-1), g.reshape(2, -1).to(total.dtype))
    continuous = torch.zeros(graph.dim, dtype=torch.bool)
    for v, (site, _) in enumerate(graph.nodes):
        if not graph.sites[site].is_discrete:
            continuous[graph.columns[v] : graph.columns[v + 1]] = True
    assert_close(total[:, continuous], whole[:, continuous], 10 * case.tolerance)
