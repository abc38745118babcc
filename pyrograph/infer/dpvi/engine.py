"""DPVI: the best K distinct joint states, as a bound of the log evidence.

    log Z >= L(Q) = log sum_k f(x_k),    weights w_k = f(x_k) / sum_j f(x_j)

maximised over sets of K particles by moves that never lower it: with one particle iterated
conditional modes, with all joint states exact. Algorithm 1 changes one node after the other
(``moves=("single",)``); blocks of nodes without common factors change at once by default, which
reaches better bounds in far less time, and then single changes of all nodes are searched until
there is none that helps.

Source: Saeedi, Kulkarni, Mansinghka & Gershman (2017), "Variational particle approximations",
Algorithm 1 (which never assigns Q <- Q' and compares bounds within a sweep; here between sweeps).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrograph.errors import InferenceError, OptionError, ShapeMismatch
from pyrograph.graph import FactorGraph
from pyrograph.infer.base import Engine
from pyrograph.infer.dpvi.blocks import node_blocks, pair_blocks
from pyrograph.infer.dpvi.diffuse import warning_of_diffuse, warning_of_gain
from pyrograph.infer.dpvi.labelled import Labellings
from pyrograph.infer.dpvi.labelled_program import LabelledProgram, read_labelled
from pyrograph.infer.dpvi.moves import block_move, flip_move
from pyrograph.infer.dpvi.network import EXCLUDED, Clusters, Network
from pyrograph.infer.dpvi.particles import Hash, Particles
from pyrograph.infer.dpvi.split_merge import splits_and_merges
from pyrograph.infer.dpvi.start import FEWEST, climbed, scattered
from pyrograph.infer.dpvi.summed_out import Conditionals, independent_nodes, without
from pyrograph.infer.options import count
from pyrograph.infer.requires import FiniteDiscrete
from pyrograph.posterior import Posterior
from pyrograph.posterior.discrete_particles import DiscreteParticles
from pyrograph.posterior.label_particles import LabelParticles

MOVES = ("block", "pair", "single", "flip", "split")
#: Most blocks of pairs that are moved by default.
MOST_PAIR_BLOCKS = 64
#: Passes of filtering in random orders, by which labellings start.
ORDERS = 4
#: Sweeps between scores from scratch.
REFRESH = 10
#: A gain below this share of the bound is rounding.
ROUNDING = 1e-12


class DPVI(Engine):
    """Discrete particle variational inference.

    Args:
        model: a Pyro program of finite discrete sites, or of labellings (see
            :mod:`pyrograph.distributions`) and collapsed data, whose labels move one by one.
        num_particles: K; fewer if there are not as many joint states.
        moves: what a sweep does, in turn: each kind is repeated until it gains no more, then the
            next. ``"block"`` all nodes of a colour at once, ``"pair"`` the same with pairs of
            neighbours, ``"single"`` node by node in the order of the graph (Algorithm 1),
            ``"flip"`` every change of one node of one particle. By default blocks, pairs where
            they fall into few blocks, and flips. Labellings take ``"single"`` label by label and
            ``"split"`` splits and merges of clusters; by default both.
        init: ``"icm"`` local maxima from scattered and opposite states, and for labellings passes
            of filtering in several orders; ``"random"`` states without climbing, and one pass; a
            posterior whose draws start it; or ``{site: [M, *site shape]}``.
        sum_out: ``"auto"``, or names of sites: nodes of which no two share a factor are summed out
            exactly, and the bound is the greater for it.
        proposals: a function of ``{site: [K, *site shape]}`` that proposes more, ``{site: [M,
            *site shape]}``, after every sweep.
        options: see :class:`Engine`; ``tol`` is for the gain of the bound in a sweep.

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
        self.moves = (moves,) if isinstance(moves, str) else moves and tuple(moves)
        if moves is not None and (not self.moves or set(self.moves) - set(MOVES)):
            raise OptionError(f"moves={moves!r}: take some of {', '.join(MOVES)}, in an order")
        if isinstance(init, str) and init not in ("icm", "random"):
            raise OptionError(
                f'init={init!r} is not "icm", "random", a posterior or {{site: values}}'
            )
        self.init, self.proposals = init, proposals
        self.sum_out = [sum_out] if isinstance(sum_out, str) and sum_out != "auto" else sum_out

    # ------------------------------------------------------------------ state
    def check(self, args: tuple, kwargs: dict) -> None:
        self._labelled = read_labelled(self.model, args, kwargs)
        if self._labelled is None:
            super().check(args, kwargs)

    def read(self, args: tuple, kwargs: dict) -> FactorGraph | LabelledProgram:
        return super().read(args, kwargs) if self._labelled is None else self._labelled

    def allocate(self) -> None:
        self._stage, self._is_last, self._can_split = 0, False, False
        if self._labelled is not None:
            self._can_split = self._may_split()
            self.labellings = self._first_labellings()
            return
        self.network = Network.of_graph(self.graph)
        self._neighbors = self.graph.neighbors
        self._conditionals: list[Conditionals] = []
        if self.sum_out is not None:
            nodes = independent_nodes(self.graph, self.network, self.sum_out)
            collapsed = without(self.network, nodes, *self._neighbors)
            self.network, self._conditionals = collapsed.network, collapsed.conditionals
            self._neighbors = collapsed.pointer, collapsed.index
        self.hashes = Hash(self.network.cards)
        self._prepare_moves()
        self.particles = Particles.best(
            self.network, self.hashes, self._starts(), self.num_particles
        )

    def _prepare_moves(self) -> None:
        self._kinds = self.moves or ("block", "flip")
        if "split" in self._kinds:
            raise OptionError('moves="split" is for labellings; this program has a factor graph')
        self._clusters = {kind: self._clusters_of(kind) for kind in self._kinds}
        if self.moves is None:
            pairs = pair_blocks(*self._neighbors)
            if pairs and len(pairs) <= MOST_PAIR_BLOCKS:
                self._kinds = ("block", "pair", "flip")
                self._clusters["pair"] = self._by_cards(pairs)

    def _clusters_of(self, kind: str) -> list[Clusters]:
        if kind == "block":
            sets = node_blocks(*self._neighbors)
        elif kind == "pair":
            sets = self._pairs()
        else:
            sets = [torch.arange(self.network.num_nodes).unsqueeze(1)]
        return self._by_cards(sets)

    def _by_cards(self, sets: list[Tensor]) -> list[Clusters]:
        """Clusters of every set, those of like numbers of states together."""
        network, device = self.network, self.network.cards.device
        parts = (part for s in sets for part in network.clusters_by_cards(s.to(device)))
        # a node with one state has nothing to change, above all one that is summed out
        return [Clusters(network, p) for p in parts if int(network.cards[p[0]].min()) > 1]

    def _pairs(self) -> list[Tensor]:
        found = pair_blocks(*self._neighbors)
        if found is None:
            raise OptionError(
                'moves="pair" moves blocks of pairs that are not in each other\'s way, and in this '
                "graph nearly all are. Leave it out."
            )
        return found

    def _starts(self) -> Tensor:
        """``[V, M]``."""
        if isinstance(self.init, Posterior):
            return self._codes(self.init.sample(max(FEWEST, 4 * self.num_particles)))
        if isinstance(self.init, Mapping):
            return self._codes(self.init)
        x = scattered(self.network.cards, max(FEWEST, self.num_particles), self.generator)
        if self.init == "random":
            return x
        blocks = self._clusters.get("block") or self._clusters_of("block")
        return climbed(x, blocks)

    def _codes(self, values: Mapping[str, Tensor]) -> Tensor:
        """Numbers of states ``[V, M]`` of values ``{site: [M, *site shape]}``.

        Raises:
            ShapeMismatch: a site is missing or has another shape.
            OptionError: a value is none of the site's states.
        """
        rows = []
        for name, site in self.graph.sites.items():
            if name not in values or tuple(values[name].shape[1:]) != site.shape:
                found = tuple(values[name].shape) if name in values else "none"
                raise ShapeMismatch(
                    f'values of site "{name}" have shape {found}; expected [M, *{site.shape}]'
                )
            states = site.enumeration.flatten(1) if site.event_shape else site.enumeration[:, None]
            value = values[name].to(states).reshape(len(values[name]), site.num_nodes, 1, -1)
            match = (value == states).all(-1)
            if not bool(match.any(-1).all()):
                raise OptionError(f'a value given for site "{name}" is none of its states')
            rows.append(match.long().argmax(-1).t())
        x = torch.cat(rows).to(self.network.cards.device)
        return x.clamp_max((self.network.cards - 1).unsqueeze(1))

    def values(self) -> dict[str, Tensor]:
        """The particles as values, ``{site: [K, *site shape]}``; nodes that are summed out are in
        their first state."""
        out, start = {}, 0
        for name, site in self.graph.sites.items():
            codes = self.particles.x[start : start + site.num_nodes].t()
            start += site.num_nodes
            out[name] = site.enumeration[codes].reshape(len(codes), *site.shape)
        return out

    def _may_split(self) -> bool:
        """Whether clusters are split and merged."""
        return self._labelled.is_exchangeable and (self.moves is None or "split" in self.moves)

    def _first_labellings(self) -> Labellings:
        """Passes of filtering, in the order of the elements and in random ones, or what the user
        starts from."""
        found = Labellings(self._labelled)
        if isinstance(self.init, Posterior | Mapping):
            values = self.init
            if isinstance(values, Posterior):
                values = values.sample(max(FEWEST, 4 * self.num_particles))
            return found.starting_from(values).distinct(self.num_particles)
        passes = [found.filtered(found.elements, self.num_particles)]
        if self._labelled.is_exchangeable and self.init == "icm":
            for _ in range(ORDERS):
                order = torch.randperm(len(found.elements), generator=self.generator).tolist()
                elements = [found.elements[k] for k in order]
                passes.append(Labellings(self._labelled).filtered(elements, self.num_particles))
        best = max(passes, key=lambda found: float(found.bound))
        return best.joined(*(found.labels() for found in passes)).distinct(self.num_particles)

    def _advance_labels(self) -> dict[str, Tensor]:
        before, best = self.labellings.bound, self.labellings.score.amax()
        if self._stage == 0:
            self.labellings.sweep(self.num_particles)
        else:
            extra = splits_and_merges(self.labellings, self.num_particles, self.generator)
            if extra is not None:
                self.labellings = self.labellings.joined(extra).distinct(self.num_particles)
        if self.proposals is not None:
            extra = self.proposals(self.labellings.labels())
            self.labellings = self.labellings.joined(extra).distinct(self.num_particles)
        self.labellings.rescore()
        gain = self._gain(before)
        # splits and merges have their turn when sweeps gain no more, and sweeps after them, until
        # the best labelling is none the better for them
        if self._stage == 1:
            rise = float(self.labellings.score.amax() - best)
            self._can_split = rise > ROUNDING * (1 + float(best.abs()))
        self._is_last = not self._can_split
        is_stuck = float(gain) <= (self.tol or 0.0)
        self._stage = int(self._stage == 0 and self._can_split and is_stuck)
        return {"objective": self.labellings.bound, "gain": gain}

    def _gain(self, before: Tensor) -> Tensor:
        """What the bound grew by, beyond rounding."""
        now = self.labellings.bound if self._labelled is not None else self.particles.bound
        gain = now - before
        is_rounding = float(gain.abs()) <= ROUNDING * (1 + float(before.abs()))
        return torch.zeros_like(gain) if is_rounding else gain

    # ------------------------------------------------------------------ sweeps
    def advance(self) -> dict[str, Tensor]:
        if self._labelled is not None:
            return self._advance_labels()
        before = self.particles.bound
        particles = self._sweep(self.particles, self._kinds[self._stage])
        if self.proposals is not None:
            extra = self._codes(self.proposals(self.values()))
            both = torch.cat([particles.x, extra], 1)
            particles = Particles.best(self.network, self.hashes, both, self.num_particles)
        if self.num_done % REFRESH == 0 or bool((self.particles.score < EXCLUDED / 2).any()):
            particles = Particles.best(self.network, self.hashes, particles.x, self.num_particles)
        if float(particles.bound - before) <= (self.tol or 0.0):
            # a mode that is the opposite of another is far from it by all moves
            opposite = (self.network.cards - 1).unsqueeze(1) - particles.x
            both = torch.cat([particles.x, opposite], 1)
            particles = Particles.best(self.network, self.hashes, both, self.num_particles)
        self.particles = particles
        gain = self._gain(before)
        # the next kind of move has its turn when this one gains no more
        self._is_last = self._stage == len(self._kinds) - 1
        if float(gain) <= (self.tol or 0.0) and not self._is_last:
            self._stage += 1
        return {"objective": particles.bound, "gain": gain}

    def _sweep(self, particles: Particles, kind: str) -> Particles:
        for clusters in self._clusters[kind]:
            if kind in ("block", "pair"):
                particles = block_move(particles, clusters, self.hashes, self.num_particles)
            elif kind == "single":
                for j in range(len(clusters)):
                    particles = block_move(
                        particles, clusters, self.hashes, self.num_particles, only=j
                    )
            else:
                particles = flip_move(particles, clusters, self.hashes, self.num_particles)
        return particles

    @property
    def converged(self) -> bool:
        """Whether the last kind of move gained at most ``tol`` in a sweep."""
        return super().converged and self._is_last

    # ------------------------------------------------------------------ results
    def posterior(self) -> DiscreteParticles | LabelParticles:
        """The particles, weighted by their scores.

        Raises:
            InferenceError: no state with mass was found.
        """
        if self._labelled is not None:
            return self._label_posterior()
        kept = self.particles.score > EXCLUDED / 2
        if not bool(kept.any()):
            raise InferenceError(
                f"none of the {len(self.particles)} particles has mass: every state that was met "
                "breaks a hard constraint. Start from states that hold it: init={site: values}, or "
                "init=posterior of pg.BP."
            )
        x, score = self.particles.x[:, kept], self.particles.score[kept]
        evidence = score.logsumexp(0)
        is_all = self._holds_all_states()
        notes = [] if is_all else warning_of_diffuse(self.network, score, evidence)
        status = f"{self.status.rstrip('.')}. {' '.join(notes)}" if notes else self.status
        return DiscreteParticles(
            self.graph,
            x,
            score - evidence,
            converged=self.converged,
            status=status,
            history=self.history,
            summed_out=[(c.nodes, c.log_probs(x)) for c in self._conditionals],
            log_evidence=evidence.to(self.graph.dtype),
            evidence_kind="exact" if is_all else "lower bound",
        )

    def _label_posterior(self) -> LabelParticles:
        score = self.labellings.score.clone()  # a tensor of inference mode takes no derivatives
        evidence = score.logsumexp(0)
        still = warning_of_gain(score.sort(descending=True).values, evidence)
        note = f"{still} Raise num_particles until they add little." if still else ""
        return LabelParticles(
            self.graph,
            self.labellings.labels(),
            (score - evidence).to(self.graph.dtype),
            converged=self.converged,
            status=f"{self.status.rstrip('.')}. {note}" if note else self.status,
            history=self.history,
            log_evidence=evidence.to(self.graph.dtype),
            evidence_kind="lower bound",
        )

    def _holds_all_states(self) -> bool:
        return math.log(len(self.particles)) >= self.network.log_num_states - 1e-9

    def remedy(self) -> str:
        return "The bound still grows: raise num_steps."

    # ------------------------------------------------------------------ checkpoints
    def carried(self) -> dict[str, Any]:
        if self._labelled is not None:
            return {"labels": self.labellings.labels(), **self._stages()}
        return {"x": self.particles.x, "score": self.particles.score, **self._stages()}

    def restore(self, state: Mapping[str, Any]) -> None:
        if self._labelled is not None:
            self.labellings = Labellings(self._labelled, state["labels"])
            self._restore_stages(state)
            return
        x = state["x"].to(self.network.cards.device)
        self.particles = Particles(x, state["score"].to(x.device), self.hashes(x))
        self._restore_stages(state)

    def _stages(self) -> dict[str, Any]:
        """Where the sequence of moves stands, and the random numbers of splits."""
        return {
            "stage": self._stage,
            "is_last": self._is_last,
            "can_split": self._can_split,
            "generator": self.generator.get_state(),
        }

    def _restore_stages(self, state: Mapping[str, Any]) -> None:
        self._stage, self._is_last = int(state["stage"]), bool(state["is_last"])
        self._can_split = bool(state["can_split"])
        self.generator.set_state(state["generator"].cpu())
