import numpy as np
import pytest
import torch
from torch.testing import assert_close

from pyrograph.datasets import simulated_sensors, uwb_network
from pyrograph.errors import DataFormatError

NODES = """node,x_m,y_m
8,0,0
14,1,0
54,0,1
3,0.5,0.5
4,,
"""
RANGES = """a,b,range_m
4,3,0.5
8,3,0.75
8,14,1
54,4,0.25
"""


@pytest.fixture
def read(monkeypatch, tmp_path):
    """The radio network with these two tables in its place."""
    (tmp_path / "uwb_network").mkdir()
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))

    def read(nodes=NODES, ranges=RANGES):
        (tmp_path / "uwb_network" / "nodes.csv").write_text(nodes)
        (tmp_path / "uwb_network" / "ranges.csv").write_text(ranges)
        return uwb_network()

    return read


def test_rows_become_sensors_anchors_and_links(read):
    network = read()
    assert (network.names, network.anchor_names) == (("3", "4"), ("8", "14", "54"))
    assert network.positions[0].tolist() == [0.5, 0.5] and network.positions[1].isnan().all()
    assert network.anchors.tolist() == [[0, 0], [1, 0], [0, 1]]
    assert (network.src.tolist(), network.dst.tolist()) == ([0], [1])
    assert (network.anchor_src.tolist(), network.anchor_dst.tolist()) == ([0, 1], [0, 2])
    assert (network.range.tolist(), network.anchor_range.tolist()) == ([0.5], [0.75, 0.25])


def test_a_network_may_have_no_links_between_sensors(read):
    network = read(ranges=RANGES.replace("4,3,0.5\n", ""))
    assert network.src.shape == network.range.shape == (0,) and network.src.dtype == torch.long
    assert network.anchor_range.tolist() == [0.75, 0.25]


@pytest.mark.parametrize(
    "tables, text",
    [
        (
            {"ranges": RANGES.replace("range_m", "rng")},
            r"ranges\.csv: there is no column 'range_m'",
        ),
        ({"nodes": NODES.replace("node", "name")}, r"nodes\.csv: there is no column 'node'"),
        ({"ranges": RANGES.splitlines()[0]}, r"ranges\.csv: there are no rows"),
        ({"nodes": ""}, r"nodes\.csv: there is no column"),
        ({"ranges": RANGES + "8,4,abc\n"}, r"ranges\.csv:6: the range_m abc"),
        ({"ranges": RANGES + "8,4,inf\n"}, r"ranges\.csv:6: the range_m inf"),
        ({"ranges": RANGES + "8,4,\n"}, r"ranges\.csv:6: the range_m \(blank\)"),
        ({"ranges": RANGES + "8,4\n"}, r"ranges\.csv:6: .*3 fields"),
        ({"ranges": RANGES + "3,zz,1\n"}, r"ranges\.csv:6: a range from '3' to 'zz'"),
        ({"ranges": RANGES + "3,3,1\n"}, r"ranges\.csv:6: a range from '3' to '3'"),
        ({"nodes": NODES.replace("14,1,0\n", "")}, "no position of the anchor '14'"),
        ({"nodes": NODES.replace("14,1,0", "14,1,")}, "no position of the anchor '14'"),
        ({"nodes": NODES.replace("0.5,0.5", "x,0.5")}, r"nodes\.csv:5: the x_m x"),
        ({"nodes": NODES + "3,1,1\n"}, r"nodes\.csv:7: node '3' is listed twice"),
    ],
)
def test_a_damaged_table_is_refused_with_the_place(read, tables, text):
    with pytest.raises(DataFormatError, match=text):
        read(**tables)


def test_the_embedded_network_is_the_documented_draw():
    rng = np.random.RandomState(2018)
    sensors = rng.uniform(-1, 1, size=(100, 2))
    x = np.concatenate([sensors, [(-1, -1), (-1, 1), (1, -1), (1, 1)]])
    a, b = np.triu_indices(104, k=1)
    distance = np.linalg.norm(x[a] - x[b], axis=-1)
    r = distance + 0.05 * rng.normal(size=5356)
    kept = (distance < 0.5) & (a < 100)
    a, b, r = a[kept], b[kept], r[kept]

    network = simulated_sensors()
    close = {"rtol": 0, "atol": 1e-6}
    assert_close(network.positions, torch.tensor(sensors), **close)
    assert_close(network.anchors, torch.tensor(x[100:]), **close)
    between = b < 100
    assert network.src.tolist() == a[between].tolist()
    assert network.dst.tolist() == b[between].tolist()
    assert_close(network.range, torch.tensor(r[between]), **close)
    assert network.anchor_src.tolist() == a[~between].tolist()
    assert network.anchor_dst.tolist() == (b[~between] - 100).tolist()
    assert_close(network.anchor_range, torch.tensor(r[~between]), **close)


def test_the_embedded_network_has_the_size_it_states():
    network = simulated_sensors()
    assert (network.num_sensors, len(network.anchors)) == (100, 4)
    assert (len(network.range), len(network.anchor_range)) == (772, 16)
    ends = torch.cat([network.src, network.dst, network.anchor_src])
    assert ends.bincount().min() == 7
    assert (network.range < 0).sum() == 2


def test_every_sensor_of_the_embedded_network_is_well_determined():
    """The Fisher information J' J / sigma^2 bounds every sensor's error below two sigma."""
    network = simulated_sensors()
    x = network.positions.requires_grad_()

    def distances(x):
        links = (x[network.src] - x[network.dst]).norm(dim=-1)
        anchor_links = (x[network.anchor_src] - network.anchors[network.anchor_dst]).norm(dim=-1)
        return torch.cat([links, anchor_links])

    jacobian = torch.autograd.functional.jacobian(distances, x).flatten(1)
    covariance = torch.linalg.inv(jacobian.T @ jacobian) * network.sigma**2
    error = covariance.diagonal().view(-1, 2).sum(-1).sqrt()
    assert error.max() < 2 * network.sigma


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_have_the_default_dtype(dtype):
    torch.set_default_dtype(dtype)
    network = simulated_sensors()
    for tensor in (network.positions, network.anchors, network.range, network.anchor_range):
        assert tensor.dtype == dtype
    for tensor in (network.src, network.dst, network.anchor_src, network.anchor_dst):
        assert tensor.dtype == torch.long


def test_the_radio_network_has_its_documented_pairs(data_root):
    network = uwb_network()
    assert network.names == ("12", "61", "81", "87", "16")
    assert network.anchor_names == ("8", "14", "54")
    assert network.positions[4].isnan().all() and network.positions[:4].isfinite().all()
    assert (len(network.range), len(network.anchor_range)) == (10, 15)  # 28 pairs, 3 of anchors


def test_the_radio_network_errs_by_its_stated_sigma(data_root):
    network = uwb_network()
    x = network.positions
    links = (x[network.src] - x[network.dst]).norm(dim=-1) - network.range
    anchor_links = (x[network.anchor_src] - network.anchors[network.anchor_dst]).norm(dim=-1)
    errors = torch.cat([links, anchor_links - network.anchor_range])
    errors = errors[errors.isfinite()]
    assert len(errors) == 18  # 25 links without the 7 of radio 16
    assert_close(errors.square().mean().sqrt().item(), network.sigma, rtol=0.1, atol=0)
