"""What a run says about itself, and what to do about it."""

from __future__ import annotations

import torch
from torch.distributions import constraints

from pyrograph.beliefs import Gaussian
from pyrograph.graph import FactorGraph
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.densities.checked import FAR
from pyrograph.infer.message_passing.discrete.parity import probes
from pyrograph.infer.message_passing.network.network import Network
from pyrograph.infer.message_passing.nodes.families import Continuous

NO_COVARIANCE = (
    "messages grew until a covariance has no Cholesky factor in this precision. Use damping=0.5, a "
    "smaller alpha (pg.PowerEP), or a tighter prior."
)
NO_EVIDENCE = "The evidence is not known while a cavity is improper."

#: Standard deviations of a logarithm from which the mean of exp(z), e^(sd^2 / 2) times its median,
#: is made by the far tail of z, where a Gaussian is least to be trusted.
WIDE = 2.0


def note_on_wide_scales(graph: FactorGraph, network: Network, beliefs: list) -> str | None:
    """What is to be said of positive sites whose logarithm is Gaussian and wide; None if none is.
    So come out gammas of small shape, whose logarithm has one long tail, downwards."""
    bounded = constraints.greater_than, constraints.greater_than_eq
    positive = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
    for site in graph.sites.values():
        positive[graph.nodes_of(site.name)] = site.width == 1 and isinstance(site.support, bounded)
    for number, (family, belief) in enumerate(zip(network.families, beliefs, strict=True)):
        if not (isinstance(belief, Gaussian) and family.size == 1):
            continue
        touched = torch.zeros(len(family.nodes), dtype=torch.bool, device=graph.device)
        for block in network.blocks:  # other beliefs are Gaussian
            if isinstance(block, QuadratureFactors):
                ports = zip(block.families, block.rows, strict=True)
                for rows in (rows for own, rows in ports if own == number):
                    touched[rows] = True
        counts = touched & positive[family.nodes]
        variance = torch.where(counts, belief.covariance[:, 0, 0], 0.0)
        if bool((variance > WIDE**2).any()):
            name, _ = graph.nodes[int(family.nodes[int(variance.argmax())])]
            return (
                f'The logarithm of "{name}" has a standard deviation of up to '
                f"{float(variance.max().sqrt()):.3g}: its mean and variance hang on the far "
                f'tail of a Gaussian. Trust quantiles, or take family={{"{name}": "gamma"}} where '
                "its factors are those of a rate."
            )
    return None


def notes_on(network: Network, skipped: float) -> list[str]:
    """Sentences on what was not done as it should be.

    Args:
        skipped: updates of the last step that were passed over.
    """
    notes = []
    if skipped:
        notes.append(
            f"{skipped:.0f} updates of the last step were skipped because a cavity was "
            "improper (a site of negative precision outweighs the rest): use a smaller alpha "
            "(pg.PowerEP), or damping=0.5."
        )
    for group in network.probed:
        notes.append(
            f'Factors of "{group.name}" are taken for checks of parity, as they are at '
            f"{len(probes(group.arity)):,} of their 2^{group.arity} states, no others being tried: "
            "the evidence is no bound. Written as a function of one sum over all their nodes, such "
            "as x.sum(-1) % 2, they are known to be checks."
        )
    for group in network.tried:
        notes.append(
            f'Factors of "{group.name}" are taken for products of functions of single nodes, or '
            f"for noisy or, as they are at some of {group.num_entries // group.num_factors:,} "
            "states, no others being tried: the evidence is no bound. Written as a function of one "
            "sum or product over all their nodes, such as 1 - torch.prod(1 - q * z, -1), they are "
            "known to be."
        )
    for block in network.blocks:
        if isinstance(block, QuadratureFactors) and block.too_coarse is not None:
            notes.append(
                f"The quadrature is too coarse for {block.too_coarse}: on other points it "
                "finds another mass or variance, so that those of its nodes may be wrong. A "
                "spike beside a broad part is the usual cause: choose between them by a "
                "discrete site. Or an edge, or a scale far below the width of the beliefs"
                f"{'.' if block.tilted.has_checks else ': raise num_points.'}"
            )
            break
    far = [b.far_zero for b in network.blocks if isinstance(b, QuadratureFactors) and b.far_zero]
    if far:
        notes.append(
            f"{far[0]} is zero further out than {FAR:g} standard deviations of the beliefs, where "
            "its logarithm counts as it does before it falls: that of zero would make the "
            "divergence infinite. Is it one of rounding, as of 1 - sigmoid(z) beyond 37, write "
            "sigmoid(-z)."
        )
    return notes


def remedy_for(network: Network, schedule: str) -> str:
    """What to do where messages still move, but for what is done already."""
    ways = ["raise num_steps"]
    if schedule != "sequential":
        ways.append('use schedule="sequential"')
    if not network.is_mean_field:
        ways += ["use a fixed damping such as 0.5", "use a smaller alpha (pg.PowerEP)"]
    text = f"Messages still move: {', or '.join(ways)}."
    continuous = [f for f in network.families if isinstance(f, Continuous)]
    if sum(len(f.nodes) for f in continuous) > 1:
        other = "" if len(continuous) < len(network.families) else " or pg.GraphicalSVGD"
        text = (
            f"{text} Where nodes shift together, as levels and effects of groups do, take "
            f'pg.QBethe(covariance="full", num_components=1){other}.'
        )
    if 0 < len(continuous) < len(network.families) and not network.is_mean_field:
        text = (
            f"{text} Where labels choose among continuous nodes, as in mixtures, take pg.VMP, "
            "whose sweeps climb a bound."
        )
    for block in network.blocks:
        if not isinstance(block, QuadratureFactors) or block.is_exact:
            continue
        if not block.tilted.has_checks:
            return (
                f"{text} Or the quadrature does not come to rest: {block.local.name(0)} is "
                f"integrated in {block.tilted.dim} dimensions with "
                f"{block.points_per_dimension} points each, which a factor much narrower than "
                "the beliefs falls between. Then raise num_points."
            )
    return text
