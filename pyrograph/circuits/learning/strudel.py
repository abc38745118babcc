"""Structure by splits: deterministic circuits that grow where most rows pass.

Starting from the Chow-Liu tree, each step takes an edge of a sum and a variable in its scope and
splits the edge on it, see :mod:`~pyrograph.circuits.learning.splitting`. The variable is the one
with the largest sum of mutual informations, over the rows that pass the edge, with the others
(vMI). The edge is the one that most rows pass (eFLOW), or the one where number of rows times that
sum is largest, which costs more time and gives smaller circuits. The circuit stays smooth,
structured along the tree and deterministic, so its parameters are counts, and the likelihood of the
rows that it learns from never falls if nothing is shrunk. With validation rows the best circuit so
far is returned.

Missing values are those of the Chow-Liu circuit given the values that are present, all of them with
their probabilities where they are few, else ``num_completions`` draws for each row; the structure
is learnt from the completed rows (one step of Monte Carlo structural EM), the parameters by EM from
the rows as they are. Of columns without any value nothing is learnt: they are uniform.

Source: Dang, Vergari & Van den Broeck (2020), "Strudel", algorithm 1 and section 4 (mixtures).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from pyrograph.checks import count
from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.learning.assemble import beside_uniform
from pyrograph.circuits.learning.chow_liu import learn_chow_liu
from pyrograph.circuits.learning.completion import complete_rows
from pyrograph.circuits.learning.em import fit_parameters
from pyrograph.circuits.learning.growth import Growth
from pyrograph.circuits.learning.mixture import fit_mixture
from pyrograph.circuits.learning.table import Table, read_table
from pyrograph.circuits.options import check_smoothing
from pyrograph.circuits.structure.leaves import numbers
from pyrograph.errors import OptionError, ShapeMismatch

EDGES = ("flow", "dependence", "random")
VARIABLES = ("mutual information", "random")

#: Pseudo-observations of splits: 10 and 30 validate alike on two real tables, 2 and 5 worse.
SHRINKAGE = 10.0


def learn_strudel(
    data: Tensor,
    *,
    valid: Tensor | None = None,
    cards: Sequence[int] | None = None,
    num_steps: int = 500,
    edge: str = "flow",
    variable: str = "mutual information",
    copy_depth: int = 1,
    smoothing: float = 1.0,
    shrinkage: float | None = None,
    max_edges: int | None = None,
    patience: int = 100,
    num_components: int = 1,
    num_completions: int = 5,
    weights: Tensor | None = None,
    progress: bool = True,
) -> Circuit:
    """A structured circuit, deterministic if it has one component, learnt from data.

    Args:
        data: ``[N, D]`` codes; NaN or -1 is missing.
        valid: ``[M, D]``, rows whose likelihood chooses the number of steps.
        cards: numbers of states; by default the largest code of data and valid and one more, at
            least 2.
        num_steps: splits at most.
        edge: "flow"; "dependence", for small circuits; or "random".
        variable: "mutual information", or "random".
        copy_depth: sums beside the path to the variable that a split copies; 0 copies least.
        smoothing: pseudo-observations of the tree, spread evenly; see :func:`learn_chow_liu`.
        shrinkage: pseudo-observations of every copied sum, distributed like what it was copied
            from, and of every sum of a component; default 10, or 0 if ``smoothing`` is 0. With
            both 0 weights are of maximum likelihood, and new rows may have probability 0.
        max_edges: stop when the circuit of one component would have more; default no limit. At
            least as many as the tree has, which it grows from.
        patience: steps without a better validation after which it stops.
        num_components: above 1, a mixture of circuits of the learnt structure, by EM.
        num_completions: draws for each of the rows that miss values; a row that counts w times, or
            is there so often, has w times as many. Rows have all their completions, without noise,
            where these are no more than draws.
        weights: ``[N]``, how often each row counts.
        progress: show a bar.

    Random choices draw from torch's generator.

    Raises:
        ShapeMismatch: data is not ``[N, D]``, or empty, or valid has other columns.
        OptionError: a value is no code, or an option has a value that it cannot have.
    """
    smoothing = check_smoothing("smoothing", smoothing)
    if shrinkage is None:
        shrinkage = SHRINKAGE if smoothing else 0.0
    shrinkage = check_smoothing("shrinkage", shrinkage)
    if edge not in EDGES or variable not in VARIABLES:
        raise OptionError(
            f"edge={edge!r}, variable={variable!r}: edge is one of {EDGES}, variable of {VARIABLES}"
        )
    num_steps = count("num_steps", num_steps, least=0)
    copy_depth = count("copy_depth", copy_depth, least=0)
    num_components = count("num_components", num_components)
    num_completions = count("num_completions", num_completions)
    patience = count("patience", patience)
    max_edges = math.inf if max_edges is None else count("max_edges", max_edges)
    every, checked = _read(data, valid, cards, weights)
    kept = every.with_values() if smoothing else np.arange(every.num_variables)
    even = np.setdiff1d(np.arange(every.num_variables), kept)
    table = every.columns(kept)
    checked = None if checked is None else checked.columns(kept)
    more_edges = len(even) + 1 if len(even) else 0
    completed = _completed(table, smoothing, num_completions)
    growth = Growth(completed, checked, smoothing, shrinkage, copy_depth, edge, variable)
    if growth.splitting.num_edges + more_edges > max_edges:
        raise OptionError(
            f"max_edges={max_edges!r}, but the tree that every circuit grows from has "
            f"{growth.splitting.num_edges + more_edges} edges"
        )
    with tqdm(total=num_steps, disable=not progress) as bar:
        best = growth.run(num_steps, patience, max_edges - more_edges, bar)
    if num_components > 1:
        circuit = fit_mixture(best, num_components, shrinkage)
    else:
        circuit = best.circuit()
    if not table.is_complete:
        circuit = fit_parameters(
            circuit, table.tensor(), smoothing=shrinkage, prior=circuit, weights=table.weight
        )
    return beside_uniform(circuit, kept, every.cards) if len(even) else circuit


def _completed(table: Table, smoothing: float, num_completions: int) -> Table:
    """Rows without holes, filled in by the Chow-Liu circuit."""
    if table.is_complete:
        return table
    start = learn_chow_liu(
        table.tensor(),
        cards=table.cards,
        smoothing=smoothing,
        weights=torch.from_numpy(table.weight),
    )
    return complete_rows(start, table, num_completions)


def _read(
    data: Tensor, valid: Tensor | None, cards: Sequence[int] | None, weights: Tensor | None
) -> tuple[Table, Table | None]:
    table = read_table(data, cards, weights)
    if valid is None:
        return table, None
    rows = numbers(valid)
    if rows.dim() != 2 or rows.shape[1] != table.num_variables:
        raise ShapeMismatch(
            f"valid has shape {tuple(rows.shape)}; expected [M, {table.num_variables}]"
        )
    if cards is None:
        both = torch.cat([table.tensor().double(), rows.detach().cpu()])
        table = replace(table, cards=read_table(both, name="data with valid").cards)
    return table, read_table(rows, table.cards, name="valid")
