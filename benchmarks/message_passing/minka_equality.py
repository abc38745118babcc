"""Does every alpha have the closed-form optimum on the equality example?

    python benchmarks/message_passing/minka_equality.py [--quick] [--threads 1]

p(x, y) is .25 on (0, 0), .75 on (1, 1) and zero elsewhere; q(x, y) = s q_x q_y. The optimum is
known: for alpha <= 1/2 the corner q_x(0) = 0 with s = .75, and above, with
e = alpha / (2 alpha - 1),

    q_x(0) = .25^e / (.25^e + .75^e),      s = .75 (1 - q_x(0))^((1 - 2 alpha) / alpha).

Both the message-passing fixed point and direct minimisation are run. For alpha <= 0 a q that is
positive where p is zero has infinite divergence, so both start from corners as well.

Source: Minka (2005), eqs (35) to (47): alpha <= 1/2 keeps one mode, larger alpha grows towards
covering both; mean field has two local minima, BP the exact marginals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from criteria import arguments, figure_path, report

from pyrograph.divergences import (
    Discrete,
    FullyFactorised,
    alpha_divergence,
    alpha_project,
    local_minima,
)

MASSES = (0.25, 0.75)
ALPHAS = (-2.0, -1.0, 0.0, 0.25, 0.5, 0.55, 0.6, 0.75, 1.0, 1.5, 2.0, 5.0, 20.0)
METHODS = ("fixed point", "direct")


def closed_form(alpha: float) -> tuple[float, float, float]:
    """q_x(0), s and the divergence (Z_p - s) / (1 - alpha) of the optimum."""
    small, large = MASSES
    if alpha <= 0.5:
        q0, scale = 0.0, large
    else:
        e = alpha / (2 * alpha - 1)
        odds = math.exp(e * math.log(small / large))
        q0 = odds / (1 + odds)
        scale = large * (1 - q0) ** ((1 - 2 * alpha) / alpha)
    if alpha == 1:
        p, q = torch.tensor(MASSES), torch.tensor([(1 - q0) ** 2, q0**2]).flip(0)
        return q0, scale, float((p * (p / q).log()).sum())
    return q0, scale, (1 - scale) / (1 - alpha)


def main(argv: Sequence[str] | None = None) -> bool:
    """Print the table and the criteria, draw the figure; True if all criteria hold."""
    args = arguments(__doc__, argv)
    alphas = (-1.0, 0.0, 0.25, 0.75, 1.0, 2.0) if args.quick else ALPHAS
    p, family = Discrete(torch.tensor(MASSES).diag().log(), 2), FullyFactorised()
    worst = dict.fromkeys(METHODS, 0.0)
    print("q_x(0), s and D: closed form | fixed point | direct minimisation")
    for alpha in alphas:
        truth = closed_form(alpha)
        row = [truth]
        for method in METHODS:
            q = alpha_project(p, family, alpha, method)
            divergence = alpha_divergence(p, q.joint(), alpha)
            found = (q.log_marginals[0][0].exp(), q.log_mass.exp(), divergence)
            row.append(tuple(float(value) for value in found))
            both = row[-1] + (float(q.log_marginals[1][0].exp()),)
            error = max(abs(a - b) for a, b in zip(both, truth + truth[:1]))
            worst[method] = max(worst[method], error)
        cells = " | ".join(" ".join(f"{value:8.5f}" for value in cell) for cell in row)
        print(f"alpha {alpha:6.2f}  {cells}")

    mean_field = local_minima(p, family, 0.0)
    scales = sorted(float(q.log_mass.exp()) for q, _ in mean_field)
    bp = alpha_project(p, family, 1.0).joint().log_mass.exp()
    paper = torch.tensor([[1, 3], [3, 9]]) / 16
    print(f"mean field: local minima with s = {', '.join(f'{s:.4f}' for s in scales)}")
    print("paper: s = .25 and .75; BP q = [[1/16, 3/16], [3/16, 9/16]]")
    passed = [
        report(
            f"{method} has the closed form for every alpha",
            worst[method] < 1e-4,
            f"largest error of q_x(0), q_y(0), s, D {worst[method]:.1e} < 1e-4",
        )
        for method in METHODS
    ]
    passed += [
        report(
            "mean field has exactly the two corners as local minima",
            len(scales) == 2 and max(abs(a - b) for a, b in zip(scales, MASSES)) < 1e-4,
            f"{len(scales)} found",
        ),
        report(
            "alpha = 1 gives the table of BP",
            float((bp - paper).abs().max()) < 1e-10,
            f"largest error {float((bp - paper).abs().max()):.1e}",
        ),
    ]

    figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    curve = torch.linspace(-2, 5, 281).tolist()
    for k, (label, colour) in enumerate((("q_x(0)", "C0"), ("s", "C1"))):
        axes.plot(curve, [closed_form(a)[k] for a in curve], color=colour, label=label)
        inner = [a for a in alphas if a <= 5]
        found = [alpha_project(p, family, a) for a in inner]
        values = [(q.log_marginals[0][0].exp(), q.log_mass.exp())[k] for q in found]
        axes.plot(inner, values, "o", color=colour)
    axes.set(xlabel="alpha", ylabel="optimum (line: closed form)")
    axes.legend()
    figure.savefig(figure_path("minka_equality", args.quick), dpi=120)
    plt.close(figure)
    return all(passed)


if __name__ == "__main__":
    main()
