"""What does not fit together is refused in words, with an error of the library's."""

import math

import pytest
import torch

from pyrograph.divergences import (
    Discrete,
    Factorised,
    FullyFactorised,
    Gaussian,
    Gaussian1D,
    Gridded,
    alpha_divergence,
    alpha_project,
    local_minima,
    log_affinity,
    optimal_scale,
    project,
    scale_free_divergence,
)
from pyrograph.errors import NonFiniteDensity, OptionError, ShapeMismatch, ZeroMass

QUANTITIES = [alpha_divergence, log_affinity, optimal_scale, scale_free_divergence]
NAN, INF = math.nan, math.inf


def gaussian(batch=(), log_mass=0.0, mean=0.0, covariance=None):
    covariance = torch.eye(2) if covariance is None else torch.tensor(covariance)
    return Gaussian(
        torch.full(batch, log_mass),
        torch.tensor([mean, 0.0]).expand(*batch, 2),
        covariance.expand(*batch, 2, 2),
    )


def discrete(*values):
    return Discrete(torch.tensor(values))


@pytest.mark.parametrize("of", QUANTITIES)
@pytest.mark.parametrize("wrong", [NAN, INF])
def test_masses_that_are_no_numbers_are_refused_for_every_quantity(of, wrong):
    with pytest.raises(NonFiniteDensity, match=r"^p has log masses"):
        of(discrete(wrong, 0.0), discrete(0.0, 0.0), 0.5)
    with pytest.raises(NonFiniteDensity, match=r"^q has log masses"):
        of(discrete(0.0, 0.0), discrete(wrong, 0.0), 0.5)
    with pytest.raises(NonFiniteDensity, match=r"^q has log masses"):
        of(gaussian(), gaussian(log_mass=wrong), 0.5)
    with pytest.raises(NonFiniteDensity, match=r"^p has a mean"):
        of(gaussian(mean=wrong), gaussian(), 0.5)


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.5, 1.0])
def test_measures_without_mass_cannot_be_normalised(alpha):
    some, none = discrete([0.0, 0.0], [0.0, -INF]), discrete([0.0, 0.0], [-INF, -INF])
    assert scale_free_divergence(some, some, alpha).eq(0).all()
    with pytest.raises(ZeroMass, match=r"^q has no mass at all in 1 of 2 measures"):
        scale_free_divergence(some, none, alpha)
    with pytest.raises(ZeroMass, match=r"^p has no mass"):
        scale_free_divergence(none, some, alpha)


@pytest.mark.parametrize("of", QUANTITIES)
def test_batches_that_do_not_broadcast_are_refused(of):
    p = Discrete(torch.zeros(3, 5))
    assert of(p, Discrete(torch.zeros(5)), torch.full((4, 1), 0.5)).shape == (4, 3)
    with pytest.raises(ShapeMismatch, match=r"p, q and alpha: batches \[3\] and \[3\] and \[4\]"):
        of(p, p, torch.full((4,), 0.5))
    assert of(gaussian((3,)), gaussian(), torch.full((4, 1), 0.5)).shape == (4, 3)
    with pytest.raises(ShapeMismatch, match=r"batches \[3\] and \[\] and \[4\]"):
        of(gaussian((3,)), gaussian(), torch.full((4,), 0.5))
    with pytest.raises(ShapeMismatch, match=r"batches \[3\] and \[2\]"):
        of(gaussian((3,)), gaussian((2,)), 0.5)
    torn = Gaussian(torch.zeros(3), torch.zeros(2, 2), torch.eye(2))
    with pytest.raises(ShapeMismatch, match=r"covariance of q: batches \[3\] and \[2\] and \[\]"):
        of(gaussian(), torn, 0.5)


@pytest.mark.parametrize("of", QUANTITIES)
def test_a_covariance_that_is_not_symmetric_is_refused(of):
    root = torch.tensor([[1.0, 0.0], [0.5, 1.0]])
    with pytest.raises(OptionError, match=r"^q has a covariance that is not symmetric; .* L @ L"):
        of(gaussian(), gaussian(covariance=root.tolist()), 0.5)
    whole = root @ root.mT + torch.tensor([[0.0, 1e-12], [0.0, 0.0]])
    assert of(gaussian(), gaussian(covariance=whole.tolist()), 0.5).isfinite()


@pytest.mark.parametrize("of", QUANTITIES)
@pytest.mark.parametrize("alpha", ["x", None, 1j, NAN, [0.5, "x"]], ids=str)
def test_an_alpha_that_is_no_number_is_refused(of, alpha):
    for p in (discrete(0.0, 0.0), gaussian()):
        with pytest.raises(OptionError, match=r"^alpha="):
            of(p, p, alpha)


TABLE = torch.tensor([[0.5, -1.0, 0.0], [0.0, 1.0, 0.3]])


@pytest.mark.parametrize("method", ["fixed point", "direct"])
@pytest.mark.parametrize("alpha", ["x", None, torch.tensor([0.5, 0.2]), NAN], ids=str)
def test_a_projection_takes_one_alpha(alpha, method):
    with pytest.raises(OptionError, match="finite number, one for the whole batch"):
        alpha_project(Discrete(TABLE, 2), FullyFactorised(), alpha, method)


def project_directly(p, family):
    return alpha_project(p, family, 0.5, "direct")


def project_by_iteration(p, family):
    return alpha_project(p, family, 0.5)


def minima(p, family):
    return local_minima(p, family, 0.5)


@pytest.mark.parametrize("solve", [project_directly, project_by_iteration, minima])
def test_what_has_no_approximation_is_refused(solve):
    with pytest.raises(NonFiniteDensity, match=r"^p has log masses"):
        solve(discrete([NAN, 0.0], [0.0, 1.0]), FullyFactorised())
    with pytest.raises(ZeroMass, match=r"^p has no mass"):
        solve(Discrete(torch.full((2, 2), -INF), 2), FullyFactorised())
    with pytest.raises(OptionError, match=r"^p is empty: its batch has the shape \[0\]"):
        solve(Discrete(torch.zeros(0, 2, 2), 2), FullyFactorised())
    with pytest.raises(ShapeMismatch, match="Gaussian is no measure on atoms"):
        solve(gaussian(), Gaussian1D())


@pytest.mark.parametrize("method", ["fixed point", "direct"])
def test_a_start_that_is_no_member_of_the_family_is_refused(method):
    x = torch.linspace(-6, 6, 61)
    targets = {FullyFactorised: Discrete(TABLE, 2), Gaussian1D: Gridded(-(x**2), x)}

    def start(init, family=FullyFactorised):
        return alpha_project(targets[family], family(), 0.5, method, init=init)

    def uniform(*cards, batch=()):
        return Factorised(torch.zeros(batch), tuple(torch.zeros(*batch, c) for c in cards))

    start(uniform(2, 3))
    with pytest.raises(OptionError, match="init is Gaussian, and the members of FullyFactorised"):
        start(gaussian())
    with pytest.raises(ShapeMismatch, match=r"\(2, 3\) and \(3, 2\) states"):
        start(uniform(3, 2))
    with pytest.raises(ShapeMismatch, match=r"batch \[4\], which is wider than \[\]"):
        start(uniform(2, 3, batch=(4,)))
    with pytest.raises(OptionError, match="init is Factorised, and the members of Gaussian1D"):
        start(uniform(2, 3), Gaussian1D)
    with pytest.raises(ShapeMismatch, match="2 dimensions; a grid on the line takes one"):
        start(gaussian(), Gaussian1D)


WRONG = {
    "step": ["a", None, 0.0, 1.5, True],
    "tol": ["a", None, NAN, -1.0],
    "max_steps": ["a", None, -3, 2.5],
    "restarts": ["a", None, -1, 1.5],
}


@pytest.mark.parametrize("name, value", [(n, v) for n, values in WRONG.items() for v in values])
def test_options_out_of_range_are_refused_by_name(name, value):
    for method in ("fixed point", "direct"):
        with pytest.raises(OptionError, match=f"^{name}="):
            alpha_project(Discrete(TABLE, 2), FullyFactorised(), 0.5, method, **{name: value})
    if name == "restarts":
        with pytest.raises(OptionError, match=r"^restarts="):
            local_minima(Discrete(TABLE, 2), FullyFactorised(), 0.5, restarts=value)


@pytest.mark.parametrize("family", [FullyFactorised, None, "FullyFactorised"])
@pytest.mark.parametrize("solve", [project_directly, project_by_iteration, minima, project])
def test_what_is_no_family_is_refused(solve, family):
    with pytest.raises(OptionError, match=r"is no family: give FullyFactorised\(\)"):
        solve(Discrete(TABLE, 2), family)


def test_the_projection_in_kl_refuses_what_the_others_do():
    with pytest.raises(NonFiniteDensity, match=r"^p has log masses"):
        project(discrete(NAN, 0.0), FullyFactorised())
    with pytest.raises(ZeroMass, match=r"^p has no mass"):
        project(discrete(-INF, -INF), FullyFactorised())


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.5, 2.0])
def test_no_scale_of_a_zero_measure_is_the_best(alpha):
    with pytest.raises(ZeroMass, match=r"^q has no mass"):
        optimal_scale(discrete(0.0, 1.0), discrete(-INF, -INF), alpha)


def test_what_is_no_measure_is_refused():
    one = torch.zeros(1)
    for of in QUANTITIES:
        with pytest.raises(ShapeMismatch, match="Tensor and Tensor"):
            of(one, one, 0.5)
    with pytest.raises(OptionError, match="Discrete: log_mass is a list"):
        Discrete([0.0, 1.0])
    with pytest.raises(OptionError, match="Gridded: points is a list"):
        Gridded(one, [0.0])
    with pytest.raises(OptionError, match="Gaussian: log_mass is a float"):
        Gaussian(0.0, one, torch.eye(1))
    with pytest.raises(ShapeMismatch, match="the mean is a number"):
        Gaussian(torch.zeros(()), torch.zeros(()), torch.eye(1))


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda x: Gridded(x, x, [0.0] * 5), OptionError, "Gridded: log_weights is a list"),
        (lambda x: Gridded(x[0], x[0]), ShapeMismatch, "Gridded: log_density is a number"),
        (lambda x: Gridded(x, x[0]), ShapeMismatch, "Gridded: points is a number"),
        (lambda x: Discrete(x, "1"), OptionError, "num_variables='1' must be a whole number"),
        (lambda x: Discrete(x, 1.0), OptionError, r"num_variables=1\.0 must be a whole number"),
        (lambda x: Discrete(x, True), OptionError, "num_variables=True must be a whole number"),
        (lambda x: Discrete(x + 1j), OptionError, "log_mass is torch.complex128; .* real numbers"),
        (lambda x: Discrete(x > 0), OptionError, "log_mass is torch.bool; .* real numbers"),
        (lambda x: Factorised(0.0, (x,)), OptionError, "Factorised: log_mass is a float"),
        (lambda x: Factorised(x[0], ([0.0],)), OptionError, "Factorised: marginal 0 is a list"),
        (lambda x: Factorised(x[0], (x[0],)), ShapeMismatch, "marginal 0 is a number"),
        (lambda x: Factorised(x[0], ()), OptionError, "one tensor per variable"),
        (lambda x: gaussian().on_grid(Discrete(x)), OptionError, "on_grid takes .* not a Discrete"),
        (
            lambda x: Gaussian(x[0], torch.zeros(3, 0), torch.zeros(0, 0)),
            ShapeMismatch,
            r"the mean has shape \[3, 0\]: no dimension is left",
        ),
    ],
)
def test_measures_that_are_none_are_refused_where_they_are_made(make, error, said):
    with pytest.raises(error, match=said):
        make(torch.linspace(-1, 1, 5))


@pytest.mark.parametrize("of", QUANTITIES)
def test_an_infinite_covariance_is_refused(of):
    flat = gaussian(covariance=[[1.0, 0.0], [0.0, INF]])
    with pytest.raises(NonFiniteDensity, match=r"^q has a covariance that is infinite"):
        of(gaussian(), flat, 0.5)
    with pytest.raises(NonFiniteDensity, match=r"^p has a covariance that is infinite"):
        of(flat, gaussian(), 0.5)
