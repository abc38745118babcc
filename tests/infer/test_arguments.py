"""Arguments of a model that engines cannot take, and changes under a run that they tell."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg
from pyrograph.errors import OptionError


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
