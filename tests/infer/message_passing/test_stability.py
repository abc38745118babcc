"""Fixed points that sweeps would leave: where mean field of the Ising model loses its symmetric
maximum, and mixtures whose components the program does not tell apart. Truth is the eigenvalues of
couplings, and bounds in closed form."""

import math
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import MultivariateNormal, Normal, kl_divergence
from torch.testing import assert_close

import pyrograph as pg
from pyrograph.errors import ConvergenceWarning
from pyrograph.infer.message_passing.settling import left_alike, left_empty

SIX = torch.combinations(torch.arange(6))  # all pairs of six nodes: each has five neighbours


def spins(coupling, pairs=SIX, each=0.0):
    """Means m solve m = tanh(A m), A the couplings: 0 is the maximum of mean field's bound as long
    as all eigenvalues of A are below 1."""
    with pyro.plate("nodes", int(pairs.max()) + 1):
        s = 2 * pyro.sample("s", dist.Bernoulli(torch.tensor(0.5))) - 1
    with pyro.plate("pairs", len(pairs)):
        pyro.factor("f", coupling * s[pairs[:, 0]] * s[pairs[:, 1]] + each)


def run(model, *args, infer=pg.VMP, **options):
    """A posterior, and what warnings said."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        posterior = pg.fit(model, args, infer=infer, progress=False, **options)
    return posterior, [str(w.message) for w in seen if w.category is ConvergenceWarning]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("schedule", ["parallel", "sequential", "residual"])
def test_a_ferromagnet_is_unstable_from_its_critical_coupling_on(schedule, dtype):
    options = {"schedule": schedule, "dtype": dtype}
    cold, said = run(spins, 1.07 / 5, **options)
    assert cold.converged and "unstable" in cold.status and said == [cold.status]
    assert_close(cold.marginal("s").probs, torch.full((6, 2), 0.5, dtype=dtype))
    warm, said = run(spins, 0.97 / 5, **options)
    assert warm.converged and warm.status == "converged" and not said


def test_a_large_constant_hides_the_rise_of_the_bound_and_no_instability():
    """In single precision bounds of -10,000 are a thousandth apart, and the rise is a millionth."""
    ring = torch.tensor([[k, (k + 1) % 10] for k in range(10)])
    for each in (0.0, -1e3):
        posterior, said = run(spins, 0.8, ring, each, dtype=torch.float32)
        assert "unstable" in posterior.status and said == [posterior.status]


def test_the_growth_is_the_largest_eigenvalue():
    """Of the couplings, where all messages are sent at once."""
    for coupling, pairs in ((0.3, SIX), (0.7, torch.tensor([[k, (k + 1) % 6] for k in range(6)]))):
        a = torch.zeros(6, 6)
        a[pairs[:, 0], pairs[:, 1]] = a[pairs[:, 1], pairs[:, 0]] = coupling
        posterior, _ = run(spins, coupling, pairs, schedule="parallel")
        grows = float(posterior.status.split(" grows ")[1].split()[0])
        assert grows == pytest.approx(float(torch.linalg.eigvalsh(a).amax()), rel=0.01)


def test_oscillations_are_none_of_it():
    """An antiferromagnet of six nodes that all meet has eigenvalues -2.5 and 0.5."""
    posterior, said = run(spins, -0.5, schedule="parallel")
    assert posterior.status == "converged" and not said


def test_belief_propagation_with_the_true_marginals_is_not_warned_of():
    for infer in (pg.BP, pg.FractionalBP, pg.TRW, pg.EP):
        posterior, said = run(spins, 0.6, infer=infer)
        assert posterior.status == "converged" and not said
        assert_close(posterior.marginal("s").probs, torch.full((6, 2), 0.5))


NOISE, WIDE = 0.5, 3.0


def clusters(count, size, seed=2):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, size, generator=generator, device="cpu")
    return 4.0 * (torch.arange(count) - (count - 1) / 2)[:, None] + NOISE * noise


def mixture(y, count, apart):
    with pyro.plate("components", count):
        mu = pyro.sample("mu", dist.Normal(apart * torch.arange(count), WIDE))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Categorical(torch.ones(count)))
        pyro.sample("y", dist.Normal(mu[z], NOISE), obs=y)


def of_labelling(y):
    """log p(y, z) of clusters ``[K, n]``: what a belief that is sure of z bounds."""
    count, size = y.shape
    law = MultivariateNormal(
        torch.zeros(size), NOISE**2 * torch.eye(size) + WIDE**2 * torch.ones(size, size)
    )
    return law.log_prob(y).sum() - y.numel() * math.log(count)


def of_equal_means(y):
    """The bound where all components have the same mean and all labels the same odds."""
    count, flat = len(y), y.flatten()
    precision = WIDE**-2 + len(flat) / count / NOISE**2
    q = Normal(flat.sum() / count / NOISE**2 / precision, precision**-0.5)
    expected = Normal(q.mean, NOISE).log_prob(flat).sum()
    expected = expected - 0.5 * len(flat) * q.variance / NOISE**2
    return expected - count * kl_divergence(q, Normal(0.0, WIDE))


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_components_that_are_all_alike_come_to_hold_clusters_of_their_own(schedule):
    y = clusters(3, 20)
    posterior, said = run(mixture, y.flatten(), 3, 0.0, schedule=schedule)
    left = posterior.history["residual"].isinf()
    assert bool(left.any())
    assert_close(posterior.history["objective"][left][0], of_equal_means(y).double())
    assert posterior.log_evidence > of_labelling(y) - 0.1 > of_equal_means(y) + 1000
    assert posterior.status == "converged" and not said
    found = posterior.marginal("mu").mean.sort().values
    assert_close(found, y.mean(1), atol=0.1, rtol=0)


def test_where_a_fixed_point_is_not_left_the_status_tells(monkeypatch):
    monkeypatch.setattr("pyrograph.infer.message_passing.engine.LEAVES", 0)
    y = clusters(3, 20)
    alike, said = run(mixture, y.flatten(), 3, 0.0)
    assert_close(alike.log_evidence, of_equal_means(y))
    assert alike.converged and said == [alike.status]
    assert "no maximum of the bound" in alike.status and "pg.QBethe" in alike.status
    told, said = run(mixture, y.flatten(), 3, 0.1)
    assert told.log_evidence > of_labelling(y) - 0.1
    assert told.status == "converged" and not said


def test_a_fixed_point_met_in_the_last_step_is_told_and_not_left():
    y = clusters(3, 20)
    alike, said = run(mixture, y.flatten(), 3, 0.0, num_steps=2)
    assert alike.converged and said == [alike.status] and "unstable" in alike.status
    assert_close(alike.log_evidence, of_equal_means(y))


@pytest.mark.parametrize("trials", [0, left_alike.TRIALS])
def test_a_run_that_leaves_is_reproducible_and_can_be_resumed(trials, monkeypatch):
    monkeypatch.setattr(left_alike, "TRIALS", trials)
    y = clusters(4, 10).flatten()

    def engine(seed):
        pyro.set_rng_seed(seed)
        return pg.VMP(mixture, progress=False)

    whole = engine(3)
    whole.run(y, 4, 0.0)
    left = whole.history["residual"].isinf().nonzero()[0].item()
    for stop in {left, left + 1, min(left + 4, whole.num_done)}:  # before, and on the way
        half = engine(3)
        half.setup(y, 4, 0.0)
        for _ in range(stop):
            half.step()
        resumed = engine(11)
        resumed.load_state_dict(half.state_dict())
        resumed.run(y, 4, 0.0)
        assert_same(resumed.state_dict(), whole.state_dict())
    again = engine(3)
    again.run(y, 4, 0.0)
    assert_same(again.state_dict(), whole.state_dict())


OVERLAPPING = torch.tensor([-0.9, -1.0, 1.0, 1.1])


def alike_start():
    """Messages to power EP that begin as mean field's do, with components that are alike."""
    return pg.PowerEP(mixture).setup(OVERLAPPING, 2, 0.0).state_dict()["messages"]


@pytest.mark.parametrize("infer", [pg.PowerEP, pg.VMP])
def test_a_run_from_nearby_ends_elsewhere_where_a_fixed_point_is_called_unstable(
    infer, monkeypatch
):
    monkeypatch.setattr("pyrograph.infer.message_passing.engine.LEAVES", 0)
    start = {"init": alike_start()} if infer is pg.PowerEP else {}
    engine = infer(mixture, progress=False, **start)
    with pytest.warns(ConvergenceWarning, match="unstable.*mu"):
        alike = engine.run(OVERLAPPING, 2, 0.0)
    equal = alike.marginal("mu").mean
    assert_close(equal[0], equal[1])
    nearby = engine.state_dict()["messages"]
    for name, message in nearby.items():
        if name.endswith("shift") or name.count(".") == 1:  # of Gaussian ones, and of labels
            message += 1e-3 * torch.randn_like(message)
    other, said = run(mixture, OVERLAPPING, 2, 0.0, infer=infer, init=nearby)
    assert other.status == "converged" and not said
    assert abs(other.marginal("mu").mean.diff()) > 1.5
    assert other.log_evidence > alike.log_evidence + 1
    monkeypatch.undo()
    by_itself, said = run(mixture, OVERLAPPING, 2, 0.0, infer=infer, **start)
    assert by_itself.status == "converged" and not said
    assert_close(by_itself.log_evidence, other.log_evidence)


@pytest.mark.parametrize("infer", [pg.PowerEP, pg.VMP])
def test_the_look_changes_nothing(infer, monkeypatch):
    monkeypatch.setattr("pyrograph.infer.message_passing.engine.LEAVES", 0)
    start = {"init": alike_start()} if infer is pg.PowerEP else {}
    engine = infer(mixture, progress=False, **start)
    engine.setup(OVERLAPPING, 2, 0.0)
    while not engine.converged:
        engine.step()
    before, stream = engine.state_dict(), torch.get_rng_state()
    status = engine.status
    assert "unstable" in status and not engine.is_stable
    assert torch.equal(torch.get_rng_state(), stream)
    assert_same(engine.state_dict(), before)
    resumed = infer(mixture, progress=False)
    resumed.load_state_dict(before)
    with pytest.warns(ConvergenceWarning, match="unstable"):
        posterior = resumed.run(OVERLAPPING, 2, 0.0)
    assert posterior.status == status
    assert_same(resumed.state_dict(), before)


def assert_same(state, other):
    assert state.keys() == other.keys()
    for name, value in state.items():
        if isinstance(value, dict):
            assert_same(value, other[name])
        else:
            assert_close(value, other[name], rtol=0, atol=0, equal_nan=True)


# ---------------------------------------------------------------------- alternatives left alike
def one_scale(y, loc):
    """The mixture of Pyro's tutorial: a scale that both components share."""
    w = pyro.sample("w", dist.Dirichlet(0.5 * torch.ones(2)))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 2.0))
    with pyro.plate("components", 2):
        locs = pyro.sample("locs", dist.Normal(loc, 10.0))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Categorical(w))
        pyro.sample("y", dist.Normal(locs[z], scale), obs=y)


CLUSTERS = torch.tensor([0.0, 1.0, 10.0, 11.0, 12.0])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_components_that_one_broad_scale_holds_together_come_apart(seed):
    """The scale takes in what is between the clusters: a maximum, at -21.3, but not the highest
    one, which starts that are apart lead to. Truth: log Z = -17.13, by sums over all labels and
    quadrature over the scale, P(first two apart from the others) = .88."""
    apart = pg.fit(one_scale, (CLUSTERS, torch.tensor([-5.0, 5.0])), infer=pg.VMP, progress=False)
    pyro.set_rng_seed(seed)
    q = pg.fit(one_scale, (CLUSTERS, torch.zeros(2)), infer=pg.VMP, progress=False)
    assert q.converged and "same belief" not in q.status
    assert -19 < float(q.log_evidence) < -17.13
    locs = q.marginal("locs").mean.sort().values
    assert_close(locs, apart.marginal("locs").mean, rtol=0, atol=0.1)
    labels = q.marginal("z").probs.argmax(-1)
    assert labels[0] == labels[1] != labels[2] and labels[2] == labels[3] == labels[4]


@pytest.mark.parametrize("is_given", [False, True])
def test_power_ep_goes_on_from_mean_fields_messages(is_given):
    """From components that are alike it rests where both are broad, at -20.3."""
    pyro.set_rng_seed(0)
    start = pg.VMP(one_scale, progress=False)
    bound = float(start.run(CLUSTERS, torch.zeros(2)).log_evidence)
    init = start.state_dict()["messages"] if is_given else None
    q, _ = run(one_scale, CLUSTERS, torch.zeros(2), infer=pg.PowerEP, init=init)
    assert q.converged
    assert bound + 0.1 < float(q.log_evidence) < -17.13
    locs = q.marginal("locs").mean.sort().values
    assert_close(locs, torch.tensor([0.5, 11.0], dtype=locs.dtype), rtol=0, atol=0.1)


def test_components_that_stay_alike_are_told_of():
    """Of a cluster no wider than its noise no trial comes higher."""
    q, _ = run(mixture, 0.3 * torch.linspace(-1, 1, 8), 2, 0.0)
    assert q.converged and '"mu"[0] and "mu"[1] have the same belief' in q.status


def test_empty_components_are_as_their_prior_is_and_not_told_of():
    y = torch.tensor([-6.1, -5.9, -6.0, 6.0, 6.2, 5.9])

    def model():
        with pyro.plate("components", 4):
            locs = pyro.sample("locs", dist.Normal(torch.tensor([-6.0, 6.0, 0.0, 0.0]), 3.0))
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Categorical(torch.ones(4) / 4))
            pyro.sample("y", dist.Normal(locs[z], 0.2), obs=y)

    q = pg.fit(model, (), infer=pg.VMP, progress=False)
    assert q.converged and "same belief" not in q.status


# ---------------------------------------------------------------------- states left without data
def two_scales(y):
    """Numbers of two scales, of which little is known beforehand."""
    with pyro.plate("components", 2):
        scale = pyro.sample("scale", dist.LogNormal(torch.tensor([-1.0, 1.0]), 5.0))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.6, 0.4])))
        pyro.sample("y", dist.Normal(0.0, scale[z]), obs=y)


def bound_of_two_scales(y, mean, log_sd):
    """Mean field's, labels summed out, with log scales ~ N(mean, e^(2 log_sd)): closed form."""
    v = (2 * log_sd).exp()
    log_p = -mean - 0.5 * y[:, None] ** 2 * (2 * v - 2 * mean).exp() - 0.5 * math.log(2 * math.pi)
    log_p = torch.logsumexp(log_p + torch.tensor([0.6, 0.4]).log(), -1).sum()
    prior = dist.Normal(torch.tensor([-1.0, 1.0]), 5.0)
    return log_p - torch.distributions.kl_divergence(dist.Normal(mean, v.sqrt()), prior).sum()


def test_a_scale_that_no_number_has_is_given_some():
    """A prior as vague leaves the first component empty, where the bound is 11.9 lower."""
    narrow, wide = torch.linspace(-0.5, 0.5, 6), torch.tensor([-7.0, -2.5, 3.0, 5.5])
    y = torch.cat([narrow, wide])
    at = torch.tensor([[-1.5, 1.5], [-1.0, -1.0]], requires_grad=True)
    ascent = torch.optim.LBFGS([at], max_iter=200, line_search_fn="strong_wolfe")

    def loss():
        ascent.zero_grad()
        value = -bound_of_two_scales(y, *at)
        value.backward()
        return value

    ascent.step(loss)
    q, _ = run(two_scales, y)
    assert q.converged
    assert_close(q.log_evidence, bound_of_two_scales(y, *at.detach()), rtol=0, atol=1e-3)


def own_scales(y, loc, of_scale=None):
    w = pyro.sample("w", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("components", 3):
        locs = pyro.sample("locs", dist.Normal(loc, 10.0))
        scale = pyro.sample("scale", of_scale or dist.HalfNormal(5.0))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Categorical(w))
        pyro.sample("y", dist.Normal(locs[z], scale[z]), obs=y)


def test_two_clusters_in_one_component_beside_an_empty_one_come_apart():
    """On the way from alike ones two clusters share a component and another one has none, whose
    scale has to hold rows for some sweeps before it is anything like theirs."""
    y = torch.cat([k + 0.8 * torch.linspace(-1, 1, 6) for k in (-4.0, 0.0, 5.0)])
    family = {"w": "dirichlet"}
    apart, _ = run(own_scales, y, torch.tensor([-4.0, 0.0, 5.0]), family=family)
    pyro.set_rng_seed(1)  # others may leave all three in one, of which the status tells
    q, _ = run(own_scales, y, torch.zeros(3), family=family)
    assert q.converged
    assert q.log_evidence > apart.log_evidence - 0.5
    found = q.marginal("locs").mean.sort().values
    assert_close(found, torch.tensor([-4.0, 0.0, 5.0]), rtol=0, atol=0.1)


@pytest.mark.parametrize("of_scale", [dist.Exponential(0.2), dist.HalfCauchy(5.0)])
def test_a_weight_far_out_comes_back_with_the_rows_of_its_component(of_scale):
    """Normals in unconstrained space: whole steps from nearly 0 go as far beyond 1."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.tensor([-4.0, 3.0, 8.0])[torch.randint(3, (60,), generator=draw)]
    y = centres + torch.randn(60, generator=draw, dtype=torch.float32)
    apart, _ = run(own_scales, y, torch.tensor([-4.0, 3.0, 8.0]), of_scale)
    q, _ = run(own_scales, y, torch.zeros(3), of_scale)
    assert q.converged
    assert q.log_evidence > apart.log_evidence - 0.5


@pytest.mark.parametrize("far", [3.0, 90.0])
def test_a_state_that_single_steps_of_a_loop_lack_is_not_without_data(far):
    """All rows of a step are in one state, which the steps share: only where no step has numbers
    of the second component has it no data."""
    y = torch.tensor([[-3.0, -3.2, -2.9], [3.0, 3.1, 2.8], [-2.8, -3.1, -3.0]])

    def model():
        with pyro.plate("components", 2):
            loc = pyro.sample("loc", dist.Normal(torch.tensor([-3.0, far]), 1.0))
        for t in range(len(y)):
            with pyro.plate(f"rows_{t}", 3):
                z = pyro.sample(f"z_{t}", dist.Categorical(torch.tensor([0.4, 0.6])))
                pyro.sample(f"y_{t}", dist.Normal(loc[z], 1.0), obs=y[t])

    engine = pg.VMP(model, progress=False).setup()
    while not engine.converged:
        engine.step()
    found = left_empty.left_empty(engine.network, engine.beliefs)
    in_second = [float(engine.posterior().marginal(f"z_{t}").probs[:, 1].sum()) for t in range(3)]
    if far == 3.0:
        assert_close(torch.tensor(in_second), torch.tensor([0.0, 3.0, 0.0]), rtol=0, atol=1e-4)
        assert found is None
    else:
        assert max(in_second) < 1e-4 and found.row == 1
