"""Do the engines find the posteriors that long Hamiltonian Monte Carlo runs found?

    git clone https://github.com/stan-dev/posteriordb
    python benchmarks/reference_posteriors.py --database posteriordb [--only NAME]
        [--engines EP VMP QBethe SVGD] [--threads 1] [--quick]

posteriordb keeps 10,000 checked draws of each of its posteriors. Twenty of its Stan models are
written here as Pyro programs with the same priors (flat ones: ``ImproperUniform``), their discrete
states, which Stan sums out, as sites. What an engine finds is held against means and standard
deviations of the draws. A row: the largest |mean - reference| in deviations of the reference, the
least and the largest ratio of deviations to the reference's, seconds, and ``posterior.converged``
(``SVGD`` makes 1000 steps without a stopping rule: always "no"). Draws by themselves leave errors
of about 0.01 deviations, 0.02 to 0.03 in the largest of ten numbers, and of 1 % of a deviation.
``EP`` takes four minutes for all, ``VMP`` half a minute, ``SVGD`` five minutes, ``QBethe`` seven.

Criteria: ``EP`` and ``QBethe`` converge; means of these two and of ``SVGD`` (100 particles from
``init="laplace"``) are within 0.1 sd and their deviations within 10 %, but for exceptions, which
are printed with their reasons (where means are off, deviations and convergence do not count).

Source: Magnusson, Torgander, Buerkner, Zhang, Carpenter & Vehtari (2025), posteriordb; the database
is BSD-3, its models are in posterior_database/models/stan.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor

import pyrograph as pg
from pyrograph.errors import PyrographError, PyrographWarning, UnsupportedSite

sys.path.append(str(Path(__file__).parent / "message_passing"))
from criteria import report

MISSING = (
    "No reference posteriors: git clone https://github.com/stan-dev/posteriordb, and name it by "
    "--database or the variable POSTERIORDB."
)
#: What an engine may be off: of means, in sds; of sds.
MEAN, SD = 0.1, 0.1
#: Of a posterior, where its moments are known from draws alone.
DRAWS = 20_000
ENGINES: dict[str, dict[str, Any]] = {
    "EP": {"infer": pg.EP},
    "VMP": {"infer": pg.VMP},
    "QBethe": {"infer": pg.QBethe, "covariance": "full", "num_components": 1, "tol": 1e-3},
    "SVGD": {"infer": pg.GraphicalSVGD, "init": "laplace", "num_particles": 100},
}

Data = dict[str, Any]
Distribution = dist.TorchDistribution


def flat(support: constraints.Constraint, *shape: int) -> Distribution:
    """What Stan gives a parameter without a prior."""
    return dist.ImproperUniform(support, (), shape)


def regression(x: Tensor, y: Tensor, beta: Distribution, sigma: Distribution) -> None:
    """With these priors; the coefficients are one site."""
    beta = pyro.sample("beta", beta)
    sigma = pyro.sample("sigma", sigma)
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def eight_schools(y: Tensor, sd: Tensor) -> None:
    """Centred: the effects of the noncentred reference are the same numbers."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", len(y)):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("y", dist.Normal(theta, sd), obs=y)


def autoregression(y: Tensor, order: int) -> None:
    alpha = pyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = pyro.sample("beta", dist.Normal(0.0, 10.0).expand([order]).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfCauchy(2.5))
    lags = y.unfold(0, order, 1)[:-1].flip(1)
    with pyro.plate("times", len(lags)):
        pyro.sample("y", dist.Normal(alpha + lags @ beta, sigma), obs=y[order:])


def moving_average(y: Tensor) -> None:
    """ARMA(1, 1)."""
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    phi = pyro.sample("phi", dist.Normal(0.0, 2.0))
    theta = pyro.sample("theta", dist.Normal(0.0, 2.0))
    sigma = pyro.sample("sigma", dist.HalfCauchy(2.5))
    expected = mu + phi * mu
    for t, value in enumerate(y):
        pyro.sample(f"y_{t}", dist.Normal(expected, sigma), obs=value)
        expected = mu + phi * value + theta * (value - expected)


def conditional_variance(y: Tensor, first: float) -> None:
    """GARCH(1, 1). alpha1 and beta1 are flat on the triangle where both and their sum are in
    (0, 1): alpha1 has density 2 (1 - alpha1), and beta1 a share of what is left."""
    mu = pyro.sample("mu", flat(constraints.real))
    alpha0 = pyro.sample("alpha0", flat(constraints.positive))
    alpha1 = pyro.sample("alpha1", dist.Beta(1.0, 2.0))
    beta1 = pyro.sample("beta1", dist.Uniform(torch.zeros(()), 1 - alpha1))
    variance = torch.tensor(first) ** 2
    for t, value in enumerate(y):
        pyro.sample(f"y_{t}", dist.Normal(mu, variance.sqrt()), obs=value)
        variance = alpha0 + alpha1 * (value - mu) ** 2 + beta1 * variance


def covariance(x: Tensor, rho: Tensor, alpha: Tensor) -> Tensor:
    """Squared exponential."""
    return alpha**2 * torch.exp(-0.5 * ((x[:, None] - x) / rho) ** 2)


def gaussian_process(x: Tensor, y: Tensor) -> None:
    """As the reference has it, sigma is the variance of the noise."""
    rho = pyro.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = pyro.sample("alpha", dist.HalfNormal(2.0))
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    noisy = covariance(x, rho, alpha) + sigma * torch.eye(len(x))
    pyro.sample("y", dist.MultivariateNormal(torch.zeros(len(x)), noisy), obs=y)


def poisson_process(x: Tensor, counts: Tensor) -> None:
    """With a jitter of 1e-8. The reference's, 1e-10, is lost in rounding where alpha is in the
    thousands, as far points of quadrature are, and the covariance has no Cholesky factor there."""
    rho = pyro.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = pyro.sample("alpha", dist.HalfNormal(2.0))
    prior = covariance(x, rho, alpha) + 1e-8 * torch.eye(len(x))
    f = pyro.sample("f", dist.MultivariateNormal(torch.zeros(len(x)), prior))
    with pyro.plate("counts", len(x)):
        pyro.sample("k", dist.Poisson(f.exp()), obs=counts)


def hidden_markov(y: Tensor) -> None:
    """The reference holds the means in order and above 0, which these priors and data do, too."""
    with pyro.plate("states", 2):
        theta = pyro.sample("theta", dist.Dirichlet(torch.ones(2)))
        mu = pyro.sample("mu", dist.Normal(torch.tensor([3.0, 10.0]), 1.0))
    chances = torch.ones(2) / 2
    for t in pyro.markov(range(len(y))):
        z = pyro.sample(f"z_{t}", dist.Categorical(chances))
        pyro.sample(f"y_{t}", dist.Normal(mu[z], 1.0), obs=y[t])
        chances = theta[z]


def mixture(y: Tensor) -> None:
    """The order of the means tells the components apart, as in the reference."""
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    pyro.factor("ordered", torch.where(mu[0] < mu[1], 0.0, -torch.inf))
    sigma = pyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = pyro.sample("theta", dist.Beta(5.0, 5.0))
    with pyro.plate("points", len(y)):
        z = pyro.sample("z", dist.Bernoulli(1 - theta)).long()
        pyro.sample("y", dist.Normal(mu[z], sigma[z]), obs=y)


@dataclass(frozen=True)
class Case:
    """A program, its arguments, and the names of its sites in the order of the reference."""

    program: Callable[..., None]
    args: tuple[Any, ...]
    sites: str = "beta sigma"


def linear(y: Tensor, *columns: Tensor, **priors: Distribution) -> Case:
    """A regression with an intercept; of beta and sigma, priors that are not given are flat."""
    x = torch.stack([torch.ones(len(y)), *columns], 1)
    beta = priors.get("beta", flat(constraints.real_vector, x.shape[1]))
    return Case(regression, (x, y, beta, priors.get("sigma", flat(constraints.positive))))


def kid_score(data: Data, *columns: Tensor) -> Case:
    return linear(data["kid_score"], *columns, sigma=dist.HalfCauchy(2.5))


def simulated(data: Data) -> Case:
    beta = dist.Normal(0.0, 10.0).expand([data["D"]]).to_event(1)
    return Case(regression, (data["X"], data["y"], beta, dist.HalfNormal(10.0)))


def log_earnings(data: Data) -> Case:
    height, male = data["height"], data["male"]
    return linear(data["earn"].log(), height, male, height * male)


def mesquite(data: Data, log: bool) -> Case:
    names = ("weight", "diam1", "diam2", "canopy_height", "total_height", "density")
    weight, *sizes = (data[name].log() if log else data[name] for name in names)
    return linear(weight, *sizes, data["group"])


def nes(data: Data) -> Case:
    ages = [(data["age_discrete"] == k).double() for k in (2, 3, 4)]
    rest = [data[name] for name in ("educ1", "gender", "income")]
    return linear(data["partyid7"], data["real_ideo"], data["race_adj"], *ages, *rest)


def kilpisjarvi(data: Data) -> Case:
    mean, sd = (torch.tensor([data[f"{p}alpha"], data[f"{p}beta"]]).double() for p in ("pmu", "ps"))
    return linear(data["y"], data["x"], beta=dist.Normal(mean, sd).to_event(1))


SCHOOLS = "eight_schools-eight_schools_noncentered"
ARMA, GARCH = "arma-arma11", "garch-garch11"
#: By the names of the database, which begin with that of the data.
CASES: dict[str, Callable[[Data], Case]] = {
    "kidiq-kidscore_momhs": lambda d: kid_score(d, d["mom_hs"]),
    "kidiq-kidscore_momiq": lambda d: kid_score(d, d["mom_iq"]),
    "kidiq-kidscore_momhsiq": lambda d: kid_score(d, d["mom_hs"], d["mom_iq"]),
    "kidiq-kidscore_interaction": lambda d: kid_score(
        d, d["mom_hs"], d["mom_iq"], d["mom_hs"] * d["mom_iq"]
    ),
    "earnings-earn_height": lambda d: linear(d["earn"], d["height"]),
    "earnings-logearn_interaction": log_earnings,
    "mesquite-mesquite": lambda d: mesquite(d, log=False),
    "mesquite-logmesquite": lambda d: mesquite(d, log=True),
    "nes1972-nes": nes,
    SCHOOLS: lambda d: Case(eight_schools, (d["y"], d["sigma"]), "theta mu tau"),
    "arK-arK": lambda d: Case(autoregression, (d["y"], d["K"]), "alpha beta sigma"),
    ARMA: lambda d: Case(moving_average, (d["y"],), "mu phi theta sigma"),
    GARCH: lambda d: Case(conditional_variance, (d["y"], d["sigma1"]), "mu alpha0 alpha1 beta1"),
    "kilpisjarvi_mod-kilpisjarvi": kilpisjarvi,
    "gp_pois_regr-gp_regr": lambda d: Case(gaussian_process, (d["x"], d["y"]), "rho alpha sigma"),
    "gp_pois_regr-gp_pois_regr": lambda d: Case(poisson_process, (d["x"], d["k"]), "rho alpha f"),
    "hmm_example-hmm_example": lambda d: Case(hidden_markov, (d["y"],), "theta mu"),
    "sblrc-blr": simulated,
    "sblri-blr": simulated,
    "low_dim_gauss_mix-low_dim_gauss_mix": lambda d: Case(mixture, (d["y"],), "mu sigma theta"),
}
QUICK = ("kidiq-kidscore_momhs", "mesquite-mesquite", SCHOOLS)
BUSH = "one bush of 46, of leverage 0.58, lies 5.2 standard errors off the plane"
#: Where an engine's means (in sds) or deviations are farther off: by how much at most, and why.
EXCEPTIONS: dict[str, dict[str, tuple[str, float, str]]] = {
    "EP": {
        "mesquite-mesquite": ("sd", 0.6, f"of sigma: {BUSH} (PowerEP(alpha=0.5): 0.094)"),
        SCHOOLS: (
            "sd",
            0.4,
            "of tau: its log-normal belief has a heavier tail (log tau: 0.88 +- 0.93 for 0.80 +- "
            "1.17)",
        ),
    },
    "QBethe": {
        "mesquite-logmesquite": ("sd", 0.15, "of sigma, too sure of few rows, as VMP is"),
        GARCH: ("sd", 0.15, "of alpha1, which one Gaussian of its logit is too sure of"),
        SCHOOLS: ("mean", 0.25, "of tau, whose skewed tail one Gaussian of its logarithm cuts off"),
        "gp_pois_regr-gp_pois_regr": (
            "mean",
            1.5,
            "of rho: values of a smooth process tell its scales, if they are held fixed",
        ),
    },
    "SVGD": {
        "gp_pois_regr-gp_pois_regr": (
            "mean",
            0.6,
            "of rho, which the values of the process hold where they start",
        ),
    },
}


#: Not judged: the order of the means is a factor of zeros, and QBethe's status says so; SVGD
#: refuses discrete sites, and the mode of a centred hierarchy is a spike, which its status names.
UNFIT = {
    "QBethe": {"low_dim_gauss_mix-low_dim_gauss_mix"},
    "SVGD": {"low_dim_gauss_mix-low_dim_gauss_mix", "hmm_example-hmm_example", SCHOOLS},
}


def read_data(database: Path, name: str) -> Data:
    """The data of a posterior, lists as tensors."""
    data = name.partition("-")[0]
    with zipfile.ZipFile(database / f"data/data/{data}.json.zip") as archive:
        found = json.loads(archive.read(f"{data}.json"))
    return {k: torch.tensor(v).double() if isinstance(v, list) else v for k, v in found.items()}


def read_reference(database: Path, name: str) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of the draws."""
    folder = database / "reference_posteriors/summary_statistics"
    mean, square = (
        torch.tensor(json.loads((folder / what / what / f"{name}.json").read_text())[what])
        for what in ("mean_value", "mean_squared_value")
    )
    return mean, (square - mean**2).sqrt()


@dataclass(frozen=True)
class Row:
    """How far an engine is off: means, in sds; the least and the largest ratio of sds."""

    mean: float
    low: float
    high: float
    seconds: float
    converged: bool

    def __str__(self) -> str:
        off = f"{self.mean:8.3f}{self.low:8.3f}{self.high:8.3f}"
        return f"{off}{self.seconds:9.1f}  {'yes' if self.converged else 'no'}"

    @property
    def sd(self) -> float:
        return max(abs(self.low - 1), abs(self.high - 1))


def moments_of(posterior: pg.Posterior, site: str) -> tuple[Tensor, Tensor]:
    """Means and standard deviations; from draws where a support depends on other sites."""
    try:
        marginal = posterior.marginal(site)
    except UnsupportedSite:
        draws = posterior.sample(DRAWS)[site].reshape(DRAWS, -1)
        return draws.mean(0), draws.std(0)
    return marginal.mean.flatten(), marginal.variance.flatten().sqrt()


def compare(case: Case, engine: str, reference: tuple[Tensor, Tensor]) -> Row:
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PyrographWarning)
        posterior = pg.fit(case.program, case.args, progress=False, **ENGINES[engine])
    seconds = time.perf_counter() - begin
    moments = [moments_of(posterior, site) for site in case.sites.split()]
    mean, sd = (torch.cat(parts) for parts in zip(*moments, strict=True))
    off, ratio = ((mean - reference[0]) / reference[1]).abs(), sd / reference[1]
    numbers = map(float, (off.max(), ratio.min(), ratio.max()))
    return Row(*numbers, seconds, posterior.converged)


Rows = dict[str, Row | None]


def table(database: Path, names: Sequence[str], engines: Sequence[str]) -> dict[str, Rows]:
    """Print it; every engine's rows, None where it refuses."""
    found: dict[str, Rows] = {engine: {} for engine in engines}
    print(f"{'':41}{'':8}{'mean off':>8}{'sd ratios':>16}{'seconds':>9}  converged")
    for name in names:
        case, reference = CASES[name](read_data(database, name)), read_reference(database, name)
        for engine in engines:
            print(f"{name:41}{engine:8}", end="", flush=True)
            try:
                row = compare(case, engine, reference)
                print(row, flush=True)
            except PyrographError as error:
                row, why = None, str(error).split(". ")[0].removesuffix(".")
                print(f"refused: {why}", flush=True)
            found[engine][name] = row
    return found


def criterion(name: str, rows: dict[str, Row], what: str, limit: float, why: str = "") -> bool:
    """Of all rows, of which the farthest off is printed."""
    if not rows:
        return True
    off = {of: getattr(row, what) for of, row in rows.items()}
    worst = max(off, key=off.get)
    detail = f"{off[worst]:.3f} at most (< {limit}), {worst}{why}"
    return report(name, all(value < limit for value in off.values()), detail)


def criteria(engine: str, found: Rows) -> bool:
    """Print an engine's; whether all hold."""
    found = {name: row for name, row in found.items() if name not in UNFIT.get(engine, ())}
    rows = {name: row for name, row in found.items() if row is not None}
    exceptions = EXCEPTIONS[engine]
    asked = [row for name, row in found.items() if exceptions.get(name, ("",))[0] != "mean"]
    runs = sum(row is not None for row in asked)
    passed = [report(f"{engine} runs", runs == len(asked), f"{runs} of {len(asked)}")]
    if "num_particles" not in ENGINES[engine]:  # particles run without a stopping rule
        settled = sum(row is not None and row.converged for row in asked)
        passed.append(
            report(f"{engine} converges", settled == len(asked), f"{settled} of {len(asked)}")
        )
    for what, limit in (("mean", MEAN), ("sd", SD)):
        usual = {
            name: row
            for name, row in rows.items()
            if exceptions.get(name, ("",))[0] not in (what, "mean")
        }
        passed.append(criterion(f"{engine}, off in {what}", usual, what, limit))
    for name, (what, limit, why) in exceptions.items():
        one = {name: rows[name]} if name in rows else {}
        passed.append(criterion(f"{engine}, exception, {what}", one, what, limit, f": {why}"))
    return all(passed)


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the table and the criteria; True if all hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", type=Path, default=os.environ.get("POSTERIORDB") or None)
    parser.add_argument("--only", action="append", choices=list(CASES), metavar="NAME")
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="three posteriors, EP alone")
    args = parser.parse_args(argv)
    if args.database is None:
        print(MISSING)
        return True
    database = args.database / "posterior_database"
    if not database.is_dir():
        parser.error(f"{args.database} is no checkout of posteriordb: no folder {database.name}")
    torch.set_num_threads(args.threads)
    torch.set_default_dtype(torch.float64)
    names = args.only or (QUICK if args.quick else list(CASES))
    engines = args.engines or (["EP"] if args.quick else list(ENGINES))
    found = table(database, names, engines)
    judged = [criteria(engine, found[engine]) for engine in engines if engine in EXCEPTIONS]
    return all(judged)


if __name__ == "__main__":
    sys.exit(not main())
