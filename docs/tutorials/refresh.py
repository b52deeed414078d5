"""Run the tutorials in the small setting and bring their pages up to date: `make figures`.

A page shows printed text in blocks marked `<!-- printed: NAME -->`, and figures from
`images/TUTORIAL/`. Both are what the script of the same name made. Some tutorials are a part of the
page of their topic, between `<!-- tutorial: NAME -->` and `<!-- end of tutorial: NAME -->`.

    python docs/tutorials/refresh.py [NAME …]
"""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from lesson import Setting, run  # noqa: E402

PRINTED = re.compile(r"<!-- printed: (?P<name>\w+) -->\n\n```text\n(?P<text>.*?)```", re.S)
FIGURE = re.compile(r"\]\((?:tutorials/)?(?P<path>images/[^)]+)\)")
PARTS = {
    "lora": "lora.md",
    "mixed_precision": "search.md",
    "nas": "search.md",
    "pruning": "prune.md",
}
"""Tutorials that are a part of another page, and that page."""


def names() -> list[str]:
    """The tutorials: every page that has a script, and the parts of other pages."""
    own = [page.stem for page in HERE.glob("*.md") if page.with_suffix(".py").is_file()]
    return sorted([*own, *PARTS])


def page_of(name: str) -> Path:
    """The file that a tutorial is in."""
    return HERE.parent / PARTS[name] if name in PARTS else HERE / f"{name}.md"


def text_of(name: str) -> str:
    """The Markdown of a tutorial alone."""
    text = page_of(name).read_text(encoding="utf-8")
    if name not in PARTS:
        return text
    _, start, rest = text.partition(f"<!-- tutorial: {name} -->\n\n")
    part, end, _ = rest.partition(f"\n\n<!-- end of tutorial: {name} -->")
    assert start and end, f"{page_of(name)} has no part for {name}"
    return part


def refreshed(page: str, printed: Mapping[str, str]) -> str:
    """`page` with each printed block as its script prints it now."""

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- printed: {name} -->\n\n```text\n{printed[name]}```"

    return PRINTED.sub(replace, page)


def printed_in(out: Path) -> dict[str, str]:
    """Name -> text of what a tutorial printed to `out`."""
    return {file.stem: file.read_text(encoding="utf-8") for file in out.glob("*.txt")}


def refresh(name: str) -> None:
    """Run one tutorial, rewrite its page and copy its figures."""
    out, page = Path("out/tutorials") / name, page_of(name)
    run(importlib.import_module(name).main, Setting(out))
    before = text_of(name)
    text = refreshed(before, printed_in(out))
    page.write_text(page.read_text(encoding="utf-8").replace(before, text), encoding="utf-8")
    for figure in FIGURE.findall(text):
        target = HERE / figure
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(out / target.name, target)


def main() -> None:
    """Refresh the tutorials named, or all."""
    for name in sys.argv[1:] or names():
        refresh(name)


if __name__ == "__main__":
    main()
