"""How a command ends: its exit code, and one message for the person who ran it."""

from __future__ import annotations

from chop.errors import ChopError, ConfigError, HubError, RegistryError

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
"""Done; the work failed; the command line or the configuration is wrong; stopped by Ctrl-C."""


class UsageError(ConfigError):
    """The command line cannot be understood."""


class SourceError(ConfigError):
    """No model is where the command line says."""


USAGE_ERRORS = (ConfigError, RegistryError, HubError)


def exit_code(error: BaseException) -> int:
    """The exit code for an error that ends a command."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return USAGE if isinstance(error, USAGE_ERRORS) else FAILED


def explain(error: BaseException) -> str:
    """What to tell a person: the message of an error of ours, more about any other."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted. Run the same command again: long work goes on where it stopped."
    if isinstance(error, ChopError):
        return str(error)
    if isinstance(error, OSError):
        return str(error)
    kind = type(error).__name__
    return f"{kind}: {error}. This is not an error MASE foresaw; --debug shows where it arose."
