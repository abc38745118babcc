"""Random functions of six real latents: sums, products, look-ups, scans, writes, in any order."""

import random
from collections.abc import Callable

import torch
from torch import Tensor

SIZE = 6
#: Where look-ups change: no value that sums of constants hit but for rounding.
CUT = 0.3771


def sparse(rng: random.Random, rows: int, columns: int) -> Tensor:
    values = [rng.choice([0.0, 0.0, 0.0, 1.0, -0.5, 2.0]) for _ in range(rows * columns)]
    return torch.tensor(values).view(rows, columns)


def _index(rng, x):
    return x[torch.tensor([rng.randrange(len(x)) for _ in range(rng.randint(1, 5))])]


def _constant(rng, x):
    return torch.tensor([rng.choice([0.0, 1.0, -2.0, 0.5]) for _ in range(len(x))])


def _partner(rng, x, pool):
    """Another vector of the same length, by tiling or cutting one of the pool."""
    other = rng.choice(pool)
    return other.repeat(-(-len(x) // len(other)))[: len(x)]


def _written(rng, x, pool):
    y = x.clone()
    i = rng.randrange(len(y))
    y[i] = rng.choice([torch.zeros(()), rng.choice(pool)[0] * 2])
    return y


def _accumulated(rng, x, pool):
    index = torch.tensor([rng.randrange(3) for _ in range(len(x))])
    base = torch.zeros(3) if rng.random() < 0.5 else _partner(rng, torch.zeros(3), pool)
    return base.index_add(0, index, x)


def _masked(rng, x, pool):
    mask = torch.tensor([rng.random() < 0.5 for _ in range(len(x))])
    return torch.where(mask, x, rng.choice([torch.zeros(()), torch.ones(())]))


#: ``(random, vector, pool) -> vector``.
STEPS: list[Callable] = [
    lambda rng, x, pool: x + _partner(rng, x, pool),
    lambda rng, x, pool: x - _partner(rng, x, pool),
    lambda rng, x, pool: x * _partner(rng, x, pool),
    lambda rng, x, pool: x * _constant(rng, x),
    lambda rng, x, pool: x + _constant(rng, x),
    lambda rng, x, pool: x / (1 + _partner(rng, x, pool) ** 2),
    lambda rng, x, pool: x * rng.choice([0.5, -1.0, 2.0]),
    lambda rng, x, pool: -x,
    lambda rng, x, pool: x / 2,
    lambda rng, x, pool: 1 - x,
    lambda rng, x, pool: x**2,
    lambda rng, x, pool: x.tanh(),
    lambda rng, x, pool: x.sin(),
    lambda rng, x, pool: _index(rng, x),
    lambda rng, x, pool: torch.cat([x, _partner(rng, x, pool)])[: 2 * SIZE],
    lambda rng, x, pool: x.flip(0),
    lambda rng, x, pool: x.cumsum(0),
    lambda rng, x, pool: sparse(rng, rng.randint(1, 4), len(x)) @ x,
    lambda rng, x, pool: x @ sparse(rng, len(x), rng.randint(1, 4)),
    lambda rng, x, pool: (x[:, None] * _partner(rng, x, pool)).sum(1),
    lambda rng, x, pool: (x[:, None] * sparse(rng, len(x), 3)).sum(0),
    lambda rng, x, pool: (x[:, None] + _partner(rng, x, pool)).mean(1),
    lambda rng, x, pool: (x @ _partner(rng, x, pool)).view(1),
    lambda rng, x, pool: (x @ sparse(rng, len(x), len(x)) @ _partner(rng, x, pool)).view(1),
    lambda rng, x, pool: x.sum().view(1),
    lambda rng, x, pool: x.sum() * _partner(rng, x, pool),
    lambda rng, x, pool: x.mean(0, keepdim=True) - x,
    _written,
    _accumulated,
    _masked,
    lambda rng, x, pool: torch.einsum("i,j->ij", x, x).diagonal(1) if len(x) > 1 else x,
    lambda rng, x, pool: torch.addmm(
        torch.ones(1, 1), x[None], _partner(rng, x, pool)[:, None], beta=0.5, alpha=2.0
    ).view(1),
    lambda rng, x, pool: torch.lerp(x, _partner(rng, x, pool), 0.25),
    lambda rng, x, pool: torch.addcmul(x, x, _partner(rng, x, pool), value=-0.5),
    lambda rng, x, pool: sum(v for v in x).view(1),
    lambda rng, x, pool: torch.stack([v * (k - 1) for k, v in enumerate(x)]),
    lambda rng, x, pool: x.diff() if len(x) > 1 else x,
    lambda rng, x, pool: x.softmax(0),
    lambda rng, x, pool: x.sort().values,
    lambda rng, x, pool: x.max(0, keepdim=True).values + x,
    lambda rng, x, pool: torch.where(x > CUT, _partner(rng, x, pool), x),
    lambda rng, x, pool: torch.tensor([1.0, -0.5, 2.0])[(x > CUT).long() + (x > CUT + 1).long()],
    lambda rng, x, pool: rng.choice(pool)[:1].repeat(2)[(x > CUT).long()] + x,
    lambda rng, x, pool: x[(x[:1] > CUT).long() % len(x)],
    lambda rng, x, pool: x[(x > CUT).long().cumsum(0) % len(x)],
    lambda rng, x, pool: x.unfold(0, 2, 1).sum(1) if len(x) > 1 else x,
    lambda rng, x, pool: torch.outer(x, _partner(rng, x, pool)).tril().sum(0),
    lambda rng, x, pool: x.repeat(2).view(2, -1).T.reshape(-1)[: 2 * SIZE],
    lambda rng, x, pool: (x[:, None] @ x[None])[0] if len(x) > 1 else x,
    lambda rng, x, pool: torch.linalg.solve_triangular(
        torch.eye(len(x)) * 2 + sparse(rng, len(x), len(x)).tril(-1), x[:, None], upper=False
    )[:, 0],
    lambda rng, x, pool: x.logsumexp(0, keepdim=True),
]


def random_function(seed: int) -> Callable[[Tensor], Tensor]:
    """A deterministic function drawn from the seed."""

    def f(x: Tensor) -> Tensor:
        rng = random.Random(seed)
        pool = [x]
        for _ in range(rng.randint(1, 7)):
            start = rng.choice([x, pool[-1], pool[-1], rng.choice(pool)])
            pool.append(rng.choice(STEPS)(rng, start, pool))
        return rng.choice([lambda y: y, lambda y: y, lambda y: y.sum()])(pool[-1])

    return f
