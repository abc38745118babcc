"""DPVI: the best K distinct joint states, as a bound of the log evidence.

    log Z >= L(Q) = log sum_k f(x_k),    weights w_k = f(x_k) / sum_j f(x_j)

maximised over sets of K particles by moves that never lower it: with one particle iterated
conditional modes, with all joint states exact. Algorithm 1 changes one node after the other
(``moves=("single",)``); blocks of nodes without common factors change at once by default, which
reaches better bounds in far less time, then small regions, and then single changes of all nodes are
searched until there is none that helps. Blocks end at K particles next to one optimum, too close
together for a sweep node by node to take detours as from a start of many optima; regions take them.
Where the best K states can be had by elimination the run starts, and ends, there.

Source: Saeedi, Kulkarni, Mansinghka & Gershman (2017), "Variational particle approximations",
Algorithm 1 (which never assigns Q <- Q' and compares bounds within a sweep; here between sweeps).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from pyrograph import errors
from pyrograph.checks import count
from pyrograph.errors import OptionError, ShapeMismatch
from pyrograph.graph import FactorGraph
from pyrograph.infer.base import Engine
from pyrograph.infer.dpvi.beam import beamed
from pyrograph.infer.dpvi.best_states import best_states
from pyrograph.infer.dpvi.labellings.label_search import LabelSearch
from pyrograph.infer.dpvi.labellings.labelled import Labellings
from pyrograph.infer.dpvi.labellings.labelled_program import (
    LabelledProgram,
    checked_log_prob,
    read_labelled,
    refuse_changed,
)
from pyrograph.infer.dpvi.labellings.labelled_start import (
    first_labellings,
    num_partitions,
    refuse_broken_data,
    refuse_options_of_nodes,
)
from pyrograph.infer.dpvi.network import Network
from pyrograph.infer.dpvi.particles import (
    ROUNDING,
    Hash,
    Particles,
    gain_of,
    refuse_other_scores,
)
from pyrograph.infer.dpvi.results import posterior_of_labels, posterior_of_states
from pyrograph.infer.dpvi.start import FEWEST, climbed, codes_of, scattered
from pyrograph.infer.dpvi.summed_out import Conditionals, independent_nodes, without
from pyrograph.infer.dpvi.sweeps import Sweeps
from pyrograph.infer.requires import FiniteDiscrete
from pyrograph.posterior import Posterior
from pyrograph.posterior.discrete_particles import DiscreteParticles, values_of
from pyrograph.posterior.label_particles import LabelParticles
from pyrograph.trace.plain_run import retried

MOVES = ("block", "pair", "single", "flip", "region", "split")
#: Sweeps between scores from scratch.
REFRESH = 10


class DPVI(Engine):
    """Discrete particle variational inference.

    Args:
        model: a Pyro program of finite discrete sites, or of labellings (see
            :mod:`pyrograph.distributions`) and collapsed data, whose labels move one by one.
        num_particles: K; fewer if there are not as many joint states.
        moves: what a sweep does, in turn: each kind is repeated until it gains no more, then the
            next. ``"block"`` all nodes of a colour at once, ``"pair"`` the same with pairs of
            neighbours, ``"single"`` node by node in the order of the graph (Algorithm 1),
            ``"flip"`` every change of one node of one particle, ``"region"`` beams from the best
            particle over small sets of near nodes. By default blocks, pairs where they fall into
            few blocks, regions and flips, and whole domains of one state when these gain no more;
            ``"single"`` after another kind has regions before it. Regions or pairs by themselves
            need not reach every state.
            Labellings take ``"single"`` label by label and ``"split"`` splits and merges of
            clusters; by default both.
        init: ``"icm"`` the best K states themselves where elimination finds them cheaply (chains
            and trees of up to 131,072 nodes, .1 ms each, and narrow grids; not if ``moves`` are
            given), elsewhere local maxima from scattered and opposite states and, where factors
            have zeros, the ends of a beam through all nodes; for labels of one site passes of
            filtering in several orders, and of several sites Gibbs chains that cool; ``"random"``
            states without climbing, and one pass; a posterior whose draws start it; or
            ``{site: [M, *site shape]}``.
        sum_out: ``"auto"``, or names of sites: nodes of which no two share a factor are summed out
            exactly, and the bound is the greater for it.
        proposals: a function of ``{site: [K, *site shape]}`` that proposes more, ``{site: [M,
            *site shape]}``, after every sweep.
        num_steps: sweeps at most.
        tol: for the gain of the bound in a sweep.
        options: see :class:`Engine`.

    Raises:
        UnsupportedSite: a site is continuous, or has infinitely many states.
        UnsupportedFactor: a table is too large.
        OptionError: an option is unknown or out of range.
    """

    requires = FiniteDiscrete()
    monitor = "gain"

    def __init__(
        self,
        model: Callable,
        *,
        num_particles: int = 10,
        moves: tuple[str, ...] | str | None = None,
        init: str | Posterior | Mapping[str, Tensor] = "icm",
        sum_out: str | Sequence[str] | None = None,
        proposals: Callable[[dict[str, Tensor]], Mapping[str, Tensor]] | None = None,
        num_steps: int = 100,
        tol: float | None = 1e-9,
        **options: Any,
    ):
        super().__init__(model, num_steps=num_steps, tol=tol, **options)
        self.num_particles = count("num_particles", num_particles)
        if isinstance(moves, str):
            moves = (moves,)
        is_known = isinstance(moves, Sequence) and moves and all(kind in MOVES for kind in moves)
        if moves is not None and not is_known:
            raise OptionError(f"moves={moves!r}: take some of {', '.join(MOVES)}, in an order")
        self.moves = None if moves is None else tuple(moves)
        if init not in ("icm", "random") and not isinstance(init, Posterior | Mapping):
            raise OptionError(
                f'init={init!r} is not "icm", "random", a posterior or {{site: values}}'
            )
        if proposals is not None and not callable(proposals):
            raise OptionError(f"proposals={proposals!r} is no function of {{site: values}}")
        if isinstance(sum_out, str) and sum_out != "auto":
            sum_out = [sum_out]
        if not (sum_out is None or isinstance(sum_out, str | Sequence)):
            raise OptionError(f'sum_out={sum_out!r} is not "auto" or names of sites')
        self.init, self.proposals, self.sum_out = init, proposals, sum_out
        self._labelled: LabelledProgram | None = None
        #: The highest bound of K states, where it is known.
        self._top: Tensor | None = None

    # ------------------------------------------------------------------ state
    def check(self, args: tuple, kwargs: dict) -> None:
        try:  # the program may make no sense at some draws
            self._labelled = retried(lambda: read_labelled(self.model, args, kwargs), lambda: None)
        except errors.InvalidProgram:
            with suppress(
                errors.UnsupportedSite
            ):  # labels; other programs learn the statement here
                super().check(args, kwargs)
            raise
        if self._labelled is None:
            super().check(args, kwargs)

    def read(self, args: tuple, kwargs: dict) -> FactorGraph | LabelledProgram:
        return super().read(args, kwargs) if self._labelled is None else self._labelled

    def allocate(self) -> None:
        if self._labelled is not None:
            self._check_labelled()
            parts = self._labelled, self.init, self.num_particles, self.generator
            self.label_search = self._search_from(first_labellings(*parts))
            return
        self._begin_stages()
        self.network = Network.of_graph(self.graph)
        neighbors = self.graph.neighbors
        self._conditionals: list[Conditionals] = []
        if self.sum_out is not None:
            nodes = independent_nodes(self.graph, self.network, self.sum_out)
            collapsed = without(self.network, nodes, *neighbors)
            self.network, self._conditionals = collapsed.network, collapsed.conditionals
            neighbors = collapsed.pointer, collapsed.index
        self.hashes = Hash(self.network.cards)
        self.sweeps = Sweeps(self.network, neighbors, self.moves, self._most)
        self._top = None
        best = self._known_best() if isinstance(self.init, str) and self.init == "icm" else None
        if best is None:
            x = self._starts()
            self.particles = Particles.best(self.network, self.hashes, x, self._most)
        else:
            self._rest_at(best)

    def _known_best(self) -> Particles | None:
        """The best K states, where elimination finds them cheaply and no ``moves`` are given."""
        x = None if self.moves is not None else best_states(self.network, self._most)
        return None if x is None else Particles.best(self.network, self.hashes, x, self._most)

    def _rest_at(self, best: Particles) -> None:
        """Nothing is better; one sweep says so."""
        self.particles, self._top = best, best.bound
        self._stage = len(self.sweeps.kinds) - 1

    @property
    def _most(self) -> int:
        """K, or the number of joint states of a graph: what is made for more is never used."""
        return min(self.num_particles, self.network.num_states)

    def _starts(self) -> Tensor:
        """``[V, M]``."""
        if isinstance(self.init, Posterior):
            return self._codes(self.init.sample(max(FEWEST, 4 * self._most)))
        if isinstance(self.init, Mapping):
            x = self._codes(self.init)
            if not x.shape[1]:
                raise OptionError("init= has no values: give one joint state at least")
            return x
        x = scattered(self.network.cards, max(FEWEST, self._most), self.generator)
        if self.init == "random":
            return x
        ends = beamed(self.network, self._most)
        return torch.cat([climbed(x, self.sweeps.blocks()), ends], 1)

    def _codes(self, values: Mapping[str, Any]) -> Tensor:
        """Numbers of states ``[V, M]``; nodes that are summed out have one."""
        x = codes_of(self.graph, values).to(self.network.cards.device)
        return x.clamp_max((self.network.cards - 1).unsqueeze(1))

    def values(self) -> dict[str, Tensor]:
        """The particles, ``{site: [K, *site shape]}``; nodes summed out in their first state."""
        if self._labelled is not None:
            return self.labellings.labels()
        return values_of(self.graph, self.particles.x)

    def _proposed(self) -> Mapping[str, Any]:
        """What ``proposals`` makes of the particles."""
        found = self.proposals(self.values())
        if not isinstance(found, Mapping):
            raise OptionError(
                f"proposals= returned {type(found).__name__}; it must return {{site: values "
                "[M, *site shape]}, M = 0 if there are none"
            )
        return found

    def _check_labelled(self) -> None:
        """Whether options and data fit labellings."""
        parts = self._labelled, self.dtype, self.device
        refuse_options_of_nodes(*parts, self.moves, self.sum_out)
        refuse_broken_data(self._labelled)

    def _search_from(self, found: Labellings) -> LabelSearch:
        may_split = self._labelled.is_exchangeable and (self.moves is None or "split" in self.moves)
        proposed = None if self.proposals is None else self._proposed
        return LabelSearch(found, self.num_particles, self.generator, may_split, proposed)

    @property
    def labellings(self) -> Labellings:
        """As they stand, of a program of labels."""
        return self.label_search.found

    def _begin_stages(self) -> None:
        """All kinds of moves have their turn yet."""
        self._stage, self._is_last = 0, False
        #: Hashes of the particles whose opposites have been offered.
        self._tried: Tensor | None = None

    # ------------------------------------------------------------------ sweeps
    def advance(self) -> dict[str, Tensor]:
        if self._labelled is not None:
            return self.label_search.advance(self.tol or 0.0)
        before = self.particles.bound
        kinds = self.sweeps.kinds
        particles = self.sweeps(self.particles, kinds[self._stage], self.hashes)
        if self.proposals is not None:
            particles = self._joined(particles, [self._codes(self._proposed())])
        if self.num_done % REFRESH == 0 or not self._is_sharp(particles):
            both = torch.cat([self.particles.x, particles.x], 1)
            particles = Particles.best(self.network, self.hashes, both, self._most)
        is_stuck = float(particles.bound - before) <= (self.tol or 0.0)
        is_last = self._stage == len(kinds) - 1
        if is_stuck:
            far = self.sweeps.far(particles, is_last, self._tried)
            self._tried = particles.hash
            particles = self._joined(particles, far)
        self.particles, self._is_last = particles, is_last
        gain = gain_of(before, particles.bound)
        # the next kind of move has its turn when this one gains no more; all have it again after
        # a change from afar
        if float(gain) <= (self.tol or 0.0) and not self._is_last:
            self._stage += 1
        elif is_stuck and self._is_last and float(gain) > (self.tol or 0.0):
            self._stage = 0
        return {"objective": particles.bound, "gain": gain}

    def _joined(self, particles: Particles, extra: list[Tensor]) -> Particles:
        """The best of these and states ``[V, M]`` each."""
        return particles.joined(self.network, self.hashes, torch.cat(extra, 1), self._most)

    def _is_sharp(self, found: Particles) -> bool:
        """Whether no score came from a state without mass, whose rounding is coarse, that of a
        zero: K states that have mass keep all others out."""
        start = self.particles
        has_mass = self.network.has_mass(torch.cat([start.score, found.score]))
        return len(start) == self._most and bool(has_mass.all())

    @property
    def converged(self) -> bool:
        """Whether the last kind of move gained at most ``tol`` in a sweep."""
        if not super().converged:
            return False
        return self._is_last if self._labelled is None else self.label_search.is_last

    # ------------------------------------------------------------------ results
    def posterior(self) -> DiscreteParticles | LabelParticles:
        """The particles, weighted by their scores.

        Raises:
            ZeroMass: there is none with mass: all were looked at, or a node has none by its own
                factors.
            InferenceError: no state with mass was found.
        """
        graph = self.graph  # raises if there is none
        is_all = self._holds_all_states()
        run = {"converged": self.converged, "status": self.status, "history": self.history}
        if self._labelled is not None:
            self._check_best_labels()
            return posterior_of_labels(self.labellings, is_all, **run)
        bound, top = self.particles.bound, self._top
        are_best = top is not None and float(top - bound) <= ROUNDING * (1 + float(top.abs()))
        return posterior_of_states(
            graph, self.network, self.particles, self._conditionals, is_all, are_best, **run
        )

    def _check_best_labels(self) -> None:
        """Whether the program has the densities there that its reading says: these labels may show
        what labels at random did not, and that data or parameters changed."""
        best = int(self.labellings.score.argmax())
        found = {
            name: z[best].to(self.graph.sites[name].dtype)
            for name, z in self.labellings.labels().items()
        }
        now = checked_log_prob(self._labelled, self.model, *self._given, found)
        refuse_changed(self._labelled, now, self.labellings.score[best])

    def _holds_all_states(self) -> bool:
        if self._labelled is not None:
            sizes = [site.event_shape[0] for site in self._labelled.sites.values()]
            return len(self.labellings) == num_partitions(sizes, len(self.labellings))
        return len(self.particles) == self.network.num_states

    def remedy(self) -> str:
        return "The bound still grows: raise num_steps."

    # ------------------------------------------------------------------ checkpoints
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **self._carried_since()}

    def _carried_since(self) -> dict[str, Any]:
        """What states have beside :meth:`carried` that older ones, which load, have not."""
        return {} if self._labelled is None else {"score": self.labellings.score}

    def carried(self) -> dict[str, Any]:
        if self._labelled is not None:
            return {"labels": self.labellings.labels(), **self._stages()}
        found, cards = self.particles, self.network.cards
        return {"x": found.x, "score": found.score, "cards": cards, **self._stages()}

    def restore(self, state: Mapping[str, Any]) -> None:
        if self._labelled is not None:
            found = Labellings(self._labelled, state["labels"])
            if "score" in state:
                now = found.score.to(self._labelled.dtype)
                refuse_other_scores(state["score"].to(now.device), now)
            self.label_search = self._search_from(
                found.distinct(self.num_particles) if len(found) > self.num_particles else found
            )
            self._restore_stages(state)
            return
        cards = self.network.cards
        if not torch.equal(state["cards"].to(cards.device), cards):
            raise ShapeMismatch(
                "the state is of other numbers of states: set up with the sum_out of the saved run"
            )
        x = state["x"].to(cards.device)[:, : self._most]
        score = state["score"].to(x.device)[: self._most]
        now = self._score_of(x)
        mass = self.network.has_mass(score) | self.network.has_mass(now)
        refuse_other_scores(score[mass], now[mass])
        best, self.particles = self.particles, Particles(x, score, self.hashes(x))
        self._restore_stages(state)
        if self._top is not None and not self._is_same_search(state):
            self._rest_at(best)

    def _score_of(self, x: Tensor) -> Tensor:
        """``[K]`` of the particles of a saved state ``[V, K]``, as this program has it."""
        return self.network.score(x)

    def _stages(self) -> dict[str, Any]:
        """Where the sequence of moves stands, and the random numbers of splits."""
        if self._labelled is not None:
            own = self.label_search.stages()
        else:
            own = {"stage": self._stage, "is_last": self._is_last, "can_split": False}
        return {
            **own,
            "generator": self.generator.get_state(),
            "num_particles": self.num_particles,
            "moves": list(self.moves or ()),
        }

    def _restore_stages(self, state: Mapping[str, Any]) -> None:
        """With other moves, or more particles, nothing has converged: all begins again."""
        self._begin_stages()
        if self._is_same_search(state):
            if self._labelled is not None:
                self.label_search.restore_stages(state)
            else:
                self._stage, self._is_last = int(state["stage"]), bool(state["is_last"])
        self.generator.set_state(state["generator"].cpu())

    def _is_same_search(self, state: Mapping[str, Any]) -> bool:
        """Whether a saved run looked for as many particles by the same moves."""
        saved = state["num_particles"], list(state["moves"])
        return saved == (self.num_particles, list(self.moves or ()))
