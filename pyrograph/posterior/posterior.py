"""What an engine hands back: marginals, samples, evidence, and how the run went.

Engines construct posteriors; posteriors know no engine. A subclass brings its beliefs and says
how to take a marginal, draw samples and make a guide.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyrograph.checks import count
from pyrograph.errors import InferenceError, OptionError
from pyrograph.graph import FactorGraph
from pyrograph.posterior.export import inference_data
from pyrograph.posterior.rounding import is_rounded, note_on_rounding

EvidenceKind = Literal["exact", "lower bound", "upper bound", "estimate"] | None


class Posterior(ABC):
    """An approximation of p(latents | data).

    Attributes:
        graph: the factor graph it approximates.
        converged: whether the run met its criterion.
        status: ``"converged"``, or what happened and what to do.
        history: ``{name: [num_steps]}``; ``"objective"`` is what the engine climbs or monitors.
        log_evidence: log p(data) or a bound or estimate of it, ``[]``; None if not available.
        evidence_kind: ``"exact"``, ``"lower bound"``, ``"upper bound"``, ``"estimate"``, None; an
            estimate if single precision rounds it (:mod:`.rounding`).
    """

    def __init__(
        self,
        graph,
        *,
        converged: bool,
        status: str,
        history: Mapping[str, Tensor],
        log_evidence: Tensor | None = None,
        evidence_kind: EvidenceKind = None,
    ):
        has_factors = isinstance(graph, FactorGraph)
        if log_evidence is not None and has_factors and is_rounded(graph, log_evidence):
            evidence_kind = "estimate"
            status = f"{status.rstrip('.')}. {note_on_rounding(graph)}"
        self.graph = graph
        self.converged = bool(converged)
        self.status = status
        self.history = dict(history)
        self.log_evidence = log_evidence
        self.evidence_kind = evidence_kind

    @abstractmethod
    def marginal(self, site: str) -> Distribution:
        """The marginal of a site; its ``mean`` and ``variance`` have the site's shape."""

    @abstractmethod
    def sample(self, num_samples: int) -> dict[str, Tensor]:
        """Joint draws ``{site: [num_samples, *site shape]}`` in the program's space.

        Raises:
            OptionError: ``num_samples`` is not a whole number, at least 0.
        """

    def factor_marginal(self, statement: str):
        """Beliefs over the scopes of a statement's factors, of engines that keep such beliefs.

        Raises:
            InferenceError: this posterior has none.
        """
        raise InferenceError(
            f"{type(self).__name__} has no factor marginals; engines with factor beliefs do. "
            f"Sample the sites of {statement!r} instead."
        )

    def condition(
        self, values: Mapping[str, Tensor], mask: Mapping[str, Tensor] | None = None
    ) -> "Posterior":
        """The posterior given values of some nodes, without another run, of engines that keep a
        mixture over all sites.

        Raises:
            InferenceError: this posterior has none.
        """
        raise InferenceError(
            f"{type(self).__name__} has no conditionals; that of pg.QBethe does. Or run the engine "
            "on pyro.poutine.condition(model, data={site: value})."
        )

    @abstractmethod
    def guide(self, sites: Sequence[str] | None = None):
        """A Pyro guide with a proper density over the given sites, default all."""

    def to_arviz(self, num_samples: int = 1000):
        """``arviz.InferenceData`` with one chain of ``num_samples`` draws.

        Raises:
            ImportError: arviz is not installed.
            UnsupportedSite: a site is called "chain" or "draw".
        """
        return inference_data(self.graph.sites.values(), self.sample(num_samples), {})

    def _site(self, name: str):
        """The site of this name.

        Raises:
            OptionError: there is none.
        """
        if not isinstance(name, str) or name not in self.graph.sites:
            known = ", ".join(self.graph.sites)
            raise OptionError(f'no latent site "{name}"; the latent sites are: {known}')
        return self.graph.sites[name]

    def _as_drawn(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Numbers of the sites in the precisions in which the program draws them, of which the
        graph's is the finest."""
        return {name: value.to(self.graph.dtype_of(name)) for name, value in values.items()}

    def _chosen(self, sites: Sequence[str] | None) -> list:
        """The sites that a guide is to draw, each once, default all.

        Raises:
            OptionError: no such site, none at all, or no list of names.
        """
        if isinstance(sites, str):
            sites = [sites]
        if sites is not None and not isinstance(sites, Iterable):
            raise OptionError(f"guide(sites={sites!r}) needs a list of names of sites")
        chosen = [self._site(name) for name in (self.graph.sites if sites is None else sites)]
        if not chosen:
            raise OptionError("guide(sites=[]) has no site to draw")
        return list({site.name: site for site in chosen}.values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}(sites={list(self.graph.sites)}, status={self.status!r})"


def draw_indices(weights: Tensor, num_samples: int) -> Tensor:
    """Indices drawn with the given weights, in random order: ``[num_samples]``.

    Systematic resampling: index k comes floor or ceil(num_samples * w_k) times, so equal weights
    and as many draws as particles give every particle once. Each draw alone has the
    distribution ``weights``; randomness comes from torch's global generator.

    Raises:
        OptionError: ``num_samples`` is not a whole number, at least 0.
    """
    num_samples = count("num_samples", num_samples, least=0)
    offset = torch.rand((), dtype=torch.float64, device="cpu")
    ticks = (torch.arange(num_samples, dtype=torch.float64, device="cpu") + offset) / num_samples
    ends = weights.detach().double().cpu().cumsum(0)
    index = torch.searchsorted(ends / ends[-1], ticks, right=True).clamp_max(len(weights) - 1)
    return index[torch.randperm(num_samples, device="cpu")].to(weights.device)
