"""The table of operations against brute force.

For a function f of latents, element i of ``factor(sin(f(x)))`` must depend on exactly those
inputs whose change moves it: found by changing one input at a time, at many random points.
"""

import importlib
import pkgutil
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import pyrograph.trace.rules as rules
from pyrograph import trace_graph
from pyrograph.errors import DenseScopeWarning

from .catalogue import FALLBACK, FAMILIES, LOOKUPS

#: What older versions of PyTorch have no decomposition of, which the tracer then says.
FALLBACK_OF_OLDER = pytest.mark.filterwarnings("ignore::pyrograph.errors.DenseScopeWarning")
CASES = [
    pytest.param(family, name, marks=FALLBACK_OF_OLDER if name == "max pooling" else ())
    for family, functions in FAMILIES.items()
    for name in functions
]
IDS = [f"{family}-{name}" for family, functions in FAMILIES.items() for name in functions]
#: Rules that give a sound but wider scope than brute force finds, and why.
WIDER = {
    "pointwise/heaviside": "the second input counts at zero only",
    "matrices/solve_triangular": "the whole system of a column",
    "matrices/solve_triangular from the right": "the whole system of a row",
    "matrices/columns of a constant triangle": "the whole system of a column",
    "matrices/rows of a constant triangle": "the whole system of a row",
    "matrices/triangular_solve": "the whole system",
    "matrices/unit triangle": "the whole system",
    "matrices/cholesky": "the whole matrix",
    "matrices/cholesky, upper": "the whole matrix",
    "matrices/cholesky of one matrix": "the whole matrix",
    "matrices/qr": "the whole matrix",
    "matrices/lu": "the whole matrix",
    "reductions/max pooling": "the whole row, in some versions of PyTorch",
}
LOOKUPS_WIDER = {
    "pointwise/heaviside": "the second input counts at zero only",
    "latent table": "all six entries, though the index has three states",
    "latent table, shifted": "all six entries, though the index has three states",
    "index of a negative": "all six entries, though the index has three states",
    "index_select": "all six entries, though the index has three states",
    "take": "all six entries, though the index takes three values",
    "cumsum as an index": "all six entries, though early sums are small",
    "nested look-up": "all six entries, though the inner table names three",
    "look-up of a look-up": "all entries of both tables",
    "comparison": "a number is compared with itself",
}


def wrapped(f):
    """Not a sum, so that an element stays one factor."""
    return lambda *x: torch.sin(0.7 * f(*x) + 0.3)


def moved(f, points, change):
    """Which outputs of f move when ``change(points, k)`` replaces input k: ``[out, inputs]``."""
    base = f(*points).reshape(-1)
    found = []
    for other in change(points):
        now = f(*other).reshape(-1)
        found.append((now != base) & ~(now.isnan() & base.isnan()))
    return torch.stack(found, 1)


def real_changes(points):
    (x,) = points
    for k in range(len(x)):
        y = x.clone()
        y[k] = torch.randn(()).to(x)
        yield (y,)


def mixed_changes(points):
    z, x = points
    for k in range(len(z)):
        y = z.clone()
        y[k] = torch.randint(0, 3, ())
        yield (y, x)
    for k in range(len(x)):
        y = x.clone()
        y[k] = torch.randn(()).to(x)
        yield (z, y)


def scopes_as_matrix(graph, labels):
    """Rows: factors; columns: the given labels."""
    return torch.tensor(
        [[label in scope for label in labels] for scope in graph.scopes("f")], dtype=torch.bool
    ).view(-1, len(labels))


def values_of_factors(graph, points):
    """``[S, F]`` in the order of the graph's factors of "f"."""
    x = graph.flatten(points)
    rows = {}
    for group in graph.factors:
        if "f" not in group.statements:
            continue
        values = []
        for k, site in enumerate(group.slots):
            column = graph.columns[group.scope[:, k]]
            values.append(x[:, column].to(site.dtype))
        for index, value in zip(group.index.tolist(), group.log_prob(values).unbind(1)):
            rows[index] = value
    return torch.stack([rows[k] for k in sorted(rows)], 1) if rows else torch.zeros(len(x), 0)


@pytest.mark.parametrize(("family", "name"), CASES, ids=IDS)
def test_a_function_of_reals_depends_on_what_moves_it(family, name):
    f = wrapped(FAMILIES[family][name])

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(6), 1.0))
        pyro.factor("f", f(x))

    graph = trace_graph(model)
    found = sum(moved(f, (torch.randn(6),), real_changes) for _ in range(40)) > 0
    listed = scopes_as_matrix(graph, [("x", (k,)) for k in range(6)])
    depends = found.any(1)
    if f"{family}/{name}" in WIDER:
        assert len(listed) >= depends.sum()
        if len(listed) == len(found):
            assert (listed | ~found).all()
        return
    assert listed.tolist() == found[depends].tolist()

    points = torch.randn(5, 6)
    expected = torch.stack([f(p.clone()).reshape(-1) for p in points])
    ours = values_of_factors(graph, {"x": points})
    torch.testing.assert_close(ours, expected[:, depends], equal_nan=True, rtol=1e-9, atol=1e-9)
    prior = dist.Normal(0.0, 1.0).log_prob(points).sum(1)
    torch.testing.assert_close(
        graph.density(points), prior + expected.sum(1), equal_nan=True, rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize(("family", "name"), CASES, ids=IDS)
def test_gradients_of_the_replay_are_those_of_the_function(family, name):
    f = wrapped(FAMILIES[family][name])

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(6), 1.0))
        pyro.factor("f", f(x))

    graph = trace_graph(model)
    points = torch.randn(3, 6)
    theirs, ours = points.clone().requires_grad_(), points.clone().requires_grad_()
    prior = dist.Normal(0.0, 1.0).log_prob(theirs).sum()
    try:
        expected = torch.autograd.grad(prior + sum(f(p.clone()).sum() for p in theirs), theirs)[0]
    except RuntimeError as error:
        pytest.skip(f"PyTorch has no gradient here: {error}")
    if name == "detach":
        pytest.skip("the replay differentiates through detach")
    found = torch.autograd.grad(graph.density(ours).sum(), ours)[0]
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", FALLBACK)
def test_a_function_without_a_rule_keeps_every_dependence(name):
    f = wrapped(FALLBACK[name])

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(6), 1.0))
        pyro.factor("f", f(x))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DenseScopeWarning)
        graph = trace_graph(model)
    found = sum(moved(f, (torch.randn(6),), real_changes) for _ in range(20)) > 0
    listed = scopes_as_matrix(graph, [("x", (k,)) for k in range(6)])
    assert len(listed) == len(found)
    assert (listed | ~found).all()
    points = torch.randn(5, 6)
    expected = dist.Normal(0.0, 1.0).log_prob(points).sum(1)
    expected = expected + torch.stack([f(p.clone()).sum() for p in points])
    torch.testing.assert_close(graph.density(points), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", LOOKUPS)
def test_a_function_of_discrete_latents_depends_on_what_moves_it(name):
    f = wrapped(LOOKUPS[name])
    probs = torch.tensor([0.3, 0.4, 0.3])

    def model():
        z = pyro.sample("z", dist.Categorical(probs.expand(3, 3)))
        x = pyro.sample("x", dist.Normal(torch.zeros(6), 1.0))
        pyro.factor("f", f(z, x))

    def draw():
        return torch.randint(0, 3, (3,)), torch.randn(6)

    graph = trace_graph(model)
    found = sum(moved(f, draw(), mixed_changes) for _ in range(150)) > 0
    labels = [("z", (k,)) for k in range(3)] + [("x", (k,)) for k in range(6)]
    listed = scopes_as_matrix(graph, labels)
    depends = found.any(1)
    if len(listed) == len(found):
        assert (listed | ~found).all(), "a dependence was missed"
    if name not in LOOKUPS_WIDER:
        assert listed.tolist() == found[depends].tolist()

    points = [draw() for _ in range(5)]
    values = {"z": torch.stack([z for z, _ in points]), "x": torch.stack([x for _, x in points])}
    expected = torch.stack([f(z, x).reshape(-1) for z, x in points])
    if len(listed) == depends.sum():
        ours = values_of_factors(graph, values)
        torch.testing.assert_close(ours, expected[:, depends], rtol=1e-9, atol=1e-9)
    prior = dist.Normal(0.0, 1.0).log_prob(values["x"]).sum(1)
    prior = prior + dist.Categorical(probs).log_prob(values["z"]).sum(1)
    torch.testing.assert_close(
        graph.log_prob(values), prior + expected.sum(1), rtol=1e-9, atol=1e-9
    )


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operations = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations.add(func)
        return func(*args, **(kwargs or {}))


def operations_of_the_table():
    """All operations named in a rule's table; those a program never reaches are decomposed."""
    found = set()
    for module in pkgutil.iter_modules(rules.__path__):
        if module.name in ("refusals", "fallback"):
            continue
        table = vars(importlib.import_module(f"{rules.__name__}.{module.name}"))
        for name, value in table.items():
            if name.isupper() and isinstance(value, (dict, set, frozenset)):
                found |= {k for k in value if isinstance(k, torch._ops.OpOverload)}
    return found


def test_every_operation_of_the_table_is_exercised():
    with Seen() as seen:
        for functions in FAMILIES.values():
            for f in functions.values():
                f(torch.randn(6))
        for f in LOOKUPS.values():
            f(torch.randint(0, 3, (3,)), torch.randn(6))
    missing = operations_of_the_table() - seen.operations
    # Composite on every backend, so that no program dispatches them.
    composite = {k for k in missing if "CompositeImplicit" in torch._C._dispatch_dump(k.name())}
    assert not missing - composite, sorted(map(str, missing - composite))
