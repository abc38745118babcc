"""Which alpha predicts best?

    python benchmarks/message_passing/minka_fig7_predictive_error.py [--quick] [--threads 1]

210 random mixtures of two Gaussians: means N(0, 4), variances the squares of N(0, 1), weights
U(0, 1) normalised. For each alpha the best Gaussian is found by the fixed-point iteration; the
error is |p(x > 0) - q(x > 0)| of the normalised measures. The axis of the figure, "total
predictive error", is twice that (both outcomes).

Grids follow each mixture: both components, and a stretch wide enough for every fit.

The ratio error(5) / error(1) hangs on the narrow components: 1.45 over all 210 mixtures, which
misses the criterion, 1.29 over the 151 with both standard deviations above .18, 1.12 over the 117
above .3. The subset of 154 behind the expected values is not known; these cuts were made after
the criterion had failed and take no part in it. It is no accident of the draw, for five other
draws of 210 give 1.38 to 1.59, nor of fits that do not settle, for ten times their steps change
the error by 3e-6.

Source: Minka (2005), Figure 7: alpha = 1 predicts best, and errors grow faster below than above.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from criteria import arguments, figure_path, report
from torch import Tensor
from torch.distributions import Normal

from pyrograph.divergences import Gaussian1D, Gridded, alpha_project
from pyrograph.errors import ConvergenceWarning

#: alpha: the error on 154 mixtures, computed independently of this library
EXPECTED = {
    -3.0: 0.1138,
    -1.0: 0.1021,
    0.0: 0.0845,
    0.5: 0.0714,
    1.0: 0.0514,
    2.0: 0.0559,
    3.0: 0.0582,
    5.0: 0.0609,
}
#: Half-width of a component's grid in standard deviations.
REACH = 9.0


def mixtures(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log weights, means and standard deviations, ``[count, 2]`` each."""
    generator = torch.Generator().manual_seed(0)
    means = 2 * torch.randn(count, 2, generator=generator)
    sds = torch.randn(count, 2, generator=generator).abs()
    weights = torch.rand(count, 2, generator=generator)
    return (weights / weights.sum(-1, keepdim=True)).log(), means, sds


def on_grids(log_weights: Tensor, means: Tensor, sds: Tensor, num_points: int) -> Gridded:
    """The mixtures, each on a grid of its own of some ``3 * num_points`` points."""
    unit = torch.linspace(-REACH, REACH, num_points)
    parts = means[..., None] + sds[..., None] * unit
    weights = log_weights.exp()
    mean = (weights * means).sum(-1, keepdim=True)
    variance = (weights * (sds**2 + (means - mean) ** 2)).sum(-1, keepdim=True)
    # wide enough for the widest fit; an even number of points, so that none is met twice
    half = torch.maximum(
        (parts - mean[..., None]).abs().amax((-2, -1)), REACH * variance[:, 0].sqrt()
    )
    whole = mean + 1.1 * half[:, None] * torch.linspace(-1, 1, num_points + 1)
    x = torch.cat([parts.flatten(-2), whole], -1).sort(-1).values
    log_p = Normal(means[..., None], sds[..., None]).log_prob(x[:, None])
    return Gridded((log_weights[..., None] + log_p).logsumexp(-2), x)


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the table and the criteria, draw the figure; True if all criteria hold."""
    args = arguments(__doc__, argv)
    count = 20 if args.quick else 210
    log_weights, means, sds = mixtures(count)
    p = on_grids(log_weights, means, sds, 101 if args.quick else 201)
    positive = (log_weights.exp() * Normal(0, 1).cdf(means / sds)).sum(-1)
    errors = {}
    print(f"mean |p(x > 0) - q(x > 0)| over {count} mixtures | expected (154 other mixtures)")
    for alpha, expected in EXPECTED.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            q = alpha_project(p, Gaussian1D(), alpha, tol=1e-6, max_steps=5000)
        unsettled = [str(w.message) for w in caught]
        z = q.mean[:, 0] / q.covariance[:, 0, 0].sqrt()
        errors[alpha] = (positive - Normal(0, 1).cdf(z)).abs()
        mean, error = float(errors[alpha].mean()), float(errors[alpha].std() / count**0.5)
        print(f"alpha {alpha:5.2f}  {mean:.4f} +- {error:.4f} | {expected:.4f}")
        for message in unsettled:
            print(f"             {message}")

    average = {alpha: float(values.mean()) for alpha, values in errors.items()}
    best = min(average, key=average.get)
    below, above = average[-3.0] / average[1.0], average[5.0] / average[1.0]
    passed = [
        report("alpha = 1 predicts best", best == 1.0, f"least error at alpha = {best:g}"),
        report("alpha = -3 errs far more than alpha = 1", below > 1.7, f"ratio {below:.2f} > 1.7"),
        report(
            "alpha = 5 errs little more than alpha = 1", above < 1.3, f"ratio {above:.2f} < 1.3"
        ),
        report(
            "doubled, the errors span the printed axis",
            0.2 < 2 * max(average.values()) < 0.26 and 0.08 < 2 * min(average.values()) < 0.13,
            f"{2 * min(average.values()):.3f} to {2 * max(average.values()):.3f}, axis .10 to .23",
        ),
    ]

    figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    alphas = list(average)
    bars = [2 * float(errors[a].std()) / count**0.5 for a in alphas]
    axes.errorbar(alphas, [2 * average[a] for a in alphas], bars, fmt="o-", capsize=3)
    axes.set(xlabel="alpha", ylabel="total predictive error")
    figure.savefig(figure_path("minka_fig7_predictive_error", args.quick), dpi=120)
    plt.close(figure)
    return all(passed)


if __name__ == "__main__":
    main()
