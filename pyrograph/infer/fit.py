"""One call from a Pyro program to a posterior."""

from collections.abc import Callable, Mapping
from typing import Any

from pyrograph.errors import OptionError
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

    Raises:
        OptionError: ``infer``, or an engine's ``model``, cannot be called, ``model_args`` is no
            tuple, or ``model_kwargs`` no dict.
    """
    if not callable(infer):
        raise OptionError(f"infer={infer!r} is no engine: give a class such as pg.GraphicalSVGD")
    if isinstance(infer, type) and not hasattr(infer, "run"):
        raise OptionError(
            f"infer={infer.__name__} is no engine: it has no run(). A guide such as pg.AutoQBethe "
            "is made of the model, and fitted by pyro.infer.SVI"
        )
    if not isinstance(model_args, tuple | list):
        raise OptionError(
            f"model_args is a {type(model_args).__name__}, not a tuple: for one argument write "
            "(value,), as in pg.fit(model, (data,))"
        )
    if not isinstance(model_kwargs, Mapping | None):
        raise OptionError(
            f"model_kwargs is a {type(model_kwargs).__name__}, not a dict of the model's keyword "
            "arguments"
        )
    return infer(model, **options).run(*model_args, **(model_kwargs or {}))
