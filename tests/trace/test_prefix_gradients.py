"""Prefixes of parameters mixed with latents keep their gradients."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyrograph as pg


@pytest.mark.parametrize("scan", [torch.cumsum, torch.cumprod, torch.logcumsumexp])
def test_a_prefix_of_parameters_and_latents_differentiates(scan):
    def log_z(t):
        def program():
            b = pyro.sample("b", dist.Bernoulli(torch.tensor(0.3, dtype=torch.float64)))
            pyro.factor("f", scan(torch.stack([b * t[0], t[1]]), 0).square().sum())

        return pg.fit(program, infer=pg.BP, progress=False).log_evidence

    t = torch.tensor([0.7, 0.4], dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(log_z, (t,))
