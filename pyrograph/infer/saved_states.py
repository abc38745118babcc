"""Whether what an engine is given as a saved state can be one of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from pyrograph.errors import ShapeMismatch


def plain(state: Any) -> Any:
    """(Nested) dicts without tensors made in inference mode, which cannot be gone on from."""
    if isinstance(state, Mapping):
        return {name: plain(value) for name, value in state.items()}
    if isinstance(state, Tensor) and state.is_inference():
        return state.clone()
    return state


def refuse_lacking(state: Mapping[str, Any], needed: Collection[str], engine: str) -> None:
    """Raise ``ShapeMismatch`` where parts of a state are missing.

    Args:
        needed: their names; engine: whose state it should be.
    """
    missing = set(needed) - set(state)
    if missing:
        raise ShapeMismatch(
            f"the state has no {', '.join(sorted(missing))}: it is not a state_dict of {engine}"
        )


def refuse_foreign(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise ``ShapeMismatch`` where a state is damaged, or of sites of other shapes.

    Args:
        own: the engine's present state.
    """
    _refuse_damaged(state, own)
    for part in ("sites", "history"):  # of names that this engine does not have, or not yet
        numbers = torch.empty(0, device="cpu")
        _refuse_damaged(state[part], dict.fromkeys(state[part], numbers), f"{part}.")
    ours, theirs = (
        {name: [int(k) for k in shape] for name, shape in sites.items()}
        for sites in (own["sites"], state["sites"])
    )
    for name in ours | theirs:
        if ours.get(name) != theirs.get(name):
            raise ShapeMismatch(
                f'the state belongs to another graph: site "{name}" has shape '
                f"{theirs.get(name, 'none')} there and {ours.get(name, 'none')} here. Set the "
                "engine up with the model and arguments of the saved run."
            )


def _refuse_damaged(saved: Mapping[str, Any], ours: Mapping[str, Any], place: str = "") -> None:
    """Raise ``ShapeMismatch`` where a (nested) state has no dict, tensor or number in the place of
    one. Rules of optimisers hold a number at one time and a tensor at another."""
    for name in saved.keys() & ours.keys():
        theirs, own = saved[name], ours[name]
        kind = Mapping if isinstance(own, Mapping) else object
        if isinstance(own, Tensor):
            kind = Tensor | float | int if place.startswith("optimizer.") else Tensor
        if not isinstance(theirs, kind) or (theirs is None and own is not None):
            raise ShapeMismatch(
                f'the state holds {type(theirs).__name__} as "{place}{name}", where '
                f"{type(own).__name__} is needed: it is damaged, or of another engine"
            )
        if kind is Mapping:
            _refuse_damaged(theirs, own, f"{place}{name}.")
