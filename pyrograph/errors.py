"""Typed errors. Each text names what was met, where, and what to write instead.

Two families: :class:`StructureError` for programs whose structure cannot be read, raised
while tracing; :class:`InferenceError` for methods that do not fit a model or that meet
bad numbers, raised before or during a run. Warnings are :class:`PyrographWarning`.
"""


class PyrographError(Exception):
    """Base class of every error this library raises on purpose."""


class StructureError(PyrographError, RuntimeError):
    """The factor graph of a program cannot be read."""


class ControlFlowError(StructureError):
    """Python reads the value of a latent (``if``, ``.item()``, ``float``, ``.tolist()``, ...)."""


class LatentShapeError(StructureError):
    """A tensor's shape depends on a latent (``x[x > 0]``, ``nonzero``, ``unique``, ...)."""


class RandomDrawError(StructureError):
    """A random draw outside ``pyro.sample`` depends on a latent."""


class LatentMutationError(StructureError):
    """The program overwrites a latent in place, which erases the scope of its prior."""


class SubsampleError(StructureError):
    """A plate is subsampled, so the structure is that of one minibatch only."""


class ScopeBudgetError(StructureError):
    """The scopes of a statement are wider than the stated budget."""


class UnsupportedOperation(StructureError):
    """An operation on latents for which no dependence rule is known or possible."""


class InvalidProgram(StructureError, ValueError):
    """The program fails at every one of several draws from its prior."""


class VerificationError(StructureError):
    """The traced graph and the Pyro program disagree at a second point."""


class InferenceError(PyrographError):
    """A method cannot be applied to a model, or a run cannot go on."""


class UnsupportedSite(InferenceError, ValueError):
    """A site's support does not fit the method."""


class UnsupportedFactor(InferenceError, ValueError):
    """A factor's shape or scope does not fit the method."""


class ZeroMass(InferenceError, ValueError):
    """Hard constraints leave nothing: the program's total mass is zero."""


class NonFiniteDensity(InferenceError, ValueError):
    """A log density or its gradient is NaN or infinite."""


class OptionError(InferenceError, ValueError):
    """An option has a value the method cannot use."""


class ShapeMismatch(InferenceError, ValueError):
    """Values handed in do not have the shapes of their sites."""


class InvalidCircuit(InferenceError, ValueError):
    """Units that are no circuit, or a circuit without the property that a query needs."""


class IncompatibleCircuits(InferenceError, ValueError):
    """Circuits that break the same variables apart in different ways."""


class DataNotFound(PyrographError, FileNotFoundError):
    """A dataset is not where the loaders look for it."""


class DataFormatError(PyrographError, ValueError):
    """A data file does not have the format it should have."""


class PyrographWarning(UserWarning):
    """Base class of the library's warnings."""


class ConvergenceWarning(PyrographWarning):
    """A run stopped before its criterion was met, or met it where it would not stay."""


class SlowWarning(PyrographWarning):
    """Long work starts that another choice, which is named, would do without."""


class DenseScopeWarning(PyrographWarning):
    """An operation has no rule; every output element is taken to depend on every input."""
