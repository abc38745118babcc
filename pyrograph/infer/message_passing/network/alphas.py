"""Alpha of every factor, from what the user gave.

Messages and evidence are of the form log (1 + O(alpha)) / alpha, whose rounding grows as alpha
falls, eps / alpha. The limit alpha = 0 has none of it, and is O(alpha) away: below the square root
of eps it is nearer to the truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pyrograph.checks import real_number
from pyrograph.errors import OptionError
from pyrograph.graph import FactorGraph, FactorGroup

#: A number for every factor, by statement (others 1), or a function of the statement's name.
#: Numbers may be tensors or arrays without dimensions.
Alpha = float | Tensor | Mapping[str, float] | Callable[[str], float]


def check_alpha(alpha: Alpha, graph: FactorGraph) -> None:
    """Refuse what is no alpha.

    Raises:
        OptionError: it is of another type, not finite, or names a statement without factors.
    """
    if not (isinstance(alpha, Mapping) or callable(alpha) or math.isfinite(real_number(alpha))):
        raise OptionError(f"alpha={alpha!r} is not a finite number, a dict or a function")
    if isinstance(alpha, Mapping):
        known = {name for g in graph.factors for name in g.statements}
        unknown = [str(name) for name in alpha if name not in known]
        if unknown:
            raise OptionError(
                f"alpha names {', '.join(unknown)}; the statements with factors are "
                f"{', '.join(sorted(known))}"
            )


def alpha_of_factors(alpha: Alpha, graph: FactorGraph, group: FactorGroup) -> Tensor:
    """Of a group, ``[E]``.

    Raises:
        OptionError: a dict or function gives something else than a finite number.
    """
    like = torch.zeros((), dtype=graph.constant.dtype, device=graph.device)
    if not (isinstance(alpha, Mapping) or callable(alpha)):
        return like.new_full((group.num_factors,), real_number(alpha))
    names = graph.statements_of(group)
    values = {name: _named(alpha, name) for name in set(names)}
    return like.new_tensor([values[name] for name in names])


def or_limit(alpha: Tensor, has_zeros: Tensor | bool = False) -> Tensor:
    """0 for what is too near to it for the dtype, ``[E]``; for positive alphas of factors with
    zeros, which the limit would divide by, the least one that is not."""
    least = math.sqrt(torch.finfo(alpha.dtype).eps)
    is_kept = (alpha > 0) & torch.as_tensor(has_zeros, device=alpha.device)
    return torch.where(alpha.abs() < least, least * is_kept.to(alpha), alpha)


def _named(alpha: Mapping[str, float] | Callable[[str], float], name: str) -> float:
    try:
        value = alpha(name) if callable(alpha) else alpha.get(name, 1.0)
    except TypeError as error:
        raise OptionError(
            f'alpha= as a function is given a statement\'s name, and failed for "{name}": {error}'
        ) from error
    if not math.isfinite(real_number(value)):
        raise OptionError(f'alpha of statement "{name}" is {value!r}, not a finite number')
    return real_number(value)
