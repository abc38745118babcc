"""Tree-reweighted belief propagation: alpha = 1 / mu on pairs, an upper bound of the evidence.

mu_e is the probability of edge e in a distribution over spanning trees; factors on the same two
nodes are one edge, and f_e their product, where edges side by side would share mu_e and give a
looser bound. With g_e = f_e / (m m),
Hoelder's inequality over the trees, and a bound on every tree from its leaves upwards, give for
any messages

    log Z <= log int q + sum_e mu_e max over both directions of
                                   log max_{x_j} E_{q_i} g_e(x_i, x_j)^(1 / mu_e)

which at a fixed point, where the inner expectation is the same for every x_j, is eq (66) and the
tree-reweighted free energy. The bound is convex in the messages' limit: one optimum.

The best mu is found by conditional gradient: the bound falls fastest towards the spanning tree
whose edges have the largest mutual information.

Source: Wainwright, Jaakkola & Willsky (2005); Minka (2005), section 7. The bound before
convergence stands here in the place of eq (92), with which it shares the limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from pyrograph.checks import count
from pyrograph.errors import OptionError, ShapeMismatch, UnsupportedFactor
from pyrograph.graph import FactorGroup
from pyrograph.infer.message_passing.bp import BP, refuse_alpha
from pyrograph.infer.message_passing.continuous.quadratic import QuadraticFactors
from pyrograph.infer.message_passing.densities.coefficients import is_discrete_or_quadratic
from pyrograph.infer.message_passing.engine import MessagePassing
from pyrograph.infer.message_passing.network.network import Network
from pyrograph.infer.message_passing.spanning_trees import (
    crowded_nodes,
    heaviest_tree,
    uniform_appearance,
)
from pyrograph.infer.message_passing.undone import undone_on_error
from pyrograph.posterior.posterior import EvidenceKind
from pyrograph.trace.distinct import row_numbers

#: By how much, for every node of a set, the appearances in it may exceed its nodes minus one.
SLACK = 1e-6
#: Nodes of the largest graph whose given appearances are checked, at one minimum cut per node.
MOST_NODES = 2000
#: Nodes that the text of an error names.
NAMED = 6
#: Residual at which the next tree is mixed in; the last mixture runs to the engine's tolerance.
SETTLED = 1e-3


class TRW(BP):
    """Tree-reweighted belief propagation.

    Args:
        model: a Pyro program whose factors have one or two nodes each, finite discrete or
            Gaussian.
        edge_appearance: ``"uniform"`` (exact probabilities of a uniform spanning tree), a tensor
            ``[number of pair factors]`` in the graph's order of factors, from a distribution over
            spanning trees, or ``"optimize"`` for the tightest bound. Factors on the same two nodes
            are one edge, whose appearance is the sum of theirs. A tensor for more than 2000 nodes
            is taken unchecked, and the evidence is then called an estimate.
        num_trees: with ``"optimize"``, how many trees are mixed in.
        options: see :class:`MessagePassing`.

    Attributes:
        mu: ``[number of pair factors]`` the appearances as they stand, which ``edge_appearance``
            takes; those of an edge are shared evenly by its factors, unless given.

    Gradients are those of the bound at the appearances as they stand: of ``"optimize"``, at the
    mixture of trees that was found, held fixed. At the best mixture the bound is stationary in it,
    so that the evidence's gradient is then the whole one; those of marginals leave out how the
    mixture moves.

    Raises:
        UnsupportedFactor: a factor has three or more nodes.
        OptionError: appearances that no distribution over spanning trees has.
    """

    one_alpha = True

    def __init__(
        self,
        model: Callable,
        *,
        edge_appearance: str | Tensor = "uniform",
        num_trees: int = 20,
        **options: Any,
    ):
        refuse_alpha(type(self).__name__, options)
        MessagePassing.__init__(self, model, alpha=1.0, **options)
        self.edge_appearance = _appearance_option(edge_appearance)
        self.num_trees = count("num_trees", num_trees)

    def build(self) -> Network:
        pairs = []
        for group in self.graph.factors:
            if group.arity > 2:
                raise UnsupportedFactor(
                    f"{self.graph.factor_name(group, 0)} has {group.arity} nodes; spanning trees "
                    f"are made of pairs. Use {self._others()}."
                )
            if group.arity == 2:
                pairs.append(group)
        index = (
            torch.cat([g.index for g in pairs])
            if pairs
            else torch.zeros(0, dtype=torch.int64, device="cpu")
        )
        order = index.argsort()
        scopes = [g.scope for g in pairs] or [index.new_zeros(0, 2)]
        scope = torch.cat(scopes)[order]
        self._edge = row_numbers(scope)  # of every pair factor
        self._num_factors = self._edge.bincount()  # of every edge
        self._edges = scope.new_zeros(len(self._num_factors), 2).index_put((self._edge,), scope)
        self._position = torch.zeros(self.graph.num_factors, dtype=torch.int64, device="cpu")
        self._position[index[order].cpu()] = torch.arange(len(index), device="cpu")
        self.mu = self._appearance()
        self._trees_mixed = 0
        return super().build()

    def _others(self) -> str:
        """Which engines take factors of more nodes."""
        if all(is_discrete_or_quadratic(group) for group in self.graph.factors):
            return "pg.BP or pg.FractionalBP, whose factors may have any number of nodes"
        return (
            "pg.EP or pg.PowerEP, whose factors may have any number of nodes and need not be "
            "Gaussian"
        )

    def _appearance(self) -> Tensor:
        if isinstance(self.edge_appearance, str):
            if not len(self._edges):
                return self.graph.constant.new_zeros(0)
            found = uniform_appearance(self._edges, self.graph.num_nodes)
            return self._shared(found.to(self.graph.constant))
        mu = self.edge_appearance.to(self.graph.constant)
        if mu.shape != (len(self._edge),):
            raise OptionError(
                f"edge_appearance has shape {list(mu.shape)}; the graph has {len(self._edge)} "
                "factors on pairs of nodes"
            )
        if not bool(((mu > 0) & (mu <= 1 + SLACK)).all()):
            raise OptionError("edge_appearance must lie in (0, 1]: every edge in some tree")
        if self._is_checked:
            self._refuse_crowded(self._of_edges(mu))
        return mu

    def _shared(self, of_edges: Tensor) -> Tensor:
        """Of every pair factor an even share of what its edge has."""
        return (of_edges / self._num_factors)[self._edge]

    def _of_edges(self, mu: Tensor) -> Tensor:
        """Of every edge the appearance that its factors have together."""
        return mu.new_zeros(len(self._edges)).index_add(0, self._edge, mu)

    def _edge_of(self, group: FactorGroup) -> Tensor:
        """``[E]`` the edges of a group of pairs."""
        return self._edge[self._position[group.index.cpu()].to(self._edge.device)]

    @property
    def _is_checked(self) -> bool:
        """Whether the appearances are known to be those of a distribution over trees."""
        return isinstance(self.edge_appearance, str) or self.graph.num_nodes <= MOST_NODES

    def _refuse_crowded(self, mu: Tensor) -> None:
        nodes = crowded_nodes(self._edges, mu, self.graph.num_nodes, SLACK)
        if nodes is None:
            return
        inside = torch.isin(self._edges.cpu(), nodes).all(1).to(mu.device)
        named = [self.graph.nodes[int(node)] for node in nodes[:NAMED]]
        names = ", ".join(f'"{site}"{list(index)}' for site, index in named)
        rest = f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else ""
        raise OptionError(
            f"edge_appearance adds up to {float(mu[inside].sum()):.6g} over the factors among the "
            f"{len(nodes)} nodes {names}{rest}, where no tree has more than {len(nodes) - 1} "
            "edges: no distribution over spanning trees has these. Lower them there, or take "
            '"uniform" or "optimize".'
        )

    def alpha_of(self, group: FactorGroup) -> Tensor:
        if group.arity != 2:
            return super().alpha_of(group)
        return self._of_edges(self.mu)[self._edge_of(group)].reciprocal()

    # ------------------------------------------------------------------ the best trees
    def _advance(self) -> dict[str, Tensor]:
        # before the sweep: its residual is then that of the mixture which the run stands at
        residual = self._history.get("residual", [math.inf])[-1]
        if residual <= max(self.tol or 0.0, SETTLED) and not self._is_optimal:
            self._mix_in_a_tree()
        return super()._advance()

    @property
    def _is_optimal(self) -> bool:
        is_sought = isinstance(self.edge_appearance, str) and self.edge_appearance == "optimize"
        done = self._trees_mixed >= self.num_trees or not len(self._edges)
        return done or not is_sought

    @property
    def converged(self) -> bool:
        return super().converged and self._is_optimal

    def _mix_in_a_tree(self) -> None:
        """A step of conditional gradient in mu; messages stay."""
        with torch.no_grad():
            information = self.mu.new_zeros(len(self._edges))
            for (group, index), block, message in zip(
                self.network.members, self.network.blocks, self.messages, strict=True
            ):
                pair = block.marginals(message, self.beliefs)
                information[self._edge_of(group)[index]] = _mutual_information(pair, block)
            tree = heaviest_tree(self._edges, information, self.graph.num_nodes).to(self.mu)
            share = 1 / (self._trees_mixed + 3)
            self.mu = (1 - share) * self.mu + share * self._shared(tree)
            self._trees_mixed += 1
        before = self.network
        self._rebuild()
        with torch.no_grad():
            kinds = [[type(b) for b in n.blocks] for n in (before, self.network)]
            # large alphas: odds would overflow, states do not
            self.messages = self.messages if kinds[0] == kinds[1] else self.network.start()
            if self.iteration.double_loop is not None:
                self.iteration.fall_back()

    def _rebuild(self) -> None:
        """The network of these appearances, attached to the program's tensors."""
        self.network = MessagePassing.build(self)
        self.iteration.goes_on_with(self.network)

    # ------------------------------------------------------------------ evidence
    @property
    def log_evidence(self) -> Tensor:
        """The bound above; with Gaussian factors eq (66), which is one at a fixed point."""
        _ = self.graph  # raises where there is none
        if self._is_gaussian:
            return super().log_evidence
        total = self.network.constant
        for family, belief in zip(self.network.families, self.beliefs, strict=True):
            total = total + family.log_mass(belief).sum()
        for block, message in zip(self.network.blocks, self.messages, strict=True):
            total = total + block.largest_ratio(message, self.beliefs).sum()
        return total

    @property
    def _is_gaussian(self) -> bool:
        return any(isinstance(block, QuadraticFactors) for block in self.network.blocks)

    def _kind_if_exact(self) -> EvidenceKind:
        residual = self._history.get("residual", [math.inf])[-1]
        settled = self.converged and residual <= self._default_tol
        if self._forest and settled and bool((self._of_edges(self.mu) > 1 - SLACK).all()):
            return "exact"
        is_bound = self._is_checked and (settled or not self._is_gaussian)
        return "upper bound" if is_bound else "estimate"

    def carried(self) -> dict[str, Any]:
        own = {"pairs": self._pairs, "mu": self.mu.clone(), "trees": self._trees_mixed}
        return {**super().carried(), **own}

    def restore(self, state) -> None:
        with undone_on_error([self, *self.iteration.parts]):
            self._refuse_other_pairs(state)
            self._trees_mixed = int(state["trees"])
            if self._trees_mixed:  # others are options of an engine, not where its run stands
                self.mu = state["mu"].to(self.mu)
            self._rebuild()
            self.messages = self.network.start()
            super().restore(state)

    @property
    def _pairs(self) -> Tensor:
        """``[number of pair factors, 2]`` their nodes."""
        return self._edges[self._edge]

    def _refuse_other_pairs(self, state: Mapping[str, Any]) -> None:
        """Raise ``ShapeMismatch`` where appearances are those of other edges: on these no
        distribution over spanning trees need have them, and without one there is no bound."""
        own, saved = self._pairs, state["pairs"].to(self._edges)
        if not torch.equal(saved, own) or state["mu"].shape != self.mu.shape:
            raise ShapeMismatch(
                f"the state belongs to another model or to other arguments: it holds appearances "
                f"of {len(saved)} factors on pairs of nodes, and the {len(own)} here are not on "
                "the same pairs"
            )


def _appearance_option(value: str | Tensor) -> str | Tensor:
    """A name as it is, numbers as a tensor.

    Raises:
        OptionError: it is neither.
    """
    if isinstance(value, str):
        if value in ("uniform", "optimize"):
            return value
    else:
        with suppress(TypeError, ValueError, RuntimeError):  # of what is no array of numbers
            return torch.as_tensor(value, device="cpu")
    raise OptionError(f'edge_appearance={value!r} is not "uniform", "optimize" or a tensor')


def _mutual_information(pair, block) -> Tensor:
    """Between the two nodes of every factor, ``[E]``."""
    if isinstance(block, QuadraticFactors):
        cut = block.parts[0].stop
        covariance = pair.covariance
        dets = [torch.logdet(covariance[:, :cut, :cut]), torch.logdet(covariance[:, cut:, cut:])]
        return 0.5 * (sum(dets) - torch.logdet(covariance))
    p = pair.exp()
    apart = pair.logsumexp(2, keepdim=True) + pair.logsumexp(1, keepdim=True)
    return torch.where(p > 0, p * (pair - apart), 0.0).sum((1, 2))
