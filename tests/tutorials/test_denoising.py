from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOK = Path(__file__).parents[2] / "tutorials" / "denoising.ipynb"

CLAIMS = """
assert max(error.values()) < 0.2 * image.mean_square_error(image.observed)
optimised = {name: float(fit.history["objective"][-1]) for name, fit in fits.items()}
certified = {name: float(fit.log_evidence) for name, fit in fits.items()}
assert {fit.evidence_kind for fit in fits.values()} == {"lower bound"}
points = [name for name in fits if name != "closed forms"]
assert all(optimised[name] - certified[name] > 20 for name in points)
assert abs(optimised["closed forms"] - certified["closed forms"]) < 0.1
assert max(certified, key=certified.get) == "closed forms"
assert "quadrature" in fits["K = 3"].status and "quadrature" not in fits["closed forms"].status

values = [fit.log_evidence.item() for fit in chain.values()]
assert values == sorted(values) and values[-1] < true_z
assert {fit.evidence_kind for fit in [*chain.values(), full]} == {"lower bound"}
assert chain[1].log_evidence < full.log_evidence < true_z
off = [(bright(fit) - true_bright).abs().max() for fit in chain.values()]
assert off[-1] < 0.1 < 0.2 < off[0]
assert projected.converged

for value, conditional in answers.items():
    _, density = exact(row, *soft, given=(hole[1], value))
    truth = (density[:, grid > threshold].sum(1) / density.sum(1))[hole]
    assert (bright(conditional) - truth)[[0, 2]].abs().max() < 0.15
assert 0.2 < correlation < 0.8

assert filled.evidence_kind == "estimate"
assert rest["told dark"] < rest["nothing told"] < rest["told bright"]
assert importance.get_ESS() < 0.1 * num_draws
assert start_elbo < end_elbo < chain[8].log_evidence
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


def test_the_notebook_runs_without_data(monkeypatch):
    monkeypatch.delenv("PYROGRAPH_DATA", raising=False)
    run("num_steps, num_restarts, num_draws, num_svi = 5, 2, 20, 10")


@pytest.mark.slow
def test_the_notebook_shows_what_its_text_claims(data_root):
    run(claims=CLAIMS)


def test_the_notebook_is_small_and_without_errors():
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(book)
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    assert NOTEBOOK.stat().st_size < 300_000
