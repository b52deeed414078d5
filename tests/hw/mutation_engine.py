"""Mutation engine for SystemVerilog: a fault at every place of a module that fits a rule.

`sites` finds the expressions of a module: right-hand sides in `assign` and in `always` blocks,
conditions of `if`, and the handshakes of instances. `faults` applies the rules to each of them.
`built_in` writes faults into the RTL of a design, each as a choice between the right text and the
wrong one. The number in the file `mem/mutant.mem` selects one fault; 0 selects none. One build
therefore serves all of them.

To add a rule: a function under `@rule` that gets an expression and yields wrong versions of it.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from chop.hw.design.component import rtl_sources

CHOICE = "mutation::chosen[0]"
PACKAGE = "package mutation;\n  logic [15:0] chosen[1];\nendpackage\n"
READ = '  initial $readmemh("mem/mutant.mem", mutation::chosen);\n'
SWAPS = {
    "+": "-",
    "-": "+",
    "*": "+",
    "<<<": ">>>",
    ">>>": ">>",
    "<<": ">>",
    ">>": "<<",
    "==": "!=",
    "!=": "==",
    "<": "<=",
    ">": ">=",
    ">=": ">",
    "&&": "||",
    "||": "&&",
    "^": "|",
}
"""Operators, each with a wrong one."""
_OPERATOR = re.compile(r"<<<|>>>|<<|>>|==|!=|<=|>=|&&|\|\||[-+*<>^!?]")
_HEADER_END = re.compile(r"^\);$", re.M)
_HANDSHAKE = re.compile(r"\.(?:\w+_valid|\w+_ready|enable|tag_in)\s*\(")


@dataclass(frozen=True)
class Site:
    """An expression, or a whole statement, of a module: its place, and what it is assigned to."""

    start: int
    end: int
    target: str = ""
    is_statement: bool = False


@dataclass(frozen=True)
class Fault:
    """A wrong text for the expression at `site` of `module`; `kind` is the rule that made it."""

    module: str
    kind: str
    line: int
    site: Site
    old: str
    new: str

    @property
    def name(self) -> str:
        """A name that stays when lines move: the module, the rule, and both texts."""
        key = f"{self.site.target}|{self.old}|{self.new}"
        return f"{self.module}:{self.kind}:{hashlib.sha256(key.encode()).hexdigest()[:8]}"

    def __str__(self) -> str:
        new = " ".join(self.new.split()) or "nothing"
        return f"{self.module}.sv:{self.line}: {' '.join(self.old.split())}  ->  {new}"


# -- places ----------------------------------------------------------------------------------------


def code_of(text: str) -> str:
    """`text` with spaces for comments, attributes and strings: places stay what they are."""
    blank = re.compile(r"//[^\n]*|/\*.*?\*/|\(\* .*? \*\)|\"[^\"]*\"|`[^\n]*", re.S)
    return blank.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def closing(code: str, at: int) -> int:
    """The place behind the bracket that closes the one at `at`."""
    depth = 0
    for k in range(at, len(code)):
        depth += (code[k] in "([{") - (code[k] in ")]}")
        if depth == 0:
            return k + 1
    raise ValueError(f"no bracket closes the one at {at}")


def _until(code: str, at: int, mark: str) -> int:
    """The place of the first `mark` from `at` on that no brackets enclose."""
    depth = 0
    for k in range(at, len(code)):
        if depth == 0 and code.startswith(mark, k):
            return k
        depth += (code[k] in "([{") - (code[k] in ")]}")
    raise ValueError(f"no {mark!r} from {at} on")


def sites(text: str) -> list[Site]:
    """Every expression of a module that a fault may be put into."""
    code = code_of(text)
    body = _HEADER_END.search(code).end()
    found = []
    for match in re.finditer(r"\bassign\b", code[body:]):
        found.append(_assignment(code, body + match.end(), "="))
    for match in re.finditer(r"\balways_(?:ff\s*@\s*\([^)]*\)|comb)", code[body:]):
        _statement(code, body + match.end(), found)
    for match in _HANDSHAKE.finditer(code[body:]):
        start = body + match.end()
        found.append(Site(start, closing(code, start - 1) - 1, match[0].strip("( ")))
    return [site for site in found if site is not None]


def _assignment(code: str, start: int, sign: str) -> Site | None:
    end = _until(code, start, ";")
    try:
        at = _until(code[:end], start, sign)
    except ValueError:
        return None
    target = " ".join(code[start:at].split())
    begin = at + len(sign)
    begin += len(code[begin:]) - len(code[begin:].lstrip())
    return Site(begin, end, target)


def _statement(code: str, at: int, found: list) -> int:
    """Note the expressions of the statement at `at`; the place behind it."""
    at += len(code[at:]) - len(code[at:].lstrip())
    word = re.match(r"\w*", code[at:])[0]
    if word == "begin":
        return _block(code, at + 5, found)
    if word in ("if", "for"):
        opened = code.index("(", at)
        after = closing(code, opened)
        if word == "if":
            found.append(Site(opened + 1, after - 1, "if"))
        after = _statement(code, after, found)
        following = re.match(r"\s*else\b", code[after:])
        return _statement(code, after + following.end(), found) if following else after
    end = _until(code, at, ";") + 1
    if word not in ("logic", "int", "automatic", "localparam"):
        sign = "<=" if "<=" in code[at:end] else "="
        site = _assignment(code, at, sign)
        if site is not None and "|" not in site.target:
            found.append(site)
            if sign == "<=":
                found.append(Site(at, end, site.target, True))
    return end


def _block(code: str, at: int, found: list) -> int:
    label = re.match(r"\s*:\s*\w+", code[at:])
    at += label.end() if label else 0
    while not re.match(r"\s*end\b", code[at:]):
        at = _statement(code, at, found)
    return at + re.match(r"\s*end\b", code[at:]).end()


# -- rules -----------------------------------------------------------------------------------------

Rule = Callable[[str, str], Iterator[str]]
RULES: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    """Make a rule known by its name."""
    RULES[function.__name__] = function
    return function


def _free(code: str) -> list[bool]:
    """Whether each character lies outside indices, repetition counts and widths of casts."""
    depth, found = 0, []
    for letter in code:
        depth += letter == "["
        found.append(depth == 0)
        depth -= letter == "]"
    for width in re.finditer(r"\{\s*\([^()]*\)(?=\s*\{)|\([^()]*\)(?='\()", code):
        found[width.start() : width.end()] = [False] * len(width[0])
    return found


def _operators(code: str) -> Iterator[tuple[int, int, str]]:
    free = _free(code)
    for match in _OPERATOR.finditer(code):
        if free[match.start()]:
            yield match.start(), match.end(), match[0]


@rule
def operator(code: str, text: str) -> Iterator[str]:
    """Another operator: the other sign, the other bound, `or` for `and`, a shift without sign."""
    for start, end, found in _operators(code):
        if found in SWAPS and code[:start].strip()[-1:] not in ("", "(", "?", ":", ",", "{"):
            yield text[:start] + SWAPS[found] + text[end:]


@rule
def term(code: str, text: str) -> Iterator[str]:
    """A sum without its second term."""
    for start, end, found in _operators(code):
        if found in "+-" and code[:start].strip()[-1:] not in ("", "(", "?", ":", ",", "{"):
            stop = end + len(code[end:]) - len(code[end:].lstrip())
            while stop < len(code) and code[stop] not in ",:?;)}&|=<>+-\n":
                stop = closing(code, stop) if code[stop] in "([{" else stop + 1
            yield text[:start] + text[stop:]


@rule
def negation(code: str, text: str) -> Iterator[str]:
    """Without a `!`, or without the minus before an operand."""
    for start, end, found in _operators(code):
        is_minus = found == "-" and code[:start].strip()[-1:] in ("", "(", "?", ":", ",")
        if found == "!" or is_minus:
            yield text[:start] + text[end:]


@rule
def branch(code: str, text: str) -> Iterator[str]:
    """The other branch of a choice."""
    for start, _, found in _operators(code):
        if found == "?":
            opened, depth = 0, 0
            for k in range(start - 1, -1, -1):
                depth += (code[k] in ")]}") - (code[k] in "([{")
                if depth < 0 or (depth == 0 and code[k] in "?:," and code[k - 1] != "+"):
                    opened = k + 1
                    break
            yield f"{text[:opened]} !({text[opened:start]}) {text[start:]}"


def _next(number: str) -> str:
    """The number after one of SystemVerilog; half of one that is written in hexadecimal, the other
    one of a bit, ones for zeros."""
    width, base, digits = number.partition("'h")
    if base:
        return f"{width}'h{int(digits, 16) >> 1:x}"
    return {"1'b0": "1'b1", "1'b1": "1'b0", "'0": "'1"}.get(number) or str(int(number) + 1)


@rule
def number(code: str, text: str) -> Iterator[str]:
    """A number that is one more, the other bit, or ones for zeros."""
    free = _free(code)
    for match in re.finditer(r"(?<![\w'])(1'b[01]|'0|\d+'h[0-9a-fA-F_]+|\d+)(?![\w'])", code):
        if free[match.start()]:
            yield text[: match.start()] + _next(match[0]) + text[match.end() :]


@rule
def sign(code: str, text: str) -> Iterator[str]:
    """A number that loses its sign as it is extended."""
    for match in re.finditer(r"(?<='\()\$signed\(", code):
        end = closing(code, match.end() - 1)
        if not code[match.end() :].startswith("{1'b0"):
            inner = text[match.end() : end - 1]
            yield f"{text[: match.start()]}$signed({{1'b0, {inner}}}){text[end:]}"


@rule
def register(code: str, text: str) -> Iterator[str]:
    """The register before, of a chain of them."""
    for match in re.finditer(r"\b(?:late_(\w+_q)|(\w+_)([1-9])(_q))\b(?!\[)", code):
        other = match[1] or f"{match[2]}{int(match[3]) - 1}{match[4]}"
        yield text[: match.start()] + other + text[match.end() :]


@rule
def condition(code: str, text: str) -> Iterator[str]:
    """A condition that always holds; the reset, one that never does."""
    yield "1'b0" if text.strip() == "rst" else "1'b1"


@rule
def dropped(code: str, text: str) -> Iterator[str]:
    """A register that is not written."""
    yield ""


def _wrong(rules: dict[str, Rule], site: Site, code: str, text: str) -> Iterator[tuple[str, str]]:
    for kind, make in rules.items():
        if (kind == "dropped") != site.is_statement or (kind == "condition") > (
            site.target == "if"
        ):
            continue
        for new in make(code, text):
            yield kind, new


def faults(module: str) -> list[Fault]:
    """Every fault of a module of the library."""
    text = rtl_sources()[module].read_text()
    code, names, found = code_of(text), set(re.findall(r"\w+", text)), {}
    for site in sites(text):
        here = slice(site.start, site.end)
        for kind, new in _wrong(RULES, site, code[here], text[here]):
            line = text.count("\n", 0, site.start) + 1
            fault = Fault(module, kind, line, site, text[here], new)
            if set(re.findall(r"\b[a-z]\w*_q\b", new)) <= names:
                found.setdefault(fault.name, fault)
    return list(found.values())


def sample(module: str, count: int) -> list[Fault]:
    """Return `count` faults of a module: kinds in turn, in the fixed order of a hash."""
    by_kind: dict[str, list[Fault]] = {}
    for fault in sorted(faults(module), key=lambda f: hashlib.sha256(f.name.encode()).digest()):
        by_kind.setdefault(fault.kind, []).append(fault)
    turns = [fault for k in range(count) for each in by_kind.values() for fault in each[k : k + 1]]
    return turns[:count]


# -- a design with faults --------------------------------------------------------------------------


def built_in(directory: Path, chosen: list[Fault]) -> dict[str, int]:
    """Build the choice between `chosen` faults into the RTL of `directory`; numbers, by name."""
    numbers = {fault.name: k + 1 for k, fault in enumerate(chosen)}
    for module in {fault.module for fault in chosen}:
        path = directory / "rtl" / f"{module}.sv"
        here = [fault for fault in chosen if fault.module == module]
        path.write_text(_with_choices(path.read_text(), here, numbers))
    top = directory / "rtl" / "top.sv"
    top.write_text(top.read_text().replace("\nendmodule", f"\n{READ}\nendmodule"))
    (directory / "rtl" / "a_mutation.sv").write_text(PACKAGE)
    choose(directory, 0)
    return numbers


def _with_choices(text: str, chosen: list[Fault], numbers: dict[str, int]) -> str:
    """Replace expressions first, then the statements that hold them."""
    at: dict[Site, list[Fault]] = {}
    for fault in chosen:
        at.setdefault(fault.site, []).append(fault)
    edits: list[tuple[int, int, str]] = []
    for site in sorted(at, key=lambda s: (s.is_statement, -s.start)):
        inside = [e for e in edits if site.start <= e[0] and e[1] <= site.end]
        edits = [e for e in edits if e not in inside]
        old = _edited(text[site.start : site.end], inside, site.start)
        new = _choice(site, old, at[site], numbers)
        edits.append((site.start, site.end, new))
    return _edited(text, edits, 0)


def _edited(text: str, edits: list[tuple[int, int, str]], origin: int) -> str:
    for start, end, new in sorted(edits, reverse=True):
        text = text[: start - origin] + new + text[end - origin :]
    return text


def _choice(site: Site, old: str, here: list[Fault], numbers: dict[str, int]) -> str:
    for fault in here:
        is_on = f"{CHOICE} == 16'd{numbers[fault.name]}"
        if site.is_statement:
            old = f"if ({is_on}) begin {fault.new} end else begin {old} end"
        else:
            old = f"({is_on} ? ({fault.new}) : ({old}))"
    return old


def choose(directory: Path, number: int) -> None:
    """Turn on the fault of that number, 0 for none."""
    (directory / "mem").mkdir(exist_ok=True)
    (directory / "mem" / "mutant.mem").write_text(f"{number:04x}\n")
