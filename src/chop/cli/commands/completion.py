"""`mase completion`: scripts that complete commands, options and their values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from chop.cli.commands import COMMANDS
from chop.cli.configs import CompletionConfig
from chop.cli.main import SWITCHES
from chop.cli.option import Option, options_of, takes_the_rest
from chop.cli.session import Session

VALUED = ("--config", "--set")
"""Flags of every command that take a value."""


def run(config: CompletionConfig, session: Session) -> dict[str, Any]:
    """Print the script of a shell."""
    script = WRITERS[config.shell](known_options())
    if not session.console.is_json:
        session.console.say(script.rstrip())
    return {"shell": config.shell, "script": script}


def known_options() -> dict[str, list[Option]]:
    """Command -> its options, as its parser has them."""
    return {name: options_of(command.load_config()) for name, command in COMMANDS.items()}


def flags_of(options: list[Option]) -> list[str]:
    """All flags of a command."""
    own = [option.flag for option in options if not option.is_positional]
    off = [f"--no-{o.flag.removeprefix('--')}" for o in options if o.is_switch]
    return [*own, *off, *SWITCHES, *VALUED, "--help"]


def _values(options: list[Option]) -> dict[str, tuple[str, ...]]:
    """Flag -> the values it takes, where they can be listed."""
    flags = {o.flag: o.values for o in options if not (o.is_positional or o.is_switch)}
    return {flag: values for flag, values in flags.items() if values}


def _listers(options: list[Option]) -> dict[str, str]:
    """Flag -> the command that lists its values when they are asked for."""
    return {o.flag: o.lister for o in options if o.lister and not o.is_positional}


def _first_lister(options: list[Option]) -> str:
    """The command that lists values of the first word after the command, if there is one."""
    return next((o.lister for o in options if o.is_positional), "")


def _first(options: list[Option]) -> tuple[str, ...]:
    """The values of the first word after the command."""
    return next((o.values for o in options if o.is_positional), ())


def bash(known: Mapping[str, list[Option]]) -> str:
    """Completion for bash."""
    cases = []
    for name, options in known.items():
        replies = "".join(
            f"\n        {flag}) {_bash_reply(shlex.quote(' '.join(values)))}; return;;"
            for flag, values in _values(options).items()
        )
        replies += "".join(
            f"\n        {flag}) {_bash_reply(_asked(lister))}; return;;"
            for flag, lister in _listers(options).items()
        )
        flags = shlex.quote(" ".join(flags_of(options)))
        lister = _first_lister(options)
        words = _asked(lister) if lister else shlex.quote(" ".join(_first(options)))
        inner = f'\n      case "$prev" in{replies}\n      esac' if replies else ""
        cases.append(f"    {name}){inner}\n      flags={flags}; words={words};;")
    commands = shlex.quote(" ".join([*known, "--help", "--version"]))
    return "\n".join(
        [
            "# mase completion for bash",
            "_mase() {",
            '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"',
            "  local flags= words=",
            '  if [ "$COMP_CWORD" -eq 1 ]; then',
            f"    {_bash_reply(commands)}; return",
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


def _asked(lister: str) -> str:
    """The output of a command, as a word of bash."""
    return f'"$({lister} 2>/dev/null)"'


def _bash_reply(words: str) -> str:
    return f'COMPREPLY=($(compgen -W {words} -- "$cur"))'


def zsh(known: Mapping[str, list[Option]]) -> str:
    """Completion for zsh."""
    cases = []
    for name, options in known.items():
        specs = [_zsh_spec(o) for o in options if not o.is_positional]
        specs += [f"'{flag}[{_bare(told)}]'" for flag, told in SWITCHES.items()]
        specs += ["'--config[configuration file]:file:_files'", "'*--set[set a value]:key=value:'"]
        specs.append("'--help[options and examples]'")
        words = " ".join(_first(options))
        count = "*" if any(takes_the_rest(o) for o in options) else "1"
        lister = _first_lister(options)
        action = f'_alternative "words:word:({words})" "files:file:_files"'
        specs.append(f"'{count}:{name}:{_zsh_asked(lister) if lister else action}'")
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


def _zsh_spec(option: Option) -> str:
    told = f"[{_bare(option.help)}]"
    if option.is_switch:
        return f"'{option.flag}{told}' '--no-{option.flag.removeprefix('--')}{told}'"
    action = f"({' '.join(option.values)})" if option.values else "_files"
    action = _zsh_asked(option.lister) if option.lister else action
    return f"'{option.flag}{told}:value:{action}'"


def _zsh_asked(lister: str) -> str:
    return f"{{compadd -- $({lister} 2>/dev/null); _files}}"


def _bare(text: str) -> str:
    """Without the characters that mean something to a shell."""
    return re.sub(r"['\[\]:\\`\"$]", " ", text)


def fish(known: Mapping[str, list[Option]]) -> str:
    """Completion for fish."""
    lines = ["# mase completion for fish"]
    for name, command in COMMANDS.items():
        told = shlex.quote(_bare(command.summary))
        lines.append(f"complete -c mase -n __fish_use_subcommand -f -a {name} -d {told}")
    for name, options in known.items():
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        for flag, told, values in _fish_rows(options):
            takes = f" -x -a {shlex.quote(' '.join(values))}" if values else ""
            about = f" -d {shlex.quote(_bare(told))}" if told else ""
            lines.append(f"complete -c mase {seen} -l {flag.removeprefix('--')}{takes}{about}")
    return "\n".join([*lines, ""])


def _fish_rows(options: list[Option]) -> list[tuple[str, str, tuple[str, ...]]]:
    told = {o.flag: o.help for o in options} | SWITCHES
    values = _values(options) | {f: (f"({c})",) for f, c in _listers(options).items()}
    return [(flag, told.get(flag, ""), values.get(flag, ())) for flag in flags_of(options)]


WRITERS: dict[str, Callable[[Mapping[str, list[Option]]], str]] = {
    "bash": bash,
    "zsh": zsh,
    "fish": fish,
}
