"""From the particles of DPVI to a posterior: weights, the bound as evidence, and what to say of it.

log Z >= log sum_k f(x_k),    w_k = f(x_k) / sum_j f(x_j)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyrograph.errors import InferenceError, ZeroMass
from pyrograph.graph import FactorGraph
from pyrograph.infer.base import with_notes
from pyrograph.infer.dpvi.diffuse import warning_of_diffuse, warning_of_gain
from pyrograph.infer.dpvi.labellings.labelled import Labellings
from pyrograph.infer.dpvi.network import Network
from pyrograph.infer.dpvi.particles import Particles
from pyrograph.infer.dpvi.summed_out import Conditionals
from pyrograph.posterior.discrete_particles import DiscreteParticles
from pyrograph.posterior.label_particles import LabelParticles


def posterior_of_states(
    graph: FactorGraph,
    network: Network,
    found: Particles,
    conditionals: Sequence[Conditionals],
    is_all: bool,
    are_best: bool,
    **run: Any,
) -> DiscreteParticles:
    """Of joint states of a graph's nodes; those without mass are left out.

    Args:
        network: of the nodes that are not summed out; conditionals: of those that are.
        is_all: whether these are all joint states; are_best: whether no others have more mass.
        run: how it went, see :class:`Posterior`.

    Raises:
        ZeroMass: there is none with mass: all were looked at, or the best ones are known, or a node
            has none by its own factors.
        InferenceError: no state with mass was found.
    """
    kept = network.has_mass(found.score)
    if not bool(kept.any()):
        if is_all or are_best or network.excludes_a_node:
            raise ZeroMass("every joint state breaks a hard constraint: the evidence is zero.")
        raise InferenceError(
            f"none of the {len(found)} particles has mass: every state that was met "
            "breaks a hard constraint. Start pg.DPVI from states that hold it: "
            "init={site: values}, or init=posterior of pg.BP."
        )
    is_all |= are_best and not bool(kept.all())  # all others are zeros
    x, score = found.x[:, kept], found.score[kept]
    evidence = score.logsumexp(0)
    notes = []
    if not is_all:
        num_empty = int((~kept).sum())
        notes = warning_of_diffuse(graph, network, score, evidence, are_best, num_empty)
    return DiscreteParticles(
        graph,
        x,
        score - evidence,
        summed_out=[(c.nodes, c.log_probs(x)) for c in conditionals],
        log_evidence=evidence.to(graph.dtype),
        evidence_kind="exact" if is_all else "lower bound",
        **run | {"status": with_notes(run["status"], notes)},
    )


def posterior_of_labels(found: Labellings, is_all: bool, **run: Any) -> LabelParticles:
    """Of labellings.

    Args:
        is_all: whether these are all partitions.
        run: how it went, see :class:`Posterior`.
    """
    program = found.program
    score = found.score.clone()  # a tensor of inference mode takes no derivatives
    evidence = score.logsumexp(0)
    still = None if is_all else warning_of_gain(score.sort(descending=True).values, evidence)
    notes = [f"{still} Raise num_particles until they add little."] if still else []
    return LabelParticles(
        program,
        found.labels(),
        (score - evidence).to(program.dtype),
        log_evidence=evidence.to(program.dtype),
        evidence_kind="exact" if is_all else "lower bound",
        **run | {"status": with_notes(run["status"], notes)},
    )
