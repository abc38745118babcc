"""Belief propagation: alpha = 1, and no projection.

    m_{a -> i}(x_i) = sum_{x \\ i} f_a(x) prod_{j != i} q_j(x_j) / m_{a -> j}(x_j)

Exact on trees of discrete or of Gaussian factors, marginals and evidence; on graphs with cycles a
stationary point of the Bethe free energy, where Gaussian models still have exact means.

Source: Pearl (1988); Minka (2005), section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from pyrograph.errors import OptionError, UnsupportedFactor
from pyrograph.infer.message_passing.continuous.conjugate_factors import ConjugateFactors
from pyrograph.infer.message_passing.continuous.quadrature_factors import QuadratureFactors
from pyrograph.infer.message_passing.engine import MessagePassing
from pyrograph.infer.message_passing.network.network import Network


class BP(MessagePassing):
    """Sum-product on discrete and Gaussian factors.

    Args:
        model: a Pyro program whose sites are finite discrete, or continuous and met by Gaussian
            factors alone.
        options: see :class:`MessagePassing`, but for ``alpha``.

    Raises:
        UnsupportedFactor: a factor of continuous nodes is not Gaussian; it says which preset fits.
    """

    fixes: ClassVar[tuple[str, ...]] = ("alpha",)

    def __init__(self, model: Callable, **options: Any):
        refuse_alpha(type(self).__name__, options)
        super().__init__(model, alpha=1.0, **options)

    def build(self) -> Network:
        network = super().build()
        for (group, index), block in zip(network.members, network.blocks, strict=True):
            if isinstance(block, ConjugateFactors | QuadratureFactors):
                name = self.graph.factor_name(group, int(index[0]))
                if isinstance(block, ConjugateFactors):
                    raise UnsupportedFactor(
                        f"{name} joins labels with gamma, beta or Dirichlet nodes, whose beliefs "
                        f"it does not leave in their family, and {type(self).__name__} projects "
                        "nothing. pg.EP projects in closed form; pg.VMP takes it too."
                    )
                is_mixed = any(site.is_discrete for site in self.graph.sites.values())
                others = "pg.VMP takes" if is_mixed else "pg.VMP and pg.GraphicalSVGD take"
                raise UnsupportedFactor(
                    f"{name} is not a Gaussian function of "
                    f"its continuous nodes, and {type(self).__name__} projects nothing. pg.EP "
                    f"projects on Gaussians by quadrature; {others} it too."
                )
        return network


def refuse_alpha(engine: str, options: dict) -> None:
    """Raise for an alpha handed to a preset that is defined by its own.

    Raises:
        OptionError: naming the presets that take one.
    """
    if "alpha" in options:
        raise OptionError(
            f"{engine} fixes alpha; pg.PowerEP, pg.FractionalBP and "
            "pg.infer.MessagePassing take alpha="
        )
