from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOK = Path(__file__).parents[2] / "tutorials" / "networks_and_crowds.ipynb"

CLAIMS = """
assert set(errors) == {
    "mean of three answers", "median of three answers", "mean of all answers", *kernels
}
assert errors["default"] < 0.9 * errors["mean of three answers"]
assert max(errors[name] for name in kernels) < 0.95 * errors["mean of three answers"]
assert widths["RBF on everything"] < 0.4 < 0.75 < widths["RBF on blankets"] < widths["default"]
assert 0.7 < inside < 0.9
assert error(rough[None]) > 1.2 * error(locate().particles["x"])
assert abs(error(locate().particles["x"]) - error(exact)) < 0.03
assert abs(spread(locate().particles["x"]) / spread(exact) - 1) < 0.1
assert spread(locate(10, **kernels["RBF on blankets"]).particles["x"]) < 0.9 * spread(exact)
"""


def run(parameters: str = "", claims: str = "") -> None:
    """Execute the notebook where it lies, with a cell after its parameters and one at its end."""
    book = nbformat.read(NOTEBOOK, as_version=4)
    (place,) = [k for k, c in enumerate(book.cells) if "parameters" in c.metadata.get("tags", ())]
    book.cells.insert(place + 1, nbformat.v4.new_code_cell(parameters))
    book.cells.append(nbformat.v4.new_code_cell(claims))
    client = nbclient.NotebookClient(
        book, timeout=600, resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    )
    client.execute()


def test_the_notebook_runs_from_end_to_end(data_root):
    run("num_steps, num_draws = 10, 20")


@pytest.mark.slow
def test_the_notebook_shows_what_its_text_claims(data_root):
    run(claims=CLAIMS)


def test_the_notebook_is_small_and_without_errors():
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(book)
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    assert NOTEBOOK.stat().st_size < 300_000
