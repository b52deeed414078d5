"""`mase completion`: scripts that complete commands, options and their values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from chop.cli.commands import COMMANDS
from chop.cli.main import SWITCHES
from chop.cli.option import CommandOption, options_of, takes_the_rest
from chop.cli.session import Session
from chop.cli.shared_options import POSITIONAL

EXAMPLES = (
    "mase completion bash > ~/.local/share/bash-completion/completions/mase",
    "mase completion zsh > ~/.zfunc/_mase",
    "mase completion fish > ~/.config/fish/completions/mase.fish",
)
VALUED = ("--config", "--set")
"""Flags of every command that take a value."""


@dataclass(frozen=True, kw_only=True)
class CompletionConfig:
    """Shell."""

    shell: Annotated[Literal["bash", "zsh", "fish"], "Shell that runs the script."] = field(
        default="bash", metadata=POSITIONAL
    )


def run(config: CompletionConfig, session: Session) -> dict[str, Any]:
    """Print the completion script of a shell."""
    script = WRITERS[config.shell](command_options())
    if not session.console.is_json:
        session.console.say(script.rstrip())
    return {"shell": config.shell, "script": script}


def command_options() -> dict[str, list[CommandOption]]:
    """Return the options of each command."""
    return {name: options_of(command.config) for name, command in COMMANDS.items()}


def flags_of(options: list[CommandOption]) -> list[str]:
    """Return all flags of a command."""
    own = [option.flag for option in options if option.has_flag]
    off = [f"--no-{o.flag.removeprefix('--')}" for o in options if o.is_switch]
    return [*own, *off, *SWITCHES, *VALUED, "--help"]


def _values(options: list[CommandOption]) -> dict[str, tuple[str, ...]]:
    """Return the values of each flag that has a list of them."""
    flags = {o.flag: o.values for o in options if o.has_flag and not o.is_switch}
    return {flag: values for flag, values in flags.items() if values}


def _listers(options: list[CommandOption]) -> dict[str, str]:
    """Return, for each flag, the shell command that lists its values at completion time."""
    return {o.flag: o.lister for o in options if o.lister and o.has_flag}


def _first_lister(options: list[CommandOption]) -> str:
    """Return the shell command that lists values of the first word, or an empty text."""
    return next((o.lister for o in options if o.is_positional), "")


def _first(options: list[CommandOption]) -> tuple[str, ...]:
    """Return the values of the first word after the command."""
    return next((o.values for o in options if o.is_positional), ())


def bash(commands: Mapping[str, list[CommandOption]]) -> str:
    """Return the script for bash."""
    cases = []
    for name, options in commands.items():
        replies = "".join(
            f"\n        {flag}) {_bash_reply(shlex.quote(' '.join(values)))}; return;;"
            for flag, values in _values(options).items()
        )
        replies += "".join(
            f"\n        {flag}) {_bash_reply(_output_of(lister))}; return;;"
            for flag, lister in _listers(options).items()
        )
        flags = shlex.quote(" ".join(flags_of(options)))
        lister = _first_lister(options)
        words = _output_of(lister) if lister else shlex.quote(" ".join(_first(options)))
        inner = f'\n      case "$prev" in{replies}\n      esac' if replies else ""
        cases.append(f"    {name}){inner}\n      flags={flags}; words={words};;")
    first_words = shlex.quote(" ".join([*commands, "--help", "--version"]))
    return "\n".join(
        [
            "# mase completion for bash",
            "_mase() {",
            '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"',
            "  local flags= words=",
            '  if [ "$COMP_CWORD" -eq 1 ]; then',
            f"    {_bash_reply(first_words)}; return",
            "  fi",
            '  case "${COMP_WORDS[1]}" in',
            *cases,
            "  esac",
            '  case "$cur" in',
            '    -*) COMPREPLY=($(compgen -W "$flags" -- "$cur"));;',
            '    *) COMPREPLY=($(compgen -W "$words" -- "$cur") $(compgen -f -- "$cur"));;',
            "  esac",
            "}",
            "complete -o filenames -F _mase mase",
            "",
        ]
    )


def _output_of(lister: str) -> str:
    """Return a word of bash that stands for the output of a command."""
    return f'"$({lister} 2>/dev/null)"'


def _bash_reply(words: str) -> str:
    return f'COMPREPLY=($(compgen -W {words} -- "$cur"))'


def zsh(commands: Mapping[str, list[CommandOption]]) -> str:
    """Return the script for zsh."""
    cases = []
    for name, options in commands.items():
        specs = [_zsh_spec(o) for o in options if not o.is_positional]
        specs += [f"'{flag}[{_bare(text)}]'" for flag, text in SWITCHES.items()]
        specs += ["'--config[configuration file]:file:_files'", "'*--set[set a value]:key=value:'"]
        specs.append("'--help[options and examples]'")
        words = " ".join(_first(options))
        count = "*" if any(takes_the_rest(o) for o in options) else "1"
        lister = _first_lister(options)
        action = f'_alternative "words:word:({words})" "files:file:_files"'
        specs.append(f"'{count}:{name}:{_zsh_listed(lister) if lister else action}'")
        cases.append(f"    {name}) _arguments {' '.join(specs)};;")
    described = " ".join(
        shlex.quote(f"{name}:{_bare(command.summary)}") for name, command in COMMANDS.items()
    )
    return "\n".join(
        [
            "#compdef mase",
            "_mase() {",
            f"  local -a commands=({described})",
            "  if (( CURRENT == 2 )); then",
            "    _describe command commands; return",
            "  fi",
            "  local command=$words[2]",
            "  shift words; (( CURRENT-- ))",
            '  case "$command" in',
            *cases,
            "  esac",
            "}",
            'if [ "$funcstack[1]" = "_mase" ]; then _mase "$@"; else compdef _mase mase; fi',
            "",
        ]
    )


def _zsh_spec(option: CommandOption) -> str:
    about = f"[{_bare(option.help)}]"
    if option.is_switch:
        return f"'{option.flag}{about}' '--no-{option.flag.removeprefix('--')}{about}'"
    action = f"({' '.join(option.values)})" if option.values else "_files"
    action = _zsh_listed(option.lister) if option.lister else action
    return f"'{option.flag}{about}:value:{action}'"


def _zsh_listed(lister: str) -> str:
    return f"{{compadd -- $({lister} 2>/dev/null); _files}}"


def _bare(text: str) -> str:
    """Return `text` without the characters that have a meaning for a shell."""
    return re.sub(r"['\[\]:\\`\"$]", " ", text)


def fish(commands: Mapping[str, list[CommandOption]]) -> str:
    """Return the script for fish."""
    lines = ["# mase completion for fish"]
    for name, command in COMMANDS.items():
        about = shlex.quote(_bare(command.summary))
        lines.append(f"complete -c mase -n __fish_use_subcommand -f -a {name} -d {about}")
    for name, options in commands.items():
        condition = f"-n '__fish_seen_subcommand_from {name}'"
        for flag, text, values in _fish_rows(options):
            takes = f" -x -a {shlex.quote(' '.join(values))}" if values else ""
            about = f" -d {shlex.quote(_bare(text))}" if text else ""
            lines.append(f"complete -c mase {condition} -l {flag.removeprefix('--')}{takes}{about}")
    return "\n".join([*lines, ""])


def _fish_rows(options: list[CommandOption]) -> list[tuple[str, str, tuple[str, ...]]]:
    helps = {o.flag: o.help for o in options} | SWITCHES
    values = _values(options) | {f: (f"({c})",) for f, c in _listers(options).items()}
    return [(flag, helps.get(flag, ""), values.get(flag, ())) for flag in flags_of(options)]


WRITERS: dict[str, Callable[[Mapping[str, list[CommandOption]]], str]] = {
    "bash": bash,
    "zsh": zsh,
    "fish": fish,
}
