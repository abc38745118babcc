"""Arguments of a model that engines cannot take, and changes under a run that they tell."""

import copy
import functools
from dataclasses import dataclass
from types import SimpleNamespace

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroParam
from torch import nn

import pyrograph as pg
from pyrograph.errors import InferenceError, OptionError


def observed_pairs(pairs, shift=0.0):
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    for i, v in pairs:
        pyro.sample(f"y{i}", dist.Normal(mu + shift, 1.0), obs=torch.tensor(v))


def observed_groups(*groups, **options):
    for name, pairs in groups:
        mu = pyro.sample(f"mu{name}", dist.Normal(0.0, 10.0))
        for i, v in pairs["pairs"]:
            pyro.sample(f"y{name}{i}", dist.Normal(mu, 1.0), obs=torch.tensor(v))


Y = [5.0, 7.0]
ITERATORS = {
    "enumerate": lambda: enumerate(Y),
    "zip": lambda: zip(range(2), Y, strict=True),
    "map": lambda: map(tuple, enumerate(Y)),
    "generator": lambda: ((i, v) for i, v in enumerate(Y)),
    "list_iterator": lambda: iter(list(enumerate(Y))),
}


@pytest.mark.parametrize("kind", ITERATORS)
def test_an_iterator_is_refused_by_the_name_of_its_argument(kind):
    told = rf'argument "pairs" is an iterator \({kind}\).*give a list'
    for infer in (pg.BP, pg.GraphicalSVGD):
        with pytest.raises(OptionError, match=told):
            pg.fit(observed_pairs, (ITERATORS[kind](),), infer=infer)
        with pytest.raises(OptionError, match=told):
            infer(observed_pairs, progress=False).step(pairs=ITERATORS[kind]())
    with pytest.raises(OptionError, match=told):
        pg.trace_graph(observed_pairs, (), {"pairs": ITERATORS[kind]()})


def test_an_iterator_within_containers_is_refused_and_what_can_be_read_again_is_not():
    for held in (enumerate(Y), [enumerate(Y)]):
        with pytest.raises(OptionError, match=r'argument "groups" holds an iterator'):
            pg.fit(observed_groups, (("a", {"pairs": held}),), infer=pg.BP)
    with pytest.raises(OptionError, match=r'argument "options" holds an iterator'):
        pg.trace_graph(observed_groups, (), {"more": zip(Y, strict=True)})
    for pairs in (list(enumerate(Y)), dict(enumerate(Y)).items()):
        posterior = pg.fit(observed_pairs, (pairs,), infer=pg.BP)
        assert float(posterior.marginal("mu").mean) == pytest.approx(12 / 2.01)


def test_an_iterator_of_a_model_without_a_signature_is_named_by_its_place():
    with pytest.raises(OptionError, match=r'argument "1" is an iterator'):
        pg.trace_graph(max, (1.0, iter(Y)))  # of which Python knows no signature


def centred(centre, y=0.0):
    x = pyro.sample("x", dist.Normal(centre, 1.0))
    pyro.sample("y", dist.Normal(x, 1.0), obs=torch.as_tensor(y))


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("shift", torch.tensor(0.0))

    def forward(self, y=0.0):
        centred(self.centre + self.shift, y)


def of_module(module, y=0.0):
    centred(module.centre + module.shift, y)


READERS = {
    "module": lambda net: (net, ()),
    "method": lambda net: (net.forward, ()),
    "partial": lambda net: (functools.partial(net.forward, y=1.0), ()),
    "handled": lambda net: (poutine.scale(scale=2.0)(net), ()),
    "argument": lambda net: (of_module, (net,)),
    "within": lambda net: (lambda given: of_module(given["net"][0]), ({"net": [net]},)),
}


@pytest.mark.parametrize("name", ["centre", "shift"])
@pytest.mark.parametrize("reads", READERS.values(), ids=READERS)
def test_tensors_of_modules_that_change_under_a_run_are_told(reads, name):
    net = Centred()
    model, args = reads(net)
    engine = pg.GraphicalSVGD(model, num_steps=2, num_particles=5, progress=False)
    engine.run(*args)
    with torch.no_grad():
        getattr(net, name).add_(0.0)  # the same value
    engine.step(*args)
    with torch.no_grad():
        getattr(net, name).add_(1.0)
    for going_on in (engine.step, engine.run):
        with pytest.raises(InferenceError, match=f'"{name}" of the module Centred has changed'):
            going_on(*args)
    engine.setup(*args)
    engine.step(*args)
    if name == "centre":
        net.centre = nn.Parameter(torch.tensor(7.0))  # another one in its place
    else:
        net.shift = torch.tensor(7.0)
    with pytest.raises(InferenceError, match=f'"{name}" of the module Centred has changed'):
        engine.run(*args)


def test_parameters_of_a_pyro_module_that_holds_its_own_are_told():
    class Local(PyroModule):
        def __init__(self):
            super().__init__()
            self.centre = PyroParam(torch.tensor(1.0), dist.constraints.positive)

        def forward(self):
            centred(self.centre)

    with pyro.settings.context(module_local_params=True):
        net = Local()
        engine = pg.EP(net, progress=False)
        engine.run()
        net.centre = torch.tensor(5.0)
        with pytest.raises(InferenceError, match='"centre_unconstrained" of the module Local'):
            engine.run()


def test_a_copied_engine_of_a_module_goes_on():
    engine = pg.GraphicalSVGD(Centred(), num_steps=4, num_particles=5, progress=False)
    engine.step()
    twin = copy.deepcopy(engine)
    assert twin.step() == engine.step()
    with torch.no_grad():
        twin.model.centre += 1.0
    engine.run()
    with pytest.raises(InferenceError, match="has changed"):
        twin.run()


def test_a_parameter_that_is_gone_from_the_store_has_changed():
    def model():
        centred(pyro.param("centre", torch.tensor(0.0)))

    engine = pg.EP(model, progress=False)
    engine.run()
    pyro.clear_param_store()
    pyro.param("centre", torch.tensor(9.0))
    with pytest.raises(InferenceError, match=r'pyro.param "centre" has changed'):
        engine.run()
    pyro.clear_param_store()
    with pytest.raises(InferenceError, match=r'pyro.param "centre" has changed'):
        engine.run()


@dataclass(frozen=True)
class Frozen:
    y: list


@dataclass
class Data:
    y: float

    @functools.cached_property
    def half(self):
        return self.y / 2


def of_record(data):
    y = data.y[0] if isinstance(data.y, list) else data.y
    centred(0.0, y)


@pytest.mark.parametrize("make", [Data, lambda y: SimpleNamespace(y=y), lambda y: Frozen([y])])
def test_attributes_of_records_count_by_their_values(make):
    data = make(1.0)
    engine = pg.EP(of_record, progress=False)
    once = engine.run(data).marginal("x").mean
    assert torch.equal(engine.run(make(1.0)).marginal("x").mean, once)
    if isinstance(data, Data):
        assert data.half == 0.5  # which is kept in the object, and no value of it
        engine.run(data)
    if isinstance(data, Frozen):
        data.y[0] = 5.0
    else:
        data.y = 5.0
    with pytest.raises(InferenceError, match="changed in place"):
        engine.run(data)


def test_tensors_of_records_that_change_in_place_are_told():
    data = SimpleNamespace(y=torch.tensor(1.0))
    engine = pg.EP(of_record, progress=False)
    engine.run(data)
    data.y += 4.0
    with pytest.raises(InferenceError, match="changed in place"):
        engine.run(data)


def test_records_that_hold_one_another_are_arguments_too():
    def tree(y):
        child = SimpleNamespace(y=y)
        child.parent = SimpleNamespace(y=1.0, children=[child])
        return child

    child = tree(1.0)
    engine = pg.EP(of_record, progress=False)
    engine.run(child)
    engine.run(child)
    with pytest.raises(InferenceError, match="other model arguments"):
        engine.run(tree(1.0))  # which are compared up to where they begin again
    child.parent.y = 2.0
    with pytest.raises(InferenceError, match="changed in place"):
        engine.run(child)


def of_statements():
    yield pyro.sample("x", dist.Normal(0.0, 1.0))


@pytest.mark.parametrize("infer", [pg.BP, pg.GraphicalSVGD, pg.QBethe])
def test_a_generator_function_is_no_program(infer):
    with pytest.raises(OptionError, match=r"generator function.*yield"):
        pg.fit(of_statements, infer=infer, progress=False)
    with pytest.raises(OptionError, match=r"generator function.*yield"):
        pg.trace_graph(of_statements)
