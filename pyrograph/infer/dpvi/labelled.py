"""Moves of DPVI on labellings: one label at a time, against statistics of clusters.

A particle is a labelling of every site. Particles are distinct as partitions: clusters have no
names. A hash says whether two are equal: the sum over clusters of a mixed sum of random numbers of
their elements, whatever slot a cluster has, followed from move to move.

Source: Saeedi, Kulkarni, Mansinghka & Gershman (2017), Algorithm 1 and eq (16)-(19).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pyrograph.errors import ShapeMismatch
from pyrograph.infer.dpvi.labelled_program import LabelledProgram
from pyrograph.infer.dpvi.particles import NUM_HASHES, first_of_equal, highest

#: Multipliers of the mixing function (odd, of Steele, Lea & Flood's generator).
FIRST, SECOND = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def _mixed(total: Tensor) -> Tensor:
    """A hash of 63-bit sums; 0 stays 0, so that empty slots count for nothing."""
    total = total * FIRST
    total = (total ^ (total >> 30)) * SECOND
    return total ^ (total >> 27)


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
        generator = torch.Generator().manual_seed(0)
        self._bits = {
            name: torch.randint(-(2**63), 2**63 - 1, (NUM_HASHES, n), generator=generator)
            for name, n in sizes.items()
        }
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
        return self.score.logsumexp(0)

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
        self._hash = None

    # ------------------------------------------------------------------ moves
    @torch.inference_mode()
    def take_in(self, name: str, i: int, most: int) -> bool:
        """Every labelling is extended by every cluster of element i, and the best are kept;
        whether all were. Extensions of distinct labellings are distinct."""
        score = self.score.unsqueeze(1) + self.clusters[name].scores(i)
        width = score.shape[1]
        best, chosen = score.flatten().topk(min(most + 1, score.numel()))
        possible = int((best > -torch.inf).sum())
        kept = min(most, possible)
        parent = torch.div(chosen[:kept], width, rounding_mode="floor")
        self._keep(parent)
        self.clusters[name].put_in(i, chosen[:kept] - width * parent)
        self.score, self._hash = best[:kept], None
        return kept == possible

    @torch.inference_mode()
    def move(self, name: str, i: int, most: int) -> None:
        """The best distinct labellings among all that differ from the present ones in element i."""
        clusters, bits = self.clusters[name], self._bits[name][:, i].view(-1, 1)
        key, sums = self._hashes()
        own = sums[name]
        before = clusters.labels[:, i].clone()
        clusters.take_out(i)
        change = clusters.scores(i).double()  # [K, C]
        # where element i was alone its slot is free now, and the first free one stands for it
        is_alone = clusters.seating.counts.gather(1, before.unsqueeze(1)).squeeze(1) == 0
        free = (clusters.seating.counts == 0).to(torch.int8).argmax(1)
        stay = torch.where(is_alone, free, before)
        rest = self.score - change.gather(1, stay.unsqueeze(1)).squeeze(1)
        held = own.gather(2, before.expand(NUM_HASHES, -1).unsqueeze(2)).squeeze(2)
        outside = key - _mixed(held) + _mixed(held - bits)
        own.scatter_(2, before.expand(NUM_HASHES, -1).unsqueeze(2), (held - bits).unsqueeze(2))
        bases = first_of_equal(outside).nonzero().squeeze(1)
        flat = (rest[bases].unsqueeze(1) + change[bases]).flatten()
        chosen = highest(flat, most)
        possible = chosen[flat[chosen] > -torch.inf]
        width = change.shape[1]
        parent, slot = bases[torch.div(possible, width, rounding_mode="floor")], possible % width
        self._hash = outside, sums
        self._keep(parent)
        outside, sums = self._hash
        self.clusters[name].put_in(i, slot)
        index = slot.expand(NUM_HASHES, -1).unsqueeze(2)
        held = sums[name].gather(2, index).squeeze(2)
        key = outside - _mixed(held) + _mixed(held + bits)
        sums[name].scatter_(2, index, (held + bits).unsqueeze(2))
        more = self.clusters[name].capacity - sums[name].shape[2]
        if more:
            sums[name] = torch.nn.functional.pad(sums[name], (0, more))
        self.score, self._hash = flat[possible], (key, sums)

    def sweep(self, most: int) -> None:
        """Every element once (Algorithm 1)."""
        for name, i in self.elements:
            self.move(name, i, most)

    @torch.inference_mode()
    def climb(self) -> None:
        """Every label in turn takes its best cluster, in each labelling by itself; equal ones may
        come out, and scores are left behind."""
        for name, i in self.elements:
            clusters = self.clusters[name]
            clusters.take_out(i)
            clusters.put_in(i, clusters.scores(i).argmax(1))
        self._hash = None

    def select(self, index: Tensor) -> Labellings:
        """A copy of these labellings, by falling score."""
        order = self.score.argsort(descending=True, stable=True)[index]
        labels = {name: c.labels[order] for name, c in self.clusters.items()}
        return Labellings(self.program, labels)

    def _keep(self, parent: Tensor) -> None:
        """Continue from these labellings."""
        count = len(next(iter(self.clusters.values())).labels)
        if len(parent) == count and torch.equal(parent, torch.arange(count, device=parent.device)):
            return
        memo: dict = {}
        self.clusters = {name: c.select(parent, memo) for name, c in self.clusters.items()}
        if self._hash is not None:
            key, sums = self._hash
            self._hash = key[:, parent], {name: s[:, parent] for name, s in sums.items()}

    def _hashes(self) -> tuple[Tensor, dict[str, Tensor]]:
        """``[2, K]``, and the sums over clusters ``[2, K, C]`` of every site."""
        if self._hash is None:
            sums = {}
            for name, clusters in self.clusters.items():
                index = clusters.labels.expand(NUM_HASHES, -1, -1)
                bits = self._bits[name].unsqueeze(1).expand(index.shape)
                zeros = index.new_zeros(*index.shape[:2], clusters.capacity)
                sums[name] = zeros.scatter_add(2, index, bits)
            key = sum(_mixed(s).sum(2) for s in sums.values())
            self._hash = key, sums
        return self._hash

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
        key, _ = self._hashes()
        first = first_of_equal(key).nonzero().squeeze(1)
        chosen = first[highest(self.score[first], most)]
        labels = {name: c.labels[chosen] for name, c in self.clusters.items()}
        return Labellings(self.program, labels)


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
