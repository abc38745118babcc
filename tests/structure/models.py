"""The catalogue: every builder by name; a builder returns a program and its derived structure."""

import torch

from . import chains, fields, gaussians, hierarchies, likelihoods, mixtures, supports
from .case import Case

FAMILIES = (chains, fields, hierarchies, gaussians, mixtures, supports, likelihoods)

BUILDERS = {build.__name__: build for family in FAMILIES for build in family.MODELS}


def build(name: str) -> Case:
    """The case of that name, the same on every call: random data come from a fixed seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BUILDERS[name]()
