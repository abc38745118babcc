"""Functions of six real numbers, one or more for every ATen family, by family."""

import torch
import torch.nn.functional as F

aten = torch.ops.aten
INDEX = torch.tensor([4, 0, 0, 2])
MASK = torch.tensor([True, False, True, True, False, False])
SPARSE = torch.tensor(
    [
        [1.0, 0.0, 2.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, -1.0, 0.0, 0.5, 0.0, 3.0],
    ],
    dtype=torch.float64,
)
WEIGHTS = torch.tensor([[0.5, 0.0], [2.0, -1.0], [0.0, 1.5]], dtype=torch.float64)


def spd(x):
    """Two positive definite 2 x 2 matrices: the first of x[:3], the second of x[3:]."""
    a = x.view(2, 3)
    off = 0.3 * a[:, 1].tanh()
    diagonal = 1 + a[:, ::2].exp()
    return torch.diag_embed(diagonal) + torch.stack(
        [torch.stack([off * 0, off], -1), torch.stack([off, off * 0], -1)], -2
    )


def out(shape, function):
    """``function(x, out=buffer)``."""

    def call(x):
        buffer = torch.empty(shape, dtype=x.dtype)
        return function(x, buffer)

    return call


POINTWISE = {
    "unary": lambda x: x.exp() + x.sigmoid().log() + x.abs().sqrt() + x.erf(),
    "reciprocal and powers": lambda x: x.reciprocal() + x**2 + x.square() + 2**x + x.exp().rsqrt(),
    "hyperbolic": lambda x: x.tanh() + x.sinh() + x.cosh() + x.atan() + x.asinh(),
    "logarithms": lambda x: x.abs().log1p() + x.expm1() + x.exp().log2() + x.exp().log10(),
    "gamma functions": lambda x: torch.lgamma(x.exp()) + torch.digamma(x.exp()),
    "polygamma": lambda x: torch.polygamma(1, x.exp()),
    "special": lambda x: torch.special.i0e(x) + torch.special.ndtr(x) + torch.special.log_ndtr(x),
    "bessel": lambda x: torch.special.i0(x) + torch.special.i1e(x) + torch.i0(x),
    "entropy": lambda x: torch.special.entr(x.exp()),
    "rounding": lambda x: x.floor() + x.ceil() + x.round() + x.trunc() + 0.1 * x.frac(),
    "sign": lambda x: x.sign() * x + x.sgn(),
    "two tensors": lambda x: x * x.roll(1) + x / (x.roll(2).exp()) - x.roll(3),
    "power of tensors": lambda x: x.exp() ** x.roll(1),
    "constant base": lambda x: torch.full((6,), 1.5, dtype=x.dtype) ** x,
    "atan2": lambda x: torch.atan2(x, x.roll(1)),
    "hypot": lambda x: torch.hypot(x, x.roll(1)),
    "logaddexp": lambda x: torch.logaddexp(x, x.roll(1)) + torch.logaddexp2(x, x.roll(2)),
    "extrema": lambda x: torch.maximum(x, x.roll(1)) + torch.fmin(x, x.roll(2)),
    "clamp": lambda x: x.clamp(-1, 1) + x.clamp(min=x.roll(1)),
    "lerp": lambda x: torch.lerp(x, x.roll(1), 0.3) + torch.lerp(x, x.roll(1), x.roll(2)),
    "addcmul": lambda x: torch.addcmul(x, x.roll(1), x.roll(2), value=0.5),
    "addcdiv": lambda x: torch.addcdiv(x, x.roll(1), x.roll(2).exp(), value=2.0),
    "comparison": lambda x: (x > x.roll(1)).to(x) + (x <= 0.2).to(x),
    "logical": lambda x: ((x > 0) & (x.roll(1) > 0)).to(x) + torch.logical_or(x > 1, x < -1).to(x),
    "not": lambda x: (~(x > 0)).to(x),
    "where": lambda x: torch.where(x > 0, x.roll(1), x.roll(2)),
    "where against numbers": lambda x: torch.where(x > 0, x.roll(1), 2.0),
    "where chosen by a constant": lambda x: torch.where(MASK, x.roll(1), x.roll(2)),
    "broadcast": lambda x: x[:2, None] * x[2:5] + x[5],
    "by a zero": lambda x: x * MASK + x.roll(1) * torch.tensor([0.0, 1, 0, 1, 0, 1]),
    "xlogy": lambda x: torch.xlogy(x, x.roll(1).exp()) + torch.special.xlog1py(x, x.exp()),
    "remainder": lambda x: x % 0.7 + torch.fmod(x, 0.4) + torch.remainder(1.0, x.exp()),
    "floor division": lambda x: x // 0.5 + torch.div(x, 0.3, rounding_mode="trunc"),
    "activations": lambda x: F.relu(x) + F.gelu(x) + F.silu(x) + F.elu(x) + F.leaky_relu(x),
    "more activations": lambda x: F.softplus(x) + F.mish(x) + F.hardtanh(x) + F.selu(x) + F.celu(x),
    "shrinkage": lambda x: F.hardshrink(x) + F.softshrink(x) + F.threshold(x, 0.1, 20.0),
    "logsigmoid": lambda x: F.logsigmoid(x),
    "cross entropy of logits": lambda x: F.binary_cross_entropy_with_logits(
        x, MASK.to(x), reduction="none"
    ),
    "cross entropy of latent targets": lambda x: F.binary_cross_entropy_with_logits(
        x, x.roll(1).sigmoid(), reduction="none"
    ),
    "huber": lambda x: F.huber_loss(x, x.roll(1), reduction="none"),
    "losses of single numbers that average": lambda x: (
        F.huber_loss(x.flatten()[0], x.flatten()[1])
        + F.binary_cross_entropy_with_logits(x.flatten()[0], x.flatten()[2].sigmoid())
    ),
    "smooth l1": lambda x: F.smooth_l1_loss(x, x.roll(1), reduction="none"),
    "squared error": lambda x: F.mse_loss(x, x.roll(1), reduction="none"),
    "poisson loss": lambda x: F.poisson_nll_loss(x, x.roll(1), reduction="none"),
    "prelu": lambda x: F.prelu(x, x.new_tensor(0.2)),
    "nan handling": lambda x: x.nan_to_num(0.0) + x.isfinite().to(x) + x.isnan().to(x),
    "copysign": lambda x: torch.copysign(x, x.roll(1)),
    "heaviside": lambda x: torch.heaviside(x, x.roll(1)),
    "logit": lambda x: x.sigmoid().logit() + torch.logit(x.sigmoid(), eps=0.1),
    "erfinv": lambda x: torch.erfinv(x.tanh()) + torch.special.ndtri(x.sigmoid()),
    "casts": lambda x: x.float().double() + x.int().double() + (x > 0).double(),
    "degrees": lambda x: torch.rad2deg(x) + torch.deg2rad(x),
    "sinc": lambda x: torch.sinc(x) + torch.signbit(x).to(x),
    "ldexp": lambda x: torch.ldexp(x, torch.tensor(2)),
    "nextafter": lambda x: torch.nextafter(x, x.roll(1)),
    "igamma": lambda x: torch.igamma(torch.full((6,), 2.0, dtype=x.dtype), x.exp()),
    "mvlgamma": lambda x: torch.mvlgamma(x.exp() + 2, 2),
    "zeta": lambda x: torch.special.zeta(x.exp() + 2, torch.ones(6, dtype=x.dtype)),
    "scalar first": lambda x: 1.0 - x + 2.0 / x.exp() + (x < 0.5).to(x),
    "zero-dimensional constant": lambda x: x * torch.tensor(2.0) + torch.tensor(1),
}

VIEWS = {
    "reshape": lambda x: x.reshape(2, 3).reshape(3, 2),
    "transpose": lambda x: x.view(2, 3).T,
    "permute": lambda x: x.view(1, 2, 3).permute(2, 0, 1),
    "slice": lambda x: x[1:5:2],
    "select": lambda x: x.view(2, 3)[1],
    "expand": lambda x: x.view(6, 1).expand(6, 2),
    "diagonal": lambda x: x[:4].view(2, 2).diagonal(),
    "unfold": lambda x: x.unfold(0, 3, 2),
    "as_strided": lambda x: x.as_strided((2, 3), (1, 2), 0),
    "split": lambda x: torch.stack(x.split(2)[::2]),
    "chunk": lambda x: x.chunk(3)[1],
    "unbind": lambda x: x.view(2, 3).unbind(1)[2],
    "squeeze and unsqueeze": lambda x: x[None, :, None].squeeze(0),
    "movedim": lambda x: x.view(1, 2, 3).movedim(-1, 0),
    "narrow": lambda x: x.narrow(0, 2, 3),
    "flatten": lambda x: x.view(2, 3).mT.flatten(),
    "view of a view": lambda x: x.view(3, 2)[1:].T[0],
    "swapaxes": lambda x: x.view(2, 3).swapaxes(0, 1)[::2],
    "unflatten": lambda x: x.unflatten(0, (3, 2))[:, 1],
    "expand_as": lambda x: x[:2, None].expand_as(WEIGHTS[:2]),
    "detach": lambda x: x.detach(),
    "ravel of a transposed": lambda x: x.view(2, 3).T.ravel(),
    "real view of squares": lambda x: torch.view_as_real(torch.complex(x, x * 0 + 1)),
}

MOVEMENT = {
    "index": lambda x: x[INDEX],
    "index in two axes": lambda x: x.view(2, 3)[torch.tensor([0, 1, 1]), torch.tensor([2, 0, 2])],
    "index beside a slice": lambda x: x.view(2, 3)[:, torch.tensor([2, 0])],
    "boolean index": lambda x: x[MASK],
    "index_select": lambda x: x.index_select(0, INDEX),
    "gather": lambda x: x.view(2, 3).gather(1, torch.tensor([[0, 0], [2, 1]])),
    "take": lambda x: x.view(2, 3).take(INDEX),
    "take_along_dim": lambda x: x.view(2, 3).take_along_dim(torch.tensor([[1], [0]]), 1),
    "embedding": lambda x: F.embedding(torch.tensor([[1, 0]]), x.view(2, 3)),
    "masked_select": lambda x: torch.masked_select(x, MASK),
    "masked_fill": lambda x: x.masked_fill(MASK, 0.5),
    "masked_fill of a tensor": lambda x: x.masked_fill(MASK, x.new_tensor(0.5)),
    "masked_fill with a latent": lambda x: torch.ones(3).to(x).masked_fill(MASK[:3], x[5]),
    "masked_scatter": lambda x: torch.zeros(6).to(x).masked_scatter(MASK, x),
    "scatter": lambda x: torch.zeros(6).to(x).scatter(0, torch.tensor([4, 1]), x[:2]),
    "scatter of a value": lambda x: x.scatter(0, torch.tensor([4, 1]), 2.0),
    "index_put": lambda x: x.index_put((torch.tensor([0, 3]),), x[4:]),
    "index_copy": lambda x: x.index_copy(0, torch.tensor([0, 3]), x[4:]),
    "index_fill": lambda x: x.index_fill(0, torch.tensor([0, 3]), 1.0),
    "index_fill of a tensor": lambda x: x.index_fill(0, torch.tensor([0, 3]), x[5]),
    "cat": lambda x: torch.cat([x[3:], torch.ones(2).to(x), x[:2]]),
    "cat on axis 1": lambda x: torch.cat([x.view(2, 3), x.view(2, 3)[:, :1]], 1),
    "stack": lambda x: torch.stack([x[:2], x[2:4], x[4:]], -1),
    "hstack": lambda x: torch.hstack([x.view(2, 3), torch.ones(2, 1).to(x)]),
    "vstack": lambda x: torch.vstack([x, x.flip(0)]),
    "clone": lambda x: x.view(2, 3).T.clone(),
    "contiguous": lambda x: x.view(2, 3).T.contiguous().view(-1),
    "flip": lambda x: x.view(2, 3).flip(0, 1),
    "roll": lambda x: x.view(2, 3).roll((1, 1), (0, 1)),
    "rot90": lambda x: x.view(2, 3).rot90(),
    "repeat": lambda x: x[:2].repeat(2, 2),
    "repeat_interleave": lambda x: x.repeat_interleave(2),
    "repeat_interleave of rows": lambda x: x.view(2, 3).repeat_interleave(2, 0),
    "repeat_interleave by counts": lambda x: x[:3].repeat_interleave(torch.tensor([2, 0, 1])),
    "tile": lambda x: x.tile(2),
    "pad": lambda x: F.pad(x, (2, 1), value=0.3),
    "pad by crop": lambda x: F.pad(x, (-1, 1)),
    "reflection pad": lambda x: F.pad(x[None], (2, 1), mode="reflect"),
    "replication pad": lambda x: F.pad(x[None], (2, 1), mode="replicate"),
    "circular pad": lambda x: F.pad(x[None], (2, 1), mode="circular"),
    "tril": lambda x: x.view(2, 3).tril(),
    "triu": lambda x: x.view(2, 3).triu(1),
    "diag": lambda x: torch.diag(x[:3]),
    "diag_embed": lambda x: torch.diag_embed(x.view(2, 3), offset=1),
    "diagonal_copy": lambda x: torch.diagonal_copy(x[:4].view(2, 2)),
    "select_scatter": lambda x: torch.select_scatter(x.view(2, 3), x[:3] * 2, 0, 1),
    "slice_scatter": lambda x: torch.slice_scatter(x, x[:2] * 2, 0, 1, 5, 2),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x[:4].view(2, 2), x[4:]),
    "unfold_copy": lambda x: torch.unfold_copy(x, 0, 2, 3),
    "block_diag": lambda x: torch.block_diag(x[:4].view(2, 2), x[4:, None]),
    "meshgrid": lambda x: torch.stack(torch.meshgrid(x[:2], x[2:4], indexing="ij")),
    "cartesian_prod": lambda x: torch.cartesian_prod(x[:2], x[2:4]),
    "combinations": lambda x: torch.combinations(x[:3]),
    "broadcast_to": lambda x: torch.broadcast_to(x[:2], (3, 2)).contiguous(),
    "unsafe index": lambda x: aten._unsafe_index(x, [INDEX]),
    "tril indices": lambda x: x.view(2, 3)[tuple(torch.tril_indices(2, 2))],
    "view copies": lambda x: torch.view_copy(x, (3, 2)) + torch.t_copy(x.view(2, 3)),
    "narrow copy": lambda x: torch.narrow_copy(x, 0, 1, 3),
    "im2col": lambda x: F.unfold(x.view(1, 1, 2, 3), (2, 2)),
    "col2im": lambda x: F.fold(x.view(1, 2, 3), (1, 4), (1, 2)),
    "pixel shuffle": lambda x: F.pixel_shuffle(x[:4].view(1, 4, 1, 1), 2),
    "nearest upsampling": lambda x: F.interpolate(x.view(1, 1, 6), scale_factor=2.0),
    "channel shuffle": lambda x: F.channel_shuffle(x.view(1, 6, 1, 1), 2),
}

PRODUCTS = {
    "mm": lambda x: x.view(2, 3) @ x.view(3, 2),
    "constant mm": lambda x: x.view(2, 3) @ WEIGHTS,
    "constant mm on the left": lambda x: SPARSE[:, :3] @ x.view(3, 2),
    "mv": lambda x: x[:4].view(2, 2) @ x[4:],
    "constant mv": lambda x: SPARSE @ x,
    "vm": lambda x: x @ SPARSE.T,
    "dot": lambda x: (x[:3] @ x[3:]).view(1),
    "dot of a sparse vector": lambda x: (x @ SPARSE[2]).view(1),
    "vdot": lambda x: torch.vdot(x[:3], x[3:]).view(1),
    "bmm": lambda x: torch.bmm(x.view(1, 2, 3), x.view(1, 3, 2)),
    "batched matmul": lambda x: torch.matmul(x.view(2, 1, 3), WEIGHTS),
    "broadcast matmul": lambda x: torch.matmul(x.view(3, 1, 2), torch.ones(2, 2, 1).to(x)[0]),
    "addmm": lambda x: torch.addmm(x[:4].view(2, 2), x.view(2, 3), WEIGHTS, beta=0.5, alpha=2),
    "addmv": lambda x: torch.addmv(x[:3], SPARSE, x),
    "addr": lambda x: torch.addr(WEIGHTS, x[:3], x[3:5]),
    "baddbmm": lambda x: torch.baddbmm(WEIGHTS[None, :2], x.view(1, 2, 3), WEIGHTS[None], beta=2),
    "linear": lambda x: F.linear(x.view(2, 3), WEIGHTS.T, torch.ones(2).to(x)),
    "outer": lambda x: torch.outer(x[:3], x[3:]),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x.view(2, 3), SPARSE[:, :3]),
    "einsum of three": lambda x: torch.einsum("i,ij,j->i", x[:3], WEIGHTS, x[4:]),
    "tensordot": lambda x: torch.tensordot(x.view(2, 3), x.view(3, 2), 1),
    "kron": lambda x: torch.kron(x[:2], x[2:4]),
    "chain": lambda x: torch.linalg.multi_dot([x.view(2, 3), WEIGHTS, x[:4].view(2, 2)]),
    "matrix power": lambda x: torch.linalg.matrix_power(x[:4].view(2, 2), 2),
    "cross": lambda x: torch.linalg.cross(x[:3], x[3:]),
    "vecdot": lambda x: torch.linalg.vecdot(x.view(2, 3), x.view(2, 3)),
    "cdist": lambda x: torch.cdist(x[:4].view(2, 2), x[4:].view(1, 2)),
    "pdist": lambda x: F.pdist(x.view(3, 2)),
    "attention": lambda x: F.scaled_dot_product_attention(
        x.view(1, 3, 2), x.view(1, 3, 2), x.view(1, 3, 2)
    ),
}

KERNEL = torch.tensor([[[1.0, 0.0, -2.0]]], dtype=torch.float64)
CONVOLUTIONS = {
    "conv1d": lambda x: F.conv1d(x.view(1, 1, 6), KERNEL),
    "conv1d without a batch": lambda x: F.conv1d(x.view(1, 6), KERNEL, x.new_tensor([0.5])),
    "stride and padding": lambda x: F.conv1d(x.view(1, 1, 6), KERNEL, stride=2, padding=2),
    "dilation": lambda x: F.conv1d(x.view(1, 1, 6), KERNEL, padding=1, dilation=2),
    "same padding": lambda x: F.conv1d(x.view(1, 1, 6), WEIGHTS.t()[:1, None], padding="same"),
    "channels": lambda x: F.conv1d(x.view(1, 2, 3), WEIGHTS.view(3, 2, 1), x[:3]),
    "groups": lambda x: F.conv1d(x.view(1, 2, 3), WEIGHTS[1:].view(4, 1, 1), groups=2),
    "latent kernel": lambda x: F.conv1d(SPARSE[:2, None], x.view(1, 1, 6)[..., :3], padding=1),
    "latent image and kernel": lambda x: F.conv1d(x[:4].view(1, 1, 4), x[4:].view(1, 1, 2)),
    "conv2d": lambda x: F.conv2d(x.view(1, 1, 2, 3), WEIGHTS[None, None, :2], padding=(1, 0)),
    "conv2d of a batch": lambda x: F.conv2d(x.view(2, 1, 1, 3), WEIGHTS.t()[:, None, None, :2]),
    "conv3d": lambda x: F.conv3d(x.view(1, 1, 1, 2, 3), WEIGHTS[None, None, None, :2], padding=1),
    "transposed": lambda x: F.conv_transpose1d(x.view(1, 1, 6), KERNEL, stride=2, padding=1),
    "transposed, dilated": lambda x: F.conv_transpose1d(
        x.view(1, 2, 3), WEIGHTS[1:].view(2, 1, 2), x[4:], 3, 0, 1, 2, 2
    ),
    "transposed, channels": lambda x: F.conv_transpose1d(x.view(1, 3, 2), WEIGHTS.view(3, 2, 1)),
    "transposed in 2d": lambda x: F.conv_transpose2d(
        x.view(1, 1, 2, 3), WEIGHTS[None, None, :2], stride=(1, 2)
    ),
    "transposed, latent kernel": lambda x: F.conv_transpose1d(
        SPARSE[:1, None], x.view(1, 2, 3), output_padding=1, stride=2
    ),
}

REDUCTIONS = {
    "sum": lambda x: x.view(2, 3).sum(1),
    "sum of all": lambda x: x.sum().view(1),
    "sum over two axes": lambda x: x.view(1, 2, 3).sum((0, 2)),
    "mean": lambda x: x.view(2, 3).mean(0),
    "mean of all": lambda x: x.mean().view(1),
    "prod": lambda x: x.view(2, 3).prod(1),
    "prod of all": lambda x: x.prod().view(1),
    "amax": lambda x: x.view(2, 3).amax(1),
    "amin": lambda x: x.view(2, 3).amin(0),
    "aminmax": lambda x: torch.stack(x.view(2, 3).aminmax(dim=1)),
    "max": lambda x: x.view(2, 3).max(1).values,
    "min": lambda x: x.view(2, 3).min(0).values,
    "max of all": lambda x: x.max().view(1),
    "min of all": lambda x: x.min().view(1),
    "argmax": lambda x: x.view(2, 3).argmax(1).to(x),
    "argmin of all": lambda x: x.argmin().to(x).view(1),
    "indices of max": lambda x: x.view(2, 3).max(1).indices.to(x),
    "median": lambda x: x.view(2, 3).median(1).values,
    "nanmedian": lambda x: x.view(2, 3).nanmedian(1).values,
    "median of all": lambda x: x.median().view(1),
    "mode": lambda x: x.round().view(2, 3).mode(1).values,
    "kthvalue": lambda x: x.view(2, 3).kthvalue(2, 1).values,
    "quantile": lambda x: x.view(2, 3).quantile(0.3, 1),
    "logsumexp": lambda x: x.view(2, 3).logsumexp(1),
    "norm": lambda x: x.view(2, 3).norm(dim=1),
    "p-norm": lambda x: torch.linalg.vector_norm(x.view(2, 3), 3, dim=0),
    "matrix norm": lambda x: torch.linalg.matrix_norm(x.view(2, 3)).view(1),
    "var": lambda x: x.view(2, 3).var(1),
    "std": lambda x: x.view(2, 3).std(0),
    "var and mean": lambda x: torch.stack(torch.var_mean(x.view(2, 3), 1)),
    "any": lambda x: (x > 0.5).view(2, 3).any(1).to(x),
    "all": lambda x: (x > -0.5).view(2, 3).all(1).to(x),
    "any of all": lambda x: (x > 0.9).any().to(x).view(1),
    "all of all": lambda x: (x > -0.9).all().to(x).view(1),
    "count_nonzero": lambda x: (x > 0).view(2, 3).count_nonzero(1).to(x),
    "nansum": lambda x: x.view(2, 3).nansum(1),
    "trace": lambda x: x[:4].view(2, 2).trace().view(1),
    "keepdim": lambda x: x.view(2, 3).sum(1, keepdim=True) * x.view(2, 3),
    "corrcoef": lambda x: torch.corrcoef(x.view(2, 3))[0, 1].view(1),
    "cov": lambda x: torch.cov(x.view(2, 3)),
    "sum with a type": lambda x: x.view(2, 3).sum(1, dtype=torch.float64),
    "bincount of weights": lambda x: torch.bincount(INDEX, x[:4], 6),
    "bincount of weights as words": lambda x: torch.bincount(INDEX, weights=x[:4]),
    "max pooling": lambda x: F.max_pool1d(x[None], 2)[0],
}

SCANS = {
    "cumsum": lambda x: x.cumsum(0),
    "cumsum on axis 0": lambda x: x.view(3, 2).cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "logcumsumexp": lambda x: x.view(2, 3).logcumsumexp(1),
    "cummax": lambda x: x.view(2, 3).cummax(1).values,
    "cummin": lambda x: x.cummin(0).values,
    "cummax of many": lambda x: x.repeat_interleave(30).cummax(0).values[::30],
    "diff": lambda x: x.diff(),
    "second diff": lambda x: x.diff(n=2),
    "trapezoid": lambda x: torch.trapezoid(x.view(2, 3), dim=1),
    "cumulative trapezoid": lambda x: torch.cumulative_trapezoid(x),
}

ROWS = {
    "softmax": lambda x: x.view(2, 3).softmax(1),
    "softmax on axis 0": lambda x: x.view(2, 3).softmax(0),
    "log_softmax": lambda x: x.view(2, 3).log_softmax(1),
    "sort": lambda x: x.view(2, 3).sort(1).values,
    "stable sort": lambda x: x.view(2, 3).sort(dim=1, stable=True, descending=True).values,
    "argsort": lambda x: x.view(2, 3).argsort(1).to(x),
    "topk": lambda x: x.view(2, 3).topk(2, 1).values,
    "msort": lambda x: x.view(2, 3).msort(),
    "normalize": lambda x: F.normalize(x.view(2, 3), dim=1),
    "layer_norm": lambda x: F.layer_norm(x.view(2, 3), (3,)),
    "group_norm": lambda x: F.group_norm(x.view(1, 2, 3), 2),
    "glu": lambda x: F.glu(x),
    "cosine_similarity": lambda x: F.cosine_similarity(x[:3], x[3:], dim=0).view(1),
    "cross_entropy": lambda x: F.cross_entropy(
        x.view(2, 3), torch.tensor([0, 2]), reduction="none"
    ),
    "kl_div": lambda x: F.kl_div(x, x.roll(1).exp(), reduction="none"),
}

MATRICES = {
    "cholesky": lambda x: torch.linalg.cholesky(spd(x)),
    "cholesky, upper": lambda x: torch.linalg.cholesky(spd(x), upper=True),
    "cholesky of one matrix": lambda x: torch.linalg.cholesky(spd(x)[0]),
    "inv": lambda x: torch.linalg.inv(spd(x)),
    "det": lambda x: torch.linalg.det(spd(x)),
    "slogdet": lambda x: torch.linalg.slogdet(spd(x))[1],
    "logdet": lambda x: torch.logdet(spd(x)),
    "eigvalsh": lambda x: torch.linalg.eigvalsh(spd(x)),
    "svdvals": lambda x: torch.linalg.svdvals(spd(x)),
    "qr": lambda x: torch.linalg.qr(spd(x))[1],
    "solve": lambda x: torch.linalg.solve(spd(x), torch.ones(2, 2, 1).to(x)),
    "solve a vector": lambda x: torch.linalg.solve(spd(x)[0], x[3:5]),
    "solve batched vectors": lambda x: torch.linalg.solve(spd(x), x[:4].view(2, 2)),
    "matrix_exp": lambda x: torch.matrix_exp(spd(x) * 0.1),
    "cholesky_solve": lambda x: torch.cholesky_solve(
        x.view(2, 3)[:, :2, None], torch.linalg.cholesky(spd(x))
    ),
    "cholesky_inverse": lambda x: torch.cholesky_inverse(torch.linalg.cholesky(spd(x))),
    "lu": lambda x: torch.linalg.lu_factor(spd(x))[0],
    "triangular_solve": lambda x: aten.triangular_solve(
        torch.ones(2, 2, 1).to(x), spd(x).tril(), False
    )[0],
    "solve_triangular": lambda x: torch.linalg.solve_triangular(
        spd(x).tril(), torch.ones(2, 2, 1).to(x), upper=False
    ),
    "solve_triangular from the right": lambda x: torch.linalg.solve_triangular(
        spd(x).triu(), torch.ones(2, 1, 2).to(x), upper=True, left=False
    ),
    "columns of a constant triangle": lambda x: torch.linalg.solve_triangular(
        torch.tensor([[1.0, 0.0], [0.5, 2.0]]).to(x), x.view(2, 3), upper=False
    ),
    "rows of a constant triangle": lambda x: torch.linalg.solve_triangular(
        torch.tensor([[1.0, 0.3], [0.0, 2.0]]).to(x), x.view(3, 2), upper=True, left=False
    ),
    "unit triangle": lambda x: torch.linalg.solve_triangular(
        spd(x).tril(), torch.ones(2, 1).to(x), upper=False, unitriangular=True
    ),
    "eigh": lambda x: torch.linalg.eigh(spd(x))[0],
    "matrix_norm": lambda x: torch.linalg.matrix_norm(spd(x), "nuc"),
}


#: Without a rule: sound, but possibly wider than need be, and announced by a warning.
FALLBACK = {
    "addbmm": lambda x: torch.addbmm(
        WEIGHTS[:2], x.view(2, 1, 3).expand(2, 2, 3), WEIGHTS.expand(2, 3, 2)
    ),
    "bilinear": lambda x: F.bilinear(x[None, :3], x[None, 3:], torch.ones(1, 3, 3).to(x)).view(1),
    "dist": lambda x: torch.dist(x[:3], x[3:]).view(1),
    "average pooling": lambda x: F.avg_pool1d(x[None], 2)[0],
    "lu_solve": lambda x: torch.linalg.lu_solve(
        *torch.linalg.lu_factor(spd(x)), torch.ones(2, 2, 1).to(x)
    ),
    "pinv": lambda x: torch.linalg.pinv(spd(x)),
    "scatter_reduce": lambda x: (
        torch.zeros(2).to(x).scatter_reduce(0, torch.tensor([0, 1, 1, 0, 1, 1]), x, "sum")
    ),
}


def augmented(x):
    y = x.clone()
    y += x.roll(1)
    y *= 2
    return y


def assigned(x):
    y = torch.zeros(3, 3).to(x)
    y[0] = x[:3]
    y[1:, 0] = x[3:5]
    y[2, 2] = x[5] * x[0]
    return y


def overwritten(x):
    y = x.clone()
    y[1:3] = 0.0
    y[4] = x[0]
    return y


def accumulated(x):
    y = torch.zeros(3).to(x)
    for k in range(6):
        y[k % 3] += x[k]
    return y


def read_before_write(x):
    y = x.clone()
    before = y * 1.5
    y.zero_()
    return torch.cat([before, y])


WRITES = {
    "augmented assignment": augmented,
    "assignment": assigned,
    "overwriting": overwritten,
    "accumulation": accumulated,
    "read before write": read_before_write,
    "copy_": lambda x: torch.zeros(2, 6).to(x).copy_(x),
    "copy_ into a view": lambda x: assigned(x).T.contiguous().copy_(assigned(x)),
    "fill_ by a latent": lambda x: torch.zeros(3).to(x).fill_(x[2]),
    "in-place chain": lambda x: x.clone().exp_().add_(1).mul_(2).log_(),
    "in-place on a view": lambda x: x.clone().view(2, 3).T.mul_(2).reshape(-1),
    "masked_fill_": lambda x: x.clone().masked_fill_(MASK, 1.0),
    "clamp_": lambda x: x.clone().clamp_(-1, 1),
    "index_put_": lambda x: x.clone().index_put_((INDEX[:2],), x[:2]),
    "scatter_": lambda x: x.clone().scatter_(0, torch.tensor([1, 2]), x[:2]),
    "scatter_add": lambda x: (
        torch.zeros(3).to(x).scatter_add(0, torch.tensor([0, 2, 0, 2, 1, 1]), x)
    ),
    "scatter_add in two axes": lambda x: (
        torch.zeros(2, 2).to(x).scatter_add(1, torch.tensor([[0, 0, 1], [1, 1, 1]]), x.view(2, 3))
    ),
    "scatter_add_ onto latents": lambda x: x.clone().scatter_add_(0, torch.tensor([0, 1]), x[4:]),
    "index_add": lambda x: torch.zeros(2).to(x).index_add(0, torch.tensor([0, 1, 1, 0, 1, 1]), x),
    "index_add with alpha": lambda x: x[:2].index_add(0, torch.tensor([1]), x[5:], alpha=3.0),
    "index_add on axis 1": lambda x: (
        torch.zeros(2, 2).to(x).index_add(1, torch.tensor([0, 1, 0]), x.view(2, 3))
    ),
    "index_put accumulating": lambda x: (
        torch.zeros(3).to(x).index_put((torch.tensor([0, 2, 0, 0, 2, 2]),), x, accumulate=True)
    ),
    "index_put accumulating in two axes": lambda x: (
        torch.zeros(2, 2)
        .to(x)
        .index_put((torch.tensor([0, 1, 0]), torch.tensor([1, 1, 1])), x[:3], accumulate=True)
    ),
    "out of add": out((6,), lambda x, buffer: torch.add(x, x.roll(1), out=buffer)),
    "out of matmul": out((2, 2), lambda x, buffer: torch.matmul(x.view(2, 3), WEIGHTS, out=buffer)),
    "out of cat": out((4,), lambda x, buffer: torch.cat([x[:2], x[4:]], out=buffer)),
    "relu_": lambda x: F.relu(x.clone(), inplace=True),
    "transposed in place": lambda x: x.clone().view(2, 3).t_().reshape(-1)[:4],
    "swap by assignment": lambda x: x.clone().index_copy_(0, torch.tensor([0, 1]), x[:2].flip(0)),
    "tril_": lambda x: x.clone().view(2, 3).tril_(),
}

FAMILIES = {
    "pointwise": POINTWISE,
    "views": VIEWS,
    "movement": MOVEMENT,
    "products": PRODUCTS,
    "convolutions": CONVOLUTIONS,
    "reductions": REDUCTIONS,
    "scans": SCANS,
    "rows": ROWS,
    "matrices": MATRICES,
    "writes": WRITES,
}

#: Of three discrete numbers ``z`` in {0, 1, 2} and six reals ``x``.
LOOKUPS = {
    "constant table": lambda z, x: SPARSE[:, 2][z],
    "constant matrix": lambda z, x: SPARSE[z, z.roll(1)],
    "constant rows": lambda z, x: WEIGHTS[z],
    "latent table": lambda z, x: x[z],
    "latent table, shifted": lambda z, x: x[z + 3],
    "latent matrix": lambda z, x: x.view(2, 3)[:, z],
    "latent matrix, both indices": lambda z, x: x.view(3, 2)[z, z.roll(1) % 2],
    "one latent index": lambda z, x: x.view(3, 2)[z[0]],
    "one latent index beside a slice": lambda z, x: x.view(2, 3)[1:, z[1]],
    "index of a negative": lambda z, x: x[-1 - z],
    "gather": lambda z, x: x.view(2, 3).gather(1, z[:2, None]),
    "index_select": lambda z, x: x.index_select(0, z),
    "take": lambda z, x: x.take(z * 2),
    "take_along_dim": lambda z, x: x.view(2, 3).take_along_dim(z[None], 1),
    "embedding": lambda z, x: F.embedding(z, x.view(3, 2)),
    "one_hot": lambda z, x: F.one_hot(z, 3).to(x) @ x.view(3, 2),
    "one_hot alone": lambda z, x: F.one_hot(z, 3).to(x),
    "where": lambda z, x: torch.where(z == 1, x[:3], x[3:]),
    "cumsum as an index": lambda z, x: x[z.cumsum(0) % 6],
    "arithmetic": lambda z, x: (z * x[:3] + z.roll(1)) ** 2,
    "parity": lambda z, x: (z.sum() % 2).to(x).view(1),
    "integer powers": lambda z, x: x[:3] ** z,
    "comparison": lambda z, x: (z[:, None] == z).to(x),
    "maximum": lambda z, x: z.max().to(x).view(1) + x[:1],
    "nested look-up": lambda z, x: x[torch.tensor([2, 0, 1])[z]],
    "look-up of a look-up": lambda z, x: x.exp()[z[z]],
    "bits": lambda z, x: ((z & 1) | (z.roll(1) >> 1)).to(x),
    "bincount by one-hot": lambda z, x: F.one_hot(z, 3).sum(0).to(x),
    "masked_fill": lambda z, x: x[:3].masked_fill(z == 0, -1.0),
    "index_put by a latent mask": lambda z, x: x[:3].index_put((z == 0,), torch.tensor(7.0).to(x)),
}
