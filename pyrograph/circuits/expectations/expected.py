"""Expectations of kernels under circuits.

    M_k(p, q) = E_{x ~ p, y ~ q} k(x, y) = sum_{x, y} p(x) k(x, y) q(y)

When p, q and k break the variables apart in the same way, the expectation follows their structure
(Algorithm 1): for units n of p, m of q and l of k,

    M(prod, prod, prod) = prod over parts of M(parts),      M(sum, m, l) = sum_c w_c M(c, m, l)

and likewise for sums of q and k. Here all units of a region are taken at once: products of all
triples from the matrices of the parts, then the sums of p, q and k as contractions of one dimension
each. Cost: the number of triples of each region, at most |p| |q| |k|. Exact.

With a second channel the same pass gives sums over variables of expectations that differ in one
leaf, as the product rule has it, (a, a') * (b, b') = (a b, a' b + a b'): see ``stein``.

Source: Li, Zeng, Vergari & Van den Broeck (2021), theorem 4.3, Algorithm 1 and corollary 4.6.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.expectations.kernel_units import KernelUnits
from pyrograph.circuits.expectations.kernels import Kernel, check_kernel
from pyrograph.circuits.expectations.scaling import Leaf, Scaled
from pyrograph.circuits.expectations.sides import CircuitSide, Side, sizes
from pyrograph.circuits.options import check_circuits
from pyrograph.circuits.structure.regions import Regions, arranged, regions_of
from pyrograph.errors import (
    IncompatibleCircuits,
    OptionError,
    ShapeMismatch,
    UnsupportedFactor,
    ZeroMass,
)

#: Numbers of one region that are held at once, at most: 8.6 GB in double precision.
MOST_NUMBERS = 2**30


def expected_kernel(p: Circuit, q: Circuit, kernel: Kernel) -> Tensor:
    """sum_{x, y} p(x) k(x, y) q(y), of circuits as they are (not normalised).

    Args:
        p, q: compatible circuits over the same variables.
        kernel: :class:`Hamming`, :class:`RBF`, :class:`Delta`, sums and products of them, or a
            :class:`KernelCircuit`.

    Returns:
        ``[]``, differentiable in the numbers of p, q and kernel.

    Raises:
        IncompatibleCircuits: no vtree fits both, naming the two units.
        InvalidCircuit: a circuit is not smooth or not decomposable.
        ShapeMismatch: the circuits have other variables.
        OptionError: the circuits have other dtypes.
    """
    check_kernel(kernel)
    check_dtypes(p, q)
    regions = common_regions(p, q, kernel)
    units = KernelUnits(kernel, regions, p)
    left, right = CircuitSide(p, regions), CircuitSide(q, regions)
    value, _ = pairs(left, right, units)
    log_mass = left.scaled.log_mass.unsqueeze(1) + right.scaled.log_mass
    return _of_mass(value[0, 0], log_mass[0, 0]).to(p.log_weights.dtype)


def _of_mass(value: Tensor, log_mass: Tensor) -> Tensor:
    """value e^log_mass, also where the mass alone is out of range."""
    if bool(log_mass <= math.log(torch.finfo(value.dtype).max)):
        return value * log_mass.exp().to(value.dtype)
    if not bool(value):  # circuits that do not overlap, whatever their mass
        return value
    return value.sign() * (value.abs().log() + log_mass).exp().to(value.dtype)


def squared_mmd(p: Circuit, q: Circuit, kernel: Kernel) -> Tensor:
    """Squared maximum mean discrepancy M(p, p) - 2 M(p, q) + M(q, q) of the *normalised* circuits.

    Raises:
        ZeroMass: a circuit is zero everywhere; and as :func:`expected_kernel`.
    """
    check_kernel(kernel)
    check_dtypes(p, q)
    regions = common_regions(p, q, kernel)
    units = KernelUnits(kernel, regions, p)
    left, right = CircuitSide(p, regions), CircuitSide(q, regions)
    for side, name in ((left, "first"), (right, "second")):
        if bool(side.log_mass == -torch.inf):
            raise ZeroMass(f"the {name} circuit is zero everywhere: there is nothing to normalise")
    mean = {
        name: pairs(a, b, units)[0][0, 0]
        for name, a, b in (("pp", left, left), ("pq", left, right), ("qq", right, right))
    }
    # a square, of which rounding may leave less than nothing
    found = (mean["pp"] - 2 * mean["pq"] + mean["qq"]).clamp_min(0)
    return found.to(p.log_weights.dtype)


def compatible(p: Circuit, q: Circuit) -> bool:
    """Whether some vtree fits both circuits: expectations under both are then tractable.

    Raises:
        OptionError: one is no circuit.
    """
    check_circuits(p, q)
    try:
        common_regions(p, q)
    except (IncompatibleCircuits, ShapeMismatch):
        return False
    return True


def check_dtypes(p: Circuit, q: Circuit) -> None:
    """Raise for circuits whose numbers do not mix.

    Raises:
        OptionError: the circuits have other dtypes, or one is no circuit.
    """
    check_circuits(p, q)
    if p.log_weights.dtype != q.log_weights.dtype:
        raise OptionError(
            f"the first circuit is {p.log_weights.dtype} and the second {q.log_weights.dtype}: "
            "take both to one dtype, circuit.double() or circuit.float()"
        )


def common_regions(p: Circuit, q: Circuit, kernel: Kernel | None = None) -> Regions:
    """The regions of all; raises where they do not fit."""
    if p.cards != q.cards:
        raise ShapeMismatch(
            f"the circuits have variables with {list(p.cards)} and {list(q.cards)} states (None is "
            "a real variable); an expectation needs the same variables"
        )
    for circuit in (p, q):
        circuit.requires("smooth", "decomposable", query="an expectation of a kernel")
    names = ["the first circuit", "the second circuit"]
    units = [p.units, q.units]
    shape = None if kernel is None else kernel.units(p.num_variables)
    if shape is not None:
        units.append(shape)
        names.append("the kernel")
    return regions_of(*units, names=tuple(names))


def num_pairs(p: Circuit) -> int:
    """Pairs of units of a circuit, those that :func:`pairs` goes over for two pieces of evidence.

    Raises:
        InvalidCircuit: p is not smooth or not decomposable.
    """
    rows = arranged(p.units, common_regions(p, p))
    return sum((len(r.inputs) + len(r.below)) ** 2 for r in rows)


def pairs(p: Side, q: Side, kernel: KernelUnits) -> tuple[Tensor, Tensor | None]:
    """M of all pairs of patterns, of the distributions given their evidence; 0 where that is
    impossible.

    Returns:
        ``[P, Q]``, and of the Stein channel ``[P, Q]`` if both sides carry it.
    """
    regions = p.regions
    stein = p.stein and q.stein
    # the products so far and what they are multiplied by, in either channel
    _refuse_size(p, q, kernel, 4 if stein else 2)
    at_p, at_q = p.scaled, q.scaled
    found: dict[int, tuple[Tensor, Tensor | None]] = {}
    for r in regions.depth_first():
        if not regions.parts[r]:
            plain, special = _leaf(at_p.leaf(r), at_q.leaf(r), kernel, r, stein)
        else:
            plain, special = _products(p, q, kernel, r, found)
        scale = at_p.scale[r].unsqueeze(1) * at_q.scale[r]
        plain = _mix(plain, (at_p, at_q), kernel, r, False) * scale
        if special is not None:
            special = _mix(special, (at_p, at_q), kernel, r, True) * scale
        for part in regions.parts[r]:
            del found[part]
        found[r] = plain, special
    plain, special = found[len(regions) - 1]
    plain = _of_mass_one(plain[0, 0, 0], at_p, at_q, False)
    if special is not None:
        special = _of_mass_one(special[0, 0, 0], at_p, at_q, True)
    return plain, special


def _refuse_size(p: Side, q: Side, kernel: KernelUnits, num_arrays: int) -> None:
    """Raise before memory runs out.

    Args:
        num_arrays: of all pairs of units of a region, that are held together.

    Raises:
        UnsupportedFactor: a region has too many pairs of units.
    """
    patterns = zip(sizes([p, q]), p.patterns.count, q.patterns.count, strict=True)
    widest = max(size * left * right for size, left, right in patterns)
    widest *= kernel.num_units * num_arrays
    if widest > MOST_NUMBERS:
        raise UnsupportedFactor(
            f"an expectation of a kernel goes over all pairs of units of a region: here {widest:,} "
            f"numbers at once, over the budget of {MOST_NUMBERS:,}. Take circuits of fewer units: "
            "condition on some variables first, or learn with max_edges"
        )


def _leaf(
    p: Leaf, q: Leaf, kernel: KernelUnits, r: int, stein: bool
) -> tuple[Tensor, Tensor | None]:
    """``[n, m, l, P, Q]``, and of the Stein measures of discrete variables."""
    if p.table is None:
        variance = p.variance[:, None, :, None] + q.variance[None, :, None, :]
        loc, other = p.loc[:, None, :, None], q.loc[None, :, None, :]
        mass = p.mass[:, None, :, None] * q.mass[None, :, None, :]
        rows = [
            mass * k.gaussian(*torch.broadcast_tensors(loc, other, variance))
            for k in kernel.inputs[r]
        ]
        return torch.stack(rows, 2), None
    card = q.table.shape[2]
    matrices = torch.stack([k.matrix(card) for k in kernel.inputs[r]]).to(q.table)

    def between(left: Tensor, right: Tensor) -> Tensor:
        smoothed = torch.einsum("lcd,mQd->lcmQ", matrices, right)
        return torch.einsum("nPc,lcmQ->nmlPQ", left, smoothed)

    return between(p.table, q.table), between(p.special, q.special) if stein else None


def _products(
    p: Side, q: Side, kernel: KernelUnits, r: int, found: dict[int, tuple[Tensor, Tensor | None]]
) -> tuple[Tensor, Tensor | None]:
    """Products of all triples of a region, by the product rule."""
    shape = [len(p.below[r]), len(q.below[r]), len(kernel.below[r])]
    shape += [p.patterns.count[r], q.patterns.count[r]]
    parts = p.regions.parts[r]
    shares = () if found[parts[0]][1] is None else (p.scaled.shares(r), q.scaled.shares(r))
    plain = special = None
    for k, part in enumerate(parts):
        a, da = found[part]
        size = a.shape
        triple = (p.below[r][:, k].unsqueeze(1) * size[1] + q.below[r][:, k]).unsqueeze(2)
        triple = (triple * size[2] + kernel.below[r][:, k]).flatten()
        patterns = p.patterns.index[r][k], q.patterns.index[r][k]
        a, da = (None if t is None else _gather(t, triple, *patterns) for t in (a, da))
        if da is not None:
            da = _shared_out(da.reshape(shape), *(s and s[k] for s in shares)).flatten(0, 2)
        if plain is None:
            plain, special = a, da
        elif a.requires_grad or plain.requires_grad:
            special = None if special is None else special * a + plain * da
            plain = plain * a
        else:  # in place: the largest arrays there are
            if special is not None:
                special.mul_(a).addcmul_(plain, da)
            plain.mul_(a)
    return plain.reshape(shape), None if special is None else special.reshape(shape)


def _gather(x: Tensor, triple: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """``[n, m, l, P, Q]`` of a part to ``[triples, P, Q]`` of the region, a copy."""
    own = x.flatten(0, 2)  # patterns first: all rows are read, so there are no more than triples
    for dim, index in ((2, right), (1, left)):
        size = own.shape[dim]
        if len(index) != size or not torch.equal(index, torch.arange(size, device=index.device)):
            own = own.index_select(dim, index)
    return own.index_select(0, triple)


def _of_mass_one(x: Tensor, p: Scaled, q: Scaled, stein: bool) -> Tensor:
    """Numbers of the roots ``[P, Q]``, of measures whose evidence has mass 1."""
    left, right = (side.log_excess(stein).exp().to(x.dtype) for side in (p, q))
    return x * left.unsqueeze(1) * right


def _shared_out(x: Tensor, p: Tensor | None, q: Tensor | None) -> Tensor:
    """A part's Stein measure ``[n, m, l, P, Q]`` times its shares in that of the products."""
    if p is not None:
        x = x * p[:, None, None, :, None]
    if q is not None:
        x = x * q[:, None, None]
    return x


def _mix(
    x: Tensor, sides: tuple[Scaled, Scaled], kernel: KernelUnits, r: int, stein: bool
) -> Tensor:
    for dim, side in enumerate(sides):
        x = side.mix(r, x, dim, stein)
    return kernel.mixing[r](x, 2)
