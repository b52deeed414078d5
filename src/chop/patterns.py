"""Regular expressions of configs and files, matched in bounded time.

A pattern such as `(a+)+b` can take exponential time. The package `regex` stops a match at a time
limit. The engine of tokenizers has no limit: their patterns are checked by their form.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import regex

from chop.errors import ChopError, ConfigError
from chop.files import shown

LONGEST = 2000
"""Most characters of a pattern."""
SECONDS = 0.2
"""Time limit of one match. Ordinary patterns take microseconds."""


def fullmatch(pattern: str, text: str) -> bool:
    """Return whether a checked pattern matches the whole text; raise ConfigError if it is slow.

    >>> fullmatch(r"layer\\.\\d+\\..*", "layer.0.attention"), fullmatch("(a+)+b", "a" * 50)
    (True, False)
    """
    return _is_found(_compiled(pattern).fullmatch, pattern, text)


def match(pattern: str, text: str) -> bool:
    """Return whether a checked pattern matches the start of the text."""
    return _is_found(_compiled(pattern).match, pattern, text)


def _is_found(find: Any, pattern: str, text: str) -> bool:
    try:
        return find(text, timeout=SECONDS) is not None
    except TimeoutError:
        raise ConfigError(
            f"the pattern {shown(pattern)} takes more than {SECONDS} s to match {shown(text)}. "
            "Use one without repeats inside repeats."
        ) from None


def check_pattern(
    pattern: str, where: str, error: type[ChopError], claim: str = "no regular expression"
) -> None:
    """Raise `error` if a pattern is not a regular expression, or too long."""
    try:
        _compiled(pattern)
    except (regex.error, RecursionError, OverflowError, ValueError, MemoryError) as problem:
        raise error(f"{where}: {shown(pattern)} is {claim}: {problem}.") from problem


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> Any:
    if len(pattern) > LONGEST:
        raise ValueError(f"it has {len(pattern)} characters; allowed are {LONGEST}")
    return regex.compile(pattern)


def check_patterns(content: Any, where: str, error: type[ChopError]) -> None:
    """Raise `error` if a `{"Regex": …}` inside a tokenizer may take exponential time.

    Its engine backtracks too. A group that repeats must not contain repeats or choices.
    """
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            pattern = value.get("Regex")
            if isinstance(pattern, str) and (len(pattern) > LONGEST or repeats_a_choice(pattern)):
                raise error(
                    f"{where}: the pattern {shown(pattern)} may take exponential time: a group "
                    "that repeats holds repeats or choices, or it is too long."
                )
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?[^)(:=!<]*[:=!<])?|\{\d*,?\d*\}|.", re.S
)


def repeats_a_choice(pattern: str) -> bool:
    r"""Return whether a group that may repeat holds a repeat of variable length or a choice.

    >>> repeats_a_choice("(a+)+"), repeats_a_choice("(a|b)*"), repeats_a_choice(r"(?:\d{3})*|a+")
    (True, True, False)
    """
    open_groups, closed = [False], False
    for token in _TOKEN.findall(pattern):
        low, comma, high = token.strip("{}").partition(",")
        is_variable = token.startswith("{") and comma and low != high
        is_repeat = token in ("*", "+") or bool(is_variable)
        if is_repeat and closed:
            return True
        if token.startswith("("):
            open_groups.append(False)
        elif token == ")" and len(open_groups) > 1:
            closed = open_groups.pop()
            open_groups[-1] |= closed
            continue
        elif token == "|" or is_repeat:
            open_groups[-1] = True
        closed = False
    return False
