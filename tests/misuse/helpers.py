"""``ok``, ``error`` and ``warning``: what tracing a program must lead to."""

import pytest
import torch

from pyrograph import FactorGraph, trace_graph
from pyrograph.errors import PyrographError
from tests.structure.case import Case, at, draw_points, pyro_log_prob


def ok(model, *args, unconstrained=False, fixed=None, draws=None, tolerance=1e-10, **kwargs):
    """Traces without a warning (an error here), and has Pyro's log density at three points."""
    case = Case(model, args, kwargs, fixed=fixed, draws=draws or {})
    graph = trace_graph(model, args, kwargs, unconstrained=unconstrained, fixed=fixed)
    assert_density(case, graph, unconstrained, tolerance)
    return graph


def assert_density(case: Case, graph: FactorGraph, unconstrained: bool, tolerance: float) -> None:
    points = draw_points(case, unconstrained, 3)
    theirs = [
        torch.as_tensor(pyro_log_prob(case, at(points, k), unconstrained)).detach()
        for k in range(3)
    ]
    for k in range(3):
        one = graph.log_prob(at(points, k))
        size = max(1.0, abs(float(theirs[k])))
        torch.testing.assert_close(
            one.double(), theirs[k].double(), rtol=0.0, atol=tolerance * size
        )
    if points:
        batched = graph.log_prob(points)
        expected = torch.stack(theirs).double()
        size = max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(batched.double(), expected, rtol=0.0, atol=tolerance * size)


def error(kind: type[Exception], words: list[str], model, *args, **options) -> None:
    """Raises exactly this error, whose text holds all the words."""
    with pytest.raises(kind) as caught:
        trace_graph(model, args, **options)
    assert_text(caught.value, kind, words)


def assert_text(raised: Exception, kind: type[Exception], words: list[str]) -> None:
    if issubclass(kind, PyrographError):
        assert type(raised) is kind
    for word in words:
        assert word in str(raised), f"the text does not say {word!r}: {raised}"


def warning(kind: type[Warning], words: list[str], model, *args, **options) -> FactorGraph:
    """Traces with this warning, whose text holds all the words."""
    with pytest.warns(kind) as caught:
        graph = trace_graph(model, args, **options)
    texts = [str(w.message) for w in caught if issubclass(w.category, kind)]
    for word in words:
        assert any(word in text for text in texts), f"no warning says {word!r}: {texts}"
    return graph
