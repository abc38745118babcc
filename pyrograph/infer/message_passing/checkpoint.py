"""Messages, and the grids of quadratures, as tensors by name, and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pyrograph.beliefs import Natural
from pyrograph.errors import OptionError, ShapeMismatch
from pyrograph.infer.message_passing.binary import BinaryFactors
from pyrograph.infer.message_passing.boxes import Boxes
from pyrograph.infer.message_passing.grids import Grid
from pyrograph.infer.message_passing.messages import Message
from pyrograph.infer.message_passing.network import Network
from pyrograph.infer.message_passing.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.states import by_slot, in_form_of
from pyrograph.infer.message_passing.tables import TableFactors

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
            kept[f"{b}.grid.mean"] = block.grid.mean.clone()
            kept[f"{b}.grid.root"] = block.grid.root.clone()
            kept[f"{b}.grid.rough"] = torch.tensor(block.tilted.is_rough, device="cpu")
            kept[f"{b}.grid.checked"] = torch.tensor(block.tilted.is_checked, device="cpu")
            kept[f"{b}.grid.due"] = torch.tensor(block.tilted.is_due, device="cpu")
            kept[f"{b}.grid.age"] = torch.tensor(block.tilted.age, device="cpu")
            kept[f"{b}.grid.returns"] = torch.tensor(block.tilted.returns, device="cpu")
            if block.tilted.poorer is not None:
                kept[f"{b}.poorer.mean"] = block.tilted.poorer.mean.clone()
                kept[f"{b}.poorer.root"] = block.tilted.poorer.root.clone()
            if block.tilted.coarse is not None:
                kept[f"{b}.grid.coarse"] = block.tilted.coarse.clone()
            if block.tilted.boxes is not None:
                for name, value in zip(BOXES, block.tilted.boxes.tensors, strict=True):
                    kept[f"{b}.boxes.{name}"] = value.clone()
    return kept


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
            block.forget_grid()
            if f"{b}.grid.mean" in saved:
                grid = _grid(saved, f"{b}.grid", block.local.like)
                if grid.mean.shape[-1] != block.tilted.dim:
                    continue  # laid over other numbers than today: the next one is found afresh
                block.grid = grid
                if f"{b}.poorer.mean" in saved:
                    block.tilted.poorer = _grid(saved, f"{b}.poorer", block.local.like)
                block.tilted.is_rough = bool(saved[f"{b}.grid.rough"])
                block.tilted.is_checked = bool(saved.get(f"{b}.grid.checked", False))
                block.tilted.is_due = bool(saved.get(f"{b}.grid.due", False))
                block.tilted.age = int(saved.get(f"{b}.grid.age", 0))
                block.tilted.returns = int(saved.get(f"{b}.grid.returns", 0))
                coarse = saved.get(f"{b}.grid.coarse")
                block.tilted.coarse = None if coarse is None else coarse.to(block.alpha.device)
                if f"{b}.boxes.low" in saved:
                    parts = (saved[f"{b}.boxes.{name}"].to(block.local.like) for name in BOXES)
                    block.tilted.boxes = Boxes.of_tensors(*parts)
    if left:
        raise ShapeMismatch(
            f"the saved messages {min(left)} have no place in this graph: {ELSEWHERE}"
        )
    return out


def _grid(saved: Mapping[str, Tensor], name: str, like: Tensor) -> Grid:
    return Grid(saved[f"{name}.mean"].to(like), saved[f"{name}.root"].to(like))
