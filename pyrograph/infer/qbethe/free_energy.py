"""The Bethe free energy of a mixture, by quadrature.

    F(b) = sum_a E_{b_a} log f_a + T ( sum_a H(b_a) + sum_i (1 - d_i) H(b_i) )

Source: Guo, Xiong & Ruozzi (2019), eq (5), with the sign that is maximised.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pyrograph.infer.qbethe.build import Network
from pyrograph.infer.qbethe.components import Components, Parameters
from pyrograph.infer.qbethe.entropy import component_entropies, node_entropies
from pyrograph.infer.qbethe.overlaps import overlaps
from pyrograph.infer.qbethe.potentials import expected_of_all
from pyrograph.infer.qbethe.rules import Rules


@dataclass(frozen=True)
class BetheFreeEnergy:
    """F of every restart's mixture. Rules are for potentials and for entropies.

    Attributes:
        network: factors, scopes and nodes.
        constant: what no latent reads.
        is_diagonal: whether nodes are independent in a component.
    """

    network: Network
    constant: Tensor
    is_diagonal: bool

    def __call__(
        self, parameters: Parameters, rules: tuple[Rules, Rules], temperature: float = 1.0
    ) -> Tensor:
        """``[B]``."""
        mixture = Components(self.network.kinds, parameters)
        energy = self.energy(mixture, rules[0])
        return energy + temperature * self.entropy(mixture, rules[1]) if temperature else energy

    def parts(self, parameters: Parameters, rules: tuple[Rules, Rules]) -> tuple[Tensor, Tensor]:
        """Energy and entropy, ``[B]`` each, added up to F at temperature 1."""
        mixture = Components(self.network.kinds, parameters)
        return self.energy(mixture, rules[0]), self.entropy(mixture, rules[1])

    def energy(self, mixture: Components, rules: Rules) -> Tensor:
        """sum_a E log f_a, ``[B]``."""
        under = expected_of_all(self.network.potentials, mixture, rules)
        return self.constant + (mixture.weights * under).sum(1)

    def entropy(self, mixture: Components, rules: Rules) -> Tensor:
        """sum_a H(b_a) + sum_i (1 - d_i) H(b_i), ``[B]``."""
        own = component_entropies(mixture)
        is_mixed = mixture.num_components > 1
        overlap = overlaps(mixture, rules) if is_mixed else None
        if not is_mixed and self.is_diagonal:
            return sum(value.sum((1, 2)) for value in own)  # independent nodes: it adds up
        entropy = sum(
            (value * counting).sum(1)
            for value, counting in zip(
                node_entropies(mixture, own, overlap), self.network.counting, strict=True
            )
        )
        for scope in self.network.scopes:
            entropy = entropy + scope(mixture, own, overlap, rules)
        return entropy
