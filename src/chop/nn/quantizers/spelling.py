"""Spelling of a number format: `<stem>[/<group>][:<setting>=<value>]...`, the same text everywhere.

The stem names the format and its main settings (`mxint4`, `fixed8.4`). The group (`/16`, `/4x4`,
`/channel`) shares an exponent or a scale. Other settings follow a colon, unless they are at their
defaults. File names have "@" and "~" instead of "/" and ":".
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chop.errors import ConfigError
from chop.registry import Registry

if TYPE_CHECKING:
    from chop.nn.quantizers.quantizer import Quantizer

IN_FILE_NAMES = str.maketrans({"/": "@", ":": "~"})
FROM_FILE_NAMES = str.maketrans({"@": "/", "~": ":"})
_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?"
_TUPLE = re.compile(rf"x|{_NUMBER}(x{_NUMBER})*x|{_NUMBER}(x{_NUMBER})+")
_WHOLE = re.compile(r"[+-]?\d{1,4000}")  # int() refuses 4300 digits and more
_SWITCHES = {"true": True, "false": False}


def whole_numbers(parts: Mapping[str, str]) -> dict[str, Any]:
    """Return the parts of a stem as settings of the same names."""
    return {name: int(text) for name, text in parts.items()}


@dataclass(frozen=True)
class Stem:
    """Stem of a format: `pattern` matches it, `read` parses its groups, `write` spells it.

    `grammar` and `example` are for documentation and error messages.
    """

    grammar: str
    example: str
    pattern: str
    write: Callable[[Any], str]
    read: Callable[[Mapping[str, str]], dict[str, Any]] = whole_numbers

    def settings(self, text: str) -> dict[str, Any] | None:
        """Return the settings that `text` spells, None if it is not such a stem."""
        match = re.fullmatch(self.pattern, text, re.ASCII)
        if match is None:
            return None
        return self.read({k: v for k, v in match.groupdict().items() if v is not None})

    @property
    def word(self) -> str:
        """Letters before the first setting."""
        return _word(self.example)[0]


def read_sign(parts: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a stem that a leading "u" makes unsigned."""
    unsigned = {"is_signed": False} if "u" in parts else {}
    return unsigned | whole_numbers({k: v for k, v in parts.items() if k != "u"})


def number_stem(word: str, setting: str = "width", example: int = 8) -> Stem:
    """Return the stem `word8`: the word and one setting."""
    return Stem(
        f"{word}<{setting}>",
        f"{word}{example}",
        rf"{word}(?P<{setting}>\d{{1,4}})",
        lambda q: f"{word}{getattr(q, setting)}",
    )


def float_stem(word: str) -> Stem:
    """Return the stem `word_e4m3`: a sign, exponent bits and the other bits of `width`."""
    return Stem(
        f"{word}_e<exponent bits>m<mantissa bits>",
        f"{word}_e4m3",
        rf"{word}_e(?P<exponent>\d{{1,4}})m(?P<mantissa>\d{{1,4}})",
        lambda q: f"{word}_e{q.exponent_width}m{q.width - 1 - q.exponent_width}",
        lambda parts: {
            "width": 1 + int(parts["exponent"]) + int(parts["mantissa"]),
            "exponent_width": int(parts["exponent"]),
        },
    )


def own_stem(cls: type[Quantizer]) -> Stem | None:
    """Return the stem of a format class; a subclass with its own name does not inherit one."""
    owner = next((c for c in cls.__mro__ if "name" in vars(c)), cls)
    stem: Stem | None = vars(owner).get("stem")
    return stem


def grammar(cls: type[Quantizer]) -> str:
    """Return how formats of a class are spelled, without the settings after a colon.

    >>> from chop.nn.quantizers import MXInt
    >>> grammar(MXInt)
    'mxint<width>[/<block_size>]'
    """
    stem = own_stem(cls)
    return (cls.name if stem is None else stem.grammar) + cls.group_grammar


def spell(form: Quantizer) -> str:
    """Return the spelling of `form`, the text that `parse_format` reads back as an equal format."""
    stem, group = own_stem(type(form)), form.group_text
    head = form.name if stem is None else stem.write(form)
    spelled = {} if stem is None else stem.settings(head)
    assert spelled is not None, f"'{head}' is not a stem of {type(form).__name__}"
    if group:
        spelled |= type(form).read_group(group)
        head = f"{head}/{group}"
    # the settings of the format itself before those that it shares with others
    fields = sorted(dataclasses.fields(form), key=lambda field: bool(field.kw_only))
    pairs = [(f.name, getattr(form, f.name), f.default) for f in fields]
    rest = [(name, value) for name, value, default in pairs if value != spelled.get(name, default)]
    return ":".join([head, *(f"{name}={write_value(value)}" for name, value in rest)])


def write_value(value: Any) -> str:
    """Return the text of a setting: tuples are joined by "x", None is "none"."""
    if isinstance(value, tuple):
        return "x".join(map(write_value, value)) + ("x" if len(value) < 2 else "")
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)


def read_value(text: str) -> Any:
    """Return the value that `text` spells; words stay text and are checked by their field.

    >>> [read_value(text) for text in ("4", "0.5", "4x4", "true", "floor")]
    [4, 0.5, (4, 4), True, 'floor']
    """
    if _TUPLE.fullmatch(text):
        return tuple(read_value(part) for part in text.split("x") if part)
    if _WHOLE.fullmatch(text):
        return int(text)
    if re.fullmatch(rf"{_NUMBER}|[+-]?inf|nan", text):
        return float(text)
    return _SWITCHES.get(text, text)


def resolve(
    formats: Registry[type[Quantizer]], text: str
) -> tuple[type[Quantizer], dict[str, Any]] | None:
    """Return the class that `text` names and the settings of its stem and group, else None.

    A registered name (`mxint`, `integer`) is a stem without settings.
    """
    head, _, group = text.partition("/")
    for cls in [formats[head]] if head in formats else formats.values():
        stem = own_stem(cls)
        settings = {} if head in formats else stem.settings(head) if stem else None
        if settings is not None:
            return cls, {**settings, **(cls.read_group(group) if group else {})}
    return None


def read_spelling(
    formats: Registry[type[Quantizer]], text: object, where: str
) -> tuple[type[Quantizer], dict[str, Any]]:
    """Return the class and the settings that `text` spells; errors carry the path `where`."""
    if not isinstance(text, str):
        raise ConfigError(f"{where}: expected the spelling of a format, got {text!r}.")
    head, *suffixes = text.strip().translate(FROM_FILE_NAMES).split(":")
    try:
        resolved = resolve(formats, head)
    except ConfigError as error:
        raise ConfigError(f"{where}: '{text}': {error}") from error
    if resolved is None:
        raise ConfigError(f"{where}: Unknown format '{text}'. {_nearest(formats, head)}")
    cls, settings = resolved
    for suffix in suffixes:
        name, equals, value = suffix.partition("=")
        if not (name and equals and value) or name in settings:
            reason = "is given twice" if name in settings else "is not <setting>=<value>"
            raise ConfigError(f"{where}: '{text}': '{suffix}' {reason}.")
        settings[name] = read_value(value)
    return cls, settings


def examples(formats: Registry[type[Quantizer]]) -> dict[str, str]:
    """Return one spelling of every format, by its name."""
    stems = {name: own_stem(cls) for name, cls in formats.items()}
    return {name: name if stem is None else stem.example for name, stem in stems.items()}


def _nearest(formats: Registry[type[Quantizer]], head: str) -> str:
    """Return a sentence with the spelling nearest to `head`, and the spellings there are."""
    word, rest = _word(head)
    stems = [stem for stem in map(own_stem, formats.values()) if stem is not None]
    spellings = [*formats, *examples(formats).values()]
    words = difflib.get_close_matches(word.lower(), [*(s.word for s in stems), *formats], n=1)
    near = words[0] + rest if words else ""
    if not near or _is_refused(formats, near):
        own = [stem.example for stem in stems if stem.word in words]
        near = next(iter(own or difflib.get_close_matches(head, spellings, n=1)), "")
    hint = f"Did you mean '{near}'? " if near else ""
    return f"{hint}Known: {', '.join(sorted(set(spellings)))}."


def _is_refused(formats: Registry[type[Quantizer]], text: str) -> bool:
    try:
        return resolve(formats, text) is None
    except ConfigError:
        return True


def _word(text: str) -> tuple[str, str]:
    """Return the leading letters of `text`, and the rest."""
    match = re.match(r"[A-Za-z_]*", text)
    assert match is not None, "an empty word matches"
    return match[0], text[match.end() :]
