"""The graphical KSD against double loops, closed forms and what theory says it is."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.diagnostics import graphical_ksd, stein_gram
from pyrograph.diagnostics.ksd import flat_particles
from pyrograph.errors import NonFiniteDensity, OptionError, ShapeMismatch, UnsupportedSite
from pyrograph.infer.initial import starting_particles
from pyrograph.kernels import IMQ, RBF, Layout, RandomNeighbors, SteinOperator
from pyrograph.posterior import ParticlePosterior
from tests.kernels.reference import double_loop, drawn_scopes


def gaussian(precision, mean=None):
    """A program with density N(mean, precision^-1), one factor per non-zero pair."""
    d = len(precision)
    mean = torch.zeros(d) if mean is None else mean
    first, second = torch.triu_indices(d, d, 1)
    keep = precision[first, second] != 0
    first, second = first[keep], second[keep]

    def model():
        with pyro.plate("nodes", d):
            x = pyro.sample("x", dist.Normal(mean, precision.diagonal().rsqrt()))
        z = x - mean
        if len(first) == 0:
            return
        with pyro.plate("edges", len(first)):
            pyro.factor("pair", -precision[first, second] * z[first] * z[second])

    return model


def chain():
    off = torch.full((3,), -0.8)
    return 2 * torch.eye(4) + torch.diag(off, 1) + torch.diag(off, -1)


@pytest.fixture
def graph():
    return pg.trace_graph(gaussian(chain()), unconstrained=True)


@pytest.mark.parametrize("locality", ["blanket", "global"])
@pytest.mark.parametrize("kernel", [RBF(), IMQ(), RBF(2.0)], ids=repr)
def test_both_statistics_equal_a_double_loop(graph, kernel, locality):
    n = 5
    x = torch.randn(n, 4)
    scopes = drawn_scopes(SteinOperator(Layout.of(graph), kernel, locality))
    truth = double_loop(x, -x @ chain(), kernel, scopes)
    v = graphical_ksd(graph, x, kernel, locality, "V")
    u = graphical_ksd(graph, x, kernel, locality, "U")
    assert float(v) == pytest.approx(truth.total / n**2, abs=1e-10)
    assert float(u) == pytest.approx((truth.total - truth.diagonal) / (n * (n - 1)), abs=1e-10)


def test_it_is_the_kernel_form_of_score_differences():
    # D^2 = sum_i E_{x,x'~q} d_i(x) d_i(x') k_i with d_i = d_i log p - d_i log q (T1), q Gaussian:
    # for q = N(0, v), p = N(0, 1) in one dimension d = (1/v - 1) x, and with k = exp(-u^2 / h)
    # E[x x' exp(-(x - x')^2 / h)] = 2 v^2 / h (1 + 4 v / h)^(-3/2), by Gaussian integrals.
    model = gaussian(torch.ones(1, 1))
    graph = pg.trace_graph(model, unconstrained=True)
    v, h, n = 0.5, 2.0, 4000
    # quantiles instead of draws: the V-statistic is then a quadrature rule
    x = dist.Normal(0.0, v**0.5).icdf((torch.arange(n) + 0.5) / n)[:, None]
    closed = (1 / v - 1) ** 2 * 2 * v**2 / h * (1 + 4 * v / h) ** -1.5
    assert float(graphical_ksd(graph, x, RBF(h))) == pytest.approx(closed, rel=2e-3)


def test_the_local_kernel_is_blind_to_correlation_that_the_blankets_do_not_show():
    # T3: p = N(0, I) has empty blankets; q with correlation .7 has its conditionals on them right
    graph = pg.trace_graph(gaussian(torch.eye(2)), unconstrained=True)
    q = dist.MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, 0.7], [0.7, 1.0]]))
    x = q.sample((3000,))
    local = float(graphical_ksd(graph, x, statistic="U"))
    everything = float(graphical_ksd(graph, x, locality="global", statistic="U"))
    assert abs(local) < 5e-3
    assert everything == pytest.approx(0.16, abs=0.02)


@pytest.mark.parametrize("locality", ["blanket", "global"])
def test_kl_falls_along_the_direction_at_the_rate_of_the_discrepancy(locality):
    # d/de KL(q_e || p) = -D^2 at e = 0. KL = -H(q_e) - E log p; H changes by E div phi and
    # E log p by E phi . s, both plain means of the particle direction over q, so on a sample the
    # identity holds exactly for the V-statistic: mean_m [phi(x_m) . s(x_m) + div phi(x_m)].
    graph = pg.trace_graph(gaussian(chain()), unconstrained=True)
    x, h = torch.randn(6, 4), 2.0
    operator = SteinOperator(Layout.of(graph), RBF(h), locality)
    score = -x @ chain()
    step = 1e-5
    divergence = 0.0
    for m in range(6):
        for column in range(4):
            # move an extra, weightless particle: differentiate the field, not the sample
            values = []
            for sign in (1, -1):
                probe = x[m].clone()
                probe[column] += sign * step
                values.append(field_at(operator, x, score, probe, h)[column])
            divergence += float(values[0] - values[1]) / (2 * step)
    phi = operator(x, score).direction
    rate = float((phi * score).sum() + divergence) / 6
    assert rate == pytest.approx(float(graphical_ksd(graph, x, RBF(h), locality)), rel=1e-6)


def field_at(operator, x, score, probe, h):
    """phi at any point, by the definition."""
    ((_, scopes),) = drawn_scopes(operator)
    out = torch.zeros_like(probe)
    for column, scope in enumerate(scopes):
        k = torch.exp(-(x[:, scope] - probe[scope]).square().sum(1) / h)
        slope = -2 / h * (x[:, column] - probe[column]) * k
        out[column] = (k * score[:, column] + slope).mean()
    return out


def test_it_falls_as_particles_become_draws_of_p(graph):
    p = dist.MultivariateNormal(torch.zeros(4), precision_matrix=chain())
    good, wide, shifted = p.sample((300,)), 1.7 * p.sample((300,)), p.sample((300,)) + 0.7
    ksd = [float(graphical_ksd(graph, x)) for x in (good, wide, shifted)]
    assert ksd[0] < 0.2 * min(ksd[1:])
    # the U-statistic of true draws is zero up to noise
    assert abs(float(graphical_ksd(graph, good, statistic="U"))) < 0.02


def test_dicts_posteriors_and_tensors_are_the_same_particles():
    def model():
        pyro.sample("s", dist.LogNormal(0.0, 1.0))
        pyro.sample("w", dist.Dirichlet(torch.ones(3)))

    graph = pg.trace_graph(model, unconstrained=True)
    x = torch.randn(8, graph.dim)
    particles = graph.constrain(graph.unflatten(x))
    assert_close(graphical_ksd(graph, particles), graphical_ksd(graph, x))

    class Holder:
        pass

    holder = Holder()
    holder.particles = particles
    assert_close(graphical_ksd(graph, holder), graphical_ksd(graph, x))


@pytest.mark.parametrize("kernel", [RBF(2.0), IMQ(2.0)], ids=repr)
def test_it_is_differentiable_in_the_particles(graph, kernel):
    x = torch.randn(5, 4, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: graphical_ksd(graph, z, kernel), x)
    assert not graphical_ksd(graph, x.detach()).requires_grad


def test_wrong_shapes_and_options_are_refused(graph):
    with pytest.raises(ShapeMismatch, match=r"expected \[n, 4\]"):
        graphical_ksd(graph, torch.zeros(3, 5))
    with pytest.raises(ShapeMismatch, match='site "x"'):
        graphical_ksd(graph, {"y": torch.zeros(3, 4)})
    for shape in ((), (4,), (3, 5)):
        with pytest.raises(ShapeMismatch, match='site "x"'):
            graphical_ksd(graph, {"x": torch.zeros(shape)})
    with pytest.raises(OptionError, match="not a factor graph"):
        graphical_ksd(lambda: None, torch.zeros(3, 4))
    with pytest.raises(OptionError, match="statistic"):
        graphical_ksd(graph, torch.zeros(3, 4), statistic="W")
    with pytest.raises(OptionError, match="two particles"):
        graphical_ksd(graph, torch.zeros(1, 4), statistic="U")


@pytest.mark.parametrize("unconstrained", [True, False])
@pytest.mark.parametrize(
    "wrong",
    [
        {"p": torch.tensor([0.2, 1.5])},
        {"p": torch.tensor([0.2, -1.0])},
        {"p": torch.tensor([0.2, torch.nan])},
        {"w": torch.tensor([[0.2, 0.3, 0.5], [1.0, 1.0, 1.0]])},
        {"w": torch.tensor([[0.2, 0.3, 0.5], [1.5, -0.3, -0.2]])},
    ],
)
def test_a_value_outside_its_support_is_refused_by_name(unconstrained, wrong):
    def model():
        pyro.sample("p", dist.Beta(2.0, 2.0))
        pyro.sample("w", dist.Dirichlet(torch.ones(3)))

    graph = pg.trace_graph(model, unconstrained=unconstrained)
    values = {"p": torch.tensor([0.2, 0.4]), "w": torch.full((2, 3), 1 / 3)}
    read = graphical_ksd if unconstrained else flat_particles  # no discrepancy where edges are
    assert read(graph, values).isfinite().all()
    (site,) = wrong
    with pytest.raises(OptionError, match=f'site "{site}" is outside.*particle 1 .support: '):
        read(graph, values | wrong)


def test_what_holds_no_particles_is_refused_and_told_of_samples(graph):
    posterior = pg.fit(gaussian(chain()), infer=pg.EP, progress=False)
    for x in (posterior, [0.0, 1.0], None):
        with pytest.raises(OptionError, match=r"posterior\.sample\(n\)"):
            graphical_ksd(graph, x)
    assert graphical_ksd(graph, posterior.sample(20)).isfinite()


def test_a_non_finite_score_names_factor_and_particle():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("edge", -torch.exp(100 * x))  # overflows for x > 7.1

    graph = pg.trace_graph(model, unconstrained=True)
    with pytest.raises(NonFiniteDensity, match=r'"edge".*particle 1'):
        graphical_ksd(graph, torch.tensor([[3.0], [8.0], [4.0]]))


@pytest.mark.parametrize(
    "prior",
    [dist.HalfNormal(1.0), dist.Uniform(0.0, 1.0), dist.Dirichlet(torch.full((3,), 2.0))],
    ids=lambda d: type(d).__name__,
)
def test_a_support_with_an_edge_needs_the_unconstrained_space(prior):
    def model():
        pyro.sample("x", prior)

    draws = {"x": prior.sample((1500,))}
    for statistic in (graphical_ksd, stein_gram):
        with pytest.raises(OptionError, match=r'site "x".*unconstrained=True'):
            statistic(pg.trace_graph(model), draws)
    graph = pg.trace_graph(model, unconstrained=True)
    # 0 for draws of p itself
    assert abs(float(graphical_ksd(graph, draws, statistic="U"))) < 0.02


def test_a_constrained_graph_over_the_reals_is_as_good_as_an_unconstrained_one():
    def model():
        pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("v", dist.MultivariateNormal(torch.zeros(2), torch.eye(2)))

    x = torch.randn(5, 4)
    there, here = (pg.trace_graph(model, unconstrained=flag) for flag in (True, False))
    assert_close(graphical_ksd(here, x), graphical_ksd(there, x))


def stein_matrix(x, score, h):
    """``[n, n]`` of points and scores ``[n]``, with k = exp(-(x - y)^2 / h)."""
    delta = x[:, None] - x
    k = torch.exp(-delta.square() / h)
    # d k / dx = -2 delta k / h and d^2 k / dx dy = (2 / h - 4 delta^2 / h^2) k
    cross = (score[:, None] - score) * 2 * delta / h
    return k * (score[:, None] * score + cross + 2 / h - 4 * delta.square() / h**2)


@pytest.mark.parametrize("prior", [dist.Bernoulli(0.5), dist.Normal(0.0, 1.0)], ids=repr)
def test_fixed_sites_have_no_part_in_it(prior):
    def model():
        z = pyro.sample("z", prior)
        pyro.sample("x", dist.Normal(2 * z, 1.0))

    graph = pg.trace_graph(model, unconstrained=True, fixed={"z": torch.tensor(1.0)})
    x = torch.randn(6)
    score = 2.0 - x  # of N(2, 1)
    truth = stein_matrix(x, score, 1.5).mean()
    for particles in (x[:, None], {"x": x}, {"x": x, "z": torch.ones(6)}):
        assert_close(graphical_ksd(graph, particles, RBF(1.5)), truth)


def within(reach):
    def model():
        top = pyro.sample("top", dist.LogNormal(0.0, 0.5))
        pyro.sample("x", dist.Uniform(0.0, reach * top))

    return model


def test_a_posterior_brings_its_numbers_where_supports_depend_on_latents():
    posterior = pg.fit(within(1.0), num_steps=5, progress=False)
    truth = graphical_ksd(posterior.graph, posterior.x)
    for graph in (posterior.graph, pg.trace_graph(within(1.0), unconstrained=True)):
        assert_close(graphical_ksd(graph, posterior), truth)
    # other bounds give the same numbers other values
    other = pg.trace_graph(within(2.0), unconstrained=True)
    for graph, x in ((other, posterior), (posterior.graph, posterior.particles)):
        with pytest.raises(UnsupportedSite, match=r'site "x".*depends on other latents'):
            graphical_ksd(graph, x)


def test_a_posteriors_own_numbers_do_not_go_through_the_map_and_back():
    def model():
        pyro.sample("p", dist.Uniform(*torch.tensor([0.0, 1.0], dtype=torch.float32)))

    # single precision cannot tell sigmoid(24) from sigmoid(17)
    x = torch.linspace(-3, 24, 28, dtype=torch.float32)
    score = -(x.double() / 2).tanh()  # of the logistic density
    truth = stein_matrix(x.double(), score, 2.0).mean().float()
    graph, again = (pg.trace_graph(model, unconstrained=True) for _ in range(2))
    posterior = ParticlePosterior(graph, x[:, None], converged=True, status="", history={})
    for target in (graph, again):
        assert torch.equal(starting_particles(posterior, len(x), target), x[:, None])
        assert_close(graphical_ksd(target, posterior, RBF(2.0)), truth)


@pytest.mark.parametrize("unconstrained", [True, False])
def test_a_periodic_density_is_refused_by_name(unconstrained):
    def model():
        pyro.sample("t", dist.VonMises(0.0, 2.0))

    graph = pg.trace_graph(model, unconstrained=unconstrained)
    with pytest.raises(UnsupportedSite, match=r'site "t" \(VonMises\) is periodic.*atan2'):
        graphical_ksd(graph, torch.zeros(3, 1))


class Bearing(dist.VonMises):
    """A user's own name for an angle."""


ANGLES = {
    "derived": lambda: Bearing(0.0, 2.0),
    "mixed": lambda: dist.MixtureSameFamily(
        dist.Categorical(torch.ones(2)), dist.VonMises(torch.tensor([0.0, 3.0]), 2.0)
    ),
    "moved": lambda: dist.TransformedDistribution(
        dist.VonMises(3.0, 2.0), dist.transforms.AffineTransform(1.0, 2.0)
    ),
}


@pytest.mark.parametrize("angle", ANGLES.values(), ids=ANGLES)
def test_a_periodic_density_is_refused_whatever_wraps_it(angle):
    graph = pg.trace_graph(lambda: pyro.sample("t", angle()), unconstrained=True)
    with pytest.raises(UnsupportedSite, match=r'site "t" .*is periodic.*atan2'):
        graphical_ksd(graph, torch.zeros(3, 1))


def test_particles_that_are_no_numbers_are_refused(graph):
    with pytest.raises(OptionError, match=r'particles of site "x" are a str'):
        graphical_ksd(graph, {"x": "a"})


def test_inference_mode_changes_nothing(graph):
    x = torch.randn(5, 4)
    truth, gram = graphical_ksd(graph, x), stein_gram(graph, x)
    fresh = pg.trace_graph(gaussian(chain()), unconstrained=True)
    with torch.inference_mode():
        for particles in (x, x.clone()):
            assert_close(graphical_ksd(fresh, particles), truth)
            assert_close(stein_gram(fresh, particles), gram)
    # and nothing of it stays behind
    moving = x.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: graphical_ksd(fresh, z, RBF(2.0)), moving)


@pytest.mark.parametrize("measure", [graphical_ksd, stein_gram])
def test_what_is_no_generator_or_not_real_is_refused(graph, measure):
    x = torch.randn(5, 4)
    for locality in ("blanket", RandomNeighbors(1)):
        with pytest.raises(OptionError, match="generator=3 is not a"):
            measure(graph, x, locality=locality, generator=3)
    for given in (x + 1j, {"x": x + 1j}):
        with pytest.raises(OptionError, match=r"must be real numbers; got torch\.complex128"):
            measure(graph, given)


def test_in_double_precision_no_eigenvalue_of_single_scores_is_below_zero():
    one = torch.tensor(1.0, dtype=torch.float32)
    graph = pg.trace_graph(lambda: pyro.sample("x", dist.Normal(0 * one, one)), unconstrained=True)
    x = torch.randn(300, 1, dtype=torch.float32)
    single, double = stein_gram(graph, x), stein_gram(graph, x, dtype=torch.float64)
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    assert_close(single.double(), double, rtol=1e-4, atol=1e-4)
    low, high = torch.linalg.eigvalsh(double)[[0, -1]]
    assert float(low) > -1e-13 * float(high)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_row_repeated_is_the_measure_of_the_row(dtype):
    def model():
        pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    graph = pg.trace_graph(model, unconstrained=True).to(None, dtype)
    one, five = (
        float(pg.diagnostics.graphical_ksd(graph, torch.ones(n, 2, dtype=dtype))) for n in (1, 5)
    )
    assert five == pytest.approx(one, rel=1e-5)
