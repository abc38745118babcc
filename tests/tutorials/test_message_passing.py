from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOK = Path(__file__).parents[2] / "tutorials" / "message_passing.ipynb"

CLAIMS = """
assert all(fit.converged for fit in [*fits.values(), *found.values(), whole])
kinds = {name: fit.evidence_kind for name, fit in fits.items()}
assert kinds.pop("TRW") == "upper bound" and kinds.pop("VMP") == "lower bound"
assert set(kinds.values()) == {"estimate"}
z = {name: float(fit.log_evidence) for name, fit in fits.items()}
assert z["VMP"] < z["FractionalBP"] < z["BP"] and z["VMP"] < true_z < z["TRW"]
assert true_z < float(tight.log_evidence) < z["TRW"]
assert z["FractionalBP"] < float(near.log_evidence) < z["BP"]
assert abs(z["BP"] - z["EP"]) < 1e-6 and abs(z["BP"] - true_z) < 0.1
assert worst["BP"] < 0.02 and worst["BP"] < min(worst["FractionalBP"], worst["TRW"], worst["VMP"])


def entropy(p):
    return -(p * p.log() + (1 - p) * (1 - p).log()).sum()


assert entropy(shown["VMP"]) < entropy(true_marginal) < entropy(shown["TRW"])
assert wrong < flip / 3
assert {"VMP"} <= set(refused) <= {"VMP", "TRW"}
sds = [fit.marginal("w").variance.sqrt() for fit in found.values()]
assert ((sds[0] - grid_sd).abs() < (sds[1] - grid_sd).abs()).all()
assert ((sds[1] - grid_sd).abs() < (sds[2] - grid_sd).abs()).all()
gaps = [abs(float(fit.log_evidence - grid_z)) for fit in found.values()]
assert gaps[0] < gaps[1] < gaps[2]
assert curves["BP"] == sorted(curves["BP"])
top = couplings[int(np.argmax(curves["TRW"]))].item()
assert abs(coupling.item() - top) < 0.2 and abs(best - top) < 0.2
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
    run("side, num_updates = 5, 1")


@pytest.mark.slow
def test_the_notebook_shows_what_its_text_claims(data_root):
    run(claims=CLAIMS)


def test_the_notebook_is_small_and_without_errors():
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(book)
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    assert NOTEBOOK.stat().st_size < 300_000
