"""Where mean field ends: a place for components to start where climbs to modes end at none.

The density of a hierarchy grows without bound as its scale goes to 0, and draws from vague priors
may lie a million nats low. VMP maximises F of one component of independent nodes by coordinate
ascent, in units of its own, and tells the components of a mixture apart; of few numbers that costs
little beside a run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from pyrograph.errors import PyrographError
from pyrograph.graph import FactorGraph
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.vmp import VMP
from pyrograph.posterior.posterior import Posterior

#: Sweeps at most, and dimensions of integrals by points at most.
SWEEPS, MOST_DIMENSIONS = 100, 2
#: Of programs with labels: sweeps at most, from optimum to optimum as components come apart, and
#: how near to rest each of these is left.
SWEEPS_OF_LABELS, NEAR = 300, 1e-3
#: Draws by which the beliefs are known, whatever families these are of: fewer of many numbers, all
#: of which are to be no more than so many.
DRAWS, FEWEST, MOST_DRAWN = 512, 32, 2**22


@torch.no_grad()
def mean_field(
    graph: FactorGraph, program: tuple[Callable, tuple, dict]
) -> tuple[Tensor, Tensor] | None:
    """Means and standard deviations of all numbers, ``[dim]`` each, in the graph's space; None
    where VMP does not serve the program, would take long, or does not settle.

    Args:
        program: the model and its arguments.
    """
    found = settled(graph, program)
    return None if found is None or not found[0].converged else moments(graph, found[1])


@torch.no_grad()
def settled(
    graph: FactorGraph, program: tuple[Callable, tuple, dict]
) -> tuple[Posterior, dict[str, Tensor]] | None:
    """Mean field's posterior, and draws from it in the program's space; None where VMP does not
    serve the program or would take long.

    Args:
        program: the model and its arguments.
    """
    # beliefs of their own need no points, of which many weights would take too many, and come back
    # from nearly nothing
    simplices = [s for s in graph.free_sites if s.distribution == "Dirichlet"]
    wide = [s for s in simplices if s.width > MOST_DIMENSIONS]
    for own in [simplices] if simplices == wide else [simplices, wide]:
        found = _settled(graph, program, {site.name: "dirichlet" for site in own})
        if found is not None:
            return found
    return None


def _settled(
    graph: FactorGraph, program: tuple[Callable, tuple, dict], family: dict[str, str]
) -> tuple[Posterior, dict[str, Tensor]] | None:
    """The same, with beliefs of these families."""
    model, args, kwargs = program
    run = {"num_steps": SWEEPS}
    if any(site.is_discrete for site in graph.sites.values()):
        run = {"num_steps": SWEEPS_OF_LABELS, "tol": NEAR}
    engine = VMP(model, progress=False, family=family, **run)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            engine.setup(*args, **kwargs)
            if not all(map(_is_cheap, engine.network.blocks)):
                return None
            found = engine.run()
            draws = found.sample(max(FEWEST, min(DRAWS, MOST_DRAWN // graph.dim)))
        except (PyrographError, torch.linalg.LinAlgError):
            return None
    return None if any(_reaches_zero(draws[name]) for name in family) else (found, draws)


def moments(graph: FactorGraph, draws: dict[str, Tensor]) -> tuple[Tensor, Tensor] | None:
    """Means and standard deviations of all numbers, ``[dim]`` each, in the graph's space; None if
    they are not finite, or the program's space has no way there."""
    try:
        x = graph.flatten(graph.unconstrain(draws)).double()
    except PyrographError:
        return None
    return (x.mean(0), x.std(0)) if bool(x.isfinite().all()) else None


def _reaches_zero(weights: Tensor) -> bool:
    """Whether normals as wide in unconstrained space would leave what numbers can hold."""
    return bool((weights < torch.finfo(weights.dtype).tiny ** 0.5).any())


def _is_cheap(block: object) -> bool:
    """Whether a sweep integrates by points in few dimensions alone."""
    if not isinstance(block, QuadratureFactors) or block.local.dim <= MOST_DIMENSIONS:
        return True
    return block.expected is not None and block.expected.closed is not None
