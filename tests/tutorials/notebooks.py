"""Running a notebook where it lies, and looking at what is stored in it."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

TUTORIALS = Path(__file__).parents[2] / "tutorials"


def run(name: str, parameters: str = "", claims: str = "") -> None:
    """Execute a notebook with a cell after its parameters and one at its end."""
    book = nbformat.read(TUTORIALS / name, as_version=4)
    (place,) = [k for k, c in enumerate(book.cells) if "parameters" in c.metadata.get("tags", ())]
    book.cells.insert(place + 1, nbformat.v4.new_code_cell(parameters))
    book.cells.append(nbformat.v4.new_code_cell(claims))
    client = nbclient.NotebookClient(
        book, timeout=600, resources={"metadata": {"path": str(TUTORIALS)}}
    )
    client.execute()


def assert_small_and_without_errors(name: str, most: int = 300_000) -> None:
    book = nbformat.read(TUTORIALS / name, as_version=4)
    nbformat.validate(book)
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
    assert (TUTORIALS / name).stat().st_size < most
