"""Imports inside the package flow one way, and it loads no more than it needs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pyrograph"
#: Each layer may import the layers before it, and its siblings.
LAYERS = [
    {"errors"},
    {"checks", "shapes"},
    {"trace"},
    {"graph"},
    {"beliefs", "divergences", "kernels", "quadrature", "distributions"},
    {"posterior", "diagnostics"},
    {"circuits"},
    {"infer"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
#: These stand beside the layers: Pyro programs and data, which know no tracer and no engine.
APART = {"datasets", "models"}
MODULES = sorted(PACKAGE.rglob("*.py"))
MESSAGE_PASSING = PACKAGE / "infer" / "message_passing"
#: Rooms of message passing: each imports those before it. Engine and presets come last.
ROOMS = [
    "nodes",
    "densities",
    "quadrature",
    "continuous",
    "discrete",
    "network",
    "sweeps",
    "settling",
]


def imported_modules(path):
    """Of the package, as lists of names below it."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module]
            if node.module == "pyrograph":
                names = [f"pyrograph.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "pyrograph" and len(parts) > 1:
                yield parts[1:]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_its_own_and_earlier_layers(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for other, *_ in imported_modules(path):
        if own == "__init__":
            continue
        if own in APART:
            assert other in {own, "errors", "checks"}, f"{own} imports {other}"
        else:
            assert RANK[other] <= RANK[own], f"{own} imports {other}"


def test_every_room_of_message_passing_is_known():
    found = {path.parent.name for path in MESSAGE_PASSING.glob("*/__init__.py")}
    assert found == set(ROOMS)


@pytest.mark.parametrize(
    "path", sorted(MESSAGE_PASSING.glob("*/*.py")), ids=lambda p: f"{p.parent.name}/{p.name}"
)
def test_a_room_of_message_passing_imports_only_itself_and_earlier_ones(path):
    allowed = ROOMS[: ROOMS.index(path.parent.name) + 1]
    for parts in imported_modules(path):
        if parts[:2] == ["infer", "message_passing"]:
            assert parts[2:3] and parts[2] in allowed, f"{path.name} imports {parts}"


def test_what_draws_or_is_seldom_needed_is_loaded_when_it_is():
    code = "import sys, pyrograph; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seldom = {"matplotlib", "networkx", "torch_geometric", "cvxpylayers"}
    loaded = set(run.stdout.split())
    assert "pyrograph" in loaded
    assert not seldom & loaded


FIRST_FITS = """
import sys, torch, pyro, pyro.distributions as dist, pyrograph as pg
x = torch.tensor([[0.3], [-0.8], [1.2]])
def regression():
    w = pyro.sample("w", dist.Normal(torch.zeros(1), 1.0).to_event(1))
    with pyro.plate("rows", 3):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=torch.ones(3))
def chain():
    a = pyro.sample("a", dist.Bernoulli(0.3))
    pyro.sample("b", dist.Bernoulli(torch.tensor([0.2, 0.7])[a.long()]))
def labels():
    w = pyro.sample("w", dist.Dirichlet(torch.ones(3)))
    pyro.sample("z", dist.Categorical(w))
for infer in (pg.EP, pg.VMP, pg.QBethe, pg.GraphicalSVGD):
    pg.fit(regression, infer=infer, num_steps=2, tol=None, progress=False)
for infer in (pg.BP, pg.TRW, pg.DPVI):
    pg.fit(chain, infer=infer, progress=False)
pg.fit(labels, infer=pg.VMP, family={"w": "dirichlet"}, progress=False)
print(*sys.modules)
"""


def test_a_first_fit_does_not_load_the_compiler():
    """It takes seconds, and making an optimiser of torch's is enough to do so; sympy takes one."""
    run = [sys.executable, "-W", "ignore", "-c", FIRST_FITS]
    loaded = set(subprocess.run(run, capture_output=True, text=True, check=True).stdout.split())
    assert "pyrograph.infer.qbethe.adam" in loaded
    assert not {"torch._dynamo", "sympy"} & loaded
