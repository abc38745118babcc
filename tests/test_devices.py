"""Results are where the program's numbers are, or where ``device=`` says, and the same everywhere.

torch.set_default_device does not reach the library. Where it is "meta", which holds no numbers,
whatever the library made there would be an error, as it would be on a GPU beside a program on the
CPU, and the other way round. Readers of data sets alone have no input to follow, and make their
tensors on the default device.
"""

import ast
import io
from contextlib import nullcontext
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.graph.devices import LARGER, at_once
from pyrograph.posterior.joint_mixture import MixturePosterior

CPU, GPU = torch.device("cpu"), "cuda"
PACKAGE = Path(pg.__file__).parent
MODULES = [p for p in sorted(PACKAGE.rglob("*.py")) if p.parent.name != "datasets"]
#: Functions of torch that ask for the default device.
MAKERS = {
    *("arange", "as_tensor", "asarray", "empty", "eye", "full", "linspace", "logspace", "ones"),
    *("rand", "randint", "randn", "randperm", "tensor", "tril_indices", "triu_indices", "zeros"),
}


def here(*numbers, **options):
    return torch.tensor(numbers, device=CPU, **options)


def hidden_walk(y):
    """A walk seen through noise of unknown scale."""
    scale = pyro.sample("scale", dist.Gamma(here(4.0)[0], here(4.0)[0]))
    before = here(0.0)[0]
    for t in range(len(y)):
        before = pyro.sample(f"x{t}", dist.Normal(before, 1.0))
        pyro.sample(f"y{t}", dist.Normal(before, scale), obs=y[t])


def walk(y):
    before = here(0.0)[0]
    for t in range(len(y)):
        before = pyro.sample(f"x{t}", dist.Normal(before, 1.0))
        pyro.sample(f"y{t}", dist.StudentT(4.0, before, 0.5), obs=y[t])


def spins(field):
    with pyro.plate("nodes", len(field), device=CPU):
        x = pyro.sample("x", dist.Bernoulli(logits=field))
    s = 2 * x - 1
    left, right = here(0, 1, 2, 3), here(1, 2, 3, 0)
    with pyro.plate("edges", 4, device=CPU):
        alike = dist.Bernoulli(logits=0.7 * s[..., left] * s[..., right])
        pyro.sample("alike", alike, obs=here(1.0, 1.0, 1.0, 0.0))


def regimes(y):
    """Which of two levels each reading comes from, and where they are."""
    with pyro.plate("levels", 2, device=CPU):
        level = pyro.sample("level", dist.Normal(here(-1.0, 1.0), 1.0))
    with pyro.plate("rows", len(y), device=CPU):
        z = pyro.sample("z", dist.Categorical(here(0.4, 0.6)))
        pyro.sample("y", dist.Normal(level[z], 0.5), obs=y)


def chain(y):
    rows = here([0.8, 0.2], [0.3, 0.7])
    loc = here(-1.0, 1.0)
    z = here(0)[0]
    for t in pyro.markov(range(len(y))):
        z = pyro.sample(f"z{t}", dist.Categorical(rows[z]))
        pyro.sample(f"y{t}", dist.Normal(loc[z], 1.0), obs=y[t])


def clusters(x):
    z = pyro.sample("z", pg.distributions.ChineseRestaurant(here(1.0)[0], n=len(x)))
    component = pg.distributions.NormalInverseGamma(*here(0.04, 1.0, 1.0))
    pyro.sample("x", pg.distributions.CollapsedMixture(z, component), obs=x)


READINGS = [0.3, -1.2, 0.8, 1.9]
MESSAGES = {"num_steps": 8}
CHAINS = pg.infer.Gibbs(30, 10)
CASES = {
    "svgd": (hidden_walk, pg.GraphicalSVGD, {"num_particles": 6, "num_steps": 4}),
    "langevin": (hidden_walk, pg.Langevin, {"num_particles": 6, "num_steps": 4}),
    "qbethe": (hidden_walk, pg.QBethe, {"num_components": 2, "num_steps": 20}),
    "qbethe, full": (walk, pg.QBethe, {"num_components": 1, "num_steps": 20, "covariance": "full"}),
    "qbethe, hybrid": (regimes, pg.QBethe, {"num_components": 2, "num_steps": 20}),
    "ep": (walk, pg.EP, {}),
    "ep, two scales": (hidden_walk, pg.EP, MESSAGES),
    "power ep": (walk, pg.PowerEP, {"alpha": 0.5}),
    "vmp": (walk, pg.VMP, {}),
    "ep, hybrid": (regimes, pg.EP, MESSAGES),
    "bp": (spins, pg.BP, {}),
    "bp, chain": (chain, pg.BP, {"schedule": "sequential"}),
    "fractional": (spins, pg.FractionalBP, {"alpha": 0.5}),
    "trw": (spins, pg.TRW, {}),
    "trw, optimised": (spins, pg.TRW, {"edge_appearance": "optimize"}),
    "dpvi": (spins, pg.DPVI, {"num_particles": 4}),
    "dpvi, summed out": (spins, pg.DPVI, {"num_particles": 2, "sum_out": "auto"}),
    "passes": (chain, pg.SequentialDPVI, {"num_particles": 3}),
    "bbis": (spins, pg.BBIS, {"num_particles": 12, "proposal": CHAINS}),
    "collapsed bbis": (spins, pg.CollapsedBBIS, {"num_particles": 6, "proposal": CHAINS}),
}


#: These have no device of their own: labels are scored where the program's numbers are.
LABELS = {
    "dpvi, labels": (clusters, pg.DPVI, {"num_particles": 3}),
    "passes, labels": (clusters, pg.SequentialDPVI, {"num_particles": 3}),
}


def everything(posterior, args):
    """Marginals, draws, densities and conditionals of a posterior."""
    found = {}
    draws = posterior.sample(3)
    for name, value in draws.items():
        found[f"draws of {name}"] = value
    for name in draws:
        found[f"marginal of {name}"] = posterior.marginal(name).sample((2,))
    guide = posterior.guide()
    moved = posterior.guide().cpu()()
    assert all(value.device.type == "cpu" for value in moved.values())
    trace = pyro.poutine.trace(guide).get_trace(*args)
    # not of plates, which Pyro makes on the default device
    trace.compute_log_prob(lambda name, site: name in draws)
    found["density"] = sum(trace.nodes[name]["log_prob_sum"] for name in draws)
    found["evidence"] = posterior.log_evidence
    if isinstance(posterior, MixturePosterior):
        given = next(iter(draws))
        held = posterior.condition({given: draws[given][0]})
        found |= {f"draws of {name}, given": v for name, v in held.sample(2).items()}
    return found


def made_anywhere(path):
    """Lines that make a tensor and do not say where."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            makes = ast.unparse(node.func.value) == "torch" and node.func.attr in MAKERS
            if makes and not any(keyword.arg in ("device", None) for keyword in node.keywords):
                yield node.lineno


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_every_tensor_is_made_on_a_device_that_is_named(path):
    assert not list(made_anywhere(path))


def run(case, **more):
    program, engine, options = {**CASES, **LABELS}[case]
    args = (here(*READINGS),)
    pyro.set_rng_seed(0)
    posterior = pg.fit(program, args, infer=engine, progress=False, **options, **more)
    return everything(posterior, args)


def refuse_differences(found, expected, device, atol=0.0):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        if value is None:
            assert expected[name] is None
        else:
            assert value.device.type == device, name
            assert_close(value.cpu(), expected[name], rtol=0, atol=atol, msg=name)


@pytest.mark.parametrize("case", [*CASES, *LABELS])
@pytest.mark.filterwarnings("ignore::pyrograph.errors.ConvergenceWarning")
def test_a_run_is_the_same_whatever_the_default_device(case):
    expected = run(case)
    with torch.device("meta"):
        refuse_differences(run(case), expected, "cpu")


def read_off(posterior, draws):
    """What is no matter of chance: numbers of marginals, given some draws too, and the evidence."""
    found = {"evidence": posterior.log_evidence}
    if hasattr(posterior, "together"):
        return found | {name: posterior.together(name) for name in draws}
    for name in draws:
        marginal = posterior.marginal(name)
        moments = ("mean", "variance", "probs")
        found |= {f"{m} of {name}": getattr(marginal, m) for m in moments if hasattr(marginal, m)}
    if isinstance(posterior, MixturePosterior):
        given, *others = draws
        held = posterior.condition({given: draws[given][0]})
        found |= {f"mean of {name}, given": held.marginal(name).mean for name in others}
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("program", ["here", "there", "by default"])
@pytest.mark.parametrize("case", [*CASES, *LABELS])
@pytest.mark.filterwarnings("ignore::pyrograph.errors.ConvergenceWarning")
def test_a_gpu_gives_the_same_run(case, program, monkeypatch):
    """A program that is there draws other numbers than on the CPU, so its start is handed over."""
    if program == "here" and case in LABELS:
        pytest.skip("labels are scored where the program's numbers are")
    model, engine, options = {**CASES, **LABELS}[case]
    args = (here(*READINGS),)
    pyro.set_rng_seed(0)
    first = engine(model, progress=False, **options).setup(*args)
    start = first.state_dict()
    posterior = first.run(*args)
    draws = posterior.sample(1)
    expected = read_off(posterior, draws)
    if program != "here":
        place = torch.device(GPU) if program == "there" else None
        monkeypatch.setitem(globals(), "CPU", place)
    with torch.device(GPU) if program == "by default" else nullcontext():
        args = (here(*READINGS),)
        second = engine(
            model, progress=False, **options, **({"device": GPU} if program == "here" else {})
        )
        if program == "here":
            pyro.set_rng_seed(0)
        else:
            second.load_state_dict(start)
        posterior = second.run(*args)
        found = read_off(posterior, {name: value.to(GPU) for name, value in draws.items()})
        refuse_differences(found, expected, GPU, atol=1e-7)
        for name, value in everything(posterior, args).items():
            assert value is None or value.device.type == GPU, name


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*CASES, *LABELS])
@pytest.mark.filterwarnings("ignore::pyrograph.errors.ConvergenceWarning")
def test_a_state_that_went_through_the_cpu_goes_on_on_a_gpu(case, monkeypatch):
    program, engine, options = {**CASES, **LABELS}[case]
    monkeypatch.setitem(globals(), "CPU", torch.device("cuda"))
    args = (here(*READINGS),)
    pyro.set_rng_seed(0)
    first = engine(program, progress=False, **options)
    expected = first.run(*args)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = engine(program, progress=False, **options)
    second.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    draws = []
    for posterior in (second.run(*args), expected):
        pyro.set_rng_seed(1)
        draws.append(posterior.sample(5))
    for name, value in draws[0].items():
        assert value.device.type == "cuda"
        assert_close(value, draws[1][name], rtol=0, atol=1e-7)


def test_blocks_are_larger_where_no_cache_holds_them():
    assert at_once(5, torch.device("cpu")) == 5
    assert at_once(5, torch.device("meta")) == 5 * LARGER > 5


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_latents_on_a_gpu_read_tables_of_the_cpu(device):
    table = here([0.1, 0.7, -0.4], [1.2, 0.0, 0.3])

    def model():
        x = pyro.sample("x", dist.Categorical(torch.ones(2, device="cuda")))
        y = pyro.sample("y", dist.Categorical(torch.ones(3, device="cuda")))
        pyro.factor("f", table[x, y])

    found = pg.fit(model, infer=pg.BP, progress=False, device=device).log_evidence
    assert found.device.type == device
    assert_close(found.cpu(), (table.flatten().logsumexp(0) - here(6.0).log())[0])
