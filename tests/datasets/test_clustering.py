"""Spikes, animals and the book: sizes and counts as their sources state them."""

import numpy as np
import pytest
import torch

from pyrograph.datasets import alice, animals, spikes
from pyrograph.errors import DataFormatError, DataNotFound, OptionError


@pytest.mark.parametrize(
    "name, count, samples, classes",
    [
        ("difficult2_noise005", 2948, 64, {-1: 440, 1: 840, 2: 824, 3: 844}),
        ("difficult2_noise015", 3027, 64, {-1: 432, 1: 848, 2: 840, 3: 907}),
        ("hc1_d1122101_ch1", 3681, 40, None),
    ],
)
def test_spikes_have_their_waveforms_features_and_neurons(data_root, name, count, samples, classes):
    found = spikes(name)
    assert found.waveforms.shape == (count, samples)
    assert found.features.shape == (count, 10)
    if classes is None:
        assert found.neuron is None
    else:
        values, counts = found.neuron.unique(return_counts=True)
        assert dict(zip(values.tolist(), counts.tolist(), strict=True)) == classes
    # scores on principal components: centred, uncorrelated, by falling variance
    features = found.features.double()
    assert features.mean(0).abs().max() < 1e-3 * features.std()
    covariance = features.T.cov()
    variance = covariance.diagonal()
    assert (variance[1:] <= variance[:-1] * (1 + 1e-4)).all()
    assert (covariance - variance.diag()).abs().max() < 1e-3 * variance[0]


def test_animals_have_features(data_root):
    found = animals()
    assert found.relation.shape == (50, 85)
    assert int(found.relation.sum()) == 1562
    assert len(found.names) == 50 and "zebra" in found.names and "stripes" in found.features
    zebra, stripes = found.names.index("zebra"), found.features.index("stripes")
    assert found.relation[zebra, stripes] == 1


def test_the_book_begins_with_its_first_chapter(data_root):
    text = alice(5000)
    assert len(text.codes) == 5000
    read = "".join(text.symbols[k] for k in text.codes.tolist())
    assert read.startswith("chapter i")
    assert "white rabbit" in read and "  " not in read
    assert int(text.codes.max()) < len(text.symbols) < 40
    assert len(alice().codes) > 100_000


def test_bad_requests_and_files_are_told(tmp_path, monkeypatch):
    with pytest.raises(OptionError, match="difficult2"):
        spikes("easy")
    with pytest.raises(OptionError, match="length"):
        alice(0)
    with pytest.raises(OptionError, match=r"length=1\.5"):
        alice(1.5)
    with pytest.raises(OptionError, match="length=True"):
        alice(True)
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))
    for load in (spikes, animals, alice):
        with pytest.raises(DataNotFound):
            load()
    (tmp_path / "animals").mkdir()
    names = np.array(["cat"])
    np.savez(tmp_path / "animals" / "animals.npz", R=np.ones((2, 3)), animals=names, features=names)
    with pytest.raises(DataFormatError, match="animals"):
        animals()
    (tmp_path / "spikes").mkdir()
    arrays = {"spikes": np.ones((4, 64)), "pca10": np.ones((3, 10))}
    np.savez(tmp_path / "spikes" / "difficult2_noise005.npz", **arrays)
    with pytest.raises(DataFormatError, match="fit"):
        spikes()


@pytest.mark.parametrize(
    "folder, filename, load",
    [("animals", "animals.npz", animals), ("spikes", "difficult2_noise005.npz", spikes)],
)
def test_damaged_archives_are_named(tmp_path, monkeypatch, folder, filename, load):
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))
    (tmp_path / folder).mkdir()
    path = tmp_path / folder / filename
    for content in (b"", b"no archive"):
        path.write_bytes(content)
        with pytest.raises(DataFormatError, match=f"{filename}: it is no archive"):
            load()
    np.savez(path, other=np.ones(3))
    with pytest.raises(DataFormatError, match=f"{filename}: there is no array.*there are other"):
        load()
    with path.open("wb") as file:
        np.save(file, np.ones(3))  # an array alone
    with pytest.raises(DataFormatError, match=f"{filename}: it is no archive"):
        load()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"R": np.full((1, 1), -7)}, "R has values other than 0 and 1"),
        ({"R": np.array([["x"]])}, "R is <U1"),
        ({"R": np.array([[np.nan]])}, "R has NaN"),
        ({"animals": np.array(["cat", "dog"])}, "values of 2 animals"),
        ({"pca10": np.full((1, 10), np.nan)}, "pca10 has NaN"),
        ({"pca10": np.ones(10)}, r"pca10 is float64 of shape \(10,\)"),
        ({"labels": np.array([-7])}, "labels are other than"),
        ({"labels": np.array(["x"])}, "labels is <U1"),
    ],
)
def test_values_that_are_none_are_refused(tmp_path, monkeypatch, changes, message):
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))
    cat = np.array(["cat"])
    files = {
        "animals": ("animals.npz", {"R": np.ones((1, 1)), "animals": cat, "features": cat}),
        "spikes": (
            "difficult2_noise005.npz",
            {"spikes": np.ones((1, 64)), "pca10": np.ones((1, 10)), "labels": np.array([2])},
        ),
    }
    for folder, (filename, arrays) in files.items():
        (tmp_path / folder).mkdir()
        known = {name: changes.get(name, array) for name, array in arrays.items()}
        np.savez(tmp_path / folder / filename, **known)
    bad, good = (animals, spikes) if {"R", "animals"} & changes.keys() else (spikes, animals)
    good()
    with pytest.raises(DataFormatError, match=message):
        bad()


def test_an_empty_book_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PYROGRAPH_DATA", str(tmp_path))
    (tmp_path / "alice").mkdir()
    (tmp_path / "alice" / "alice.txt").write_text(" \n")
    with pytest.raises(DataFormatError, match="no text"):
        alice()


def test_values_have_the_default_dtype(data_root):
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            assert spikes().features.dtype is dtype
            assert animals().relation.dtype is dtype
    finally:
        torch.set_default_dtype(before)
