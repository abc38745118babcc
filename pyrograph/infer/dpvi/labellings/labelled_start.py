"""Where DPVI on labellings starts: passes of filtering, and chains that cool.

A pass takes the elements in one after the other, by the posterior given those that are in, and
suits labels of one site. Where data depend on several labels, as the entries of a relation on those
of its row and its column, the first labels say little before the others have clusters, and what
passes find is poor. There Gibbs chains, side by side, draw

    z_i ~ p(z_i | all other labels, data)^(1 / T)

while T falls from HOTTEST to 0, and each ends in a local maximum.

Source: Geman & Geman (1984), "Stochastic relaxation, Gibbs distributions, and the Bayesian
restoration of images", section XII; for mixtures Neal (2000), algorithm 3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrograph.distributions.incremental import keep
from pyrograph.errors import NonFiniteDensity, OptionError
from pyrograph.infer.dpvi.labellings.labelled import Labellings
from pyrograph.infer.dpvi.labellings.labelled_program import LabelledProgram
from pyrograph.infer.dpvi.start import FEWEST, comparable
from pyrograph.posterior import Posterior

#: Passes of filtering in random orders.
ORDERS = 4
#: Chains that cool, their sweeps from HOTTEST to 0, and sweeps of climbing behind.
CHAINS, SWEEPS, HOTTEST, CLIMBS = 16, 20, 2.0, 2


def first_labellings(
    program: LabelledProgram,
    init: str | Posterior | Mapping[str, Any],
    num_particles: int,
    generator: torch.Generator,
) -> Labellings:
    """A pass of filtering in the order of the elements, and passes in random ones or, of several
    sites and of relations, chains that cool; or what the user starts from.

    Raises:
        ShapeMismatch: labels of a site are missing, or have another shape.
        OptionError: there are none, or they are no labels.
    """
    found = Labellings(program)
    if isinstance(init, Posterior | Mapping):
        if isinstance(init, Posterior):
            sizes = [site.event_shape[0] for site in program.sites.values()]
            most = min(num_particles, num_partitions(sizes, num_particles))
            init = init.sample(max(FEWEST, 4 * most))
        values = {name: labels_of(name, value, "init") for name, value in init.items()}
        if any(not len(z) for z in values.values()):
            raise OptionError("init= has no labels: give one labelling at least")
        return found.starting_from(values).distinct(num_particles)
    starts = [found.filtered(found.elements, num_particles)]
    if program.is_exchangeable and init == "icm":
        if len(program.sites) == 1 and not program.relations:
            starts += _in_random_orders(program, num_particles, generator)
        else:
            starts.append(cooled(program, generator))
    best = max(starts, key=lambda found: float(found.bound))
    others = [found.labels() for found in starts if found is not best]
    return best.joined(*others).distinct(num_particles)


def _in_random_orders(
    program: LabelledProgram, num_particles: int, generator: torch.Generator
) -> list[Labellings]:
    """Passes of filtering."""
    found = []
    for _ in range(ORDERS):
        empty = Labellings(program)
        order = torch.randperm(len(empty.elements), generator=generator, device="cpu").tolist()
        found.append(empty.filtered([empty.elements[k] for k in order], num_particles))
    return found


@torch.inference_mode()
def cooled(program: LabelledProgram, generator: torch.Generator) -> Labellings:
    """Where chains end that fill in labels at temperature 1, and then cool."""
    found = Labellings(program)
    keep(found.clusters.values(), torch.zeros(CHAINS, dtype=torch.int64, device=program.device))
    for name, i in found.elements:
        found.clusters[name].put_in(i, _drawn(found.clusters[name].scores(i), 1.0, generator))
    for k in range(SWEEPS):
        temperature = HOTTEST * (1 - k / SWEEPS)
        for name, i in found.elements:
            clusters = found.clusters[name]
            clusters.take_out(i)
            clusters.put_in(i, _drawn(clusters.scores(i), temperature, generator))
    for _ in range(CLIMBS):
        found.climb()
    found.rescore()
    return found


def _drawn(score: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """A slot of every row ``[P]`` by ``softmax(score / temperature)``, the highest with Gumbel
    noise."""
    noise = (
        torch.empty(score.shape, dtype=score.dtype, device="cpu")
        .exponential_(generator=generator)
        .log()
    )
    return (score / temperature - noise.to(score.device)).argmax(1)


def labels_of(name: str, value: Any, option: str) -> Tensor:
    """Labels that an option gives, as whole numbers.

    Raises:
        OptionError: they are something else.
    """
    try:
        value = comparable(value)
        is_whole = not bool((value.long() != value).any())
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(f'{option}= of "{name}" is no tensor of labels: {error}') from error
    if not is_whole or not value.ndim or bool((value < 0).any()):
        raise OptionError(f'{option}= of "{name}" must be labels 0, 1, ..., [M, n]')
    return value.long()


def num_partitions(sizes: Sequence[int], most: int) -> int:
    """Ways to partition sets of these sizes, or a number above ``most`` if there are more."""
    total = 1
    for n in sizes:
        row = [1]  # Bell's triangle
        while len(row) < n and row[-1] <= most:
            row = list(itertools.accumulate(row, initial=row[-1]))
        total *= row[-1]
        if total > most:
            break
    return total


def refuse_broken_data(program: LabelledProgram) -> None:
    """Whether the data have a density.

    Raises:
        NonFiniteDensity: they have none with all elements in one cluster.
    """
    one = {
        name: torch.zeros(1, *site.event_shape, dtype=torch.int64, device=program.device)
        for name, site in program.sites.items()
    }
    for name, score in program.log_probs(one).items():
        if not math.isfinite(float(score)):
            raise NonFiniteDensity(
                f'the log density of "{name}" with all in one cluster is {float(score)}. Look at '
                f"the data{_broken_row(program, name)}: NaN or infinite numbers, or symbols "
                "without mass. A relation may have NaN where cells are held out; rows of a mixture "
                "may not: leave them out."
            )


def _broken_row(program: LabelledProgram, name: str) -> str:
    """Where data of a mixture have the first number that is not finite, for an error."""
    if name not in program.mixtures:
        return ""
    data = program.mixtures[name][2]
    rows = (~data.isfinite()).reshape(len(data), -1).any(1).nonzero()
    return f" of element {int(rows[0])}" if len(rows) else ""


def refuse_options_of_nodes(
    program: LabelledProgram,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    moves: Sequence[str] | None,
    sum_out: str | Sequence[str] | None,
) -> None:
    """Whether the options of an engine fit labels.

    Raises:
        OptionError: one is for nodes of a graph, or of another dtype or device than the program.
    """
    # "cuda" is a device of some number
    device = device and torch.empty(0, device=device).device
    if dtype not in (None, program.dtype) or device not in (None, program.device):
        raise OptionError(
            f"labels are scored in the program's own dtype and on its device, {program.dtype} "
            f"on {program.device}: give data and parameters of those you want, and leave "
            "dtype= and device= out"
        )
    others = set(moves or ()) - {"single", "split"}
    if others or sum_out is not None:
        what = f"moves={moves!r}" if others else f"sum_out={sum_out!r}"
        raise OptionError(f'{what} is for nodes of a graph; labels take "single" and "split"')
