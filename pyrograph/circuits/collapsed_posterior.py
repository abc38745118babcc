"""A posterior made of weighted, partly summed-out samples; see ``collapsed_samples``.

Marginals are mixtures of the exact conditionals of all samples,

    q(x_v) = sum_j w_j p(x_v | x_s(j)^j).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyro
import torch
from pyro.distributions import Delta
from torch import Tensor

from pyrograph.checks import count
from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.collapsed_samples import CollapsedSamples
from pyrograph.circuits.compiling.held import HeldCircuit
from pyrograph.circuits.structure.leaves import Domain
from pyrograph.circuits.structure.units import Units
from pyrograph.diagnostics.score import outside_modes
from pyrograph.errors import OptionError
from pyrograph.posterior.finite import States, state_quantile
from pyrograph.posterior.posterior import Posterior
from pyrograph.posterior.site_guide import SiteGuide, levels, with_states
from pyrograph.shapes import broadcast_shapes


class CollapsedPosterior(Posterior):
    """Samples with exact conditionals.

    Args:
        graph: the factor graph of a discrete program.
        circuit: its distribution, variables in order of nodes; or that of the nodes that some
            sample sums out, given the others.
        points: ``[n, V]`` codes, -1 where summed out.
        weights: ``[n]``.
        run: ``converged``, ``status``, ``history`` and evidence, see :class:`Posterior`.
    """

    def __init__(
        self, graph, circuit: Circuit | HeldCircuit, points: Tensor, weights: Tensor, **run
    ):
        super().__init__(graph, **run)
        self.circuit, self.points = circuit, points
        self.weights = weights / weights.sum()

    @cached_property
    @outside_modes()
    def _conditionals(self) -> list[Tensor]:
        """Of every node ``[n, c]``."""
        return self.circuit.marginals(self.points)

    def marginal(self, site: str) -> States:
        """``Categorical`` over the states ``[*batch, c]`` of a site.

        Raises:
            OptionError: no such site.
        """
        described = self._site(site)
        conditionals = torch.stack(self._conditionals[self.graph.nodes_of(site)])  # [nodes, n, c]
        share = torch.einsum("n,vnc->vc", self.weights.to(conditionals), conditionals)
        share = share.to(self.graph.dtype)
        logits = share.log().reshape(*described.batch_shape, described.cardinality)
        return States(described.enumeration.to(logits.device), logits)

    @cached_property
    @outside_modes()
    def particles(self) -> Mapping[str, Tensor]:
        """``{site: [n, *site shape]}``: every sample with one joint draw of its summed-out nodes
        given the rest, the same at every reading. Torch's generators are left as they were."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self._values(self.circuit.fill_in(self.points))

    def _values(self, codes: Tensor) -> dict[str, Tensor]:
        out = {}
        for name, site in self.graph.sites.items():
            own = codes[:, self.graph.nodes_of(name)]
            out[name] = site.enumeration.to(own.device)[own].reshape(len(codes), *site.shape)
        return out

    def sample(self, num_samples: int) -> dict[str, Tensor]:
        """Joint draws: a sample by weight, its summed-out nodes given the rest."""
        return self._values(self._samples.sample((count("num_samples", num_samples, least=0),)))

    @cached_property
    @outside_modes()
    def _samples(self) -> CollapsedSamples:
        return CollapsedSamples(self.circuit, self.points, self.weights.log())

    @outside_modes()
    def guide(self, sites: Sequence[str] | None = None) -> CollapsedGuide:
        """Draws all sites jointly, with their density.

        States that agree with no sample have density zero. So as a proposal of Pyro's
        ``Importance`` it misses part of the program, unless some sample holds no node, or the
        samples meet all states of what they hold.

        Raises:
            OptionError: no such site, an empty list, or some only: the density over them is not to
                be had.
        """
        if len(self._chosen(sites)) < len(self.graph.sites):
            raise OptionError(
                "samples whose nodes are partly summed out have a density over all sites only: "
                "guide()"
            )
        described = [with_states(site) for site in self.graph.sites.values()]
        log_weights, dtype = self.weights.log(), self.graph.dtype
        return CollapsedGuide(described, self.circuit, self.points, log_weights, dtype)


class CollapsedGuide(SiteGuide):
    """An ``AutoGuide`` whose arguments are ignored; see :meth:`CollapsedPosterior.guide` for where
    its density is zero."""

    def __init__(
        self,
        sites: Sequence[Mapping[str, Any]],
        circuit: Circuit | HeldCircuit,
        points: Tensor,
        log_weights: Tensor,
        dtype: torch.dtype = torch.float64,
    ):
        super().__init__(sites)
        # beside the guide: Pyro would take the circuit for a module of its own
        numbers = points, log_weights.detach()
        self.__dict__["samples"] = CollapsedSamples(circuit, *numbers, dtype=dtype)

    def _apply(self, fn: Callable, recurse: bool = True) -> CollapsedGuide:
        """Samples, which are no parameters, move where the module moves; their posterior stays."""
        super()._apply(fn, recurse)
        samples = self.__dict__["samples"]
        device = fn(samples.log_weights).device
        if device != samples.log_weights.device:
            circuit = copy.deepcopy(samples.circuit).to(device)
            numbers = samples.points, samples.log_weights, samples.log_masses
            numbers = (value.to(device) for value in numbers)
            self.__dict__["samples"] = CollapsedSamples(circuit, *numbers, samples.dtype)
        return self

    def get_extra_state(self) -> dict[str, Any]:
        samples = self.__dict__["samples"]
        split = samples.circuit
        circuit = split.circuit if isinstance(split, HeldCircuit) else split
        columns = split.columns if isinstance(split, HeldCircuit) else None
        units = circuit.units
        structure = {
            name: torch.from_numpy(getattr(units, name))
            for name in ("kind", "var", "start", "child")
        }
        numbers = {name: value.detach() for name, value in circuit.numbers.items()}
        return {
            **super().get_extra_state(),
            "units": structure,
            "numbers": numbers,
            "cards": list(circuit.cards),
            "columns": columns,
            "node_cards": list(split.cards),
            "points": samples.points,
            "log_weights": samples.log_weights,
            "dtype": samples.dtype,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> CollapsedGuide:
        """Rebuild a guide from what ``guide.state_dict()`` returned, without model or data."""
        saved = state["_extra_state"]
        units = Units(**{name: value.cpu().numpy() for name, value in saved["units"].items()})
        domain = Domain(tuple(saved["cards"]), units.var[units.var >= 0])
        circuit = Circuit(units, domain, **saved["numbers"])
        if saved["columns"] is not None:
            circuit = HeldCircuit.of_parts(circuit, saved["columns"], saved["node_cards"])
        # a guide saved before it had a precision was in double
        dtype = saved.get("dtype", torch.float64)
        return cls(saved["sites"], circuit, saved["points"], saved["log_weights"], dtype)

    def forward(self, *args, **kwargs) -> dict[str, Tensor]:
        """Draw a joint state; returns ``{site: value}``."""
        samples = self.__dict__["samples"]
        codes = pyro.sample(f"_{self._pyro_name}_state", samples, infer={"is_auxiliary": True})
        plates = self._create_plates(*args, **kwargs)
        result, start = {}, 0
        for name, site in self.sites.items():
            size = torch.Size(site["batch_shape"]).numel()
            own = codes[..., start : start + size]
            start += size
            # lead dimensions are of size 1 where the site's own plates stand
            batch = broadcast_shapes(torch.Size(site["batch_shape"]), codes.shape[:-1])
            value = site["values"].to(own.device)[own].reshape((*batch, *site["event_shape"]))
            delta = Delta(value, event_dim=len(site["event_shape"]))
            result[name] = self._sample(plates, name, delta)
        return result

    def median(self, *args, **kwargs) -> dict[str, Tensor]:
        """The most probable state of every node."""
        out = {}
        for name, site, shares in self._shares():
            values = site["values"].to(shares.device)
            shape = (*site["batch_shape"], *site["event_shape"])
            out[name] = values[shares.argmax(-1)].reshape(shape)
        return out

    def quantiles(self, quantiles: Sequence[float], *args, **kwargs) -> dict[str, Tensor]:
        """``{site: [len(quantiles), *shape]}``: of every node the least value that is reached with
        the probability asked for. States that are vectors have no order: their sites are left out.

        Raises:
            OptionError: they are no sequence of numbers from 0 to 1, or there are none.
        """
        wanted, out = levels(quantiles), {}
        for name, site, shares in self._shares():
            values = site["values"].to(shares.device)
            if values.dim() == 1:
                found = [values[state_quantile(values, shares, q)] for q in wanted]
                out[name] = torch.stack(found).reshape(len(wanted), *site["batch_shape"])
        return out

    @torch.no_grad()
    def _shares(self) -> list[tuple[str, Mapping[str, Any], Tensor]]:
        """By site, its description and the probabilities of its nodes' states, ``[nodes, c]``."""
        samples = self.__dict__["samples"]
        conditionals = iter(samples.circuit.marginals(samples.points))  # of every node [n, c]
        weights = samples.log_weights.exp()
        out = []
        for name, site in self.sites.items():
            size = torch.Size(site["batch_shape"]).numel()
            own = torch.stack([next(conditionals) for _ in range(size)])
            out.append((name, site, torch.einsum("n,vnc->vc", weights.to(own), own)))
        return out
