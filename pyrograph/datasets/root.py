"""Where the real data sets are: one folder, named by ``$PYROGRAPH_DATA``, one subfolder each."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from zipfile import BadZipFile
from zlib import error as BadDeflate

import numpy as np
import torch
from torch import Tensor

from pyrograph.errors import DataFormatError, DataNotFound, OptionError

VARIABLE = "PYROGRAPH_DATA"


def data_root() -> Path:
    """The folder that ``$PYROGRAPH_DATA`` names.

    Raises:
        DataNotFound: the variable is not set, or names no folder.
    """
    value = os.environ.get(VARIABLE)
    if not value:
        raise DataNotFound(
            f"the real data sets are looked for in the folder that ${VARIABLE} names, and it is "
            f"not set; set it to the folder that holds one subfolder per data set."
        )
    try:
        root = Path(value).expanduser()
    except RuntimeError as error:
        raise DataNotFound(
            f"${VARIABLE} is {value!r}, and there is no such user; set it to the folder's own path."
        ) from error
    if not root.is_dir():
        raise DataNotFound(f"${VARIABLE} is {value!r}, which is not a folder; set it to one.")
    return root


def data_file(folder: str, name: str) -> Path:
    """The path of ``<data root>/<folder>/<name>``.

    Raises:
        DataNotFound: there is no data root, or no such file in it.
    """
    path = data_root() / folder / name
    if not path.is_file():
        present = sorted(p.name for p in path.parent.glob("*")) if path.parent.is_dir() else []
        found = f"it holds {', '.join(present)}" if present else "there is no such folder"
        raise DataNotFound(f"no file {name!r} in {folder!r} under ${VARIABLE}: {found}.")
    return path


def named_file(source: str | os.PathLike[str], folder: str, suffix: str) -> Path:
    """A file by its name in a folder of the data root, which has no suffix, or by its path.

    Raises:
        DataNotFound: there is no data root, or no file of that name.
        OptionError: ``source`` is neither.
    """
    if not isinstance(source, str | os.PathLike):
        raise OptionError(
            f"{source!r} is no data set; give a name in the data root's folder {folder!r}, or the "
            f"path of a {suffix} file."
        )
    if isinstance(source, str) and not source.endswith(suffix):
        return data_file(folder, f"{source}{suffix}")
    return Path(source)


def text_of(path: Path) -> str:
    """A data file's text, UTF-8, without the byte order mark that some editors put first.

    Raises:
        DataNotFound: there is no such file.
        DataFormatError: it has another encoding.
    """
    if not path.is_file():
        raise DataNotFound(
            f"there is no file {str(path)!r}; look at the path, which is taken from "
            f"{str(Path.cwd())!r} on if it is relative."
        )
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataFormatError(
            f"{path.name}: byte {error.start} is not UTF-8; save the file in that encoding."
        ) from error


def arrays_of(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """All arrays of an ``.npz`` file, among them those of these names.

    Raises:
        DataFormatError: the file is no such archive, or an array is missing.
    """
    try:
        with path.open("rb") as file, np.load(file) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except (BadZipFile, BadDeflate, OSError, EOFError, ValueError, TypeError) as error:
        raise DataFormatError(f"{path.name}: it is no archive of numpy arrays: {error}.") from error
    missing = [name for name in names if name not in arrays]
    if missing:
        raise DataFormatError(
            f"{path.name}: there is no array {missing[0]!r}; there are {', '.join(arrays)}."
        )
    return arrays


def numbers_of(path: Path, arrays: Mapping[str, np.ndarray], name: str, dims: int) -> Tensor:
    """One of a file's arrays as a tensor of finite numbers with so many dimensions.

    Raises:
        DataFormatError: it is another array than that.
    """
    array = arrays[name]
    if array.dtype.kind not in "biuf" or array.ndim != dims:
        raise DataFormatError(
            f"{path.name}: {name} is {array.dtype} of shape {array.shape}; expected numbers in "
            f"{dims} dimensions."
        )
    value = torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
    if not bool(value.isfinite().all()):
        raise DataFormatError(f"{path.name}: {name} has NaN or infinite numbers.")
    return value
