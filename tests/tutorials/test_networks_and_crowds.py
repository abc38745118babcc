import pytest

from .notebooks import assert_small_and_without_errors, run

NOTEBOOK = "networks_and_crowds.ipynb"

CLAIMS = """
assert set(errors) == {
    "mean of three answers", "median of three answers", "mean of all answers", *kernels
}
assert errors["default"] < 0.9 * errors["mean of three answers"]
assert max(errors[name] for name in kernels) < 0.95 * errors["mean of three answers"]
assert widths["RBF on everything"] < 0.4 < 0.75 < widths["RBF on blankets"] < widths["default"]
assert 0.7 < inside < 0.9
assert 'mean score of site "lean"' in posterior.status
assert error(rough[None]) > 1.2 * error(locate().particles["x"])
assert abs(error(locate().particles["x"]) - error(exact)) < 0.03
assert abs(spread(locate().particles["x"]) / spread(exact) - 1) < 0.1
assert spread(locate(10, **kernels["RBF on blankets"]).particles["x"]) < 0.9 * spread(exact)
"""


def test_the_notebook_runs_from_end_to_end(data_root):
    run(NOTEBOOK, "num_steps, num_draws = 10, 20")


@pytest.mark.slow
def test_the_notebook_shows_what_its_text_claims(data_root):
    run(NOTEBOOK, claims=CLAIMS)


def test_the_notebook_is_small_and_without_errors():
    assert_small_and_without_errors(NOTEBOOK)
