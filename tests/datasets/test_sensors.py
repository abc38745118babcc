import numpy as np
import pytest
import torch
from torch.testing import assert_close

from pyrograph.datasets import simulated_sensors, uwb_network


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
