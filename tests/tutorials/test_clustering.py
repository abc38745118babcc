import pytest

from .notebooks import assert_small_and_without_errors, run

NOTEBOOK = "clustering.ipynb"

CLAIMS = """
assert spikes.converged and spikes.log_evidence > sorted_online.log_evidence
large = table[table.sum(1).argsort(descending=True)][:3]
assert sorted(large[:, :3].argmax(1).tolist()) == [0, 1, 2]
assert (large[:, :3].amax(1) == large[:, :3].sum(1)).all()
assert 0 < int(unsure) < 0.1 * len(features)
assert abs(spikes.weights.sum().item() - 1) < 1e-9
assert score > alone + 0.1
assert all(abs(w - zoo.log_evidence) < 1e-6 for w in weights)
"""


def test_the_notebook_runs_without_data(monkeypatch):
    monkeypatch.delenv("PYROGRAPH_DATA", raising=False)
    run(NOTEBOOK, "num_spikes, num_particles = 100, 3")


@pytest.mark.slow
def test_the_notebook_shows_what_its_text_claims(data_root):
    run(NOTEBOOK, claims=CLAIMS)


def test_the_notebook_is_small_and_without_errors():
    assert_small_and_without_errors(NOTEBOOK)
