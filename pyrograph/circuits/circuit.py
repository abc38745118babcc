"""Probabilistic circuits: distributions whose marginals, and more, are one pass over a graph.

    input(x) = f(x_v),    product(x) = prod_c c(x),    sum(x) = sum_c w_c c(x)

A circuit is *smooth* if the children of every sum have one scope, and *decomposable* if those of
every product share no variable. Then integrals over any variables are taken at the inputs, and a
pass answers a marginal query exactly. If, besides, no two children of a sum are positive together
(*deterministic*), the most probable state is exact as well. Values need not add up to 1: the value
at "all missing" is the circuit's mass.

Source: Choi, Vergari & Van den Broeck (2020), "Probabilistic circuits: a unifying framework for
tractable probabilistic models"; Li, Zeng, Vergari & Van den Broeck (2021), section 2.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import MixtureSameFamily

from pyrograph.checks import count
from pyrograph.circuits.marginals import marginals_given
from pyrograph.circuits.sampling import complete, draw
from pyrograph.circuits.structure.computed import ComputedModule
from pyrograph.circuits.structure.layers import Layers
from pyrograph.circuits.structure.leaves import Domain, Leaves, numbers, read_inputs
from pyrograph.circuits.structure.nodes import read_nodes, write_nodes
from pyrograph.circuits.structure.properties import Properties
from pyrograph.circuits.structure.prune import prune
from pyrograph.circuits.structure.units import INPUT, Units
from pyrograph.errors import InvalidCircuit, OptionError, ZeroMass
from pyrograph.graph.devices import usable_device

#: Numbers held at once when points are evaluated without derivatives.
CHUNK = 2**24
#: Values drawn at once.
DRAWN = 2**21


class Circuit(ComputedModule):
    """A circuit over variables 0 .. D - 1.

    Its numbers are parameters: ``circuit.requires_grad_()`` makes log values, masses, marginals and
    expectations differentiable in them, also those of the circuits that :meth:`condition` and
    :meth:`normalized` return (whose numbers are then buffers, computed from the parameters; under
    ``torch.no_grad()`` they have parameters of their own, as ``copy.deepcopy`` and
    ``requires_grad_(False)`` give them). States that are drawn or found, and
    :meth:`most_probable`'s value, are not. ``circuit.to(device)`` and ``circuit.float()`` move the
    numbers. Written as :meth:`from_nodes`; see also :func:`compile_graph`, :func:`learn_strudel`
    and others.

    Args:
        units: the structure.
        domain: the variables.
        log_weights: of the edges of sums, in order of edges.
        log_table: ``[inputs, c]`` log probabilities of categorical inputs.
        loc, scale: ``[inputs]`` of Gaussian inputs, NaN elsewhere.

    Attributes:
        clamped_state: of a compiled program, a state whose probability is zero but for the eps that
            torch's distributions put in its place; None if there is none. It has that probability
            here, too, and is no state for scores: :func:`kdsd` refuses the circuit. A file does not
            keep it. Set it to None where you have learnt other numbers.

    Raises:
        InvalidCircuit: sums of unlike scopes, products of overlapping ones, a wrong number of
            weights, or a unit that is not below the root.
    """

    clamped_state: tuple[int, ...] | None = None
    _names = ("log_weights", "log_table", "loc", "scale")

    def __init__(
        self,
        units: Units,
        domain: Domain,
        log_weights: Tensor,
        log_table: Tensor,
        loc: Tensor,
        scale: Tensor,
    ):
        super().__init__()
        self.units, self.domain = units, domain
        used = np.zeros(len(units), bool)
        used[units.child] = used[-1] = True
        if not used.all():
            n = np.flatnonzero(~used)[0]
            raise InvalidCircuit(f"{units.name(n)} has no parent and is not the root (the last)")
        if len(log_weights) != units.edge_is_sum.sum():
            raise InvalidCircuit(
                f"{len(log_weights)} weights for {int(units.edge_is_sum.sum())} edges of sums"
            )
        values = (log_weights, log_table, loc, scale)
        if len({value.dtype for value in values}) > 1:
            raise InvalidCircuit("log_weights, log_table, loc and scale have different dtypes")
        self._hold(values)

    @staticmethod
    def _derived(units: Units, domain: Domain, *numbers: Tensor) -> Circuit:
        """A circuit of numbers computed from another one's, with their derivatives."""
        made = Circuit(units, domain, *numbers)
        made._attach(numbers)
        return made

    def to(self, *args: Any, **kwargs: Any) -> Circuit:
        """As of any module.

        Raises:
            OptionError: the device cannot be used.
        """
        device = kwargs.get("device", args[0] if args else None)
        if isinstance(device, (torch.device, str, int)) and str(device) != "meta":
            usable_device(device)
        return super().to(*args, **kwargs)

    @staticmethod
    def from_nodes(nodes: Sequence[Mapping[str, Any]]) -> Circuit:
        """A circuit written out.

        Args:
            nodes: in topological order, root last: ``{"type": "input", "var": i, "probs":
                [...]}``, or with ``"loc"`` and ``"scale"``; ``{"type": "product", "children":
                [...]}``; ``{"type": "sum", "children": [...], "weights": [...]}``. Numbers that
                floats do not reach are given as ``"log_probs"`` and ``"log_weights"``. Nodes that
                the root is not made of are left out. Numbers are copied: derivatives are those of
                the circuit's own, after ``requires_grad_()``.

        Raises:
            InvalidCircuit: naming the node.
        """
        nodes = list(nodes) if isinstance(nodes, Iterable) else nodes
        units, weights, numbers = read_nodes(nodes)
        domain, *of_inputs = read_inputs(nodes, units, numbers)
        return Circuit(
            units, domain, torch.tensor(weights, dtype=torch.float64, device="cpu"), *of_inputs
        )

    def to_nodes(self) -> list[dict[str, Any]]:
        """The circuit as :meth:`from_nodes` reads it."""
        return write_nodes(self.units, self.cards, *self.numbers.values())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as text, see :func:`write_circuit`."""
        from pyrograph.circuits.text import write_circuit

        write_circuit(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Circuit:
        """Read what :meth:`save` wrote, bit by bit the same.

        Raises:
            DataNotFound: there is no such file.
            DataFormatError: naming file and line.
        """
        from pyrograph.circuits.text import read_circuit

        return read_circuit(path)

    def draw(self, ax=None, names: Sequence[str] | None = None):
        """A picture, see :func:`draw_circuit`."""
        from pyrograph.circuits.draw import draw_circuit

        return draw_circuit(self, ax, names)

    # ------------------------------------------------------------------ structure
    @property
    def num_edges(self) -> int:
        return self.units.num_edges

    @property
    def num_variables(self) -> int:
        return self.domain.num_variables

    @property
    def cards(self) -> tuple[int | None, ...]:
        """Number of states of each variable; None of a real one."""
        return self.domain.cards

    @property
    def leaves(self) -> Leaves:
        return Leaves(self.domain, self.log_table, self.loc, self.scale)

    @property
    def layers(self) -> Layers:
        found = self.__dict__.get("_layers")
        if found is None or found.device != self.log_weights.device:
            found = self.__dict__["_layers"] = Layers(self.units, self.log_weights.device)
        return found

    @cached_property
    def _properties(self) -> Properties:
        return Properties(self.units, self.domain, self.log_table, self.log_weights)

    def properties(self) -> dict[str, bool]:
        """``smooth``, ``decomposable``, ``structured`` (some vtree fits) and ``deterministic``.

        Determinism is decided exactly for structured circuits. For others a sum counts as
        deterministic only if every two children differ in a variable of which they have no state
        in common, which may say no where the truth is yes.
        """
        self._properties.now(self.log_table, self.log_weights)
        return self._properties.all()

    def requires(self, *names: str, query: str) -> None:
        """Raise unless the circuit has these properties.

        Raises:
            InvalidCircuit: naming a unit that lacks one.
        """
        if "deterministic" in names:  # the only one that numbers decide
            self._properties.now(self.log_table, self.log_weights)
        for name in names:
            problem = self._properties.problem(name)
            if problem:
                raise InvalidCircuit(f"{query} needs a {name} circuit: {problem}")

    # ------------------------------------------------------------------ queries
    def log_prob(self, x: Tensor) -> Tensor:
        """Log values at points, missing values summed out.

        Args:
            x: ``[B, D]`` or ``[D]``; NaN is missing, and -1 of discrete variables.

        Returns:
            ``[B]`` or ``[]``.

        Raises:
            InvalidCircuit: the circuit is not smooth and decomposable.
            ShapeMismatch, OptionError: a point is not in the domain.
        """
        self.requires("smooth", "decomposable", query="log_prob")
        x = numbers(x, self.log_weights.device)
        points = self.domain.check(x.unsqueeze(0) if x.dim() == 1 else x)
        chunk = len(points) if self.is_attached else max(1, CHUNK // len(self.units))
        parts = [  # one at least: of no points
            self.layers.values(self.leaves.log_prob(part), self.log_weights)[-1][0]
            for part in points.split(max(chunk, 1))
        ]
        values = torch.cat(parts).to(self.log_weights.dtype)
        return values[0] if x.dim() == 1 else values

    def forward(self, x: Tensor) -> Tensor:
        """:meth:`log_prob`."""
        return self.log_prob(x)

    def log_mass(self) -> Tensor:
        """Log of the sum over all states, ``[]``: log Z of an unnormalised circuit."""
        return self.log_prob(torch.full((self.num_variables,), torch.nan, device="cpu"))

    def marginals(self, given: Tensor | None = None) -> list[Tensor | MixtureSameFamily]:
        """Of every variable: probabilities ``[c]``, or a mixture of Gaussians.

        By one pass down: the share of an input in the mass is the derivative of the log mass in
        its log value.

        Args:
            given: evidence ``[B, D]``, NaN or -1 where missing; then probabilities are ``[B, c]``,
                point masses where a state is given, and real variables are refused.

        Raises:
            ZeroMass: nothing is possible, under some row of the evidence.
        """
        self.requires("smooth", "decomposable", query="marginals")
        if given is None:
            nothing = torch.full((1, self.num_variables), torch.nan, device="cpu")
            rows = marginals_given(self, nothing.to(self.loc))
            return [row.squeeze(0) if isinstance(row, Tensor) else row for row in rows]
        if None in self.cards:
            raise InvalidCircuit(
                f"variable {self.cards.index(None)} is real: marginals of many pieces of evidence "
                "are for discrete circuits"
            )
        points = self.domain.check(given, self.loc.device)
        chunk = max(1, CHUNK // (4 * len(self.units)))
        parts = [marginals_given(self, part) for part in points.split(chunk)]
        return [torch.cat(rows) for rows in zip(*parts, strict=True)]

    def condition(self, evidence: Mapping[int, float]) -> Circuit:
        """The distribution given some values, normalised, over the same variables; differentiable.

        Variables that are given become point masses; units that have become impossible are left
        out.

        Raises:
            ZeroMass: the evidence has probability zero.
            OptionError: a variable is not there or real, or a value is no state of it.
        """
        row = self.domain.row(evidence).to(self.loc.device)
        for v, is_given in enumerate((~row[0].isnan()).tolist()):
            if is_given and self.cards[v] is None:
                raise OptionError(
                    f"variable {v} is real: a circuit has no point mass there. Query log_prob and "
                    "expectations with its value instead"
                )
        at = row[0, self.leaves.var]
        states = torch.arange(self.log_table.shape[1], device=at.device)
        keep = at.isnan().unsqueeze(1) | (at.unsqueeze(1) == states)
        table = torch.where(keep, self.log_table, -torch.inf)
        given = self.numbers | {"log_table": table}
        made = Circuit._derived(self.units, self.domain, *given.values())
        made.clamped_state = self.clamped_state
        return made.normalized()

    def normalized(self) -> Circuit:
        """The same distribution with every unit of mass 1; impossible units are left out.
        Differentiable.

        Raises:
            ZeroMass: nothing is possible.
        """
        self.requires("smooth", "decomposable", query="normalisation")
        log_weights, table, mass = self.at_mass_one()
        if not bool(mass[-1].isfinite()):
            raise ZeroMass("the mass is zero: no state is possible under this evidence")
        log_weights, table = log_weights.to(self.log_weights), table.to(self.log_table)
        made = Circuit._derived(
            *prune(self.units, self.domain, mass, log_weights, table, self.loc, self.scale)
        )
        made.clamped_state = self.clamped_state
        return made

    def at_mass_one(self) -> tuple[Tensor, Tensor, Tensor]:
        """``log_weights`` and ``log_table``, in double precision, with which every possible unit
        has mass 1, -inf at others; and the log mass ``[N]`` that each has now. Differentiable."""
        leaves = self.leaves.log_mass().unsqueeze(1)
        mass = self.layers.all_values(leaves, self.log_weights)[:, 0]
        edge = torch.as_tensor(self.units.edge_is_sum, device=mass.device)
        child = torch.as_tensor(self.units.child, device=mass.device)[edge]
        parent = torch.as_tensor(self.units.parent, device=mass.device)[edge]
        # impossible units keep their numbers: -inf - -inf has no value
        level = torch.where(mass.isfinite(), mass, 0.0)
        above = mass[child] + torch.where(self.log_weights.isfinite(), -level[parent], 0.0)
        is_input = torch.as_tensor(self.units.kind == INPUT, device=mass.device)
        table = self.log_table - level[is_input].unsqueeze(1)
        table = torch.where(self.leaves.is_real.unsqueeze(1), self.log_table, table)
        return self.log_weights + above, table.double(), mass

    def sample(self, num_samples: int) -> Tensor:
        """Independent draws ``[num_samples, D]``: codes (int64) if all variables are discrete,
        else numbers of the circuit's dtype.

        Raises:
            ZeroMass: nothing is possible.
        """
        total = count("num_samples", num_samples, least=0)
        with torch.no_grad():
            circuit = self.normalized()
        chunk = max(1, DRAWN // self.num_variables)
        parts = [draw(circuit, min(chunk, total - k)) for k in range(0, total, chunk)]
        return torch.cat(parts) if parts else draw(circuit, 0)

    def fill_in(self, given: Tensor) -> Tensor:
        """One draw of the missing values of every row, given the others.

        Args:
            given: ``[B, D]``, NaN or -1 where missing.

        Returns:
            ``[B, D]``, as :meth:`sample`.

        Raises:
            ZeroMass: a row is impossible.
        """
        self.requires("smooth", "decomposable", query="fill_in")
        return self._complete(given, highest=False)[0]

    def _complete(self, given: Tensor, highest: bool) -> tuple[Tensor, Tensor]:
        points = self.domain.check(given, self.loc.device)
        chunk = max(1, CHUNK // len(self.units))
        parts = [complete(self, part, highest) for part in points.split(chunk)]
        return torch.cat([x for x, _ in parts]), torch.cat([value for _, value in parts])

    def most_probable(
        self, evidence: Mapping[int, float] | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The state of the highest value, ``[D]`` (int64), and its log value ``[]``.

        Args:
            evidence: ``{variable: state}`` to hold; or rows ``[B, D]``, NaN or -1 where free, each
                to be completed: then the result is ``[B, D]`` and ``[B]``.

        Raises:
            InvalidCircuit: the circuit is not deterministic, where this pass is not exact, or has
                real variables.
            ZeroMass: the evidence is impossible.
        """
        self.requires("smooth", "decomposable", "deterministic", query="most_probable")
        if None in self.cards:
            raise InvalidCircuit(
                f"most_probable is for discrete circuits; variable {self.cards.index(None)} is real"
            )
        if evidence is not None and not isinstance(evidence, Mapping):
            return self._complete(evidence, highest=True)
        states, values = self._complete(self.domain.row(evidence or {}), highest=True)
        return states[0], values[0]

    def extra_repr(self) -> str:
        counts = [int((self.units.kind == k).sum()) for k in range(3)]
        return (
            f"{self.num_variables} variables, {counts[0]} inputs, {counts[1]} products, "
            f"{counts[2]} sums, {self.num_edges} edges"
        )
