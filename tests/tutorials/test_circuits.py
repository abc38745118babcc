import pytest

from .notebooks import assert_small_and_without_errors, run

NOTEBOOK = "circuits.ipynb"

CLAIMS = """
# missing features
assert all(circuit.properties().values())
assert circuit.log_prob(test).mean() > tree.log_prob(test).mean() + 1
assert any(abs(w - infant["infant"][1]) < 0.01 for w in small.log_weights.exp().tolist())
assert all(abs(a - b) < 0.02 for a, b in infant.values())
assert 0 < lost < 0.2
assert same < 1e-8 and off < 4
average = {name: value.mean(1) for name, value in rmse.items()}
for other in ("mode", "mean", "MAP"):
    assert (average["expected"] < average[other]).all()
assert 0.1 < average["expected"][2] - full < 0.3
if "iterative" in average:
    behind = average["iterative"] - average["expected"]
    assert (behind[:2] < 0).all() and behind[2].abs() < 0.1 and (behind[3:] > 0.15).all()

# two distributions
assert "they overlap" in refusal_of_trees
assert all(40 < mmd[pair] / mmd["male", "female"] < 70 for pair in pairs[1:])
assert max(shuffled) < mmd["male", "female"] < 3 * max(shuffled)
assert estimates.std() > 0.2 * mmd["male", "female"]
assert abs(estimates.mean() - mmd["male", "female"]) < 4 * estimates.std() / 20**0.5
assert abs(float(kdsd(target, target))) < 1e-12
order = list(exact_kdsd.values())
assert 1e-3 < order[0] and order == sorted(order)
assert max(others["independent spins"].marginals()[i][1] - target.marginals()[i][1]
           for i in range(9)).abs() < 1e-9
assert min(null) <= found[0.3] <= max(null)
assert min(found[0.4], found[0.5]) > 5 * max(null)

# few samples
of_states = mean_error["states"].mean()
assert abs(mean_error["BBIS"].mean() - of_states) < 0.01
half, weighted_half = mean_error["50% summed out"].mean(), mean_error["CollapsedBBIS 50%"].mean()
assert half < 0.9 * of_states and weighted_half < 0.85 * half and weighted_half < 0.6 * of_states
assert mean_error["BP"] < 1e-3 < 1e-2 < mean_error["DPVI"]
assert log_z["BBIS"] + 1 < log_z["CollapsedBBIS 50%"] < float(exact_grid.log_mass()) - 0.1
assert "is zero in 4 of its 8 states" in refusal_of_zeros
truth_of = torch.tensor(answers["exact"])
off_by = {name: (torch.tensor(v) - truth_of).abs().max() for name, v in answers.items()}
assert off_by["softened, half summed out"] < 0.02 and off_by["BP"] < 1e-6
assert off_by["`either` summed out"] > 0.2
assert stein["`either` summed out"] > 10 * stein["softened, half summed out"]
assert distance["after"][0] < 0.05 < 0.3 < distance["before"][0]
assert distance["after"][1] < 0.5 * distance["before"][1]
assert 0.05 < effective / 200 < 0.2
"""


def test_the_notebook_runs_without_data(monkeypatch):
    monkeypatch.delenv("PYROGRAPH_DATA", raising=False)
    run(NOTEBOOK, "num_masks, num_shuffles, num_states, num_runs = 2, 3, 30, 2")


@pytest.mark.slow
def test_the_notebook_shows_what_its_text_claims(data_root):
    run(NOTEBOOK, claims=CLAIMS)


def test_the_notebook_is_small_and_without_errors():
    assert_small_and_without_errors(NOTEBOOK)
