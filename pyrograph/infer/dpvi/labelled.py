"""Moves of DPVI on labellings: one label at a time, against statistics of clusters.

A particle is a labelling of every site. Particles are distinct as partitions: clusters have no
names. A hash of their clusters, whatever slots these have, says whether two are equal.

Source: Saeedi, Kulkarni, Mansinghka & Gershman (2017), Algorithm 1 and eq (16)-(19).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from pyrograph.distributions.incremental import keep
from pyrograph.distributions.seating import CLOSED
from pyrograph.errors import ShapeMismatch
from pyrograph.infer.dpvi.labelled_program import LabelledProgram
from pyrograph.infer.dpvi.particles import first_of_equal, highest

#: Hashes of sites are told apart by powers of this.
ODD = 0x1E3779B97F4A7C15
#: Numbers of gains that are looked at in one go.
SCREENED = 100_000
#: Moves without a change before elements are looked at in one go again.
CALM = 4


class Labellings:
    """K distinct labellings with their scores.

    Args:
        program: the priors and data.
        labels: ``{site: [K, n]}``; None starts with nobody in.

    Attributes:
        score: ``[K]``.
        clusters: statistics of every site.
    """

    def __init__(self, program: LabelledProgram, labels: Mapping[str, Tensor] | None = None):
        self.program = program
        sizes = {name: site.event_shape[0] for name, site in program.sites.items()}
        if labels is None:
            nobody = torch.zeros(1, 0, dtype=torch.int64, device=program.device)
            labels = dict.fromkeys(sizes, nobody)
        #: All elements, sites in step with each other.
        self.elements = [
            (name, i)
            for _, name, i in sorted(
                ((i + 0.5) / n, name, i) for name, n in sizes.items() for i in range(n)
            )
        ]
        self.clusters = program.clusters(labels)
        self.score = torch.zeros(0)
        self.rescore()

    def __len__(self) -> int:
        return len(self.score)

    @property
    def bound(self) -> Tensor:
        # one pass over the scores, where logsumexp takes several
        return self.score[0] - self.score.log_softmax(0)[0]

    def labels(self, as_they_are: bool = False) -> dict[str, Tensor]:
        """``{site: [K, n]}``, clusters by first appearance or as they are numbered here; -1 of
        elements that are not in."""
        return {
            name: c.labels.clone() if as_they_are else in_order(c.labels)
            for name, c in self.clusters.items()
        }

    @torch.inference_mode()
    def rescore(self) -> None:
        """Scores and statistics from the labels, of labellings that are complete or empty."""
        labels = {name: c.labels for name, c in self.clusters.items()}
        if all(bool((v >= 0).all()) for v in labels.values()):
            for clusters in self.clusters.values():
                clusters.refresh()
            self.score = self.program.score(self.clusters).to(torch.float64)
        else:
            some = next(iter(labels.values()))
            self.score = self.program.constant.double().expand(len(some)).to(some.device)

    # ------------------------------------------------------------------ moves
    @torch.inference_mode()
    def take_in(self, name: str, i: int, most: int) -> bool:
        """Every labelling is extended by every cluster of element i, and the best are kept;
        whether all were. Extensions of distinct labellings are distinct."""
        clusters = self.clusters[name]
        seating = clusters.seating
        seating.hashes = None  # nobody asks for them before all are in
        score = self.score.unsqueeze(1) + clusters.scores(i)
        count, width = score.shape
        # an element that finds others has two extensions at least, so that not all can be kept
        too_many = count == most and seating.num_inside > 0
        best, chosen = score.view(-1).topk(min(most if too_many else most + 1, count * width))
        possible = best.size(0)
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

    @torch.inference_mode()
    def move(self, name: str, i: int, most: int) -> bool:
        """The best distinct labellings among all that differ from the present ones in element i;
        whether others than before."""
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
            return best.amax(0) > least - _margin(gain) * (1 + least.abs())

        self._visit(lambda name, i: self.move(name, i, most), may_move)

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

        self._visit(move, lambda gain: gain.amax((0, 1)) > -_margin(gain))

    def _visit(
        self, move: Callable[[str, int], bool], may_move: Callable[[Tensor], Tensor]
    ) -> None:
        """Move every element in turn but those that would stay where they are.

        These are found for many elements at once where scores are sums over clusters, and as long
        as nothing changes.

        Args:
            move: one element of a site; whether anything changed.
            may_move: whether each of B elements might, ``[B]``, from their gains ``[K, C, B]``.
        """
        every, ahead = self.elements, 0
        ((_, clusters), *others) = self.clusters.items()
        if others or clusters.by_particle:
            for name, i in every:
                move(name, i)
            return
        while ahead < len(every):
            count = max(1, SCREENED // clusters.seating.rows.numel())
            block = every[ahead : ahead + count]
            numbers = torch.tensor([i for _, i in block], device=self.program.device)
            ahead += len(block)
            for k in may_move(clusters.gains(numbers)).nonzero().squeeze(1).tolist():
                if move(*block[k]):
                    ahead += k + 1 - len(block)
                    break
            else:
                continue
            # others are likely to follow
            calm = 0
            while ahead < len(every) and calm < CALM:
                calm = 0 if move(*every[ahead]) else calm + 1
                ahead += 1

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
        out. Their score stays, so the statements about them must be the same."""
        labels = self.labels(as_they_are=True)
        found = Labellings(program, labels)
        found.score = self.score - self.program.constant + program.constant
        return found

    def starting_from(self, values: Mapping[str, Tensor]) -> Labellings:
        """Labellings ``{site: [M, n]}`` of the same program.

        Raises:
            ShapeMismatch: a site is missing or has another shape.
        """
        for name, site in self.program.sites.items():
            found = tuple(values[name].shape) if name in values else "none"
            if name not in values or found[1:] != site.event_shape:
                raise ShapeMismatch(
                    f'labels of site "{name}" have shape {found}; expected [M, '
                    f"{site.event_shape[0]}]"
                )
        labels = {n: in_order(values[n].to(self.program.device)) for n in self.program.sites}
        return Labellings(self.program, labels)

    def joined(self, *others: Mapping[str, Tensor]) -> Labellings:
        """These labellings and others, ``{site: [M, n]}`` each."""
        every = [self.labels(), *(self.starting_from(values).labels() for values in others)]
        labels = {name: torch.cat([part[name] for part in every]) for name in every[0]}
        return Labellings(self.program, labels)

    def filtered(self, elements: Sequence[tuple[str, int]], most: int) -> Labellings:
        """The same after all elements have come in, in this order."""
        for name, i in elements:
            self.take_in(name, i, most)
        self.rescore()
        return self

    def distinct(self, most: int) -> Labellings:
        """The best of them, each partition once."""
        first = first_of_equal(self._key()).nonzero().squeeze(1)
        chosen = first[highest(self.score[first], most)]
        labels = {name: c.labels[chosen] for name, c in self.clusters.items()}
        return Labellings(self.program, labels)


def _margin(gain: Tensor) -> float:
    """What rounding could hide: moves this close to a change are made."""
    return torch.finfo(gain.dtype).eps ** 0.5


def in_order(labels: Tensor) -> Tensor:
    """Labels ``[K, n]`` renamed by first appearance: 0, 1, ...; -1 stays."""
    count, n = labels.shape
    if n == 0:
        return labels
    place = torch.arange(n, device=labels.device).expand_as(labels)
    width = int(labels.max()) + 2
    first = torch.full((count, width), n, device=labels.device)
    first = first.scatter_reduce(1, (labels + 1).clamp_min(0), place, "amin")
    first[:, 0] = n  # elements that are out
    rank = first.argsort(1).argsort(1)
    return torch.where(labels < 0, -1, rank.gather(1, labels + 1))
