"""Write a discrete factor graph in the format of the UAI inference competitions.

    sum_x prod_k f_k(x)  =  sum_x exp(constant + sum_a log f_a(x))

The file's tables are the graph's, exponentiated, in the order of its groups of factors. What is
left over goes into tables of equal entries over variable 0 (most readers refuse a table without
variables): the graph's constant, and the scale of tables that double precision cannot hold as
they are. So log Z of the file is the log evidence of the graph.
"""

import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyrograph.errors import (
    DataFormatError,
    DataNotFound,
    NonFiniteDensity,
    OptionError,
    UnsupportedFactor,
    UnsupportedSite,
)

# exp() of these and of their negatives keeps all digits of a double, with room for products.
LARGEST_LOG = 600.0
# Entries of one statement's tables: a third of a gigabyte of text, some seven while it is made.
MOST_ENTRIES = 2**24


def write_uai(graph: Any, path: str | os.PathLike[str]) -> None:
    """Write a factor graph, all of whose sites are discrete, as a ``.uai`` file.

    Variable k of the file is ``graph.nodes[k]``; its state j is the j-th value of its site's
    support. Nodes held by ``fixed`` get a point mass. Entries have the digits that read back as
    the same double.

    Args:
        graph: a :class:`pyrograph.FactorGraph`.

    Raises:
        UnsupportedSite: naming the sites that have no finite number of states.
        UnsupportedFactor: the tables of a statement would have more than ``MOST_ENTRIES`` entries.
        OptionError: the graph has no nodes or is none, or ``path`` is no path of a file.
        DataNotFound: there is no folder to write the file into.
        NonFiniteDensity: a factor or the constant is NaN or plus infinity.
        DataFormatError: the entries of one factor differ by more than a double can hold.
    """
    path = _writable(path)
    if not hasattr(graph, "factors"):
        raise OptionError(
            f"a factor graph is written, not {type(graph).__name__}; trace a program first: "
            f"write_uai(pg.trace_graph(program), path)."
        )
    endless = [s.describe() for s in graph.sites.values() if s.enumeration is None]
    if endless:
        raise UnsupportedSite(
            f"a UAI file holds finite discrete variables only, but the graph has "
            f"{', '.join(endless)}. Condition on them, or sum or integrate them out."
        )
    if not graph.nodes:
        raise OptionError("the graph has no latent nodes, and a UAI file needs a variable.")
    cardinalities = [s.cardinality for s in graph.sites.values() for _ in range(s.num_nodes)]
    scopes, tables, rest = [], [], float(graph.constant)
    for group in graph.factors:
        _check_size(graph, group, cardinalities)
        log_tables = group.table().detach().double().cpu().flatten(1)
        scale = _scales(graph, group, log_tables)
        rest += float(scale.sum())
        tables += (log_tables - scale.unsqueeze(1)).exp().tolist()
        scopes += group.scope.tolist()
    for name, value in graph.fixed.items():
        for node, mass in _point_masses(graph, name, value.cpu()):
            scopes.append([node])
            tables.append(mass)
    if math.isnan(rest) or rest == math.inf:
        raise NonFiniteDensity(
            f"the graph's constant is {rest}: a statement without latents is NaN or infinite."
        )
    constants = _constants(rest)
    scopes += [[0]] * len(constants)
    tables += [[value] * cardinalities[0] for value in constants]
    lines = ["MARKOV", str(len(cardinalities)), " ".join(map(str, cardinalities)), str(len(scopes))]
    lines += [" ".join(map(str, (len(scope), *scope))) for scope in scopes]
    for table in tables:
        lines += ["", str(len(table)), " ".join(map(repr, table))]
    path.write_text("\n".join(lines) + "\n")


def _writable(path: str | os.PathLike[str]) -> Path:
    """The path of a file that can be made, as far as can be told before the work is done."""
    if not isinstance(path, str | os.PathLike):
        raise OptionError(f"path={path!r} is no path of a file.")
    path = Path(path)
    if not path.parent.is_dir():
        raise DataNotFound(f"there is no folder {str(path.parent)!r} to write into; make it first.")
    if path.is_dir():
        raise OptionError(f"path={str(path)!r} is a folder; name a file in it.")
    return path


def _check_size(graph: Any, group: Any, cardinalities: list[int]) -> None:
    """Refuse tables, all of one shape, that together are too large to be spelled out."""
    entries = len(group.scope) * math.prod(cardinalities[v] for v in group.scope[0].tolist())
    if entries > MOST_ENTRIES:
        raise UnsupportedFactor(
            f"{graph.factor_name(group, 0)} and its likes have tables of {entries:,} entries in "
            f"all, more than the {MOST_ENTRIES:,} that are written. Split the statement into terms "
            f"of fewer nodes."
        )


def _scales(graph: Any, group: Any, log_tables: Tensor) -> Tensor:
    """What to take off each row ``[E]`` of log values so that exp() keeps them; mostly 0.

    A row with a very large or small entry is centred between its extremes.
    """
    wrong = (log_tables.isnan() | (log_tables == torch.inf)).any(1).nonzero().flatten().tolist()
    if wrong:
        raise NonFiniteDensity(
            f"{graph.factor_name(group, wrong[0])} is NaN or infinite at some states of its scope, "
            f"so it has no table."
        )
    zero = log_tables == -torch.inf
    top = log_tables.masked_fill(zero, -torch.inf).amax(1)
    bottom = log_tables.masked_fill(zero, torch.inf).amin(1)
    far = (top > LARGEST_LOG) | (bottom < -LARGEST_LOG)
    wide = (top - bottom > 2 * LARGEST_LOG).nonzero().flatten().tolist()
    if wide:
        e = wide[0]
        raise DataFormatError(
            f"{graph.factor_name(group, e)} has log values from {float(bottom[e]):.6g} to "
            f"{float(top[e]):.6g}; no UAI file can hold both, as its entries are doubles. Clamp "
            f"the factor, or make the small values exact zeros."
        )
    return torch.where(far & ~zero.all(1), (top + bottom) / 2, torch.zeros_like(top))


def _point_masses(graph: Any, name: str, value: Tensor) -> list[tuple[int, list[float]]]:
    """Of a site held fixed: each node with a table that is 1 at its state and 0 elsewhere."""
    site = graph.sites[name]
    support = site.enumeration.cpu()
    events = value.reshape(site.num_nodes, 1, *site.event_shape)
    masses = (events == support).reshape(site.num_nodes, len(support), -1).all(-1).double()
    return list(enumerate(masses.tolist(), start=graph.nodes_of(name).start))


def _constants(log_constant: float) -> list[float]:
    """Numbers whose product is exp(log_constant)."""
    if log_constant == 0.0:
        return []
    if log_constant == -math.inf:
        return [0.0]
    count = math.ceil(abs(log_constant) / LARGEST_LOG)
    return [math.exp(log_constant / count)] * count
