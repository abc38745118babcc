import pytest

from .notebooks import assert_small_and_without_errors, run

NOTEBOOK = "message_passing.ipynb"

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


def test_the_notebook_runs_without_data(monkeypatch):
    monkeypatch.delenv("PYROGRAPH_DATA", raising=False)
    run(NOTEBOOK, "side, num_updates = 5, 1")


@pytest.mark.slow
def test_the_notebook_shows_what_its_text_claims(data_root):
    run(NOTEBOOK, claims=CLAIMS)


def test_the_notebook_is_small_and_without_errors():
    assert_small_and_without_errors(NOTEBOOK)
