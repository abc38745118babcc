"""Messages, and the grids of quadratures, as tensors by name, and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pyrograph.beliefs import Natural
from pyrograph.errors import OptionError, ShapeMismatch
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.discrete.binary import BinaryFactors
from pyrograph.infer.message_passing.discrete.states import by_slot, in_form_of
from pyrograph.infer.message_passing.discrete.tables import TableFactors
from pyrograph.infer.message_passing.network.messages import Message
from pyrograph.infer.message_passing.network.network import Network
from pyrograph.infer.message_passing.quadrature.boxes import Boxes
from pyrograph.infer.message_passing.quadrature.grids import Grid

#: Where messages that do not fit come from.
ELSEWHERE = (
    "they belong to another model, to other arguments, or to a version that kept factors on the "
    "same nodes apart"
)
#: Names of :attr:`Boxes.tensors`.
BOXES = ("low", "edge", "missed", "mean", "root", "laid_for_mean", "laid_for_root")


def saved_messages(network: Network, messages: list[list[Message]]) -> dict[str, Tensor]:
    """Copies, named by block and port."""
    kept = {}
    for b, (block, sent) in enumerate(zip(network.blocks, messages, strict=True)):
        for p, message in enumerate(sent):
            if isinstance(message, Natural):
                for name, value in message.parameters().items():
                    kept[f"{b}.{p}.{name}"] = value.clone()
            else:
                kept[f"{b}.{p}"] = message.clone()
        if isinstance(block, QuadratureFactors) and block.grid is not None:
            own = _saved_points(block, block.grid)
            kept |= {f"{b}.{name}": value for name, value in own.items()}
    return kept


def _saved_points(block: QuadratureFactors, grid: Grid) -> dict[str, Tensor]:
    """The points that a block has in use, and what is known of them."""
    tilted = block.tilted
    kept = {"grid.mean": grid.mean.clone(), "grid.root": grid.root.clone()}
    for name, value in (
        ("rough", tilted.is_rough),
        ("checked", tilted.is_checked),
        ("due", tilted.is_due),
        ("age", tilted.age),
        ("returns", tilted.returns),
    ):
        kept[f"grid.{name}"] = torch.tensor(value, device="cpu")
    if tilted.poorer is not None:
        kept["poorer.mean"] = tilted.poorer.mean.clone()
        kept["poorer.root"] = tilted.poorer.root.clone()
    if tilted.coarse is not None:
        kept["grid.coarse"] = tilted.coarse.clone()
    if tilted.boxes is not None:
        for name, value in zip(BOXES, tilted.boxes.tensors, strict=True):
            kept[f"boxes.{name}"] = value.clone()
    return kept


def _load_points(block: QuadratureFactors, number: int, saved: Mapping[str, Tensor]) -> None:
    """Give a block the points of :func:`_saved_points`; those laid over other numbers than today
    are left out, and the next update finds new ones."""
    block.forget_grid()
    tilted, like = block.tilted, block.local.like
    grid = f"{number}.grid"
    if f"{grid}.mean" not in saved or saved[f"{grid}.mean"].shape[-1] != tilted.dim:
        return
    block.grid = _grid(saved, grid, like)
    if f"{number}.poorer.mean" in saved:
        tilted.poorer = _grid(saved, f"{number}.poorer", like)
    tilted.is_rough = bool(saved[f"{grid}.rough"])
    # older states do not have these
    tilted.is_checked = bool(saved.get(f"{grid}.checked", False))
    tilted.is_due = bool(saved.get(f"{grid}.due", False))
    tilted.age = int(saved.get(f"{grid}.age", 0))
    tilted.returns = int(saved.get(f"{grid}.returns", 0))
    coarse = saved.get(f"{grid}.coarse")
    tilted.coarse = None if coarse is None else coarse.to(block.alpha.device)
    if f"{number}.boxes.low" in saved:
        parts = (saved[f"{number}.boxes.{name}"].to(like) for name in BOXES)
        tilted.boxes = Boxes.of_tensors(*parts)


def _in_form_of(network: Network, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Messages of binary pairs as the blocks keep them: odds of both slots, or states of each."""
    saved = dict(saved)
    for b, block in enumerate(network.blocks):
        first = saved.get(f"{b}.0")
        if isinstance(block, BinaryFactors) and f"{b}.1" in saved and first.dim() == 2:
            (saved[f"{b}.0"],) = in_form_of(block, [first, saved.pop(f"{b}.1")])
        elif isinstance(block, TableFactors) and first is not None and first.dim() == 1:
            saved[f"{b}.0"], saved[f"{b}.1"] = by_slot([first])
    return saved


def loaded_messages(
    network: Network, like: list[list[Message]], saved: Mapping[str, Tensor]
) -> list[list[Message]]:
    """Messages of the shapes of ``like``; grids go to their blocks.

    Raises:
        ShapeMismatch: they belong to another graph.
        OptionError: they hold NaN or plus infinity.
    """
    saved = _in_form_of(network, saved)
    left = {key for key in saved if key.split(".")[1].isdigit()}

    def take(key: str, like: Tensor) -> Tensor:
        value = saved.get(key)
        left.discard(key)
        if value is None or value.shape != like.shape:
            there = "none" if value is None else list(value.shape)
            raise ShapeMismatch(
                f"the saved messages {key} have shape {there}, this graph needs "
                f"{list(like.shape)}: {ELSEWHERE}"
            )
        if bool((value.isnan() | (value == torch.inf)).any()):
            raise OptionError(
                f"the saved messages {key} are not all numbers (NaN or infinite): the run that "
                "they come from had failed. Start from its checkpoint before that, or afresh."
            )
        return value.to(like)

    out = []
    for b, (block, start) in enumerate(zip(network.blocks, like, strict=True)):
        messages: list[Message] = []
        for p, m in enumerate(start):
            if isinstance(m, Natural):
                named = m.parameters().items()
                messages.append(type(m)(*(take(f"{b}.{p}.{n}", value) for n, value in named)))
            else:
                messages.append(take(f"{b}.{p}", m))
        out.append(messages)
        if isinstance(block, QuadratureFactors):
            _load_points(block, b, saved)
    if left:
        raise ShapeMismatch(
            f"the saved messages {min(left)} have no place in this graph: {ELSEWHERE}"
        )
    return out


def _grid(saved: Mapping[str, Tensor], name: str, like: Tensor) -> Grid:
    return Grid(saved[f"{name}.mean"].to(like), saved[f"{name}.root"].to(like))
