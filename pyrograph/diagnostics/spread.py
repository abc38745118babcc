"""Do particles have the spread of the target? A check that needs neither truth nor normaliser.

    E_p[ s_i(x) (x_i - m) ] = -1  for every m,      s = grad log p

(integration by parts), so r_i = -mean_l s_i(x_l) (x_l,i - mean x_i) is 1 in expectation for
draws of p. For a Gaussian p whose particles have r times its covariance it is r itself. Where
the particles' covariance has another shape than p's, as with few of them in a stiff posterior, r_i
is sum_j A_ij C_ij (precision of p, covariance of the particles): a small r still says that they
are too few, but marginal variances may be off either way.
"""

from torch import Tensor

from pyrograph.errors import OptionError, ShapeMismatch


def variance_ratio(x: Tensor, score: Tensor) -> Tensor:
    """Estimated ratio of the particles' variance to the target's, per coordinate.

    Args:
        x: ``[n, dim]`` particles that have settled; while they travel it measures their way.
        score: ``[n, dim]`` gradient of the log density there.

    Shapes:
        output: ``[dim]``.

    Raises:
        ShapeMismatch: particles and scores are not of one shape ``[n, dim]``.
        OptionError: one of them is no tensor, or not of floating numbers.
    """
    for name, given in (("x", x), ("score", score)):
        if not isinstance(given, Tensor) or not given.is_floating_point():
            kind = given.dtype if isinstance(given, Tensor) else f"a {type(given).__name__}"
            raise OptionError(f"{name} is {kind}; give a tensor [n, dim] of floating numbers")
    if x.dim() != 2 or x.shape != score.shape:
        raise ShapeMismatch(
            f"particles have shape {tuple(x.shape)} and scores {tuple(score.shape)}; expected "
            "[n, dim] for both"
        )
    return -(score * (x - x.mean(0))).mean(0)
