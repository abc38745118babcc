"""Operations written with other operations, each recorded by its own rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from pyrograph.errors import UnsupportedOperation

if TYPE_CHECKING:
    from pyrograph.trace.record import Recorder


#: How ``embedding_bag`` reduces its bags, if not by a sum.
MEAN, MAX = 1, 2


def rerun(rewrite: Callable) -> Callable:
    """The rewriting uses recorded operations itself."""

    def handler(rec: Recorder, func, args, kwargs):
        with rec.again():
            return rewrite(rec, func, args, kwargs)

    return handler


def mm(rec, func, args, kwargs):
    return torch.bmm(args[0].unsqueeze(0), args[1].unsqueeze(0)).squeeze(0)


def mv(rec, func, args, kwargs):
    return torch.bmm(args[0].unsqueeze(0), args[1].view(1, -1, 1)).view(-1)


def dot(rec, func, args, kwargs):
    return torch.bmm(args[0].view(1, 1, -1), args[1].view(1, -1, 1)).view(())


def addmm(rec, func, args, kwargs):
    base, a, b = args
    beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
    product = a @ b
    if alpha != 1:
        product = product * alpha
    return product + (base if beta == 1 else base * beta)


def sparse_product(rec, func, args, kwargs):
    """A constant sparse matrix times a latent: gather by its columns, add up by its rows."""
    if len(args) == 3:  # base + a @ x
        base, *factors = args
        product = sparse_product(rec, func, factors, {})
        return kwargs.get("beta", 1) * base + kwargs.get("alpha", 1) * product
    a, x = args
    if a.layout is torch.strided:  # x @ a = (a^T @ x^T)^T
        return sparse_product(rec, func, (x.t(), a.t()), kwargs).t()
    entries = a.to_sparse_coo().coalesce()
    row, column = entries.indices()
    weights = entries.values().reshape(-1, *(1,) * (x.dim() - 1))
    total = torch.zeros(a.shape[0], *x.shape[1:], dtype=x.dtype, device=x.device)
    return total.index_add(0, row, weights * x[column])


def addcmul(rec, func, args, kwargs):
    a, b, c = args
    product = b * c
    return a + (product if kwargs.get("value", 1) == 1 else product * kwargs["value"])


def addcdiv(rec, func, args, kwargs):
    a, b, c = args
    quotient = b / c
    return a + (quotient if kwargs.get("value", 1) == 1 else quotient * kwargs["value"])


def lerp(rec, func, args, kwargs):
    a, b, weight = args
    return a + (b - a) * weight


def distances(rec, func, args, kwargs):
    """``cdist``: entry (i, j) reads row i of one and row j of the other."""
    a, b, p = args[:3]
    return torch.linalg.vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), ord=p, dim=-1)


def pair_distances(rec, func, args, kwargs):
    x = args[0]
    i, j = torch.triu_indices(len(x), len(x), 1, device=x.device)
    return torch.linalg.vector_norm(x[i] - x[j], ord=args[1] if len(args) > 1 else 2, dim=-1)


def bucketize(rec, func, args, kwargs):
    """The number of boundaries below each value."""
    x, boundaries = args[0].unsqueeze(-1), args[1]
    below = x >= boundaries if kwargs.get("right") else x > boundaries
    return below.sum(-1, dtype=torch.int32 if kwargs.get("out_int32") else torch.int64)


def median(rec, func, args, kwargs):
    return args[0].reshape(-1).median(0).values


def embedding_bag(rec, func, args, kwargs):
    """Rows of a table, by index, reduced bag by bag; a bag without rows is 0.

    Of its results the first; autograd alone reads the others.
    """
    out = func(*args, **kwargs)
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    index, offsets, padding = given["indices"], given["offsets"], given.get("padding_idx", -1)
    if rec.is_latent(offsets):
        raise rec.latent_shape(func, offsets)
    if rec.is_latent(index) and padding >= 0:
        raise UnsupportedOperation(
            f"{rec.place()}: {func} leaves out rows chosen by {rec.sites_behind(index)}. Use "
            f"torch.nn.functional.embedding and a mask."
        )
    places = torch.arange(len(index), device=index.device)
    bag = torch.searchsorted(offsets.to(places), places, right=True) - 1
    kept = (index != padding).nonzero().squeeze(1) if padding >= 0 else places
    counts = torch.bincount(bag[kept], minlength=len(out[0]))
    with rec.again():
        rows = given["weight"][index]
        if given.get("per_sample_weights") is not None:
            rows = rows * given["per_sample_weights"].unsqueeze(-1)
        rows = rows[kept]
        if given.get("mode") == MAX:
            bags = rows.split(counts.tolist())
            total = torch.stack([rows.amax(0) if len(rows) else rows.sum(0) for rows in bags])
        else:
            total = torch.zeros_like(out[0]).index_add(0, bag[kept], rows)
        if given.get("mode") == MEAN:
            total = total / counts.clamp(min=1).unsqueeze(-1)
    return total, *out[1:]
