"""Whole numbers, numbers and flags are the same ones wherever the library is handed some."""

from fractions import Fraction

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph import circuits, infer, kernels
from pyrograph import distributions as D
from pyrograph.datasets import alice, denoise
from pyrograph.datasets.discrete_model import DiscreteModel
from pyrograph.diagnostics import stein_thinning
from pyrograph.divergences import Discrete, FullyFactorised, alpha_project, local_minima
from pyrograph.errors import InvalidCircuit, OptionError, ShapeMismatch
from pyrograph.models import ChowLiuTree
from pyrograph.quadrature import gauss_hermite

HALF = torch.full((2,), 0.5, dtype=torch.float64)
STEP = torch.full((2, 2), 0.5, dtype=torch.float64)
CODES = torch.tensor([[0, 1], [1, 0], [1, 1], [0, 0]] * 4)
MASSES = torch.zeros(2, 2, 2, 2)


def coin():
    pyro.sample("z", dist.Bernoulli(torch.tensor(0.3)))


def pair():
    a = pyro.sample("a", dist.Bernoulli(0.3))
    pyro.sample("b", dist.Bernoulli(0.2 + 0.5 * a))


def row():
    with pyro.plate("elements", 4):
        pyro.sample("z", dist.Bernoulli(0.3))


def option(engine, name, **others):
    """An engine keeps what it was given as a plain number."""
    return lambda value: vars(engine(coin, **{name: value}, **others))[name]


def fitted(**options):
    x = torch.arange(12.0).reshape(6, 2).sin()
    return ChowLiuTree.fit(x, bandwidth=0.5, mutual_information="gaussian", **options)


def strudel(**options):
    settings = {"num_steps": 1, "progress": False} | options
    return circuits.learn_strudel(CODES, valid=CODES, **settings)


def em(**options):
    circuits.fit_parameters(circuits.fully_factorised([HALF, HALF]), CODES, **options)


def projected(alpha=0.5, **options):
    alpha_project(Discrete(torch.zeros(2, 2), 2), FullyFactorised(), alpha, **options)


def lowest(restarts):
    local_minima(Discrete(torch.zeros(2, 2), 2), FullyFactorised(), 0.5, restarts=restarts)


#: Of each argument that is a whole number what comes of it: the number itself, or None.
WHOLE = {
    "num_steps of BP": option(pg.BP, "num_steps"),
    "num_points of EP": option(pg.EP, "num_points"),
    "num_trees": option(pg.TRW, "num_trees"),
    "num_particles of SVGD": option(pg.GraphicalSVGD, "num_particles"),
    "refresh": option(pg.GraphicalSVGD, "refresh"),
    "anneal": option(pg.GraphicalSVGD, "anneal"),
    "thin of SVGD": option(pg.GraphicalSVGD, "thin"),
    "num_particles of Langevin": option(pg.Langevin, "num_particles"),
    "num_particles of DPVI": option(pg.DPVI, "num_particles"),
    "num_particles of a filter": option(pg.SequentialDPVI, "num_particles"),
    "num_steps of a filter": option(pg.SequentialDPVI, "num_steps"),
    "num_particles of BBIS": option(pg.BBIS, "num_particles"),
    "max_width": option(pg.CollapsedBBIS, "max_width"),
    "burn_in": lambda n: infer.Gibbs(burn_in=n).burn_in,
    "thin of Gibbs": lambda n: infer.Gibbs(thin=n).thin,
    "num_chains": lambda n: infer.Gibbs(num_chains=n).num_chains,
    "num_components": option(pg.QBethe, "num_components"),
    "num_quadrature": option(pg.QBethe, "num_quadrature"),
    "num_entropy": option(pg.QBethe, "num_entropy"),
    "num_restarts": option(pg.QBethe, "num_restarts"),
    "hold_weights": option(pg.QBethe, "hold_weights"),
    "num_components of a guide": lambda n: pg.AutoQBethe(coin, num_components=n)._num_components,
    "num_points": lambda n: len(gauss_hermite(n)[0]),
    "dim of a rule": lambda n: gauss_hermite(2, n)[0].shape[1],
    "num_neighbors": lambda n: kernels.RandomNeighbors(n).num_neighbors,
    "num_points of thinning": lambda n: len(stein_thinning(torch.eye(4), n)),
    "max_steps": lambda n: projected(max_steps=n, tol=0.5),
    "restarts": lambda n: projected(restarts=n, method="direct"),
    "restarts of minima": lowest,
    "num_variables": lambda n: Discrete(MASSES, n).num_variables,
    "n of a restaurant": lambda n: D.ChineseRestaurant(1.0, n).n,
    "n of a franchise": lambda n: D.ChineseRestaurantFranchise(1.0, 1.0, n).n,
    "num_symbols": lambda n: D.DirichletCategorical(1.0, n).num_symbols,
    "dim of a component": lambda n: D.NormalInverseGamma(1.0, 1.0, 1.0, dim=n).dim,
    "draws of a posterior": lambda n: len(pg.fit(coin, infer=pg.BP, progress=False).sample(n)["z"]),
    "draws of a circuit": lambda n: len(circuits.fully_factorised([HALF]).sample(n)),
    "draws of a tree": lambda n: len(fitted().sample(n)),
    "max_centres": lambda n: fitted(max_centres=n).unary.centres.shape[1],
    "seed of a tree": lambda n: fitted(seed=n, max_centres=2) and None,
    "seed of an image": lambda n: denoise("camera_50", seed=n) and None,
    "length of a text": lambda n: len(alice(n).codes),
    "length of a chain": lambda n: circuits.hidden_markov_model(HALF, STEP, STEP, n).num_variables,
    "num_steps of EM": lambda n: em(num_steps=n),
    "num_steps of a learner": lambda n: strudel(num_steps=n) and None,
    "copy_depth": lambda n: strudel(copy_depth=n) and None,
    "patience": lambda n: strudel(patience=n) and None,
    "num_components of a learner": lambda n: strudel(num_components=n) and None,
    "num_completions": lambda n: strudel(num_completions=n) and None,
    "states": lambda n: DiscreteModel((n,), (), ()).cardinalities[0],
    "index": lambda i: pg.trace_graph(row).node_id("z", i),
}
MAY_BE_NONE = {
    "num_particles of SVGD",
    "num_particles of Langevin",
    "num_points of EP",
    "refresh",
    "thin of SVGD",
    "num_steps of a filter",
    "num_particles of BBIS",
    "num_chains",
    "num_entropy",
    "hold_weights",
    "dim of a component",
    "max_centres",
    "length of a text",
}
NEEDS_DATA = {"seed of an image", "noise of an image", "length of a text"}
INTEGERS = {
    "python": int,
    "int64": np.int64,
    "uint8": np.uint8,
    "array": np.array,
    "tensor": torch.tensor,
    "int32": lambda n: torch.tensor(n, dtype=torch.int32),
}
FLAGS = {
    "flag": True,
    "flag of numpy": np.True_,
    "flag in an array": np.array(True),
    "flag in a tensor": torch.tensor(True),
}
NO_INTEGERS = FLAGS | {
    "float": 3.0,
    "float of numpy": np.float64(3.0),
    "float in a tensor": torch.tensor(3.0),
    "text": "3",
    "array with a dimension": np.array([3]),
    "tensor with a dimension": torch.tensor([3]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_is_no_whole_number(name):
    if name not in MAY_BE_NONE:
        with pytest.raises((OptionError, ShapeMismatch), match="None"):
            WHOLE[name](None)


def alpha_of(value):
    pg.fit(pair, infer=pg.FractionalBP, alpha=value, progress=False)


#: Of each argument that may be 1/2 what comes of it: the number itself, or None.
REAL = {
    "tol": option(pg.BP, "tol"),
    "damping": option(pg.BP, "damping"),
    "alpha": alpha_of,
    "alpha of statements": lambda x: alpha_of({"b": x}),
    "alpha by a function": lambda x: alpha_of(lambda name: x),
    "noise of SVGD": option(pg.GraphicalSVGD, "noise"),
    "step_size": option(pg.Langevin, "step_size"),
    "smoothing of BBIS": option(pg.BBIS, "smoothing"),
    "lr": option(pg.QBethe, "lr"),
    "init_scale": option(pg.QBethe, "init_scale"),
    "temperature": option(pg.QBethe, "temperature"),
    "lr of AdaGrad": lambda x: infer.AdaGrad(lr=x).lr,
    "eps of AdaGrad": lambda x: infer.AdaGrad(eps=x).eps,
    "decay": lambda x: infer.RMSProp(decay=x).decay,
    "betas": lambda x: infer.Adam(betas=(x, 0.9)).betas[0],
    "bandwidth": lambda x: kernels.RBF(x).bandwidth,
    "weight of a locality": lambda x: kernels.Mixed("blanket", "global", x).weight,
    "weight of a kernel": lambda x: (kernels.RBF() * x).terms[0][0],
    "weight in a sum": lambda x: kernels.Sum((x, kernels.RBF())).terms[0][0],
    "weight of a circuit's kernel": lambda x: (circuits.Delta() * x).parts[0][0],
    "alpha of a projection": lambda x: projected(alpha=x),
    "step": lambda x: projected(step=x),
    "tol of a projection": lambda x: projected(tol=x),
    "smoothing": lambda x: circuits.learn_chow_liu(CODES, smoothing=x) and None,
    "shrinkage": lambda x: strudel(shrinkage=x) and None,
    "tol of EM": lambda x: em(tol=x),
    "max_edges": option(pg.CollapsedBBIS, "max_edges"),
    "noise of an image": lambda x: denoise("camera_50", noise=x).noise,
}
NUMBERS = {
    "python": float,
    "fraction": Fraction,
    "float32": np.float32,
    "float64": np.float64,
    "array": np.array,
    "tensor": torch.tensor,
}
NO_NUMBERS = FLAGS | {
    "text": "0.5",
    "list": [0.5],
    "array with a dimension": np.array([0.5]),
    "tensor with a dimension": torch.tensor([0.5]),
    "complex": 0.5j,
    "NaN": float("nan"),
    "too large for a float": 10**400,
}


#: Of both tables: a value that every argument takes, how it may be given, what it may not be, and
#: what is said of that.
TABLES = (
    (WHOLE, 3, INTEGERS, NO_INTEGERS, (OptionError, ShapeMismatch)),
    (REAL, 0.5, NUMBERS, NO_NUMBERS, OptionError),
)


@pytest.mark.parametrize(
    "name, of, value, make",
    [
        pytest.param(name, table[name], value, kinds[kind], id=f"{name}-{kind}")
        for table, value, kinds, _, _ in TABLES
        for name in table
        for kind in kinds
    ],
)
def test_numbers_of_any_kind_are_taken(name, of, value, make, request):
    if name in NEEDS_DATA:
        request.getfixturevalue("data_root")
    found = of(make(value))
    assert found is None or (type(found) is type(value) and found == value)


@pytest.mark.parametrize(
    "of, wrong, error",
    [
        pytest.param(table[name], refused[wrong], error, id=f"{name}-{wrong}")
        for table, _, _, refused, error in TABLES
        for name in table
        for wrong in refused
    ],
)
def test_what_is_no_number_is_refused(of, wrong, error):
    with pytest.raises(error) as caught:
        of(wrong)
    assert repr(wrong) in str(caught.value)


@pytest.mark.parametrize("name", REAL)
def test_a_number_whose_gradient_would_be_lost_is_refused(name):
    with pytest.raises(OptionError, match="requires_grad"):
        REAL[name](torch.tensor(0.5, requires_grad=True))


@pytest.mark.parametrize(
    "of",
    [option(pg.SequentialDPVI, "smoothing"), option(pg.QBethe, "closed_forms")],
    ids=["smoothing", "closed forms"],
)
def test_flags_of_any_kind_are_taken_and_numbers_are_none(of):
    for kind in (bool, np.bool_, np.array, torch.tensor):
        assert of(kind(True)) is True and of(kind(False)) is False
    for wrong in (0, 1, 1.0, np.int64(1), torch.tensor(1), "yes", np.array([True])):
        with pytest.raises(OptionError, match="must be True or False"):
            of(wrong)


def test_a_share_of_the_nodes_may_be_alone_in_a_tensor():
    assert option(pg.CollapsedBBIS, "collapse")(torch.tensor(0.5)) == 0.5


def test_seeds_have_64_bits():
    for seed in (-(2**63), 2**63 - 1):
        fitted(seed=seed, max_centres=2)
    for seed in (-(2**63) - 1, 2**63):
        with pytest.raises(OptionError, match="64 bits"):
            fitted(seed=seed, max_centres=2)


@pytest.mark.parametrize("wrong", FLAGS.values(), ids=FLAGS)
def test_a_flag_is_no_variable_of_a_circuit(wrong):
    first = {"type": "input", "var": 0, "probs": [0.5, 0.5]}
    with pytest.raises(InvalidCircuit, match=r"variable .*True"):
        circuits.Circuit.from_nodes(
            [first, first | {"var": wrong}, {"type": "product", "children": [0, 1]}]
        )


@pytest.mark.parametrize("wrong", [*FLAGS.values(), "0.5"], ids=[*FLAGS, "text"])
def test_what_is_no_number_is_no_quantile(wrong):
    guide = pg.fit(coin, infer=pg.BP, progress=False).guide()
    with pytest.raises(OptionError, match="quantiles="):
        guide.quantiles([wrong])
