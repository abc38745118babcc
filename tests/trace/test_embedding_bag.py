"""Bags of rows of a latent table, their sums, means and largest numbers: truth by autograd."""

import itertools

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F

import pyrograph as pg
from pyrograph.errors import LatentShapeError, UnsupportedOperation

INDEX = torch.tensor([0, 1, 3, 3, 2, 1])
STARTS = torch.tensor([0, 2, 2, 5])  # the second bag is empty
MEMBERS = [{0, 1}, set(), {3, 2}, {1}]

OPTIONS = {
    "ends": {"include_last_offset": True, "offsets": torch.tensor([0, 2, 2, 5, 6])},
    "a row left out": {"padding_idx": 1},
    "the last row left out": {"padding_idx": -1},
    "rows of bags": {"offsets": None, "input": INDEX.view(2, 3)},
}
CASES = [
    *((mode, {}) for mode in ("sum", "mean", "max")),
    *itertools.product(("sum", "mean", "max"), OPTIONS.values()),
    ("sum", {"per_sample_weights": torch.tensor([0.5, -1.0, 2.0, 1.0, 0.0, 3.0]).double()}),
]


def bags(table, mode, options):
    given = {"input": INDEX, "offsets": STARTS} | options
    return F.embedding_bag(given.pop("input"), table, mode=mode, **given)


@pytest.mark.parametrize("mode, options", CASES, ids=lambda value: value if value else "plain")
def test_density_gradient_and_scopes_are_those_of_the_bags(mode, options):
    shape = bags(torch.zeros(4, 2), mode, options).shape

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(4, 2), 1.0))
        pyro.sample("y", dist.Normal(bags(x, mode, options), 1.0), obs=torch.ones(shape))

    graph = pg.trace_graph(model)
    x = torch.randn(4, 2, requires_grad=True)
    normal = dist.Normal(0.0, 1.0).log_prob
    expected = normal(x).sum() + normal(bags(x, mode, options) - 1).sum()
    found = graph.log_prob({"x": x})
    torch.testing.assert_close(found, expected)
    (wanted,) = torch.autograd.grad(expected, x)
    torch.testing.assert_close(torch.autograd.grad(found, x)[0], wanted)
    torch.testing.assert_close(torch.autograd.grad(graph.sum_of_factors({"x": x}), x)[0], wanted)
    # a factor reads what moves it
    depends = torch.autograd.functional.jacobian(
        lambda t: bags(t, "mean" if mode == "max" else mode, options), x.detach()
    )
    moving = depends.flatten(2).flatten(0, 1) != 0
    scopes = [{("x", (k // 2, k % 2)) for k in row.nonzero()[:, 0].tolist()} for row in moving]
    assert [set(scope) for scope in graph.scopes("y")] == [scope for scope in scopes if scope]


def test_weights_of_the_rows_may_be_latent_and_the_table_a_parameter():
    table = torch.randn(4, 2, requires_grad=True)

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(6), 1.0))
        v = F.embedding_bag(INDEX, table, STARTS, mode="sum", per_sample_weights=w)
        pyro.sample("y", dist.Normal(v, 1.0), obs=torch.ones(4, 2))

    graph = pg.trace_graph(model, differentiable=True)
    w = torch.randn(6, requires_grad=True)
    normal = dist.Normal(0.0, 1.0).log_prob
    by_hand = torch.zeros(4, 2).index_add(
        0, torch.tensor([0, 0, 2, 2, 2, 3]), w[:, None] * table[INDEX]
    )
    expected = normal(w).sum() + normal(by_hand - 1).sum()
    found = graph.log_prob({"w": w})
    torch.testing.assert_close(found, expected)
    gradients = torch.autograd.grad(found, [w, table])
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, [w, table]))


def test_rows_may_be_chosen_by_latents():
    table = torch.tensor([[0.5, 1.0], [-1.0, 2.0], [0.0, 0.3]])

    def model():
        with pyro.plate("words", 3):
            z = pyro.sample("z", dist.Categorical(torch.ones(3)))
        v = F.embedding_bag(z, table, torch.tensor([0, 2]), mode="mean")
        pyro.sample("y", dist.Normal(v, 1.0).to_event(1), obs=torch.ones(2, 2))

    states = torch.cartesian_prod(*[torch.arange(3)] * 3)
    means = torch.stack([table[states[:, :2]].mean(1), table[states[:, 2]]], 1)
    joint = (
        dist.Normal(means, 1.0).log_prob(torch.tensor(1.0)).sum((1, 2))
        - 3 * torch.tensor(3.0).log()
    )
    torch.testing.assert_close(pg.trace_graph(model).log_prob({"z": states}), joint)


def test_what_has_no_fixed_bags_is_refused():
    def padded():
        with pyro.plate("words", 3):
            z = pyro.sample("z", dist.Categorical(torch.ones(3)))
        v = F.embedding_bag(z, torch.ones(3, 2), torch.tensor([0, 2]), padding_idx=1)
        pyro.factor("f", v.sum())

    def moving():
        z = pyro.sample("z", dist.Categorical(torch.ones(3)))
        starts = torch.stack([torch.zeros((), dtype=torch.int64), z])
        pyro.factor("f", F.embedding_bag(torch.arange(3), torch.ones(3, 2), starts).sum())

    with pytest.raises(UnsupportedOperation, match=r'chosen by latent site "z".*mask'):
        pg.trace_graph(padded)
    with pytest.raises(LatentShapeError, match='latent site "z"'):
        pg.trace_graph(moving)
