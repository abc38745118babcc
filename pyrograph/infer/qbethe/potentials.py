"""Expected log potentials under the components of a mixture: E_b log f_a = sum_l w_l E_l log f_a.

A potential of continuous nodes depends on u = T x, often of fewer dimensions than its scope (see
:mod:`~pyrograph.infer.message_passing.densities.reduction`): a difference of two nodes is
integrated in one dimension, whatever the nodes are. Under component l u is Gaussian. Quadratic
potentials have their expectations in closed form, tables are summed, all others are integrated by
the rules given.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyrograph.beliefs.gaussian import apply, block_diagonal
from pyrograph.errors import NonFiniteDensity
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.nodes.basis import Basis
from pyrograph.infer.qbethe.components import Components, taken
from pyrograph.infer.qbethe.numbers import Closed, Numbers, expected_together
from pyrograph.infer.qbethe.quadratic import Expanded
from pyrograph.infer.qbethe.rules import Rules
from pyrograph.infer.qbethe.wiring import Wiring

#: Numbers evaluated at once where a finer rule holds a result to account.
CHUNK = 2**24
#: What an excluded value counts for while optimising. It pulls nowhere; what is certified has none.
EXCLUDED = -1e4


class TablePotential:
    """Discrete factors.

    Args:
        log_table: ``[E, c_1, ..., c_k]``, finite.
    """

    def __init__(self, log_table: Tensor, wiring: Wiring):
        self.log_table, self.wiring = log_table, wiring

    def closed(self, mixture: Components) -> None:
        """Sums over states are none of single numbers."""

    def expected(self, mixture: Components, rules: Rules) -> Tensor:
        """``[B, L]``: sum of E_l log f over the factors."""
        value = self.log_table
        for position, (kind, rows) in reversed(
            list(enumerate(zip(self.wiring.kinds, self.wiring.rows, strict=True)))
        ):
            probs = taken(mixture.log_probs[kind].exp(), rows)  # [B, L, E, c]
            probs = probs.view(*probs.shape[:3], *(1,) * position, probs.shape[3])
            value = (value * probs).sum(-1)
        return value.sum(2)


class QuadraticPotential:
    """Factors that are quadratic in v, parts B_k x_k of their nodes:

    E_l log f = log f(E_l v) - tr(P Cov_l v) / 2.
    """

    def __init__(self, local: LocalDensity, wiring: Wiring):
        self.local, self.wiring = local, wiring
        self.precision = local.quadratic.precision
        self.maps = _node_maps(local, wiring)
        self.numbers = _numbers(local, wiring) if local.is_scalar and not wiring.ties else None
        is_one = self.numbers is not None and local.group.arity == 1
        self._expands = is_one and not local.group.is_differentiable
        #: Of factors of one number, from the first evaluation on.
        self.expanded: Expanded | None = None
        #: P_kk, ``[R, E]``.
        self._curvature = self.precision.diagonal(dim1=1, dim2=2).t().contiguous()

    def closed(self, mixture: Components) -> Closed | None:
        """Of single numbers, where they are read, and how."""
        if not self._expands:
            return None
        if self.expanded is None:
            self.expanded = self._expanded(mixture)
        return self.numbers, self.expanded

    def expected(self, mixture: Components, rules: Rules) -> Tensor:
        closed = self.closed(mixture)
        if closed is not None:
            return expected_together([closed], mixture)
        if self.numbers is not None:
            return self._expected_of_scalars(mixture)
        mean, root = scope_moments(mixture, self.wiring, self.maps)  # [B, L, E, R]
        flat = mean.flatten(0, 1).unsqueeze(1)
        value = self.local.at_parts(flat).view(mean.shape[:3])
        if root.dim() == mean.dim():
            trace = (self.precision.diagonal(dim1=-2, dim2=-1) * root.square()).sum(-1)
        else:
            trace = ((self.precision @ root) * root).sum((-1, -2))
        return (value - 0.5 * trace).sum(2)

    def _expanded(self, mixture: Components) -> Expanded:
        """Near where components start."""
        where = [
            [None if v is None else v[None, None] for v in values]
            for values in ([k.centre for k in mixture.kinds], [k.unit for k in mixture.kinds])
        ]
        centre, unit = (self.numbers.read(values)[0, 0, 0] for values in where)
        return Expanded.of(self.local, centre, unit)

    def _expected_of_scalars(self, mixture: Components) -> Tensor:
        """The same for independent single numbers, in few operations."""
        means, scales = self.numbers.read(mixture.means), self.numbers.read(mixture.scales)
        trace = (scales.square() * self._curvature).sum((2, 3))
        value = self.local.at_scalars([mean.flatten(0, 1) for mean in means.unbind(2)])
        return torch.add(value.sum(1).view(trace.shape), trace, alpha=-0.5)


class IntegratedPotential:
    """All other factors with continuous nodes.

    Attributes:
        is_by_points: whether rules integrate them, or they are closed forms.
    """

    is_by_points = True

    def __init__(self, local: LocalDensity, wiring: Wiring):
        self.local, self.wiring = local, wiring
        self.maps = _node_maps(local, wiring)
        self.discrete = [(wiring.kinds[k], wiring.rows[k]) for k in local.discrete]
        joint = local.joint
        self.joint = joint
        total = sum(local.widths)
        self.dim = total if joint is None else joint.shape[2]
        #: How many numbers a rule's dimensions stand for.
        self.num_read = sum(local.read_widths)
        #: Whether a zero was met at some point of a rule.
        self.met_zero = False
        self.numbers = _numbers(local, wiring) if local.is_scalar else None
        #: Of single numbers read through one linear combination: its coefficients, ``[R, E]``.
        self.lever = None
        if local.is_scalar and self.dim == 1 and max(local.widths) == 1:
            ones = local.like.new_ones(1, local.num_factors)
            self.lever = ones if joint is None else joint[0, :, 0].t().contiguous()
        #: Whether it is one number as it stands.
        self._is_plain = (
            self.lever is not None and len(self.lever) == 1 and bool((self.lever == 1).all())
        )

    def closed(self, mixture: Components) -> Closed | None:
        """Where single numbers are read, and how, if their integrals are closed forms."""
        return None

    def expected(self, mixture: Components, rules: Rules) -> Tensor:
        if self.lever is not None and not self.wiring.ties:
            return self._expected_of_scalar(mixture, rules)
        mean, root = self._moments(mixture)
        rule = rules(self.dim, mean[..., 0].numel(), self.num_read)
        total = mean.new_zeros(mean.shape[:2])
        size = self._at_once(mean)
        share = self._share(mixture)  # [B, L, D, E]
        for points, weights in zip(rule.points.split(size), rule.weights.split(size), strict=True):
            value = self._at(mean, root, points)  # [B, L, N, D, E]
            total = total + torch.einsum("n,blnde,blde->bl", weights, value, share)
        return total

    def _expected_of_scalar(self, mixture: Components, rules: Rules) -> Tensor:
        """The same for a linear combination of independent single numbers, in few operations."""
        centre, sd = self.line_moments(mixture)
        rule = rules(1, centre.numel(), len(self.lever))
        sd = sd.unsqueeze(2)
        total = centre.new_zeros(centre.shape[:2])
        size = max(1, CHUNK // max(1, centre.numel() * len(self.lever)))
        for points, weights in zip(rule.points.split(size), rule.weights.split(size), strict=True):
            u = (centre.unsqueeze(2) + sd * points).flatten(0, 2)  # [B L N, E]
            value = self._checked(self.local.at_scalars([a * u for a in self.lever]), u)
            total = total + value.sum(1).view(*total.shape, -1) @ weights
        return total

    def line_moments(self, mixture: Components) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of u, one number of single numbers: ``[B, L, E]`` both."""
        if self.wiring.ties:
            mean, sd = self._moments(mixture)
            return mean[:, :, 0, :, 0], sd[:, :, 0, :, 0]
        means, scales = self.numbers.read(mixture.means), self.numbers.read(mixture.scales)
        if self._is_plain:
            return means[:, :, 0], scales[:, :, 0]
        return (self.lever * means).sum(2), (self.lever * scales).square().sum(2).sqrt()

    def _at(self, mean: Tensor, root: Tensor, points: Tensor) -> Tensor:
        """log f at ``[B, L, N, D, E]`` points of u."""
        u = self._places(mean, root, points)
        value = self._checked(self.local(u.flatten(0, 2)), u.flatten(0, 2)).view(u.shape[:-1])
        inner = u.shape[2] // len(points)
        return value if inner == 1 else value.unflatten(2, (len(points), inner)).mean(3)

    def _places(self, mean: Tensor, root: Tensor, points: Tensor) -> Tensor:
        """u ``[B, L, N', D, E, r]`` at the standard normal points that stand for some."""
        z = self._standard(points)[:, None, None, :]
        steps = root.unsqueeze(2) * z if root.dim() == mean.dim() else apply(root.unsqueeze(2), z)
        return mean.unsqueeze(2) + steps

    def _standard(self, points: Tensor) -> Tensor:
        """Standard normal points ``[N', r]`` that stand, as many for each and all alike, for those
        ``[N, dim]`` of a rule."""
        return points

    def _at_once(self, mean: Tensor) -> int:
        """Points of a rule that are evaluated together."""
        per_point = (
            mean.numel()
            * sum(self.local.read_widths)
            * len(self._standard(mean.new_zeros(1, self.dim)))
        )
        return max(1, CHUNK // max(1, per_point))

    def _checked(self, value: Tensor, u: Tensor) -> Tensor:
        """log f ``[N, D, E]`` at ``u [N, D, E, r]``, or ``[N, E]`` both, as it counts.

        Raises:
            NonFiniteDensity: NaN or plus infinity, naming the factor.
        """
        with torch.no_grad():
            total = value.sum()
        if bool(total.isfinite()):
            return value
        if value.dim() == 2:
            return self._checked(value.unsqueeze(1), u[:, None, :, None]).squeeze(1)
        bad = value.isnan() | (value == torch.inf)
        if bool(bad.any()):
            raise NonFiniteDensity(
                f"{self._name_of_first(bad, u)} has log density NaN or plus infinity under a "
                "component of the mixture. Look at that statement: a scale that can reach 0 or a "
                "logarithm of a negative number are the usual causes. Or a positive number is 0 in "
                "this precision where its prior has a pole, as a Gamma of small shape has there: "
                "give dtype=torch.float64, and a larger num_quadrature against far components."
            )
        if not bool((value == -torch.inf).any()):
            return value  # large numbers whose sum overflows
        self.met_zero = True
        return self.local.with_zeros_as(EXCLUDED, value, u)

    def _name_of_first(self, bad: Tensor, u: Tensor) -> str:
        """Of the factors that are ``bad [N, D, E]`` at ``u [N, D, E, r]``."""
        n, d, e = bad.nonzero()[0].tolist()
        return self.local.name_at(u[n : n + 1], d, e)

    def excludes(self, mixture: Components, rules: Rules, reach: float) -> str | None:
        """A factor that is zero within ``reach`` deviations of a component, if there is one."""
        mean, root = self._moments(mixture)
        rule = rules(self.dim, mean[..., 0].numel())
        inner = rule.points.norm(dim=1) < reach
        for points in rule.points[inner].split(self._at_once(mean)):
            u = self._places(mean, root, points).flatten(0, 2)
            is_zero = self.local(u) == -torch.inf
            if bool(is_zero.any()):
                return self._name_of_first(is_zero, u)
        return None

    def without_gradient(self, mixture: Components, rules: Rules) -> int | None:
        """A factor whose gradient is not finite at some point, if there is one."""
        mean, root = self._moments(mixture)
        rule = rules(self.dim, mean[..., 0].numel(), self.num_read)
        for point in self._standard(rule.points):
            step = root * point if root.dim() == mean.dim() else apply(root, point)
            u = (mean + step).detach().flatten(0, 1).requires_grad_()
            with torch.enable_grad():
                (slope,) = torch.autograd.grad(self.local(u).sum(), u)
            bad = ~slope.isfinite().all(-1).flatten(0, -2).all(0)
            if bool(bad.any()):
                return int(bad.nonzero()[0])
        return None

    def deviation(self, mixture: Components, rules: Rules) -> Tensor:
        """``[B, L]``: standard deviations of log f under a component, added up over the factors.

        What constants add to log f is not in it: it is the size of what points have to integrate.
        """
        mean, root = self._moments(mixture)
        rule = rules(self.dim, mean[..., 0].numel(), self.num_read)
        size = self._at_once(mean)
        origin = self._at(mean, root, rule.points[:1])
        first = second = torch.zeros_like(mean[..., 0])
        for points, weights in zip(rule.points.split(size), rule.weights.split(size), strict=True):
            value = self._at(mean, root, points) - origin  # less of it cancels in the difference
            first = first + torch.einsum("n,blnde->blde", weights, value)
            second = second + torch.einsum("n,blnde->blde", weights, value.square())
        spread = (second - first.square()).clamp_min(0).sqrt()
        return (self._share(mixture) * spread).sum((2, 3))

    def _moments(self, mixture: Components) -> tuple[Tensor, Tensor]:
        """Mean ``[B, L, D, E, r]`` of u and a root of its covariance: standard deviations of the
        same shape, or lower triangular ``[B, L, D, E, r, r]``."""
        mean, root = scope_moments(mixture, self.wiring, self.maps)
        if self.joint is None:
            states = (-1, -1, self.local.num_states) + (-1,) * (root.dim() - 2)
            mean = mean.unsqueeze(2).expand(-1, -1, self.local.num_states, -1, -1)
            lever = root.unsqueeze(2).expand(*states)
            if lever.dim() == mean.dim() or lever.shape[-1] == lever.shape[-2]:
                return mean, lever
        elif root.dim() == mean.dim():
            mean = apply(self.joint, mean.unsqueeze(2))
            lever = self.joint * root.unsqueeze(2).unsqueeze(-2)
        else:
            mean = apply(self.joint, mean.unsqueeze(2))
            lever = self.joint @ root.unsqueeze(2)
        if mean.shape[-1] == 1:
            return mean, lever.norm(dim=-1)
        return mean, torch.linalg.cholesky(lever @ lever.mT)

    def _share(self, mixture: Components) -> Tensor:
        """Probability of states under a component, ``[B, L, D, E]``."""
        share = mixture.weights.new_ones(*mixture.weights.shape, 1, 1)
        for position, (kind, rows) in enumerate(self.discrete):
            probs = taken(mixture.log_probs[kind].exp(), rows)  # [B, L, E, c]
            share = share * probs.movedim(-1, 2)[:, :, self.local.states[:, position]]
        if not self.discrete:
            share = share.expand(-1, -1, 1, self.local.num_factors)
        return share


Potential = TablePotential | QuadraticPotential | IntegratedPotential


def expected_of_all(potentials: list[Potential], mixture: Components, rules: Rules) -> Tensor:
    """``[B, L]``: sum of E_l log f over the factors of all, closed forms together."""
    forms = [potential.closed(mixture) for potential in potentials]
    closed = [form for form in forms if form is not None]
    under = [expected_together(closed, mixture)] if closed else []
    for potential, form in zip(potentials, forms, strict=True):
        if form is None:
            under.append(potential.expected(mixture, rules))
    return sum(under[1:], under[0])


def _numbers(local: LocalDensity, wiring: Wiring) -> Numbers:
    """Of factors that read one number of each of their nodes."""
    slots = local.continuous
    return Numbers(local, [wiring.kinds[k] for k in slots], [wiring.rows[k] for k in slots])


def _node_maps(local: LocalDensity, wiring: Wiring) -> list[tuple[int, Tensor, Basis]]:
    """Kind, rows and basis of every continuous slot."""
    slots = zip(local.continuous, local.bases, strict=True)
    return [(wiring.kinds[k], wiring.rows[k], basis) for k, basis in slots]


def scope_moments(
    mixture: Components, wiring: Wiring, maps: list[tuple[int, Tensor, Basis]]
) -> tuple[Tensor, Tensor]:
    """Mean ``[B, L, E, R]`` of the parts of a scope, and standard deviations of the same shape
    where they are independent in a component, else a root ``[B, L, E, R, R']`` of the covariance.
    """
    means, scales, roots = [], [], []
    is_diagonal = not wiring.ties
    for kind, _, basis in maps:
        is_diagonal = is_diagonal and basis is None and mixture.roots[kind] is None
    for kind, rows, basis in maps:
        mean = taken(mixture.means[kind], rows)
        means.append(mean if basis is None else basis.of(mean))
        if is_diagonal:
            scales.append(taken(mixture.scales[kind], rows))
        else:
            root = taken(mixture.root(kind), rows)
            roots.append(root if basis is None else basis.times(root))
    mean = torch.cat(means, -1) if len(means) > 1 else means[0]
    if is_diagonal:
        return mean, torch.cat(scales, -1) if len(scales) > 1 else scales[0]
    root = block_diagonal(roots)
    if wiring.ties:
        widths = [mixture.kinds[kind].size for kind, _, _ in maps]
        root = root @ wiring.correlation_root(mixture, widths)
    return mean, root


def zero_states(log_table: Tensor) -> int | None:
    """A factor with an excluded state, if there is one."""
    zero = (log_table == -torch.inf).flatten(1).any(1)
    return int(zero.nonzero()[0]) if bool(zero.any()) else None
