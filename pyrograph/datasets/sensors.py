"""Range-only localisation: radios that know distances, not places.

A few *anchors* have known positions; sensors are to be located from noisy distances
to the anchors and to each other,

    r_ij = ||x_i - x_j|| + sigma * e_ij,    e_ij ~ N(0, 1),

where sigma is a standard deviation (Wang, Zeng & Liu 2018, section 5, print it as a variance).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import torch
from torch import Tensor

from pyrograph.datasets.root import data_file, text_of
from pyrograph.datasets.rows import finite_number, named_rows
from pyrograph.errors import DataFormatError


@dataclass(frozen=True, eq=False)
class RangingNetwork:
    """Sensors to locate, anchors at known places, and the distances measured between them.

    Shapes, for n sensors, m anchors, E links between sensors and L links to anchors:
        positions: ``[n, 2]`` true positions, for checking only; NaN where unknown.
        anchors: ``[m, 2]`` known positions.
        src, dst: ``[E]`` sensor ids at the ends of each link, ``src < dst``.
        range: ``[E]`` measured distances of these links.
        anchor_src, anchor_dst: ``[L]`` sensor ids and anchor ids.
        anchor_range: ``[L]`` measured distances of these links.
        names, anchor_names: n and m labels.

    Floating tensors have the default dtype. ``sigma`` is the standard deviation of a range,
    in the ``unit`` of all lengths.
    """

    title: str
    unit: str
    sigma: float
    names: tuple[str, ...]
    positions: Tensor
    anchor_names: tuple[str, ...]
    anchors: Tensor
    src: Tensor
    dst: Tensor
    range: Tensor
    anchor_src: Tensor
    anchor_dst: Tensor
    anchor_range: Tensor

    @property
    def num_sensors(self) -> int:
        return len(self.names)


def simulated_sensors() -> RangingNetwork:
    """A hundred sensors in the square [-1, 1]^2 with anchors at its corners.

    The setting of Wang, Zeng & Liu (2018), figure 5: two radios measure their distance, with
    noise of standard deviation 0.05, when they are less than 0.5 apart (772 links between
    sensors, 16 to anchors; every sensor has at least 7). A distance below the noise can be
    measured as negative, and two are. The draw, in this order, stored with 6 decimals::

        rng = numpy.random.RandomState(2018)       # the stream of this generator is frozen
        sensors = rng.uniform(-1, 1, size=(100, 2))
        x = concatenate([sensors, [(-1, -1), (-1, 1), (1, -1), (1, 1)]])
        a, b = numpy.triu_indices(104, k=1)
        distance = norm(x[a] - x[b])
        r = distance + 0.05 * rng.normal(size=5356)
        kept = (distance < 0.5) & (a < 100)        # no ranges between anchors
    """
    folder = files(__package__)
    return _network(
        "simulated sensors",
        folder.joinpath("simulated_nodes.csv").read_text(),
        folder.joinpath("simulated_ranges.csv").read_text(),
        anchors=("A0", "A1", "A2", "A3"),
        columns=("x", "y", "range"),
        unit="",
        sigma=0.05,
    )


def uwb_network() -> RangingNetwork:
    """Eight ultra-wideband radios in a 6 m by 3 m room; 8, 14 and 54 serve as anchors.

    Each range is the median of about 1000 two-way measurements. What is left is a bias that
    is fixed for each pair, with a standard deviation of 0.29 m over the pairs; it is treated
    as the noise. Radio 16 (on a robot) was measured too, but its position was not recorded.

    Source: Haggenmiller, Krogius & Olson (2019), "Non-parametric error modeling for ultra-
    wideband localization networks", ICRA; recording 4.

    Raises:
        DataNotFound: ``$PYROGRAPH_DATA`` is not set or lacks ``uwb_network``.
        DataFormatError: a column, a number or the position of an anchor is missing, or a range is
            not between two nodes.
    """
    return _network(
        "ultra-wideband radios",
        text_of(data_file("uwb_network", "nodes.csv")),
        text_of(data_file("uwb_network", "ranges.csv")),
        anchors=("8", "14", "54"),
        columns=("x_m", "y_m", "range_m"),
        unit="m",
        sigma=0.29,
    )


def _network(
    title: str,
    nodes: str,
    ranges: str,
    *,
    anchors: Sequence[str],
    columns: tuple[str, str, str],
    unit: str,
    sigma: float,
) -> RangingNetwork:
    """Network from the text of two tables: one row per node, one row per measured pair."""
    x, y, distance = columns
    place = _places(nodes, (x, y), anchors)
    names = tuple(name for name in place if name not in anchors)
    sensor_id = {name: i for i, name in enumerate(names)}
    anchor_id = {name: i for i, name in enumerate(anchors)}
    links, anchor_links = [], []
    for line, row in named_rows("ranges.csv", ranges, ("a", "b", distance)):
        a, b, r = row["a"], row["b"], finite_number(line, distance, row[distance])
        if a == b or a not in place or b not in place:
            raise DataFormatError(
                f"{line}: a range from {a!r} to {b!r}; it lies between two nodes of nodes.csv."
            )
        if a in sensor_id and b in sensor_id:
            links.append((*sorted((sensor_id[a], sensor_id[b])), r))
        elif a in sensor_id or b in sensor_id:
            sensor, anchor = (a, b) if a in sensor_id else (b, a)
            anchor_links.append((sensor_id[sensor], anchor_id[anchor], r))
    src, dst, link_range = _columns(links)
    anchor_src, anchor_dst, anchor_range = _columns(anchor_links)
    return RangingNetwork(
        title=title,
        unit=unit,
        sigma=sigma,
        names=names,
        positions=torch.tensor([place[name] for name in names]).reshape(-1, 2),
        anchor_names=tuple(anchors),
        anchors=torch.tensor([place[name] for name in anchors]),
        src=src,
        dst=dst,
        range=link_range,
        anchor_src=anchor_src,
        anchor_dst=anchor_dst,
        anchor_range=anchor_range,
    )


def _places(
    nodes: str, columns: tuple[str, str], anchors: Sequence[str]
) -> dict[str, tuple[float, ...]]:
    """Where every node is; NaN where that was not recorded, which anchors may not have."""
    place: dict[str, tuple[float, ...]] = {}
    for line, row in named_rows("nodes.csv", nodes, ("node", *columns)):
        name = row["node"]
        if name in place:
            raise DataFormatError(f"{line}: node {name!r} is listed twice.")
        place[name] = tuple(
            finite_number(line, column, row[column]) if row[column] else math.nan
            for column in columns
        )
    for name in anchors:
        if name not in place or any(map(math.isnan, place[name])):
            raise DataFormatError(f"nodes.csv: there is no position of the anchor {name!r}.")
    return place


def _columns(rows: Sequence[tuple[int, int, float]]) -> tuple[Tensor, Tensor, Tensor]:
    src, dst, length = ([row[k] for row in rows] for k in range(3))
    ends = (torch.tensor(ids, dtype=torch.int64) for ids in (src, dst))
    return *ends, torch.tensor(length)
