"""Run the tutorials in the small setting and bring their pages up to date: `make figures`.

A page shows printed text in blocks marked `<!-- printed: NAME -->`, and figures from
`images/TUTORIAL/`. Both are what the script of the same name made.

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
FIGURE = re.compile(r"\]\((?P<path>images/[^)]+)\)")


def names() -> list[str]:
    """The tutorials: every page that has a script."""
    return [page.stem for page in sorted(HERE.glob("*.md")) if page.with_suffix(".py").is_file()]


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
    out, page = Path("out/tutorials") / name, HERE / f"{name}.md"
    run(importlib.import_module(name).main, Setting(out))
    text = refreshed(page.read_text(encoding="utf-8"), printed_in(out))
    page.write_text(text, encoding="utf-8")
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
