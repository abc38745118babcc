"""The search for the best joint states of a graph's nodes: kinds of moves, in turn.

Each kind is repeated until it gains no more, then the next has its turn; what may be better than
all near the particles, their opposites and whole domains, is offered between. Where the best K
states can be had by elimination the search starts, and ends, there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from pyrograph.errors import OptionError, ShapeMismatch
from pyrograph.graph import FactorGraph
from pyrograph.graph.masked_out import replaced_nodes
from pyrograph.infer.dpvi.beam import beamed
from pyrograph.infer.dpvi.best_states import best_states
from pyrograph.infer.dpvi.lookup import columns_at
from pyrograph.infer.dpvi.network import Network
from pyrograph.infer.dpvi.particles import (
    ROUNDING,
    Hash,
    Particles,
    are_own_scores,
    gain_of,
    refuse_other_scores,
)
from pyrograph.infer.dpvi.results import posterior_of_states
from pyrograph.infer.dpvi.start import FEWEST, climbed, codes_of, scattered
from pyrograph.infer.dpvi.summed_out import Conditionals, independent_nodes, without
from pyrograph.infer.dpvi.sweeps import Sweeps, refuse_moves_of_labels
from pyrograph.posterior import Posterior
from pyrograph.posterior.discrete_particles import DiscreteParticles, values_of

#: Sweeps between scores from scratch.
REFRESH = 10


class StateSearch:
    """Moves of up to K joint states.

    Args:
        graph: of discrete nodes.
        num_particles: K.
        moves: kinds in an order; None takes those that suit the graph.
        sum_out: ``"auto"``, or names of sites whose nodes are summed out.
        generator: of random starts.
        proposed: makes more states, ``{site: [M, *site shape]}``, after every sweep.

    Attributes:
        masked_out: nodes that no factor reads; they are summed out, for particles that differ
            there alone would crowd out others.
        network: of the nodes that are not summed out.
        found: the particles as they stand; set by :meth:`begin`, or by whoever found them.
        is_last: whether no other kind of move has its turn yet.

    Raises:
        OptionError: a kind of move is for labels, or nodes cannot be summed out.
    """

    found: Particles

    def __init__(
        self,
        graph: FactorGraph,
        num_particles: int,
        moves: tuple[str, ...] | None,
        sum_out: str | Sequence[str] | None,
        generator: torch.Generator,
        proposed: Callable[[], Mapping[str, Any]] | None,
    ):
        refuse_moves_of_labels(moves)
        self.graph, self.moves, self.generator = graph, moves, generator
        self._proposed = proposed
        self.network, self._neighbors = Network.of_graph(graph), graph.neighbors
        self._conditionals: list[Conditionals] = []
        nodes = self.masked_out = replaced_nodes(graph).to(graph.device)
        if sum_out is not None:
            nodes = torch.cat([nodes, independent_nodes(graph, self.network, sum_out)]).unique()
        if len(nodes):
            collapsed = without(self.network, nodes, *self._neighbors)
            self.network, self._conditionals = collapsed.network, collapsed.conditionals
            self._neighbors = collapsed.pointer, collapsed.index
        self.hashes = Hash(self.network.cards)
        #: K, or the number of joint states: what is made for more is never used.
        self.most = min(num_particles, self.network.num_states)
        self._sweeps: Sweeps | None = None
        self._stage, self.is_last = 0, False
        #: Hashes of the particles whose opposites have been offered.
        self._tried: Tensor | None = None
        #: The highest bound of K states, where it is known.
        self._top: Tensor | None = None

    @property
    def sweeps(self) -> Sweeps:
        """The moves, which are laid out when they are first asked for."""
        if self._sweeps is None:
            self._sweeps = Sweeps(self.network, self._neighbors, self.moves, self.most)
        return self._sweeps

    # ------------------------------------------------------------------ start
    def begin(self, init: str | Posterior | Mapping[str, Any]) -> None:
        """The first particles; see ``init`` of :class:`DPVI`."""
        sweeps = self.sweeps  # says first whether the moves fit
        best = self._known_best() if isinstance(init, str) and init == "icm" else None
        if best is not None:
            self._rest_at(best)
            return
        if isinstance(init, Posterior):
            x = self._codes(init.sample(max(FEWEST, 4 * self.most)))
        elif isinstance(init, Mapping):
            x = self._codes(init)
            if not x.shape[1]:
                raise OptionError("init= has no values: give one joint state at least")
        else:
            x = scattered(self.network.cards, max(FEWEST, self.most), self.generator)
            if init != "random":
                x = torch.cat([climbed(x, sweeps.blocks()), beamed(self.network, self.most)], 1)
        self.found = self._best_of(x)

    def _known_best(self) -> Particles | None:
        """The best K states, where they are all there are, or elimination finds them cheaply, and
        no ``moves`` are given."""
        if self.moves is not None:
            return None
        are_all = self.most == self.network.num_states
        x = self.network.states() if are_all else best_states(self.network, self.most)
        return None if x is None else self._best_of(x)

    def _best_of(self, x: Tensor) -> Particles:
        return Particles.best(self.network, self.hashes, x, self.most)

    def _rest_at(self, best: Particles) -> None:
        """Nothing is better; one sweep says so."""
        last = len(self.sweeps.kinds) - 1
        self.found, self._top, self._stage = best, best.bound, last

    # ------------------------------------------------------------------ particles as values
    def _codes(self, values: Mapping[str, Any]) -> Tensor:
        """Numbers of states ``[V, M]``; nodes that are summed out have one."""
        x = codes_of(self.graph, values).to(self.network.cards.device)
        return x.clamp_max((self.network.cards - 1).unsqueeze(1))

    def values(self) -> dict[str, Tensor]:
        """The particles, ``{site: [K, *site shape]}``; nodes summed out in their first state."""
        return values_of(self.graph, self.found.x)

    @property
    def holds_all(self) -> bool:
        """Whether the particles are all joint states."""
        return len(self.found) == self.network.num_states

    # ------------------------------------------------------------------ sweeps
    def advance(self, tol: float, step: int) -> dict[str, Tensor]:
        """One sweep; the bound, and what it grew by.

        Args:
            step: number of those done.
        """
        before = self.found.bound
        if self._sweeps is None and self._top is None:
            best = self._known_best()
            if best is not None:
                self._rest_at(best)
                return {"objective": best.bound, "gain": gain_of(before, best.bound)}
        kinds, particles, tried = self.sweeps.kinds, self.found, self._tried
        if not self.holds_all:  # else there is nothing to find
            particles = self.sweeps(particles, kinds[self._stage], self.hashes)
        if self._proposed is not None:
            particles = self._joined(particles, [self._codes(self._proposed())])
        if step % REFRESH == 0 or not self._is_sharp(particles):
            particles = self._best_of(torch.cat([self.found.x, particles.x], 1))
        is_stuck = float(particles.bound - before) <= tol
        is_last = self._stage == len(kinds) - 1
        if is_stuck:
            far, tried = self.sweeps.far(particles, is_last, tried), particles.hash
            particles = self._joined(particles, far)
        self.found, self.is_last, self._tried = particles, is_last, tried
        gain = gain_of(before, particles.bound)
        # the next kind of move has its turn when this one gains no more; all have it again after
        # a change from afar
        if float(gain) <= tol and not is_last:
            self._stage += 1
        elif is_stuck and is_last and float(gain) > tol:
            self._stage = 0
        return {"objective": particles.bound, "gain": gain}

    def _joined(self, particles: Particles, extra: list[Tensor]) -> Particles:
        """The best of these and states ``[V, M]`` each."""
        return particles.joined(self.network, self.hashes, torch.cat(extra, 1), self.most)

    def _is_sharp(self, found: Particles) -> bool:
        """Whether no score came from a state without mass, whose rounding is coarse, that of a
        zero: K states that have mass keep all others out."""
        start = self.found
        has_mass = self.network.has_mass(torch.cat([start.score, found.score]))
        return len(start) == self.most and bool(has_mass.all())

    # ------------------------------------------------------------------ results
    @property
    def rests_at_best(self) -> bool:
        """Whether no K states have a higher bound."""
        top, bound = self._top, self.found.bound
        return top is not None and float(top - bound) <= ROUNDING * (1 + float(top.abs()))

    @property
    def knows_best(self) -> bool:
        """Whether the best K states were found by elimination."""
        return self._top is not None

    def posterior(self, is_all: bool, **run: Any) -> DiscreteParticles:
        """The particles, weighted by their scores.

        Args:
            is_all: whether these are all joint states that have mass.
            run: how it went, see :class:`Posterior`.
        """
        parts = self.graph, self.network, self.found, self._conditionals
        return posterior_of_states(*parts, is_all, self.rests_at_best, **run)

    # ------------------------------------------------------------------ checkpoints
    def carried(self) -> dict[str, Any]:
        """Particles, and whose turn it is."""
        found, cards = self.found, self.network.cards
        turn = {"stage": self._stage, "is_last": self.is_last, "can_split": False}
        return {"x": found.x, "score": found.score, "cards": cards, **turn}

    def restored(
        self, state: Mapping[str, Any], is_same: bool, among: Network | None = None
    ) -> StateSearch:
        """The search where :meth:`carried` left it, as many of the particles as are kept.

        Args:
            is_same: whether it was for as many particles by the same moves: otherwise nothing has
                converged, and all kinds of moves begin again.
            among: the factors that scores are of, if not all.

        Raises:
            ShapeMismatch: the state is of another program.
        """
        cards = self.network.cards
        if not torch.equal(state["cards"].to(cards.device), cards):
            raise ShapeMismatch(
                "the state is of other numbers of states: set up with the sum_out of the saved run"
            )
        x = state["x"].to(cards.device)[:, : self.most]
        score = state["score"].to(x.device)[: self.most]
        now = (among or self.network).score(x)
        mass = self.network.has_mass(score) | self.network.has_mass(now)
        # those of the program in single precision differ by its rounding, and are counted anew
        refuse_other_scores(score[mass].float(), now[mass])
        if not are_own_scores(score[mass], now[mass]):
            order = now.argsort(descending=True, stable=True)
            x, score, is_same = columns_at(x, order), now[order], False
        search = copy(self)
        search._tried, search._stage, search.is_last = None, 0, False
        if is_same:
            search._stage, search.is_last = int(state["stage"]), bool(state["is_last"])
        elif self._top is not None:
            search._rest_at(self.found)
            return search
        search.found = Particles(x, score, self.hashes(x))
        best = search._known_best() if state.get("is_best") and self._sweeps is None else None
        if best is not None and torch.equal(best.score, search.found.score):
            search._top = best.bound  # of this program, which may be another
        return search
