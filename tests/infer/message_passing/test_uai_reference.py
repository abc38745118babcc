"""Belief propagation on the files of the UAI competition ends where a plain reference ends.

The reference is damped loopy belief propagation in NumPy, written down from the equations of
Kschischang, Frey & Loeliger (2001): log messages for tables of any arity, all at once for tables
of one shape, evidence cut out of the tables. Where both settle, from the same start, the marginals
must agree. Where the reference does not, or there are several fixed points, the library's messages
stand still under the reference's own update.

    pytest tests/infer/message_passing/test_uai_reference.py -s

prints who settled, and after how many sweeps.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

import pyrograph as pg
from pyrograph.datasets import DiscreteModel, read_uai
from pyrograph.errors import ConvergenceWarning
from pyrograph.infer.message_passing.discrete.states import by_slot

NAMES = (
    *("Grids_11", "Grids_13", "Grids_15"),
    *("Segmentation_11", "Segmentation_12", "Segmentation_13"),
    *("Promedus_22", "Promedus_24", "Promedus_30", "Pedigree_11", "CSP_12", "DBN_11"),
    *("ObjectDetection_28", "ObjectDetection_34", "linkage_16", "Alchemy_11"),
)
#: Where the two end at one fixed point. Pedigree_11 has several: the ends differ, and each is one.
SAME = set(NAMES) - {"Grids_11", "Grids_13", "Grids_15", "Pedigree_11", "linkage_16"}
#: As parameters: one that takes a minute or two is among the slow tests.
FILES = [pytest.param(n, marks=pytest.mark.slow) if n == "linkage_16" else n for n in NAMES]
SWEEPS, DAMPING, SETTLED = 1500, 0.5, 1e-9
#: Largest difference of marginals, and of a belief from its image under the reference's update.
AGREE = 1e-5


def log_sum(value: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Log of the sum of exponentials; minus infinity where there is nothing to sum."""
    peak = value.max(axes, keepdims=True, initial=-np.inf)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(value - peak).sum(axes)) + np.squeeze(peak, axes)


def normalised(log_value: np.ndarray) -> np.ndarray:
    """Rows that sum to one."""
    return log_value - log_sum(log_value, (1,))[:, None]


@dataclass
class Alike:
    """Tables of one shape: ``[E, c_1, ..., c_k]`` log values and ``[E, k]`` variables."""

    scopes: np.ndarray
    tables: np.ndarray


@dataclass
class Reference:
    """Damped loopy belief propagation; beliefs and messages are padded to the most states."""

    model: DiscreteModel
    groups: list[Alike] = field(init=False)

    def __post_init__(self) -> None:
        cards = np.array(self.model.cardinalities)
        self.width = int(cards.max())
        self.absent = np.arange(self.width) >= cards[:, None]
        by_shape: dict[tuple[int, ...], list] = {}
        for scope, table in zip(self.model.scopes, self.model.log_tables):
            seen = tuple(self.model.evidence.get(v, slice(None)) for v in scope)
            left = [v for v in scope if v not in self.model.evidence]
            if left:
                order = np.argsort(left)  # factors' beliefs have their nodes in ascending order
                left, value = [left[k] for k in order], table.numpy()[seen].transpose(order)
                by_shape.setdefault(value.shape, []).append((left, value))
        self.groups = [
            Alike(np.array([s for s, _ in mine]), np.stack([t for _, t in mine]))
            for mine in by_shape.values()
        ]

    @property
    def free(self) -> list[int]:
        return [v for v in range(self.model.num_variables) if v not in self.model.evidence]

    def start(self) -> list[list[np.ndarray]]:
        """Messages ``[E, c_i]`` for every slot of every group, which say nothing yet; those of
        tables of one variable never change."""
        return [
            [normalised(g.tables)]
            if g.tables.ndim == 2
            else [np.zeros((len(g.tables), c)) for c in g.tables.shape[1:]]
            for g in self.groups
        ]

    def beliefs(self, messages: list[list[np.ndarray]]) -> np.ndarray:
        """Sums of the messages into every variable, ``[V, width]``, not normalised."""
        total = np.where(self.absent, -np.inf, 0.0)
        for group, sent in zip(self.groups, messages):
            for slot, message in enumerate(sent):
                columns = np.arange(message.shape[1])
                np.add.at(total, (group.scopes[:, slot, None], columns), message)
        return total

    def update(self, messages: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
        """Undamped messages, from all others of the sweep before."""
        finite, zeros = [], []
        for sent in messages:
            finite.append([np.where(np.isneginf(m), 0.0, m) for m in sent])
            zeros.append([np.isneginf(m).astype(float) for m in sent])
        total = np.where(self.absent, 0.0, self.beliefs(finite))
        # how many messages exclude a state: a cavity leaves its own out without dividing by zero
        count = np.where(self.absent, 0.0, self.beliefs(zeros))
        out = []
        for group, sent, excluded in zip(self.groups, finite, zeros):
            arity = group.scopes.shape[1]
            cavities = []
            for slot, (m, z) in enumerate(zip(sent, excluded)):
                nodes = group.scopes[:, slot]
                c = m.shape[1]
                others = np.where(count[nodes, :c] - z > 0.5, -np.inf, total[nodes, :c] - m)
                cavities.append(others)
            new = []
            for slot in range(arity):
                value = group.tables
                for other, n in enumerate(cavities):
                    if other != slot:
                        shape = [1] * (arity + 1)
                        shape[0], shape[other + 1] = n.shape
                        value = value + n.reshape(shape)
                axes = tuple(k + 1 for k in range(arity) if k != slot)
                new.append(normalised(log_sum(value, axes) if axes else value))
            out.append(new)
        return out

    def marginals(self, messages: list[list[np.ndarray]]) -> np.ndarray:
        """``[V, width]`` probabilities; of observed variables meaningless."""
        return np.exp(normalised(self.beliefs(messages)))

    def run(self, messages: list[list[np.ndarray]], sweeps: int) -> tuple[list, int | None]:
        """Messages at the end, and the sweep at which they settled, None if they did not."""
        for sweep in range(1, sweeps + 1):
            moved, following = 0.0, []
            for old, new in zip(messages, self.update(messages)):
                mixed = []
                for a, b in zip(old, new):
                    moved = max(moved, float(np.abs(np.exp(a) - np.exp(b)).max()))
                    both = np.isfinite(a) & np.isfinite(b)
                    kept = np.where(both, a, 0.0)
                    said = np.where(both, b, 0.0)
                    mixed.append(np.where(both, DAMPING * kept + (1 - DAMPING) * said, b))
                following.append(mixed)
            messages = following
            if moved < SETTLED:
                return messages, sweep
        return messages, None


def library(model: DiscreteModel, **options):
    """The engine, its posterior, and whether it warned that it had not settled."""
    engine = pg.BP(model, progress=False, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        posterior = engine.run()
    return engine, posterior, any(issubclass(w.category, ConvergenceWarning) for w in caught)


def messages_of(engine, model: DiscreteModel, reference: Reference) -> list[list[np.ndarray]]:
    """The library's messages in the reference's order."""
    out = reference.start()
    place = {
        tuple(scope): (k, e)
        for k, g in enumerate(reference.groups)
        for e, scope in enumerate(g.scopes)
    }
    assert len(place) == sum(len(g.scopes) for g in reference.groups)  # no two of one scope
    for (group, index), sent in zip(engine.network.members, engine.messages):
        by_factor = [normalised(m.numpy()) for m in by_slot(sent)]
        for e, row in enumerate(group.scope[index].tolist()):
            variables = [model.variable(*engine.graph.nodes[v]) for v in row]
            k, at = place[tuple(sorted(variables))]
            for slot, v in enumerate(variables):
                out[k][sorted(variables).index(v)][at] = by_factor[slot][e]
    return out


def distance(model, posterior, probs: np.ndarray) -> float:
    """Largest difference of a marginal from those of ``[V, width]``."""
    found = model.marginals(posterior)
    free = [v for v in range(model.num_variables) if v not in model.evidence]
    return max(float(np.abs(found[v].numpy() - probs[v, : len(found[v])]).max()) for v in free)


def assert_it_ended_well(model, reference, messages, engine, posterior):
    """At the reference's marginals, or where the reference's own update moves nothing."""
    if messages is not None and distance(model, posterior, reference.marginals(messages)) < AGREE:
        return
    here = messages_of(engine, model, reference)
    assert distance(model, posterior, reference.marginals(here)) < AGREE
    excluded = np.isneginf(reference.beliefs(here))  # what is said of these states is no matter
    for group, old, new in zip(reference.groups, here, reference.update(here)):
        for slot, pair in enumerate(zip(old, new)):
            out = excluded[group.scopes[:, slot], : pair[0].shape[1]]
            a, b = (np.exp(normalised(np.where(out, -np.inf, m))) for m in pair)
            assert np.abs(a - b).max() < AGREE


@functools.cache
def reference_of(name: str) -> tuple[DiscreteModel, Reference, list, int | None]:
    """The file, the reference on it, its messages at the end and when they settled."""
    model = read_uai(name)
    reference = Reference(model)
    return model, reference, *reference.run(reference.start(), SWEEPS)


@pytest.mark.parametrize("name", FILES)
def test_it_ends_at_the_reference_or_at_another_fixed_point_of_its_update(name, data_root):
    model, reference, messages, settled = reference_of(name)
    engine, posterior, warned = library(model)
    print(f"{name:19} reference {settled or 'unsettled'!s:>9}, BP {engine.num_done:4d}", end=" ")
    print("settled" if posterior.converged else "unsettled")
    assert posterior.converged and not warned
    assert_it_ended_well(model, reference, messages if settled else None, engine, posterior)
    if name in SAME:
        assert settled and distance(model, posterior, reference.marginals(messages)) < AGREE


@pytest.mark.parametrize("name", FILES)
def test_with_the_damping_of_the_reference_it_settles_where_the_reference_does(name, data_root):
    model, reference, messages, settled = reference_of(name)
    steps = SWEEPS if settled else 300
    engine, posterior, warned = library(model, damping=DAMPING, num_steps=steps)
    assert posterior.converged == (settled is not None) and warned == (settled is None)
    if settled:
        assert_it_ended_well(model, reference, messages, engine, posterior)
    if name in SAME:
        assert distance(model, posterior, reference.marginals(messages)) < AGREE


def test_the_reference_is_exact_on_a_chain():
    """So that it can be trusted where no sum over all states can be taken."""
    torch.manual_seed(0)
    tables = [torch.randn(3), torch.randn(3, 2), torch.randn(4, 2)]
    model = DiscreteModel((3, 2, 4), ((0,), (0, 1), (2, 1)), tuple(tables))
    joint = (tables[0][:, None, None] + tables[1][:, :, None] + tables[2].T[None]).exp()
    reference = Reference(model)
    messages, settled = reference.run(reference.start(), 200)
    found = reference.marginals(messages)
    assert settled
    for v, c in enumerate((3, 2, 4)):
        expected = joint.sum([k for k in range(3) if k != v]) / joint.sum()
        assert np.abs(found[v, :c] - expected.numpy()).max() < 1e-8
