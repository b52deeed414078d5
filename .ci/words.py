"""Check the plain English of docs, docstrings and help texts.

    python .ci/words.py            # list what breaks a rule; exit code 1 if anything does
    python .ci/words.py --lengths  # print the lengths of the sentences of the docs

Rules: a docstring does not open with a word of `OPENINGS`; no text has a phrase of `PHRASES`; no
variable has a name of `VAGUE_NAMES`. `LIMITS` has the counts that are left for each folder: they
fall with the hits, and never rise. A folder that is not listed has none left.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPENINGS = "Of What How Whether As Where When Who Such That"
PHRASES = (
    "anew", "so many", "as often", "otherwise than", "by who", "write on from", "goes on behind",
    "is told", "are told", "of its own accord", "wherein", "therein", "thereof", "whereof",
)  # fmt: skip
VAGUE_NAMES = frozenset(
    {"asked", "found", "given", "held", "kept", "known"}
    | {"made", "said", "seen", "taken", "told", "wanted"}
)
LIMITS = {
    "chop/cli": 1,  # a key of `mase doctor --json`
    "chop/hw": 3,  # the emitted test bench, whose bytes are compared
    "chop/ir": 1,  # a public argument
    "chop/nn": 1,  # an attribute of saved layers
    "chop/registry.py": 1,  # a public argument
}
"""Folder below src/chop, or page of docs -> hits that are still allowed there."""
MOST_WORDS, MEDIAN_WORDS = 32, 16
"""Limits of the docs' sentences: 95th percentile and median."""

_OPENING = re.compile(rf"(?:{'|'.join(OPENINGS.split())})\b")
_PHRASE = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE)


@dataclass(frozen=True)
class Hit:
    """A place that breaks a rule."""

    path: str
    line: int
    text: str

    @property
    def folder(self) -> str:
        """Key of `LIMITS`: two levels of a package, or the page."""
        parts = Path(self.path).parts
        return "/".join(parts[1:3]) if parts[0] == "src" else self.path

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def docstrings_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring, those of fields and constants included."""
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.lineno, value.value


def python_hits(path: Path) -> Iterator[Hit]:
    """Yield the hits of a Python file."""
    place, tree = str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))
    for line, text in docstrings_of(tree):
        if _OPENING.match(text):
            yield Hit(place, line, f"opens with {text.split()[0]!r}: {text.splitlines()[0]}")
        for match in _PHRASE.finditer(text):
            yield Hit(place, line, f"has {match.group()!r}")
    for node in ast.walk(tree):
        is_stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        name = node.id if is_stored else node.arg if isinstance(node, ast.arg) else ""
        if name.strip("_") in VAGUE_NAMES:
            yield Hit(place, node.lineno, f"names a value {name!r}")


def prose(page: Path) -> str:
    """Return the sentences of a page: no code, tables, headings, pictures or HTML."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [li for li in text.splitlines() if not re.match(r"\s*(\||#|<|!\[|\[!)", li)]
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", "\n" + "\n".join(lines))
    return "\n".join(" ".join(block.split()) for block in blocks)


def page_hits(page: Path) -> Iterator[Hit]:
    """Yield the hits of a page of Markdown."""
    place = str(page.relative_to(ROOT))
    for number, line in enumerate(prose(page).splitlines(), 1):
        for match in _PHRASE.finditer(re.sub(r"`[^`]*`", "", line)):
            yield Hit(place, number, f"has {match.group()!r}")


def pages() -> list[Path]:
    """Return the pages that a person reads."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def sentence_lengths() -> list[int]:
    """Return the words of each sentence of the pages; generated tables do not count."""
    joined = "\n".join(prose(page) for page in pages())
    sentences = re.split(r"(?<=[.!?])\s+|\n", re.sub(r"`[^`]*`", "code", joined))
    return [n for n in (len(re.findall(r"\w[\w'’-]*", s)) for s in sentences) if n > 1]


def hits() -> list[Hit]:
    """Return all hits, in the order of the files."""
    sources = sorted((ROOT / "src").rglob("*.py"))
    both = [*(hit for p in sources for hit in python_hits(p))]
    return both + [hit for page in pages() for hit in page_hits(page)]


def excess(all_hits: list[Hit]) -> list[Hit]:
    """Return the hits of folders that have more than `LIMITS` allows."""
    counts = Counter(hit.folder for hit in all_hits)
    return [hit for hit in all_hits if counts[hit.folder] > LIMITS.get(hit.folder, 0)]


def loose_limits(all_hits: list[Hit]) -> list[str]:
    """Return a line for each folder that has fewer hits than `LIMITS` allows."""
    counts = Counter(hit.folder for hit in all_hits)
    loose = [folder for folder, limit in LIMITS.items() if counts[folder] < limit]
    return [f"{folder}: only {counts[folder]} left; lower its limit here" for folder in loose]


def main() -> int:
    """Print hits or lengths; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lengths", action="store_true", help="print the lengths of sentences")
    if parser.parse_args().lengths:
        lengths = sorted(sentence_lengths())
        high = lengths[int(0.95 * len(lengths))]
        print(f"{len(lengths)} sentences: median {statistics.median(lengths):g} words, p95 {high}")
        return int(high > MOST_WORDS or statistics.median(lengths) > MEDIAN_WORDS)
    all_hits = hits()
    faults = [*map(str, excess(all_hits)), *loose_limits(all_hits)]
    print("\n".join(faults))
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
