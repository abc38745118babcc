"""What a filter refuses, and what it says to do instead."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from numbers import Integral
from typing import Any

from pyrograph.errors import InferenceError, OptionError, ShapeMismatch, ZeroMass
from pyrograph.graph.structure import Label


def refuse_fixed(options: Mapping[str, Any]) -> None:
    """Raise for options of :class:`DPVI` that a filter has no use for.

    Raises:
        OptionError: there is one.
    """
    if "init" in options:
        raise OptionError(
            "SequentialDPVI takes no init=: its particles grow node by node from nothing. Give "
            "init= to pg.DPVI, or go on from a filter's state_dict()"
        )
    if "sum_out" in options:
        raise OptionError(
            "SequentialDPVI takes no sum_out=: every node comes in as a part of the particles. "
            "Give sum_out= to pg.DPVI"
        )


def refuse_packed(
    args: tuple, kwargs: Mapping[str, Any], before: tuple[tuple, dict], error: Exception
) -> None:
    """Raise where a program fails on a tuple that arguments were packed into.

    Args:
        before: positional and other arguments that the program did not fail on.

    Raises:
        OptionError: the only argument is a tuple, and the first one was no sequence before.
    """
    first = before[0][0] if before[0] else None
    is_packed = not kwargs and len(args) == 1 and isinstance(args[0], tuple)
    if is_packed and not isinstance(first, list | tuple):
        raise OptionError(
            "extend takes the model's arguments one by one, as run does: extend(x, y), not "
            f"extend((x, y)). It was given a tuple, and the program fails on it: {error}"
        ) from error


def is_label(label: Any) -> bool:
    """Whether it is made like ``(site, index)``."""
    if not (isinstance(label, tuple) and len(label) == 2):
        return False
    site, index = label
    if not (isinstance(site, str) and isinstance(index, tuple)):
        return False
    return all(isinstance(i, Integral) for i in index)


def refuse_no_labels(labels: Sequence[Any], sites: Collection[str]) -> None:
    """Raise unless all are made like ``(site, index)``, of these sites.

    Raises:
        OptionError: one is made otherwise.
        ShapeMismatch: one is of no site.
    """
    for label in labels:
        if not is_label(label):
            raise OptionError(
                f'order= names nodes as (site, index), such as ("z", (0,)); {label!r} is none'
            )
    missing = [site for site, _ in labels if site not in sites]
    if missing:
        raise ShapeMismatch(f'site "{missing[0]}" is none of the program\'s: {", ".join(sites)}')


def no_mass(node: Label, is_cut: bool, is_opened: bool) -> InferenceError:
    """What to raise where no past goes on to this node.

    Args:
        is_cut: K was too few for all states with mass.
        is_opened: zeros of an earlier program, whose states were not kept, have gone.
    """
    site, index = node
    when = f"when {site}{list(index) if index else ''} comes in"
    if not (is_cut or is_opened):
        return ZeroMass(f"every joint state breaks a hard constraint {when}: the evidence is zero.")
    remedy = "Raise num_particles."
    if is_opened:
        more = " with more particles" if is_cut else ""
        remedy = (
            "States that an earlier program ruled out may have mass in this one, and raising "
            f"num_particles does not bring them back: run this program in a new engine{more}."
        )
    return InferenceError(
        f"no particle has mass {when}: all pasts that were kept break a hard constraint. {remedy}"
    )
