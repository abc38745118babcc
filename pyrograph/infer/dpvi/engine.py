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

from torch import Tensor

from pyrograph import errors
from pyrograph.checks import count
from pyrograph.errors import OptionError
from pyrograph.graph import FactorGraph
from pyrograph.infer.base import Engine
from pyrograph.infer.dpvi.labellings.label_search import LabelSearch
from pyrograph.infer.dpvi.labellings.labelled import Labellings
from pyrograph.infer.dpvi.labellings.labelled_program import LabelledProgram
from pyrograph.infer.dpvi.labellings.labelled_start import (
    first_labellings,
    refuse_broken_data,
    refuse_options_of_nodes,
)
from pyrograph.infer.dpvi.labellings.reading import (
    checked_log_prob,
    read_labelled,
    refuse_changed,
)
from pyrograph.infer.dpvi.state_search import StateSearch
from pyrograph.infer.requires import FiniteDiscrete
from pyrograph.posterior import Posterior
from pyrograph.posterior.discrete_particles import DiscreteParticles
from pyrograph.posterior.label_particles import LabelParticles
from pyrograph.trace.plain_run import retried

MOVES = ("block", "pair", "single", "flip", "region", "split")


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
        init: ``"icm"`` the best K states themselves where there are no more than K, or elimination
            finds them cheaply (chains and trees of up to 131,072 nodes, .1 ms each, and narrow
            grids; neither if ``moves`` are given), elsewhere local maxima from scattered and
            opposite states and, where factors have zeros, the ends of a beam through all nodes; for
            labels of one site passes of filtering in several orders, and of several sites Gibbs
            chains that cool; ``"random"`` states without climbing, and one pass; a posterior whose
            draws start it; or ``{site: [M, *site shape]}``.
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
            self._search = self._search_of_labels(first_labellings(*parts))
        else:
            self._search = self._search_of_states()
            self._search.begin(self.init)

    @property
    def search(self) -> StateSearch | LabelSearch:
        """What moves the particles: joint states of a graph, or labellings.

        Raises:
            InferenceError: the engine is not set up.
        """
        _ = self.graph  # raises if there is none
        return self._search

    def _search_of_states(self) -> StateSearch:
        parts = self.graph, self.num_particles, self.moves, self.sum_out, self.generator
        return StateSearch(*parts, None if self.proposals is None else self._proposed)

    def _search_of_labels(self, found: Labellings) -> LabelSearch:
        may_split = self._labelled.is_exchangeable and (self.moves is None or "split" in self.moves)
        proposed = None if self.proposals is None else self._proposed
        return LabelSearch(found, self.num_particles, self.generator, may_split, proposed)

    def _check_labelled(self) -> None:
        """Whether options and data fit labellings."""
        parts = self._labelled, self.dtype, self.device
        refuse_options_of_nodes(*parts, self.moves, self.sum_out)
        refuse_broken_data(self._labelled)

    def values(self) -> dict[str, Tensor]:
        """The particles, ``{site: [K, *site shape]}``; nodes summed out in their first state."""
        return self.search.values()

    def _proposed(self) -> Mapping[str, Any]:
        """What ``proposals`` makes of the particles."""
        found = self.proposals(self.values())
        if not isinstance(found, Mapping):
            raise OptionError(
                f"proposals= returned {type(found).__name__}; it must return {{site: values "
                "[M, *site shape]}, M = 0 if there are none"
            )
        return found

    # ------------------------------------------------------------------ sweeps
    def advance(self) -> dict[str, Tensor]:
        return self.search.advance(self.tol or 0.0, self.num_done)

    @property
    def converged(self) -> bool:
        """Whether the last kind of move gained at most ``tol`` in a sweep."""
        return super().converged and self.search.is_last

    # ------------------------------------------------------------------ results
    def posterior(self) -> DiscreteParticles | LabelParticles:
        """The particles, weighted by their scores.

        Raises:
            ZeroMass: there is none with mass: all were looked at, or a node has none by its own
                factors.
            InferenceError: no state with mass was found.
        """
        search = self.search
        if self._labelled is not None:
            self._check_best_labels(search.found)
        run = {"converged": self.converged, "status": self.status, "history": self.history}
        return search.posterior(self._holds_all(), **run)

    def _holds_all(self) -> bool:
        """Whether the particles are all there are."""
        return self.search.holds_all

    def _check_best_labels(self, found: Labellings) -> None:
        """Whether the program has the densities there that its reading says: these labels may show
        what labels at random did not, and that data or parameters changed."""
        best = int(found.score.argmax())
        labels = {
            name: z[best].to(self.graph.sites[name].dtype) for name, z in found.labels().items()
        }
        now = checked_log_prob(self._labelled, self.model, *self._given, labels)
        refuse_changed(self._labelled, now, found.score[best])

    def _outcome(self) -> str:
        gains_no_more = super().converged
        if gains_no_more and not (self.converged or self.search.is_last):
            return (
                f"not converged: after {self.num_done} steps other kinds of moves have not had "
                f"their turn. {self._how_to_go_on()}"
            )
        return super()._outcome()

    def _how_to_go_on(self) -> str:
        is_over = self.num_steps <= self.num_done
        return "Raise num_steps." if is_over else "Go on with run()."

    def remedy(self) -> str:
        return "The bound still grows: raise num_steps."

    # ------------------------------------------------------------------ checkpoints
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **self._carried_since()}

    def _carried_since(self) -> dict[str, Any]:
        """What states have beside :meth:`carried` that older ones, which load, have not."""
        return {} if self._labelled is None else {"score": self.search.found.score}

    def carried(self) -> dict[str, Any]:
        return {**self.search.carried(), **self._kind_of_search()}

    def _kind_of_search(self) -> dict[str, Any]:
        """For how many particles, by which moves and random numbers."""
        return {
            "generator": self.generator.get_state(),
            "num_particles": self.num_particles,
            "moves": list(self.moves or ()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._search = self._search.restored(state, self._is_same_search(state))
        self.generator.set_state(state["generator"].cpu())

    def _is_same_search(self, state: Mapping[str, Any]) -> bool:
        """Whether a saved run looked for as many particles by the same moves."""
        saved = state["num_particles"], list(state["moves"])
        return saved == (self.num_particles, list(self.moves or ()))
