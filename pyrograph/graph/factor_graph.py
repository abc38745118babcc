"""The factor graph of a Pyro program, exact to the element.

    log p(x, data) = constant + sum_a log f_a(x_{scope(a)})

Nodes, factors and scopes are those of :mod:`.structure`; this file evaluates densities over them.
Particles are rows of a flat matrix ``[n, dim]``, columns in node order with events flattened.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Mapping

import torch
from torch import Tensor

from pyrograph.errors import OptionError, ShapeMismatch
from pyrograph.graph.blame import first_non_finite
from pyrograph.graph.devices import usable_device
from pyrograph.graph.factor_group import FactorGroup
from pyrograph.graph.programs import local_program, shared_program
from pyrograph.graph.rounding import rounding_of_constants
from pyrograph.graph.spaces import (
    as_tensors,
    constrain,
    leaf_buffers,
    refuse_moved,
    refuse_other_particles,
    refuse_outside,
    refuse_shapes,
    unconstrain,
)
from pyrograph.graph.structure import Structure
from pyrograph.trace.localize import LocalProgram
from pyrograph.trace.reading import Reading
from pyrograph.trace.tape import Tape


class FactorGraph(Structure):
    """Nodes, factors and the program's log density. Made by :func:`pyrograph.trace_graph`.

    Attributes:
        sites: latent sites by name, in program order.
        factors: groups of like factors.
        constant: sum of all log-density elements that depend on no latent.
        unconstrained: whether values and events are in unconstrained space.
        fixed: sites held at a value while the structure was read; their nodes have no columns.
        masked: of sites with a tensor as a mask, ``[nodes]``, which lack their prior.
    """

    def __init__(self, reading: Reading, *, unconstrained: bool) -> None:
        self.unconstrained = unconstrained
        self._cast: torch.dtype | None = None
        #: In which functions run, where that is not the one of results.
        self._wide: torch.dtype | None = None
        self._reading = reading
        self._programs: dict[str, LocalProgram] = {}
        super().__init__(reading, self._value_dtype(), self._compile_group)
        #: Numbers of every free site, and their columns.
        self._sizes = [s.num_nodes * s.width for s in self.free_sites]
        ends = itertools.accumulate(self._sizes)
        self._own_columns = [slice(end - n, end) for n, end in zip(self._sizes, ends, strict=True)]

    @property
    def lowest_precision(self) -> torch.dtype:
        """The narrowest floating dtype the program computes in, constant statements included."""
        return self._narrowest([s.values.dtype for s in self._reading.statements])

    @property
    def lowest_factor_precision(self) -> torch.dtype:
        """The narrowest floating dtype of what the program computes from latents."""
        return self._narrowest([])

    @functools.cached_property
    def rounding(self) -> float:
        """What constants in the program's precision leave unknown of the log density, in nats
        (:mod:`.rounding`)."""
        return rounding_of_constants(self)

    def _narrowest(self, others: list[torch.dtype]) -> torch.dtype:
        """Of the tape's dtypes and others, of which some may be of whole numbers."""
        dtypes = {s.dtype for s in self._reading.tape.steps}.union(others)
        floats = {d for d in dtypes if d.is_floating_point}
        return min(floats or {self._value_dtype()}, key=lambda d: torch.finfo(d).bits)

    def _value_dtype(self) -> torch.dtype:
        floats = [s.values.dtype for s in self._reading.statements if s.values.is_floating_point()]
        return functools.reduce(torch.promote_types, floats or [torch.get_default_dtype()])

    def _compile_group(self, index: Tensor, scope: Tensor) -> LocalProgram:
        return self._compiled(self._reading.tape, self._factors.terms.ids[index.cpu()], scope)

    def _compiled(self, tape: Tape, ids: Tensor, scope: Tensor) -> LocalProgram:
        with torch.enable_grad():  # constants may be attached to the program's tensors
            program = local_program(tape, ids, self._value_dtype(), scope.cpu(), self.columns.cpu())
            return program.to(self.device, self._wide or self._cast)

    # ------------------------------------------------------------------ values
    @property
    def dtype(self) -> torch.dtype:
        """Of the continuous columns: what holds the numbers of every site. Where there are none,
        of the program's densities: states have no precision of their own."""
        if self._wide or self._cast:
            return self._wide or self._cast
        floats = [s.dtype for s in self.free_sites if not s.is_discrete]
        return functools.reduce(torch.promote_types, floats or [self._value_dtype()])

    @property
    def result_dtype(self) -> torch.dtype:
        """Of results that are no values of a site: as the program computes its densities, unless
        the graph was moved to a dtype."""
        return self._factors.constant.dtype if self._cast is None else self._cast

    def dtype_of(self, site: str) -> torch.dtype:
        """Of a site's values: what the program draws, unless the graph was moved to a dtype."""
        described = self._site(site)
        own = described.is_discrete or self._cast is None
        return described.dtype if own else self._cast

    def _leaves(self, values: Mapping[str, Tensor]) -> tuple[list[Tensor], bool]:
        """Leaf buffers ``[numel, S]`` of named values, and whether they were batched."""
        given = as_tensors(self.free_sites, values, self.device)
        unknown = [n for n in values if n not in self.sites]
        if unknown:
            raise ShapeMismatch(
                f"values name {', '.join(unknown)}; the latent sites are "
                f"{', '.join(self.sites) or 'none'}."
            )
        again = [self.sites[name] for name in self.fixed if name in values]
        refuse_moved(self.fixed, as_tensors(again, values, self.device))
        return leaf_buffers(self.free_sites, given)

    def _shared_program(self, key: str, ids: Tensor) -> LocalProgram:
        """Of numbers at one assignment, compiled on the first call."""
        if key not in self._programs:
            with torch.enable_grad():  # as above
                program = shared_program(self._reading.tape, ids, self._value_dtype(), self._sizes)
                self._programs[key] = program.to(self.device, self._wide or self._cast)
        return self._programs[key]

    def _density_program(self) -> LocalProgram:
        return self._shared_program("density", self._factors.element_ids)

    @property
    def numbers_per_particle(self) -> int:
        """Numbers computed on the way to one log density: what its memory is proportional to."""
        return self.dim + self._density_program().num_numbers

    def _evaluate(self, buffers: list[Tensor]) -> Tensor:
        if not buffers:
            return self.constant.reshape(1)
        return self._density_program().total(buffers) + self._factors.element_constant

    def log_prob(self, values: Mapping[str, Tensor]) -> Tensor:
        """Log density of the program, as Pyro's ``trace.log_prob_sum()``.

        Args:
            values: one tensor (or array, or number) per site, in the graph's space,
                ``[*batch, *event]`` or all with one more leading dimension S.

        Returns:
            Scalar, or ``[S]``. Jacobians are included where the graph is unconstrained.

        Raises:
            ShapeMismatch, OptionError: naming the site; a value outside its support is refused.
        """
        buffers, batched = self._leaves(values)
        if not self.unconstrained:
            refuse_outside(self.free_sites, values, self.device)
        out = self._evaluate(buffers)
        return out if batched else out[0]

    def sum_of_factors(self, values: Mapping[str, Tensor]) -> Tensor:
        """:attr:`constant` plus all factors: what :meth:`log_prob` gives, by the split terms."""
        buffers, batched = self._leaves(values)
        if not buffers:
            return self.constant
        program = self._shared_program("terms", self._factors.terms.ids)
        total = program.total(buffers) + self.constant
        return total if batched else total[0]

    def density(self, x: Tensor) -> Tensor:
        """Log density at flat particles ``[n, dim]``, as ``[n]``; differentiable."""
        refuse_other_particles(x, self.dim)
        columns = x.t().contiguous()
        return self._evaluate([columns[own] for own in self._own_columns]).expand(len(x))

    def flatten(self, values: Mapping[str, Tensor]) -> Tensor:
        """Named values with a leading dimension n, as ``[n, dim]`` in the graph's space."""
        buffers, batched = self._leaves(values)
        if not batched:
            raise ShapeMismatch("flatten needs values with one leading dimension n.")
        return torch.cat([b.to(self.dtype) for b in buffers]).t()

    def unflatten(self, x: Tensor) -> dict[str, Tensor]:
        """Inverse of :meth:`flatten`: ``{site: [n, *batch, *event]}``."""
        refuse_other_particles(x, self.dim)
        out = {}
        for site, own in zip(self.free_sites, self._own_columns, strict=True):
            value = x[:, own].reshape(-1, *site.batch_shape, *site.event_shape)
            out[site.name] = value.to(site.dtype) if site.is_discrete else value
        return out

    def constrain(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Values ``[n, *batch, *event]`` of the graph's space in the program's space.

        Raises:
            ShapeMismatch, OptionError: naming the site.
        """
        if not self.unconstrained:
            return dict(values)
        values = as_tensors(self.free_sites, values, self.device)
        refuse_shapes(self.free_sites, values)
        fixed = [s for s in self.free_sites if s.is_discrete or s.support is not None]
        out = constrain(fixed, values, self.device)
        moved = [s for s in self.free_sites if s.name not in out]
        buffers = self._leaves(values)[0] if moved else []
        for site in moved:  # supports that depend on latents: replay the program
            ids = self._reading.constrained[site.name].reshape(-1)
            program = self._shared_program(f"constrain:{site.name}", ids)
            out[site.name] = program(buffers).t().reshape(-1, *site.shape)
        return {s.name: out[s.name] for s in self.free_sites}

    def unconstrain(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Inverse of :meth:`constrain`.

        Raises:
            UnsupportedSite: a support depends on latents.
        """
        if not self.unconstrained:
            return dict(values)
        values = as_tensors(self.free_sites, values, self.device)
        return unconstrain(self.free_sites, values, self.device)

    def blame(self, x: Tensor) -> str | None:
        """Name the first factor and particle with a non-finite log density or gradient."""
        return first_non_finite(self, x)

    def local_values(self, group: FactorGroup, x: Tensor) -> list[Tensor]:
        """What a group's factors read at flat particles ``[n, dim]``, ``[n, E, *event]`` a slot."""
        values = []
        for k, site in enumerate(group.slots):
            start = self.columns[group.scope[:, k]].unsqueeze(1)
            at = start + torch.arange(site.width, device=start.device)
            value = x[:, at].reshape(len(x), group.num_factors, *site.event_shape)
            values.append(value.to(site.dtype) if site.is_discrete else value)
        return values

    # ------------------------------------------------------------------ moves
    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> FactorGraph:
        """A graph whose functions run on another device or in another floating dtype.

        Raises:
            OptionError: the device cannot be used, or the dtype is not a floating one.
        """
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise OptionError(f"dtype={dtype!r} is no floating dtype; give one as torch.float32.")
        moved = copy.copy(self)
        moved.device = self.device if device is None else usable_device(device)
        moved._cast = self._cast if dtype is None else dtype
        moved._wide = self._wide if dtype is None else None
        moved._programs = {}
        for name in ("neighbors", "data"):
            moved.__dict__.pop(name, None)
        moved.columns = self.columns.to(moved.device)
        moved.constant = self._factors.exact.to(moved.device, dtype or self.constant.dtype)
        moved.fixed = {n: v.to(moved.device) for n, v in self.fixed.items()}
        moved.factors = tuple(
            FactorGroup(
                g.name,
                g.statements,
                g.scope.to(moved.device),
                g.index.to(moved.device),
                g.slots,
                moved._compile_group,
            )
            for g in self.factors
        )
        return moved

    def in_double(self) -> FactorGraph:
        """A graph whose functions run in double precision, while results and values of sites keep
        the precisions that they have."""
        found = self.to()
        found._wide = torch.float64
        found.constant = self._factors.exact.to(found.device)
        return found
