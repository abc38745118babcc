"""Other implementations of SVGD on a Gaussian field, for timing beside ours.

All take the same start, AdaGrad with the same step and bandwidth med^2 (of the whole vector for
a global kernel, of a coordinate for Pyro's univariate mode). Each is a function that makes
``num_steps`` iterations in single precision from ``start`` and returns ``[n, d]``.

    chunked      the paper's kernel as a careful user would write it in torch: nodes in chunks,
                 distances by one batched product, the exact median at every step
    pyro         pyro.infer.SVGD, global ("multivariate") or one kernel per coordinate
    numpyro      numpyro's SVGD with its global RBF kernel, compiled by XLA
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from sparse_field import SparseField
from torch import Tensor

Stepper = Callable[[Tensor, int], Tensor]
CHUNK = 256
EPS = 1e-10


def chunked(field: SparseField, lr: float) -> Stepper:
    """Eq (8) in torch, written by hand."""
    dim = len(field.linear)
    scopes = field.closed_neighbourhoods()
    linear, precision = field.linear.float()[:, None], field.matrix().float()

    def direction(x: Tensor, pairs: Tensor) -> Tensor:
        n = x.shape[1]
        score = linear - precision @ x
        padded = torch.cat([x, x.new_zeros(1, n)])
        out = torch.empty_like(x)
        for first in range(0, dim, CHUNK):
            part = slice(first, first + CHUNK)
            z = padded[scopes[part]]
            norm = z.square().sum(1)
            squared = torch.baddbmm(
                norm[:, :, None] + norm[:, None, :], z.transpose(1, 2), z, alpha=-2
            ).clamp_min_(0)
            h = squared.flatten(1)[:, pairs].median(1).values[:, None, None]
            kernel = squared.div_(-h).exp_()
            sums = kernel @ torch.stack([score[part], x[part], torch.ones_like(x[part])], 2)
            drive, pull, mass = sums.unbind(2)
            out[part] = (drive + 2 / h[:, :, 0] * (x[part] * mass - pull)) / n
        return out

    def run(start: Tensor, num_steps: int) -> Tensor:
        x = start.t().float().contiguous()
        left, right = torch.triu_indices(len(start), len(start), 1)
        pairs, squares = left * len(start) + right, torch.zeros_like(x)
        with torch.inference_mode():
            for _ in range(num_steps):
                phi = direction(x, pairs)
                squares += phi.square()
                x = x + lr * phi / (squares.sqrt() + EPS)
        return x.t().double()

    return run


def pyro_svgd(field: SparseField, lr: float, mode: str) -> Stepper:
    """Pyro's own, ``mode`` ``"multivariate"`` or ``"univariate"``."""
    import pyro
    import pyro.distributions as dist
    from pyro.infer import SVGD, RBFSteinKernel

    dim = len(field.linear)
    linear, diagonal = field.linear.float(), field.diagonal.float()
    (i, j), weight = field.edges.t(), field.weight.float()
    # dense products are the faster way for Pyro while they fit
    dense = field.matrix().to_dense().float() if dim <= 2000 else None

    def model() -> None:
        flat = dist.Normal(torch.zeros(dim), 1.0).mask(False).to_event(1)
        x = pyro.sample("x", flat)
        if dense is not None:
            quadratic = (x @ dense * x).sum(-1)
        else:
            quadratic = (diagonal * x * x).sum(-1) + 2 * (weight * x[..., i] * x[..., j]).sum(-1)
        pyro.factor("field", (linear * x).sum(-1) - quadratic / 2)

    def run(start: Tensor, num_steps: int) -> Tensor:
        n = len(start)
        # Pyro divides med^2 by log(n + 1) and averages distances over coordinates
        factor = math.log(n + 1) * (dim if mode == "multivariate" else 1)
        pyro.clear_param_store()
        pyro.param("svgd_particles", start.float().flatten())
        svgd = SVGD(model, RBFSteinKernel(factor), pyro.optim.Adagrad({"lr": lr}), n, 0, mode)
        svgd.guide._setup_prototype()
        for _ in range(num_steps):
            svgd.step()
        return svgd.get_named_particles()["x"].detach().reshape(n, dim).double()

    return run


def numpyro_global(field: SparseField, lr: float) -> Stepper:
    """NumPyro's compiled SVGD with one kernel on everything."""
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    import numpyro
    import numpyro.distributions as dist
    from numpyro.contrib.einstein import SVGD, RBFKernel
    from numpyro.optim import Adagrad

    dim = len(field.linear)
    linear, diagonal = jnp.asarray(field.linear.float()), jnp.asarray(field.diagonal.float())
    i, j = jnp.asarray(field.edges[:, 0]), jnp.asarray(field.edges[:, 1])
    weight = jnp.asarray(field.weight.float())
    dense = jnp.asarray(field.matrix().to_dense().float()) if dim <= 2000 else None

    def model() -> None:
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([dim]).to_event(1).mask(False))
        if dense is not None:
            quadratic = x @ (dense @ x)
        else:
            quadratic = diagonal @ (x * x) + 2 * (weight * x[i] * x[j]).sum()
        numpyro.factor("field", linear @ x - quadratic / 2)

    @functools.partial(jax.jit, static_argnums=0)
    def iterate(svgd, state, num_steps):
        return jax.lax.fori_loop(0, num_steps, lambda _, s: svgd.update(s)[0], state)

    @functools.cache
    def prepared(n: int):
        kernel = RBFKernel(bandwidth_factor=lambda _: 1.0)
        svgd = SVGD(model, Adagrad(step_size=lr, momentum=0.0), kernel, num_stein_particles=n)
        return svgd, svgd.init(jax.random.key(0))

    def run(start: Tensor, num_steps: int) -> Tensor:
        svgd, state = prepared(len(start))
        (name,) = svgd.get_params(state)
        begin = svgd.optim.init({name: jnp.asarray(start.float().numpy())})
        state = jax.block_until_ready(iterate(svgd, state._replace(optim_state=begin), num_steps))
        (x,) = svgd.get_params(state).values()
        return torch.from_numpy(np.array(x)).double()

    return run
