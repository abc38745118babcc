"""DPVI in time: particles are extended node by node, and smoothed if asked for.

    f_t(x_{1:t}) = f_{t-1}(x_{1:t-1}) prod of the factors that node t completes

Every particle is extended by every state of the next node, and the best K of these, distinct
because their pasts or their last states are, are kept: a particle filter without random numbers and
without replicas. Pasts are back pointers, so that a step costs as much late as early. It is a beam
search: the best K of every step need not contain the pasts of the best K at the end, so the bound
is monotone in the sweeps of smoothing, not in time.

Source: Saeedi, Kulkarni, Mansinghka & Gershman (2017), section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrograph.checks import flag
from pyrograph.errors import ConvergenceWarning, InferenceError, OptionError, ShapeMismatch
from pyrograph.graph.structure import Label
from pyrograph.infer.dpvi.engine import DPVI
from pyrograph.infer.dpvi.filter_errors import (
    is_label,
    refuse_fixed,
    refuse_no_labels,
    refuse_packed,
)
from pyrograph.infer.dpvi.labellings.label_filter import LabelFilter
from pyrograph.infer.dpvi.labellings.label_search import LabelSearch
from pyrograph.infer.dpvi.labellings.labelled import Labellings
from pyrograph.infer.dpvi.node_filter import NodeFilter
from pyrograph.infer.dpvi.state_search import StateSearch
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
        smoothing: local sweeps over all nodes after the forward pass, which may go to the best K
            states at once where :class:`DPVI` would start from them.
        order: labels ``(site, index)`` of all nodes, if another order is meant.
        num_steps: nodes and sweeps together; by default all nodes and 100 sweeps.
        options: see :class:`DPVI`; ``moves`` and ``proposals`` are for smoothing. A filter starts
            from nothing and takes in every node, so it has no ``init`` and no ``sum_out``.

    Raises:
        OptionError: ``order`` is not one of all nodes, or an option is unknown or out of range.
        ZeroMass: hard constraints leave nothing.
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
        refuse_fixed(options)
        super().__init__(
            model,
            num_particles=num_particles,
            num_steps=0 if num_steps is None else num_steps,
            **options,
        )
        if not (order is None or isinstance(order, Collection)):
            raise OptionError(f"order={order!r} is no list of nodes (site, index)")
        self._all_steps = num_steps is None
        self.smoothing, self.order = flag("smoothing", smoothing), order
        #: What is in already, while a longer program is set up.
        self._past: list = []

    # ------------------------------------------------------------------ state
    def allocate(self) -> None:
        if self._past and is_label(self._past[0]) != (self._labelled is None):
            raise ShapeMismatch(
                f'site "{self._past[0][0]}" is in, and one of the two programs has labels, the '
                "other nodes of a graph: start a new engine"
            )
        if self._labelled is not None:
            if self.order is not None:
                raise OptionError("order= is for nodes; labels come in by their numbers")
            self._check_labelled()
            self._search = self._search_of_labels(Labellings(self._labelled))
            self._filter = LabelFilter(self._search, self._past)
        else:
            self._search = self._search_of_states()
            self._filter = NodeFilter(self._search, self._in_order())
        if self._all_steps:
            self.num_steps = len(self._filter) + SWEEPS * self.smoothing

    @property
    def _is_in(self) -> bool:
        """Whether all nodes, or elements of labellings, are in."""
        return self._filter.position == len(self._filter)

    @property
    def search(self) -> StateSearch | LabelSearch:
        """Of the particles so far."""
        _ = self.graph  # raises if there is none
        if self._labelled is None and not (self.smoothing and self._is_in):
            self._search.found = self._filter.particles()
        return self._search

    def _in_order(self) -> Tensor:
        """``[V]`` nodes as they come in: those of a shorter program first, and last those that are
        masked out, which a longer program may read."""
        if self.order is None or self._past:
            nodes = self._ids_of(self._past)
            known = set(nodes)
            nodes += [v for v in range(self.graph.num_nodes) if v not in known]
        else:
            nodes = self._ids_of(self.order)
        if sorted(nodes) != list(range(self.graph.num_nodes)):
            raise OptionError(
                f"order= has {len(nodes)} labels, {len(set(nodes))} different ones; it must name "
                f"each of the {self.graph.num_nodes} nodes once"
            )
        masked = set(self._search.masked_out.tolist()) - set(self._ids_of(self._past))
        nodes.sort(key=masked.__contains__)  # keeps the order otherwise
        return torch.tensor(nodes, device=self._search.network.cards.device)

    def _ids_of(self, labels: Sequence[Label]) -> list[int]:
        refuse_no_labels(labels, self.graph.sites)
        return [self.graph.node_id(site, *index) for site, index in labels]

    # ------------------------------------------------------------------ forward
    def advance(self) -> dict[str, Tensor] | dict[str, float]:
        if self._is_in:
            return super().advance()
        if self._labelled is not None:
            past = self._history.get("objective")
            return self._filter.take_in(past[-1] if past else None)
        measured = self._filter.take_in()
        self._hand_over()
        return measured

    def _hand_over(self) -> None:
        """Smoothing goes on from the particles of the filter when all nodes are in: at once and not
        before the first sweep, as a run resumed later goes on from what is saved."""
        if self.smoothing and self._is_in:
            self._search.found = self._filter.particles(rescores=True)

    @property
    def converged(self) -> bool:
        """Whether all nodes are in and, if smoothed, sweeps gain no more."""
        if self._graph is None or not self._is_in:
            return False
        return not self.smoothing or (self.num_done > len(self._filter) and super().converged)

    def _outcome(self) -> str:
        if self._graph is not None and not self._is_in:
            return f"not converged: {self._how_many_are_in()}. {self._how_to_go_on()}"
        return super()._outcome()

    def _how_many_are_in(self) -> str:
        what = "nodes" if self._labelled is None else "elements"
        return f"{self._filter.position} of {len(self._filter)} {what} are in"

    def filtered(self, site: str) -> Tensor:
        """Marginals ``[*batch, c]`` of a site's nodes at the time they came in.

        Nodes of a plate come in one by one: of an observation that reads several of them, as of a
        factorial hidden Markov model, only the last one's marginal knows.

        Raises:
            InferenceError: a node is not in yet, or the site is a labelling.
            OptionError: no such site.
        """
        _ = self.graph  # raises if there is none
        if self._labelled is not None:
            raise InferenceError(
                "labels have no marginals of their own: posterior().together(site)"
            )
        return self._filter.filtered(site)

    # ------------------------------------------------------------------ longer programs
    def extend(self, *args: Any, **kwargs: Any) -> Posterior:
        """Go on with a longer program: the nodes that are new in it are taken in.

        The program is read and checked as a whole every time, which takes as long as it is long:
        of a stream of data, hand over many elements at once.

        Args:
            args, kwargs: of the model. Nodes of the present graph keep their labels.

        Raises:
            InferenceError: nothing was set up yet.
            OptionError: the program fails on a tuple of arguments in the place of arguments.
            ShapeMismatch: a node that is in is missing in the new graph, or has other states. As
                with every error of the new program, also while its nodes come in, the engine stays
                as it was; where ``num_steps`` alone is too few for them, those that are in stay.
        """
        _ = self.graph  # raises if there is none
        # lists of the history grow in place
        before = {**vars(self), "_history": {k: [*v] for k, v in self._history.items()}}
        is_short = False
        try:
            self._set_up_longer(args, kwargs)
            is_short = self.num_steps - self.num_done < len(self._filter) - self._filter.position
            return self.run()
        except ConvergenceWarning:  # an error where the user says so, told of when all is done
            raise
        except Exception as error:
            if not (is_short and self.num_done >= self.num_steps):
                vars(self).clear()
                vars(self).update(before)
            refuse_packed(args, kwargs, before["_given"], error)
            raise

    def _set_up_longer(self, args: tuple, kwargs: dict) -> None:
        """A program that has what is in, and more."""
        old, history = self._filter, self._history
        found = self.search.found
        self._past = past = old.past()
        try:
            self.setup(*args, **kwargs)
        finally:
            self._past = []
        if old.position:
            self._filter.go_on_from(old, found)
            if self._labelled is None:
                self._hand_over()  # the program may have new data and no new nodes
        self._history = history
        if self._all_steps:
            self.num_steps += self.num_done - len(past)

    # ------------------------------------------------------------------ results
    def posterior(self) -> Posterior:
        """The particles over all nodes.

        Raises:
            InferenceError: nodes are missing yet, or no state with mass was found.
        """
        _ = self.graph  # raises if there is none
        if not self._is_in:
            raise InferenceError(
                f"{self._how_many_are_in()}: go on with step() or run(), or raise num_steps"
            )
        return super().posterior()

    def _holds_all(self) -> bool:
        return self._filter.is_all

    # ------------------------------------------------------------------ checkpoints
    def carried(self) -> dict[str, Any]:
        own = {"position": self._filter.position, "is_all": self._filter.is_all}
        return {**super().carried(), **self._filter.carried(), **own}

    def _carried_since(self) -> dict[str, Any]:
        own = self._filter.carried_since()
        return own if self._labelled is not None else {**own, "is_best": self._search.knows_best}

    def restore(self, state: Mapping[str, Any]) -> None:
        is_same, position = self._is_same_search(state), int(state["position"])
        if self._labelled is not None:
            filtering = self._filter.restored(state, is_same)
            search = filtering.search
        else:
            fresh = self._search_of_states()
            filtering, search = self._filter.restored(state, fresh, is_same)
        if position == len(filtering) and filtering.is_cut and not self.smoothing:
            self._refuse_fewer(int(state["num_particles"]))
        if self._all_steps and position < len(filtering):
            done = len(state["history"].get("objective", ()))
            self.num_steps = len(filtering) + SWEEPS * self.smoothing + done - position
        self._filter, self._search = filtering, search
        self.generator.set_state(state["generator"].cpu())

    def _refuse_fewer(self, saved: int) -> None:
        """Whether a filter that is done kept as many particles as are asked for: the others of
        each step are gone."""
        if saved < self.num_particles:
            raise ShapeMismatch(
                f"the state is of a filter that is done and kept {saved} particles, where "
                f"num_particles={self.num_particles}: give num_particles={saved}, start anew, or "
                "go on from its particles by smoothing=True"
            )
