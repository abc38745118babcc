"""Programs that must trace as they are: no warning, and Pyro's log density at other points."""

import copy
import functools
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyro import poutine
from pyro.contrib import gp
from pyro.contrib.autoname import scope as name_scope
from pyro.infer import config_enumerate
from pyro.infer.reparam import (
    LocScaleReparam,
    ProjectedNormalReparam,
    SplitReparam,
    SymmetricStableReparam,
    TransformReparam,
)
from pyro.nn import PyroModule, PyroParam, PyroSample, pyro_method
from pyro.ops.indexing import Vindex, vindex
from torch import library, nn

from pyrograph import trace_graph
from pyrograph.errors import DenseScopeWarning
from tests.structure.case import Case

from .helpers import assert_density, ok, warning

MATRIX = torch.tensor([[1.0, 0.5, 0.0], [0.2, 2.0, 0.1], [0.0, -0.3, 1.5]])
A = torch.tensor([[1.0, 2.0, 0.0, 1.0], [0.0, 1.0, 0.5, 0.0], [3.0, 0.0, 0.0, 1.0]])


def positive_definite(x):
    m = x[:3].outer(x[:3])
    return m + 3 * torch.eye(3).to(x)


def filled_buffer(x):
    buffer = x.new_zeros(5)
    for i in range(4):
        buffer[i + 1] = buffer[i] + x[i]
    return buffer


def filled_matrix(x):
    buffer = torch.zeros(2, 4)
    buffer[0] = x
    buffer[1, 1:3] = x[:2] * 2
    buffer[:, 3] += x[0]
    return buffer


def overwritten(x):
    y = x * 2
    before = y + 0
    y += 1
    y[0] = 0.0
    return torch.stack([before, y])


def python_sum(x):
    return sum(v * k for k, v in enumerate(x))


#: Of four real latents; every result is a log density without further reduction.
EXPRESSIONS = {
    "pointwise chain": lambda x: (x.exp() + x.sin() * 2 - x / 3).tanh(),
    "broadcast against a constant": lambda x: x * torch.randn(3, 1).abs().round() - x,
    "broadcast against itself": lambda x: x[:, None] - x,
    "where": lambda x: torch.where(x > 0, x, -2 * x),
    "where with a constant condition": lambda x: torch.where(
        torch.tensor([True, False, True, False]), x, torch.zeros(4)
    ),
    "comparison as a number": lambda x: (x > 0.1).double() * x,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp by tensors": lambda x: x.clamp(min=torch.full((4,), -0.3)),
    "min and max of two": lambda x: torch.minimum(x, torch.zeros(())) + torch.maximum(x, x.flip(0)),
    "einsum": lambda x: torch.einsum("i,ij,kj->k", x[:3], MATRIX.to(x), A[:, :3].to(x)),
    "linear": lambda x: F.linear(x, A.to(x), torch.ones(3).to(x)),
    "matrix times vector": lambda x: A.to(x) @ x,
    "vector times matrix": lambda x: x[:3] @ A.to(x),
    "dot": lambda x: x @ x.flip(0),
    "matrix times matrix": lambda x: x.view(2, 2) @ x.view(2, 2).T,
    "batched matmul": lambda x: torch.matmul(x.view(2, 1, 2), x.view(2, 2, 1)),
    "bmm": lambda x: torch.bmm(x.view(1, 2, 2), x.view(1, 2, 2)),
    "addmm": lambda x: torch.addmm(torch.ones(2, 2).to(x), x.view(2, 2), x.view(2, 2)),
    "outer": lambda x: torch.outer(x, x[:2]),
    "tensordot": lambda x: torch.tensordot(x.view(2, 2), x.view(2, 2), dims=1),
    "kron": lambda x: torch.kron(x[:2], x[2:]),
    "stack": lambda x: torch.stack([x[0], x[1] * 2, x[2] - x[3]]),
    "stack of iterated elements": lambda x: torch.stack([v * v for v in x]),
    "sum of a python loop": python_sum,
    "cat": lambda x: torch.cat([x, torch.ones(2).to(x), x[:1]]),
    "split": lambda x: functools.reduce(torch.add, x.split(2)),
    "chunk": lambda x: torch.cat(x.chunk(2)[::-1]),
    "unbind": lambda x: x.unbind()[1] * x.unbind()[2],
    "tensor_split": lambda x: x.tensor_split(2)[1],
    "sort": lambda x: x.sort().values,
    "argsort as an index": lambda x: torch.arange(4.0)[x.argsort()],
    "topk": lambda x: x.topk(2).values,
    "max over an axis": lambda x: x.view(2, 2).max(-1).values,
    "argmax": lambda x: torch.arange(4.0)[x.argmax()] + x.sum(),
    "amax": lambda x: x.view(2, 2).amax(0),
    "median": lambda x: x.view(1, 4).median(-1).values,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: F.log_softmax(x.view(2, 2), 0),
    "logsumexp": lambda x: x.logsumexp(-1),
    "logaddexp": lambda x: torch.logaddexp(x[:2], x[2:]),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "cummax": lambda x: x.cummax(0).values,
    "diff": lambda x: x.diff(),
    "prod": lambda x: x.view(2, 2).prod(0),
    "mean": lambda x: x.mean().exp(),
    "var": lambda x: x.var(),
    "std": lambda x: x.view(2, 2).std(-1),
    "norm": lambda x: x.norm(),
    "linalg norm": lambda x: torch.linalg.vector_norm(x.view(2, 2), dim=-1),
    "cholesky": lambda x: torch.linalg.cholesky(positive_definite(x)),
    "det": lambda x: torch.linalg.det(positive_definite(x)),
    "slogdet": lambda x: torch.linalg.slogdet(positive_definite(x))[1],
    "logdet": lambda x: torch.logdet(positive_definite(x)),
    "inverse": lambda x: torch.linalg.inv(positive_definite(x)),
    "solve": lambda x: torch.linalg.solve(positive_definite(x), x[:3]),
    "solve_triangular": lambda x: torch.linalg.solve_triangular(
        positive_definite(x).tril(), x[:3, None], upper=False
    ),
    "cholesky_solve": lambda x: torch.cholesky_solve(
        x[:3, None], torch.linalg.cholesky(positive_definite(x))
    ),
    "eigvalsh": lambda x: torch.linalg.eigvalsh(positive_definite(x)),
    "matrix_exp": lambda x: torch.matrix_exp(x.view(2, 2)),
    "trace": lambda x: x.view(2, 2).trace(),
    "diag": lambda x: torch.diag(x),
    "diagonal": lambda x: x.view(2, 2).diagonal(),
    "diag_embed": lambda x: torch.diag_embed(x.view(2, 2)),
    "tril": lambda x: x.view(2, 2).tril(),
    "block_diag": lambda x: torch.block_diag(x.view(2, 2), x[:1, None]),
    "pad": lambda x: F.pad(x, (1, 2), value=0.5),
    "roll and flip": lambda x: x.roll(1) * x.flip(0),
    "repeat": lambda x: x.repeat(2),
    "repeat_interleave": lambda x: x.repeat_interleave(2),
    "repeat_interleave by counts": lambda x: x.repeat_interleave(torch.tensor([1, 0, 2, 1])),
    "tile": lambda x: x.tile(2, 1),
    "gather": lambda x: x.gather(0, torch.tensor([2, 2, 0])),
    "take": lambda x: x.take(torch.tensor([3, 0])),
    "take_along_dim": lambda x: x.take_along_dim(torch.tensor([3, 0])),
    "index_select": lambda x: x.index_select(0, torch.tensor([1, 1])),
    "fancy index": lambda x: x.view(2, 2)[torch.tensor([0, 1]), torch.tensor([1, 1])],
    "boolean index": lambda x: x[torch.tensor([True, False, False, True])],
    "negative step by flip": lambda x: x[::2] + x[1::2].flip(0),
    "ellipsis and None": lambda x: x.view(2, 2)[..., None, 0],
    "scatter": lambda x: torch.zeros(5).to(x).scatter(0, torch.tensor([4, 0, 1, 2]), x),
    "scatter_add": lambda x: torch.zeros(2).to(x).scatter_add(0, torch.tensor([0, 1, 1, 0]), x),
    "index_add": lambda x: torch.zeros(2).to(x).index_add(0, torch.tensor([0, 1, 1, 0]), x),
    "index_put": lambda x: torch.zeros(3).to(x).index_put((torch.tensor([0, 2]),), x[:2]),
    "index_put accumulating": lambda x: (
        torch.zeros(3).to(x).index_put((torch.tensor([0, 2, 0, 2]),), x, accumulate=True)
    ),
    "masked_fill": lambda x: x.masked_fill(torch.tensor([True, False, False, True]), -1.0),
    "masked_fill by a latent": lambda x: x.masked_fill(x < 0, -1.0),
    "filled buffer": filled_buffer,
    "filled matrix": filled_matrix,
    "in-place on a copy": lambda x: x.clone().mul_(2).add_(1),
    "overwritten after use": overwritten,
    "relu": lambda x: F.relu(x) + F.softplus(x) + F.gelu(x) + F.logsigmoid(x),
    "cdist by hand": lambda x: (x[:, None] - x[None]).pow(2).sum(-1).sqrt(),
    "batch of quadratic forms": lambda x: ((x.view(2, 2) @ MATRIX[:2, :2].to(x)) ** 2).sum(-1),
    "view and transpose": lambda x: x.view(2, 2).mT.reshape(-1)[1:],
    "unfold": lambda x: x.unfold(0, 2, 1).sum(-1).sin(),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 1)),
    "movedim": lambda x: x.view(1, 2, 2).movedim(0, -1),
    "meshgrid": lambda x: torch.meshgrid(x[:2], x[2:], indexing="ij")[0].mul(2),
    "cartesian": lambda x: torch.cartesian_prod(x[:2], x[2:]).prod(-1),
    "cross": lambda x: torch.linalg.cross(x[:3], x[1:]),
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x.flip(0), value=0.5),
    "pow by a latent": lambda x: x.exp() ** x,
    "pow by a number": lambda x: x**2 + x**3,
    "float division": lambda x: 1.0 / (x.exp() + 1),
    "remainder": lambda x: x % 1.0 + x.floor(),
    "special functions": lambda x: torch.lgamma(x.exp()) + torch.digamma(x.exp()) + torch.erf(x),
    "xlogy": lambda x: torch.xlogy(x.exp(), x.exp()),
    "isnan": lambda x: torch.where(x.isnan(), torch.zeros(()), x),
    "nan_to_num": lambda x: x.nan_to_num(),
    "atan2": lambda x: torch.atan2(x[:2], x[2:]),
    "bucketize by constants": lambda x: x + torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])),
    "detach": lambda x: x.detach() + x,
    "contiguous of a transpose": lambda x: x.view(2, 2).T.contiguous(),
    "conversion to float32 and back": lambda x: x.float().double(),
    "full_like": lambda x: torch.full_like(x, 2.0) * x,
    "vmap": lambda x: torch.vmap(lambda a: a.sin() * x.sum())(x),
    "length and shape": lambda x: x * len(x) * x.shape[0] * x.numel(),
    "an empty out": lambda x: torch.mul(x, 2, out=torch.empty(0)).sin(),
    "an out of its shape": lambda x: torch.mul(x, 2, out=torch.ones(4)).sin(),
    "jacrev twice": lambda x: torch.func.jacrev(torch.func.jacrev(lambda v: (v**3).sum()))(x),
    "pinv": lambda x: torch.linalg.pinv(A.to(x).T) @ x,
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones(4).to(x),))[1],
    "copy.copy": lambda x: copy.copy(x) * copy.copy(x[1]),
    "pickle of a constant": lambda x: x * pickle.loads(pickle.dumps(torch.ones(4).to(x))),
    "copy.copy of a list": lambda x: copy.copy([x])[0],
    "as_tensor of a tensor": lambda x: torch.as_tensor(x) + x,
    "grid of windows": lambda x: F.unfold(x.view(1, 1, 2, 2), 2).sum().sin(),
    "one-dimensional convolution": lambda x: (x.unfold(0, 3, 1) * torch.ones(3).to(x)).sum(-1),
    "interpolation": lambda x: x[:-1] * 0.3 + x[1:] * 0.7,
    "mse": lambda x: -F.mse_loss(x, torch.zeros(4).to(x), reduction="none"),
    "cosine similarity": lambda x: F.cosine_similarity(x[:2], x[2:], dim=0),
    "layer norm": lambda x: F.layer_norm(x, (4,)),
    "normalize": lambda x: F.normalize(x, dim=0),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_of_latents_traces_to_pyros_density(name):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(4), 1.0))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            pyro.factor("f", EXPRESSIONS[name](x))

    # A density that passes through float32 is compared to float32's accuracy.
    ok(model, tolerance=1e-6 if "float32" in name else 1e-10)


@library.custom_op("pyrograph_tests::reversed_square", mutates_args=())
def reversed_square(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0) ** 2


TABLE = torch.rand(3, 4, 2)
#: Of a 0-dim latent ``z`` with three states, a vector ``v`` of two such, and a real table.
INDEXING = {
    "vector[z]": lambda z, v, w: w[:, 0, 0][z],
    "table[z]": lambda z, v, w: w[z],
    "table[z, 0]": lambda z, v, w: w[z, 0],
    "table[:, z]": lambda z, v, w: w[:, z],
    "table[0, z]": lambda z, v, w: w[0, z],
    "table[..., 0, :][z]": lambda z, v, w: w[..., 0, :][z],
    "table[..., z]": lambda z, v, w: w[..., :2, 0][..., z % 2],
    "table[z, None]": lambda z, v, w: w[z, None],
    "table[None, z]": lambda z, v, w: w[None, z],
    "table[z, z]": lambda z, v, w: w[z, z],
    "table[z][z]": lambda z, v, w: w[z][z],
    "table[z, 1:3]": lambda z, v, w: w[z, 1:3],
    "table[z, :, 0]": lambda z, v, w: w[z, :, 0],
    "table[:, z, 1]": lambda z, v, w: w[:, z, 1],
    "table[z, list]": lambda z, v, w: w[z, [0, 1]],
    "table[z, tensor]": lambda z, v, w: w[z, torch.tensor([0, 2])],
    "table[tensor, z]": lambda z, v, w: w[torch.tensor([0, 2]), z],
    "table[z, v]": lambda z, v, w: w[z, v],
    "table[v]": lambda z, v, w: w[v],
    "table[v, z]": lambda z, v, w: w[v, z],
    "table[v, v]": lambda z, v, w: w[v, v],
    "table[:, v]": lambda z, v, w: w[:, v],
    "table[v[:, None], v]": lambda z, v, w: w[v[:, None], v],
    "table[z + 1 - 1]": lambda z, v, w: w[z + 1 - 1],
    "table[-z]": lambda z, v, w: w[-z],
    "table[z // 2]": lambda z, v, w: w[z // 2],
    "Vindex(table)[z]": lambda z, v, w: Vindex(w)[z],
    "Vindex(table)[v, z]": lambda z, v, w: Vindex(w)[v, z],
    "Vindex(table)[..., v]": lambda z, v, w: Vindex(w[..., 0, :].mT)[..., v],
    "vindex(table, (v, :, 0))": lambda z, v, w: vindex(w, (v, slice(None), 0)),
    "gather": lambda z, v, w: w[:, 0, 0].gather(0, v),
    "index_select": lambda z, v, w: w.index_select(0, v),
    "embedding": lambda z, v, w: F.embedding(v, w[:, 0]),
    "take": lambda z, v, w: w.take(v),
    "select by where": lambda z, v, w: torch.where(z == 0, w[0], w[1]),
    "one_hot": lambda z, v, w: F.one_hot(v, 3).to(w) @ w[:, 0],
    "one_hot of a scalar": lambda z, v, w: F.one_hot(z, 3).to(w) @ w[:, 0],
    "mask by equality": lambda z, v, w: (v[:, None] == torch.arange(3)).to(w) @ w[:, 0],
    "boolean of states": lambda z, v, w: (z == v).to(w),
    "arithmetic": lambda z, v, w: (2 * z - 1) * v.to(w),
    "parity": lambda z, v, w: ((z + v.sum()) % 2).to(w),
    "bitwise": lambda z, v, w: ((v > 0) & (z > 0)).to(w),
    "xor": lambda z, v, w: ((v > 0) ^ (z > 0)).to(w),
    "histogram by one-hot": lambda z, v, w: F.one_hot(v, 3).sum(0).to(w),
    "float power of counts": lambda z, v, w: 0.5 ** v.to(w),
}


@pytest.mark.parametrize("table", ["constant", "latent"])
@pytest.mark.parametrize("name", INDEXING)
def test_indexing_by_discrete_latents_traces_to_pyros_density(name, table):
    def model():
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))
        with pyro.plate("two", 2):
            v = pyro.sample("v", dist.Categorical(torch.tensor([0.5, 0.2, 0.3])))
        w = TABLE.double()
        if table == "latent":
            w = pyro.sample("w", dist.Normal(w, 1.0).to_event(3))
        pyro.factor("f", INDEXING[name](z, v, w))

    ok(model)


# ---------------------------------------------------------------------- program features
def test_no_latents_at_all():
    def model(y):
        pyro.sample("y", dist.Normal(0.0, 1.0).expand([3]), obs=y)

    graph = ok(model, torch.randn(3))
    assert graph.num_nodes == graph.num_factors == graph.dim == 0
    assert graph.nodes == graph.factors == ()


def test_an_empty_program():
    graph = ok(lambda: None)
    assert graph.num_nodes == 0
    assert float(graph.log_prob({})) == 0.0


def test_a_latent_without_any_factor():
    def model():
        pyro.sample("x", dist.ImproperUniform(dist.constraints.real, (2,), ()))
        pyro.sample("y", dist.Normal(0.0, 1.0))

    graph = ok(model, draws={"x": lambda: torch.randn(2)})
    assert graph.blanket("x", 0) == frozenset()
    assert graph.scopes("y") == [(("y", ()),)]
    assert graph.num_factors == 1


def test_an_improper_prior_under_a_likelihood():
    def model(y):
        x = pyro.sample("x", dist.ImproperUniform(dist.constraints.positive, (), (2,)))
        pyro.sample("y", dist.Gamma(x.sum(), x.prod()), obs=y)

    ok(model, torch.tensor(0.7), draws={"x": lambda: torch.rand(2) + 0.1})


def test_a_site_of_size_zero():
    def model():
        pyro.sample("x", dist.Normal(torch.zeros(0), 1.0))
        pyro.sample("y", dist.Normal(0.0, 1.0))

    graph = ok(model)
    assert graph.num_nodes == 1


def test_keyword_arguments():
    def model(y, *, scale, names=()):
        x = pyro.sample("x", dist.Normal(0.0, scale))
        pyro.sample("y", dist.Normal(x, scale), obs=y)

    ok(model, torch.tensor(0.4), scale=2.0)


def test_a_return_value_is_ignored():
    def model():
        return {"x": pyro.sample("x", dist.Normal(0.0, 1.0))}

    ok(model)


def test_a_plate_whose_subsample_is_everything():
    def model(y):
        with pyro.plate("data", len(y), subsample_size=len(y)) as i:
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(x, 1.0), obs=y[i.sort().values])

    ok(model, torch.ones(4))


def test_nested_plates_with_automatic_dimensions():
    def model():
        with pyro.plate("a", 2), pyro.plate("b", 3):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
            with pyro.plate("c", 2):
                pyro.sample("y", dist.Normal(x, 1.0))

    assert ok(model).num_nodes == 6 + 12


def test_a_plate_of_one():
    def model(y):
        with pyro.plate("data", 1):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(x, 1.0), obs=y)

    ok(model, torch.zeros(1))


def test_observed_statements_that_broadcast_their_data():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0))
        pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(0.5))

    ok(model)


def test_masks_in_every_form():
    def model(y, mask):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)), poutine.mask(mask=mask):
            pyro.sample("a", dist.Normal(x, 1.0), obs=y)
        with poutine.mask(mask=False):
            pyro.sample("b", dist.Normal(x, 1.0), obs=torch.tensor(0.0))
        with poutine.mask(mask=True):
            pyro.sample("c", dist.Normal(x, 1.0), obs=torch.tensor(0.0))
        pyro.sample("d", dist.Normal(x, 1.0).mask(False), obs=torch.tensor(0.0))
        with pyro.plate("more", len(y)):
            pyro.sample("e", dist.Normal(x, 1.0).mask(~mask), obs=y)

    graph = ok(model, torch.randn(4), torch.tensor([True, False, False, True]))
    assert len(graph.scopes("a")) == len(graph.scopes("e")) == 2
    assert graph.scopes("d") == []


def test_a_mask_that_depends_on_a_latent():
    def model(y):
        n = pyro.sample("n", dist.Categorical(torch.ones(5)))
        with pyro.plate("data", len(y)), poutine.mask(mask=torch.arange(len(y)) < n):
            pyro.sample("y", dist.Normal(0.0, 1.0), obs=y)

    graph = ok(model, torch.randn(4))
    assert graph.scopes("y") == [(("n", ()),)] * 4


def test_a_scale_that_is_nested():
    def model():
        with poutine.scale(scale=0.5), poutine.scale(scale=3.0):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("f", -x.abs())

    ok(model)


def test_config_enumerate_changes_nothing():
    @config_enumerate
    def model():
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.3, 0.7])))
        pyro.sample("y", dist.Normal(z.double(), 1.0), obs=torch.tensor(0.2))

    ok(model)


def test_sites_marked_for_inference():
    def model():
        z = pyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
        pyro.sample("a", dist.Normal(z, 1.0), infer={"is_auxiliary": True})

    assert ok(model).num_nodes == 2


def test_blocked_and_seeded_programs():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(x, 1.0))

    ok(poutine.seed(model, rng_seed=3))
    graph = ok(poutine.block(model, hide=[]))
    assert set(graph.sites) == {"x", "y"}


def test_a_site_that_is_replayed_is_held_at_its_value():
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(a, 1.0))
        pyro.sample("o", dist.Normal(b, 1.0), obs=torch.tensor(0.3))

    trace = poutine.trace(poutine.block(model, expose=["a"])).get_trace()
    a, b = trace.nodes["a"]["value"], torch.tensor(0.8)
    normal = dist.Normal(0.0, 1.0).log_prob
    for unconstrained in (False, True):
        graph = trace_graph(poutine.replay(model, trace), unconstrained=unconstrained)
        assert graph.nodes == (("b", ()),)
        truth = normal(a) + normal(b - a) + normal(0.3 - b)
        torch.testing.assert_close(graph.log_prob({"b": b}), truth)


def test_lifted_parameters():
    def model():
        a = pyro.param("a", torch.tensor(1.0))
        pyro.sample("y", dist.Normal(a, 1.0), obs=torch.tensor(0.0))

    lifted = poutine.lift(model, prior={"a": dist.Normal(0.0, 1.0)})
    assert ok(lifted).nodes == (("a", ()),)


def test_uncondition_makes_data_latent():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(0.0))

    assert set(ok(poutine.uncondition(model)).sites) == {"x", "y"}


def test_name_scopes():
    @name_scope(prefix="inner")
    def part():
        return pyro.sample("x", dist.Normal(0.0, 1.0))

    def model():
        pyro.factor("f", -(part() ** 4))

    assert ok(model).nodes == (("inner/x", ()),)


def test_nested_conditions():
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(a, 1.0))
        pyro.sample("c", dist.Normal(a * b, 1.0))

    inner = poutine.condition(model, data={"c": torch.tensor(1.0)})
    graph = ok(poutine.condition(inner, data={"a": torch.tensor(0.3)}))
    assert graph.nodes == (("b", ()),)


REPARAMETERISATIONS = {
    "loc-scale, learned": (LocScaleReparam(), lambda: dist.Normal(torch.zeros(2), 2.0)),
    "loc-scale, half": (LocScaleReparam(0.5), lambda: dist.Normal(torch.zeros(2), 2.0)),
    "loc-scale, Student": (
        LocScaleReparam(0.0, shape_params=["df"]),
        lambda: dist.StudentT(3.0, torch.zeros(2), 2.0),
    ),
    "transform": (TransformReparam(), lambda: dist.LogNormal(torch.zeros(2), 1.0)),
    "projected normal": (
        ProjectedNormalReparam(),
        lambda: dist.ProjectedNormal(torch.ones(3, 2)),
    ),
    "symmetric stable": (
        SymmetricStableReparam(),
        lambda: dist.Stable(torch.tensor([1.5, 1.2]), 0.0),
    ),
    "projected normal, one": (
        ProjectedNormalReparam(),
        lambda: dist.ProjectedNormal(torch.ones(2)),
    ),
}


@pytest.mark.parametrize("name", REPARAMETERISATIONS)
def test_reparameterised_sites(name):
    reparam, prior = REPARAMETERISATIONS[name]

    def model():
        x = pyro.sample("x", prior())
        pyro.sample("y", dist.Normal(x.sum(-1), 1.0), obs=torch.tensor(0.3))

    ok(poutine.reparam(model, config={"x": reparam}))


def test_asserts_of_pyro_hold_beside_a_default_device():
    reparam, prior = REPARAMETERISATIONS["symmetric stable"]

    def model():
        x = pyro.sample("x", prior())
        pyro.sample("y", dist.Normal(x.sum(-1), 1.0), obs=torch.tensor(0.3))

    with torch.device("cpu"):
        ok(poutine.reparam(model, config={"x": reparam}))


def test_a_split_site_keeps_its_density():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 2.0).to_event(1))
        pyro.sample("y", dist.Normal(x.prod(-1), 1.0), obs=torch.tensor(0.3))

    split = poutine.reparam(model, config={"x": SplitReparam([1, 2], -1)})
    draws = {f"x_split_{i}": lambda n=n: torch.randn(n) for i, n in enumerate([1, 2])}
    assert set(ok(split, draws=draws).sites) == set(draws)


def test_a_delta_with_a_log_density_is_a_statement():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 2.0))
        pyro.sample("d", dist.Delta(x, log_density=-(x**4)), obs=x)

    graph = ok(model)
    assert graph.scopes("d") == [(("x", (0,)),), (("x", (1,)),)]


class Regression(PyroModule):
    def __init__(self, inputs):
        super().__init__()
        self.linear = PyroModule[nn.Linear](inputs, 1)
        self.linear.weight = PyroSample(
            lambda _: dist.Normal(torch.zeros(1, inputs), 1.0).to_event(2)
        )
        self.linear.bias = PyroSample(lambda _: dist.Normal(torch.zeros(1), 1.0).to_event(1))
        self.scale = PyroParam(torch.tensor(0.7), constraint=dist.constraints.positive)

    def forward(self, x, y=None):
        mean = self.linear(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(mean, self.scale), obs=y)

    @pyro_method
    def prior_only(self):
        return self.linear.weight


def test_a_pyro_module():
    graph = ok(Regression(3), torch.randn(5, 3), torch.randn(5))
    assert set(graph.sites) == {"linear.weight", "linear.bias"}


def test_a_method_of_a_pyro_module():
    assert set(ok(Regression(3).prior_only).sites) == {"linear.weight"}


def test_a_network_of_constant_weights():
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()

    def model():
        pyro.module("net", net)
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0))
        pyro.factor("f", net(x).squeeze(-1))

    ok(model)


def test_parameters_are_constants_at_their_current_value():
    def model():
        a = pyro.param("a", torch.tensor(1.0))
        x = pyro.sample("x", dist.Normal(a, 1.0))
        pyro.factor("f", x * a)

    pyro.get_param_store().clear()
    graph = ok(model)
    assert set(graph.sites) == {"x"}


def test_data_dependent_control_flow_on_constants():
    def model(y):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        for i, v in enumerate(y):
            if v > 0:
                pyro.sample(f"y{i}", dist.Normal(x, 1.0), obs=v)

    ok(model, torch.tensor([1.0, -1.0, 2.0]))


def test_a_float32_program():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3, dtype=torch.float32), 1.0))
        pyro.factor("f", x.softmax(-1) @ x)

    graph = ok(model, tolerance=1e-5)
    assert graph.dtype == torch.float32


def test_a_program_of_mixed_precision():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2, dtype=torch.float32), 1.0))
        y = pyro.sample("y", dist.Normal(torch.zeros(2), 1.0))
        pyro.factor("f", -(x - y).abs())

    ok(model, tolerance=1e-6)


def test_integer_and_boolean_data():
    def model():
        p = pyro.sample("p", dist.Beta(2.0, 2.0))
        z = pyro.sample("z", dist.Binomial(5, p))
        pyro.sample("y", dist.Bernoulli(p), obs=torch.tensor(True).double())
        pyro.sample("n", dist.Poisson(1.0 + z), obs=torch.tensor(3))

    ok(model)


def test_an_unbounded_discrete_site():
    def model():
        n = pyro.sample("n", dist.Poisson(4.0))
        pyro.sample("y", dist.Normal(n, 1.0), obs=torch.tensor(3.3))

    graph = ok(model)
    assert graph.sites["n"].cardinality is None


def test_a_site_with_infinite_log_density_elsewhere():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("wall", torch.where(x > -100, torch.zeros(()), torch.tensor(-torch.inf)))

    ok(model)


def test_a_factor_of_a_constant():
    def model():
        pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("f", torch.tensor(-3.0))

    graph = ok(model)
    assert float(graph.constant) == -3.0
    assert graph.scopes("f") == []


def test_a_delta_of_a_latent():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("d", dist.Delta(x * 2), obs=x * 2)
        pyro.sample("e", dist.Delta(torch.tensor(1.0), log_density=x), obs=torch.tensor(1.0))

    ok(model)


def test_a_point_mass_that_is_not_observed_is_deterministic():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0))
        d = pyro.sample("d", dist.Delta(2 * x))
        pyro.factor("f", -d.abs())

    graph = trace_graph(model)
    assert set(graph.sites) == {"x"}
    assert graph.scopes("f") == [(("x", (0,)),), (("x", (1,)),)]
    x = torch.tensor([0.5, -2.0])
    expected = dist.Normal(0.0, 1.0).log_prob(x).sum() - (2 * x).abs().sum()
    torch.testing.assert_close(graph.log_prob({"x": x}), expected)


def test_data_computed_from_latents():
    """A change of variables written by hand: what is observed is itself a function."""

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0))
        y = pyro.sample("y", dist.Normal(0.0, 1.0))
        pyro.sample("warped", dist.Gamma(2.0, 1.0).expand([3]), obs=x.exp() * (1 + y**2))
        pyro.sample("itself", dist.Laplace(y, 1.0), obs=y)

    graph = ok(model)
    assert graph.scopes("warped") == [(("x", (i,)), ("y", ())) for i in range(3)]
    assert graph.scopes("itself") == [(("y", ()),)]


def test_a_scale_that_depends_on_a_latent():
    def model():
        w = pyro.sample("w", dist.LogNormal(0.0, 0.3))
        with poutine.scale(scale=w):
            x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0))
        pyro.factor("f", x * w)

    graph = ok(model)
    assert graph.blanket("x", 0) == {("w", ())}


def test_a_mask_of_a_distribution_that_depends_on_a_latent():
    def model():
        on = pyro.sample("on", dist.Bernoulli(0.5 * torch.ones(3)))
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0))
        pyro.sample("y", dist.Normal(x, 1.0).mask(on.bool()), obs=torch.ones(3))

    graph = ok(model)
    assert graph.blanket("on", 1) == {("x", (1,))}


def test_gradients_taken_inside_the_program():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0))
        score = torch.func.grad(lambda v: (v**3).sum() + v[0] * v[1])(x)
        pyro.factor("f", -score.abs())

    graph = ok(model)
    assert graph.scopes("f")[2] == (("x", (2,)),)


def test_a_step_by_step_integration():
    def model():
        x = y = pyro.sample("x", dist.Normal(0.0, 1.0))
        for _ in range(30):
            y = y + 0.1 * torch.sin(y)
        pyro.sample("y", dist.Normal(y, 0.1), obs=torch.tensor(1.0))
        pyro.factor("start", -(x**2))

    ok(model)


def test_a_latent_is_printed_and_formatted(capsys):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0))
        print(x, f"{x[0]}", repr(x), str(x.shape))
        pyro.factor("f", -x.abs())

    ok(model)
    assert "tensor" in capsys.readouterr().out


def test_a_site_held_at_a_value_in_both_spaces():
    def model():
        s = pyro.sample("s", dist.LogNormal(0.0, 1.0))
        x = pyro.sample("x", dist.Normal(torch.zeros(3), s))
        pyro.factor("f", -((x * x.roll(1)).exp()))

    for unconstrained in (False, True):
        graph = ok(model, fixed={"s": torch.tensor(1.7)}, unconstrained=unconstrained)
        assert graph.num_nodes == 4 and graph.dim == 3
        assert graph.blanket("s") == frozenset()
        assert graph.scopes("x") == [(("x", (i,)),) for i in range(3)]


RECURRENT = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_networks(name):
    torch.manual_seed(0)
    net = RECURRENT[name](2, 3).double()

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(4, 2), 1.0))
        pyro.factor("f", net(x)[0].sum(-1).sin())

    graph = ok(model)
    # Step t reads steps 0..t of both inputs.
    assert [len(scope) for scope in graph.scopes("f")] == [2, 4, 6, 8]


def test_attention():
    torch.manual_seed(0)
    net = nn.MultiheadAttention(4, 2).double()

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3, 4), 1.0))
        pyro.factor("f", net(x, x, x)[0].sum(-1).sin())

    ok(model)


def test_a_normalising_flow_as_a_prior():
    torch.manual_seed(0)
    flow = dist.transforms.affine_autoregressive(3, hidden_dims=[5]).double()

    def model():
        pyro.module("flow", flow)
        base = dist.Normal(torch.zeros(3), 1.0).to_event(1)
        x = pyro.sample("x", dist.TransformedDistribution(base, [flow]))
        pyro.factor("f", -x.abs().sum())

    assert ok(model).nodes == (("x", ()),)


PYRO_FAMILIES = {
    "discrete hmm": lambda x: dist.DiscreteHMM(
        torch.zeros(2), torch.zeros(2, 2), dist.Normal(x[:2], 1.0), duration=4
    ),
    "multivariate t": lambda x: dist.MultivariateStudentT(3.0, x[:4], torch.eye(4)),
    "masked mixture": lambda x: dist.MaskedMixture(
        torch.tensor([True, False, True, False]), dist.Normal(x[:4], 1.0), dist.Laplace(x[:4], 2.0)
    ),
    "nan-masked normal": lambda x: dist.NanMaskedNormal(x[:4], 1.0),
    "low rank": lambda x: dist.LowRankMultivariateNormal(x[:4], torch.ones(4, 1), x[:4].exp()),
    "skew logistic": lambda x: dist.SkewLogistic(0.0, 1.0, x[:4].exp()),
    "affine beta": lambda x: dist.AffineBeta(x[:4].exp(), 1.0, 0.0, 2.0),
    "student event": lambda x: dist.StudentT(3.0, x[:4], 1.0).to_event(1),
    "mixture of diagonal normals": lambda x: dist.MixtureOfDiagNormals(
        x[:8].view(2, 4), torch.ones(2, 4), torch.zeros(2)
    ),
    "categorical": lambda x: dist.Categorical(logits=x.view(4, 2)),
    "projected normal": lambda x: dist.ProjectedNormal(x[:4].view(2, 2)).to_event(0),
}


@pytest.mark.parametrize("name", PYRO_FAMILIES)
def test_families_of_pyro_as_likelihoods(name):
    data = torch.tensor([0.5, 0.5, 0.5, 0.5])
    if name == "categorical":
        data = torch.tensor([0, 1, 1, 0])
    elif name == "projected normal":
        data = torch.tensor([[1.0, 0.0], [0.6, 0.8]])

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(8), 1.0))
        pyro.sample("y", PYRO_FAMILIES[name](x), obs=data)

    ok(model, tolerance=1e-9)


SPARSE = torch.tensor([[2.0, -1.0, 0.0, 0.0], [-1.0, 2.0, -1.0, 0.0], [0.0, 0.0, -1.0, 2.0]])


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@pytest.mark.parametrize("layout", ["dense", "coo", "csr"])
def test_sparse_matrices_are_dependences_at_their_entries_only(layout):
    matrix = {
        "dense": lambda m: m,
        "coo": lambda m: m.to_sparse(),
        "csr": lambda m: m.to_sparse_csr(),
    }[layout](SPARSE.double())

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(4), 1.0))
        pyro.factor("f", torch.tanh(matrix @ x))

    graph = trace_graph(model)
    assert graph.scopes("f") == [
        (("x", (0,)), ("x", (1,))),
        (("x", (0,)), ("x", (1,)), ("x", (2,))),
        (("x", (2,)), ("x", (3,))),
    ]


def test_a_gaussian_process_of_pyros_own_library():
    kernel = gp.kernels.RBF(1)
    kernel.lengthscale = PyroSample(dist.LogNormal(torch.tensor(0.0), 1.0))
    x, y = torch.linspace(0, 1, 5), torch.randn(5)
    regression = gp.models.GPRegression(x, y, kernel, noise=torch.tensor(0.3))
    assert ok(regression.model, tolerance=1e-9).nodes == (("kernel.lengthscale", ()),)


def test_batch_normalisation_in_evaluation_mode():
    net = nn.BatchNorm1d(3).double().eval()

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(4, 3), 1.0))
        pyro.factor("f", net(x).sin().sum(-1))

    ok(model)


def test_deterministics_of_events():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        y = pyro.deterministic("y", x.cumsum(-1), event_dim=1)
        pyro.factor("f", -y.norm())

    assert set(ok(model).sites) == {"x"}


def test_statements_with_odd_names():
    def model():
        x = pyro.sample('a "quoted" name', dist.Normal(0.0, 1.0))
        pyro.factor("f[0]/g", x)

    graph = ok(model)
    assert graph.scopes("f[0]/g") == [(('a "quoted" name', ()),)]


def test_a_program_run_under_no_grad_and_one_with_gradients():
    weight = torch.ones(2, requires_grad=True)

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0))
        pyro.factor("f", weight * x)

    with torch.no_grad():
        ok(model)
    graph = ok(model)
    assert not graph.log_prob({"x": torch.zeros(2)}).requires_grad


def test_validation_asked_for_by_the_program():
    """Validation reads values, but has had its own run."""

    def model():
        s = pyro.sample("s", dist.HalfNormal(1.0))
        pyro.sample("y", dist.Normal(0.0, s, validate_args=True), obs=torch.tensor(0.1))

    ok(model)


def test_an_operation_without_a_rule_is_dense_and_warned_about():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0))
        pyro.factor("f", reversed_square(x))

    graph = warning(DenseScopeWarning, ["reversed_square", 'after statement "x"'], model)
    assert graph.scopes("f") == [tuple(("x", (i,)) for i in range(3))] * 3
    assert_density(Case(model), graph, False, 1e-10)


def test_a_large_plate_traces_in_a_blink():
    def model(n):
        with pyro.plate("n", n):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(x, 1.0), obs=torch.zeros(n))

    assert ok(model, 20_000).num_factors == 40_000


def test_a_long_loop_shares_a_few_groups():
    def model(n):
        x = 0.0
        for t in pyro.markov(range(n)):
            x = pyro.sample(f"x{t}", dist.Normal(x, 1.0))
            pyro.sample(f"y{t}", dist.Normal(x, 1.0), obs=torch.tensor(0.1))

    graph = ok(model, 100)
    assert graph.num_factors == 200
    assert len(graph.factors) <= 4
