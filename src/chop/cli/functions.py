"""Commands as Python functions: `mase.quantize(model, bits=4, dataset="digits")`.

The parameters of a function are the options of its command, with the same names, defaults and
checks. A model may be a name, a path, a torch module or a MaseGraph; data may be a name, a path or
a mapping from splits to rows. The function prints nothing, writes its files as the command does and
returns a `CommandResult`.
"""

from __future__ import annotations

import inspect
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chop.cli.commands import Command
from chop.cli.console import Console
from chop.cli.execute import execute, report_level
from chop.cli.named_objects import NamedObject
from chop.cli.option import CommandOption, described, field_help, nest, options_of, tables_of
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
        console = Console(is_json=True, is_quiet=True, out=sys.stderr)
        config = config_of(command, positional | keywords)
        with report_level("WARNING"):
            return execute(command, config, console)

    call.__name__ = call.__qualname__ = command.function_name
    call.__doc__ = _documentation(command, options)
    call.__signature__ = signature_of(command)  # type: ignore[attr-defined]
    return call


def config_of(command: Command, keywords: Mapping[str, Any]) -> Any:
    """Return the checked configuration of `command` for arguments by name."""
    paths = {option.parameter: option.path for option in options_of(command.config)}
    values = {name: _plain(name, value) for name, value in keywords.items()}
    table = nest({paths.get(name, (name,)): value for name, value in values.items()})
    return read_settings(command.config, table, command.name)


def line_of(command: Command, keywords: Mapping[str, Any]) -> str:
    """Return the command line with the same configuration as arguments by name."""
    options = {option.parameter: option for option in options_of(command.config)}
    words: list[str] = []
    flags: list[str] = []
    for name, value in keywords.items():
        option = options.get(name)
        if option is None:
            flags += [part for text in _assignments(name, value) for part in ("--set", text)]
        elif option.is_positional:
            words += [str(v) for v in (value if option.is_list else [value])]
        elif option.is_switch:
            flags.append(option.flag if value else option.flag.replace("--", "--no-", 1))
        else:
            flags += [option.flag, ",".join(map(str, value)) if option.is_list else str(value)]
    return shlex.join(["mase", command.name, *words, *flags])


def _assignments(key: str, value: Any) -> Iterator[str]:
    """Yield the values of `--set` for a table."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _assignments(f"{key}.{name}", inner)
    else:
        yield f"{key}={json.dumps(value)}"


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
