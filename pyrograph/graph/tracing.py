"""From a Pyro program to its factor graph, checked against Pyro at a second point."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyrograph.errors import (
    OptionError,
    StructureError,
)
from pyrograph.graph.arguments import refuse_iterators
from pyrograph.graph.factor_graph import FactorGraph
from pyrograph.graph.second_point import (
    refuse_other_densities,
    refuse_random,
    refuse_text,
    warn_of_functions,
)
from pyrograph.trace.outer_handlers import with_outer_handlers
from pyrograph.trace.plain_run import Point, log_probs_at, plain_run
from pyrograph.trace.program import read_program
from pyrograph.trace.sites import enumeration, tensor_of
from pyrograph.trace.supports import name_of


def trace_graph(
    model: Callable,
    model_args: tuple = (),
    model_kwargs: dict | None = None,
    *,
    unconstrained: bool = False,
    fixed: Mapping[str, Tensor] | None = None,
    verify: bool = True,
    differentiable: bool = False,
) -> FactorGraph:
    """Read the element-level factor graph of a Pyro program.

    Args:
        model: any Pyro program (conditioned, reparameterised, ... ones too).
        model_args, model_kwargs: what it is called with: a tuple and a dict.
        unconstrained: map continuous sites to unconstrained space, with log Jacobians as factors.
        fixed: ``{site: value}`` held while the structure is read; their values may then index.
        differentiable: keep the program's constants attached to the tensors that they were computed
            from, so that densities, local functions, tables and the graph's constant differentiate
            with respect to arguments and ``pyro.param``s. They share what the program computed:
            several derivatives of one graph need ``retain_graph=True``.
        verify: compare the graph with Pyro's own log density at a second point, with discrete sites
            in other states where they have some; at several, if the program prints latents.

    ``.detach()`` inside the program is not seen, nor what the ``backward`` of a
    ``torch.autograd.Function`` does: gradients are those of the plain function, of what ``forward``
    computes. With ``verify`` a ``PyrographWarning`` tells of a Function whose gradient is another.

    Raises:
        StructureError: (a subclass) the structure cannot be read; the text says what to write.
        VerificationError: graph and program disagree at the second point.
        OptionError: an argument of this function is not what it should be, or one of the model's
            is an iterator, which one run of the program uses up.
    """
    _refuse_arguments(model, model_args, model_kwargs)
    refuse_iterators(model, tuple(model_args), model_kwargs or {})
    args, kwargs, held = tuple(model_args), dict(model_kwargs or {}), _held(fixed)
    with with_outer_handlers(model) as program:
        return _read(program, args, kwargs, held, unconstrained, verify, differentiable)


def _read(
    model: Callable,
    args: tuple,
    kwargs: dict,
    held: Mapping[str, Tensor],
    unconstrained: bool,
    verify: bool,
    differentiable: bool,
) -> FactorGraph:
    """:func:`trace_graph` of arguments that are what they should be."""
    with _CheckHeld(held):
        point = plain_run(model, args, kwargs, held, unconstrained)
    apart_from = point.values if verify else None
    reading = read_program(model, args, kwargs, held, unconstrained, differentiable, apart_from)
    _same_sites({s.name: s.shape for s in reading.sites}, point)
    graph = FactorGraph(reading, unconstrained=unconstrained)
    if graph.device.type != "cpu":
        graph = graph.to(graph.device)
    if verify:
        refuse_other_densities(graph, point, reading)

        def density(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return log_probs_at(model, args, kwargs, values)

        if reading.random_draws:  # some only start parameters
            refuse_random(lambda: density(point.values), reading.random_draws)
        if reading.printed:

            def run(last: Point) -> Point:
                return plain_run(model, args, kwargs, held, unconstrained, last.values)

            refuse_text(graph, run, point, reading)
        if reading.functions and not all(site.is_discrete for site in graph.free_sites):
            warn_of_functions(graph, reading, density, point)
    return graph


def _refuse_arguments(model: object, args: object, kwargs: object) -> None:
    """A lone tensor would be taken apart into its rows, a string into its letters."""
    if not callable(model):
        raise OptionError(
            f"the model is a {type(model).__name__}; give a Pyro program: a function or a module."
        )
    if not isinstance(args, (tuple, list)):
        raise OptionError(
            f"model_args is a {type(args).__name__}; give the model's arguments as a tuple, a "
            f"single one as model_args=(argument,)."
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise OptionError(
            f"model_kwargs is a {type(kwargs).__name__}; give {{name: argument}}, positional "
            f"arguments in model_args."
        )


def _held(fixed: object) -> dict[str, Tensor]:
    """Values of the sites to hold, as tensors."""
    if fixed is None:
        return {}
    if not isinstance(fixed, Mapping):
        raise OptionError(
            f"fixed is a {type(fixed).__name__}; give the values to hold as {{site: value}}."
        )
    held = {}
    for name, value in fixed.items():
        try:
            held[name] = tensor_of(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise OptionError(
                f'fixed["{name}"] is a {type(value).__name__}, of which no tensor can be made '
                f"({error}); give the value of that site."
            ) from error
    return held


class _CheckHeld(Messenger):
    """Refuses what is no value of its site, before the program computes with it."""

    def __init__(self, held: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.held = held

    def _pyro_sample(self, msg: dict) -> None:
        if msg["name"] not in self.held or msg["is_observed"]:
            return
        value, fn = self.held[msg["name"]], msg["fn"]
        site = f'site "{msg["name"]}" ({name_of(fn)})'
        states = enumeration(fn)
        if states is not None and not states.is_floating_point() and value.is_floating_point():
            raise OptionError(
                f'fixed["{msg["name"]}"] has dtype {value.dtype}; {site} takes whole numbers, of '
                f"{states.dtype}: convert with .long()."
            )
        if getattr(fn, "_validate_args", False):
            try:
                fn._validate_sample(value)
            except ValueError as error:  # the support may hold the value at another draw
                raise ValueError(
                    f'fixed["{msg["name"]}"] is no value of {site}: {error} Hold the site at a '
                    f"value of its support."
                ) from error


def _same_sites(shapes: dict[str, tuple[int, ...]], point: Point) -> None:
    others = {name: tuple(value.shape) for name, value in point.values.items()}
    differ = [n for n in shapes.keys() | others.keys() if shapes.get(n) != others.get(n)]
    if differ:
        raise StructureError(
            f"two runs of the program had different latent sites ({', '.join(sorted(differ))}): "
            f"which sites exist, and their shapes, must not depend on random values."
        )
