"""Distributions for nonparametric models and robust potentials, each an ordinary Pyro distribution.

Partitions and state sequences (``ChineseRestaurant``, ``ChineseRestaurantFranchise``), data whose
clusters' parameters are integrated out (``CollapsedMixture``, ``CollapsedRelation``), and
``TruncatedLaplace``. The first four also score single reassignments of labels in O(clusters),
batched over particles: ``.incremental(...)`` gives a state (:class:`Incremental`), and ``join``
adds up states over the same labels.

    z = pyro.sample("z", pg.distributions.ChineseRestaurant(1.0, n=200))
    component = pg.distributions.NormalInverseGamma(kappa=0.04, a=1.0, b=1.0)
    pyro.sample("x", pg.distributions.CollapsedMixture(z, component), obs=x)
"""

from pyrograph.distributions.beta_bernoulli import BetaBernoulli, RelationScores
from pyrograph.distributions.chinese_restaurant import ChineseRestaurant
from pyrograph.distributions.collapsed import CollapsedMixture, CollapsedRelation
from pyrograph.distributions.dirichlet_categorical import DirichletCategorical
from pyrograph.distributions.franchise import ChineseRestaurantFranchise
from pyrograph.distributions.incremental import Clusters, Incremental, join
from pyrograph.distributions.normal_inverse_gamma import NormalInverseGamma
from pyrograph.distributions.normal_inverse_wishart import NormalInverseWishart
from pyrograph.distributions.truncated_laplace import TruncatedLaplace

__all__ = [
    "BetaBernoulli",
    "ChineseRestaurant",
    "ChineseRestaurantFranchise",
    "Clusters",
    "CollapsedMixture",
    "CollapsedRelation",
    "DirichletCategorical",
    "Incremental",
    "NormalInverseGamma",
    "NormalInverseWishart",
    "RelationScores",
    "TruncatedLaplace",
    "join",
]
