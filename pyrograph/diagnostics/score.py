"""Log density and score of a graph at particles, with a check that both are finite."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from pyrograph.errors import InferenceError, NonFiniteDensity
from pyrograph.graph.blame import naming_underivable

#: Numbers evaluated at once; more particles are taken in parts, so that memory is bounded.
MAX_NUMBERS = 2**22


@contextmanager
def outside_modes() -> Iterator[None]:
    """Leave the modes of torch that change what operations make.

    ``torch.inference_mode`` makes tensors that autograd never takes, and they would live on in what
    is kept; gradients stay off, unless enabled inside. ``torch.autocast`` takes products of
    matrices in half precision: messages and densities would be rounded to three digits.
    """
    with ExitStack() as left:
        if torch.is_inference_mode_enabled():
            left.enter_context(torch.inference_mode(False))
            left.enter_context(torch.no_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                left.enter_context(torch.autocast(kind, enabled=False))
        yield


@torch.no_grad()
def log_densities(graph, x: Tensor) -> Tensor:
    """Of particles ``[n, dim]``, ``[n]``, some at a time; not checked."""
    size = max(1, MAX_NUMBERS // max(1, graph.numbers_per_particle))
    return torch.cat([graph.density(part) for part in x.split(size)])


@outside_modes()
def value_and_score(graph, x: Tensor, *, differentiable: bool = False) -> tuple[Tensor, Tensor]:
    """log p(x) and its gradient at every particle.

    Args:
        graph: a FactorGraph (of continuous sites).
        x: ``[n, dim]`` flat particles in the graph's space.
        differentiable: keep the graph of derivatives, to differentiate the score itself.

    Shapes:
        output: ``[n]`` and ``[n, dim]``.

    Raises:
        NonFiniteDensity: NaN or infinity in either, naming the first factor and particle.
        UnsupportedFactor: torch has no derivative of a factor.
        InferenceError: the graph was read in inference mode.
    """
    if differentiable and x.requires_grad:
        log_p, score = _evaluate(graph, x, differentiable)
    else:
        size = max(1, MAX_NUMBERS // max(1, graph.numbers_per_particle))
        log_p, score = x.new_empty(len(x)), torch.empty_like(x)
        for start in range(0, len(x), size):
            part = slice(start, start + size)
            point = x[part].detach()
            point = (point.clone() if point.is_inference() else point).requires_grad_()
            log_p[part], score[part] = _evaluate(graph, point, differentiable)
    # one number to look at; only a sum that overflows is looked at again
    all_finite = torch.isfinite(log_p.detach().sum() + score.detach().sum())
    if not all_finite and not (log_p.isfinite().all() and score.isfinite().all()):
        raise NonFiniteDensity(_describe(graph, x.detach(), log_p.detach(), score.detach()))
    return log_p, score


def _evaluate(graph, point: Tensor, differentiable: bool) -> tuple[Tensor, Tensor]:
    with torch.enable_grad(), naming_underivable(graph):
        try:
            log_p = graph.density(point)
        except RuntimeError as error:
            if "Inference tensors" not in str(error):
                raise
            raise InferenceError(
                "the graph holds tensors made under torch.inference_mode(), which cannot be "
                "differentiated. Call pg.trace_graph outside of it, or under torch.no_grad()."
            ) from error
        if log_p.requires_grad:
            (score,) = torch.autograd.grad(log_p.sum(), point, create_graph=differentiable)
        else:  # a flat density: nothing smooth leads from a latent to it
            score = torch.zeros_like(point)
    return (log_p, score) if differentiable else (log_p.detach(), score)


def _describe(graph, x: Tensor, log_p: Tensor, score: Tensor) -> str:
    finite = torch.isfinite(log_p) & torch.isfinite(score).all(1)
    particle = int((~finite).nonzero()[0])
    where = graph.blame(x) or f"the log density is {float(log_p[particle])} at particle {particle}"
    return (
        f"{where}. Look at that statement at these values: a step too long, a start outside the "
        "region where the model makes sense, or a scale that can reach 0 are the usual causes. "
        "Try a smaller step, another init=, or dtype=torch.float64."
    )
