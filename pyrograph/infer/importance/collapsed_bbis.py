"""Collapsed black-box importance sampling: points that hold some variables, the rest exact.

    w = argmin sum_lm w_l w_m E[k_p(x, y)],   x ~ p(x_c(l) | x_s(l)^l),  y ~ p(y_c(m) | x_s(m)^m)

Every sample holds the variables s and stands for the exact conditional of the others, c. The
program is compiled into a circuit once; all entries of the Gram matrix are then one pass over pairs
of its units (:func:`pyrograph.circuits.stein_gram`). A sample that holds less says more: with
nothing held, one sample is exact. Expectations are those of the weighted conditionals.

Source: Li, Zeng, Vergari & Van den Broeck (2021), section 5.2, proposition 5.5, Algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrograph.checks import count, real_number
from pyrograph.circuits import Circuit, CollapsedPosterior, compile_graph, stein_gram
from pyrograph.circuits.compiling.compile import MAX_EDGES, compile_tables
from pyrograph.circuits.compiling.held import HeldCircuit, nodes_to_hold
from pyrograph.circuits.compiling.tables import LogTables, read_tables
from pyrograph.circuits.expectations.expected import num_pairs
from pyrograph.circuits.expectations.kernels import Kernel
from pyrograph.circuits.options import number
from pyrograph.circuits.structure.leaves import MISSING
from pyrograph.errors import OptionError, ShapeMismatch, UnsupportedFactor
from pyrograph.graph.structure import Label
from pyrograph.infer.dpvi.filter_errors import is_label
from pyrograph.infer.importance.bbis import BBIS
from pyrograph.infer.importance.proposals import Proposal
from pyrograph.infer.importance.zeros import refuse_zeros
from pyrograph.infer.requires import FiniteDiscrete
from pyrograph.posterior import Posterior
from pyrograph.trace.sites import tensor_of

#: Edges up to which a circuit of all nodes is compiled to see what it would cost.
MOST_EDGES = 2**18


class CollapsedBBIS(BBIS):
    """Stein weights of samples whose other variables are summed out.

    Args:
        model: a Pyro program whose latent sites are all finite discrete. What is summed out has to
            be narrow enough to be compiled (see :func:`pyrograph.circuits.compile_graph`): for a
            list or ``"treewidth"`` given the rest, for a share all nodes together.
        collapse: what is summed out: a share of the nodes, drawn anew for every sample, or a list
            of node labels ``(site, index)`` for all of them; or ``"treewidth"``: all nodes but
            those that have to be held for the rest to be narrow.
        max_width: nodes in a context that is narrow.
        kernel: of :mod:`pyrograph.circuits`; default ``Hamming()``.
        max_edges: budget of the circuit.
        options: of :class:`BBIS` (``samples`` have all columns; those summed out are ignored).

    Attributes:
        circuit: the program's.
        weights: ``[n]``.

    Raises:
        UnsupportedFactor: the circuit would be too large, or a factor is zero somewhere (as for
            :class:`BBIS`) and the nodes that make it so are not summed out in every sample.
        UnsupportedSite: a site is continuous, or has infinitely many states.
        OptionError: ``collapse`` names a node that is not there, or is no share.
    """

    requires = FiniteDiscrete()

    def __init__(
        self,
        model: Callable,
        *,
        collapse: float | Sequence[Label] | str = 0.5,
        max_width: int = 4,
        kernel: Kernel | None = None,
        max_edges: int | None = None,
        **options: Any,
    ):
        super().__init__(model, kernel=kernel, **options)
        share = real_number(collapse)
        if not math.isnan(share):
            if not 0 <= share <= 1:
                raise OptionError(f"collapse={collapse!r}: a share of the nodes is between 0 and 1")
            collapse = share
        elif not isinstance(collapse, str):
            collapse = _labels(collapse)
        elif collapse != "treewidth":
            raise _no_collapse(collapse)
        self.collapse = collapse
        self.max_edges = MAX_EDGES if max_edges is None else number("max_edges", max_edges)
        self.max_width = count("max_width", max_width)

    def check_density(self) -> None:
        """Compiles the program, and refuses zeros that stay in sight."""
        self._has_zeros = False
        if isinstance(self.collapse, float):
            self.circuit: Circuit | HeldCircuit = self._compile()
            refuse_zeros(self.graph, self.zeros)
            return
        self._summed = self._columns()
        self.circuit = self._compile()
        self._has_zeros = any(bool(zero.any()) for zero in self.zeros)
        in_sight = []
        for group, zero in zip(self.graph.factors, self.zeros, strict=True):
            summed = torch.isin(group.scope, self._summed.to(group.scope.device)).any(1)
            in_sight.append(zero & ~summed.to(zero.device).unsqueeze(1))
        refuse_zeros(self.graph, in_sight)

    def _compile(self) -> Circuit | HeldCircuit:
        """Of all nodes; or of those that no sample holds, where Stein kernels then cost less."""
        if isinstance(self.collapse, float):
            return compile_graph(self.graph, max_edges=self.max_edges)
        tables = self._tables()
        summed = set(self._summed.tolist())
        held = [v for v in range(self.graph.num_nodes) if v not in summed]
        if not held:
            return compile_tables(tables, self.graph.nodes, self.max_edges).to(self.graph.device)
        if self.collapse == "treewidth":
            return HeldCircuit(self.graph, held, self.max_edges, tables)
        try:
            whole = compile_tables(tables, self.graph.nodes, min(self.max_edges, MOST_EDGES))
        except UnsupportedFactor:  # without the held nodes it may be narrow
            return HeldCircuit(self.graph, held, self.max_edges, tables)
        try:
            apart = HeldCircuit(self.graph, held, self.max_edges, tables)
        except UnsupportedFactor:  # copies may take more room than the nodes
            return whole.to(self.graph.device)
        is_cheap = num_pairs(whole) <= apart.num_pairs(len(held))
        return whole.to(self.graph.device) if is_cheap else apart

    def _tables(self) -> LogTables:
        """Of all factors. What torch's distributions write for the log of zero is zero again: a
        state that is possible at 1e-7 would pass for one that a Stein kernel can divide by."""
        tables = read_tables(self.graph)
        zeros = [zero for group in self.zeros for zero in group.cpu().numpy()]
        values = [
            np.where(zero.reshape(t.shape), -np.inf, t)
            for zero, t in zip(zeros, tables.tables, strict=True)
        ]
        return replace(tables, tables=values)

    def _columns(self) -> Tensor:
        """Numbers of the nodes that are summed out in every sample."""
        if self.collapse == "treewidth":
            held = set(nodes_to_hold(self.graph, self.max_width))
            return torch.tensor(
                [v for v in range(self.graph.num_nodes) if v not in held], device="cpu"
            )
        number = {label: i for i, label in enumerate(self.graph.nodes)}
        found = []
        for label in self.collapse:
            if not is_label(label) or label not in number:  # lists have no hash
                raise OptionError(
                    f"collapse= names {label!r}, which is no node of the graph; nodes are like "
                    f"{self.graph.nodes[0]!r}"
                )
            found.append(number[label])
        return torch.tensor(found, dtype=torch.int64, device="cpu")

    def points(self) -> Tensor:
        """``[V, n]`` codes, -1 where summed out."""
        if self._has_zeros and self.proposal is None:
            x = self._draws()
        else:
            x = self.points_of(self._filled(self.proposal)).clone()
        if isinstance(self.collapse, float):
            share = round(self.collapse * len(x))
            noise = torch.rand(x.shape, generator=self.generator, dtype=torch.float64, device="cpu")
            x[noise.argsort(0).argsort(0).to(x.device) < share] = MISSING
        else:
            x[self._summed.to(x.device)] = MISSING
            self._check_neighbours(x)
        return x

    def _draws(self) -> Tensor:
        """Exact draws of the program: chains would not leave the part of it where they start.

        Raises:
            OptionError: the program is too wide for that.
        """
        whole = self.circuit
        if isinstance(whole, HeldCircuit):
            try:
                whole = compile_tables(self._tables(), self.graph.nodes, self.max_edges)
            except UnsupportedFactor as error:
                raise OptionError(
                    "the program has zeros, which Gibbs chains do not cross, and is too wide to be "
                    "drawn from: give samples= or proposal="
                ) from error
        seed = int(torch.randint(2**62, (), generator=self.generator, device="cpu"))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return whole.sample(self.num_particles).t().to(self.graph.device, copy=True)

    def _filled(self, proposal: Proposal | None) -> Proposal | None:
        """Values with any state in the columns that are ignored.

        Raises:
            ShapeMismatch: a site has no values.
        """
        if not isinstance(proposal, Mapping) or isinstance(self.collapse, float):
            return proposal
        found = dict(proposal)
        for name, site in self.graph.sites.items():
            own = self._summed - self.graph.nodes_of(name).start
            own = own[(own >= 0) & (own < site.num_nodes)]
            if name not in found:
                raise ShapeMismatch(
                    f'no values of site "{name}"; expected [M, *{site.shape}]: nodes that are '
                    "summed out have columns too, which are ignored"
                )
            value = tensor_of(found[name])
            if not len(own) or value.shape[1:] != site.shape:
                continue  # of another shape: refused where values are read
            flat = value.clone().reshape(len(value), site.num_nodes, *site.event_shape)
            flat[:, own.to(value.device)] = site.enumeration[0].to(flat)
            found[name] = flat.reshape(value.shape)
        return found

    def _check_neighbours(self, x: Tensor) -> None:
        """Whether p is positive at the samples with one held variable moved on.

        Raises:
            UnsupportedFactor: naming a node.
        """
        if not self._has_zeros:
            return
        cards = torch.tensor(self.circuit.cards, device=x.device)
        for i in (x != MISSING).any(1).nonzero().squeeze(1).tolist():
            moved = x.clone()
            moved[i] = torch.where(x[i] == MISSING, MISSING, (x[i] + 1) % cards[i])
            if bool((self.circuit.log_prob(moved.t()) == -torch.inf).any()):
                raise UnsupportedFactor(
                    f"node {self.graph.nodes[i]} is bound to others: moved to its next state it "
                    "has probability zero given the held variables of a sample, and a discrete "
                    "Stein kernel divides by such probabilities. Add it to collapse=, or soften "
                    "the factor that binds it"
                )

    def better_weights(self) -> None:
        """Samples hold a share of the states' mass together with what they leave open."""

    def scores(self, x: Tensor) -> Tensor:
        """Log densities of what samples hold, and with the rest in its first state, ``[2, n]``:
        other data may leave the former as they are."""
        return torch.stack([self.circuit.log_prob(x.t()), super().scores(x.clamp_min(0))])

    def gram(self, x: Tensor) -> Tensor:
        """Expected Stein kernels of partly held points ``[V, m]``."""
        if isinstance(self.circuit, HeldCircuit):
            return self.circuit.stein_gram(x.t(), self.kernel, progress=self.progress)
        return stein_gram(self.circuit, x.t(), self.kernel, progress=self.progress)

    def options(self) -> dict[str, str]:
        """As of :class:`BBIS`, and what is summed out."""
        if isinstance(self.collapse, float):
            collapse = f"a share of {self.collapse:g}"
        else:
            collapse = f"the nodes {sorted(self._summed.tolist())}"
        return super().options() | {"collapse": collapse}

    def check_held(self, x: Tensor) -> None:
        """Whether points ``[V, n]`` of a state hold what this engine's do.

        Raises:
            ShapeMismatch: they do not.
        """
        theirs, ours = x == MISSING, self.x == MISSING
        if isinstance(self.collapse, float):  # drawn anew for every sample
            theirs, ours = theirs.sum(0), ours.sum(0)
        if not torch.equal(theirs, ours):
            raise ShapeMismatch(
                "the state's points sum other nodes out: set up with the collapse= of the saved run"
            )

    def posterior(self) -> Posterior:
        """Weighted samples with exact conditionals."""
        run = {"converged": self.converged, "status": self.status, "history": self.history}
        points = self.x.t().clone()
        return CollapsedPosterior(self.graph, self.circuit, points, self.weights, **run)


def _labels(collapse: Any) -> list:
    """What is no number and no text, as a list.

    Raises:
        OptionError: it is none; a truth value in a tensor is not, either.
    """
    try:
        return list(collapse)
    except TypeError as error:
        raise _no_collapse(collapse) from error


def _no_collapse(collapse: Any) -> OptionError:
    return OptionError(
        f"collapse={collapse!r} is neither a share of the nodes, nor a list of node labels "
        '(site, index), nor "treewidth"'
    )
