"""One model per distribution: latent parameters in a plate, one datum each.

Datum i reads the i-th value of every parameter and nothing else. A zero-inflated density at a
positive count is a sum, log(1 - gate) + log p(y), whose terms do not read each other's nodes.
"""

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch

from .case import Case, nodes, singles

N = 3
#: Prior of a parameter (made when the model runs, in the default dtype), and whether its map from
#: the reals has a Jacobian.
POSITIVE = (lambda: dist.Gamma(3.0, 2.0), True)
REAL = (lambda: dist.Normal(0.0, 1.0), False)
UNIT = (lambda: dist.Beta(2.0, 2.0), True)

#: name: (distribution of the parameters, their priors, data).
LIKELIHOODS: dict[str, tuple[Callable, dict, list[float]]] = {
    "normal": (dist.Normal, {"loc": REAL, "scale": POSITIVE}, [0.3, -1.0, 2.0]),
    "student_t": (
        dist.StudentT,
        {"df": POSITIVE, "loc": REAL, "scale": POSITIVE},
        [0.3, -1.0, 2.0],
    ),
    "laplace": (dist.Laplace, {"loc": REAL, "scale": POSITIVE}, [0.3, -1.0, 2.0]),
    "cauchy": (dist.Cauchy, {"loc": REAL, "scale": POSITIVE}, [0.3, -1.0, 2.0]),
    "logistic": (dist.Logistic, {"loc": REAL, "scale": POSITIVE}, [0.3, -1.0, 2.0]),
    "gumbel": (dist.Gumbel, {"loc": REAL, "scale": POSITIVE}, [0.3, -1.0, 2.0]),
    "soft_laplace": (dist.SoftLaplace, {"loc": REAL, "scale": POSITIVE}, [0.3, -1.0, 2.0]),
    "asymmetric_laplace": (
        dist.AsymmetricLaplace,
        {"loc": REAL, "scale": POSITIVE, "asymmetry": POSITIVE},
        [0.3, -1.0, 2.0],
    ),
    "log_normal": (dist.LogNormal, {"loc": REAL, "scale": POSITIVE}, [0.3, 1.0, 2.0]),
    "gamma": (dist.Gamma, {"concentration": POSITIVE, "rate": POSITIVE}, [0.3, 1.0, 2.0]),
    "inverse_gamma": (
        dist.InverseGamma,
        {"concentration": POSITIVE, "rate": POSITIVE},
        [0.3, 1.0, 2.0],
    ),
    "exponential": (dist.Exponential, {"rate": POSITIVE}, [0.3, 1.0, 2.0]),
    "weibull": (dist.Weibull, {"scale": POSITIVE, "concentration": POSITIVE}, [0.3, 1.0, 2.0]),
    "half_normal": (dist.HalfNormal, {"scale": POSITIVE}, [0.3, 1.0, 2.0]),
    "half_cauchy": (dist.HalfCauchy, {"scale": POSITIVE}, [0.3, 1.0, 2.0]),
    "chi2": (dist.Chi2, {"df": POSITIVE}, [0.3, 1.0, 2.0]),
    "beta": (
        dist.Beta,
        {"concentration1": POSITIVE, "concentration0": POSITIVE},
        [0.3, 0.5, 0.9],
    ),
    "kumaraswamy": (
        dist.Kumaraswamy,
        {"concentration1": POSITIVE, "concentration0": POSITIVE},
        [0.3, 0.5, 0.9],
    ),
    "fisher_snedecor": (dist.FisherSnedecor, {"df1": POSITIVE, "df2": POSITIVE}, [0.3, 1.0, 2.0]),
    "bernoulli": (dist.Bernoulli, {"probs": UNIT}, [0.0, 1.0, 1.0]),
    "bernoulli_logits": (
        lambda logits: dist.Bernoulli(logits=logits),
        {"logits": REAL},
        [0, 1.0, 1],
    ),
    "continuous_bernoulli": (dist.ContinuousBernoulli, {"probs": UNIT}, [0.2, 0.7, 0.5]),
    "geometric": (dist.Geometric, {"probs": UNIT}, [0.0, 2.0, 5.0]),
    "binomial": (lambda probs: dist.Binomial(7, probs), {"probs": UNIT}, [0.0, 2.0, 7.0]),
    "binomial_logits": (
        lambda logits: dist.Binomial(7, logits=logits),
        {"logits": REAL},
        [0.0, 2.0, 7.0],
    ),
    "beta_binomial": (
        lambda a, b: dist.BetaBinomial(a, b, total_count=7),
        {"a": POSITIVE, "b": POSITIVE},
        [0.0, 2.0, 7.0],
    ),
    "poisson": (dist.Poisson, {"rate": POSITIVE}, [0.0, 2.0, 7.0]),
    "gamma_poisson": (
        dist.GammaPoisson,
        {"concentration": POSITIVE, "rate": POSITIVE},
        [0.0, 2.0, 7.0],
    ),
    "negative_binomial": (
        dist.NegativeBinomial,
        {"total_count": POSITIVE, "probs": UNIT},
        [0.0, 2.0, 7.0],
    ),
    "negative_binomial_logits": (
        lambda n, logits: dist.NegativeBinomial(n, logits=logits),
        {"n": POSITIVE, "logits": REAL},
        [0.0, 2.0, 7.0],
    ),
    "zero_inflated_poisson": (
        lambda rate, gate: dist.ZeroInflatedPoisson(rate, gate=gate),
        {"rate": POSITIVE, "gate": UNIT},
        [0.0, 2.0, 7.0],
    ),
    "zero_inflated_negative_binomial": (
        lambda n, p, gate: dist.ZeroInflatedNegativeBinomial(n, probs=p, gate=gate),
        {"n": POSITIVE, "p": UNIT, "gate": UNIT},
        [0.0, 2.0, 7.0],
    ),
    "von_mises": (
        dist.VonMises,
        {"loc": REAL, "concentration": POSITIVE},
        [0.3, -1.0, 2.0],
    ),
    "folded": (
        lambda loc: dist.FoldedDistribution(dist.Normal(loc, 1.0)),
        {"loc": REAL},
        [0.3, 1.0, 2.0],
    ),
    "relaxed_bernoulli": (
        lambda probs: dist.RelaxedBernoulli(torch.tensor(0.7), probs),
        {"probs": UNIT},
        [0.3, 0.5, 0.9],
    ),
}


def likelihood(name: str):
    def build():
        make, parameters, data = LIKELIHOODS[name]

        def model(y):
            with pyro.plate("data", N):
                values = {p: pyro.sample(p, prior()) for p, (prior, _) in parameters.items()}
                pyro.sample("y", make(*values.values()), obs=y)

        scopes = {p: singles(p, N) for p in parameters}
        scopes["y"] = [frozenset().union(*(nodes(p, [i]) for p in parameters)) for i in range(N)]
        if name.startswith("zero_inflated"):
            gate = [nodes("gate", [i]) for i in range(N)]
            scopes["y"] = (
                scopes["y"][:1] + gate[1:] + [y - g for y, g in zip(scopes["y"], gate)][1:]
            )
        positive = tuple(p for p, (_, mapped) in parameters.items() if mapped)
        summed = ("y",) if name.startswith("zero_inflated") else ()
        args = (torch.tensor(data),)
        return Case(model, args, scopes=scopes, jacobians=positive, summed=summed)

    build.__name__ = name
    return build


MODELS = [likelihood(name) for name in LIKELIHOODS]
