"""Commands as Python functions: `mase.quantize(model, bits=4, dataset="digits")`.

The parameters of a function are the options of its command, with the same names, defaults and
checks. A model may be a name, a path, a torch module or a MaseGraph; data may be a name, a path or
a mapping from splits to rows. The function prints nothing, writes its files as the command does and
returns a `CommandResult`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chop.cli.commands import Command
from chop.cli.console import Console
from chop.cli.execute import execute, report_level
from chop.cli.option import CommandOption, described, field_help, nest, options_of, tables_of
from chop.cli.places import NamedObject
from chop.cli.session import CommandResult
from chop.cli.settings import read_settings
from chop.errors import ConfigError

MODELS = ("model", "against", "before", "others")
"""Options that accept a model object."""


def function_of(command: Command) -> Callable[..., CommandResult]:
    """Return `command` as a function of its options."""
    options = options_of(command.config)
    words = [option for option in options if option.is_positional]

    def call(*arguments: Any, **keywords: Any) -> CommandResult:
        if len(arguments) > len(words):
            names = ", ".join(option.parameter for option in words) or "none"
            raise ConfigError(
                f"{command.name}: {len(arguments)} arguments without a name, and it takes "
                f"{len(words)}: {names}. Name the others, as in seed=1."
            )
        positional = dict(zip((o.parameter for o in words), arguments, strict=False))
        for name in positional.keys() & keywords.keys():
            raise ConfigError(f"{command.name}.{name}: given twice.")
        paths = {option.parameter: option.path for option in options}
        values = {name: _plain(name, value) for name, value in (positional | keywords).items()}
        table = nest({paths.get(name, (name,)): value for name, value in values.items()})
        console = Console(is_json=True, is_quiet=True, out=sys.stderr)
        config: Any = read_settings(command.config, table, command.name)
        with report_level("WARNING"):
            return execute(command, config, console)

    call.__name__ = call.__qualname__ = command.function_name
    call.__doc__ = _documentation(command, options)
    call.__signature__ = signature_of(command)  # type: ignore[attr-defined]
    return call


def signature_of(command: Command) -> inspect.Signature:
    """Return the parameters of a command: its options and its tables."""
    options = options_of(command.config)
    words = sorted(options, key=lambda option: not option.is_positional)
    parameters = [_parameter(o.parameter, o.default, o.hint, o.is_positional) for o in words]
    flags = {option.parameter for option in options}
    for name in tables_of(command.config):
        if name not in flags:
            parameters.append(_parameter(name, {}, Mapping[str, Any], False))
    return inspect.Signature(parameters, return_annotation=CommandResult)


def _parameter(name: str, default: Any, hint: Any, is_positional: bool) -> inspect.Parameter:
    kind = inspect.Parameter
    way = kind.POSITIONAL_OR_KEYWORD if is_positional else kind.KEYWORD_ONLY
    return inspect.Parameter(name, way, default=default, annotation=hint)


def _documentation(command: Command, options: Sequence[CommandOption]) -> str:
    flags = {option.parameter for option in options}
    helps = field_help(command.config)
    lines = [f"{option.parameter}: {described(option)}." for option in options]
    lines += [f"{n}: {helps[n][0]}" for n in tables_of(command.config) if n not in flags]
    return "\n".join([command.summary, "", *lines])


def _plain(name: str, value: Any) -> Any:
    """Return `value` as a file would hold it; models and data become named objects."""
    if isinstance(value, Path):
        return str(value)
    if name in MODELS and isinstance(value, list | tuple):
        return [_plain(name, each) for each in value]
    if value is None or isinstance(value, str) or name not in (*MODELS, "dataset"):
        return value
    return NamedObject.of(value)
