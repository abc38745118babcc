"""Well-known models as circuits.

    tree:         p(x) = prod_i p(x_i | x_parent(i))
    naive Bayes:  p(x) = p(x_0) prod_i p(x_i | x_0)
    HMM:          p(x) = sum_z p(z_1) prod_t p(z_t | z_{t-1}) p(x_t | z_t)
    mixture:      p(x) = sum_k w_k p_k(x)

The first two are deterministic: their sums run over values of variables of the circuit. HMMs and
mixtures sum over what is hidden and are not. All are structured (a mixture is if its parts follow
one vtree). Tables are taken as they are: they need not add up to 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal

from pyrograph.checks import count
from pyrograph.circuits.builder import Builder
from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.options import check_circuits, whole
from pyrograph.circuits.structure.leaves import Domain, numbers
from pyrograph.circuits.structure.units import SUM, Units
from pyrograph.errors import IncompatibleCircuits, OptionError, ShapeMismatch


def fully_factorised(probs: Sequence[Tensor]) -> Circuit:
    """Independent discrete variables.

    Args:
        probs: of each variable, ``[c]``.
    """
    tables = [_table("probs", i, p, 1) for i, p in enumerate(_listed("probs", probs))]
    if not tables:
        raise OptionError("fully_factorised needs at least one variable")
    build = Builder([len(p) for p in tables])
    inputs = [build.categorical(i, p.log().tolist()) for i, p in enumerate(tables)]
    return build.circuit(build.product(inputs))


def tree_network(parents: Sequence[int | None], tables: Sequence[Tensor]) -> Circuit:
    """A Bayesian network whose variables have at most one parent, such as a Chow-Liu tree.

    Args:
        parents: of each variable, None (or -1) of roots.
        tables: p(x_i | parent) of each variable, ``[c_parent, c_i]``; ``[c_i]`` of roots.

    Raises:
        OptionError: the parents make a cycle or are not there.
        ShapeMismatch: a table does not fit.
    """
    parents, tables = _listed("parents", parents), _listed("tables", tables)
    above = [-1 if p is None else whole(f"parents[{i}]", p, -1) for i, p in enumerate(parents)]
    if len(above) != len(tables) or not above:
        raise ShapeMismatch(f"{len(above)} parents and {len(tables)} tables; each variable has one")
    probs = [_table("tables", i, t, 1 if above[i] < 0 else 2) for i, t in enumerate(tables)]
    cards = [p.shape[-1] for p in probs]
    below: list[list[int]] = [[] for _ in above]
    for i, p in enumerate(above):
        if p >= len(above):
            raise OptionError(f"variable {i} has the parent {p}; there are {len(above)} variables")
        if p >= 0:
            below[p].append(i)
            if len(probs[i]) != cards[p]:
                raise ShapeMismatch(
                    f"tables[{i}] has shape {tuple(probs[i].shape)}; its parent {p} has {cards[p]} "
                    "states"
                )
    order = [i for i, p in enumerate(above) if p < 0]
    for i in order:
        order += below[i]
    if len(order) < len(above):
        cycle = min(set(range(len(above))) - set(order))
        raise OptionError(f"following the parents of variable {cycle} never comes to a root")
    build = Builder(cards)
    units: list[list[int]] = [[] for _ in above]  # one per state of the parent
    for i in reversed(order):
        rows = torch.atleast_2d(probs[i]).log().tolist()
        if not below[i]:
            units[i] = [build.categorical(i, row) for row in rows]
            continue
        states = [
            build.product([build.indicator(i, s), *(units[c][s] for c in below[i])])
            for s in range(cards[i])
        ]
        units[i] = [build.sum(states, row) for row in rows]
    return build.circuit(build.product(units[i][0] for i in order if above[i] < 0))


def naive_bayes(prior: Tensor, tables: Sequence[Tensor]) -> Circuit:
    """A class, variable 0, and features 1, 2, ... that are independent given it.

    Without the class as a variable this is a :func:`mixture` of :func:`fully_factorised`.

    Args:
        prior: ``[K]``.
        tables: p(x_i | class) of each feature, ``[K, c_i]``.
    """
    tables = _listed("tables", tables)
    return tree_network([None] + [0] * len(tables), [prior, *tables])


def hidden_markov_model(
    initial: Tensor, transition: Tensor, emission: Tensor | Normal, length: int
) -> Circuit:
    """The observations of a hidden Markov model, variable t at time t; states are summed out.

    Args:
        initial: p(z_0), ``[K]``.
        transition: p(z_t | z_{t-1}), ``[K, K]`` (from, to), or one for each step ``[T - 1, K, K]``.
        emission: p(x_t | z_t): ``[K, c]``, or for each time ``[T, K, c]``; or a Normal with batch
            shape ``[K]`` or ``[T, K]``.
        length: T.

    Raises:
        ShapeMismatch: a table does not fit.
        OptionError: a probability is negative or not finite, or the length no whole number.
    """
    length = count("length", length)
    start = _table("initial", None, initial, 1)
    states = len(start)
    step = numbers(transition).detach()
    _fits("transition", step.shape, (length - 1, states, states))
    step = step.expand(length - 1, states, states)
    if not isinstance(emission, Normal):
        emission = numbers(emission)
        if emission.dim() not in (2, 3) or not emission.numel():
            raise ShapeMismatch(
                f"emission has shape {tuple(emission.shape)}; expected [{states}, c] or "
                f"[{length}, {states}, c]"
            )
    build = Builder([None if isinstance(emission, Normal) else emission.shape[-1]] * length)
    emitted = _emissions(build, emission, length, states)
    ahead = emitted[-1]
    for t in reversed(range(length - 1)):
        rows = _table("transition", t, step[t], 2).log().tolist()
        ahead = [
            build.product([own, build.sum(ahead, row)])
            for own, row in zip(emitted[t], rows, strict=True)
        ]
    return build.circuit(build.sum(ahead, start.log().tolist()))


def _emissions(
    build: Builder, emission: Tensor | Normal, length: int, count: int
) -> list[list[int]]:
    if isinstance(emission, Normal):
        loc, scale = (v.detach().double() for v in (emission.loc, emission.scale))
        _fits("emission", loc.shape, (length, count))
        pairs = zip(loc.expand(length, count).tolist(), scale.expand(length, count).tolist())
        return [
            [build.gaussian(t, m, s) for m, s in zip(*rows, strict=True)]
            for t, rows in enumerate(pairs)
        ]
    _fits("emission", emission.shape, (length, count, emission.shape[-1]))
    probs = emission.detach().double().expand(length, count, -1)
    return [
        [build.categorical(t, row) for row in _table("emission", t, table, 2).log().tolist()]
        for t, table in enumerate(probs)
    ]


def _fits(name: str, shape: torch.Size, full: tuple[int, ...]) -> None:
    if tuple(shape) not in (full, full[1:]):
        raise ShapeMismatch(
            f"{name} has shape {tuple(shape)}; expected {list(full[1:])} or {list(full)}"
        )


def mixture(circuits: Sequence[Circuit], weights: Tensor | Sequence[float]) -> Circuit:
    """A weighted sum of circuits over the same variables.

    Args:
        circuits: with the same numbers of states.
        weights: ``[K]``, not negative.

    Raises:
        IncompatibleCircuits: the circuits have different variables.
        OptionError: one is no circuit, or a weight negative or not finite.
    """
    circuits, weight = _listed("circuits", circuits), _table("weights", None, weights, 1)
    if not circuits or len(weight) != len(circuits):
        raise ShapeMismatch(f"{len(circuits)} circuits and {len(weight)} weights")
    check_circuits(*circuits)
    first = circuits[0]
    for k, other in enumerate(circuits):
        if other.cards != first.cards:
            raise IncompatibleCircuits(
                f"circuit {k} has variables with {other.cards} states, circuit 0 with {first.cards}"
            )
    sizes = [len(c.units) for c in circuits]
    offsets = np.cumsum([0, *sizes])
    children = [c.units.child + offset for c, offset in zip(circuits, offsets)]
    fan_in = [np.diff(c.units.start) for c in circuits] + [np.array([len(circuits)])]
    units = Units(
        np.concatenate([*(c.units.kind for c in circuits), [SUM]]).astype(np.int8),
        np.concatenate([*(c.units.var for c in circuits), [-1]]),
        np.r_[0, np.concatenate(fan_in).cumsum()],
        np.concatenate([*children, offsets[1:] - 1]),
    )
    domain = Domain(first.cards, np.concatenate([c.domain.var for c in circuits]))
    own = weight.log().to(first.log_weights)
    width = max(c.log_table.shape[1] for c in circuits)
    tables = [
        torch.nn.functional.pad(c.log_table, (0, width - c.log_table.shape[1]), value=-torch.inf)
        for c in circuits
    ]
    return Circuit(
        units,
        domain,
        torch.cat([*(c.log_weights for c in circuits), own]).detach(),
        torch.cat(tables).detach(),
        torch.cat([c.loc for c in circuits]).detach(),
        torch.cat([c.scale for c in circuits]).detach(),
    )


def _listed(name: str, values: Iterable[Any]) -> list[Any]:
    try:
        return list(values)
    except TypeError as error:
        raise OptionError(f"{name}={values!r} is no list") from error


def _table(name: str, index: int | None, values: Tensor | Sequence[float], dims: int) -> Tensor:
    """Checked numbers, float64."""
    where = name if index is None else f"{name}[{index}]"
    try:
        table = torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(f"{where} is {values!r}, no table of numbers") from error
    if table.dim() != dims or not table.numel():
        raise ShapeMismatch(f"{where} has shape {tuple(table.shape)}; expected {dims} dimensions")
    if not bool((table.isfinite() & (table >= 0)).all()):
        raise OptionError(f"{where} has a probability that is negative or not finite")
    return table
