"""DPVI in time: particles are extended node by node, and smoothed if asked for.

    f_t(x_{1:t}) = f_{t-1}(x_{1:t-1}) prod of the factors that node t completes

Every particle is extended by every state of the next node, and the best K of these, distinct
because their pasts or their last states are, are kept: a particle filter without random numbers and
without replicas. It is a beam search: the best K of every step need not contain the pasts of the
best K at the end, so the bound is monotone in the sweeps of smoothing, not in time.

Source: Saeedi, Kulkarni, Mansinghka & Gershman (2017), section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrograph.errors import InferenceError, OptionError, ShapeMismatch
from pyrograph.graph.factor_graph import Label
from pyrograph.infer.dpvi.engine import DPVI
from pyrograph.infer.dpvi.labelled import Labellings
from pyrograph.infer.dpvi.network import EXCLUDED, Clusters, Network, Tables
from pyrograph.infer.dpvi.particles import Hash, Particles, highest
from pyrograph.infer.options import count
from pyrograph.posterior import Posterior

#: Sweeps of smoothing, at most.
SWEEPS = 100


class SequentialDPVI(DPVI):
    """Filtering, and smoothing, by distinct particles.

    A step takes in one node, in the order of the program's ``pyro.markov`` loops and sequential
    plates: the order of the sites and of their elements. When all are in, ``smoothing=True`` goes
    on with the sweeps of :class:`DPVI`. ``filtered(site)`` are the marginals of every node at the
    time it came in.

    Args:
        model: a Pyro program of finite discrete sites.
        num_particles: K.
        smoothing: local sweeps over all nodes after the forward pass.
        order: labels ``(site, index)`` of all nodes, if another order is meant.
        num_steps: nodes and sweeps together; by default all nodes and 100 sweeps.
        options: see :class:`DPVI`.

    Raises:
        OptionError: ``order`` is not one of all nodes.
    """

    fixes = ("init", "sum_out")

    def __init__(
        self,
        model: Callable,
        *,
        num_particles: int = 10,
        smoothing: bool = False,
        order: Sequence[Label] | None = None,
        num_steps: int | None = None,
        **options: Any,
    ):
        super().__init__(
            model,
            num_particles=num_particles,
            num_steps=0 if num_steps is None else num_steps,
            **options,
        )
        if num_steps is not None:
            count("num_steps", num_steps, least=0)
        self._all_steps = num_steps is None
        self.smoothing, self.order = smoothing, order
        self._past: list = []

    # ------------------------------------------------------------------ state
    def allocate(self) -> None:
        self._position, self._is_all = 0, True
        self._stage, self._is_last, self._can_split = 0, False, False
        if self._labelled is not None:
            self._can_split = self._may_split()
            self.labellings = Labellings(self._labelled)
            known = set(self._past)
            rest = [e for e in self.labellings.elements if e not in known]
            self._elements = [*self._past, *rest]
            if self.order is not None:
                raise OptionError("order= is for nodes; labels come in by their numbers")
        else:
            self._allocate_nodes()
        if self._all_steps:
            self.num_steps = self._num_elements + SWEEPS * self.smoothing

    @property
    def _num_elements(self) -> int:
        """What comes in: nodes, or elements of labellings."""
        return self.graph.num_nodes if self._labelled is None else len(self._elements)

    def _allocate_nodes(self) -> None:
        self.network = Network.of_graph(self.graph)
        self.hashes = Hash(self.network.cards)
        self._neighbors, self._conditionals = self.graph.neighbors, []
        cards = self.network.cards
        self._sequence = self._in_order()
        self._place = torch.empty_like(self._sequence)
        self._place[self._sequence] = torch.arange(len(cards), device=cards.device)
        self._arriving: dict[int, Clusters] = {}
        self._row = torch.zeros(len(cards), dtype=torch.int64)
        for c in cards.unique().tolist():
            nodes = (cards == c).nonzero()
            self._row[nodes.squeeze(1).cpu()] = torch.arange(len(nodes))
            self._arriving[c] = Clusters(self.network, nodes, self._place)
        x = cards.new_zeros(len(cards), 1)
        self.particles = Particles(x, self.network.constant.expand(1), self.hashes(x))
        self._filtered = torch.zeros(len(cards), int(cards.max()), dtype=torch.float64)
        self._clusters = {}

    def _in_order(self) -> Tensor:
        """``[V]`` nodes as they come in; those of a shorter program first."""
        if self.order is None or self._past:
            nodes = [self.graph.node_id(site, *index) for site, index in self._past]
            known = set(nodes)
            nodes += [v for v in range(self.graph.num_nodes) if v not in known]
        else:
            nodes = [self.graph.node_id(site, *index) for site, index in self.order]
        if sorted(nodes) != list(range(self.graph.num_nodes)):
            raise OptionError(
                f"order= has {len(nodes)} labels, {len(set(nodes))} different ones; it must name "
                f"each of the {self.graph.num_nodes} nodes once"
            )
        return torch.tensor(nodes, device=self.network.cards.device)

    # ------------------------------------------------------------------ forward
    def advance(self) -> dict[str, Tensor]:
        if self._position == self._num_elements:
            if self._labelled is None and not self._clusters:
                self._prepare_moves()
                x = self.particles.x
                self.particles = Particles(x, self.network.score(x), self.hashes(x))
            return super().advance()
        if self._labelled is not None:
            return self._take_in_label()
        before = self.particles.bound
        self._take_in()
        return {"objective": self.particles.bound, "gain": self.particles.bound - before}

    def _take_in_label(self) -> dict[str, Tensor]:
        found, past = self.labellings, self._history.get("objective")
        before = past[-1] if past else float(found.bound)
        name, i = self._elements[self._position]
        self._is_all &= found.take_in(name, i, self.num_particles)
        self._position += 1
        if self._position == self._num_elements:
            found.rescore()
        bound = found.bound
        return {"objective": bound, "gain": bound - before}

    def _take_in(self) -> None:
        node = int(self._sequence[self._position])
        c, row = int(self.network.cards[node]), int(self._row[node])
        particles = self.particles
        local = self._arriving[c].local_scores(particles.x, row)[0]  # [K, c]
        score = (particles.score.unsqueeze(1) + local).flatten()
        chosen = highest(score, self.num_particles)
        possible = chosen[score[chosen] > EXCLUDED / 2]
        if not len(possible):
            site, index = self.graph.nodes[node]
            raise InferenceError(
                f"no particle has mass when {site}{list(index) if index else ''} comes in: all "
                "pasts that were kept break a hard constraint. Raise num_particles."
            )
        self._is_all &= len(possible) == int((score > EXCLUDED / 2).sum())
        parent, state = torch.div(possible, c, rounding_mode="floor"), possible % c
        x = particles.x[:, parent]
        x[node] = state
        self.particles = Particles(x, score[possible], particles.hash[:, parent])
        weight = (score[possible] - self.particles.bound).exp()
        self._filtered[node].index_add_(0, state.cpu(), weight.cpu())
        self._position += 1

    @property
    def converged(self) -> bool:
        """Whether all nodes are in and, if smoothed, sweeps gain no more."""
        if self._graph is None or self._position < self._num_elements:
            return False
        return not self.smoothing or (self.num_done > self._position and super().converged)

    def filtered(self, site: str) -> Tensor:
        """Marginals ``[*batch, c]`` of a site's nodes at the time they came in.

        Raises:
            InferenceError: a node is not in yet, or the site is a labelling.
        """
        if self._labelled is not None:
            raise InferenceError(
                "labels have no marginals of their own: posterior().together(site)"
            )
        described = self.graph.sites[site]
        first = self.graph.node_id(site, *(0,) * len(described.batch_shape))
        nodes = torch.arange(first, first + described.num_nodes)
        if bool((self._place.cpu()[nodes] >= self._position).any()):
            raise InferenceError(f'site "{site}" is not all in yet: go on with step() or run()')
        found = self._filtered[nodes, : described.cardinality].to(self.graph.dtype)
        return found.reshape(*described.batch_shape, described.cardinality)

    def extend(self, *args: Any, **kwargs: Any) -> Posterior:
        """Go on with a longer program: the nodes that are new in it are taken in.

        Args:
            args, kwargs: of the model. Nodes of the present graph keep their labels.

        Raises:
            ShapeMismatch: a node that is in is missing in the new graph, or has other states.
        """
        if self._labelled is not None:
            return self._extend_labels(args, kwargs)
        was = self._sequence[: self._position].cpu()
        labels = self.graph.nodes
        old, states = self.particles.x, self.network.cards
        filtered, is_all, history = self._filtered, self._is_all, self._history
        self._past = [labels[v] for v in was.tolist()]
        try:
            self.setup(*args, **kwargs)
        finally:
            self._past = []
        new = self._sequence[: len(was)]
        if not torch.equal(self.network.cards[new], states[was]):
            raise ShapeMismatch("a site of the longer program has another number of states")
        x = old.new_zeros(self.graph.num_nodes, old.shape[1])
        x[new] = old[was]
        self._filtered[new.cpu(), : filtered.shape[1]] = filtered[was]
        self._position, self._is_all = len(was), is_all
        self.particles = Particles(x, self._score_of_past(x), self.hashes(x))
        self._history = history
        if self._all_steps:
            self.num_steps += self.num_done - len(was)
        return self.run()

    def _extend_labels(self, args: tuple, kwargs: dict) -> Posterior:
        old, history, is_all = self.labellings, self._history, self._is_all
        self._past = self._elements[: self._position]
        try:
            self.setup(*args, **kwargs)
        finally:
            past, self._past = self._past, []
        self.labellings = old.within(self._labelled)
        self._position, self._is_all, self._history = len(past), is_all, history
        if self._all_steps:
            self.num_steps += self.num_done - len(past)
        return self.run()

    def _score_of_past(self, x: Tensor) -> Tensor:
        """``[K]``: the factors whose nodes are all in."""
        past = []
        for group in self.network.tables:
            is_in = self._place[group.scope].amax(1) < self._position
            past.append(Tables(group.scope[is_in], group.values[is_in]))
        return Network(self.network.cards, past, self.network.constant).score(x)

    # ------------------------------------------------------------------ results
    def posterior(self) -> Posterior:
        """The particles over all nodes.

        Raises:
            InferenceError: nodes are missing yet, or no state with mass was found.
        """
        if self._position < self._num_elements:
            raise InferenceError(
                f"{self._position} of {self._num_elements} nodes are in: go on with step() or "
                "run(), or raise num_steps"
            )
        return super().posterior()

    def _holds_all_states(self) -> bool:
        return self._is_all

    # ------------------------------------------------------------------ checkpoints
    def carried(self) -> dict[str, Any]:
        own = {"position": self._position, "is_all": self._is_all}
        if self._labelled is not None:
            labels = self.labellings.labels(as_they_are=True)
            return {**own, **self._stages(), "labels": labels, "score": self.labellings.score}
        return {**super().carried(), **own, "filtered": self._filtered}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._position, self._is_all = int(state["position"]), bool(state["is_all"])
        if self._labelled is not None:
            self.labellings = Labellings(self._labelled, state["labels"])
            self.labellings.score = state["score"].clone()
            self._restore_stages(state)
            return
        super().restore(state)
        self._filtered = state["filtered"].clone()
