"""Random Pyro programs: statements of many families that read earlier sites in random ways."""

import random

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor


def _positive(value: Tensor) -> Tensor:
    return 0.5 + value**2


def _shaped(rng: random.Random, value: Tensor, size: int) -> Tensor:
    """A number, or one per element of the plate, read off an earlier site."""
    value = value.to(torch.float64)
    while value.dim() > 1:
        value = rng.choice([lambda v: v.sum(-1), lambda v: v[..., 0], lambda v: v.logsumexp(-1)])(
            value
        )
    if value.dim() == 0:
        return value
    index = torch.tensor([rng.randrange(len(value)) for _ in range(size)])
    return rng.choice(
        [
            lambda v: v[index],
            lambda v: v[index].cumsum(0),
            lambda v: v.mean(),
            lambda v: v[0],
            lambda v: torch.tensor([rng.choice([0.0, 0.0, 1.0, -0.5]) for _ in v]) @ v,
        ]
    )(value)


#: ``(location, positive number) -> distribution`` with a scalar event.
FAMILIES = [
    lambda a, b: dist.Normal(a, b),
    lambda a, b: dist.Normal(a, 1.0),
    lambda a, b: dist.StudentT(3.0, a, b),
    lambda a, b: dist.Laplace(a, b),
    lambda a, b: dist.Gamma(b, 1.5),
    lambda a, b: dist.LogNormal(a.tanh(), 0.5),
    lambda a, b: dist.Beta(b, 2.0),
    lambda a, b: dist.HalfNormal(b),
    lambda a, b: dist.Bernoulli(logits=a),
    lambda a, b: dist.Poisson(b),
    lambda a, b: dist.Categorical(logits=torch.stack([a, 0 * a, -a], -1)),
    lambda a, b: dist.Binomial(4, logits=a),
    lambda a, b: dist.Uniform(-2.0, 3.0),
    lambda a, b: dist.Exponential(b),
]
#: The same with an event of their own.
VECTORS = [
    lambda a, b: dist.Normal(a.unsqueeze(-1) * torch.ones(2), 1.0).to_event(1),
    lambda a, b: dist.Dirichlet(b.unsqueeze(-1) * torch.tensor([1.0, 2.0, 1.5])),
    lambda a, b: dist.MultivariateNormal(a.unsqueeze(-1) * torch.ones(2), torch.eye(2) * 1.5),
    lambda a, b: dist.OneHotCategorical(logits=torch.stack([a, 0 * a, -a], -1)),
]


def random_model(seed: int):
    """A deterministic program drawn from the seed: three to six statements."""

    def model() -> None:
        rng = random.Random(seed)
        values: list[Tensor] = [torch.tensor(0.3)]
        for k in range(rng.randint(3, 6)):
            size = rng.randint(2, 3)
            plate = pyro.plate(f"plate{k}", size) if rng.random() < 0.7 else None
            size = size if plate is not None else 1
            a = _shaped(rng, rng.choice(values), size)
            b = _positive(_shaped(rng, rng.choice(values), size))
            if plate is None:
                a, b = a.reshape(-1)[0], b.reshape(-1)[0]
            a, b = torch.broadcast_tensors(a, b)
            scale = rng.choice([1.0, 1.0, 0.5])
            mask = torch.tensor([rng.random() < 0.7 for _ in range(size)])
            kind = rng.random()
            with plate or poutine.scale(scale=1.0), poutine.scale(scale=scale):
                if kind < 0.15:
                    pyro.factor(f"s{k}", -(a.abs()) * b.log())
                elif kind < 0.35:
                    with poutine.mask(mask=mask if plate is not None else mask[0]):
                        pyro.sample(f"s{k}", dist.Normal(a, b), obs=torch.tensor(0.4))
                else:
                    family = rng.choice(FAMILIES if rng.random() < 0.75 else VECTORS)
                    values.append(pyro.sample(f"s{k}", family(a, b)))

    return model
