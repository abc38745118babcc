"""Whether a posterior is too diffuse for so many particles.

K particles exceed the best single state by at most log K. Where a product of marginals, mean field,
has the better bound, or where the worse half of the particles still adds much, no affordable
number of particles will do, and the engine says which others will. The mass of all states tells
more, on forests of pairs by one pass of messages, elsewhere by elimination where that is cheap:
particles that crowd one of many places add little to each other, and with hard constraints mean
field has no bound.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrograph.errors import UnsupportedFactor
from pyrograph.graph import FactorGraph
from pyrograph.graph.forest import is_forest
from pyrograph.infer.dpvi.network import Network
from pyrograph.infer.message_passing.network.build import build
from pyrograph.infer.message_passing.network.evidence import log_evidence
from pyrograph.infer.message_passing.sweeps.tree import applies, exact_messages

#: What the worse half of the particles may add to the bound, in nats. On the alarm network, with 0
#: to 30 nodes observed, runs above it missed 40 % of the evidence and more, others at most 22 %.
LARGE_GAIN = 0.1
#: What particles may miss of a mass that is known, in nats: half of it.
MISSED = math.log(2.0)
#: A share of the mass from which on more particles may do.
WITHIN_REACH = 0.01
#: Steps of mean field, and how much of the new marginals each takes.
STEPS, DAMPING = 100, 0.5


def warning_of_diffuse(
    graph: FactorGraph,
    network: Network,
    score: Tensor,
    bound: Tensor,
    are_best: bool,
    num_empty: int = 0,
) -> list[str]:
    """What to say, if anything.

    Args:
        graph: of the program; network: of the nodes that are not summed out.
        score: ``[K]``, falling.
        are_best: whether no K states have more mass.
        num_empty: particles that no state with mass was found for.
    """
    mass, engine = log_mass_of_forest(graph), "pg.BP"
    if mass is None:
        mass, engine = network.log_mass, "pg.circuits.compile_graph"
    if mass is not None and mass > float(bound) + MISSED:
        share = math.exp(float(bound) - mass)
        more = ", or raise num_particles" if share >= WITHIN_REACH else ""
        elsewhere = ", the best there are" if are_best else ", or they are elsewhere"
        return [
            f"The particles have {share:.2g} of the mass of all states, whose log is {mass:.6g}: "
            f"the posterior is too diffuse for so few{elsewhere}. Take "
            f"{engine}, which is exact on this program{more}."
        ]
    if mass is not None and mass <= float(bound) + LARGE_GAIN:
        return []  # next to nothing is missed, however the particles share it
    field = mean_field_bound(network)
    advice = (
        "The posterior is too diffuse for so few particles: take marginals and evidence of pg.BP, "
        "pg.TRW (an upper bound) or pg.VMP (a lower one)."
    )
    if field is not None and field > float(bound) + WITHIN_REACH:
        return [f"The mean-field bound is higher, {field:.6g} against {float(bound):.6g}. {advice}"]
    if num_empty:
        met, told = f"states with mass than these {len(score)} were", "these may be all of them"
        if len(score) == 1:
            met, told = "state with mass than this one was", "it may be the only one"
        return [f"No other {met} met, for {num_empty} more particles: {told}."]
    still = warning_of_gain(score, bound)
    return [f"{still} {advice}"] if still else []


def warning_of_gain(score: Tensor, bound: Tensor) -> str | None:
    """Whether particles still add much.

    Args:
        score: ``[K]``, falling.
    """
    half = (len(score) + 1) // 2
    gain = float(bound - score[:half].logsumexp(0))
    if len(score) < 2 or gain <= LARGE_GAIN:
        return None
    return f"The worse {len(score) - half} of {len(score)} particles still add {gain:.2g} nats."


@torch.no_grad()
def log_mass_of_forest(graph: FactorGraph) -> float | None:
    """Of all states, by belief propagation; None where factors close cycles, or are of more than
    two nodes."""
    pairs = [group.scope for group in graph.factors if group.arity > 1]
    if any(scope.shape[1] > 2 for scope in pairs) or not is_forest(pairs, graph.num_nodes):
        return None
    graph = graph.in_double()  # as the particles' scores are summed
    try:
        network = build(graph, lambda group: graph.constant.new_ones(group.num_factors))
    except UnsupportedFactor:  # larger tables than messages are sent through
        return None
    if not applies(network):
        return None
    messages = exact_messages(network) if network.blocks else []
    return float(log_evidence(network, messages, network.beliefs_of(messages)))


def mean_field_bound(network: Network) -> float | None:
    """The best bound of a product of marginals on the way of a damped iteration from uniform ones;
    None where a table has zeros. Every product gives a bound, so nothing has to converge."""
    if network.has_zeros:
        return None
    most = int(network.cards.max())
    state = torch.arange(most, device=network.cards.device)
    is_state = state < network.cards.unsqueeze(1)
    log_q = torch.where(is_state, 0.0, -torch.inf).double().log_softmax(1)
    best = -math.inf
    for _ in range(STEPS):
        q = log_q.exp()
        push = torch.zeros_like(q)
        energy = network.constant
        for group in network.tables:
            messages, mean = _expected(group.values, [q[s] for s in group.scope.unbind(1)])
            energy = energy + mean
            for slot, message in zip(group.scope.unbind(1), messages, strict=True):
                padded = torch.nn.functional.pad(message, (0, most - message.shape[1]))
                push.index_add_(0, slot, padded)
        entropy = -(q * torch.where(is_state, log_q, 0.0)).sum()
        value = float(energy + entropy)
        if value <= best + 1e-9:
            break
        best = max(best, value)
        mixed = (1 - DAMPING) * torch.where(is_state, log_q, 0.0) + DAMPING * push
        log_q = torch.where(is_state, mixed, -torch.inf).log_softmax(1)
    return best


def _expected(values: Tensor, beliefs: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """E log f given each slot's state, ``[E, c]`` of every slot, and the sum of E log f."""
    cards = values.shape[1:]
    beliefs = [q[:, :c] for q, c in zip(beliefs, cards, strict=True)]
    out = []
    for own in range(len(cards)):
        value = values
        # from both ends towards the own slot, so that nothing is copied
        for q in reversed(beliefs[own + 1 :]):
            value = torch.bmm(value.reshape(len(q), -1, q.shape[1]), q.unsqueeze(2))
        for q in beliefs[:own]:
            value = torch.bmm(q.unsqueeze(1), value.reshape(len(q), q.shape[1], -1))
        out.append(value.reshape(len(values), cards[own]))
    return out, (out[0] * beliefs[0]).sum()
