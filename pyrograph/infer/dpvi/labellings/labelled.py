"""Moves of DPVI on labellings: one label at a time, against statistics of clusters.

A particle is a labelling of every site. Particles are distinct as partitions: clusters have no
names. A hash of their clusters, whatever slots these have, says whether two are equal.

Source: Saeedi, Kulkarni, Mansinghka & Gershman (2017), Algorithm 1 and eq (16)-(19).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrograph.distributions.incremental import Clusters, keep
from pyrograph.distributions.labels import in_order
from pyrograph.distributions.seating import CLOSED, Seating
from pyrograph.errors import NonFiniteDensity, ShapeMismatch
from pyrograph.infer.dpvi.labellings.forward import ForwardPass
from pyrograph.infer.dpvi.labellings.forward_state import Sums, is_covered
from pyrograph.infer.dpvi.labellings.labelled_program import LabelledProgram
from pyrograph.infer.dpvi.labellings.screening import margin, visit
from pyrograph.infer.dpvi.particles import first_of_equal, highest

#: Hashes of sites are told apart by powers of this.
ODD = 0x1E3779B97F4A7C15


class Labellings:
    """K distinct labellings with their scores.

    Args:
        program: the priors and data.
        labels: ``{site: [K, n]}``; None starts with nobody in.
    """

    def __init__(self, program: LabelledProgram, labels: Mapping[str, Tensor] | None = None):
        self.program = program
        if labels is None:
            nobody = torch.zeros(1, 0, dtype=torch.int64, device=program.device)
            labels = dict.fromkeys(program.sites, nobody)
        labels = {name: z.to(program.device) for name, z in labels.items()}  # of saved states too
        self.elements = program.elements
        self._clusters = program.clusters(labels)
        self._score = torch.zeros(0, device="cpu")
        #: Elements come in by it, until anything else is asked.
        self._pass: ForwardPass | None = None
        self._sums: Sums | None = None
        self._may_pass = True
        self._rescore_clusters()
        self._refuse_nan()

    def __len__(self) -> int:
        return len(self.score)

    @property
    def clusters(self) -> dict[str, Clusters]:
        """Statistics of every site."""
        if self._pass is not None:
            self._end_pass()
        return self._clusters

    @property
    def score(self) -> Tensor:
        """``[K]``."""
        return self._score if self._pass is None else self._pass.score

    @score.setter
    def score(self, score: Tensor) -> None:
        if self._pass is not None:
            self._end_pass()
        self._score = score

    @property
    def bound(self) -> Tensor:
        # one pass over the scores, where logsumexp takes several
        score = self.score
        return score[0] - score.log_softmax(0)[0]

    @property
    def bound_so_far(self) -> float:
        """The bound as a number, without a tensor in between."""
        return float(self.bound) if self._pass is None else self._pass.bound

    def labels(self, as_they_are: bool = False) -> dict[str, Tensor]:
        """``{site: [K, n]}``, clusters by first appearance or as they are numbered here; -1 of
        elements that are not in."""
        if self._pass is None:
            labels = {name: c.labels for name, c in self._clusters.items()}
        else:
            labels = {name: self._pass.labels() for name in self._clusters}
        return {n: v.clone() if as_they_are else in_order(v) for n, v in labels.items()}

    @torch.inference_mode()
    def rescore(self) -> None:
        """Scores and statistics from the labels, of labellings that are complete or empty.

        Raises:
            NonFiniteDensity: a score is no number.
        """
        if self._pass is not None:
            self._pass.rescore(self.program.constant)
        else:
            if self._is_complete():
                for clusters in self._clusters.values():
                    clusters.refresh()
            self._rescore_clusters()
        self._refuse_nan()

    def _rescore_clusters(self) -> None:
        """From statistics that are fresh."""
        if self._is_complete():
            self._score = self.program.score(self._clusters)
        else:
            some = next(iter(self._clusters.values()))
            constant = self.program.constant.double().to(some.labels.device)
            self._score = constant.expand(len(some.labels))

    def _is_complete(self) -> bool:
        return all(all(c.seating.inside) for c in self._clusters.values())

    def _refuse_nan(self) -> None:
        if bool(self.score.isnan().any()):
            raise self._no_density("NaN")

    def _no_density(self, value: str) -> NonFiniteDensity:
        """What to raise where labels have a log density of this value."""
        sites = ", ".join(f'"{name}"' for name in self.program.sites)
        data = ", ".join(f'"{n}"' for n in (*self.program.mixtures, *self.program.relations))
        return NonFiniteDensity(
            f"labels of {sites} have log density {value}. Look at the data {data}: numbers so far "
            "apart, or so large, that double precision cannot hold their squares; rescale them."
        )

    # ------------------------------------------------------------------ filtering
    @torch.inference_mode()
    def begin_pass(self, slots: int = 0) -> None:
        """Elements come in next: prepare for it where a pass has a form of its own, with so many
        slots if not 0."""
        ((_, clusters), *others) = self._clusters.items()
        if self._pass is not None or not self._may_pass or others or not is_covered(clusters):
            return
        if self._sums is None:
            self._sums = Sums(clusters)
        self._pass = ForwardPass(self._sums, clusters.labels, self._score, slots)

    @property
    def layout(self) -> dict[str, Any]:
        """How labellings stand while elements come in. The number of slots decides which of equal
        scores is first, and how sums are rounded."""
        if self._pass is None:
            slots = {name: c.capacity for name, c in self._clusters.items()}
            return {"slots": slots, "may_pass": self._may_pass}
        slots = dict.fromkeys(self._clusters, self._pass.slots)
        return {"slots": slots, "may_pass": True, "in_pass": self._pass.unshifted}

    def lay_out(self, layout: Mapping[str, Any]) -> None:
        """Let the same labellings stand like this."""
        self._may_pass = bool(layout["may_pass"])
        if "in_pass" in layout:
            self.begin_pass(*map(int, layout["slots"].values()))
        if self._pass is not None:
            self._pass.hold(layout["in_pass"])
            return
        for name, clusters in self.clusters.items():
            clusters.seating.capacity = int(layout["slots"][name])
        for clusters in self.clusters.values():
            clusters.refresh()

    def _end_pass(self) -> None:
        """Its labellings, in the pool of shared clusters."""
        ((name, clusters),) = self._clusters.items()
        labels, self._score, self._pass = self._pass.labels(), self._pass.score, None
        self._clusters = {name: Clusters(Seating(labels, labels.shape[1]), clusters.by_cluster)}

    @torch.inference_mode()
    def take_in(self, name: str, i: int, most: int) -> bool:
        """Every labelling is extended by every cluster of element i, and the best are kept;
        whether all were. Extensions of distinct labellings are distinct.

        Raises:
            NonFiniteDensity: a score is no number, or no label is possible.
        """
        if self._pass is None:
            self.begin_pass()
        elif self._pass.is_large:
            self._may_pass = False
            self._end_pass()
        return self._pass.take_in(i, most) if self._pass else self._take_in(name, i, most)

    def _take_in(self, name: str, i: int, most: int) -> bool:
        clusters = self.clusters[name]
        seating = clusters.seating
        seating.hashes = None  # nobody asks for them before all are in
        score = self.score.unsqueeze(1) + clusters.scores(i)
        count, width = score.shape
        # an element that finds others has two extensions at least, so that not all can be kept
        too_many = count == most and seating.num_inside > 0
        best, chosen = score.view(-1).topk(min(most if too_many else most + 1, count * width))
        possible = best.size(0)
        top = float(best[0])  # NaN if any is
        if not top > -torch.inf:
            raise self._no_density(f"{top} where element {i} comes in")
        if float(best[-1]) == -torch.inf:
            possible = int((best > -torch.inf).sum())
        kept = min(most, possible)
        if kept < best.size(0):
            best, chosen = best[:kept], chosen[:kept]
        parent = chosen // width
        keep(self.clusters.values(), parent)
        clusters.put_in(i, chosen - width * parent)
        self.score = best
        return not too_many and possible <= most

    def filtered(self, elements: Sequence[tuple[str, int]], most: int) -> Labellings:
        """The same after all elements have come in, in this order."""
        for name, i in elements:
            self.take_in(name, i, most)
        self.rescore()
        return self

    # ------------------------------------------------------------------ moves
    @torch.inference_mode()
    def move(self, name: str, i: int, most: int) -> bool:
        """The best distinct labellings among all that differ from the present ones in element i;
        whether others than before.

        Raises:
            NonFiniteDensity: a score is no number, or no label is possible.
        """
        clusters = self.clusters[name]
        seating = clusters.seating
        before = seating.slot_of(i)
        clusters.take_out(i)
        change = clusters.scores(i).double()  # [K, C]
        # where element i was alone its slot is free now, and the first free one stands for it
        was_alone = seating.rows.gather(1, before.unsqueeze(1)).squeeze(1) <= CLOSED
        stay = torch.where(was_alone, seating.open(), before)
        rest = self.score - change.gather(1, stay.unsqueeze(1)).squeeze(1)
        bases = first_of_equal(self._key()).nonzero().squeeze(1)
        flat = (rest[bases].unsqueeze(1) + change[bases]).flatten()
        top = float(flat.amax())  # NaN if any is
        if not top > -torch.inf:
            raise self._no_density(f"{top} where element {i} moves")
        chosen = highest(flat, most)
        score = flat[chosen]
        if float(score[-1]) == -torch.inf:
            chosen = chosen[score > -torch.inf]
            score = flat[chosen]
        width = change.shape[1]
        parent = chosen // width
        slot = chosen - width * parent
        parent = bases[parent]
        changed = not self._keep(parent) or not torch.equal(slot, stay)
        clusters.put_in(i, slot)
        self.score = score
        return changed

    @torch.inference_mode()
    def sweep(self, most: int) -> None:
        """Every element once (Algorithm 1)."""

        def may_move(gain: Tensor) -> Tensor:
            if self.score.size(0) < most:
                return torch.ones_like(gain[0, 0], dtype=torch.bool)
            best, least = self.score.unsqueeze(1) + gain.amax(1), self.score.min()
            return best.amax(0) > least - margin(gain) * (1 + least.abs())

        visit(self.elements, self.clusters, lambda name, i: self.move(name, i, most), may_move)

    @torch.inference_mode()
    def climb(self) -> None:
        """Every label in turn takes its best cluster, in each labelling by itself; equal ones may
        come out, and scores are left behind."""

        def move(name: str, i: int) -> bool:
            clusters = self.clusters[name]
            before = clusters.seating.slot_of(i)
            clusters.take_out(i)
            best = clusters.scores(i).argmax(1)
            clusters.put_in(i, best)
            return not torch.equal(best, before)

        visit(self.elements, self.clusters, move, lambda gain: gain.amax((0, 1)) > -margin(gain))

    def select(self, index: Tensor) -> Labellings:
        """A copy of these labellings, by falling score."""
        order = self.score.argsort(descending=True, stable=True)[index]
        labels = {name: c.labels[order] for name, c in self.clusters.items()}
        return Labellings(self.program, labels)

    def _keep(self, parent: Tensor) -> bool:
        """Continue from these labellings; whether they are the present ones as they are."""
        count = len(next(iter(self.clusters.values())).labels)
        if len(parent) == count and torch.equal(parent, torch.arange(count, device=parent.device)):
            return True
        keep(self.clusters.values(), parent)
        return False

    def _key(self) -> Tensor:
        """``[2, K]``, equal for equal partitions of all sites."""
        key = torch.zeros((), dtype=torch.int64, device=self.program.device)
        for clusters in self.clusters.values():
            key = ODD * key + clusters.seating.key()
        return key

    def within(self, program: LabelledProgram) -> Labellings:
        """The same labels of the first elements in a longer program, whose further elements are
        out; their scores, in falling order, are those that its statements give them.

        Raises:
            ShapeMismatch: a site with elements that are in is missing in the longer program.
        """
        labels = self.labels(as_they_are=True)
        for name, z in labels.items():
            if name not in program.sites and bool((z >= 0).any()):
                # labellings that differ there alone would be counted twice
                raise ShapeMismatch(
                    f'labels "{name}" are in, and no site of the longer program, whose labels are '
                    f"{', '.join(program.sites)}: keep the site, or start a new engine"
                )
        nobody = torch.zeros(len(self), 0, dtype=torch.int64, device=program.device)
        found = Labellings(program, {name: labels.get(name, nobody) for name in program.sites})
        score, order = program.score(found.clusters).sort(descending=True, stable=True)
        keep(found.clusters.values(), order)
        found.score = score
        return found

    def starting_from(self, values: Mapping[str, Tensor]) -> Labellings:
        """Labellings ``{site: [M, n]}`` of the same program.

        Raises:
            ShapeMismatch: a site is missing or has another shape, or not as many labellings as
                another.
        """
        return Labellings(self.program, self._checked(values))

    def joined(self, *others: Mapping[str, Tensor]) -> Labellings:
        """These labellings and others, ``{site: [M, n]}`` each.

        Raises:
            ShapeMismatch: see :meth:`starting_from`.
        """
        every = [self.labels(), *map(self._checked, others)]
        labels = {name: torch.cat([part[name] for part in every]) for name in every[0]}
        return Labellings(self.program, labels)

    def _checked(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Labels of every site, clusters by first appearance."""
        for name, site in self.program.sites.items():
            found = tuple(values[name].shape) if name in values else "none"
            if name not in values or found[1:] != site.event_shape:
                raise ShapeMismatch(
                    f'labels of site "{name}" have shape {found}; expected [M, '
                    f"{site.event_shape[0]}]"
                )
        counts = {name: len(values[name]) for name in self.program.sites}
        if len(set(counts.values())) > 1:
            many = ", ".join(f'{count} of "{name}"' for name, count in counts.items())
            raise ShapeMismatch(f"there are labellings {many}: M must be the same of every site")
        return {n: in_order(values[n].to(self.program.device)) for n in self.program.sites}

    def distinct(self, most: int) -> Labellings:
        """The best of them, each partition once."""
        first = first_of_equal(self._key()).nonzero().squeeze(1)
        chosen = first[highest(self.score[first], most)]
        labels = {name: c.labels[chosen] for name, c in self.clusters.items()}
        return Labellings(self.program, labels)
