"""Regular expressions from configs and files, matched in bounded time.

Python's `re` tries every way to match, which takes exponential time for patterns such as `(a+)+b`.
Patterns for which that cannot happen are matched by `re`. The others are matched by sets of
positions, in time proportional to the pattern and to the square of the text: `re` and `Matcher`
agree on every pattern that `Matcher` accepts.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from re import _constants as codes  # type: ignore[attr-defined]  # the parser has no public name
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from chop.errors import ChopError
from chop.files import shown

LONGEST, DEEPEST, MOST_REPEATS = 2000, 20, 1000
QUICK_REPEATS = 2
"""Open repeats that `re` matches in a time quadratic in the text at most."""
QUICK_CHOICES = 1000
"""Combinations of alternatives and bounded repeats that `re` may try at a position."""
REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT)
ALLOWED_FLAGS = re.UNICODE | re.IGNORECASE
Ends = set[int]
Tree = list[tuple[Any, Any]]


def fullmatch(pattern: str, text: str) -> bool:
    """Return whether a checked pattern matches the whole text.

    >>> fullmatch(r"layer\\.\\d+\\..*", "layer.0.attention"), fullmatch("(a+)+b", "a" * 50)
    (True, False)
    """
    return _matcher(pattern).ends_at(text, len(text))


def match(pattern: str, text: str) -> bool:
    """Return whether a checked pattern matches the start of the text."""
    return _matcher(pattern).ends_at(text, None)


def check_pattern(
    pattern: str, where: str, error: type[ChopError], claim: str = "no regular expression"
) -> None:
    """Raise `error` if a pattern is no regular expression, or one that cannot be matched here."""
    try:
        _matcher(pattern)
    except (re.error, RecursionError, OverflowError, ValueError) as problem:
        raise error(f"{where}: {shown(pattern)} is {claim}: {problem}.") from problem


@functools.lru_cache(maxsize=4096)
def _matcher(pattern: str) -> _Quick | Matcher:
    if len(pattern) > LONGEST:
        raise ValueError(f"it has {len(pattern)} characters; allowed are {LONGEST}")
    compiled = re.compile(pattern)
    tree = parser.parse(pattern)
    return _Quick(compiled) if _is_quick(tree) else Matcher(tree, compiled.flags)


class _Quick:
    """A pattern that `re` matches in little time."""

    def __init__(self, compiled: re.Pattern[str]) -> None:
        self.compiled = compiled

    def ends_at(self, text: str, end: int | None) -> bool:
        """Return whether it matches the text up to `end`, or anywhere from its start if None."""
        found = self.compiled.match(text) if end is None else self.compiled.fullmatch(text)
        return found is not None


def _is_quick(tree: Tree) -> bool:
    """Return whether backtracking is cheap: few repeats and choices, and none inside a repeat."""
    parts = list(_walk(tree))
    repeats = [body for code, body in parts if code in REPEATS]
    inside = [each for _, most, body in repeats if most > 1 for each in _walk(body)]
    if any(_choices(code, body) > 1 for code, body in inside):
        return False
    is_open = [most is codes.MAXREPEAT for _, most, _ in repeats]
    bounded = [_choices(code, body) for code, body in parts if not _is_open(code, body)]
    return sum(is_open) <= QUICK_REPEATS and math.prod(bounded) <= QUICK_CHOICES


def _is_open(code: Any, argument: Any) -> bool:
    return code in REPEATS and argument[1] is codes.MAXREPEAT


def _choices(code: Any, argument: Any) -> int:
    """Return the number of ways to match one part of a pattern at a position."""
    if code in REPEATS:
        return int(argument[1]) - int(argument[0]) + 1
    return len(argument[1]) if code is codes.BRANCH else 1


def _walk(tree: Any) -> Iterator[tuple[Any, Any]]:
    for code, argument in tree:
        yield code, argument
        for part in argument if isinstance(argument, tuple) else ():
            options = part if isinstance(part, list) else [part]
            for each in options:
                if isinstance(each, parser.SubPattern):
                    yield from _walk(each)


# -- matching by sets of positions ---------------------------------------------------------------


class Matcher:
    """A pattern as a function from positions where a match starts to those where it may end."""

    def __init__(self, tree: Tree, flags: int) -> None:
        if flags & ~ALLOWED_FLAGS:
            raise ValueError("it sets flags other than (?i)")
        self.run = _sequence(tree, bool(flags & re.IGNORECASE), 0)

    def ends_at(self, text: str, end: int | None) -> bool:
        """Return whether it matches the text up to `end`, or anywhere from its start if None."""
        found = self.run(_Text(text), {0})
        return bool(found) if end is None else end in found


class _Text:
    """A text, and what is known of the matches at its positions."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.known: dict[tuple[int, int], Ends] = {}


Step = Callable[[_Text, Ends], Ends]
"""From the positions where a part of a pattern may start to those where it may end."""


def _one_by_one(step: Step) -> Step:
    """Return `step`, computed once for each position: repeats inside repeats stay polynomial."""

    def look(text: _Text, starts: Ends) -> Ends:
        for start in starts:
            if (id(step), start) not in text.known:
                text.known[id(step), start] = step(text, {start})
        return {end for start in starts for end in text.known[id(step), start]}

    return look


def _sequence(tree: Iterable[tuple[Any, Any]], ignore_case: bool, depth: int) -> Step:
    if depth > DEEPEST:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    steps = [_step(code, argument, ignore_case, depth + 1) for code, argument in tree]

    def step(text: _Text, starts: Ends) -> Ends:
        for each in steps:
            starts = each(text, starts)
        return starts

    return step


def _step(code: Any, argument: Any, ignore_case: bool, depth: int) -> Step:
    if code in _CHARACTERS:
        return _one_character(code, argument, ignore_case)
    if code is codes.AT:
        return _where(_PLACES[argument])
    if code is codes.BRANCH:
        options = [_sequence(each, ignore_case, depth) for each in argument[1]]
        return lambda text, starts: {end for each in options for end in each(text, starts)}
    if code is codes.SUBPATTERN:
        _, added, removed, body = argument
        if (added | removed) & ~re.IGNORECASE:
            raise ValueError("it sets flags other than (?i)")
        inner = bool((ignore_case or added & re.IGNORECASE) and not removed & re.IGNORECASE)
        return _sequence(body, inner, depth)
    if code in REPEATS:
        least, most, body = argument
        step = _repeat(least, most, _sequence(body, ignore_case, depth))
        return _one_by_one(step) if any(c in REPEATS for c, _ in _walk(body)) else step
    if code in (codes.ASSERT, codes.ASSERT_NOT):
        return _look(code, argument, ignore_case, depth)
    raise ValueError(f"{str(code).lower()} is not supported here")


def _repeat(least: int, most: Any, body: Step) -> Step:
    is_open = most is codes.MAXREPEAT
    if least > MOST_REPEATS or (not is_open and most > MOST_REPEATS):
        raise ValueError(f"it repeats more than {MOST_REPEATS} times")

    def step(text: _Text, starts: Ends) -> Ends:
        layer, found = starts, set(starts) if least == 0 else set()
        count = 0
        while layer and (is_open or count < most):
            layer = body(text, layer)
            count += 1
            if count >= least:
                layer = layer - found if count > least else layer
                found |= layer
        return found

    return step


def _look(code: Any, argument: Any, ignore_case: bool, depth: int) -> Step:
    direction, body = argument
    inner = _sequence(body, ignore_case, depth)
    width = body.getwidth()[0] if direction < 0 else 0

    def is_there(text: _Text, start: int) -> bool:
        if direction > 0:
            return bool(inner(text, {start}))
        return start >= width and start in inner(text, {start - width})

    return lambda text, starts: {
        start for start in starts if is_there(text, start) == (code is codes.ASSERT)
    }


_PLACES: dict[Any, Callable[[str, int], bool]] = {
    codes.AT_BEGINNING: lambda text, i: i == 0,
    codes.AT_BEGINNING_STRING: lambda text, i: i == 0,
    codes.AT_END: lambda text, i: i == len(text) or text[i:] == "\n",
    codes.AT_END_STRING: lambda text, i: i == len(text),
    codes.AT_BOUNDARY: lambda text, i: _is_boundary(text, i),
    codes.AT_NON_BOUNDARY: lambda text, i: bool(text) and not _is_boundary(text, i),
}


def _is_boundary(text: str, i: int) -> bool:
    before = i > 0 and _is_word(text[i - 1])
    return before != (i < len(text) and _is_word(text[i]))


def _where(test: Callable[[str, int], bool]) -> Step:
    return lambda text, starts: {start for start in starts if test(text.text, start)}


# -- single characters ---------------------------------------------------------------------------

Test = Callable[[str], bool]


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


_CATEGORIES: dict[Any, Test] = {
    codes.CATEGORY_DIGIT: str.isdecimal,
    codes.CATEGORY_NOT_DIGIT: lambda c: not c.isdecimal(),
    codes.CATEGORY_SPACE: str.isspace,
    codes.CATEGORY_NOT_SPACE: lambda c: not c.isspace(),
    codes.CATEGORY_WORD: _is_word,
    codes.CATEGORY_NOT_WORD: lambda c: not _is_word(c),
}
_CHARACTERS: dict[Any, Callable[[Any], Test]] = {
    codes.LITERAL: lambda code: lambda c: ord(c) == code,
    codes.NOT_LITERAL: lambda code: lambda c: ord(c) != code,
    codes.ANY: lambda _: lambda c: c != "\n",
    codes.RANGE: lambda ends: lambda c: ends[0] <= ord(c) <= ends[1],
    codes.CATEGORY: lambda name: _CATEGORIES[name],
    codes.IN: lambda parts: _set_of(parts),
}


def _set_of(parts: list[tuple[Any, Any]]) -> Test:
    tests = [_CHARACTERS[code](value) for code, value in parts if code is not codes.NEGATE]
    is_negated = len(tests) < len(parts)
    return lambda c: any(test(c) for test in tests) != is_negated


def _one_character(code: Any, argument: Any, ignore_case: bool) -> Step:
    test = _CHARACTERS[code](argument)
    is_negated = code is codes.NOT_LITERAL or (code is codes.IN and _is_negated(argument))

    def fits(character: str) -> bool:
        cases = {character, character.lower(), character.upper()} if ignore_case else {character}
        results = [test(each) for each in cases if len(each) == 1]
        return all(results) if is_negated else any(results)

    def step(text: _Text, starts: Ends) -> Ends:
        size = len(text.text)
        return {i + 1 for i in starts if i < size and fits(text.text[i])}

    return step


def _is_negated(parts: list[tuple[Any, Any]]) -> bool:
    return any(code is codes.NEGATE for code, _ in parts)


# -- patterns for other engines ------------------------------------------------------------------


def check_patterns(content: Any, where: str, error: type[ChopError]) -> None:
    """Raise `error` if a `{"Regex": …}` inside a tokenizer may take exponential time.

    Its engine tries every way to match too. A group that repeats must not hold repeats or choices.
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
        is_repeat = token in ("*", "+") or (token.startswith("{") and _is_variable(token))
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


def _is_variable(token: str) -> bool:
    low, comma, high = token.strip("{}").partition(",")
    return bool(comma) and low != high
