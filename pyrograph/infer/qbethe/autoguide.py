"""A mixture of diagonal Gaussians as a Pyro autoguide.

    q(z) = sum_l w_l prod_i N(z_i; m_li, s_li^2)

over the unconstrained numbers of all continuous sites: the family of :class:`QBethe` without full
covariance, climbing the evidence lower bound of the program itself by samples, where QBethe climbs
the Bethe free energy of its factor graph by quadrature. It needs no graph, and any program that
``AutoDiagonalNormal`` takes will do. How the weights are differentiated:
:mod:`pyrograph.posterior.joint_density`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from pyro.distributions import constraints
from pyro.infer.autoguide import AutoContinuous
from pyro.infer.autoguide.initialization import init_to_sample
from pyro.nn import PyroParam
from torch import Tensor, nn
from torch.distributions import biject_to

from pyrograph.beliefs import JointMixture, Normals
from pyrograph.checks import count, positive
from pyrograph.errors import InferenceError, OptionError, ShapeMismatch, SubsampleError
from pyrograph.posterior.joint_density import Baseline, JointDensity
from pyrograph.posterior.mixture import NormalMixture
from pyrograph.posterior.site_guide import levels, name_of_its_own


class AutoQBethe(AutoContinuous):
    """A mixture of diagonal Gaussians.

    Use it with ``SVI`` and ``Trace_ELBO``, or ``TraceEnum_ELBO`` where the model sums out discrete
    sites. The weights have a score function (:class:`.JointDensity`): ``TraceGraph_ELBO`` does not
    read it, and ``RenyiELBO``, ``TraceMeanField_ELBO`` and ``TraceTailAdaptive_ELBO``, which want
    draws that are all reparameterised, raise NotImplementedError. As many vectorised particles as
    components, or more, quieten the gradients::

        guide = AutoQBethe(model, num_components=5)
        svi = SVI(model, guide, Adam({"lr": 0.02}), Trace_ELBO(10, vectorize_particles=True))

    Its parameters are ``locs`` and ``scales`` ``[L, D]``, columns in order of the program's sites,
    and ``logits [L]``.

    Args:
        model: a Pyro program; of sites that are not continuous, ``poutine.block`` it.
        num_components: L.
        init_loc_fn: where components start, one run of the program each. A function that always
            gives the same point leaves them ``init_scale`` apart.
        init_scale: their starting standard deviation in unconstrained space.
        hold_weights: backward passes (steps, if particles are vectorised) for which the weights
            stay as they are: trained from the start they let one component take over before the
            others have walked to a mode.

    Raises:
        OptionError: an option is out of range.

    Raises, at the first call of the guide:
        ShapeMismatch: Pyro's parameter store holds those of another one, of another size.
        SubsampleError: a latent is in a subsampled plate.
    """

    def __init__(
        self,
        model: Callable,
        num_components: int = 5,
        init_loc_fn: Callable = init_to_sample,
        init_scale: float = 0.1,
        hold_weights: int = 500,
    ):
        super().__init__(model, init_loc_fn=init_loc_fn)
        self._num_components = count("num_components", num_components)
        self._init_scale = positive("init_scale", init_scale)
        self._start: JointMixture | None = None
        self._baseline = Baseline(count("hold_weights", hold_weights, least=0))

    @classmethod
    def from_posterior(cls, model: Callable, posterior) -> AutoQBethe:
        """Start from the mixture of a :class:`QBethe` run on the same program.

        Every continuous site of ``model`` has to be one of the posterior's. Of correlated numbers
        of a node the standard deviations are taken.

        Raises:
            OptionError: the posterior is no mixture.

        Raises, at the first call of the guide:
            OptionError: the posterior has no continuous site of a name the program has.
            ShapeMismatch: it has another size.
            InferenceError: some nodes were conditioned on and have no width.
        """
        mixture = getattr(posterior, "mixture", None)
        if not isinstance(mixture, JointMixture):
            raise OptionError(
                f"{type(posterior).__name__} has no mixture to start from; give the posterior of "
                "pg.QBethe"
            )
        guide = cls(model, mixture.num_components, hold_weights=0)
        guide._start = mixture
        guide._pyro_name = name_of_its_own(cls)
        return guide

    def _setup_prototype(self, *args, **kwargs) -> None:
        starts = []
        for _ in range(1 if self._start else self._num_components):
            super()._setup_prototype(*args, **kwargs)
            self._refuse_subsampled()
            starts.append(self._init_loc())
        if self._start is None:
            # a draw on the boundary of its support is infinite here: such numbers start at 0
            locs = torch.stack(starts).nan_to_num(0.0, 0.0, 0.0)
            locs = locs + self._init_scale * torch.randn_like(locs)
            scales, logits = torch.full_like(locs, self._init_scale), locs.new_zeros(len(locs))
        else:
            locs, scales, logits = (value.to(starts[0]) for value in self._from(self._start))
        self.locs = nn.Parameter(locs)
        self.scales = PyroParam(scales, constraints.softplus_positive)
        self.logits = nn.Parameter(logits)
        if self.locs.shape != locs.shape:  # the parameter store goes before what is set here
            held, asked = (" x ".join(map(str, v.shape)) for v in (self.locs, locs))
            raise ShapeMismatch(
                f"Pyro's parameter store holds the parameters of another {type(self).__name__}, "
                f"{held} (components x numbers), in the place of {asked}: call "
                "pyro.clear_param_store() first."
            )

    def _refuse_subsampled(self) -> None:
        """Latents of a minibatch would be others at the next step, and their terms are scaled in
        the program and not here: the bound would be no bound."""
        for name, stack in self._cond_indep_stacks.items():
            for frame in stack:
                if frame.full_size is not None and frame.full_size != frame.size:
                    raise SubsampleError(
                        f'site "{name}" is in plate "{frame.name}", which is subsampled '
                        f"({frame.size} of {frame.full_size}): minibatches are of data, not of "
                        "latents. Give such sites another guide, AutoNormal in an AutoGuideList, "
                        "sum them out, or take the full plate."
                    )

    def _from(self, mixture: JointMixture) -> tuple[Tensor, Tensor, Tensor]:
        """Parameters of a mixture over sites."""
        locs, scales = [], []
        for name, shape in self._unconstrained_shapes.items():
            nodes = mixture.sites.get(name)
            if not isinstance(nodes, Normals):
                raise OptionError(
                    f'the posterior has no continuous site "{name}"; give AutoQBethe the program '
                    "of the run, its other sites hidden by poutine.block"
                )
            if nodes.mean[0].numel() != shape.numel():
                raise ShapeMismatch(
                    f'site "{name}" has {shape.numel()} numbers in the program and '
                    f"{nodes.mean[0].numel()} in the posterior"
                )
            scale = nodes.scale
            if not bool((scale > 0).all()):
                raise InferenceError(
                    f'site "{name}" has nodes that were conditioned on and have no width; hide it '
                    "by poutine.block, or start from the posterior before conditioning"
                )
            locs.append(nodes.mean.flatten(1))
            scales.append(scale.flatten(1))
        least = torch.finfo(mixture.log_weights.dtype).min / 4
        logits = mixture.log_weights.clamp_min(least)
        return tuple(v.detach().clone() for v in (torch.cat(locs, 1), torch.cat(scales, 1), logits))

    def get_posterior(self, *args, **kwargs) -> JointDensity:
        """The density over all unconstrained numbers."""
        nodes = Normals(self.locs.unsqueeze(-1), self.scales[..., None, None])
        mixture = JointMixture(self.logits.log_softmax(0), {"latent": nodes})
        return JointDensity(mixture, self._baseline)

    def median(self, *args, **kwargs) -> dict[str, Tensor]:
        """Median of every number in unconstrained space, mapped to the sites."""
        return {name: value[0] for name, value in self.quantiles([0.5]).items()}

    @torch.no_grad()
    def quantiles(self, quantiles: Sequence[float], *args, **kwargs) -> dict[str, Tensor]:
        """``{site: [len(quantiles), *shape]}``, number by number in unconstrained space.

        Raises:
            OptionError: they are no sequence of numbers from 0 to 1.
        """
        mixture = NormalMixture(self.locs, self.scales, self.logits)
        out: dict[str, list[Tensor]] = {}
        for q in levels(quantiles):
            for site, free in self._unpack_latent(mixture.quantile(q)):
                value = biject_to(site["fn"].support)(free)
                out.setdefault(site["name"], []).append(value)
        return {name: torch.stack(values) for name, values in out.items()}
