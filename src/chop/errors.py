"""Exceptions of MASE, all children of `ChopError`.

Every message contains the place (full key path or node name), the value and what is allowed.
"""

from __future__ import annotations

from chop.printable import printable


class ChopError(Exception):
    """Base class of all errors of this package."""

    def __str__(self) -> str:
        return printable(super().__str__())


class ConfigError(ChopError, ValueError):
    """A configuration value is missing, misspelt or out of range."""


class RegistryError(ChopError, KeyError):
    """A name is not registered, or is registered twice."""

    def __str__(self) -> str:  # KeyError would print the repr of its message
        return printable(str(self.args[0])) if self.args else ""


class TraceError(ChopError, RuntimeError):
    """A model could not be captured as a graph."""


class GraphError(ChopError, ValueError):
    """A graph or its metadata breaks a rule of the IR."""


class SizeError(GraphError):
    """A captured model is called with sizes at which its code would branch differently."""


class PassError(ChopError, RuntimeError):
    """A pass cannot run on the graph it was given."""


class CheckpointError(ChopError, ValueError):
    """A checkpoint file is damaged, foreign or does not fit the graph."""


class ExportError(ChopError, ValueError):
    """A model cannot be written for a target, or a file of another program cannot be read."""


class HubError(ChopError, OSError):
    """A named model or dataset is neither on this machine nor on the hub."""


class DataError(ChopError, ValueError):
    """A dataset lacks a column, a split or a file, or does not fit the model."""


class MissingDependencyError(ChopError, ImportError):
    """An optional package or program is needed and not installed."""


class HardwareError(ChopError, RuntimeError):
    """A design cannot be built, or does not do what it should."""


class SearchError(ChopError, RuntimeError):
    """A search cannot start, resume or return a result."""


class TrainingError(ChopError, RuntimeError):
    """A training cannot continue, because its loss is not a number."""


class LostProcessError(ChopError, RuntimeError):
    """A process of a run on several processes ended before the others."""
