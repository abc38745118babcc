"""What a program's statements say, looked at before anything is made of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrograph.errors import NonFiniteDensity, UnsupportedFactor
from pyrograph.graph.factor_graph import FactorGraph
from pyrograph.graph.factor_group import FactorGroup

#: Joint states of its discrete nodes in which a factor's continuous ones are looked at, at most;
#: and those of all factors of a group.
MOST_STATES, MOST_OF_ALL = 2**18, 2**27


def table_of(graph: FactorGraph, group: FactorGroup, budget: int, advice: str = "") -> Tensor:
    """Log values of a group's factors in all states, minus infinity for a zero.

    Args:
        budget: most entries of all factors together.
        advice: what else the message says where it is exceeded.

    Shapes:
        output: ``[E, c_1, ..., c_k]``.

    Raises:
        UnsupportedFactor: the table would be too large.
        NonFiniteDensity: an entry is NaN or plus infinity.
    """
    entries = group.num_entries
    if entries > budget:
        raise UnsupportedFactor(
            f"{graph.factor_name(group, 0)} and its likes have tables of {entries:,} entries in "
            f"all, over the budget of {budget:,}. Split the statement into terms of fewer nodes."
            f"{advice}"
        )
    table = group.table()
    refuse_non_finite(graph, group, table)
    return table


def refuse_many_states(graph: FactorGraph) -> None:
    """Refuse factors whose continuous nodes would be looked at in too many states, before work on
    others starts.

    Raises:
        UnsupportedFactor: the discrete nodes of a factor, or of all of a group, have too many.
    """
    for group in graph.factors:
        states = math.prod(site.cardinality for site in group.slots if site.is_discrete)
        is_few = states <= MOST_STATES and states * group.num_factors <= MOST_OF_ALL
        if group.is_discrete or is_few:
            continue
        raise UnsupportedFactor(
            f"{graph.factor_name(group, 0)} joins continuous nodes with discrete ones of "
            f"{states:,} joint states, each of which would be integrated ({MOST_STATES:,} at most, "
            f"and {MOST_OF_ALL:,} of the statement's factors together). Split the statement into "
            "terms of fewer discrete nodes; or let every label choose the scale of a site of its "
            "own, which the statement reads without the label: in the place of coefficients z * w "
            "those of b ~ Normal(0, torch.where(z > 0, 1.0, 0.01))."
        )


def constant_of(graph: FactorGraph) -> Tensor:
    """Log density of the statements that read no latent, ``[]``.

    Raises:
        NonFiniteDensity: it is NaN or plus infinity.
    """
    constant = graph.constant
    if bool(constant.isnan()) or bool(constant == torch.inf):
        raise NonFiniteDensity(
            f"the log density of the statements that read no latent is {float(constant)}. Look at "
            "the observations: NaN among them, or a density that is not finite there."
        )
    return constant


def refuse_non_finite(graph: FactorGraph, group: FactorGroup, log_values: Tensor) -> None:
    """Raise for the first factor of a group that has no density somewhere.

    Args:
        log_values: ``[E, ...]``.

    Raises:
        NonFiniteDensity: a value is NaN or plus infinity.
    """
    bad = log_values.isnan() | (log_values == torch.inf)
    if bool(bad.any()):
        e = int(bad.flatten(1).any(1).nonzero()[0])
        raise NonFiniteDensity(
            f"{graph.factor_name(group, e)} is NaN or plus infinity in some state. Look at that "
            "statement: a probability above 1 or 0 / 0 are the usual causes."
        )
