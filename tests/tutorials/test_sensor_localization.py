from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from pyrograph.datasets import RangingNetwork, simulated_sensors
from tutorials.sensor_localization import main, rough_map

README = Path(__file__).parents[2] / "README.md"


def complete_network(num_sensors: int) -> RangingNetwork:
    """Every pair measured without error, so that classical scaling has nothing to guess."""
    positions, anchors = torch.randn(num_sensors, 2), torch.randn(3, 2)
    src, dst = torch.triu_indices(num_sensors, num_sensors, offset=1)
    anchor_src, anchor_dst = torch.cartesian_prod(torch.arange(num_sensors), torch.arange(3)).T
    return replace(
        simulated_sensors(),
        names=tuple(map(str, range(num_sensors))),
        positions=positions,
        anchor_names=("a", "b", "c"),
        anchors=anchors,
        src=src,
        dst=dst,
        range=(positions[src] - positions[dst]).norm(dim=-1),
        anchor_src=anchor_src,
        anchor_dst=anchor_dst,
        anchor_range=(positions[anchor_src] - anchors[anchor_dst]).norm(dim=-1),
    )


def test_the_rough_map_is_exact_when_all_distances_are():
    net = complete_network(6)
    assert_close(rough_map(net), net.positions)


def test_the_rough_map_does_not_look_at_the_true_positions():
    net = simulated_sensors()
    rough = rough_map(net)
    blind = replace(net, positions=torch.full_like(net.positions, torch.nan))
    assert_close(rough_map(blind), rough, rtol=0, atol=0)
    assert (rough - net.positions).square().sum(-1).mean().sqrt() < 0.15


def test_the_tutorial_prints_a_table_and_writes_a_picture(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("PYROGRAPH_DATA", raising=False)
    picture = tmp_path / "network.png"
    (result,) = main(["--steps", "5", "--particles", "8", "--output", str(picture)])
    assert result.particles.shape == (8, 100, 2)
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert all(f"{row} " in printed for row in result.summary)
    off = (result.particles - result.particles.mean(0)).norm(dim=-1)  # in the plane
    sd = (off.square().sum(0) / 7).mean().sqrt()
    assert result.summary["posterior sd (both axes)"].startswith(f"{sd:.3f}")
    assert "| posterior sd (both axes) |" in README.read_text()


def test_the_tutorial_adds_the_real_network_where_there_are_data(data_root, tmp_path):
    picture = tmp_path / "network.png"
    results = main(["--steps", "5", "--particles", "8", "--output", str(picture)])
    assert [result.net.num_sensors for result in results] == [100, 5]


@pytest.mark.slow
def test_the_posterior_mean_of_the_simulated_network_is_close_to_the_truth(tmp_path):
    """Long Hamiltonian chains give a posterior mean 0.040 off (rms) and a spread of 0.049."""
    result, *_ = main(["--output", str(tmp_path / "network.png")])
    rmse = (result.particles.mean(0) - result.net.positions).square().sum(-1).mean().sqrt()
    assert rmse < 0.045
