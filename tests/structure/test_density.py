"""The graph's log density and its derivatives against Pyro's own."""

import pytest
import torch

from .case import at, draw_points, pyro_log_prob, pyro_trace
from .traced import every_model, factor_values, traced

pytestmark = pytest.mark.filterwarnings("ignore:Singular sample:UserWarning")

POINTS = 4


def assert_close(ours, theirs, tolerance):
    """Equal relative to the magnitude; infinite and NaN in the same places."""
    ours, theirs = ours.detach().double(), theirs.detach().double()
    finite = theirs[theirs.isfinite()].abs()
    scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=tolerance * scale, equal_nan=True)


def gradients(log_prob, points):
    """Of the sum over points, for every floating site; zero where a site is not used."""
    wanted = {n: v for n, v in points.items() if v.requires_grad}
    if not log_prob.requires_grad:
        return {n: torch.zeros_like(v) for n, v in wanted.items()}
    found = torch.autograd.grad(
        log_prob.sum(), list(wanted.values()), allow_unused=True, create_graph=True
    )
    return {
        n: torch.zeros_like(v) if g is None else g
        for (n, v), g in zip(wanted.items(), found, strict=True)
    }


def tracked(case, graph, points):
    free = [s.name for s in graph.sites.values() if not s.is_discrete]
    return {
        n: v.detach().clone().requires_grad_() if n in free and n not in (case.fixed or {}) else v
        for n, v in points.items()
    }


@every_model
def test_the_log_density_is_pyros(name, unconstrained):
    case, graph = traced(name, unconstrained)
    points = draw_points(case, unconstrained, POINTS)
    theirs = torch.stack(
        [pyro_log_prob(case, at(points, k), unconstrained).detach() for k in range(POINTS)]
    )
    batched = graph.log_prob(points)
    single = torch.stack([graph.log_prob(at(points, k)) for k in range(POINTS)])
    assert batched.shape == (POINTS,)
    assert_close(batched, theirs, case.tolerance)
    assert_close(single, theirs, case.tolerance)


@every_model
def test_the_density_of_flat_particles_is_that_of_the_named_values(name, unconstrained):
    case, graph = traced(name, unconstrained)
    points = draw_points(case, unconstrained, POINTS)
    x = graph.flatten(points)
    assert x.shape == (POINTS, graph.dim)
    assert_close(graph.density(x), graph.log_prob(points), case.tolerance)


@every_model
def test_gradients_are_pyros(name, unconstrained):
    case, graph = traced(name, unconstrained)
    points = draw_points(case, unconstrained, 2)
    ours, theirs = tracked(case, graph, points), tracked(case, graph, points)
    log_prob = sum(pyro_log_prob(case, at(theirs, k), unconstrained) for k in range(2))
    expected = gradients(log_prob, theirs)
    for site, gradient in gradients(graph.log_prob(ours), ours).items():
        assert_close(gradient, expected[site], 10 * case.tolerance)


@every_model
def test_second_derivatives_are_pyros(name, unconstrained):
    case, graph = traced(name, unconstrained)
    points = draw_points(case, unconstrained, 1)
    ours, theirs = tracked(case, graph, points), tracked(case, graph, points)
    first = gradients(graph.log_prob(ours), ours)
    expected = gradients(pyro_log_prob(case, at(theirs, 0), unconstrained), theirs)
    directions = {n: torch.randn_like(g) for n, g in first.items()}
    if not directions:
        pytest.skip("every site is discrete")
    ours_along = sum((first[n] * d).sum() for n, d in directions.items())
    theirs_along = sum((expected[n] * d).sum() for n, d in directions.items())
    along = gradients(ours_along, ours)
    for site, value in gradients(theirs_along, theirs).items():
        assert_close(along[site], value, 100 * case.tolerance)


@every_model
def test_every_factor_is_its_element_of_pyros_log_density(name, unconstrained):
    """Elements that are one factor are equal; of summed ones the statements change alike."""
    case, graph = traced(name, unconstrained)
    points = draw_points(case, unconstrained, POINTS)
    ours = factor_values(graph, points)
    traces = [pyro_trace(case, at(points, k), unconstrained)[0] for k in range(POINTS)]
    for statement, values in ours.items():
        if statement.endswith(":jacobian"):
            continue  # not a statement of the program; part of the total
        elements = torch.stack(
            [torch.as_tensor(t.nodes[statement]["log_prob"]).detach().reshape(-1) for t in traces]
        )
        varying = (elements != elements[:1]).any(0)
        if statement in case.summed:
            total = elements.sum(1)
            assert_close(values.sum(1).diff(), total.diff(), case.tolerance)
        elif values.shape[1] == elements.shape[1]:
            assert_close(values, elements, case.tolerance)
        else:
            assert values.shape[1] == varying.sum(), statement
            assert_close(values, elements[:, varying], case.tolerance)
