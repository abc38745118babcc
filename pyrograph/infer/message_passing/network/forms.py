"""How factors with continuous nodes are integrated: in closed form, or on which grid.

What is found of a set of factors is kept: it decides whether they are multiplied, divided into
terms, and refused.
"""

from __future__ import annotations

from pyrograph.beliefs import Conjugate
from pyrograph.errors import UnsupportedFactor
from pyrograph.infer.message_passing.continuous.expected_logs import Form, find_form
from pyrograph.infer.message_passing.continuous.log_sigmoid_form import LogSigmoidForm
from pyrograph.infer.message_passing.continuous.mean_field import rule_without_error
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.network.node_families import NodeFamilies
from pyrograph.infer.message_passing.network.same_scope import Locals
from pyrograph.infer.message_passing.network.without_grids import without_grids
from pyrograph.infer.message_passing.quadrature.conditional import quadratic_coordinates
from pyrograph.infer.message_passing.quadrature.tilted import POINTS


class Forms:
    """Of sets of like factors.

    Args:
        nodes: that they read.
        num_points: of a grid, per dimension; None for as many as serve.
    """

    def __init__(self, nodes: NodeFamilies, num_points: int | None):
        self.nodes, self.num_points = nodes, num_points
        self._closed_of: dict[LocalDensity, tuple[Form | None, list[int]]] = {}

    def conjugates(self, part: Locals) -> bool:
        """Whether a node in these scopes has a gamma, beta or Dirichlet belief."""
        families = self.nodes.kinds(part.group, part.index)
        return any(issubclass(family, Conjugate) for family in families)

    def closed(self, part: Locals) -> tuple[Form | None, list[int]]:
        """What expectations at alpha = 0 are, if that is known, and else which numbers of u are
        integrated in closed form."""
        if part.local not in self._closed_of:
            self._closed_of[part.local] = self._found_closed(part)
        return self._closed_of[part.local]

    def _found_closed(self, part: Locals) -> tuple[Form | None, list[int]]:
        local, alpha = part.local, part.alpha
        kinds = self.nodes.kinds(part.group, part.index)
        local.reduce_jointly([kind if issubclass(kind, Conjugate) else None for kind in kinds])
        if bool((alpha == 0).all()):
            chosen, double = [kinds[number.slots[0]] for number in local.chosen], local.in_double()
            # of many numbers any grid is too large, whatever number of points is asked for
            closed = LogSigmoidForm.of(double) if self.num_points else find_form(double, chosen)
            if closed is not None:
                return closed, []
        if self.conjugates(part) or bool((alpha <= 0).any()):
            return None, []
        if local.quadratic_in_states is not None:
            return None, list(range(local.dim))
        return None, quadratic_coordinates(local)

    def is_too_wide(self, part: Locals, inner: list[int]) -> bool:
        """Whether factors have more coordinates than any grid serves.

        Args:
            inner: coordinates that are integrated in closed form.
        """
        if len(inner) == part.local.dim or part.local.dim - len(inner) in POINTS:
            return False
        is_mean_field = bool((part.alpha == 0).all())
        return not (is_mean_field and rule_without_error(part.local) is not None)

    def refuse_too_wide(self, part: Locals, inner: list[int]) -> None:
        """Refuse factors of more coordinates than any grid serves.

        Args:
            inner: coordinates that are integrated in closed form.

        Raises:
            UnsupportedFactor: there are too many others.
        """
        if not self.is_too_wide(part, inner):
            return
        local, alpha, above = part.local, part.alpha, ""
        if not self.conjugates(part) and bool((alpha <= 0).any()):
            given = quadratic_coordinates(local)
            if given and local.dim - len(given) in POINTS:
                above = (
                    f"It is quadratic in {len(given)} of them given the others, which an alpha "
                    "above 0 makes use of: take pg.EP. Or: "
                )
        raise UnsupportedFactor(
            f"{self.nodes.graph.factor_name(part.group, int(part.index[0]))} depends on "
            f"{local.dim} continuous coordinates jointly, and is not quadratic: a quadrature grid "
            f"serves up to {max(POINTS)}. {above}{without_grids(self.nodes.graph, part.group)}"
        )
