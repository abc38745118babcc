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
    no_mass,
    refuse_fixed,
    refuse_no_labels,
    refuse_packed,
)
from pyrograph.infer.dpvi.labellings.labelled import Labellings
from pyrograph.infer.dpvi.network import Network
from pyrograph.infer.dpvi.particles import Hash, Particles, gain_of, highest
from pyrograph.infer.dpvi.paths import Paths
from pyrograph.infer.dpvi.saved_states import order_of, score_of_labels
from pyrograph.infer.dpvi.sweeps import Sweeps
from pyrograph.infer.dpvi.zeros import are_among, zeros_of
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
        self._past: list = []
        self._position = 0
        self._paths: Paths | None = None
        #: Why states with mass are missing: K was too few for all, or zeros of an earlier program,
        #: whose states were not kept, have gone.
        self._is_cut = self._is_opened = False

    # ------------------------------------------------------------------ state
    def allocate(self) -> None:
        self._position, self._is_cut, self._is_opened = 0, False, False
        if self._past and is_label(self._past[0]) != (self._labelled is None):
            raise ShapeMismatch(
                f'site "{self._past[0][0]}" is in, and one of the two programs has labels, the '
                "other nodes of a graph: start a new engine"
            )
        if self._labelled is not None:
            self._check_labelled()
            self.label_search = self._search_from(Labellings(self._labelled))
            known = set(self._past)
            rest = [e for e in self.labellings.elements if e not in known]
            self._elements = [*self._past, *rest]
            if self.order is not None:
                raise OptionError("order= is for nodes; labels come in by their numbers")
            if not self._past:  # otherwise labels are handed over
                self.labellings.begin_pass()
        else:
            self._allocate_nodes()
        if self._all_steps:
            self.num_steps = self._num_elements + SWEEPS * self.smoothing

    @property
    def _is_all(self) -> bool:
        """Whether every state with mass of what is in is kept."""
        return not (self._is_cut or self._is_opened)

    @property
    def _num_elements(self) -> int:
        """What comes in: nodes, or elements of labellings."""
        return self.graph.num_nodes if self._labelled is None else len(self._elements)

    def _allocate_nodes(self) -> None:
        self._begin_stages()
        self.network = Network.of_graph(self.graph)
        self.hashes = Hash(self.network.cards)
        self._conditionals = []
        cards = self.network.cards
        self._come_in(self._in_order())
        self._filtered = torch.zeros(
            len(cards), int(cards.max()), dtype=torch.float64, device="cpu"
        )
        self.sweeps, self._top = None, None

    def _come_in(self, sequence: Tensor) -> None:
        """Nodes ``[V]`` come in like this; none is in yet."""
        cards, self._sequence = self.network.cards, sequence
        self._go_on(cards.new_zeros(len(cards), 1), self.network.constant.expand(1), 0)

    def _go_on(self, x: Tensor, score: Tensor, position: int) -> None:
        """Filter on from states ``[V, K]`` of the nodes that are in."""
        self._paths = Paths(self.network, self._sequence, x, score, position)
        self._position = position

    @property
    def particles(self) -> Particles:
        """Of all nodes; those that are not in are in their first state."""
        if self._paths is not None:
            x = self._paths.states()
            return Particles(x, self._paths.score, self.hashes(x))
        return self._particles

    @particles.setter
    def particles(self, found: Particles) -> None:
        self._particles, self._paths = found, None

    def _in_order(self) -> Tensor:
        """``[V]`` nodes as they come in; those of a shorter program first."""
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
        return torch.tensor(nodes, device=self.network.cards.device)

    def _ids_of(self, labels: Sequence[Label]) -> list[int]:
        refuse_no_labels(labels, self.graph.sites)
        return [self.graph.node_id(site, *index) for site, index in labels]

    # ------------------------------------------------------------------ forward
    def advance(self) -> dict[str, Tensor | float]:
        if self._position == self._num_elements:
            if self._labelled is None and self.sweeps is None:
                return self._first_sweep()
            return super().advance()
        if self._labelled is not None:
            return self._take_in_label()
        paths, before = self._paths, self._paths.bound
        self._take_in()
        if self.smoothing and self._position == self._num_elements:
            # now and not before the first sweep: a run resumed later goes on from what is saved
            x = paths.states()
            self.particles = Particles(x, self.network.score(x), self.hashes(x))
        return {"objective": paths.bound, "gain": paths.bound - before}

    def _first_sweep(self) -> dict[str, Tensor]:
        """To the best states, where they can be had, else of the first kind of moves."""
        before = self.particles.bound
        sweeps = Sweeps(self.network, self.graph.neighbors, self.moves, self._most)
        best = self._known_best() if self._top is None else None
        self.sweeps = sweeps  # an interrupt before leaves all to be done
        if best is None:
            return super().advance()
        self._rest_at(best)
        return {"objective": best.bound, "gain": gain_of(before, best.bound)}

    def _take_in_label(self) -> dict[str, float]:
        found, past = self.labellings, self._history.get("objective")
        before = past[-1] if past else found.bound_so_far
        name, i = self._elements[self._position]
        self._is_cut |= not found.take_in(name, i, self.num_particles)
        self._position += 1
        if self._position == self._num_elements:
            found.rescore()
        bound = found.bound_so_far
        return {"objective": bound, "gain": bound - before}

    def _take_in(self) -> None:
        paths, node = self._paths, self._paths.node
        candidates = paths.candidates()
        score, c = candidates.flatten(), candidates.shape[1]
        chosen = highest(score, self._most)
        possible = chosen[self.network.has_mass(score[chosen])]
        if not len(possible):
            raise no_mass(self.graph.nodes[node], self._is_cut, self._is_opened)
        self._is_cut |= len(possible) < int(self.network.has_mass(score).sum())
        parent, state = torch.div(possible, c, rounding_mode="floor"), possible % c
        paths.grow(parent, state, score[possible])
        weight = (score[possible] - paths.bound).exp()
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

        Nodes of a plate come in one by one: of an observation that reads several of them, as of a
        factorial hidden Markov model, only the last one's marginal knows.

        Raises:
            InferenceError: a node is not in yet, or the site is a labelling.
            OptionError: no such site.
        """
        if self._labelled is not None:
            raise InferenceError(
                "labels have no marginals of their own: posterior().together(site)"
            )
        if site not in self.graph.sites:
            raise OptionError(
                f'no latent site "{site}"; the latent sites are: {", ".join(self.graph.sites)}'
            )
        described = self.graph.sites[site]
        own = self.graph.nodes_of(site)
        nodes = torch.arange(own.start, own.stop, device="cpu")
        is_in = torch.zeros(self.graph.num_nodes, dtype=torch.bool, device="cpu")
        is_in[self._sequence[: self._position].cpu()] = True
        if not bool(is_in[nodes].all()):
            raise InferenceError(f'site "{site}" is not all in yet: go on with step() or run()')
        found = self._filtered[nodes, : described.cardinality].to(self.graph.dtype)
        return found.reshape(*described.batch_shape, described.cardinality)

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
        is_labelled = self.graph is self._labelled
        # lists of the history grow in place
        before = {**vars(self), "_history": {k: [*v] for k, v in self._history.items()}}
        is_short = False
        try:
            if is_labelled:
                self._extend_labels(args, kwargs)
            else:
                self._extend_nodes(args, kwargs)
            is_short = self.num_steps - self.num_done < self._num_elements - self._position
            return self.run()
        except ConvergenceWarning:  # an error where the user says so, told of when all is done
            raise
        except Exception as error:
            if not (is_short and self.num_done >= self.num_steps):
                vars(self).clear()
                vars(self).update(before)
            refuse_packed(args, kwargs, before["_given"], error)
            raise

    def _extend_nodes(self, args: tuple, kwargs: dict) -> None:
        was = self._sequence[: self._position].cpu()
        labels = self.graph.nodes
        old, cards = self.particles, self.network.cards
        filtered, history = self._filtered, self._history
        missing = self._is_cut, self._is_opened
        past = self._network_of_past(len(was))
        self._past = [labels[v] for v in was.tolist()]
        try:
            self.setup(*args, **kwargs)
        finally:
            self._past = []
        new = self._sequence[: len(was)]
        if not torch.equal(self.network.cards[new], cards[was]):
            raise ShapeMismatch("a site of the longer program has another number of states")
        x = old.x.new_zeros(self.graph.num_nodes, len(old))
        x[new] = old.x[was]
        self._filtered[new.cpu(), : filtered.shape[1]] = filtered[was]
        self._is_cut, self._is_opened = missing
        if not self._is_opened:  # states without mass were not kept: none has some otherwise
            number = torch.zeros_like(cards)
            number[was] = new
            zeros = zeros_of(past, self.hashes, number)
            self._is_opened = not are_among(zeros, self._zeros_of_past(len(was)))
        self._go_on(x, self._network_of_past(len(was)).score(x), len(was))
        self._history = history
        if self._all_steps:
            self.num_steps += self.num_done - len(was)

    def _extend_labels(self, args: tuple, kwargs: dict) -> None:
        old, history, is_cut = self.labellings, self._history, self._is_cut
        self._past = self._elements[: self._position]
        try:
            self.setup(*args, **kwargs)
        finally:
            past, self._past = self._past, []
        self.label_search.found = old.within(self._labelled)
        self._position, self._is_cut, self._history = len(past), is_cut, history
        if self._all_steps:
            self.num_steps += self.num_done - len(past)

    def _network_of_past(self, position: int) -> Network:
        """Of the factors whose nodes are all among the first so many."""
        return self.network.among(self._sequence[:position])

    def _zeros_of_past(self, position: int) -> Tensor:
        """``[2, Z]`` hashes of the zeros in the factors of the past."""
        return zeros_of(self._network_of_past(position), self.hashes)

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

    def _carried_since(self) -> dict[str, Any]:
        # after an extension nodes and elements do not come in as they do in a program of their own
        if self._labelled is not None:
            return {"elements": list(self._elements), "layout": self.labellings.layout}
        own = {"sequence": self._sequence, "is_cut": self._is_cut, "is_opened": self._is_opened}
        own["is_best"] = self._top is not None
        if not self._is_all:
            return own
        return {**own, "zeros": self._zeros_of_past(self._position).sum(1)}

    def _score_of(self, x: Tensor) -> Tensor:
        if self._position < self._num_elements:
            return self._network_of_past(self._position).score(x)
        return super()._score_of(x)

    def restore(self, state: Mapping[str, Any]) -> None:
        if "sequence" in state:
            self._come_in(order_of(state["sequence"], self._sequence))
        self._position, is_all = int(state["position"]), bool(state["is_all"])
        self._is_cut = bool(state.get("is_cut", not is_all))
        # older states of nodes do not say which it was, and it may have been both
        self._is_opened = self._labelled is None and bool(state.get("is_opened", not is_all))
        if self._position == self._num_elements and self._is_cut and not self.smoothing:
            self._refuse_fewer(int(state["num_particles"]))
        if self._all_steps and self._position < self._num_elements:
            done = len(state["history"].get("objective", ()))
            self.num_steps = self._num_elements + SWEEPS * self.smoothing + done - self._position
        if self._labelled is not None:
            self._elements = order_of(state.get("elements", self._elements), self._elements)
            self._restore_labels(state["labels"], state["score"])
            if "layout" in state and self._position < self._num_elements:
                self.labellings.lay_out(state["layout"])
            self._restore_stages(state)
            return
        super().restore(state)
        self._top = None
        best = self._known_best() if state.get("is_best") and self.sweeps is None else None
        if best is not None and torch.equal(best.score, self.particles.score):
            self._top = best.bound  # of this program, which may be another
        self._is_cut |= len(self.particles) < len(state["score"])
        if is_all:
            self._is_opened = not self._has_zeros_of(state)
        if self._position < self._num_elements:
            self._go_on(self.particles.x, self.particles.score, self._position)
        self._filtered = state["filtered"].clone()

    def _refuse_fewer(self, saved: int) -> None:
        """Whether a filter that is done kept as many particles as are asked for: the others of
        each step are gone."""
        if saved < self.num_particles:
            raise ShapeMismatch(
                f"the state is of a filter that is done and kept {saved} particles, where "
                f"num_particles={self.num_particles}: give num_particles={saved}, start anew, or "
                "go on from its particles by smoothing=True"
            )

    def _has_zeros_of(self, state: Mapping[str, Any]) -> bool:
        """Whether states without mass, which are not kept, are those of a saved state."""
        zeros = self._zeros_of_past(self._position)
        if "zeros" in state:
            return torch.equal(state["zeros"].to(zeros.device), zeros.sum(1))
        cards = self.network.cards[self._sequence[: self._position]]
        return len(state["score"]) == float(cards.double().prod())

    def _restore_labels(self, labels: Mapping[str, Tensor], score: Tensor) -> None:
        """Labellings ``{site: [K, n]}`` of a saved state, as many of the best as are kept."""
        if len(score) > self.num_particles:
            self._is_cut = True
            best = highest(score, self.num_particles)
            labels, score = {name: z[best] for name, z in labels.items()}, score[best]
        self.label_search = self._search_from(Labellings(self._labelled, labels))
        if self._position:
            now = self._labelled.score(self.labellings.clusters).to(self._labelled.dtype)
            self.labellings.score = score_of_labels(score, now)
        else:
            self.labellings.score = score.to(self._labelled.device, copy=True)
