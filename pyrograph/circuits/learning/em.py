"""Parameters by expectation maximisation.

    flow of an edge = sum_x d log p(x) / d log w,    w_c <- (flow_c + s prior_c) / (flow + s)

The derivative of the log likelihood in a log weight is the expected number of times that the edge
is taken given the rows, whose missing values are summed out; so an E step is one backward pass. The
log likelihood (with ``smoothing``, plus the log prior) never falls. For a deterministic circuit and
complete rows the first step is the maximum.

Source: Dempster, Laird & Rubin (1977); Darwiche (2003) for the derivatives; Peharz et al. (2016).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from pyrograph.checks import count
from pyrograph.circuits.circuit import CHUNK, Circuit
from pyrograph.circuits.learning.table import row_weights
from pyrograph.circuits.options import check_circuits, check_smoothing, number
from pyrograph.circuits.structure.prune import possible
from pyrograph.circuits.structure.units import INPUT, KINDS
from pyrograph.diagnostics.score import outside_modes
from pyrograph.errors import NonFiniteDensity, OptionError, ShapeMismatch, ZeroMass

#: Standard deviations of Gaussian inputs stay above this share of the column's.
NARROWEST = 1e-3


@outside_modes()
def fit_parameters(
    circuit: Circuit,
    data: Tensor,
    *,
    num_steps: int = 100,
    smoothing: float = 0.0,
    prior: Circuit | None = None,
    weights: Tensor | None = None,
    tol: float = 1e-6,
    progress: bool = False,
) -> Circuit:
    """A circuit of the same structure whose numbers fit the data.

    Weights and tables of probability 0 stay 0. A sum that no row meets keeps its weights.

    Args:
        circuit: smooth and decomposable.
        data: ``[N, D]``; NaN is missing, and -1 of discrete variables.
        num_steps: at most.
        smoothing: pseudo-observations of every sum and every discrete input.
        prior: a circuit of the same units, edges and variables, whose weights the
            pseudo-observations follow over what is possible in the circuit; default: evenly.
        weights: ``[N]``, how often each row counts; not negative.
        tol: stop when the objective per row rises by less.
        progress: show a bar.

    Raises:
        InvalidCircuit: the circuit is not smooth and decomposable.
        NonFiniteDensity: a row has probability 0; the text names it.
        OptionError: an option or a weight is out of range, a value is not in the domain, or a real
            variable has one value only, which Gaussians fit ever better as they become narrower.
        ShapeMismatch: data or weights have another shape, or the prior another structure; the text
            says where.
        ZeroMass: nothing is possible under the circuit or the prior.
    """
    num_steps, tol = count("num_steps", num_steps), number("tol", tol)
    smoothing = check_smoothing("smoothing", smoothing)
    check_circuits(circuit, *([] if prior is None else [prior]))
    circuit.requires("smooth", "decomposable", query="fit_parameters")
    device = circuit.log_weights.device
    points = circuit.domain.check(data, device)
    if not len(points):
        raise ShapeMismatch("data has no rows")
    weight = torch.as_tensor(row_weights(weights, len(points)), device=device)
    with torch.no_grad():
        fitted = circuit.normalized()  # new parameters; its layers serve all steps
        fitted.clamped_state = None  # which is of the program's
        shares = _even(fitted) if prior is None else _following(prior, circuit)
        pseudo = _Pseudo.of(fitted, smoothing, *shares)
    counts = weight > 0
    narrowest = _narrowest(fitted, points[counts], weight[counts])
    before = -torch.inf
    with tqdm(total=num_steps, disable=not progress) as bar:
        for _ in range(num_steps):
            flows = Flows.of(fitted, points, weight)
            objective = float(flows.log_likelihood + pseudo.log_density(fitted)) / float(
                weight.sum()
            )
            bar.update()
            bar.set_postfix(objective=f"{objective:.4f}")
            if objective - before < tol:
                break
            before = objective
            _maximise(fitted, flows, pseudo, narrowest)
    return fitted


@dataclass(frozen=True, eq=False)
class Flows:
    """Expected counts.

    Attributes:
        edges: ``[edges of sums]``.
        table: ``[inputs, c]``, of the states of discrete inputs.
        moments: ``[3, inputs]``, of real inputs: flow, and its sums of x - loc and its square.
    """

    edges: Tensor
    table: Tensor
    moments: Tensor
    log_likelihood: Tensor

    @staticmethod
    def of(circuit: Circuit, points: Tensor, weight: Tensor) -> Flows:
        leaves = circuit.leaves
        log_weights = circuit.log_weights.detach().double().requires_grad_()
        edges = torch.zeros_like(log_weights)
        table = torch.zeros_like(circuit.log_table, dtype=torch.float64)
        moments = table.new_zeros(3, len(table))
        probs = circuit.log_table.detach().double().softmax(1).nan_to_num(0.0)
        total = table.new_zeros(())
        width = table.shape[1]
        chunk = max(1, CHUNK // (4 * len(circuit.units)))
        begin = 0
        for x, w in zip(points.split(chunk), weight.split(chunk), strict=True):
            with torch.enable_grad():
                at = leaves.log_prob(x).detach().double().requires_grad_()
                log_p = circuit.layers.values(at, log_weights)[-1][0]
                _check(log_p, w, begin)
                likelihood = (log_p * w)[w > 0].sum()
                wanted = [at, log_weights] if len(log_weights) else [at]
                of_inputs, *of_edges = torch.autograd.grad(likelihood, wanted)
            if of_edges:
                edges += of_edges[0]
            column = x.t()[leaves.var]  # [inputs, B]
            missing = column.isnan()
            other = missing | leaves.is_real.unsqueeze(1)
            code = torch.where(other, width, column).long()
            counts = table.new_zeros(len(table), width + 1).scatter_add_(1, code, of_inputs)
            table += counts[:, :width]
            table += (of_inputs * missing).sum(1, keepdim=True) * probs
            seen = torch.where(missing, 0.0, of_inputs)
            apart = torch.where(missing, 0.0, column - leaves.loc.unsqueeze(1))
            moments += torch.stack([(seen * apart**k).sum(1) for k in range(3)])
            total += likelihood.detach()
            begin += len(x)
        return Flows(edges, table, moments, total)


def _check(log_p: Tensor, weight: Tensor, begin: int) -> None:
    wrong = (~log_p.isfinite() & (weight > 0)).nonzero()
    if len(wrong):
        value = float(log_p.detach()[wrong[0, 0]])
        raise NonFiniteDensity(
            f"row {begin + int(wrong[0])} has the log probability {value:g} under the circuit: "
            "start from one that gives every row a positive probability"
        )


@dataclass(frozen=True, eq=False)
class _Pseudo:
    """Pseudo-counts of edges and tables."""

    edges: Tensor
    table: Tensor

    @staticmethod
    def of(circuit: Circuit, smoothing: float, edges: Tensor, table: Tensor) -> _Pseudo:
        """Shared out over what is possible, in proportion to ``edges`` and ``table``."""
        edges = torch.where(circuit.log_weights > -torch.inf, edges.double(), 0.0)
        here = (circuit.log_table > -torch.inf) & ~circuit.leaves.is_real.unsqueeze(1)
        table = torch.where(here, table.double(), 0.0)
        edges, table = (
            torch.where(total > 0, smoothing * shares / total, 0.0)
            for shares, total in (
                (edges, _per_sum(circuit, edges)),
                (table, table.sum(1, keepdim=True)),
            )
        )
        return _Pseudo(edges, table)

    def log_density(self, circuit: Circuit) -> Tensor:
        """Up to a constant."""
        pairs = ((self.edges, circuit.log_weights), (self.table, circuit.log_table))
        return sum(torch.where(n > 0, n * log.detach(), 0.0).sum() for n, log in pairs)


def _even(circuit: Circuit) -> tuple[Tensor, Tensor]:
    return torch.ones_like(circuit.log_weights), torch.ones_like(circuit.log_table)


def _following(prior: Circuit, circuit: Circuit) -> tuple[Tensor, Tensor]:
    """The prior's weights and tables, of the edges and inputs that are possible in the circuit.

    Raises:
        ShapeMismatch: the prior has another structure; the text says where.
        ZeroMass: nothing is possible under the prior.
    """
    difference = _difference(prior, circuit)
    if difference is not None:
        raise ShapeMismatch(
            f"the prior circuit has another structure, {difference}: give one with the circuit's "
            "own units in their order, such as a copy of it with other numbers (a circuit that was "
            "fitted or normalised has lost its units of weight 0)"
        )
    edges, table, mass = prior.at_mass_one()
    if not bool(mass[-1].isfinite()):
        raise ZeroMass("the prior circuit has mass zero: no state is possible under it")
    units, like = circuit.units, circuit.log_weights
    log_weights, _, mass = circuit.at_mass_one()
    used, kept_edges = possible(units, mass, log_weights)
    of_sums = torch.as_tensor(kept_edges[units.edge_is_sum], device=edges.device)
    inputs = torch.as_tensor(used[units.kind == INPUT], device=edges.device)
    return edges[of_sums].exp().to(like), table[inputs].exp().to(like)


def _difference(prior: Circuit, circuit: Circuit) -> str | None:
    """Where the structures differ first, number by number; None if they are the same."""

    def told(what: str, of_prior: object, of_circuit: object) -> str:
        return f"{what}: {of_prior} in the prior, {of_circuit} in the circuit"

    theirs, ours = prior.units, circuit.units
    if prior.num_variables != circuit.num_variables:
        return told("number of variables", prior.num_variables, circuit.num_variables)
    for v, cards in enumerate(zip(prior.cards, circuit.cards, strict=True)):
        if cards[0] != cards[1]:
            return told(f"variable {v}", *("real" if c is None else f"{c} states" for c in cards))
    if len(theirs) != len(ours):
        return told("number of units", len(theirs), len(ours))
    for n in np.flatnonzero((theirs.kind != ours.kind) | (theirs.var != ours.var))[:1]:
        shown = (f"{KINDS[u.kind[n]]} of variable {u.var[n]}" for u in (theirs, ours))
        return told(f"unit {n}", *(text.removesuffix(" of variable -1") for text in shown))
    is_same = np.array_equal(theirs.start, ours.start) and np.array_equal(theirs.child, ours.child)
    for n in () if is_same else range(len(ours)):
        below = theirs.children(n).tolist(), ours.children(n).tolist()
        if below[0] != below[1]:
            return told(f"children of unit {n}", *below)
    return None


def _per_sum(circuit: Circuit, edges: Tensor) -> Tensor:
    """``[edges]``, the total over the sum that each belongs to."""
    units = circuit.units
    parent = torch.as_tensor(units.parent[units.edge_is_sum], device=edges.device)
    return edges.new_zeros(len(units)).index_add(0, parent, edges)[parent]


def _narrowest(circuit: Circuit, points: Tensor, weight: Tensor) -> Tensor:
    """``[inputs]``, lower bounds of standard deviations.

    Args:
        weight: ``[N]``, above 0.

    Raises:
        OptionError: a real column is constant, so that none follows from it.
    """
    present = ~points.isnan()
    least = torch.where(present, points, torch.inf).amin(0)
    most = torch.where(present, points, -torch.inf).amax(0)
    for v, card in enumerate(circuit.cards):
        if card is None and least[v] == most[v]:
            raise OptionError(
                f"variable {v} is real and has no value but {float(most[v]):g}: a Gaussian would "
                "become infinitely narrow there. Leave the column out, or add noise to it"
            )
    share = present * weight.unsqueeze(1)
    share = share / share.sum(0).where(present.any(0), 1.0)
    mean = (share * points.nan_to_num(0.0)).sum(0)
    spread = (share * torch.where(present, points - mean, 0.0).square()).sum(0).sqrt()
    return (NARROWEST * spread).clamp_min(torch.finfo(torch.float64).tiny)[circuit.leaves.var]


def _maximise(circuit: Circuit, flows: Flows, pseudo: _Pseudo, narrowest: Tensor) -> None:
    """Give the circuit the numbers of highest objective."""
    count = flows.edges + pseudo.edges
    total = _per_sum(circuit, count)
    log_weights = torch.where(total > 0, (count / total).log(), circuit.log_weights)
    states = flows.table + pseudo.table
    mass = states.sum(1, keepdim=True)
    real = circuit.leaves.is_real
    keep = real.unsqueeze(1) | (mass <= 0)
    table = torch.where(keep, circuit.log_table, (states / mass).log())
    number, first, second = flows.moments
    shift = first / number
    met = real & (number > 0)
    loc = torch.where(met, circuit.loc + shift, circuit.loc)
    deviation = (second / number - shift**2).clamp_min(0.0).sqrt().maximum(narrowest)
    scale = torch.where(met, deviation, circuit.scale)
    parameters = (circuit.log_weights, circuit.log_table, circuit.loc, circuit.scale)
    for parameter, value in zip(parameters, (log_weights, table, loc, scale), strict=True):
        parameter.data = value.detach().to(parameter.dtype)
