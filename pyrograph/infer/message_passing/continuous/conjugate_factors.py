"""Messages of factors that are conjugate to gamma, beta and Dirichlet nodes in every state of their
discrete nodes, if there are any: a mixture's weights and counts, tosses of a coin whose kind is not
known, rows of a transition matrix. All in closed form.

    f(d, z) = exp(c_d + sum_j s_dj' T_j(z_dj))

where z_dj are the nodes that state d reads. With cavities n = q / m^alpha, of natural parameters
eta_k, the tilted distribution is a mixture over the states d,

    f^alpha prod n = sum_d n_d exp(alpha c_d) prod_j exp((eta_dj + alpha s_dj)' T_j) prod_others n_k

whose mass and expectations of T are those of members of the families. The limit at alpha = 0 is

    m_k = exp((sum_{d, j: z_dj is z_k} q_d s_dj)' T),    log m(d) = c_d + sum_j s_dj' E_q T(z_dj)

Source: Minka (2005), eqs (17), (54), (66); Winn & Bishop (2005) for alpha = 0.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from pyrograph.beliefs import Conjugate, Gaussian
from pyrograph.beliefs.gaussian import stacked
from pyrograph.beliefs.natural import where
from pyrograph.errors import ZeroMass
from pyrograph.infer.message_passing.continuous.conjugate_terms import Terms
from pyrograph.infer.message_passing.continuous.one_each import OneEach
from pyrograph.infer.message_passing.densities.checked import NOTHING
from pyrograph.infer.message_passing.densities.in_states import (
    by_state,
    expected_by_slot,
    over_states,
)
from pyrograph.infer.message_passing.densities.reduction import LocalDensity
from pyrograph.infer.message_passing.nodes.families import mixtures_refused, zeros_refused
from pyrograph.infer.message_passing.nodes.log_values import (
    ZERO,
    finite_peak,
    is_zero,
    rows_of,
    without,
)


class ConjugateFactors(OneEach):
    """Factors of gamma, beta and Dirichlet nodes and, mostly, of discrete ones.

    Args:
        local: their density.
        alpha: ``[E]``.
        rows: of each slot of the group, ``[E]`` rows of its family.
        families: index of each slot's family.
        terms: what they are, in double precision.

    Raises:
        OptionError: a factor has zeros, and its alpha is not above 0.
        ZeroMass: a factor is zero everywhere.
    """

    def __init__(
        self,
        local: LocalDensity,
        alpha: Tensor,
        rows: list[Tensor],
        families: list[int],
        terms: Terms,
    ):
        self.alpha, self.rows, self.families = alpha, rows, families
        self.local, self.like, self.bases = local, local.like, [None] * len(rows)
        self.discrete, self.continuous = local.discrete, local.continuous
        self.states, self.chosen = local.states, terms.chosen
        self.log_scale, self.said = terms.log_scale, terms.said
        self._excluded = is_zero(self.log_scale)
        zeros = self._excluded.any(0)
        self.has_zeros = bool(zeros.any())
        nothing = self._excluded.all(0).nonzero().squeeze(1).tolist()
        if nothing:
            raise ZeroMass(f"{local.name(nothing[0])} is zero in every state of its nodes.")
        self.is_mean_field = bool((alpha == 0).all())
        refused = (zeros & (alpha <= 0)).nonzero().squeeze(1).tolist()
        if refused:
            raise zeros_refused(local.name(refused[0]), float(alpha[refused[0]]))

    def part(self, which: Tensor) -> ConjugateFactors:
        """Some of the factors, ``which [e]``."""
        out = copy(self)
        out.alpha, out.rows = self.alpha[which], [rows[which] for rows in self.rows]
        out.log_scale, out._excluded = self.log_scale[:, which], self._excluded[:, which]
        out.said = [said[:, which] for said in self.said]
        out.chosen = [replace(c, which=c.which[:, which]) for c in self.chosen]
        return out

    def use_alpha(self, alpha: Tensor) -> None:
        """Go on with other alphas ``[E]``, of the same signs."""
        self.alpha = alpha

    def start(self, families: list) -> list:
        """Flat, but for nodes that nothing else makes proper: a share of parameters of 1."""
        messages: list = [None] * len(self.rows)
        for k in self.discrete:
            messages[k] = families[self.families[k]].flat(self.num_factors)
        for k in self.continuous:
            base, rows = families[self.families[k]].base, self.rows[k]
            share = torch.bincount(rows, minlength=len(base.natural)).clamp_min(1)
            lift = (~base.is_proper / share)[rows].to(self.like)
            messages[k] = type(base)(lift.unsqueeze(1).expand(-1, base.d + 1))
        return messages

    # ------------------------------------------------------------------ messages
    def _continuous(self, messages: list, beliefs: list) -> tuple[list[Conjugate], list[Conjugate]]:
        """Beliefs and cavities of the continuous slots, batch ``[E]``."""
        own = [beliefs[self.families[k]][self.rows[k]].in_double() for k in self.continuous]
        pairs = zip(own, self.continuous, strict=True)
        return own, [q - self.alpha * messages[k] for q, k in pairs]

    def _discrete(self, messages: list, beliefs: list) -> tuple[list[Tensor], list[Tensor]]:
        """Beliefs and cavities of the discrete slots, log values ``[E, c]``."""
        own = [rows_of(beliefs[self.families[k]], self.rows[k]).double() for k in self.discrete]
        pairs = zip(own, self.discrete, strict=True)
        return own, [without(q, self.alpha[:, None] * messages[k]) for q, k in pairs]

    def _of_states(self, logs: list[Tensor], without: int | None = None) -> Tensor:
        """Sum of the slots' log values at every assignment, ``[D, E]``."""
        if not logs:
            return torch.zeros_like(self.log_scale)
        return over_states(logs, self.states, without)

    def _tilted(
        self, own: list[Conjugate], cavities: list[Conjugate]
    ) -> tuple[list[Conjugate], list[Conjugate], Tensor, Tensor]:
        """Cavities to go by, of each term the tilted functions in every state, batch ``[D, E]``,
        log masses of these over those of the cavities ``[D, E]``, very low where f is 0, and which
        factors have proper ones, ``[E]``; the others are given their nodes' beliefs. A cavity
        without a mass, of a node whose only factor it is, will do where all states read the node:
        it counts for 1."""
        usable = torch.ones_like(self.alpha, dtype=torch.bool)
        for slot, (q, cavity) in enumerate(zip(own, cavities, strict=True)):
            usable = usable & q.is_proper & (cavity.is_proper | self._is_read(slot))
        alpha = self.alpha.expand_as(self.log_scale)
        terms = [(c, alpha * said) for c, said in zip(self.chosen, self.said, strict=True)]
        for chosen, said in terms:
            proper = (chosen.of(cavities) + said).is_proper | self._excluded
            usable = usable & proper.all(0)
        cavities = [where(usable, c, q) for c, q in zip(cavities, own, strict=True)]
        counts, tilted = usable & ~self._excluded, []
        mass = self.alpha * self.log_scale
        for chosen, said in terms:
            before, otherwise = chosen.of(cavities), chosen.of(own)
            after = where(counts, before + said, otherwise)
            mass = mass + after.log_mass - _log_mass(before, otherwise)
            tilted.append(after)
        mass = torch.where(self._excluded, NOTHING, mass)  # of sums of zeros no derivative is known
        return cavities, tilted, mass, usable

    def _is_read(self, slot: int) -> Tensor:
        """``[E]``: whether factors read a slot's node in every state in which they are not 0."""
        read = torch.zeros_like(self._excluded)
        for chosen in self.chosen:
            read = read | chosen.is_slot(slot)
        return (read | self._excluded).all(0)

    def _in_states(self, slot: int, of_terms: list[Tensor], otherwise: Tensor) -> Tensor:
        """Numbers of a slot's node in every state, ``[D, E, p]``: of the term that reads it, or
        others ``[E, p]`` where none does."""
        found = otherwise.expand(len(self.states), *otherwise.shape)
        for chosen, own in zip(self.chosen, of_terms, strict=True):
            if slot in chosen.slots:
                found = torch.where(chosen.is_slot(slot)[..., None], own, found)
        return found

    def update(self, messages: list, beliefs: list) -> tuple[list, Tensor | None]:
        """New messages, and ``[E]`` which updates were skipped for an improper cavity."""
        if self.is_mean_field:
            return self._mean_field(messages, beliefs), None
        own, cavities = self._continuous(messages, beliefs)
        cavities, tilted, mass, usable = self._tilted(own, cavities)
        _, states = self._discrete(messages, beliefs)
        share = (mass + self._of_states(states)).softmax(0)
        likeliest = share.argmax(0, keepdim=True)
        naturals, expected = [t.natural for t in tilted], [t.expected for t in tilted]
        moves = []
        for slot, (q, cavity) in enumerate(zip(own, cavities, strict=True)):
            cavity = where(cavity.is_proper, cavity, q)  # read in all states that count
            natural = self._in_states(slot, naturals, cavity.natural)
            start = type(q)(natural.take_along_dim(likeliest[..., None], 0)[0])
            there = self._in_states(slot, expected, cavity.expected)
            found = q.project((share[..., None] * there).sum(0), start)
            usable = usable & found.is_proper
            moves.append(found - q)
        out = list(messages)  # a factor sends all of them or none
        for k, move in zip(self.continuous, moves, strict=True):
            new = messages[k] + (1 / self.alpha) * move
            out[k] = where(usable, self._plain(new), messages[k])
        for position, k in enumerate(self.discrete):
            value = by_state(mass + self._of_states(states, position), self.states[:, position])
            value = value - finite_peak(value)
            value = torch.where(value < NOTHING / 2, ZERO, value / self.alpha[:, None])
            out[k] = torch.where(usable[:, None], value.to(self.like), messages[k])
        return out, ~usable

    def _mean_field(self, messages: list, beliefs: list) -> list:
        own, _ = self._continuous(messages, beliefs)
        logs = [q.log_softmax(1) for q in self._discrete(messages, beliefs)[0]]
        share, average = self._of_states(logs).exp(), self._average(own)
        out = list(messages)
        to_labels = expected_by_slot(logs, average, self.states)
        for k, message in zip(self.discrete, to_labels, strict=True):
            out[k] = message.to(self.like)
        for slot, k in enumerate(self.continuous):
            terms = zip(self.chosen, self.said, strict=True)
            sent = [
                torch.einsum("de,dep->ep", share * chosen.is_slot(slot), said.natural)
                for chosen, said in terms
                if slot in chosen.slots
            ]
            out[k] = self._plain(type(own[slot])(sum(sent)))
        return out

    def _average(self, own: list[Conjugate]) -> Tensor:
        """E_q log f in every state, ``[D, E]``."""
        value = self.log_scale
        for chosen, said in zip(self.chosen, self.said, strict=True):
            expected = chosen.among([q.expected for q in own])
            value = value + (said.natural * expected).sum(-1)
        return value

    def _plain(self, function: Conjugate) -> Conjugate:
        """In the dtype of messages."""
        return function.mapped(lambda value: value.to(self.like))

    # ------------------------------------------------------------------ results
    def log_ratio(self, messages: list, beliefs: list) -> Tensor:
        """``[E]``: (1 / alpha) log E_q (f / prod_j m_j)^alpha, and its limit at alpha = 0; NaN
        where a cavity is improper."""
        own, cavities = self._continuous(messages, beliefs)
        q_states, states = self._discrete(messages, beliefs)
        if self.is_mean_field:
            logs = [q.log_softmax(1) for q in q_states]
            ratio = (self._of_states(logs).exp() * self._average(own)).sum(0)
            for q, k in zip(q_states, self.discrete, strict=True):
                ratio = ratio - (q.softmax(1) * messages[k]).sum(1)
            for q, k in zip(own, self.continuous, strict=True):
                ratio = ratio - (messages[k].natural * q.expected).sum(-1)
            return ratio.to(self.like)
        cavities, _, mass, usable = self._tilted(own, cavities)
        value = (mass + self._of_states(states)).logsumexp(0)
        pairs = zip(cavities, own, strict=True)
        value = value + sum(_log_mass(cavity, q) - q.log_mass for cavity, q in pairs)
        value = value - sum(q.logsumexp(1) for q in q_states)
        return torch.where(usable, value / self.alpha, torch.nan).to(self.like)

    def marginals(self, messages: list, beliefs: list) -> Gaussian:
        """Beliefs over the scopes of factors without discrete nodes, batch ``[E]``, by first and
        second moments: products of functions of single nodes, as these factors are, leave nodes
        independent.

        Raises:
            OptionError: the factors have discrete nodes too.
        """
        if self.discrete:
            raise mixtures_refused(self.local.group.name)
        pairs = zip(self.families, self.rows, strict=True)
        return stacked([beliefs[family][rows].normal for family, rows in pairs])


def _log_mass(cavity: Conjugate, otherwise: Conjugate) -> Tensor:
    """0 where it has none, and a proper function stands in for the derivative."""
    has_one = cavity.is_proper
    return where(has_one, cavity, otherwise).log_mass.masked_fill(~has_one, 0.0)
