"""What guides that know their sites by plain descriptions share.

Such a guide never runs the model: a saved ``state_dict`` is enough to build it again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import pyro
import torch
from pyro.distributions import TorchDistribution
from pyro.infer.autoguide import AutoGuide
from pyro.nn import PyroParam
from pyro.poutine.indep_messenger import CondIndepStackFrame
from torch import Tensor
from torch.distributions.constraints import Constraint

from pyrograph.checks import real_number
from pyrograph.errors import OptionError
from pyrograph.graph.masked_out import stand_in
from pyrograph.posterior.support import restore

Guide = TypeVar("Guide", bound="SiteGuide")

_serial = itertools.count()


def name_of_its_own(kind: type) -> str:
    """For one guide: two of one name would share one parameter in Pyro's global store, into which
    those of guides of an earlier process may have been loaded."""
    taken = {key.partition(".")[0] for key in pyro.get_param_store()}
    names = (f"{kind.__name__}_{k}" for k in _serial)
    return next(name for name in names if name not in taken)


class SiteGuide(AutoGuide):
    """An ``AutoGuide`` over described sites, which are part of its ``state_dict``.

    Args:
        sites: plain descriptions with ``name`` and ``plates`` at least.
    """

    def __init__(self, sites: Sequence[Mapping[str, Any]]):
        super().__init__(model=None)
        self._rename()
        self._set_sites(sites)

    def _rename(self) -> None:
        self._pyro_name = name_of_its_own(type(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy, or one from a file: it is a guide of its own, with a name of its own."""
        super().__setstate__(state)
        self._rename()

    def _set_sites(self, sites: Sequence[Mapping[str, Any]]) -> None:
        self.sites = {site["name"]: dict(site) for site in sites}
        # what AutoGuide would have read off a run of the model
        self._prototype_frames = {
            name: CondIndepStackFrame(name, dim, size, 0, full_size=size)
            for site in sites
            for name, dim, size in site["plates"]
        }

    def _add_parameters(
        self, parts: Sequence[Mapping[str, Tensor]], constraints: Mapping[str, Constraint]
    ) -> None:
        """Tensors of numbered parts by name, as parameters ``{name}_{number}``."""
        for k, tensors in enumerate(parts):
            for name, value in tensors.items():
                setattr(self, f"{name}_{k}", PyroParam(value.detach().clone(), constraints[name]))

    def _sample(self, plates: Mapping[str, pyro.plate], name: str, fn: TorchDistribution) -> Tensor:
        """Draw a site in its plates, without the density of nodes that the program masks out."""
        site = self.sites[name]
        with ExitStack() as stack:
            for plate, _, _ in site["plates"]:
                stack.enter_context(plates[plate])
            value = pyro.sample(name, fn)
            if "stands_in" in site:
                outweighed = -_stand_in_log_prob(site, value)
                pyro.factor(f"_{self._pyro_name}_{name}", outweighed, has_rsample=fn.has_rsample)
            return value

    def drawing(self: Guide, graph) -> Guide:
        """The guide, told of the sites that the program draws in another precision than that of
        its parameters; it draws them so too."""
        own = {parameter.dtype for parameter in self.parameters()}
        for name, site in self.sites.items():
            dtype = graph.dtype_of(name)
            if not graph.sites[name].is_discrete and own != {dtype}:
                site["dtype"] = dtype
        return self

    def get_extra_state(self) -> dict[str, Any]:
        return {"sites": list(self.sites.values())}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self._set_sites(state["sites"])


def masked_part(site) -> dict[str, Any]:
    """What a site's plain description says of nodes that are masked out: an entry where it has
    some."""
    return {} if site.stands_in is None else {"stands_in": site.stands_in.clone()}


def _stand_in_log_prob(site: Mapping[str, Any], value: Tensor) -> Tensor:
    """Of nodes that are masked out, 0 for others, ``[*batch]``."""
    own = site["stands_in"].to(value.device)
    if site.get("values") is None:
        support = restore(site["support"], value.device)
        return torch.where(own, stand_in(support, value).log_prob(value), 0.0)
    return torch.where(own, -math.log(len(site["values"])), 0.0)


def as_drawn(site: Mapping[str, Any], numbers: Tensor) -> Tensor:
    """Numbers of a described site, in the precision in which the program draws it."""
    return numbers.to(site.get("dtype", numbers.dtype))


def finite(log_p: Tensor) -> Tensor:
    """Parameters have to be finite numbers; exp of the least is zero all the same."""
    return log_p.clamp_min(torch.finfo(log_p.dtype).min / 4)


def levels(quantiles: Sequence[float]) -> list[float]:
    """The probabilities of quantiles.

    Raises:
        OptionError: they are no sequence of numbers from 0 to 1, or there are none.
    """
    try:
        found = [real_number(q) for q in quantiles]
    except TypeError:  # no sequence
        found = [torch.nan]
    if not found:
        raise OptionError("quantiles=[] has no number; give some, as in [0.05, 0.5, 0.95]")
    if not all(0 <= q <= 1 for q in found):
        raise OptionError(f"quantiles={quantiles!r} have to be a sequence of numbers from 0 to 1")
    return found


def with_states(site) -> dict[str, Any]:
    """The plain description of a finite discrete site, with its states."""
    return {
        "name": site.name,
        "batch_shape": list(site.batch_shape),
        "event_shape": list(site.event_shape),
        "plates": [list(plate) for plate in site.plates],
        "values": site.enumeration.clone(),
        **masked_part(site),
    }
