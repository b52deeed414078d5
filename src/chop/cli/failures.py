"""Exit codes and messages of commands that end with an error."""

from __future__ import annotations

from chop.errors import ChopError, ConfigError, HubError, RegistryError

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Success; the work failed; wrong command line or configuration; stopped by Ctrl-C."""


class UsageError(ConfigError):
    """A command line that cannot be understood."""


class SourceError(ConfigError):
    """A model that is not at its place."""


USAGE_ERRORS = (ConfigError, RegistryError, HubError)


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error that ends a command."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return USAGE if isinstance(error, USAGE_ERRORS) else FAILED


def explain(error: BaseException) -> str:
    """Return the message of an expected error, and more about any other."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted. Run the same command again: long work goes on where it stopped."
    if isinstance(error, ChopError | OSError):
        return str(error)
    kind = type(error).__name__
    return f"{kind}: {error}. This is not an error MASE foresaw; --debug shows where it arose."
