"""Draws as ``arviz.InferenceData``: dimensions (chain = 1, draw = n, plates or site dims)."""

from collections.abc import Iterable, Mapping, Set
from typing import Any

from torch import Tensor

from pyrograph.errors import UnsupportedSite

#: Dimensions that all variables have.
OF_DRAWS = {"chain", "draw"}


def inference_data(sites: Iterable, draws: Mapping[str, Tensor], stats: Mapping[str, Tensor]):
    """InferenceData of draws ``{site: [n, *site shape]}`` and per-draw statistics ``[n]``.

    A batch dimension is called after its plate, any other dimension ``<site>_dim_<k>``.

    Raises:
        ImportError: arviz is not installed.
        UnsupportedSite: a site is called as a dimension of draws is.
    """
    sites = list(sites)
    for site in sites:
        if site.name in OF_DRAWS:
            raise UnsupportedSite(
                f'site "{site.name}" has the name of a dimension that every variable has in arviz '
                "(chain, draw), which would drop it. Rename the site, or take posterior.sample()."
            )
    try:
        import arviz
    except ImportError as error:
        raise ImportError("to_arviz needs arviz: pip install pyrograph[arviz]") from error
    names = {site.name for site in sites} | OF_DRAWS
    plates = {name for site in sites for name, _, _ in site.plates}
    dims = {site.name: dimension_names(site, names, plates) for site in sites}
    posterior = {site.name: _chain(draws[site.name]) for site in sites}
    sample_stats = {name: _chain(value) for name, value in stats.items()}
    if hasattr(arviz, "InferenceData"):
        return arviz.from_dict(posterior=posterior, sample_stats=sample_stats or None, dims=dims)
    # arviz >= 1 takes groups in one mapping and returns an xarray tree
    groups: dict[str, Any] = {"posterior": posterior}
    if sample_stats:
        groups["sample_stats"] = sample_stats
    return arviz.from_dict(groups, dims=dims)


def dimension_names(site, taken: Set[str], plates: Set[str] = frozenset()) -> list[str]:
    """Names of a site's batch and event dimensions.

    Args:
        taken: names that no dimension may have: of sites, and those of draws.
        plates: of all sites, which no new name may be.
    """
    own = {dim: name for name, dim, _ in site.plates}
    batch = len(site.batch_shape)
    names = []
    for k in range(len(site.shape)):
        plate = own.get(k - batch) if k < batch else None
        name = plate or f"{site.name}_dim_{k}"
        while name in taken or (name in plates and name != plate):
            name = f"{name}_dim"
        names.append(name)
    return names


def _chain(value: Tensor):
    return value.detach().cpu().numpy()[None]
