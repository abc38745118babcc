import pytest

from .notebooks import assert_small_and_without_errors, run

NOTEBOOK = "denoising.ipynb"

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


def test_the_notebook_runs_without_data(monkeypatch):
    monkeypatch.delenv("PYROGRAPH_DATA", raising=False)
    run(NOTEBOOK, "num_steps, num_restarts, num_draws, num_svi = 5, 2, 20, 10")


@pytest.mark.slow
def test_the_notebook_shows_what_its_text_claims(data_root):
    run(NOTEBOOK, claims=CLAIMS)


def test_the_notebook_is_small_and_without_errors():
    assert_small_and_without_errors(NOTEBOOK)
