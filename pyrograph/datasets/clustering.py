"""Data to be clustered: spikes of neurons, animals and their features, the letters of a book."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyrograph.checks import count
from pyrograph.datasets.root import arrays_of, data_file, numbers_of, text_of
from pyrograph.errors import DataFormatError, OptionError

SPIKES = ("difficult2_noise005", "difficult2_noise015", "hc1_d1122101_ch1")


@dataclass(frozen=True)
class Spikes:
    """Detected and aligned action potentials.

    Attributes:
        waveforms: ``[N, T]``, units of the recording.
        features: ``[N, 10]``, scores on the first ten principal components.
        neuron: ``[N]`` 1, 2, 3, or -1 where spikes overlap; None where it is not known.
    """

    waveforms: Tensor
    features: Tensor
    neuron: Tensor | None


def spikes(name: str = "difficult2_noise005") -> Spikes:
    """Spikes of three simulated neurons (real waveforms and background, so the truth is known), at
    two noise levels, or of a rat's hippocampus.

    Args:
        name: ``"difficult2_noise005"``, ``"difficult2_noise015"`` or ``"hc1_d1122101_ch1"``.

    Raises:
        OptionError: there is no such set.
        DataNotFound: ``$PYROGRAPH_DATA`` is not set or lacks ``spikes``.
        DataFormatError: the file's arrays are damaged or missing, or do not fit together.

    Source: Quian Quiroga, Nadasdy & Ben-Shaul (2004), features by the first components; hc1: Henze
    et al., CRCNS hc-1, doi 10.6080/K02Z13FP.
    """
    if name not in SPIKES:
        raise OptionError(f"there are no spikes {name!r}; there are {', '.join(SPIKES)}.")
    path = data_file("spikes", f"{name}.npz")
    arrays = arrays_of(path, ("spikes", "pca10"))
    dtype = torch.get_default_dtype()
    waveforms, features = (numbers_of(path, arrays, k, 2).to(dtype) for k in ("spikes", "pca10"))
    neuron = numbers_of(path, arrays, "labels", 1) if "labels" in arrays else None
    if neuron is not None and not bool(torch.isin(neuron, torch.tensor([-1, 1, 2, 3])).all()):
        raise DataFormatError(f"{path.name}: labels are other than -1, 1, 2 and 3.")
    neuron = None if neuron is None else neuron.long()
    sizes = {len(waveforms), len(features), len(features if neuron is None else neuron)}
    if len(sizes) > 1 or features.shape[1] != 10:
        raise DataFormatError(f"{name}.npz: arrays of {sorted(sizes)} spikes do not fit together.")
    return Spikes(waveforms, features, neuron)


@dataclass(frozen=True)
class Animals:
    """Which animal has which feature.

    Attributes:
        relation: ``[50, 85]`` of 0 and 1.
        names: of the animals; features: their names.
    """

    relation: Tensor
    names: tuple[str, ...]
    features: tuple[str, ...]


def animals() -> Animals:
    """Judgements of people on 85 features of 50 animals, cut at their mean.

    Raises:
        DataNotFound: ``$PYROGRAPH_DATA`` is not set or lacks ``animals``.
        DataFormatError: the file's arrays are damaged or missing, or do not fit together.

    Source: Osherson et al. (1991), as in Kemp et al. (2006) and Lampert et al. (2009).
    """
    path = data_file("animals", "animals.npz")
    arrays = arrays_of(path, ("R", "animals", "features"))
    relation = numbers_of(path, arrays, "R", 2)
    if not bool(((relation == 0) | (relation == 1)).all()):
        raise DataFormatError(f"{path.name}: R has values other than 0 and 1.")
    relation = relation.to(torch.get_default_dtype())
    names, features = (
        tuple(str(v) for v in arrays[k].reshape(-1)) for k in ("animals", "features")
    )
    if relation.shape != (len(names), len(features)):
        raise DataFormatError(
            f"animals.npz: {tuple(relation.shape)} values of {len(names)} animals and "
            f"{len(features)} features."
        )
    return Animals(relation, names, features)


@dataclass(frozen=True)
class Text:
    """A text as numbers of its symbols.

    Attributes:
        codes: ``[T]``; symbols: what they stand for.
    """

    codes: Tensor
    symbols: str


def alice(length: int | None = None) -> Text:
    """Alice's Adventures in Wonderland: lower case, white space as one blank, and of the other
    signs those that come up in the first 5000 characters; rarer ones are left out.

    Args:
        length: symbols from the beginning; default all.

    Raises:
        OptionError: ``length`` is not a whole number, at least 1.
        DataNotFound: ``$PYROGRAPH_DATA`` is not set or lacks ``alice``.
        DataFormatError: the file is empty.
    """
    length = None if length is None else count("length", length)
    text = " ".join(text_of(data_file("alice", "alice.txt")).lower().split())
    symbols = "".join(sorted(set(text[:5000])))
    place = {symbol: k for k, symbol in enumerate(symbols)}
    codes = [place[symbol] for symbol in text if symbol in place][:length]
    if not codes:
        raise DataFormatError("alice.txt: there is no text in it.")
    return Text(torch.tensor(codes), symbols)
