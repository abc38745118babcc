"""One call from a Pyro program to a posterior."""

from collections.abc import Callable
from typing import Any

from pyrograph.infer.svgd import GraphicalSVGD
from pyrograph.posterior import Posterior


def fit(
    model: Callable,
    model_args: tuple = (),
    model_kwargs: dict | None = None,
    *,
    infer: Callable = GraphicalSVGD,
    **options: Any,
) -> Posterior:
    """``infer(model, **options).run(*model_args, **model_kwargs)``.

    Args:
        model: a Pyro program.
        model_args, model_kwargs: its arguments.
        infer: an engine, or anything that takes the model first and returns something with
            ``run``.
        options: the engine's.
    """
    return infer(model, **options).run(*model_args, **(model_kwargs or {}))
