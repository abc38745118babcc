"""Filtering over the nodes of a graph: particles are extended node by node.

    f_t(x_{1:t}) = f_{t-1}(x_{1:t-1}) prod of the factors that node t completes

Every particle is extended by every state of the next node, and the best K of these are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor

from pyrograph.errors import InferenceError, OptionError, ShapeMismatch
from pyrograph.graph.structure import Label
from pyrograph.infer.dpvi.filter_errors import no_mass
from pyrograph.infer.dpvi.network import Network
from pyrograph.infer.dpvi.particles import Particles, highest
from pyrograph.infer.dpvi.paths import Paths
from pyrograph.infer.dpvi.saved_states import order_of
from pyrograph.infer.dpvi.state_search import StateSearch
from pyrograph.infer.dpvi.zeros import are_among, zeros_of


class NodeFilter:
    """K paths through the nodes that are in.

    Args:
        search: of the graph, which goes on when all are in.
        sequence: ``[V]`` the nodes as they come in.

    Attributes:
        position: number of nodes that are in.
        is_cut: whether states with mass are missing because K was too few for all;
        is_opened: or because zeros of an earlier program, whose states were not kept, have gone.
    """

    def __init__(self, search: StateSearch, sequence: Tensor):
        self.graph, self.network, self.hashes = search.graph, search.network, search.hashes
        self.most, self.sequence = search.most, sequence
        cards = self.network.cards
        self.is_cut = self.is_opened = False
        self._masked = search.masked_out.cpu()
        widest = max(site.cardinality for site in self.graph.sites.values())
        self._filtered = torch.zeros(len(cards), widest, dtype=torch.float64, device="cpu")
        self._go_on(cards.new_zeros(len(cards), 1), self.network.constant.expand(1), 0)

    def _go_on(self, x: Tensor, score: Tensor, position: int) -> None:
        """Filter on from states ``[V, K]`` of the nodes that are in."""
        self.paths = Paths(self.network, self.sequence, x, score, position)

    def __len__(self) -> int:
        """How many nodes come in."""
        return len(self.sequence)

    @property
    def position(self) -> int:
        return self.paths.position

    @property
    def is_all(self) -> bool:
        """Whether every state with mass of what is in is kept."""
        return not (self.is_cut or self.is_opened)

    # ------------------------------------------------------------------ steps
    def take_in(self) -> dict[str, Tensor]:
        """The next node; the bound, and what it changed by.

        Raises:
            InferenceError: no past goes on to it.
        """
        paths, node = self.paths, self.paths.node
        before, candidates = paths.bound, paths.candidates()
        score, c = candidates.flatten(), candidates.shape[1]
        chosen = highest(score, self.most)
        possible = chosen[self.network.has_mass(score[chosen])]
        if not len(possible):
            raise no_mass(self.graph.nodes[node], self.is_cut, self.is_opened)
        self.is_cut |= len(possible) < int(self.network.has_mass(score).sum())
        parent, state = torch.div(possible, c, rounding_mode="floor"), possible % c
        paths.grow(parent, state, score[possible])
        weight = (score[possible] - paths.bound).exp()
        self._filtered[node].index_add_(0, state.cpu(), weight.cpu())
        return {"objective": paths.bound, "gain": paths.bound - before}

    def particles(self, rescores: bool = False) -> Particles:
        """Of all nodes; those that are not in are in their first state.

        Args:
            rescores: whether scores are from scratch.
        """
        x = self.paths.states()
        score = self.network.score(x) if rescores else self.paths.score
        return Particles(x, score, self.hashes(x))

    def filtered(self, site: str) -> Tensor:
        """See :meth:`SequentialDPVI.filtered`."""
        if site not in self.graph.sites:
            raise OptionError(
                f'no latent site "{site}"; the latent sites are: {", ".join(self.graph.sites)}'
            )
        described = self.graph.sites[site]
        own = self.graph.nodes_of(site)
        nodes = torch.arange(own.start, own.stop, device="cpu")
        is_in = torch.zeros(self.graph.num_nodes, dtype=torch.bool, device="cpu")
        is_in[self._nodes_in()] = is_in[self._masked] = True
        if not bool(is_in[nodes].all()):
            raise InferenceError(f'site "{site}" is not all in yet: go on with step() or run()')
        found = self._filtered[nodes, : described.cardinality]
        found[torch.isin(nodes, self._masked)] = 1 / described.cardinality
        found = found.to(self.graph.dtype)
        return found.reshape(*described.batch_shape, described.cardinality)

    # ------------------------------------------------------------------ longer programs
    def past(self) -> list[Label]:
        """Labels of the nodes that are in, as they came in, but for those that are masked out."""
        return [self.graph.nodes[v] for v in self._read_nodes_in().tolist()]

    def _read_nodes_in(self) -> Tensor:
        nodes = self._nodes_in()
        return nodes[~torch.isin(nodes, self._masked)]

    def _nodes_in(self) -> Tensor:
        return self.sequence[: self.position].cpu()

    def known(self) -> Network:
        """The factors whose nodes are all in."""
        return self.network.among(self.sequence[: self.position])

    def zeros(self) -> Tensor:
        """``[2, Z]`` hashes of the zeros in the factors whose nodes are all in."""
        return zeros_of(self.known(), self.hashes)

    def go_on_from(self, old: NodeFilter, found: Particles) -> None:
        """Take over the nodes that are in in a filter of a shorter program, the first of these.

        Args:
            found: particles of ``old``.

        Raises:
            ShapeMismatch: a node has another number of states.
        """
        was = old._read_nodes_in()
        new, cards = self.sequence[: len(was)], old.network.cards
        if not torch.equal(self.network.cards[new], cards[was]):
            raise ShapeMismatch(
                "a node that is in has another number of states in the longer program, or is "
                "masked out there"
            )
        x = found.x.new_zeros(self.graph.num_nodes, len(found))
        x[new] = found.x[was]
        self._filtered[new.cpu(), : old._filtered.shape[1]] = old._filtered[was]
        self._go_on(x, self.network.among(new).score(x), len(was))
        self.is_cut, self.is_opened = old.is_cut, old.is_opened
        if not self.is_opened:  # states without mass were not kept: none has some otherwise
            number = torch.zeros_like(cards)
            number[was] = new
            zeros = zeros_of(old.known(), self.hashes, number)
            self.is_opened = not are_among(zeros, self.zeros())

    # ------------------------------------------------------------------ checkpoints
    def carried(self) -> dict[str, Any]:
        """Beside the particles."""
        return {"filtered": self._filtered}

    def carried_since(self) -> dict[str, Any]:
        """What older states have not: after an extension nodes do not come in as they do in a
        program of their own."""
        cuts = {"is_cut": self.is_cut, "is_opened": self.is_opened}
        own = {"sequence": self.sequence, **cuts}
        return {**own, "zeros": self.zeros().sum(1)} if self.is_all else own

    def restored(
        self, state: Mapping[str, Any], search: StateSearch, is_same: bool
    ) -> tuple[NodeFilter, StateSearch]:
        """The filter where a saved state has it, and the search with its particles.

        Args:
            search: that has not begun; is_same: see :meth:`StateSearch.restored`.
        """
        found, is_all = copy(self), bool(state["is_all"])
        if "sequence" in state:
            found.sequence = order_of(state["sequence"], self.sequence)
        position = int(state["position"])
        known = self.network.among(found.sequence[:position]) if position < len(found) else None
        search = search.restored(state, is_same, known)
        particles = search.found
        found._go_on(particles.x, particles.score, position)
        fewer = len(particles) < len(state["score"])
        found.is_cut = bool(state.get("is_cut", not is_all)) or fewer
        if is_all:
            found.is_opened = not found._has_zeros_of(state)
        else:  # older states do not say which it was, and it may have been both
            found.is_opened = bool(state.get("is_opened", True))
        found._filtered = state["filtered"].clone()
        return found, search

    def _has_zeros_of(self, state: Mapping[str, Any]) -> bool:
        """Whether states without mass, which are not kept, are those of a saved state."""
        zeros = self.zeros()
        if "zeros" in state:
            return torch.equal(state["zeros"].to(zeros.device), zeros.sum(1))
        cards = self.network.cards[self.sequence[: self.position]]
        return len(state["score"]) == float(cards.double().prod())
