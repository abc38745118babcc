"""Particle filters and Gibbs sampling of labellings, on the statistics of clusters DPVI moves.

The filter proposes the next label by its posterior given the past, the optimal proposal,

    q(z_i = c | z_<i, x) = exp(score_c) / sum_c exp(score_c),   weight *= sum_c exp(score_c),

and draws particles anew by their weights when the effective sample size 1 / sum_k w_k^2 is below
half their number: multinomial, stratified or systematic. Scheme "fearnhead" extends every particle
by every cluster instead, as DPVI does, keeps the heavy extensions with their weights and draws the
others stratified, at equal weights, so that each stays in proportion to its weight.

A Gibbs sweep draws every label given all others; chains run side by side as particles.

Sources: Doucet, Godsill & Andrieu (2000); Fearnhead (2004), "Particle filters for mixture models
with an unknown number of components"; Neal (2000), algorithm 3; Rosenberg & Hirschberg (2007).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from particle_filter import ancestors
from scipy.optimize import linear_sum_assignment
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import v_measure_score
from sklearn.mixture import BayesianGaussianMixture
from sklearn.utils._testing import ignore_warnings
from torch import Tensor

from pyrograph.distributions.incremental import keep
from pyrograph.infer.dpvi.labellings.labelled import Labellings, in_order
from pyrograph.infer.dpvi.labellings.labelled_program import LabelledProgram
from pyrograph.infer.dpvi.labellings.reading import read_labelled

#: Gibbs sweeps between statistics from scratch.
REFRESH = 50


@dataclass(frozen=True)
class Weighted:
    """Labellings with weights.

    Attributes:
        labels: ``{site: [K, n]}``.
        log_weights: ``[K]``, of weights that add up to 1.
        log_evidence: estimate, or lower bound.
        seconds: processor time; an engine's with reading the program.
    """

    labels: dict[str, Tensor]
    log_weights: Tensor
    log_evidence: float
    seconds: float

    @property
    def num_clusters(self) -> float:
        """Mean over all sites' first one."""
        counts = next(iter(self.labels.values())).amax(1) + 1
        return float((self.log_weights.exp() * counts).sum())


def program_of(model: Callable, *args) -> LabelledProgram:
    """Priors and data of a labelled Pyro program."""
    return read_labelled(model, args, {})


def fit(engine, *args) -> Weighted:
    """A run of an engine of labellings, timed from its reading of the program on."""
    begin = time.process_time()
    q = engine.run(*args)
    seconds = time.process_time() - begin
    return Weighted(q.particles, q.log_weights, float(q.log_evidence), seconds)


@torch.inference_mode()
def particle_filter(
    program: LabelledProgram,
    count: int,
    rng: np.random.Generator,
    scheme: str = "stratified",
    threshold: float = 0.5,
) -> Weighted:
    """One pass over the elements in the order in which DPVI takes them in."""
    begin = time.process_time()
    elements = Labellings(program).elements
    clusters = program.clusters({name: torch.zeros(count, 0).long() for name in program.sites})
    log_weights = np.full(count, -np.log(count))
    log_evidence = float(program.constant)
    if scheme == "fearnhead":
        keep(clusters.values(), torch.zeros(1).long())
        log_weights = torch.zeros(1)
    for name, i in elements:
        score = clusters[name].scores(i)
        if scheme == "fearnhead":
            flat = (log_weights.unsqueeze(1) + score).flatten()
            log_evidence += float(flat.logsumexp(0))
            chosen, log_weights = _thinned(flat.log_softmax(0), count, rng)
            parent = torch.div(chosen, score.shape[1], rounding_mode="floor")
            slot = chosen % score.shape[1]
            keep(clusters.values(), parent)
        else:
            slot, log_mass = _proposed(score.numpy(), rng)
            log_weights = log_weights + log_mass
            peak = log_weights.max()
            weight = np.exp(log_weights - peak)
            total = weight.sum()
            weight /= total
            log_weights -= peak + np.log(total)
            log_evidence += peak + np.log(total)
        clusters[name].put_in(i, slot)
        if scheme != "fearnhead" and 1 / (weight @ weight) < threshold * count:
            chosen = ancestors(weight[None], scheme, rng)[0]
            keep(clusters.values(), torch.from_numpy(chosen))
            log_weights = np.full(count, -np.log(count))
    labels = {name: in_order(c.labels) for name, c in clusters.items()}
    log_weights = torch.as_tensor(log_weights)
    return Weighted(labels, log_weights, float(log_evidence), time.process_time() - begin)


def _proposed(score: np.ndarray, rng: np.random.Generator) -> tuple[Tensor, np.ndarray]:
    """One slot of every row by its mass, and log masses of the rows."""
    peak = score.max(1)
    total = np.exp(score - peak[:, None]).cumsum(1)
    mass = total[:, -1]
    # at most the last one, whatever the product is rounded to
    slot = (total[:, :-1] <= (rng.random(len(score)) * mass)[:, None]).sum(1)
    return torch.from_numpy(slot), peak + np.log(mass)


def _drawn(score: Tensor, rng: np.random.Generator) -> Tensor:
    """One slot of every row, by Gumbel noise."""
    return (score + torch.as_tensor(rng.gumbel(size=tuple(score.shape)))).argmax(1)


def _thinned(log_weights: Tensor, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """At most ``count`` of weighted candidates and their new log weights.

    With c from sum_j min(c w_j, 1) = count, those of weight above 1 / c stay; the others are drawn
    stratified to weight 1 / c each.
    """
    alive = (log_weights > -torch.inf).nonzero().squeeze(1)
    if len(alive) <= count:
        return alive, log_weights[alive]
    order = alive[log_weights[alive].argsort(descending=True)]
    weight = log_weights[order].exp()
    # the rest's mass after k kept ones, shared by count - k; summed from its end, where a
    # difference of sums would leave rounding alone
    share = weight.flip(0).cumsum(0).flip(0)[:count] / (count - torch.arange(count))
    kept = int((weight[:count] > share).long().cumprod(0).sum())
    kept = min(kept, count - 1)
    left = weight[kept:].numpy()[None]
    drawn = (np.arange(count - kept) + rng.random(count - kept)) / (count - kept)
    total = left.cumsum() / left.sum()
    index = torch.as_tensor(np.searchsorted(total, drawn).clip(0, left.size - 1)) + kept
    chosen = torch.cat([torch.arange(kept), index])
    new = torch.cat([weight[:kept], share[kept].expand(count - kept)]).log()
    return order[chosen], new.log_softmax(0)


@torch.inference_mode()
def gibbs(
    program: LabelledProgram, labels: Mapping[str, Tensor], rng: np.random.Generator
) -> Iterator[dict[str, Tensor]]:
    """Labels ``{site: [P, n]}`` of P chains after each sweep, without end."""
    found = Labellings(program, labels)
    clusters = found.clusters
    for sweep in range(1, 10**9):
        for name, i in found.elements:
            own = clusters[name]
            own.take_out(i)
            own.put_in(i, _drawn(own.scores(i), rng))
        if sweep % REFRESH == 0:
            for own in clusters.values():
                own.refresh()
        yield {name: own.labels for name, own in clusters.items()}


def prior_draws(program: LabelledProgram, count: int) -> dict[str, Tensor]:
    """Labels ``{site: [count, n]}``."""
    return {name: prior.sample((count,)) for name, prior in program.priors.items()}


@torch.inference_mode()
def predictive(program: LabelledProgram, train: Weighted) -> Tensor:
    """``[n - t]``: log density of each element of the program behind the t that are labelled, given
    these."""
    ((name, labels),) = train.labels.items()
    clusters = program.clusters({name: labels})[name]
    total = program.sites[name].event_shape[0]
    score = torch.stack([clusters.scores(i).logsumexp(1) for i in range(labels.shape[1], total)])
    return (score + train.log_weights).logsumexp(1)


def v_measure(truth: Tensor, found: Weighted) -> float:
    """Weighted mean over the particles."""
    ((_, labels),) = found.labels.items()
    rows, inverse = labels.unique(dim=0, return_inverse=True)
    weight = torch.zeros(len(rows)).index_add(0, inverse, found.log_weights.exp())
    known = truth >= 0
    values = [v_measure_score(truth[known], row[known]) for row in rows]
    return float((weight * torch.tensor(values)).sum())


def hamming(truth: np.ndarray, labels: np.ndarray) -> float:
    """Share of places that differ under the best matching of labels to states (Munkres)."""
    table = np.zeros((labels.max() + 1, truth.max() + 1))
    np.add.at(table, (labels, truth), 1)
    rows, columns = linear_sum_assignment(-table)
    return 1 - table[rows, columns].sum() / len(truth)


@ignore_warnings(category=ConvergenceWarning)
def mean_field(
    x: np.ndarray, alpha: float, kappa: float, covariance: str, freedom: float, scale, seed: int
) -> np.ndarray:
    """Labels by truncated stick breaking with 20 components, scikit-learn's variational Bayes."""
    mixture = BayesianGaussianMixture(
        n_components=20,
        covariance_type=covariance,
        weight_concentration_prior=alpha,
        mean_prior=np.zeros(x.shape[1]),
        mean_precision_prior=kappa,
        degrees_of_freedom_prior=freedom,
        covariance_prior=scale,
        max_iter=500,
        random_state=seed,
    )
    return mixture.fit_predict(x)
